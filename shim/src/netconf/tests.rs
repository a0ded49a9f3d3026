//! Valid and invalid network configurations.

use proptest::prelude::*;

use super::*;

fn netconf(text: &str) -> Result<(Netconf, Settings), CniError> {
    let document = Document::parse(text.as_bytes())?;
    Ok((document.netconf()?, document.settings()?))
}

#[test]
fn minimal_configuration_gets_defaults() {
    let text = r#"{"cniVersion":"1.0.0","name":"cluster","type":"ferrule"}"#;
    let document = Document::parse(text.as_bytes()).unwrap();
    assert_eq!(document.supported_version().unwrap(), CniVersion::V1_0_0);
    let expected =
        Netconf { name: NetworkName::new("cluster").unwrap(), socket: "/run/ferrule/agent.sock".into() };
    assert_eq!(document.netconf().unwrap(), expected);
    assert_eq!(document.settings().unwrap(), Settings { mtu: 0, dns: Dns::default() });
    assert!(!document.has_prev_result());
}

#[test]
fn full_configuration_is_decoded_and_unknown_fields_are_ignored() {
    let (netconf, read) = netconf(
        r#" {"name": "n", "socket": "/tmp/a", "mtu": 1450, "capabilities": {"mac": true}, "x": 1e999,
             "dns": {"nameservers": ["10.0.0.1"], "search": ["a.b"], "unknown": 1},
             "prevResult": "garbage", "ipam": [[{}]]}"#,
    )
    .unwrap();
    assert_eq!((netconf.socket.as_str(), read.mtu), ("/tmp/a", 1450));
    assert_eq!(read.dns.nameservers, ["10.0.0.1"]);
    assert_eq!(read.dns.search, ["a.b"]);
}

#[test]
fn null_counts_as_missing() {
    let text = r#"{"name":"n","type":null,"socket":null,"mtu":null,"dns":null,"prevResult":null}"#;
    assert_eq!(netconf(text), netconf(r#"{"name":"n"}"#));
}

#[test]
fn input_other_than_a_json_object_is_a_decoding_failure() {
    for text in [
        "",
        " ",
        "{",
        "[]",
        "[\"1.0.0\",\"n\"]",
        "null",
        "7",
        "\"x\"",
        "{} {}",
        "{\"name\":\"n\",}",
        r#"{"name":"n","name":"m"}"#,
        r#"{"name":"\ud800"x}"#,
        r#"{"name":"n","x":"#,
    ] {
        assert_eq!(netconf(text).unwrap_err().code, 6, "{text}");
    }
    let error = Document::parse(b"{\"name\":\"\xff\"}").unwrap_err();
    assert_eq!(error.code, 6, "invalid UTF-8");
}

#[test]
fn invalid_field_is_refused_and_named() {
    let long = format!(r#"{{"name":"n","socket":"/{}"}}"#, "x".repeat(107));
    let huge = format!(r#"{{"name":"{}"}}"#, "x".repeat(1 << 20));
    let names = format!(r#"{{"name":"n","dns":{{"search":["a"{}]}}}}"#, r#","""#.repeat(100_000));
    for (text, named) in [
        ("{}", "name"),
        (r#"{"name":""}"#, "name"),
        (r#"{"name":7}"#, "name"),
        (r#"{"name":"\ud800"}"#, "name"),
        (r#"{"name":"a/b"}"#, "name"),
        (r#"{"name":"a\nb"}"#, "name"),
        (r#"{"name":"n","type":{}}"#, "type"),
        (r#"{"name":"n","socket":1}"#, "socket"),
        (r#"{"name":"n","socket":"run/x"}"#, "socket"),
        (r#"{"name":"n","socket":"/run/\u0000"}"#, "socket"),
        (&long, "socket"),
        (r#"{"name":"n","mtu":"1500"}"#, "mtu"),
        (r#"{"name":"n","mtu":1500.5}"#, "mtu"),
        (r#"{"name":"n","mtu":-1}"#, "mtu"),
        (r#"{"name":"n","mtu":1e999}"#, "mtu"),
        (r#"{"name":"n","mtu":67}"#, "mtu"),
        (r#"{"name":"n","mtu":65536}"#, "mtu"),
        (r#"{"name":"n","dns":["10.0.0.1"]}"#, "dns"),
        (r#"{"name":"n","dns":{"nameservers":"10.0.0.1"}}"#, "dns"),
        (&huge, "name"),
        (&names, "dns"),
    ] {
        let error = netconf(text).unwrap_err();
        assert_eq!(error.code, 7, "{text:.100}");
        let start = format!("reading \"{named}\" of the network configuration");
        assert!(error.msg.starts_with(&start) && error.msg.len() < 250, "{}", error.msg);
        assert!(!error.msg.contains(char::is_control), "{}", error.msg);
    }
}

#[test]
fn dns_has_at_most_64_kib() {
    let dns = |length: usize| {
        let empty = r#"{"domain":""}"#.len();
        format!(r#"{{"name":"n","dns":{{"domain":"{}"}}}}"#, "x".repeat(length - empty))
    };
    assert!(netconf(&dns(65_536)).is_ok());
    assert!(netconf(&dns(65_537)).unwrap_err().msg.ends_with("longer than 65536 bytes"));
}

#[test]
fn a_string_in_place_of_a_number_is_quoted_once() {
    let error = netconf(r#"{"name":"n","mtu":"1400"}"#).unwrap_err();
    let expected = "reading \"mtu\" of the network configuration: found the string \"1400\", expected a whole number \
                    of bytes, without quotes";
    assert_eq!(error.msg, expected);
}

#[test]
fn unsupported_version_is_refused_with_the_supported_ones() {
    for text in [r#"{}"#, r#"{"cniVersion":""}"#, r#"{"cniVersion":"0.2.0"}"#, r#"{"cniVersion":"9\n"}"#] {
        let error = Document::parse(text.as_bytes()).unwrap().supported_version().unwrap_err();
        assert_eq!(error.code, 1, "{text}");
        assert!(error.msg.contains("0.3.0, 0.3.1, 0.4.0, 1.0.0, 1.1.0"), "{}", error.msg);
    }
    let error = Document::parse(br#"{"cniVersion":1.0}"#).unwrap().supported_version().unwrap_err();
    assert_eq!(error.code, 7);
}

#[test]
fn valid_attachments_are_decoded() {
    let text = r#"{"cni.dev/valid-attachments":[{"containerID":"a","ifname":"eth0","x":1}]}"#;
    let valid = Document::parse(text.as_bytes()).unwrap().valid_attachments().unwrap();
    assert_eq!(valid, [(ContainerId::new("a").unwrap(), IfName::new("eth0").unwrap())]);
    for text in [r#"{"cni.dev/valid-attachments":[]}"#, r#"{"cni.dev/valid-attachments":null}"#] {
        assert_eq!(Document::parse(text.as_bytes()).unwrap().valid_attachments().unwrap(), []);
    }
}

#[test]
fn missing_or_invalid_valid_attachments_are_refused() {
    for list in ["{}", "[7]", r#"[{"containerID":"a"}]"#, r#"[{"containerID":"a/b","ifname":"eth0"}]"#] {
        let text = format!(r#"{{"cni.dev/valid-attachments":{list}}}"#);
        let error = Document::parse(text.as_bytes()).unwrap().valid_attachments().unwrap_err();
        assert_eq!(error.code, 7, "{list}");
        assert!(error.msg.contains("cni.dev/valid-attachments"), "{}", error.msg);
    }
    assert_eq!(Document::parse(b"{}").unwrap().valid_attachments().unwrap_err().code, 7);
}

/// The annotations in a `runtimeConfig`.
fn annotations(runtime_config: &str) -> Result<Option<Annotations>, CniError> {
    let text = format!(r#"{{"runtimeConfig":{runtime_config}}}"#);
    Document::parse(text.as_bytes()).unwrap().annotations()
}

#[test]
fn only_annotations_that_the_agent_reads_are_forwarded() {
    let config = r#"{"dns": {"Servers": [[[]]]}, "portMappings": 1e999, "io.kubernetes.cri.pod-annotations":
        {"vif.ferrule.dev/v1": "{\"interfaces\":[]}", "openstack.org\/kuryr-vif": "k\u00fc",
         "kubernetes.io/config.source": "api", "kubernetes.io/config.seen": "x", "vif.ferrule.dev/v2": "y"}}"#;
    let expected = [
        ("vif.ferrule.dev/v1", r#"{"interfaces":[]}"#),
        ("openstack.org/kuryr-vif", "kü"),
        ("kubernetes.io/config.source", "api"),
    ];
    let expected = expected.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
    assert_eq!(annotations(config), Ok(Some(Annotations { values: expected })));
}

#[test]
fn pod_without_annotations_differs_from_runtime_without_capability() {
    for (config, expected) in [
        ("null", None),
        ("{}", None),
        (r#"{"dns":{}}"#, None),
        (r#"{"io.kubernetes.cri.pod-annotations":null}"#, None),
        (r#"{"io.kubernetes.cri.pod-annotations":{}}"#, Some(Annotations::default())),
        (r#"{"io.kubernetes.cri.pod-annotations":{"other":"x"}}"#, Some(Annotations::default())),
    ] {
        assert_eq!(annotations(config), Ok(expected), "{config}");
    }
    assert_eq!(Document::parse(b"{}").unwrap().annotations(), Ok(None));
}

#[test]
fn invalid_annotations_are_refused_and_named() {
    const MAP: &str = "io.kubernetes.cri.pod-annotations";
    let of = |value: &str| format!(r#"{{"{MAP}":{value}}}"#);
    let long = |len: usize| of(&format!(r#"{{"vif.ferrule.dev/v1":"{}"}}"#, "x".repeat(len)));
    for (config, field, reason) in [
        ("7".to_owned(), "runtimeConfig", "found \"7\", expected an object"),
        (r#"[{"vif.ferrule.dev/v1":"x"}]"#.to_owned(), "runtimeConfig", ", expected an object"),
        (of("[]"), MAP, "found \"[]\", expected an object"),
        (of("\"x\""), MAP, ", expected an object"),
        (of(r#"{"vif.ferrule.dev/v1":{"interfaces":[]}}"#), MAP, "\"vif.ferrule.dev/v1\" is not a string"),
        (of(r#"{"vif.ferrule.dev/v1":null}"#), MAP, "\"vif.ferrule.dev/v1\" is not a string"),
        (of(r#"{"vif.ferrule.dev/v1":"\ud800"}"#), MAP, "\"vif.ferrule.dev/v1\" is not a string"),
        (of(r#"{"other\n":7}"#), MAP, "\"other\\n\" is not a string"),
        (long(256 * 1024 + 1), MAP, "\"vif.ferrule.dev/v1\" is longer than 262144 bytes"),
    ] {
        let error = annotations(&config).unwrap_err();
        assert_eq!(error.code, 7, "{config:.100}");
        let start = format!("reading \"{field}\" of the network configuration");
        assert!(error.msg.starts_with(&start) && error.msg.ends_with(reason), "{}", error.msg);
        assert!(error.msg.len() < 250 && !error.msg.contains(char::is_control), "{}", error.msg);
    }
    assert!(annotations(&long(256 * 1024)).is_ok());
}

#[test]
fn deep_nesting_does_not_overflow_the_stack() {
    let depth = 500_000;
    for (open, close) in [("[", "]"), (r#"{"a":"#, "}")] {
        let open = open.repeat(depth);
        let nested = format!("{open}1{}", close.repeat(depth));
        for name in ["x", "prevResult", "dns", "mtu", "name", "runtimeConfig", "cni.dev/valid-attachments"] {
            let text = format!(r#"{{"name":"n","{name}":{nested}}}"#);
            if let Ok(document) = Document::parse(text.as_bytes()) {
                let _ = (
                    document.netconf(),
                    document.settings(),
                    document.valid_attachments(),
                    document.annotations(),
                );
            }
        }
        assert_eq!(Document::parse(open.as_bytes()).unwrap_err().code, 6);
    }
}

#[test]
fn recorded_configurations_are_decoded() {
    for call in include_str!("../../testdata/calls.jsonl").lines() {
        let call: serde_json::Value = serde_json::from_str(call).unwrap();
        let text = call["stdin"].to_string();
        let document = Document::parse(text.as_bytes()).unwrap();
        assert_eq!(document.supported_version().unwrap(), CniVersion::V1_0_0);
        let read = document.netconf().unwrap();
        assert_eq!(read.name.as_str(), "cluster");
        assert_eq!(document.has_prev_result(), call["stdin"]["prevResult"].is_object());
        let annotations = document.annotations().unwrap().unwrap();
        assert_eq!(annotations.values, [("kubernetes.io/config.source".to_owned(), "api".to_owned())].into());
    }
}

proptest! {
    #[test]
    fn arbitrary_bytes_do_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = Document::parse(&bytes);
    }

    #[test]
    fn arbitrary_field_values_do_not_panic(value in "[\\[\\]{}\",:0-9a-z.+/ -]{0,40}", field in 0..8usize) {
        let names = [
            "cniVersion", "name", "type", "socket", "mtu", "dns", "runtimeConfig", "cni.dev/valid-attachments",
        ];
        let text = format!(r#"{{"{}":{value}}}"#, names[field]);
        if let Ok(document) = Document::parse(text.as_bytes()) {
            let _ = (document.supported_version(), document.netconf(), document.valid_attachments());
            let _ = (document.settings(), document.annotations());
        }
    }
}

#[test]
fn a_dns_of_65536_bytes_is_accepted_and_a_longer_one_not() {
    let settings = |bytes: usize| {
        let frame = r#"{"domain":""}"#.len();
        let text = format!(r#"{{"name":"n","dns":{{"domain":"{}"}}}}"#, "x".repeat(bytes - frame));
        Document::parse(text.as_bytes()).unwrap().settings().map(|it| it.dns.domain.len())
    };
    assert_eq!(settings(65_536).unwrap(), 65_523);
    let error = settings(65_537).unwrap_err();
    assert!(error.msg.contains("longer than 65536 bytes"), "{}", error.msg);
}
