//! The merge of flags and file, and the checks of every setting.

use std::{fs, path::Path};

use super::*;

#[path = "../../../xtask/src/book/shown.rs"]
mod shown;

fn config(flags: &[&str], file: Option<&str>) -> Result<Config, ConfigError> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("agent.toml");
    let mut line = vec!["ferrule-agent"];
    if let Some(file) = file {
        fs::write(&path, file).unwrap();
        line.extend(["--config", path.to_str().unwrap()]);
    }
    line.extend(flags);
    Args::try_parse_from(line).unwrap().into_config()
}

#[test]
fn flags_alone_configure_the_agent_and_paths_have_defaults() {
    let config =
        config(&["--standalone", "--pod-cidr", "10.0.0.0/24", "--pod-cidr", "fd00::/64"], None).unwrap();
    assert_eq!(config.pod_cidrs.unwrap().to_string(), "10.0.0.0/24, fd00::/64");
    assert_eq!(config.socket, Path::new("/run/ferrule/agent.sock"));
    assert_eq!(config.dataplane, dataplane::Settings::default());
}

#[test]
fn flags_override_the_file() {
    let file = "standalone = true\npod_cidr = [\"10.9.0.0/16\"]\nstate_dir = \"/a\"\nself_heal = \"off\"\nebpf_log = \"debug\"\n";
    let config = config(&["--state-dir", "/b"], Some(file)).unwrap();
    assert_eq!(config.pod_cidrs.unwrap().to_string(), "10.9.0.0/16");
    assert_eq!(config.state_dir, Path::new("/b"));
    assert_eq!(config.dataplane.log, LogLevel::Debug);
    assert_eq!(config.self_heal, Switch::Off);
}

#[test]
fn every_setting_of_the_file_counts_and_flags_override_it() {
    let file = "kubeconfig = \"/k\"\nnode_name = \"f\"\nvif_source = \"kuryr\"\nvif_timeout = 7\n\
        vif_cidr = [\"10.1.0.0/16\"]\nwatch_retry_timeout = 8\nwatch_read_timeout = 9\nwatch_max_backoff = 10\n\
        reconcile_period = 11\nself_heal = \"off\"\nhttp = \"127.0.0.1:1\"\notlp_endpoint = \"http://a:1\"\n\
        cni_bin_dir = \"/b\"\ncni_conf_dir = \"/c\"\nsocket = \"/s\"\nstate_dir = \"/t\"\nbpf_dir = \"/p\"\n\
        ebpf_log = \"trace\"\nmax_vifs = 12\nmax_endpoints = 13\nmax_stack_flows = 5000\nmax_node_entries = 600\n\
        node_routes = \"vxlan\"\nnode_fast_path = \"off\"\ntunnel_port = 8472\nservice_cidr = [\"10.96.0.0/12\"]\nallow_dhcp_servers = true\nflows = \"on\"\n\
        policy = \"off\"\npolicy_unlisted = \"open\"\nmax_policy_peers = 2000\nmax_policy_rules = 5001\nmax_policy_flows = 5002\n";
    let shown = |flags: &[&str]| {
        let it = config(flags, Some(file)).unwrap();
        let kubernetes = it.kubernetes.unwrap();
        let install = it.install.unwrap();
        format!(
            "{} {:?} {:?} {:?} {:?} {:?} {:?} {:?} {:?} {} {} {:?} {:?} {:?} {:?} {} {:?} {:?} {:?} {} {:?} {:?}",
            kubernetes.node_name,
            kubernetes.kubeconfig.unwrap(),
            it.vif_source,
            it.vif_timeout,
            it.vif_cidrs,
            kubernetes.watch.retry_timeout + kubernetes.watch.read_timeout,
            kubernetes.watch.max_backoff,
            it.reconcile.period,
            it.self_heal,
            it.http,
            it.otlp_endpoint.unwrap(),
            (install.bin, install.conf),
            (it.socket, it.state_dir, it.bpf_dir),
            it.dataplane.log,
            it.dataplane.capacities,
            it.dataplane.dhcp_servers,
            it.dataplane.flows,
            it.nodes,
            it.service_cidrs,
            it.dataplane.tunnel_port,
            it.policy,
            it.policy_unlisted,
        )
    };
    assert_eq!(
        shown(&[]),
        "f \"/k\" Kuryr 7s [10.1.0.0/16] 17s 10s 11s Off 127.0.0.1:1 http://a:1/ (\"/b\", \"/c\") \
         (\"/s\", \"/t\", \"/p\") Trace Capacities { vifs: 12, endpoints: 13, stack_flows: 5000, \
         node_entries: 600, policy_peers: 2000, policy_rules: 5001, policy_flows: 5002 } true On \
         Settings { mode: Vxlan, port: 8472, fast_path: false } [10.96.0.0/12] 8472 Off Open"
    );
    let flags = "--kubeconfig /K --node-name g --vif-source ipam --vif-timeout 17 --vif-cidr 10.2.0.0/16 \
        --watch-retry-timeout 18 --watch-read-timeout 19 --watch-max-backoff 20 --reconcile-period 21 --self-heal on \
        --http 127.0.0.1:2 --otlp-endpoint http://a:2 --cni-bin-dir /B --cni-conf-dir /C --socket /S --state-dir /T \
        --bpf-dir /P --ebpf-log debug --max-vifs 22 --max-endpoints 23 --max-stack-flows 6000 --max-node-entries 700 \
        --allow-dhcp-servers false --flows never --node-routes direct --node-fast-path on --tunnel-port 8473 \
        --service-cidr 10.97.0.0/16 --policy enforce --policy-unlisted wait --max-policy-peers 3000 --max-policy-rules 6001 \
        --max-policy-flows 6002";
    assert_eq!(
        shown(&flags.split_whitespace().collect::<Vec<_>>()),
        "g \"/K\" Ipam 17s [10.2.0.0/16] 37s 20s 21s On 127.0.0.1:2 http://a:2/ (\"/B\", \"/C\") \
         (\"/S\", \"/T\", \"/P\") Debug Capacities { vifs: 22, endpoints: 23, stack_flows: 6000, \
         node_entries: 700, policy_peers: 3000, policy_rules: 6001, policy_flows: 6002 } false Never \
         Settings { mode: Direct, port: 8473, fast_path: true } [10.97.0.0/16] 8473 Enforce Wait"
    );
}

#[test]
fn a_node_name_has_at_most_253_characters() {
    let with = |length: usize| config(&["--kubeconfig", "/k", "--node-name", &"n".repeat(length)], None);
    assert!(with(253).is_ok());
    assert!(matches!(with(254), Err(ConfigError::NodeName(_))));
}

#[test]
fn map_capacities_come_from_flags_and_file_and_are_bounded() {
    let file = "standalone = true\npod_cidr = [\"10.9.0.0/16\"]\nmax_vifs = 100\nmax_endpoints = 300\n";
    let capacities = config(&["--max-vifs", "200"], Some(file)).unwrap().dataplane.capacities;
    assert_eq!((capacities.vifs, capacities.endpoints, capacities.stack_flows), (200, 300, 65536));
    for (flag, given) in [
        ("--max-vifs", "0"),
        ("--max-vifs", "1048577"),
        ("--max-endpoints", "0"),
        ("--max-stack-flows", "4095"),
        ("--max-stack-flows", "4194305"),
    ] {
        let error = config(&[flag, given], Some(file)).unwrap_err().to_string();
        assert!(error.contains(flag) && error.contains(given), "{error}");
    }
}

#[test]
fn the_tunnels_port_is_none_that_masqueraded_flows_get() {
    let with = |more: &[&str]| config(&[&["--kubeconfig", "/k", "--node-name", "n"], more].concat(), None);
    let error = with(&["--tunnel-port", "40000"]).unwrap_err().to_string();
    for part in ["--tunnel-port 40000", "32768-65535", "--masquerade-ports"] {
        assert!(error.contains(part), "{error}");
    }
    for more in [
        &["--tunnel-port", "32767"][..],
        &["--tunnel-port", "40000", "--masquerade-ports", "40001-65535"],
        &["--tunnel-port", "40000", "--masquerade", "off"],
        &["--tunnel-port", "40000", "--node-routes", "direct"],
    ] {
        assert!(with(more).is_ok(), "{more:?}");
    }
    let alone = config(&["--standalone", "--pod-cidr", "10.9.0.0/16", "--tunnel-port", "40000"], None);
    assert!(alone.is_ok(), "{alone:?}");
}

#[test]
fn with_kubernetes_the_ranges_are_optional() {
    let config = config(&["--kubeconfig", "/k", "--node-name", "Node-1"], None).unwrap();
    let kubernetes = config.kubernetes.unwrap();
    assert_eq!(kubernetes.node_name, "node-1");
    assert_eq!((config.pod_cidrs, config.vif_source), (None, VifSource::Auto));
    assert_eq!(kubernetes.watch.retry_timeout, Duration::from_secs(60));
}

#[test]
fn the_collector_must_be_a_plain_url_with_a_port() {
    let collector = |url| {
        let flags = ["--standalone", "--pod-cidr", "10.0.0.0/24", "--otlp-endpoint", url];
        config(&flags, None).map(|config| config.otlp_endpoint.unwrap().to_string())
    };
    assert_eq!(collector("http://127.0.0.1:4317").unwrap(), "http://127.0.0.1:4317/");
    assert_eq!(collector("http://[::1]:4317/").unwrap(), "http://[::1]:4317/");
    for (url, named) in [
        ("https://127.0.0.1:4317", "TLS"),
        ("http://127.0.0.1", "4317"),
        ("http://127.0.0.1:4318/v1/traces", "path"),
        ("http://user:secret@127.0.0.1:4317", "credentials"),
        ("127.0.0.1:4317", "http://"),
        ("unix:/run/otel.sock", "http://"),
        ("", "URL"),
    ] {
        let text = collector(url).unwrap_err().to_string();
        assert!(text.contains(named), "{url:?}: {text}");
    }
    let file = "standalone = true\npod_cidr = [\"10.9.0.0/16\"]\notlp_endpoint = \"http://collector:4317\"\n";
    assert_eq!(config(&[], Some(file)).unwrap().otlp_endpoint.unwrap().host(), Some("collector"));
    let none = config(&["--standalone", "--pod-cidr", "10.0.0.0/24"], None).unwrap();
    assert_eq!(none.otlp_endpoint, None);
}

#[test]
fn ranges_are_checked_at_once_and_their_setting_is_named() {
    let refused =
        |flags: &[&str]| config(&[&["--standalone"], flags].concat(), None).unwrap_err().to_string();
    for (flags, named) in [
        (&["--pod-cidr", "10.0.0.0/33"][..], "cannot use --pod-cidr: \"10.0.0.0/33\" is not a CIDR"),
        (&["--pod-cidr", "10.0.0.1/24"], "did you mean 10.0.0.0/24"),
        (&["--pod-cidr", "10.0.0.0/31"], "is too small"),
        (&["--pod-cidr", "127.0.0.0/24"], "loopback"),
        (&["--pod-cidr", "10.0.0.0/16,10.0.3.0/24"], "overlap"),
        (&["--pod-cidr", "10.0.0.0/24", "--vif-cidr", "10.0.0.0"], "cannot use --vif-cidr"),
    ] {
        let error = refused(flags);
        assert!(error.contains(named), "{flags:?}: {error}");
    }
    let file = "standalone = true\npod_cidr = [\"10.9.0.0/99\"]\n";
    let error = config(&[], Some(file)).unwrap_err().to_string();
    assert!(error.contains("\"99\" must be a number from 0 to 32"), "{error}");
}

#[test]
fn a_range_that_nodes_share_needs_a_single_node() {
    let with = |more: &[&str]| {
        let flags = ["--kubeconfig", "/k", "--node-name", "n", "--pod-cidr", "10.0.0.0/24"];
        config(&[&flags, more].concat(), None)
    };
    let error = with(&[]).unwrap_err();
    assert!(matches!(error, ConfigError::SharedPodCidr(_)));
    assert!(error.to_string().contains("--single-node"), "{error}");
    assert!(with(&["--single-node=false"]).is_err());
    assert_eq!(with(&["--single-node"]).unwrap().pod_cidrs.unwrap().to_string(), "10.0.0.0/24");
    let file = "kubeconfig = \"/k\"\nnode_name = \"n\"\npod_cidr = [\"10.0.0.0/24\"]\n";
    assert!(matches!(config(&[], Some(file)), Err(ConfigError::SharedPodCidr(_))));
    assert!(config(&[], Some(&format!("{file}single_node = true\n"))).is_ok());
}

#[test]
fn a_standalone_agent_takes_annotations_from_the_call_and_refuses_kuryr() {
    let standalone = |more: &[&str]| config(&[&["--standalone"], more].concat(), None);
    let pod_cidr = ["--pod-cidr", "10.0.0.0/24"];
    assert_eq!(standalone(&pod_cidr).unwrap().vif_source, VifSource::Auto);
    let with = |source: &'static str| standalone(&[&pod_cidr[..], &["--vif-source", source]].concat());
    assert_eq!(with("ipam").unwrap().vif_source, VifSource::Ipam);
    assert_eq!(with("annotation").unwrap().vif_source, VifSource::Annotation);
    assert!(matches!(with("kuryr"), Err(ConfigError::NotWithStandalone("--vif-source kuryr"))));
    let only_annotations = ["--vif-source", "annotation", "--vif-cidr", "10.0.0.0/24"];
    assert_eq!(standalone(&only_annotations).unwrap().pod_cidrs, None);
    assert!(matches!(standalone(&only_annotations[2..]), Err(ConfigError::NoPodCidr)));
    assert!(matches!(standalone(&only_annotations[..2]), Err(ConfigError::NoPodCidr)));
}

#[test]
fn numbers_have_their_documented_defaults_and_limits() {
    let with = |more: &[&str]| config(&[&["--kubeconfig", "/k", "--node-name", "n"], more].concat(), None);
    let config = with(&[]).unwrap();
    let watch = config.kubernetes.unwrap().watch;
    let found = [
        config.vif_timeout,
        watch.retry_timeout,
        watch.read_timeout,
        watch.max_backoff,
        config.reconcile.period,
    ];
    assert_eq!(found.map(|it| it.as_secs()), [60, 60, 90, 30, 120]);
    assert_eq!(config.http.to_string(), "127.0.0.1:9469");
    for (flag, least, most) in [
        ("--vif-timeout", 1, 80),
        ("--watch-retry-timeout", 1, 3600),
        ("--watch-read-timeout", 2, 3600),
        ("--watch-max-backoff", 1, 600),
        ("--reconcile-period", 1, 3600),
    ] {
        for (given, is_allowed) in [(least - 1, false), (least, true), (most, true), (most + 1, false)] {
            assert_eq!(with(&[flag, &given.to_string()]).is_ok(), is_allowed, "{flag} {given}");
        }
    }
}

#[test]
fn invalid_settings_are_refused() {
    assert!(matches!(config(&[], None), Err(ConfigError::NoApiServer)));
    let both = config(&["--standalone", "--pod-cidr", "10.0.0.0/24", "--kubeconfig", "/x"], None);
    assert!(matches!(both, Err(ConfigError::NotWithStandalone("--kubeconfig"))));
    let half = config(&["--standalone", "--pod-cidr", "10.0.0.0/24", "--cni-bin-dir", "/opt/cni/bin"], None);
    assert!(matches!(half, Err(ConfigError::HalfInstalled)));
    let long = config(&["--kubeconfig", "/x", "--node-name", "n", "--vif-timeout", "100"], None);
    assert!(matches!(long, Err(ConfigError::Seconds { most: 80, given: 100, .. })));
    let odd = config(&["--kubeconfig", "/x", "--node-name", "a,b"], None);
    assert!(matches!(odd, Err(ConfigError::NodeName(_))), "a name goes into a field selector");
    assert!(matches!(config(&["--standalone"], None), Err(ConfigError::NoPodCidr)));
    let relative = config(&["--standalone", "--pod-cidr", "10.0.0.0/24", "--socket", "x"], None);
    assert!(matches!(relative, Err(ConfigError::Relative { what: "--socket", .. })));
    assert!(
        matches!(config(&[], Some("sock = \"/x\"")), Err(ConfigError::UnknownKeys { .. })),
        "a typo is an error"
    );
    let missing = config(&["--config", "/nowhere.toml"], None).unwrap_err().to_string();
    assert!(missing.contains("/nowhere.toml") && missing.contains("No such file"), "{missing}");
}

/// Settings that the chart in `deploy/` makes itself, of its other values.
const OF_THE_CHART: [&str; 13] = [
    "standalone",
    "node_name",
    "kubeconfig",
    "ip_masq_agent_config",
    "http",
    "metrics_listen",
    "metrics_cert",
    "metrics_key",
    "cni_bin_dir",
    "cni_conf_dir",
    "socket",
    "state_dir",
    "config",
];

/// The examples of `agent` in the chart's values, without the marks of comments.
fn chart_examples() -> serde_json::Map<String, serde_json::Value> {
    let values = include_str!("../../../deploy/chart/values.yaml");
    let (_, block) = values.split_once("\nagent: {}\n").unwrap();
    let (block, _) = block.split_once("\n\n").unwrap();
    let examples: String = block
        .lines()
        .filter_map(|line| line.strip_prefix("  # "))
        .filter(|line| {
            line.split_once(':')
                .is_some_and(|(key, _)| key.chars().all(|c| c.is_ascii_lowercase() || c == '_'))
        })
        .map(|line| format!("{line}\n"))
        .collect();
    serde_saphyr::from_str(&examples).unwrap()
}

#[test]
fn the_chart_has_every_setting() {
    use std::collections::BTreeSet;

    use clap::CommandFactory;

    let flags = <Args as CommandFactory>::command();
    let flags = flags.get_arguments().filter_map(|it| it.get_long()).map(|it| it.replace('-', "_"));
    let expected: BTreeSet<String> = flags.filter(|it| !OF_THE_CHART.contains(&it.as_str())).collect();
    let schema: serde_json::Value =
        serde_json::from_str(include_str!("../../../deploy/chart/values.schema.json")).unwrap();
    let in_schema = schema["properties"]["agent"]["properties"].as_object().unwrap();
    let missing = "name it in deploy/chart/values.yaml, values.schema.json and docs/configure.md";
    assert_eq!(in_schema.keys().cloned().collect::<BTreeSet<_>>(), expected, "{missing}");
    assert_eq!(chart_examples().keys().cloned().collect::<BTreeSet<_>>(), expected, "{missing}");
}

#[test]
fn every_example_in_the_chart_is_accepted_one_by_one() {
    for (key, value) in chart_examples() {
        let mut file = format!("{key} = {value}\n");
        if key == "pod_cidr" {
            file += "single_node = true\n";
        }
        let given = config(&["--kubeconfig", "/k", "--node-name", "n"], Some(&file));
        assert!(given.is_ok(), "{file}: {}", given.unwrap_err());
    }
}

#[test]
fn a_removal_needs_no_api_server_and_takes_the_same_directories() {
    let args = ["ferrule-agent", "--bpf-dir", "/sys/fs/bpf/x", "uninstall", "--stay"];
    let args = Args::try_parse_from(args).unwrap();
    assert_eq!(args.uninstall(), Some(true));
    let (places, kubernetes) = args.into_places().unwrap();
    assert_eq!(places.bpf_dir, Path::new("/sys/fs/bpf/x"));
    assert_eq!((places.state_dir, places.install), ("/run/ferrule".into(), None));
    assert!(kubernetes.is_none(), "{kubernetes:?}");
    let kubernetes = |name: &str| {
        let args = ["ferrule-agent", "--kubeconfig", "/k", "--node-name", name, "uninstall"];
        Args::try_parse_from(args).unwrap().into_places().unwrap().1
    };
    assert_eq!(kubernetes("Node-1").unwrap().node_name, "node-1");
    assert!(kubernetes("no name").is_none(), "another setting that is wrong does not prevent a removal");
}

#[test]
fn every_command_of_the_agent_in_the_documents_is_accepted() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let shown = shown::commands(&root, "ferrule-agent").unwrap();
    assert!(shown.len() > 3, "{shown:?}");
    for shown::Shown { place, words } in shown {
        assert!(
            Args::try_parse_from(&words).is_ok(),
            "{place}: {}",
            Args::try_parse_from(&words).unwrap_err()
        );
    }
}
