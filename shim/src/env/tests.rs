//! Valid and invalid CNI environments.

use std::{collections::HashMap, os::unix::ffi::OsStringExt};

use super::*;

const GOOD: [(&str, &str); 4] = [
    ("CNI_CONTAINERID", "ddcf67f32bbc"),
    ("CNI_NETNS", "/var/run/netns/cni-1d51d10d"),
    ("CNI_IFNAME", "eth0"),
    ("CNI_ARGS", "IgnoreUnknown=1;K8S_POD_NAME=web-0"),
];

fn env(changes: &[(&str, &str)]) -> impl Env + use<> {
    let variables: HashMap<String, OsString> =
        GOOD.iter().chain(changes).map(|(k, v)| ((*k).to_owned(), OsString::from(v))).collect();
    move |name: &str| variables.get(name).cloned()
}

/// Parses `env` with `CNI_COMMAND` added.
fn command(verb: &str, env: impl Env) -> Result<Command, CniError> {
    let env = |name: &str| if name == "CNI_COMMAND" { Some(verb.into()) } else { env(name) };
    Ok(Command::from_env(&env)?.unwrap())
}

#[test]
fn verbs_round_trip() {
    for verb in [Verb::Add, Verb::Del, Verb::Check, Verb::Gc, Verb::Status, Verb::Version] {
        let env = env(&[("CNI_COMMAND", verb.as_str())]);
        assert_eq!(Verb::from_env(&env).unwrap(), Some(verb));
    }
    assert_eq!(Verb::from_env(&env(&[("CNI_COMMAND", "")])).unwrap(), None);
    let error = Verb::from_env(&env(&[("CNI_COMMAND", "UPDATE\n")])).unwrap_err();
    assert_eq!((error.code, error.msg.contains(r#""UPDATE\n""#)), (4, true), "{}", error.msg);
}

#[test]
fn add_is_parsed() {
    let (target, pod) = match command("ADD", env(&[])).unwrap() {
        Command::Add(target, pod) => (target, pod),
        other => panic!("{other:?}"),
    };
    assert_eq!(target.container_id.as_str(), "ddcf67f32bbc");
    assert_eq!(target.netns, "/var/run/netns/cni-1d51d10d");
    assert_eq!(target.ifname.as_str(), "eth0");
    assert_eq!(pod.name, "web-0");
}

#[test]
fn only_del_needs_no_netns() {
    let env = || env(&[("CNI_NETNS", "")]);
    assert!(matches!(command("DEL", env()).unwrap(), Command::Del(target) if target.netns.is_empty()));
    for verb in ["ADD", "CHECK"] {
        assert_eq!(command(verb, env()).unwrap_err().code, 4);
    }
}

#[test]
fn error_names_all_missing_variables() {
    let error = command("ADD", |_: &str| None).unwrap_err();
    assert_eq!(error.code, 4);
    let expected = "ADD: environment variables not set: CNI_CONTAINERID, CNI_NETNS, CNI_IFNAME";
    assert_eq!(error.msg, expected);
    let error = command("DEL", |_: &str| None).unwrap_err();
    assert_eq!(error.msg, "DEL: environment variables not set: CNI_CONTAINERID, CNI_IFNAME");
}

#[test]
fn invalid_values_are_refused_and_named() {
    let long = "x".repeat(100_000);
    for (name, value) in [
        ("CNI_CONTAINERID", "../x"),
        ("CNI_CONTAINERID", "a\nb"),
        ("CNI_CONTAINERID", &long),
        ("CNI_IFNAME", "sixteen-bytes-xx"),
        ("CNI_IFNAME", "a/b"),
        ("CNI_IFNAME", "lo"),
        ("CNI_NETNS", "run/netns/x"),
        ("CNI_NETNS", "/run/netns/\u{1b}[31m"),
        ("CNI_NETNS", &format!("/{long}")),
    ] {
        for verb in ["ADD", "DEL", "CHECK"] {
            let error = command(verb, env(&[(name, value)])).unwrap_err();
            assert_eq!(error.code, 4, "{name}={value:?}");
            assert!(error.msg.contains(name) && error.msg.len() < 200, "{}", error.msg);
            assert!(!error.msg.contains(char::is_control), "{}", error.msg);
        }
    }
}

#[test]
fn non_utf8_variable_is_an_error() {
    for name in ["CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_ARGS"] {
        let good = env(&[]);
        let env = |n: &str| if n == name { Some(OsString::from_vec(b"/\xff".to_vec())) } else { good(n) };
        let error = command("ADD", env).unwrap_err();
        assert_eq!((error.code, error.msg), (4, format!("reading {name}: value is not UTF-8")));
    }
}

#[test]
fn recorded_calls_are_parsed() {
    for call in include_str!("../../testdata/calls.jsonl").lines() {
        let call: serde_json::Value = serde_json::from_str(call).unwrap();
        let env = |name: &str| call["env"][name].as_str().map(OsString::from);
        let command = Command::from_env(&env).unwrap().unwrap();
        assert_eq!(command.verb().as_str(), call["cmd"]);
        let target = match command {
            Command::Add(target, pod) => {
                assert!(!pod.namespace.is_empty() && !pod.name.is_empty() && pod.uid.len() == 36);
                target
            }
            Command::Del(target) => target,
            other => panic!("{other:?}"),
        };
        assert_eq!(
            (target.ifname.as_str(), target.netns.as_str()),
            ("eth0", call["env"]["CNI_NETNS"].as_str().unwrap())
        );
    }
}

#[test]
fn only_add_parses_cni_args() {
    let env = || env(&[("CNI_ARGS", "K8S_POD_NAME=../..")]);
    assert_eq!(command("ADD", env()).unwrap_err().code, 4);
    for verb in ["DEL", "CHECK"] {
        assert_eq!(command(verb, env()).unwrap().verb().as_str(), verb);
    }
}
