//! `ferrulectl support-bundle`: what is in it, and that no secret is.

use std::{collections::BTreeMap, fs, io::Read as _, process::Command};

use anyhow::{Context as _, ensure};
use ferrule_tests::{
    dist,
    node::{POD_V4, on_node},
};
use serde_json::Value;

/// Where a secret could come from: the agent's environment, and its kubeconfig.
const SECRET: &str = "marked-secret-4711";

/// The files of an archive, by name.
fn files(archive: &[u8]) -> anyhow::Result<BTreeMap<String, String>> {
    let mut child = Command::new("gzip");
    let path = "/run/bundle.tar.gz";
    fs::write(path, archive)?;
    let output = child.args(["-dc", path]).output()?;
    ensure!(output.status.success(), "gzip refuses the archive");
    let mut files = BTreeMap::new();
    for entry in tar::Archive::new(output.stdout.as_slice()).entries()? {
        let mut entry = entry?;
        let mut text = String::new();
        entry.read_to_string(&mut text)?;
        let name = entry.path()?.file_name().context("no name")?.to_string_lossy().into_owned();
        files.insert(name, text);
    }
    Ok(files)
}

fn bundle() -> anyhow::Result<(Option<i32>, Vec<u8>, String)> {
    let mut command = Command::new(dist::binary("ferrulectl")?);
    let output = command.args(["support-bundle", "--file", "-"]).env("FERRULE_TOKEN", SECRET).output()?;
    Ok((output.status.code(), output.stdout, String::from_utf8_lossy(&output.stderr).into_owned()))
}

#[test]
fn a_bundle_has_what_a_bug_report_needs_and_no_secret() {
    on_node(|node| {
        let kubeconfig = format!("users:\n- name: a\n  user: {{token: {SECRET}}}\n");
        fs::write("/run/kubeconfig", kubeconfig)?;
        let proxy = format!("http://user:{SECRET}@192.0.2.7:3128");
        let environment = [
            ("AWS_SECRET_ACCESS_KEY", SECRET),
            ("HTTPS_PROXY", proxy.as_str()),
            ("KUBECONFIG", "/run/kubeconfig"),
        ];
        node.use_agent("ferrule-agent", &environment);
        node.start_agent(&[POD_V4])?;
        let pod = node.attach("a")?;
        let (code, archive, errors) = bundle()?;
        ensure!(code == Some(0) && errors.is_empty(), "{errors}");
        ensure!(archive.len() < 1 << 20, "{} bytes for one pod", archive.len());
        let files = files(&archive)?;
        let names: Vec<_> = files.keys().map(String::as_str).collect();
        let expected = [
            "about.txt",
            "adds.txt",
            "attachments.json",
            "config.txt",
            "flows.jsonl",
            "gc.json",
            "ipam.json",
            "kernel.txt",
            "links.txt",
            "log.txt",
            "metrics.txt",
            "nft.txt",
            "nodes.json",
            "policies.json",
            "routes.txt",
            "status.json",
            "verify.json",
        ];
        ensure!(names == expected, "{names:?}");
        for (name, text) in &files {
            ensure!(!text.contains(SECRET), "a secret in {name}: {text}");
        }
        let attachments: Value = serde_json::from_str(&files["attachments.json"])?;
        ensure!(attachments["attachments"][0]["pod_name"] == "a", "{attachments:#}");
        for (name, part) in [
            ("config.txt", POD_V4),
            ("metrics.txt", "ferrule_"),
            ("kernel.txt", "program from_pod: id "),
            ("kernel.txt", "program to_tunnel: id "),
            ("log.txt", "pod=default/a addresses=10.244.0.2"),
            ("routes.txt", &format!("{}/32 dev ", pod.addresses[0])),
            ("routes.txt", "# IPv6 rules"),
            ("nft.txt", "table inet ferrule\n"),
            ("nft.txt", "  set pods4: before 0.0.0.0, 10.244.0.0, before 10.244.1.0"),
            ("nft.txt", "  chain postrouting hook 4 priority 110 policy 1\n    meta "),
            ("kernel.txt", "/proc/sys/net/ipv4/ip_forward: 1"),
            ("links.txt", "stamp ferrule:"),
        ] {
            ensure!(files[name].contains(part), "{name} lacks {part}: {}", files[name]);
        }

        // A bundle is made of broken nodes, too: what is missing is named.
        node.kill_agent()?;
        let (code, archive, errors) = bundle()?;
        let files = self::files(&archive)?;
        ensure!(code == Some(0) && errors.contains("cannot connect to the agent"), "{errors}");
        ensure!(files["missing.txt"].contains("cannot connect to the agent"), "{files:?}");
        Ok(())
    })
    .unwrap();
}
