//! Version skew: this shim with recorded responses of older agents and with responses of future ones.

#![expect(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "test helpers panic on failure, as tests do"
)]

#[path = "agent/raw.rs"]
mod raw;

use std::{
    collections::HashMap,
    io::Write as _,
    path::Path,
    process::{Command, Stdio},
};

use serde_json::{Value, json};

use crate::raw::{Answers, RawAgent};

const COMMANDS: [(&str, &str); 5] =
    [("ADD", "Add"), ("CHECK", "Check"), ("STATUS", "Status"), ("GC", "Gc"), ("DEL", "Del")];
const NETNS: &str = "/run/netns/cni-0000";

fn container_id() -> String {
    "0".repeat(64)
}

/// Exit code and output.
fn call(command: &str, version: &str, socket: &Path) -> (Option<i32>, Value) {
    let prev_result = json!({
        "cniVersion": version,
        "interfaces": [
            {"name": "fr0", "mac": "66:65:72:72:75:6c", "mtu": 1400},
            {"name": "eth0", "mac": "0a:fe:0a:f4:00:02", "mtu": 1400, "sandbox": NETNS},
        ],
        "ips": [{"address": "10.244.0.2/32", "gateway": "169.254.1.1", "interface": 1}],
        "routes": [
            {"dst": "0.0.0.0/0", "gw": "169.254.1.1"},
            {"dst": "192.168.0.0/16", "gw": "10.1.2.254", "mtu": 1300, "advmss": 1200, "priority": 7},
        ],
    });
    let mut netconf = json!({
        "cniVersion": version, "name": "cluster", "type": "ferrule", "socket": socket, "mtu": 1400,
        "runtimeConfig": {"io.kubernetes.cri.pod-annotations": {"kubernetes.io/config.source": "api"}},
        "cni.dev/valid-attachments": [{"containerID": container_id(), "ifname": "eth0"}],
    });
    if command != "ADD" {
        netconf["prevResult"] = prev_result;
    }
    let args = "K8S_POD_NAMESPACE=default;K8S_POD_NAME=old;K8S_POD_UID=00000000-0000-4000-8000-000000000000";
    let mut child = Command::new(env!("CARGO_BIN_EXE_ferrule"))
        .env_clear()
        .envs([("CNI_COMMAND", command), ("CNI_NETNS", NETNS), ("CNI_IFNAME", "eth0"), ("CNI_ARGS", args)])
        .env("CNI_CONTAINERID", container_id())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(netconf.to_string().as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let printed = if text.is_empty() { Value::Null } else { serde_json::from_str(&text).unwrap() };
    (output.status.code(), printed)
}

fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn bytes(hex: &Value) -> Vec<u8> {
    let digits = hex.as_str().unwrap();
    let byte = |at| u8::from_str_radix(digits.get(at..at + 2).unwrap(), 16).unwrap();
    (0..digits.len()).step_by(2).map(byte).collect()
}

/// Responses of an agent of some release: success, or its errors.
fn recorded(agent: &str, fails: bool) -> Answers {
    let mut answers = HashMap::new();
    for line in lines(include_str!("../testdata/protocol/agents.jsonl")) {
        if line["agent"] == agent && (line["says"] == "error") == fails {
            answers.insert(line["method"].as_str().unwrap().to_owned(), bytes(&line["hex"]));
        }
    }
    assert_eq!(answers.len(), COMMANDS.len(), "{agent}");
    answers
}

/// If this fails because requests changed, keep the old recording under the name of its release and record
/// `current` again.
#[test]
fn requests_of_this_shim_match_the_recording_of_the_current_release() {
    let agent = RawAgent::start(recorded("current", false));
    for (command, _) in COMMANDS {
        let (code, printed) = call(command, "1.1.0", agent.socket());
        assert_eq!(code, Some(0), "{printed}");
    }
    let expected: Vec<_> = lines(include_str!("../testdata/protocol/shims.jsonl"))
        .into_iter()
        .filter(|line| line["shim"] == "current")
        .map(|line| (line["method"].as_str().unwrap().to_owned(), bytes(&line["hex"])))
        .collect();
    assert_eq!(agent.received(), expected);
}

#[test]
fn results_of_older_and_newer_agents_are_understood() {
    for agent in ["first", "current", "newer"] {
        let answering = RawAgent::start(recorded(agent, false));
        for (command, _) in COMMANDS {
            let (code, printed) = call(command, "1.1.0", answering.socket());
            assert_eq!(code, Some(0), "{agent}: {command}: {printed}");
            if command == "ADD" {
                let mut route = json!({"dst": "0.0.0.0/0", "gw": "169.254.1.1"});
                if agent != "first" {
                    (route["mtu"], route["advmss"], route["priority"]) = (1300.into(), 1200.into(), 7.into());
                }
                assert_eq!(printed["routes"], json!([route]), "{agent}");
                assert_eq!(printed["ips"][0]["address"], "10.244.0.2/32");
            }
        }
        let (_, printed) = call("ADD", "1.0.0", answering.socket());
        assert_eq!(printed["routes"], json!([{"dst": "0.0.0.0/0", "gw": "169.254.1.1"}]), "{agent}");
    }
}

#[test]
fn errors_of_any_release_are_printed_unchanged() {
    for (agent, code, msg, details) in [
        ("first", 11, "later", "wait"),
        ("current", 104, "refused", "correct it"),
        ("newer", 177, "a code of a later release", "do as it says"),
        (
            "future",
            100,
            "ADD failed: the caller speaks API v1, and this agent speaks v2 to v3",
            "install plugin and agent from the same release",
        ),
    ] {
        let answering = RawAgent::start(recorded(agent, true));
        for (command, _) in COMMANDS {
            let (status, printed) = call(command, "1.1.0", answering.socket());
            let expected = json!({"cniVersion": "1.1.0", "code": code, "msg": msg, "details": details});
            assert_eq!((status, printed), (Some(1), expected), "{agent}: {command}");
        }
    }
}

#[test]
fn agent_without_a_verb_is_reported_as_too_old() {
    let mut answers = recorded("first", false);
    for method in ["Gc", "Status"] {
        answers.remove(method);
    }
    let agent = RawAgent::start(answers);
    for (command, _) in COMMANDS {
        let (status, printed) = call(command, "1.1.0", agent.socket());
        let known = !matches!(command, "GC" | "STATUS");
        assert_eq!(status, Some(if known { 0 } else { 1 }), "{command}: {printed}");
        if !known {
            assert_eq!(printed["code"], 100, "{printed}");
            let details = printed["details"].as_str().unwrap();
            assert!(details.contains("older than this plugin: install both from one release"), "{details}");
        }
    }
}
