//! The kubeconfig's exec plugin: a program that knows who we are.
//!
//! kube would run it too, but in the threads that the verbs work on, and for as long as it takes. Here it takes no thread,
//! and has a deadline, at which its process group is killed.
//!
//! What it is told and what it prints: <https://kubernetes.io/docs/reference/config-api/client-authentication.v1/>

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

/// A plugin that gave no credential. What it prints may be secret, and is not told; the end of what it complains of is.
#[derive(Debug, thiserror::Error)]
pub enum PluginError {
    #[error(
        "the kubeconfig has an auth-provider, which the agent does not work with: give it an exec plugin or a token"
    )]
    Provider,
    #[error("the kubeconfig's exec plugin has no command")]
    NoCommand,
    #[error("the kubeconfig's exec plugin {command:?} wants to ask somebody, and there is nobody")]
    Interactive { command: String },
    #[error("cannot run the kubeconfig's exec plugin {command:?}{}", hint.as_deref().unwrap_or_default())]
    Start { command: String, hint: Option<String>, source: io::Error },
    #[error("the kubeconfig's exec plugin {command:?} did not end within {} s, and was killed", after.as_secs_f32())]
    Slow { command: String, after: Duration },
    #[error("the kubeconfig's exec plugin {command:?} failed, {status}: {said}")]
    Failed { command: String, status: ExitStatus, said: String },
    #[error("what the kubeconfig's exec plugin {command:?} printed is no credential: {why}")]
    Output { command: String, why: String },
}

/// `ExecCredential`, as a plugin prints it.
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

/// A plugin's process group, which ends with it.
struct Running(Option<Pid>);

/// The most that is read of what a plugin prints.
const MOST: u64 = 1 << 20;
/// And of what it complains of, of which the end is told.
const SAID: u64 = 64 << 10;
const TOLD: usize = 300;
/// How long before its end a credential is exchanged, or at its half if that is later.
const EARLY: Duration = Duration::from_secs(60);
/// How long to wait for what was killed.
const BURY: Duration = Duration::from_secs(1);
/// The shortest time for which a credential is used, also if it has ended by our clock.
const SHORTEST: Duration = Duration::from_secs(10);

/// Puts a plugin's credential in its place, if there is a plugin to ask. Gives how long the credential can be used, if it
/// ends.
///
/// # Errors
/// If there is none to be had in time.
pub async fn ask(who: &mut AuthInfo, patience: Duration) -> Result<Option<Duration>, PluginError> {
    if who.auth_provider.is_some() {
        return Err(PluginError::Provider);
    }
    let Some(exec) = who.exec.take() else { return Ok(None) };
    // These come first for kubectl, too.
    let has_token = who.token.is_some() || who.token_file.is_some();
    let has_password = who.username.is_some() && who.password.is_some();
    let has_certificate = who.client_certificate.is_some() || who.client_certificate_data.is_some();
    if has_token || has_password || has_certificate {
        return Ok(None);
    }
    let status = run(&exec, patience).await?;
    who.token = status.token.map(Into::into);
    if let (Some(certificate), Some(key)) = (status.client_certificate_data, status.client_key_data) {
        who.client_certificate_data = Some(BASE64_STANDARD.encode(certificate));
        who.client_key_data = Some(BASE64_STANDARD.encode(key).into());
    }
    Ok(status.expiration_timestamp.map(|end| usable(end, Timestamp::now())))
}

async fn run(exec: &ExecConfig, patience: Duration) -> Result<Status, PluginError> {
    let name = exec.command.clone().ok_or(PluginError::NoCommand)?;
    let start = |source| {
        let hint = exec.install_hint.as_ref().map(|hint| format!(" ({hint})"));
        PluginError::Start { command: name.clone(), hint, source }
    };
    let mut plugin = command(exec, &name)?.spawn().map_err(start)?;
    let running = Running(plugin.id().and_then(|id| i32::try_from(id).ok()).map(Pid::from_raw));
    let (stdout, stderr) = (plugin.stdout.take(), plugin.stderr.take());
    let mut said = Vec::new();
    // In this order: as long as nobody has waited for it, its group's number is nobody else's.
    let ends = async { (read(stdout).await, plugin.wait().await) };
    // What it leaves behind may go on to complain: that is not waited for.
    let ended = async {
        tokio::select! {
            biased;
            never = listen(stderr, &mut said) => match never {},
            ended = ends => ended,
        }
    };
    let Ok((printed, status)) = timeout(patience, ended).await else {
        let group = running.kill();
        let _ = timeout(BURY, bury(&mut plugin, group)).await;
        return Err(PluginError::Slow { command: name, after: patience });
    };
    let status = status.map_err(start)?;
    running.ended();
    let printed = printed.map_err(start)?;
    if printed.len() as u64 > MOST {
        return Err(PluginError::Output { command: name, why: format!("it is longer than {MOST} bytes") });
    }
    if !status.success() {
        return Err(PluginError::Failed { command: name, status, said: end_of(&said) });
    }
    parse(&printed, exec).map_err(|why| PluginError::Output { command: name, why })
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
    let told = json!({ "apiVersion": exec.api_version, "kind": "ExecCredential", "spec": spec });
    command.env("KUBERNETES_EXEC_INFO", told.to_string());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.process_group(0).kill_on_drop(true);
    Ok(command)
}

/// Reads all, or one byte more than is taken.
async fn read(pipe: Option<impl AsyncRead + Unpin>) -> io::Result<Vec<u8>> {
    let mut all = Vec::new();
    if let Some(pipe) = pipe {
        pipe.take(MOST + 1).read_to_end(&mut all).await?;
    }
    Ok(all)
}

/// Reads the first of it, and lets the rest go by.
async fn listen(pipe: Option<impl AsyncRead + Unpin>, said: &mut Vec<u8>) -> Infallible {
    if let Some(pipe) = pipe {
        let mut pipe = pipe.take(SAID);
        let _ = pipe.read_to_end(said).await;
        let _ = copy(&mut pipe.into_inner(), &mut sink()).await;
    }
    pending().await
}

/// Waits for a plugin that was killed, and, where that makes them our children, for those that it had started.
async fn bury(plugin: &mut Child, group: Option<Pid>) {
    let _ = plugin.wait().await;
    let Some(group) = group else { return };
    while let Ok(WaitStatus::StillAlive | WaitStatus::Signaled(..) | WaitStatus::Exited(..)) =
        waitpid(Pid::from_raw(-group.as_raw()), Some(WaitPidFlag::WNOHANG))
    {
        sleep(Duration::from_millis(10)).await;
    }
}

/// Without what the parser says: it quotes.
fn parse(printed: &[u8], exec: &ExecConfig) -> Result<Status, String> {
    // JSON, which is YAML: kubectl takes both.
    let credential: ExecCredential = serde_saphyr::from_slice(printed)
        .map_err(|_| "it is not an ExecCredential: run the plugin by hand to see it".to_owned())?;
    let asked = exec.api_version.as_deref().unwrap_or_default();
    if credential.api_version != asked {
        return Err(format!(
            "it is of the version {:?}, and {asked:?} was asked for",
            credential.api_version
        ));
    }
    let status = credential.status.ok_or("it has no status")?.without_blanks();
    if status.token.as_deref().is_some_and(|token| HeaderValue::from_str(token).is_err()) {
        return Err(
            "there are characters in its token that none may have, perhaps the end of a line".to_owned()
        );
    }
    match (&status.token, &status.client_certificate_data, &status.client_key_data) {
        (None, None, None) => Err("there is neither a token nor a certificate in it".to_owned()),
        (_, Some(_), None) | (_, None, Some(_)) => {
            Err("there is one in it of a certificate and its key, and not the other".to_owned())
        }
        _ => Ok(status),
    }
}

fn usable(end: Timestamp, now: Timestamp) -> Duration {
    let left = Duration::try_from(end.duration_since(now)).unwrap_or_default();
    (left - EARLY.min(left / 2)).max(SHORTEST)
}

fn end_of(said: &[u8]) -> String {
    let text = String::from_utf8_lossy(said);
    let text: Vec<char> = text.trim().chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    text.iter().skip(text.len().saturating_sub(TOLD)).collect()
}

// === impl Status ===

impl Status {
    /// What is empty is not there.
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

// === impl Running ===

impl Running {
    /// There is nothing left to kill.
    fn ended(mut self) {
        self.0 = None;
    }

    fn kill(self) -> Option<Pid> {
        self.0
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(group) = self.0 {
            // Nobody may be left in it.
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

    /// A plugin in the shell's language.
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

    /// One that prints a status.
    fn printing(status: &str) -> AuthInfo {
        let version = "client.authentication.k8s.io/v1";
        plugin(&format!(
            r#"printf %s '{{"apiVersion":"{version}","kind":"ExecCredential","status":{status}}}'"#
        ))
    }

    fn token(who: &AuthInfo) -> Option<String> {
        serde_json::to_value(who).unwrap()["token"].as_str().map(str::to_owned)
    }

    const PATIENCE: Duration = Duration::from_secs(10);

    #[tokio::test]
    async fn a_token_takes_the_plugins_place() {
        let mut who = printing(r#"{"token":"'$SECRET'"}"#);
        assert_eq!(ask(&mut who, PATIENCE).await.unwrap(), None, "it does not end");
        assert_eq!(token(&who).as_deref(), Some("s3cret"));
        assert!(who.exec.is_none(), "kube has nothing to run");
    }

    #[tokio::test]
    async fn a_plugin_is_told_what_it_is_asked_for() {
        let script = r#"
            token=$(echo "$KUBERNETES_EXEC_INFO" | tr -d '{}":,[]')
            printf 'apiVersion: client.authentication.k8s.io/v1
status:
  token: %s
' "$token""#;
        let mut who = plugin(script);
        ask(&mut who, PATIENCE).await.unwrap();
        let told = token(&who).unwrap();
        assert_eq!(told, "apiVersionclient.authentication.k8s.io/v1kindExecCredentialspecinteractivefalse");
    }

    #[tokio::test]
    async fn a_certificate_and_its_key_come_with_a_token_or_without() {
        let mut who = printing(r#"{"token":"","clientCertificateData":"C","clientKeyData":"K"}"#);
        ask(&mut who, PATIENCE).await.unwrap();
        assert_eq!((token(&who), who.client_certificate_data.as_deref()), (None, Some("Qw==")));
        assert!(who.client_key_data.is_some());
    }

    #[tokio::test]
    async fn what_is_given_makes_the_plugin_needless() {
        let mut who = plugin("exit 1");
        who.token = Some("given".to_owned().into());
        assert!(ask(&mut who, PATIENCE).await.is_ok());
        assert_eq!(token(&who).as_deref(), Some("given"));
        let mut who = plugin("exit 1");
        who.client_certificate = Some("/given".to_owned());
        assert!(ask(&mut who, PATIENCE).await.is_ok());
    }

    /// One that starts a process and waits for it; and the file in which it says, at once, which two these are.
    fn hanging(dir: &Path) -> (AuthInfo, PathBuf) {
        let (pids, said) = (dir.join("pids"), dir.join("said"));
        let script =
            format!("sleep 1000 & echo $! $$ >{0}; mv {0} {1}; wait", pids.display(), said.display());
        (plugin(&script), said)
    }

    /// Whether none of the two processes runs that a script has noted.
    async fn end_both(pids: &Path) -> bool {
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
    async fn a_plugin_that_hangs_is_killed_with_all_that_it_started() {
        let dir = tempfile::tempdir().unwrap();
        let (mut who, said) = hanging(dir.path());
        let error = ask(&mut who, Duration::from_secs(2)).await.unwrap_err();
        assert!(matches!(error, PluginError::Slow { .. }), "{error}");
        assert!(end_both(&said).await);
    }

    #[tokio::test]
    async fn a_plugin_that_nobody_waits_for_any_more_is_killed_too() {
        let dir = tempfile::tempdir().unwrap();
        let (mut who, said) = hanging(dir.path());
        let asking = tokio::spawn(async move { ask(&mut who, PATIENCE).await.map(drop) });
        for _ in 0..1000 {
            if said.exists() {
                break;
            }
            sleep(Duration::from_millis(10)).await;
        }
        asking.abort();
        assert!(end_both(&said).await);
    }

    #[tokio::test]
    async fn what_a_plugin_leaves_behind_is_not_waited_for() {
        let mut who = printing(r#"{"token":"t"}"#);
        let args = who.exec.as_mut().and_then(|exec| exec.args.as_mut()).unwrap();
        args[1] = format!("sleep 20 >/dev/null & {}", args[1]);
        assert!(ask(&mut who, PATIENCE).await.is_ok());
    }

    #[tokio::test]
    async fn each_way_to_fail_says_why_and_tells_no_secret() {
        let cases = [
            (plugin("echo no network >&2; echo s3cret; exit 3"), "exit status: 3: no network"),
            (plugin(r#"echo '{"status":{"token":"s3cret"}}'"#), "it is of the version"),
            (plugin("echo s3cret"), "not an ExecCredential"),
            (printing("null"), "no status"),
            (printing(r#""s3cret""#), "not an ExecCredential"),
            (printing("{}"), "neither a token"),
            (printing(r#"{"clientKeyData":"s3cret"}"#), "and not the other"),
            (printing(r#"{"token":"s3cret\n"}"#), "the end of a line"),
            (plugin("yes s3cret"), "longer than"),
        ];
        for (mut who, why) in cases {
            let error = chain(&ask(&mut who, PATIENCE).await.unwrap_err());
            assert!(error.contains(why) && !error.contains("s3cret"), "{error}");
        }
        let mut absent = plugin("");
        absent.exec.as_mut().unwrap().command = Some("/nowhere/plugin".to_owned());
        let error = chain(&ask(&mut absent, PATIENCE).await.unwrap_err());
        assert!(error.contains("/nowhere/plugin") && error.contains("comes with every system"), "{error}");
    }

    #[test]
    fn a_credential_is_exchanged_before_it_ends() {
        let now = Timestamp::UNIX_EPOCH;
        let usable = |left: i64| usable(now + Duration::from_secs(left.unsigned_abs()), now).as_secs();
        assert_eq!([3600, 100, 30, 5].map(usable), [3540, 50, 15, 10]);
        let ended = super::usable(now, now + Duration::from_secs(3600));
        assert_eq!(ended, SHORTEST, "by our clock, which may be wrong");
    }
}
