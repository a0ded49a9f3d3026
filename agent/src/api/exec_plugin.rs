//! Runs the kubeconfig's exec plugin, a program that prints a credential.
//!
//! kube can run plugins itself, but blocks a thread of the runtime without a time limit. Here a plugin blocks
//! no thread; at its deadline, its process group is killed.
//!
//! Input and output of a plugin: <https://kubernetes.io/docs/reference/config-api/client-authentication.v1/>

use std::{
    convert::Infallible,
    future::pending,
    io,
    process::{ExitStatus, Stdio},
    time::Duration,
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use http::HeaderValue;
use jiff::Timestamp;
use kube::config::{AuthInfo, ExecConfig, ExecInteractiveMode};
use nix::{
    sys::{
        signal::{Signal, killpg},
        wait::{WaitPidFlag, WaitStatus, waitpid},
    },
    unistd::Pid,
};
use serde::Deserialize;
use serde_json::json;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, copy, sink},
    process::{Child, Command},
    time::{sleep, timeout},
};

/// A plugin that returned no credential. Its output may be secret and is never shown, except the end of
/// stderr.
#[derive(Debug, thiserror::Error)]
pub enum PluginError {
    #[error("the kubeconfig has an auth-provider, which is not supported; use an exec plugin or a token")]
    Provider,
    #[error("the kubeconfig's exec plugin has no command")]
    NoCommand,
    #[error(
        "the kubeconfig's exec plugin {command:?} requires a terminal (interactiveMode: Always); there is none"
    )]
    Interactive { command: String },
    #[error("cannot run the kubeconfig's exec plugin {command:?}{}", hint.as_deref().unwrap_or_default())]
    Start { command: String, hint: Option<String>, source: io::Error },
    #[error("the kubeconfig's exec plugin {command:?} exceeded its deadline of {} s and was killed", after.as_secs_f32())]
    Slow { command: String, after: Duration },
    #[error("the kubeconfig's exec plugin {command:?} failed, {status}: {stderr}")]
    Failed { command: String, status: ExitStatus, stderr: String },
    #[error("invalid output of the kubeconfig's exec plugin {command:?}: {why}")]
    Output { command: String, why: String },
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ExecCredential {
    #[serde(default)]
    api_version: String,
    status: Option<Status>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Status {
    expiration_timestamp: Option<Timestamp>,
    token: Option<String>,
    client_certificate_data: Option<String>,
    client_key_data: Option<String>,
}

/// A plugin's process group. Killed on drop.
struct ProcessGroup(Option<Pid>);

/// Bytes of stdout.
const MAX_STDOUT: u64 = 1 << 20;
/// Bytes of stderr that are read, and characters from its end that are shown.
const MAX_STDERR: u64 = 64 << 10;
const SHOWN_STDERR: usize = 300;
/// A credential is renewed this long before it expires, or after half of its lifetime if that is later.
const EARLY: Duration = Duration::from_secs(60);
/// The wait for killed processes.
const REAP_TIMEOUT: Duration = Duration::from_secs(1);
/// Even a credential that has expired is used this long: the node's clock may be wrong.
const MIN_LIFETIME: Duration = Duration::from_secs(10);

/// Replaces the exec plugin of a kubeconfig by the credential that it prints; does nothing without a plugin.
/// Returns for how long the credential may be used, if it expires.
///
/// # Errors
/// See [`PluginError`].
pub async fn authenticate(auth: &mut AuthInfo, deadline: Duration) -> Result<Option<Duration>, PluginError> {
    if auth.auth_provider.is_some() {
        return Err(PluginError::Provider);
    }
    let Some(exec) = auth.exec.take() else { return Ok(None) };
    // They take precedence in kubectl, too.
    let has_token = auth.token.is_some() || auth.token_file.is_some();
    let has_password = auth.username.is_some() && auth.password.is_some();
    let has_certificate = auth.client_certificate.is_some() || auth.client_certificate_data.is_some();
    if has_token || has_password || has_certificate {
        return Ok(None);
    }
    let status = run(&exec, deadline).await?;
    auth.token = status.token.map(Into::into);
    if let (Some(certificate), Some(key)) = (status.client_certificate_data, status.client_key_data) {
        auth.client_certificate_data = Some(BASE64_STANDARD.encode(certificate));
        auth.client_key_data = Some(BASE64_STANDARD.encode(key).into());
    }
    Ok(status.expiration_timestamp.map(|end| lifetime(end, Timestamp::now())))
}

async fn run(exec: &ExecConfig, deadline: Duration) -> Result<Status, PluginError> {
    let name = exec.command.clone().ok_or(PluginError::NoCommand)?;
    let start = |source| {
        let hint = exec.install_hint.as_ref().map(|hint| format!(" ({hint})"));
        PluginError::Start { command: name.clone(), hint, source }
    };
    let mut plugin = command(exec, &name)?.spawn().map_err(start)?;
    let group = ProcessGroup(plugin.id().and_then(|id| i32::try_from(id).ok()).map(Pid::from_raw));
    let (stdout, stderr) = (plugin.stdout.take(), plugin.stderr.take());
    let mut collected = Vec::new();
    // Read first, then wait: until then, the kernel does not reuse the ID of the process group.
    let ends = async { (read(stdout).await, plugin.wait().await) };
    // A background process of the plugin may keep stderr open.
    let ended = async {
        tokio::select! {
            biased;
            never = drain(stderr, &mut collected) => match never {},
            ended = ends => ended,
        }
    };
    let Ok((stdout, status)) = timeout(deadline, ended).await else {
        let group = group.kill();
        let _ = timeout(REAP_TIMEOUT, reap(&mut plugin, group)).await;
        return Err(PluginError::Slow { command: name, after: deadline });
    };
    let status = status.map_err(start)?;
    group.exited();
    let stdout = stdout.map_err(start)?;
    if stdout.len() as u64 > MAX_STDOUT {
        return Err(PluginError::Output { command: name, why: format!("longer than {MAX_STDOUT} bytes") });
    }
    if !status.success() {
        return Err(PluginError::Failed { command: name, status, stderr: end_of(&collected) });
    }
    parse(&stdout, exec).map_err(|why| PluginError::Output { command: name, why })
}

fn command(exec: &ExecConfig, name: &str) -> Result<Command, PluginError> {
    if exec.interactive_mode == Some(ExecInteractiveMode::Always) {
        return Err(PluginError::Interactive { command: name.to_owned() });
    }
    let mut command = Command::new(name);
    command.args(exec.args.iter().flatten());
    for variable in exec.env.iter().flatten() {
        if let (Some(name), Some(value)) = (variable.get("name"), variable.get("value")) {
            command.env(name, value);
        }
    }
    let mut spec = json!({ "interactive": false });
    if exec.provide_cluster_info {
        spec = json!({ "interactive": false, "cluster": exec.cluster });
    }
    let info = json!({ "apiVersion": exec.api_version, "kind": "ExecCredential", "spec": spec });
    command.env("KUBERNETES_EXEC_INFO", info.to_string());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.process_group(0).kill_on_drop(true);
    Ok(command)
}

/// Reads one byte more than allowed, so that the caller detects an excess.
async fn read(pipe: Option<impl AsyncRead + Unpin>) -> io::Result<Vec<u8>> {
    let mut all = Vec::new();
    if let Some(pipe) = pipe {
        pipe.take(MAX_STDOUT + 1).read_to_end(&mut all).await?;
    }
    Ok(all)
}

/// Collects the first part of stderr, and discards the rest. Never returns.
async fn drain(pipe: Option<impl AsyncRead + Unpin>, collected: &mut Vec<u8>) -> Infallible {
    if let Some(pipe) = pipe {
        let mut pipe = pipe.take(MAX_STDERR);
        let _ = pipe.read_to_end(collected).await;
        let _ = copy(&mut pipe.into_inner(), &mut sink()).await;
    }
    pending().await
}

/// Reaps a killed plugin, and its children if they have become ours (the agent as PID 1 or subreaper).
async fn reap(plugin: &mut Child, group: Option<Pid>) {
    let _ = plugin.wait().await;
    let Some(group) = group else { return };
    while let Ok(WaitStatus::StillAlive | WaitStatus::Signaled(..) | WaitStatus::Exited(..)) =
        waitpid(Pid::from_raw(-group.as_raw()), Some(WaitPidFlag::WNOHANG))
    {
        sleep(Duration::from_millis(10)).await;
    }
}

/// Omits the parser's messages, because they quote the output.
fn parse(stdout: &[u8], exec: &ExecConfig) -> Result<Status, String> {
    // YAML includes JSON; kubectl accepts both.
    let credential: ExecCredential = serde_saphyr::from_slice(stdout)
        .map_err(|_| "not an ExecCredential; run the plugin by hand to see it".to_owned())?;
    let expected = exec.api_version.as_deref().unwrap_or_default();
    if credential.api_version != expected {
        return Err(format!("apiVersion {:?}, expected {expected:?}", credential.api_version));
    }
    let status = credential.status.ok_or("no status")?.without_blanks();
    if status.token.as_deref().is_some_and(|token| HeaderValue::from_str(token).is_err()) {
        return Err("invalid characters in the token, perhaps a line break".to_owned());
    }
    match (&status.token, &status.client_certificate_data, &status.client_key_data) {
        (None, None, None) => Err("neither a token nor a certificate".to_owned()),
        (_, Some(_), None) | (_, None, Some(_)) => {
            Err("a certificate without its key, or a key without its certificate".to_owned())
        }
        _ => Ok(status),
    }
}

fn lifetime(end: Timestamp, now: Timestamp) -> Duration {
    let left = Duration::try_from(end.duration_since(now)).unwrap_or_default();
    (left - EARLY.min(left / 2)).max(MIN_LIFETIME)
}

fn end_of(stderr: &[u8]) -> String {
    let text = String::from_utf8_lossy(stderr);
    let text: Vec<char> = text.trim().chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    text.iter().skip(text.len().saturating_sub(SHOWN_STDERR)).collect()
}

// === impl Status ===

impl Status {
    /// Treats empty fields as missing.
    fn without_blanks(self) -> Self {
        let there = |text: Option<String>| text.filter(|text| !text.is_empty());
        Self {
            token: there(self.token),
            client_certificate_data: there(self.client_certificate_data),
            client_key_data: there(self.client_key_data),
            ..self
        }
    }
}

// === impl ProcessGroup ===

impl ProcessGroup {
    /// Disarms the kill on drop.
    fn exited(mut self) {
        self.0 = None;
    }

    fn kill(self) -> Option<Pid> {
        self.0
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        if let Some(group) = self.0 {
            // Fails if the group is empty.
            let _ = killpg(group, Signal::SIGKILL);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        path::{Path, PathBuf},
    };

    use super::*;
    use crate::chain::chain;

    /// A shell script as plugin.
    fn plugin(script: &str) -> AuthInfo {
        let exec = json!({
            "apiVersion": "client.authentication.k8s.io/v1",
            "command": "sh",
            "args": ["-c", script],
            "env": [{ "name": "SECRET", "value": "s3cret" }],
            "installHint": "it comes with every system",
            "interactiveMode": "IfAvailable",
        });
        serde_json::from_value(json!({ "exec": exec })).unwrap()
    }

    /// A plugin that prints a status.
    fn printing(status: &str) -> AuthInfo {
        let version = "client.authentication.k8s.io/v1";
        plugin(&format!(
            r#"printf %s '{{"apiVersion":"{version}","kind":"ExecCredential","status":{status}}}'"#
        ))
    }

    fn token(auth: &AuthInfo) -> Option<String> {
        serde_json::to_value(auth).unwrap()["token"].as_str().map(str::to_owned)
    }

    const DEADLINE: Duration = Duration::from_secs(10);

    #[tokio::test]
    async fn a_token_replaces_the_plugin() {
        let mut auth = printing(r#"{"token":"'$SECRET'"}"#);
        assert_eq!(authenticate(&mut auth, DEADLINE).await.unwrap(), None, "the token does not expire");
        assert_eq!(token(&auth).as_deref(), Some("s3cret"));
        assert!(auth.exec.is_none(), "kube would run the plugin again");
    }

    #[tokio::test]
    async fn a_plugin_gets_the_request_in_its_environment() {
        let script = r#"
            token=$(echo "$KUBERNETES_EXEC_INFO" | tr -d '{}":,[]')
            printf 'apiVersion: client.authentication.k8s.io/v1
status:
  token: %s
' "$token""#;
        let mut auth = plugin(script);
        authenticate(&mut auth, DEADLINE).await.unwrap();
        let told = token(&auth).unwrap();
        assert_eq!(told, "apiVersionclient.authentication.k8s.io/v1kindExecCredentialspecinteractivefalse");
    }

    #[tokio::test]
    async fn a_certificate_and_its_key_need_no_token() {
        let mut auth = printing(r#"{"token":"","clientCertificateData":"C","clientKeyData":"K"}"#);
        authenticate(&mut auth, DEADLINE).await.unwrap();
        assert_eq!((token(&auth), auth.client_certificate_data.as_deref()), (None, Some("Qw==")));
        assert!(auth.client_key_data.is_some());
    }

    #[tokio::test]
    async fn other_credentials_take_precedence_over_the_plugin() {
        let mut auth = plugin("exit 1");
        auth.token = Some("given".to_owned().into());
        assert!(authenticate(&mut auth, DEADLINE).await.is_ok());
        assert_eq!(token(&auth).as_deref(), Some("given"));
        let mut auth = plugin("exit 1");
        auth.client_certificate = Some("/given".to_owned());
        assert!(authenticate(&mut auth, DEADLINE).await.is_ok());
    }

    /// A plugin that starts a process and waits for it, and the file to which it writes both process IDs.
    fn hanging(dir: &Path) -> (AuthInfo, PathBuf) {
        let (partial, pids) = (dir.join("partial"), dir.join("pids"));
        let script =
            format!("sleep 1000 & echo $! $$ >{0}; mv {0} {1}; wait", partial.display(), pids.display());
        (plugin(&script), pids)
    }

    /// Whether both processes end soon.
    async fn both_end(pids: &Path) -> bool {
        let pids = fs::read_to_string(pids).unwrap();
        let lives = |pid: &str| {
            fs::read_to_string(format!("/proc/{pid}/status")).is_ok_and(|it| !it.contains("State:\tZ"))
        };
        assert_eq!(pids.split_whitespace().count(), 2, "{pids}");
        for _ in 0..500 {
            if !pids.split_whitespace().any(lives) {
                return true;
            }
            sleep(Duration::from_millis(10)).await;
        }
        false
    }

    #[tokio::test]
    async fn a_hanging_plugin_is_killed_with_its_children() {
        let dir = tempfile::tempdir().unwrap();
        let (mut auth, pids) = hanging(dir.path());
        let error = authenticate(&mut auth, Duration::from_secs(2)).await.unwrap_err();
        assert!(matches!(error, PluginError::Slow { .. }), "{error}");
        assert!(both_end(&pids).await);
    }

    #[tokio::test]
    async fn a_cancelled_plugin_is_killed() {
        let dir = tempfile::tempdir().unwrap();
        let (mut auth, pids) = hanging(dir.path());
        let asking = tokio::spawn(async move { authenticate(&mut auth, DEADLINE).await.map(drop) });
        for _ in 0..1000 {
            if pids.exists() {
                break;
            }
            sleep(Duration::from_millis(10)).await;
        }
        asking.abort();
        assert!(both_end(&pids).await);
    }

    #[tokio::test]
    async fn background_processes_of_a_plugin_are_not_waited_for() {
        let mut auth = printing(r#"{"token":"t"}"#);
        let args = auth.exec.as_mut().and_then(|exec| exec.args.as_mut()).unwrap();
        args[1] = format!("sleep 20 >/dev/null & {}", args[1]);
        assert!(authenticate(&mut auth, DEADLINE).await.is_ok());
    }

    #[tokio::test]
    async fn errors_say_why_and_contain_no_secret() {
        let cases = [
            (plugin("echo no network >&2; echo s3cret; exit 3"), "exit status: 3: no network"),
            (plugin(r#"echo '{"status":{"token":"s3cret"}}'"#), "apiVersion \"\", expected"),
            (plugin("echo s3cret"), "not an ExecCredential"),
            (printing("null"), "no status"),
            (printing(r#""s3cret""#), "not an ExecCredential"),
            (printing("{}"), "neither a token"),
            (printing(r#"{"clientKeyData":"s3cret"}"#), "without its certificate"),
            (printing(r#"{"token":"s3cret\n"}"#), "a line break"),
            (plugin("yes s3cret"), "longer than"),
        ];
        for (mut auth, why) in cases {
            let error = chain(&authenticate(&mut auth, DEADLINE).await.unwrap_err());
            assert!(error.contains(why) && !error.contains("s3cret"), "{error}");
        }
        let mut absent = plugin("");
        absent.exec.as_mut().unwrap().command = Some("/nowhere/plugin".to_owned());
        let error = chain(&authenticate(&mut absent, DEADLINE).await.unwrap_err());
        assert!(error.contains("/nowhere/plugin") && error.contains("comes with every system"), "{error}");
    }

    #[test]
    fn a_credential_is_renewed_before_it_expires() {
        let now = Timestamp::UNIX_EPOCH;
        let lifetime = |left: i64| lifetime(now + Duration::from_secs(left.unsigned_abs()), now).as_secs();
        assert_eq!([3600, 100, 30, 5].map(lifetime), [3540, 50, 15, 10]);
        let expired = super::lifetime(now, now + Duration::from_secs(3600));
        assert_eq!(expired, MIN_LIFETIME, "the node's clock may be wrong");
    }
}
