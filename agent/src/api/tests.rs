//! Connecting and reconnecting, with slow and failing exec plugins.

use std::{
    convert::Infallible,
    fs,
    path::Path,
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;
use http_body_util::StreamBody;
use hyper::body::Frame;
use kube::{Client, client::Body};
use tokio::time::sleep;

use super::*;

/// A kubeconfig whose plugin logs each run, and hangs while the file `hang` exists.
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

fn no_connection() -> ApiError {
    ApiError::Connect { what: "look".to_owned(), source: Box::new(kube::Error::Service("refused".into())) }
}

/// Starting a plugin may take a second on a loaded machine.
const TIMEOUT: Duration = Duration::from_secs(3);

#[tokio::test]
async fn a_hanging_plugin_blocks_no_thread_and_runs_once_at_a_time() {
    let dir = tempfile::tempdir().unwrap();
    let hang = dir.path().join("hang");
    fs::write(&hang, "").unwrap();
    let api = Arc::new(Api::new(Some(kubeconfig(dir.path()))).with_plugin_timeout(TIMEOUT));
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
    let (one, two) = tokio::join!(api.connected_to(), api.get("look", "/api"));
    assert!(begin.elapsed() < 4 * TIMEOUT, "{:?}", begin.elapsed());
    let ticks = *ticks.lock().unwrap();
    assert!(ticks > 10, "other tasks run: {ticks}");
    for error in [one.unwrap_err(), two.unwrap_err()] {
        assert!(error.to_string().contains("exceeded its deadline"), "{error}");
    }
    let begin = std::time::Instant::now();
    assert!(api.connected_to().await.is_err());
    assert!(begin.elapsed() < TIMEOUT, "later requests do not wait");
    assert_eq!(runs(dir.path()), 1);
    fs::remove_file(&hang).unwrap();
    let mut url = api.connected_to().await;
    for _ in 0..50 {
        if url.is_ok() {
            break;
        }
        sleep(Duration::from_millis(100)).await;
        url = api.connected_to().await;
    }
    assert_eq!(url.unwrap(), "http://127.0.0.1:9/", "the attempt has completed");
    ticking.abort();
}

#[tokio::test]
async fn the_old_connection_is_used_until_the_new_one_is_complete() {
    let dir = tempfile::tempdir().unwrap();
    let path = kubeconfig(dir.path());
    let api = Api::new(Some(path.clone())).with_plugin_timeout(TIMEOUT);
    api.connected_to().await.unwrap();
    let before = runs(dir.path());
    let moved = fs::read_to_string(&path).unwrap().replace("127.0.0.1:9", "127.0.0.1:10");
    fs::write(&path, moved).unwrap();
    api.reload_after(&no_connection());
    assert_eq!(
        (api.connected_to().await.unwrap().as_str(), runs(dir.path())),
        ("http://127.0.0.1:9/", before),
        "the connection is less than a minute old"
    );
    let hang = dir.path().join("hang");
    fs::write(&hang, "").unwrap();
    api.reload();
    for _ in 0..3 {
        assert_eq!(api.connected_to().await.unwrap(), "http://127.0.0.1:9/", "the plugin hangs");
    }
    assert_eq!(runs(dir.path()), before + 1, "cooldown after a failure");
    fs::remove_file(&hang).unwrap();
    let moved = async {
        while api.connected_to().await.unwrap() != "http://127.0.0.1:10/" {
            api.reload();
            sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), moved).await.unwrap();
    fs::write(&path, "users: [{ token: s3cret").unwrap();
    let error = Api::new(Some(path.clone())).connected_to().await.unwrap_err().to_string();
    assert!(
        error.contains("is no kubeconfig: syntax error in line 1") && !error.contains("s3cret"),
        "{error}"
    );
    api.reload();
    assert_eq!(api.connected_to().await.unwrap(), "http://127.0.0.1:10/", "a half-written file");
}

#[tokio::test]
async fn an_expired_credential_is_renewed_by_us_and_not_by_kube() {
    let dir = tempfile::tempdir().unwrap();
    let path = with_credential(dir.path(), r#"{"token":"t","expirationTimestamp":"2020-01-01T00:00:00Z"}"#);
    let api = Api::new(Some(path)).with_plugin_timeout(TIMEOUT);
    for _ in 0..3 {
        // The port is closed.
        assert!(matches!(api.get("look", "/api").await, Err(ApiError::Connect { .. })));
    }
    assert_eq!(runs(dir.path()), 1, "the node's clock may be wrong");
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(11)).await;
    tokio::time::resume();
    fs::write(dir.path().join("hang"), "").unwrap();
    let begin = std::time::Instant::now();
    for _ in 0..20 {
        assert!(
            matches!(api.get("look", "/api").await, Err(ApiError::Connect { .. })),
            "uses the old credential"
        );
    }
    assert!(begin.elapsed() < 4 * TIMEOUT, "{:?}", begin.elapsed());
    assert_eq!(runs(dir.path()), 2, "a hanging plugin does not run for each request");
}

#[tokio::test]
async fn the_url_is_known_although_the_plugin_fails_or_hangs() {
    let dir = tempfile::tempdir().unwrap();
    let path = kubeconfig(dir.path());
    fs::write(dir.path().join("hang"), "").unwrap();
    let api = Api::new(Some(path.clone())).with_plugin_timeout(TIMEOUT);
    assert_eq!(api.url().await.unwrap(), "http://127.0.0.1:9/");
    assert_eq!(runs(dir.path()), 0);
    let (url, answer) = tokio::join!(api.url(), api.get("look", "/api"));
    assert_eq!(url.unwrap(), "http://127.0.0.1:9/");
    assert!(matches!(answer, Err(ApiError::Credential { .. })));
    let moved = fs::read_to_string(&path).unwrap().replace("127.0.0.1:9", "127.0.0.1:10");
    fs::write(&path, moved).unwrap();
    assert_eq!(api.url().await.unwrap(), "http://127.0.0.1:10/", "nothing is connected yet");
    fs::remove_file(&path).unwrap();
    assert!(matches!(api.url().await, Err(ApiError::Config { .. })));
}

#[tokio::test]
async fn the_url_is_that_of_the_connection_which_requests_use() {
    let dir = tempfile::tempdir().unwrap();
    let path = kubeconfig(dir.path());
    let api = Api::new(Some(path.clone())).with_plugin_timeout(TIMEOUT);
    api.connected_to().await.unwrap();
    let moved = fs::read_to_string(&path).unwrap().replace("127.0.0.1:9", "127.0.0.1:10");
    fs::write(&path, moved).unwrap();
    assert_eq!(api.url().await.unwrap(), "http://127.0.0.1:9/");
    api.reload();
    assert_eq!(api.url().await.unwrap(), "http://127.0.0.1:10/");
}

#[tokio::test]
async fn a_valid_credential_is_used_while_the_plugin_fails() {
    let dir = tempfile::tempdir().unwrap();
    let path = kubeconfig(dir.path());
    let api = Api::new(Some(path)).with_plugin_timeout(TIMEOUT);
    api.connected_to().await.unwrap();
    fs::write(dir.path().join("plugin"), format!("echo run >>{}/runs; exit 1", dir.path().display()))
        .unwrap();
    for _ in 0..5 {
        api.reload();
        assert!(matches!(api.get("look", "/api").await, Err(ApiError::Connect { .. })));
    }
    assert_eq!(runs(dir.path()), 2);
}

#[tokio::test]
async fn a_token_that_is_no_valid_header_is_an_error_and_no_panic() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("kubeconfig");
    let config = r#"{"apiVersion":"v1","kind":"Config","current-context":"c",
        "clusters":[{"name":"c","cluster":{"server":"http://127.0.0.1:1"}}],
        "contexts":[{"name":"c","context":{"cluster":"c","user":"u"}}],
        "users":[{"name":"u","user":{"token":"s3cret\n"}}]}"#;
    fs::write(&path, config).unwrap();
    let error = Api::new(Some(path)).connected_to().await.unwrap_err();
    assert!(matches!(error, ApiError::Config { .. }) && !error.to_string().contains("s3cret"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn after_connect_errors_the_address_is_read_again_once_a_minute() {
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
    api.connected_to().await.unwrap();
    let mut seen = Vec::new();
    for port in 2..=13 {
        sleep(Duration::from_secs(10)).await;
        fs::write(&path, at(port)).unwrap();
        api.reload_after(&no_connection());
        seen.push(api.connected_to().await.unwrap());
    }
    seen.dedup();
    let of = |port: u32| format!("http://127.0.0.1:{port}/");
    assert_eq!(seen, [of(1), of(7), of(13)], "in two minutes");
}

#[tokio::test]
async fn a_response_that_is_too_large_is_an_error_of_its_own() {
    static MEBIBYTE: [u8; 1 << 20] = [b' '; 1 << 20];
    let answer = |_: http::Request<Body>| async {
        let chunk = || Ok::<_, Infallible>(Frame::data(Bytes::from_static(&MEBIBYTE)));
        let chunks = futures_util::stream::iter(std::iter::repeat_with(chunk).take(257));
        Ok::<_, Infallible>(http::Response::new(StreamBody::new(chunks)))
    };
    let api = Api::with_client(Client::new(tower::service_fn(answer), "default"));
    let error = api.get("list pods", "/api/v1/pods").await.unwrap_err();
    assert!(matches!(error, ApiError::TooLarge { limit, .. } if limit == 256 << 20), "{error}");
}

/// In a process of its own, because of the environment.
#[test]
fn a_proxy_of_the_environment_is_not_the_kubeconfigs() {
    const CHILD: &str = "FERRULE_TEST_OF_PROXY";
    let name = "api::tests::a_proxy_of_the_environment_is_not_the_kubeconfigs";
    if std::env::var_os(CHILD).is_none() {
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", name]).env(CHILD, "1").env("HTTPS_PROXY", "http://192.0.2.1:3128");
        let output = child.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("kubeconfig");
    let connect = |more: &str| {
        let config = format!(
            r#"{{"apiVersion":"v1","kind":"Config","current-context":"c","users":[{{"name":"u","user":{{}}}}],
                "clusters":[{{"name":"c","cluster":{{"server":"https://127.0.0.1:9"{more}}}}}],
                "contexts":[{{"name":"c","context":{{"cluster":"c","user":"u"}}}}]}}"#
        );
        fs::write(&path, config).unwrap();
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        runtime.block_on(async { Api::new(Some(path.clone())).connected_to().await })
    };
    assert_eq!(connect("").unwrap(), "https://127.0.0.1:9/");
    let refused = connect(r#","proxy-url":"http://192.0.2.1:3128""#).unwrap_err().to_string();
    assert!(refused.contains("proxy"), "{refused}");
}
