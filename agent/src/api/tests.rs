//! How the way to the API server is found, with a plugin that takes its time.

use std::{
    fs,
    path::Path,
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::time::sleep;

use super::*;

/// A kubeconfig whose plugin notes each of its runs, and does not end while there is a file `hang`.
fn kubeconfig(dir: &Path) -> std::path::PathBuf {
    with_credential(dir, r#"{"token":"t"}"#)
}

fn with_credential(dir: &Path, status: &str) -> std::path::PathBuf {
    let (plugin, path, dir) = (dir.join("plugin"), dir.join("kubeconfig"), dir.display());
    let credential = format!(
        r#"{{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{status}}}"#
    );
    let script =
        format!("echo run >>{dir}/runs\nwhile [ -e {dir}/hang ]; do sleep 0.1; done\necho '{credential}'\n");
    fs::write(&plugin, script).unwrap();
    let exec = format!(
        r#"{{"apiVersion":"client.authentication.k8s.io/v1","command":"sh","args":["{}"],"interactiveMode":"Never"}}"#,
        plugin.display()
    );
    let config = format!(
        r#"{{"apiVersion":"v1","kind":"Config","current-context":"c",
            "clusters":[{{"name":"c","cluster":{{"server":"http://127.0.0.1:9"}}}}],
            "contexts":[{{"name":"c","context":{{"cluster":"c","user":"u"}}}}],
            "users":[{{"name":"u","user":{{"exec":{exec}}}}}]}}"#
    );
    fs::write(&path, config).unwrap();
    path
}

fn runs(dir: &Path) -> usize {
    fs::read_to_string(dir.join("runs")).unwrap_or_default().lines().count()
}

/// A loaded machine may take a second to start a plugin.
const PATIENCE: Duration = Duration::from_secs(3);

#[tokio::test]
async fn a_plugin_that_hangs_stops_nobody_and_is_not_run_twice_at_a_time() {
    let dir = tempfile::tempdir().unwrap();
    let hang = dir.path().join("hang");
    fs::write(&hang, "").unwrap();
    let api = Arc::new(Api::new(Some(kubeconfig(dir.path()))).with_patience(PATIENCE));
    let ticks = Arc::new(Mutex::new(0));
    let ticking = tokio::spawn({
        let ticks = Arc::clone(&ticks);
        async move {
            loop {
                sleep(Duration::from_millis(10)).await;
                *ticks.lock().unwrap() += 1;
            }
        }
    });
    let begin = std::time::Instant::now();
    let (one, two) = tokio::join!(api.url(), api.get("look", "/api"));
    assert!(begin.elapsed() < 4 * PATIENCE, "{:?}", begin.elapsed());
    let ticks = *ticks.lock().unwrap();
    assert!(ticks > 10, "others go on: {ticks}");
    for error in [one.unwrap_err(), two.unwrap_err()] {
        assert!(error.to_string().contains("did not end within"), "{error}");
    }
    let begin = std::time::Instant::now();
    assert!(api.url().await.is_err());
    assert!(begin.elapsed() < PATIENCE, "nobody waits for it again");
    assert_eq!(runs(dir.path()), 1);
    fs::remove_file(&hang).unwrap();
    let mut url = api.url().await;
    for _ in 0..50 {
        if url.is_ok() {
            break;
        }
        sleep(Duration::from_millis(100)).await;
        url = api.url().await;
    }
    assert_eq!(url.unwrap(), "http://127.0.0.1:9/", "it came to its end");
    ticking.abort();
}

#[tokio::test]
async fn the_old_client_is_kept_until_there_is_a_new_one() {
    let dir = tempfile::tempdir().unwrap();
    let path = kubeconfig(dir.path());
    let api = Api::new(Some(path.clone())).with_patience(PATIENCE);
    api.url().await.unwrap();
    let before = runs(dir.path());
    let moved = fs::read_to_string(&path).unwrap().replace("127.0.0.1:9", "127.0.0.1:10");
    fs::write(&path, moved).unwrap();
    api.reload_after_connect_error();
    assert_eq!(
        (api.url().await.unwrap().as_str(), runs(dir.path())),
        ("http://127.0.0.1:9/", before),
        "just made"
    );
    let hang = dir.path().join("hang");
    fs::write(&hang, "").unwrap();
    api.reload();
    for _ in 0..3 {
        assert_eq!(api.url().await.unwrap(), "http://127.0.0.1:9/", "as long as the new one is not there");
    }
    assert_eq!(runs(dir.path()), before + 1, "it is left alone for a while");
    fs::remove_file(&hang).unwrap();
    let moved = async {
        while api.url().await.unwrap() != "http://127.0.0.1:10/" {
            api.reload();
            sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), moved).await.unwrap();
    fs::write(&path, "users: [{ token: s3cret").unwrap();
    let error = Api::new(Some(path.clone())).url().await.unwrap_err().to_string();
    assert!(error.contains("is no kubeconfig, in line 1") && !error.contains("s3cret"), "{error}");
    api.reload();
    assert_eq!(api.url().await.unwrap(), "http://127.0.0.1:10/", "a file that is being written");
}

#[tokio::test]
async fn a_credential_is_exchanged_when_it_ends_and_not_by_kube() {
    let dir = tempfile::tempdir().unwrap();
    let path = with_credential(dir.path(), r#"{"token":"t","expirationTimestamp":"2020-01-01T00:00:00Z"}"#);
    let api = Api::new(Some(path)).with_patience(PATIENCE);
    for _ in 0..3 {
        // Nobody listens there.
        assert!(matches!(api.get("look", "/api").await, Err(ApiError::Connect { .. })));
    }
    assert_eq!(runs(dir.path()), 1, "our clock may be wrong: it is used for a while");
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(11)).await;
    tokio::time::resume();
    fs::write(dir.path().join("hang"), "").unwrap();
    let begin = std::time::Instant::now();
    for _ in 0..20 {
        assert!(matches!(api.get("look", "/api").await, Err(ApiError::Connect { .. })), "with the old one");
    }
    assert!(begin.elapsed() < 4 * PATIENCE, "{:?}", begin.elapsed());
    assert_eq!(runs(dir.path()), 2, "one that hangs is not run for each request");
}

#[tokio::test]
async fn a_credential_that_has_not_ended_is_used_as_long_as_there_is_no_other() {
    let dir = tempfile::tempdir().unwrap();
    let path = kubeconfig(dir.path());
    let api = Api::new(Some(path)).with_patience(PATIENCE);
    api.url().await.unwrap();
    fs::write(dir.path().join("plugin"), format!("echo run >>{}/runs; exit 1", dir.path().display()))
        .unwrap();
    for _ in 0..5 {
        api.reload();
        assert!(matches!(api.get("look", "/api").await, Err(ApiError::Connect { .. })));
    }
    assert_eq!(runs(dir.path()), 2);
}

#[tokio::test]
async fn a_token_that_cannot_be_sent_ends_nobody() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("kubeconfig");
    let config = r#"{"apiVersion":"v1","kind":"Config","current-context":"c",
        "clusters":[{"name":"c","cluster":{"server":"http://127.0.0.1:1"}}],
        "contexts":[{"name":"c","context":{"cluster":"c","user":"u"}}],
        "users":[{"name":"u","user":{"token":"s3cret\n"}}]}"#;
    fs::write(&path, config).unwrap();
    let error = Api::new(Some(path)).url().await.unwrap_err();
    assert!(matches!(error, ApiError::Config { .. }) && !error.to_string().contains("s3cret"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_cannot_be_reached_is_looked_for_at_another_address_once_a_minute() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("kubeconfig");
    let at = |port: u32| {
        format!(
            r#"{{"apiVersion":"v1","kind":"Config","current-context":"c",
                "clusters":[{{"name":"c","cluster":{{"server":"http://127.0.0.1:{port}"}}}}],
                "contexts":[{{"name":"c","context":{{"cluster":"c","user":"u"}}}}],
                "users":[{{"name":"u","user":{{"token":"t"}}}}]}}"#
        )
    };
    fs::write(&path, at(1)).unwrap();
    let api = Api::new(Some(path.clone()));
    api.url().await.unwrap();
    let mut seen = Vec::new();
    for port in 2..=13 {
        sleep(Duration::from_secs(10)).await;
        fs::write(&path, at(port)).unwrap();
        api.reload_after_connect_error();
        seen.push(api.url().await.unwrap());
    }
    seen.dedup();
    let of = |port: u32| format!("http://127.0.0.1:{port}/");
    assert_eq!(seen, [of(1), of(7), of(13)], "in two minutes");
}
