//! Whole invocations with a mock agent.

use std::{
    cell::RefCell,
    ffi::OsString,
    io::{Write, pipe},
    thread,
};

use ferrule_proto::cni;
use serde_json::{Value, json};

use super::*;

/// Runs a command in a valid environment. Returns the outcome, and the agent's socket and the request to it.
fn invoke(command: &str, stdin: &str) -> (Outcome, Option<(String, Request)>) {
    invoke_with(command, stdin, &|_| None, Ok(None))
}

fn invoke_with(
    command: &str,
    stdin: &str,
    env: &dyn Fn(&str) -> Option<OsString>,
    answer: Result<Option<AddResult>, CniError>,
) -> (Outcome, Option<(String, Request)>) {
    let env = |name: &str| {
        env(name).or_else(|| match name {
            "CNI_COMMAND" => Some(command.into()),
            "CNI_CONTAINERID" => Some("ddcf67f32bbc".into()),
            "CNI_NETNS" => Some("/var/run/netns/x".into()),
            "CNI_IFNAME" => Some("eth0".into()),
            _ => None,
        })
    };
    let (reader, mut writer) = pipe().unwrap();
    let called = RefCell::new(None);
    let outcome = thread::scope(|scope| {
        // Fails if the plugin refuses the input before its end.
        scope.spawn(move || drop(writer.write_all(stdin.as_bytes())));
        run(&env, reader, |socket: &str, request| {
            called.replace(Some((socket.to_owned(), request)));
            answer
        })
    });
    (outcome, called.into_inner())
}

fn failure(outcome: Outcome) -> Value {
    match outcome {
        Outcome::Failed(json) => serde_json::from_str(&json).unwrap(),
        other => panic!("{other:?}"),
    }
}

fn key() -> Option<AttachmentKey> {
    Some(AttachmentKey {
        network: "cluster".into(),
        container_id: "ddcf67f32bbc".into(),
        ifname: "eth0".into(),
    })
}

#[test]
fn without_a_command_the_plugin_describes_itself() {
    let (outcome, called) = invoke("", "");
    assert_eq!((outcome, called), (Outcome::About, None));
}

#[test]
fn version_echoes_the_requested_version() {
    let dummy = |name: &str| (name != "CNI_COMMAND").then(|| OsString::from("dummy"));
    for (stdin, version) in [
        (r#"{"cniVersion":"0.4.0"}"#, "0.4.0"),
        (r#"{"cniVersion":"0.2.0"}"#, "0.2.0"),
        (r#"{"cniVersion":"9.9.9-rc.1"}"#, "9.9.9-rc.1"),
        ("{}", "0.1.0"),
        ("", "1.1.0"),
        (" \n", "1.1.0"),
    ] {
        let (outcome, called) = invoke_with("VERSION", stdin, &dummy, Ok(None));
        let Outcome::Done(Some(json)) = outcome else { panic!("{outcome:?}") };
        let supported = ["0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"];
        let expected = json!({"cniVersion": version, "supportedVersions": supported});
        assert_eq!(serde_json::from_str::<Value>(&json).unwrap(), expected);
        assert_eq!(called, None);
    }
    assert_eq!(failure(invoke("VERSION", "{").0)["code"], 6);
    assert_eq!(failure(invoke("VERSION", r#"{"cniVersion":"1\n"}"#).0)["code"], 7);
}

#[test]
fn each_verb_sends_its_request() {
    let stdin = r#"{"cniVersion":"1.1.0","name":"cluster","socket":"/tmp/a","mtu":1400,
                    "cni.dev/valid-attachments":[{"containerID":"a","ifname":"net1"}]}"#;
    let with_result =
        stdin.replace("\"name\"", "\"prevResult\":{\"interfaces\":[{\"name\":\"eth0\"}]},\"name\"");
    let eth0 = cni::Interface { name: "eth0".into(), ..Default::default() };
    let previous = Some(AddResult { interfaces: vec![eth0], ..Default::default() });
    let check = CheckRequest { api: Some(API), key: key(), netns: "/var/run/netns/x".into(), previous };
    let (outcome, called) = invoke("CHECK", &with_result);
    assert_eq!((outcome, called), (Outcome::Done(None), Some(("/tmp/a".into(), Request::Check(check)))));
    let netns = "/var/run/netns/x".to_owned();
    let api = Some(API);
    let keep = AttachmentKey { network: String::new(), container_id: "a".into(), ifname: "net1".into() };
    for (command, expected) in [
        (
            "ADD",
            Request::Add(AddRequest {
                api,
                key: key(),
                netns: netns.clone(),
                pod: Some(Pod::default()),
                mtu: 1400,
                port_mappings: Vec::new(),
                bandwidth: None,
            }),
        ),
        ("DEL", Request::Del(DelRequest { api, key: key(), netns: netns.clone() })),
        ("GC", Request::Gc(GcRequest { api, network: "cluster".into(), valid: vec![keep] })),
        ("STATUS", Request::Status(StatusRequest { api })),
    ] {
        let (outcome, called) = invoke(command, stdin);
        assert_eq!(outcome, Outcome::Done(None), "{command}");
        assert_eq!(called, Some(("/tmp/a".into(), expected)));
    }
}

#[test]
fn recorded_calls_reach_the_agent_with_the_ports_that_they_request() {
    for line in include_str!("../../testdata/calls.jsonl").lines() {
        let call: Value = serde_json::from_str(line).unwrap();
        let env = |name: &str| call["env"][name].as_str().map(OsString::from);
        let (outcome, called) = invoke_with("", &call["stdin"].to_string(), &env, Ok(None));
        assert_eq!(outcome, Outcome::Done(None), "{line}");
        let (socket, request) = called.unwrap();
        assert_eq!(socket, ferrule_proto::DEFAULT_SOCKET);
        let (key, netns) = match request {
            Request::Add(request) => {
                let requested = call["stdin"]["runtimeConfig"]["portMappings"].as_array();
                assert_eq!(request.port_mappings.len(), requested.map_or(0, Vec::len), "{line}");
                (request.key.unwrap(), request.netns)
            }
            Request::Del(request) => (request.key.unwrap(), request.netns),
            other => panic!("{other:?}"),
        };
        assert_eq!((key.network.as_str(), key.ifname.as_str()), ("cluster", "eth0"));
        assert_eq!(key.container_id, call["env"]["CNI_CONTAINERID"]);
        assert_eq!(netns, call["env"]["CNI_NETNS"]);
    }
}

#[test]
fn only_add_parses_annotations() {
    let stdin = |annotations: &str| {
        format!(
            r#"{{"cniVersion":"1.0.0","name":"n",
                "runtimeConfig":{{"io.kubernetes.cri.pod-annotations":{annotations}}}}}"#
        )
    };
    let (outcome, called) = invoke("ADD", &stdin(r#"{"vif.ferrule.dev/v1":"x","other":"y"}"#));
    assert_eq!(outcome, Outcome::Done(None));
    let Some((_, Request::Add(AddRequest { pod: Some(pod), .. }))) = called else { panic!("{called:?}") };
    assert_eq!(pod.annotations.unwrap().values, [("vif.ferrule.dev/v1".into(), "x".into())].into());
    let (outcome, called) = invoke("ADD", &stdin("[]"));
    assert_eq!((&failure(outcome)["code"], called), (&json!(7), None));
    assert_eq!(invoke("DEL", &stdin("[]")).0, Outcome::Done(None));
    let check = stdin("[]").replace("\"name\"", "\"prevResult\":{},\"name\"");
    assert_eq!(invoke("CHECK", &check).0, Outcome::Done(None));
}

#[test]
fn a_pod_with_annotations_of_any_size_that_kubernetes_allows_is_attached_and_deleted() {
    // 256 KiB, which Go's JSON makes six times as long.
    let annotation = r"\u003c".repeat(256 << 10);
    let stdin = format!(
        r#"{{"cniVersion":"1.0.0","name":"n",
            "runtimeConfig":{{"io.kubernetes.cri.pod-annotations":{{"vif.ferrule.dev/v1":"{annotation}"}}}}}}"#
    );
    let (outcome, called) = invoke("ADD", &stdin);
    assert_eq!(outcome, Outcome::Done(None));
    let Some((_, Request::Add(AddRequest { pod: Some(pod), .. }))) = called else { panic!("no ADD") };
    assert_eq!(pod.annotations.unwrap().values["vif.ferrule.dev/v1"], "<".repeat(256 << 10));
    assert_eq!(invoke("DEL", &stdin).0, Outcome::Done(None));
}

#[test]
fn a_del_accepts_more_than_an_add() {
    // A DEL has the previous result too, and follows an ADD that was refused.
    let padded = |text: &str, bytes: usize| text.to_owned() + &" ".repeat(bytes - text.len());
    let with_result = r#"{"cniVersion":"1.1.0","name":"n","prevResult":{}}"#;
    for (command, max) in [("CHECK", 4_194_304), ("DEL", 16_777_216)] {
        assert_eq!(invoke(command, &padded(with_result, max)).0, Outcome::Done(None), "{command}");
        let error = failure(invoke(command, &padded(with_result, max + 1)).0);
        assert_eq!(error["code"], 6);
        assert_eq!(error["msg"], format!("reading the network configuration: longer than {max} bytes"));
    }
    let long = padded(r#"{"cniVersion":"1.1.0","name":"n"}"#, 4_194_305);
    assert_eq!(failure(invoke("ADD", &long).0)["code"], 6);
    assert_eq!(invoke("DEL", &long).0, Outcome::Done(None));
}

#[test]
fn result_is_printed_in_the_requested_version() {
    let interface = cni::Interface { name: "eth0".into(), mtu: 1500, ..Default::default() };
    let result = AddResult { interfaces: vec![interface], ..Default::default() };
    let stdin = r#"{"cniVersion":"0.3.1","name":"n"}"#;
    let (outcome, _) = invoke_with("ADD", stdin, &|_| None, Ok(Some(result)));
    let expected = r#"{"cniVersion":"0.3.1","interfaces":[{"name":"eth0"}]}"#;
    assert_eq!(outcome, Outcome::Done(Some(expected.into())));
}

#[test]
fn error_is_printed_in_the_requested_version() {
    let full = |_: &str| None;
    let error = CniError::new(Code::TryAgainLater, "later", "wait");
    let stdin = r#"{"cniVersion":"0.4.0","name":"n"}"#;
    let (outcome, _) = invoke_with("ADD", stdin, &full, Err(error));
    assert_eq!(
        failure(outcome),
        json!({"cniVersion": "0.4.0", "code": 11, "msg": "later", "details": "wait"})
    );

    let bad_name = |name: &str| (name == "CNI_IFNAME").then(|| "lo".into());
    let (outcome, called) = invoke_with("ADD", stdin, &bad_name, Ok(None));
    let error = failure(outcome);
    assert_eq!((&error["cniVersion"], &error["code"], called), (&json!("0.4.0"), &json!(4), None));
}

#[test]
fn invalid_input_never_reaches_the_agent() {
    for (command, stdin, version, code) in [
        ("ADD", "", "1.1.0", 6),
        ("ADD", r#"{"name":"n"}"#, "1.1.0", 1),
        ("ADD", r#"{"cniVersion":"0.2.0","name":"n"}"#, "1.1.0", 1),
        ("ADD", r#"{"cniVersion":"2.0.0","name":"n"}"#, "1.1.0", 1),
        ("ADD", r#"{"cniVersion":"1.0.0"}"#, "1.0.0", 7),
        ("ADD", r#"{"cniVersion":"1.0.0","name":"n","prevResult":{"cniVersion":"1.0.0"}}"#, "1.0.0", 7),
        ("CHECK", r#"{"cniVersion":"0.3.1","name":"n"}"#, "0.3.1", 1),
        ("GC", r#"{"cniVersion":"1.0.0","name":"n"}"#, "1.0.0", 1),
        ("GC", r#"{"cniVersion":"1.1.0","name":"n"}"#, "1.1.0", 7),
        ("STATUS", r#"{"cniVersion":"1.0.0","name":"n"}"#, "1.0.0", 1),
        ("UPDATE", r#"{"cniVersion":"1.0.0","name":"n"}"#, "1.0.0", 4),
    ] {
        let (outcome, called) = invoke(command, stdin);
        let error = failure(outcome);
        assert_eq!(
            (&error["code"], &error["cniVersion"]),
            (&json!(code), &json!(version)),
            "{command} {stdin}"
        );
        assert_ne!(error["msg"], "");
        assert_eq!(called, None);
    }
}

#[test]
fn add_returns_requested_dns_and_refuses_unsupported_capabilities() {
    let stdin = |config: &str| {
        format!(
            r#"{{"cniVersion":"1.0.0","name":"n","dns":{{"nameservers":["10.96.0.10"],"domain":"a"}},
                "prevResult":null,"runtimeConfig":{config}}}"#
        )
    };
    let with_dns = stdin(r#"{"dns":{"Servers":["192.168.77.10"],"Options":["ndots:5"]},"portMappings":[]}"#);
    let (outcome, _) = invoke_with("ADD", &with_dns, &|_| None, Ok(Some(AddResult::default())));
    let Outcome::Done(Some(json)) = outcome else { panic!("{outcome:?}") };
    let dns = json!({"nameservers": ["192.168.77.10"], "domain": "a", "options": ["ndots:5"]});
    assert_eq!(serde_json::from_str::<Value>(&json).unwrap()["dns"], dns);

    let with_mac = stdin(r#"{"mac":"c2:11:22:33:44:55"}"#);
    let (outcome, called) = invoke("ADD", &with_mac);
    assert_eq!((&failure(outcome)["code"], called), (&json!(2), None));
    assert_eq!(invoke("DEL", &with_mac).0, Outcome::Done(None), "the DEL after a refused ADD must succeed");
}

/// Which verbs fail for a broken field, with the code: ADD, STATUS, CHECK, GC, DEL. A runtime repeats a
/// failing DEL for ever, and its pod stays in the state Terminating: only what names the attachment and the
/// agent may fail it.
#[test]
fn del_and_gc_parse_only_what_they_need() {
    const VERBS: [&str; 5] = ["ADD", "STATUS", "CHECK", "GC", "DEL"];
    for (field, codes) in [
        (r#""mtu":"1400""#, [7, 7, 0, 0, 0]),
        (r#""mtu":67"#, [7, 7, 0, 0, 0]),
        (r#""mtu":-1e999"#, [7, 7, 0, 0, 0]),
        (r#""mtuu":1400"#, [7, 7, 0, 0, 0]),
        (r#""dns":"10.0.0.1""#, [7, 7, 0, 0, 0]),
        (r#""dns":{"search":7}"#, [7, 7, 0, 0, 0]),
        (r#""type":7"#, [7, 7, 0, 0, 0]),
        (r#""runtimeConfig":7"#, [7, 0, 0, 0, 0]),
        (r#""runtimeConfig":{"mac":"c2:11:22:33:44:55"}"#, [2, 0, 0, 0, 0]),
        (r#""runtimeConfig":{"dns":7}"#, [7, 0, 0, 0, 0]),
        (r#""args":{"cni":{"ips":["10.1.2.3"]}}"#, [2, 0, 0, 0, 0]),
        (r#""args":7"#, [0, 0, 0, 0, 0]),
        (r#""capabilities":7"#, [0, 0, 0, 0, 0]),
        (r#""cni.dev/valid-attachments":7"#, [0, 0, 0, 7, 0]),
        (r#""prevResult":7"#, [7, 0, 6, 0, 0]),
        (r#""cniVersion":"9.9.9""#, [1, 1, 1, 1, 0]),
        (r#""cniVersion":1.1"#, [7, 7, 7, 7, 0]),
        (r#""name":"a/b""#, [7, 7, 7, 7, 7]),
        (r#""socket":"run/agent.sock""#, [7, 7, 7, 7, 7]),
    ] {
        let key = field.split(':').next().unwrap();
        let all = [
            r#""cniVersion":"1.1.0""#,
            r#""name":"n""#,
            r#""prevResult":{}"#,
            r#""cni.dev/valid-attachments":[]"#,
        ];
        for (verb, code) in VERBS.into_iter().zip(codes) {
            let others = all.into_iter().filter(|it| !it.starts_with(key));
            let others = others.filter(|it| verb == "CHECK" || !it.contains("prevResult"));
            let stdin = format!("{{{}}}", others.chain([field]).collect::<Vec<_>>().join(","));
            let (outcome, called) = invoke(verb, &stdin);
            let found =
                if let Outcome::Failed(_) = &outcome { failure(outcome)["code"].clone() } else { json!(0) };
            assert_eq!((found, called.is_some()), (json!(code), code == 0), "{verb} with {field}");
        }
    }
}

#[test]
fn check_needs_a_prev_result_in_the_requested_version() {
    for (prev_result, code) in
        [("null", 7), (r#""garbage""#, 6), ("[[[]]]", 6), (r#"{"cniVersion":"0.4.0"}"#, 7), ("{}", 0)]
    {
        let stdin = format!(r#"{{"cniVersion":"1.0.0","name":"n","prevResult":{prev_result}}}"#);
        let (outcome, called) = invoke("CHECK", &stdin);
        assert_eq!(called.is_some(), code == 0, "{prev_result}");
        if code != 0 {
            let error = failure(outcome);
            assert_eq!(error["code"], code, "{error}");
            assert!(error["msg"].as_str().unwrap().contains("\"prevResult\""), "{error}");
        }
    }
}

#[test]
fn del_ignores_prev_result() {
    for prev_result in ["null", "{}", r#""garbage""#, "[[[]]]"] {
        let stdin = format!(r#"{{"cniVersion":"1.0.0","name":"n","prevResult":{prev_result}}}"#);
        assert_eq!(invoke("DEL", &stdin).0, Outcome::Done(None));
    }
}

#[test]
fn version_echoes_up_to_32_plain_bytes() {
    let of = |requested: &str| invoke("VERSION", &format!(r#"{{"cniVersion":"{requested}"}}"#)).0;
    let longest = "1".repeat(32);
    let Outcome::Done(Some(json)) = of(&longest) else { panic!("{:?}", of(&longest)) };
    assert_eq!(serde_json::from_str::<serde_json::Value>(&json).unwrap()["cniVersion"], longest);
    for refused in ["1".repeat(33), "1".repeat(34), "1 0".to_owned()] {
        assert_eq!(failure(of(&refused))["code"], 7, "{refused}");
    }
}
