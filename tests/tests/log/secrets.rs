//! No secret that the agent gets is shown: not in the log at any level, nor by what leaves the agent.

use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
};

use anyhow::{Context as _, ensure};
use ferrule_tests::{
    apiserver::{Options, Resource, Switch, Which, objects},
    cluster::{Cluster, KUBECONFIG, NODE},
    collector::{Collector, FLAGS},
    dist,
    node::{Node, on_node},
    sys,
};
use serde_json::json;

use super::{POD_CIDR, TIMEOUT};

/// Marked, so that each trace of a secret is found.
const TOKEN: &str = "marked-token-1c7f";
const NEXT_TOKEN: &str = "marked-token-9ab2";
/// In the environment of the exec plugin.
const ARGUMENT: &str = "marked-plugin-argument-03d1";
const SCRAPER: &str = "marked-scraper-77aa";
/// Of a scraper that the API server does not know.
const STRANGER: &str = "marked-stranger-5b0e";
const CREDENTIAL: &str = "/run/credential.json";
const METRICS: &str = "127.0.0.1:9470";

/// Every place where something of the agent can be read.
fn shown(node: &Node, cluster: &Cluster, collector: &Collector) -> anyhow::Result<Vec<(String, String)>> {
    let mut shown = vec![
        ("the log".to_owned(), node.log()),
        ("the metrics".to_owned(), node.http("/metrics")?.1),
        ("the spans".to_owned(), format!("{:?}", collector.received())),
        ("the Events".to_owned(), format!("{:?}", cluster.api.list(Resource::Events))),
        ("the nodes".to_owned(), format!("{:?}", cluster.api.list(Resource::Nodes))),
        ("the support bundle".to_owned(), bundle()?),
    ];
    for command in [
        "status",
        "attachments",
        "nodes",
        "verify",
        "log-level",
        "ipam",
        "drops",
        "flows",
        "policy list",
        "gc --dry-run",
        "explain web",
        "explain misspelt",
        "check web",
    ] {
        for format in ["json", "wide"] {
            let words: Vec<_> = command.split(' ').chain(["-o", format]).collect();
            let answer = node.ctl(&words).unwrap_or_else(|error| format!("{error:#}"));
            shown.push((format!("ferrulectl {command} -o {format}"), answer));
        }
    }
    Ok(shown)
}

/// The whole archive as text.
fn bundle() -> anyhow::Result<String> {
    let mut ctl = Command::new(dist::binary("ferrulectl")?);
    let mut ctl = ctl.args(["support-bundle", "--file", "-"]).stdout(Stdio::piped()).spawn()?;
    let archive = ctl.stdout.take().context("no output")?;
    let text = Command::new("gzip").arg("-dc").stdin(archive).output()?;
    ensure!(ctl.wait()?.success() && text.status.success(), "no bundle");
    Ok(String::from_utf8_lossy(&text.stdout).into_owned())
}

/// Makes a key with its certificate. Returns parts that each form of the key has: PEM, and BASE64 of that.
fn make_key() -> anyhow::Result<[String; 2]> {
    sys::run(
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 1 -subj /CN=agent \
         -keyout /run/key.pem -out /run/cert.pem",
    )?;
    let key = fs::read_to_string("/run/key.pem")?;
    let line = key.lines().nth(1).context("an empty key")?.to_owned();
    let encoded = sys::run("base64 -w0 /run/key.pem")?;
    let middle = encoded.get(64..128).context("a short key")?.to_owned();
    Ok([line, middle])
}

/// A kubeconfig whose exec plugin prints the file [`CREDENTIAL`].
fn use_plugin(cluster: &Cluster) -> anyhow::Result<()> {
    cluster.api.kubeconfig(Path::new(KUBECONFIG), None)?;
    let mut config: serde_json::Value = serde_json::from_str(&fs::read_to_string(KUBECONFIG)?)?;
    let user = config.pointer_mut("/users/0/user").context("no user")?;
    *user = json!({ "exec": {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": "cat",
        "args": [CREDENTIAL],
        "env": [{ "name": "PLUGIN_SECRET", "value": ARGUMENT }],
        "interactiveMode": "Never",
    } });
    Ok(fs::write(KUBECONFIG, config.to_string())?)
}

fn print_credential(token: &str) -> anyhow::Result<()> {
    let credential = json!({
        "apiVersion": "client.authentication.k8s.io/v1",
        "kind": "ExecCredential",
        "status": {
            "token": token,
            "clientCertificateData": fs::read_to_string("/run/cert.pem")?,
            "clientKeyData": fs::read_to_string("/run/key.pem")?,
        },
    });
    Ok(fs::write(CREDENTIAL, credential.to_string())?)
}

/// The status code of the metrics beyond the node.
fn scrape(token: &str) -> anyhow::Result<String> {
    let header = format!("Authorization: Bearer {token}");
    let url = format!("https://{METRICS}/metrics");
    let mut curl = Command::new("curl");
    sys::output(curl.args(["-sk", "-o", "/dev/null", "-w", "%{http_code}", "-H", &header, &url]))
}

#[test]
fn no_secret_is_shown_at_any_level_of_the_log_nor_by_what_leaves_the_agent() {
    on_node(|node| {
        let cluster = Cluster::start(Options::default())?;
        let known = |tokens: &[&str]| {
            let tokens = tokens.iter().map(|it| (*it).to_owned()).collect();
            cluster.api.switch(Switch::SetTokens { tokens: Some(tokens) });
        };
        let [key, encoded_key] = make_key()?;
        use_plugin(&cluster)?;
        print_credential(TOKEN)?;
        known(&[TOKEN, SCRAPER]);
        cluster.api.create(Resource::Nodes, objects::node(NODE, &[POD_CIDR]))?;
        let collector = Collector::start()?;
        node.use_agent("ferrule-agent", &[("FERRULE_LOG", "trace")]);
        cluster.start_agent(node, &[&["--metrics-listen", METRICS][..], &FLAGS].concat())?;
        cluster.attach(node, "web")?;
        cluster.pod(node, "misspelt", &[("kubernetes.io/ingress-bandwidth", "10Mbit")])?;
        sys::wait_until("there are spans and Events", TIMEOUT, || {
            Ok(!collector.spans().is_empty() && !cluster.api.list(Resource::Events).is_empty())
        })?;
        sys::wait_until("a scraper gets metrics", TIMEOUT, || Ok(scrape(SCRAPER)? == "200"))?;
        ensure!(scrape(STRANGER)? == "401", "{}", scrape(STRANGER)?);

        // Errors of authentication must not show a secret either, nor those of a plugin that prints nonsense.
        known(&[NEXT_TOKEN]);
        cluster.api.switch(Switch::CutWatches { which: Which::default() });
        sys::wait_until("the agent's requests are refused", TIMEOUT, || Ok(node.log().contains("401")))?;
        fs::write(CREDENTIAL, format!("{{\"token\": \"{NEXT_TOKEN}\""))?;
        cluster.api.switch(Switch::CutWatches { which: Which::default() });
        sys::wait_until("the plugin's output is refused", TIMEOUT, || {
            Ok(node.log().contains("invalid output of the kubeconfig's exec plugin"))
        })?;
        print_credential(NEXT_TOKEN)?;

        let shown = shown(node, &cluster, &collector)?;
        ensure!(node.log().contains("TRACE"), "the log has no lines of the level trace");
        for (place, text) in shown {
            for secret in [TOKEN, NEXT_TOKEN, ARGUMENT, SCRAPER, STRANGER, key.as_str(), &encoded_key] {
                ensure!(!text.contains(secret), "{place} shows {secret}");
            }
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn no_token_in_a_kubeconfig_is_shown_at_any_level_of_the_log() {
    on_node(|node| {
        let cluster = Cluster::start(Options::default())?;
        let tokens = |token: &str| Switch::SetTokens { tokens: Some(vec![token.to_owned()]) };
        cluster.api.kubeconfig(Path::new(KUBECONFIG), Some(TOKEN))?;
        cluster.api.switch(tokens(TOKEN));
        cluster.api.create(Resource::Nodes, objects::node(NODE, &[POD_CIDR]))?;
        let collector = Collector::start()?;
        node.use_agent("ferrule-agent", &[("FERRULE_LOG", "trace")]);
        cluster.start_agent(node, &FLAGS)?;
        cluster.attach(node, "web")?;
        cluster.api.switch(tokens(NEXT_TOKEN));
        cluster.api.switch(Switch::CutWatches { which: Which::default() });
        sys::wait_until("the agent's requests are refused", TIMEOUT, || Ok(node.log().contains("401")))?;
        cluster.api.kubeconfig(Path::new(KUBECONFIG), Some(NEXT_TOKEN))?;
        for (place, text) in shown(node, &cluster, &collector)? {
            for secret in [TOKEN, NEXT_TOKEN] {
                ensure!(!text.contains(secret), "{place} shows {secret}");
            }
        }
        Ok(())
    })
    .unwrap();
}
