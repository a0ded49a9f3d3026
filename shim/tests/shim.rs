//! The shim binary, started like a runtime does, with a mock agent.

#![expect(clippy::unwrap_used, clippy::panic, reason = "test helpers panic on failure, as tests do")]

mod agent;

use std::{
    io::Write,
    os::unix::fs::PermissionsExt as _,
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use ferrule_proto::cni::{ApiRange, Error, error::Code};
use serde_json::{Value, json};

use crate::agent::{Behaviour, MockAgent};

/// The output of a call.
struct Output {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

impl Output {
    fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|e| panic!("{e}: {:?}", self.stdout))
    }
}

/// Runs the shim in a valid environment, changed by `env`.
fn call(command: &str, env: &[(&str, &str)], stdin: &str) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_ferrule"))
        .env_clear()
        .env("CNI_COMMAND", command)
        .env("CNI_CONTAINERID", "ddcf67f32bbc")
        .env("CNI_NETNS", "/var/run/netns/cni-1d51d10d")
        .env("CNI_IFNAME", "eth0")
        .env("CNI_ARGS", "K8S_POD_NAME=web-0;IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_UID=ec27")
        .env("CNI_PATH", "/opt/cni/bin")
        .envs(env.iter().copied())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // The shim may exit before it has read all input.
    let _ = child.stdin.take().unwrap().write_all(stdin.as_bytes());
    let finished = child.wait_with_output().unwrap();
    Output {
        code: finished.status.code(),
        stdout: String::from_utf8(finished.stdout).unwrap(),
        stderr: String::from_utf8(finished.stderr).unwrap(),
    }
}

fn netconf(version: &str, socket: &Path) -> String {
    json!({
        "cniVersion": version,
        "name": "cluster",
        "type": "ferrule",
        "socket": socket,
        "mtu": 1450,
        "dns": {"nameservers": ["10.96.0.10"]},
        "cni.dev/valid-attachments": [{"containerID": "a", "ifname": "eth0"}],
    })
    .to_string()
}

/// A network configuration for CHECK, which needs the result of the ADD.
fn netconf_after_add(version: &str, socket: &Path) -> String {
    let mut netconf: Value = serde_json::from_str(&netconf(version, socket)).unwrap();
    let result = json!({"cniVersion": version, "interfaces": [{"name": "eth0"}]});
    netconf.as_object_mut().unwrap().insert("prevResult".to_owned(), result);
    netconf.to_string()
}

/// The network configuration that a runtime passes with a command.
fn netconf_for(command: &str, version: &str, socket: &Path) -> String {
    if command == "CHECK" { netconf_after_add(version, socket) } else { netconf(version, socket) }
}

/// Listens on the agent's socket with another protocol.
fn serve_something_else(socket: &Path) {
    let listener = std::os::unix::net::UnixListener::bind(socket).unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let _ = stream.unwrap().write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
        }
    });
}

#[test]
fn add_calls_the_agent_and_prints_its_result() {
    let agent = MockAgent::start(Behaviour::Serve);
    for version in ["0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"] {
        let output = call("ADD", &[], &netconf(version, agent.socket()));
        assert_eq!((output.code, output.stderr.as_str()), (Some(0), ""));
        let result = output.json();
        assert_eq!(result["cniVersion"], version);
        assert_eq!(result["interfaces"][1]["sandbox"], "/var/run/netns/cni-1d51d10d");
        assert_eq!(result["ips"][0]["version"].is_string(), version < "1.0.0");
        assert_eq!(result["interfaces"][1]["mtu"].is_number(), version == "1.1.0");
        assert_eq!(result["dns"], json!({"nameservers": ["10.96.0.10"]}));
    }
    let adds = agent.adds();
    assert_eq!(adds.len(), 5);
    let (request, timeout) = adds.into_iter().next().unwrap();
    let (key, pod) = (request.key.unwrap(), request.pod.unwrap());
    assert_eq!((key.network.as_str(), key.container_id.as_str()), ("cluster", "ddcf67f32bbc"));
    assert_eq!((key.ifname.as_str(), request.mtu), ("eth0", 1450));
    assert_eq!((pod.namespace.as_str(), pod.name.as_str(), pod.uid.as_str()), ("default", "web-0", "ec27"));
    assert_eq!(request.api, Some(ferrule_proto::API));
    assert_eq!(timeout.as_deref(), Some("90000000u"), "the agent receives the deadline");
}

#[test]
fn other_verbs_call_the_agent_and_print_nothing() {
    let agent = MockAgent::start(Behaviour::Serve);
    let stdin = netconf("1.1.0", agent.socket());
    for command in ["DEL", "CHECK", "GC", "STATUS"] {
        let output = call(command, &[], &netconf_for(command, "1.1.0", agent.socket()));
        assert_eq!((output.code, output.stdout.as_str(), output.stderr.as_str()), (Some(0), "", ""));
    }
    let output = call("DEL", &[("CNI_NETNS", "")], &stdin);
    assert_eq!((output.code, output.stdout.as_str()), (Some(0), ""));
    assert_eq!(agent.others(), ["DEL /var/run/netns/cni-1d51d10d", "CHECK", "GC 1", "STATUS", "DEL "]);
}

#[test]
fn trace_context_is_propagated_and_a_malformed_one_is_ignored() {
    let agent = MockAgent::start(Behaviour::Serve);
    let parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let env = [("TRACEPARENT", parent), ("TRACESTATE", "rojo=1,congo=2"), ("BAGGAGE", "user=alice")];
    let commands = ["ADD", "DEL", "CHECK", "GC", "STATUS"];
    for command in commands {
        let stdin = netconf_for(command, "1.1.0", agent.socket());
        assert_eq!(call(command, &env, &stdin).code, Some(0), "{command}");
    }
    let both = [Some(parent.to_owned()), Some("rojo=1,congo=2".to_owned())];
    assert_eq!(agent.traces(), vec![both; commands.len()]);

    let agent = MockAgent::start(Behaviour::Serve);
    let stdin = netconf("1.1.0", agent.socket());
    let long = "x".repeat(100_000);
    for (parent, state) in [("00-0-0-01", "rojo=1"), (parent, "\u{1b}[2J"), (&long, &long), ("", "")] {
        let output = call("ADD", &[("TRACEPARENT", parent), ("TRACESTATE", state)], &stdin);
        assert_eq!((output.code, output.stderr.as_str()), (Some(0), ""), "tracing never fails a call");
    }
    let parents: Vec<_> =
        agent.traces().into_iter().map(|[parent, state]| (parent.is_some(), state)).collect();
    assert_eq!(parents, [(false, None), (true, None), (false, None), (false, None)]);
}

#[test]
fn messages_larger_than_the_http2_window_pass_both_ways() {
    let many: Vec<_> =
        (0..8000).map(|i| json!({"containerID": format!("container{i}"), "ifname": "eth0"})).collect();
    let details = "x".repeat(300_000);
    let error = Error { code: Code::TryAgainLater.into(), details: details.clone(), ..Error::default() };
    let agent = MockAgent::start(Behaviour::Refuse(error));
    let netconf = json!({"cniVersion": "1.1.0", "name": "cluster", "type": "ferrule", "socket": agent.socket(),
                         "cni.dev/valid-attachments": many});
    let output = call("GC", &[], &netconf.to_string());
    assert_eq!((output.code, output.stderr.as_str()), (Some(1), ""));
    assert_eq!(output.json()["details"], details);
    assert_eq!(agent.others(), ["GC 8000"]);
}

#[test]
fn incompatible_agents_error_is_printed_unchanged() {
    let error = Error {
        code: Code::ApiIncompatible.into(),
        message: "ADD of ddcf67f32bbc: the plugin speaks API v1".into(),
        details: "install the plugin of this release".into(),
        api: Some(ApiRange { min: 2, max: 3 }),
    };
    let agent = MockAgent::start(Behaviour::Refuse(error));
    for command in ["ADD", "DEL", "CHECK", "GC", "STATUS"] {
        let output = call(command, &[], &netconf_for(command, "1.1.0", agent.socket()));
        assert_eq!(output.code, Some(1), "{command}");
        let expected = json!({
            "cniVersion": "1.1.0",
            "code": 100,
            "msg": "ADD of ddcf67f32bbc: the plugin speaks API v1",
            "details": "install the plugin of this release",
        });
        assert_eq!(output.json(), expected);
    }
}

#[test]
fn agent_that_stops_during_an_add_is_try_again_later() {
    let agent = MockAgent::start(Behaviour::Hang);
    let socket = agent.socket().to_owned();
    let calling = std::thread::spawn(move || call("ADD", &[], &netconf("1.0.0", &socket)));
    agent.stop_when_called();
    let output = calling.join().unwrap();
    assert_eq!((output.code, &output.json()["code"]), (Some(1), &json!(11)), "{}", output.stdout);
}

#[test]
fn missing_agent_fails_all_verbs_but_del_and_status_without_a_wait() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("agent.sock");
    for (command, code) in [("ADD", 11), ("CHECK", 11), ("GC", 11)] {
        let start = Instant::now();
        let output = call(command, &[], &netconf_for(command, "1.1.0", &socket));
        assert!(start.elapsed() < Duration::from_secs(10));
        assert_eq!((output.code, &output.json()["code"]), (Some(1), &json!(code)), "{command}");
        assert!(output.json()["msg"].as_str().unwrap().contains(socket.to_str().unwrap()));
    }
}

#[test]
fn status_waits_for_an_agent_that_comes() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("agent.sock");
    let calling = {
        let stdin = netconf("1.1.0", &socket);
        std::thread::spawn(move || call("STATUS", &[], &stdin))
    };
    // A listener that closes every connection is an agent that stops.
    let stopping = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    stopping.set_nonblocking(true).unwrap();
    let (mut attempts, end) = (0, Instant::now() + Duration::from_secs(60));
    while attempts < 2 {
        assert!(!calling.is_finished() && Instant::now() < end, "STATUS gave up after {attempts} attempts");
        match stopping.accept() {
            Ok(_) => attempts += 1,
            Err(_) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
    let agent = MockAgent::start(Behaviour::Serve);
    // As an agent places its socket.
    std::fs::rename(agent.socket(), &socket).unwrap();
    drop(stopping);
    let output = calling.join().unwrap();
    assert_eq!((output.code, output.stdout.as_str()), (Some(0), ""));
    assert_eq!(agent.others(), ["STATUS"]);
}

#[test]
fn del_without_an_agent_succeeds_and_is_deferred() {
    let dir = tempfile::tempdir().unwrap();
    // As after a reboot, without the directory.
    let socket = dir.path().join("run/agent.sock");
    for env in [&[][..], &[("CNI_NETNS", "")]] {
        let start = Instant::now();
        let output = call("DEL", env, &netconf("1.1.0", &socket));
        assert_eq!((output.code, output.stdout.as_str(), output.stderr.as_str()), (Some(0), "", ""));
        assert!(start.elapsed() < Duration::from_secs(10));
    }
    let files: Vec<_> = std::fs::read_dir(dir.path().join("run/deferred")).unwrap().collect();
    assert_eq!(files.len(), 1, "one for each attachment");
    let del = std::fs::read(dir.path().join("run/deferred/cluster:ddcf67f32bbc:eth0")).unwrap();
    let del: Value = serde_json::from_slice(&del).unwrap();
    assert_eq!((&del["network"], &del["container_id"]), (&json!("cluster"), &json!("ddcf67f32bbc")));
    assert_eq!(std::fs::metadata(dir.path().join("run")).unwrap().permissions().mode() & 0o777, 0o700);
}

#[test]
fn del_that_cannot_be_recorded_succeeds_with_a_warning() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("deferred"), "not a directory").unwrap();
    let output = call("DEL", &[], &netconf("1.1.0", &dir.path().join("agent.sock")));
    assert_eq!((output.code, output.stdout.as_str()), (Some(0), ""));
    assert!(output.stderr.contains("not recorded for the agent"), "{}", output.stderr);
}

#[test]
fn del_whose_agent_stops_completes_without_it() {
    let agent = MockAgent::start(Behaviour::Hang);
    let socket = agent.socket().to_owned();
    let calling = std::thread::spawn(move || call("DEL", &[], &netconf("1.0.0", &socket)));
    let directory = agent.stop_when_called();
    let output = calling.join().unwrap();
    assert_eq!((output.code, output.stdout.as_str()), (Some(0), ""), "{}", output.stderr);
    assert_eq!(std::fs::read_dir(directory.path().join("deferred")).unwrap().count(), 1);
}

#[test]
fn del_is_not_completed_locally_if_another_server_listens() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("agent.sock");
    serve_something_else(&socket);
    let output = call("DEL", &[], &netconf("1.0.0", &socket));
    assert_eq!((output.code, &output.json()["code"]), (Some(1), &json!(11)), "{}", output.stdout);
    assert!(!dir.path().join("deferred").exists());
}

#[test]
fn add_to_another_server_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("agent.sock");
    serve_something_else(&socket);
    let output = call("ADD", &[], &netconf("1.0.0", &socket));
    assert_eq!((output.code, &output.json()["cniVersion"]), (Some(1), &json!("1.0.0")));
}

#[test]
fn version_needs_no_other_variables() {
    for env in [&[("CNI_CONTAINERID", "dummy"), ("CNI_NETNS", "dummy"), ("CNI_IFNAME", "dummy")][..], &[]] {
        let output = call("VERSION", env, r#"{"cniVersion":"0.4.0"}"#);
        assert_eq!(output.code, Some(0));
        let supported = ["0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"];
        assert_eq!(output.json(), json!({"cniVersion": "0.4.0", "supportedVersions": supported}));
    }
}

#[test]
fn without_a_command_the_plugin_describes_itself() {
    let output = call("", &[], "");
    assert_eq!((output.code, output.stdout.as_str()), (Some(0), ""));
    assert!(output.stderr.starts_with(concat!("ferrule ", env!("CARGO_PKG_VERSION"))));
    assert!(output.stderr.contains("0.3.0, 0.3.1, 0.4.0, 1.0.0, 1.1.0"));
}

#[test]
fn hostile_input_is_refused_within_a_second() {
    let huge = format!(r#"{{"cniVersion":"1.0.0","name":"{}"}}"#, "x".repeat(100 << 20));
    let deep = format!(r#"{{"cniVersion":"1.0.0","name":{}"#, "[".repeat(100_000));
    for (stdin, code) in [(huge.as_str(), 6), (deep.as_str(), 6), ("", 6), ("{\"cniVersion\":\"1.0", 6)] {
        let start = Instant::now();
        let output = call("ADD", &[], stdin);
        assert!(start.elapsed() < Duration::from_secs(1));
        assert_eq!((output.code, &output.json()["code"]), (Some(1), &json!(code)));
        assert!(output.stdout.len() < 1000);
    }
}
