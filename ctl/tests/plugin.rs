//! `kubectl ferrule`, with a kubectl that answers from a file.

#![expect(clippy::unwrap_used, reason = "test helpers panic on failure, as tests do")]

use std::{
    fs,
    io::{self, BufRead as _, BufReader},
    os::unix::fs::symlink,
    path::Path,
    process::{Command, Output, Stdio},
};

/// Not written by a test: a process that another test starts meanwhile would have the file open for writing,
/// and the kernel would not run it (ETXTBSY).
const KUBECTL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/kubectl");

struct Cluster(tempfile::TempDir);

impl Cluster {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        symlink(KUBECTL, directory.path().join("kubectl")).unwrap();
        symlink(env!("CARGO_BIN_EXE_ferrulectl"), directory.path().join("kubectl-ferrule")).unwrap();
        Self(directory)
    }

    /// Runs the plugin as kubectl does: by its own name.
    fn run(&self, args: &[&str]) -> Output {
        self.plugin(args).output().unwrap()
    }

    fn plugin(&self, args: &[&str]) -> Command {
        let mut plugin = Command::new(self.0.path().join("kubectl-ferrule"));
        plugin.args(args).env("PATH", format!("{}:/usr/bin:/bin", self.0.path().display()));
        plugin
    }

    /// The calls of kubectl since the last time.
    fn calls(&self) -> Vec<String> {
        let file = self.0.path().join("calls");
        let calls = fs::read_to_string(&file).unwrap_or_default();
        let _ = fs::remove_file(file);
        calls.lines().map(str::to_owned).collect()
    }
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[test]
fn a_command_about_a_pod_runs_on_its_node_with_its_arguments() {
    let cluster = Cluster::new();
    let output = cluster.run(&["--context", "test", "explain", "web-0", "-n", "shop", "-o", "json"]);
    assert_eq!(
        (output.status.code(), output.stdout),
        (Some(3), b"from agent-b\n".to_vec()),
        "the exit code is the pod's"
    );
    let calls = cluster.calls();
    assert!(calls.iter().all(|it| it.starts_with("--context=test ")), "{calls:?}");
    assert!(
        calls[1].ends_with(
            "get --request-timeout=20s pod web-0 -o jsonpath={.spec.nodeName} {.metadata.namespace} --namespace shop"
        ),
        "{calls:?}"
    );
    let exec = "exec --namespace ferrule-system agent-b --container agent -- ferrulectl explain web-0 -n shop -o json";
    assert!(calls[2].ends_with(exec), "{calls:?}");
    let output = cluster.run(&["--on", "shop/web-0", "drops", "--last", "1"]);
    assert_eq!(output.status.code(), Some(3));
    assert!(cluster.calls()[2].ends_with("-- ferrulectl drops --last 1"));
}

#[test]
fn the_agent_gets_the_namespace_in_which_kubectl_has_found_the_pod() {
    let cluster = Cluster::new();
    for (args, expected) in [
        (&["explain", "web-0"][..], "-- ferrulectl explain web-0 --namespace current"),
        (&["-o", "json", "check", "web-0"], "-- ferrulectl -o json check web-0 --namespace current"),
        (&["check", "--", "web-0"], "-- ferrulectl check --namespace current -- web-0"),
        (&["explain", "shop/web-0"], "-- ferrulectl explain shop/web-0"),
        (&["explain", "-nshop", "web-0"], "-- ferrulectl explain -nshop web-0"),
        (&["--node", "node-2", "explain", "web-0"], "-- ferrulectl explain web-0"),
    ] {
        cluster.run(args);
        let calls = cluster.calls();
        assert!(calls.last().unwrap().ends_with(expected), "{args:?}: {calls:?}");
    }
}

#[test]
fn nodes_are_chosen_by_name_labels_or_all() {
    let cluster = Cluster::new();
    let output = cluster.run(&["--node", "node-1", "status"]);
    assert_eq!((output.status.code(), output.stdout), (Some(0), b"from agent-a\n".to_vec()));
    for args in [&["-l", "zone=west", "status"][..], &["--all-nodes", "status"]] {
        let output = cluster.run(args);
        let expected = b"node node-1\nfrom agent-a\nnode node-2\nfrom agent-b\n".to_vec();
        assert_eq!((output.status.code(), output.stdout), (Some(3), expected), "the worst exit code counts");
    }
}

#[test]
fn an_archive_has_nothing_before_it_however_its_node_is_chosen() {
    let cluster = Cluster::new();
    for choice in [&["--node", "node-1"][..], &["-l", "zone=south"]] {
        let output = cluster.run(&[choice, &["support-bundle", "--file", "-"]].concat());
        assert_eq!(
            (output.status.code(), &output.stdout[..]),
            (Some(0), &b"from agent-a\n"[..]),
            "{choice:?}"
        );
    }
}

#[test]
fn a_node_without_a_running_agent_is_named_and_the_others_are_asked() {
    let cluster = Cluster::new();
    for (args, code, expected) in [
        (&["-l", "zone=north", "status"][..], 1, "node node-1\nfrom agent-a\n"),
        (&["-l", "zone=north", "verify"], 2, "node node-1\nfrom agent-a\n"),
        (&["--node", "node-3", "--node", "node-1", "status"], 1, "node node-1\nfrom agent-a\n"),
        (&["--all-nodes", "status"], 3, "node node-1\nfrom agent-a\nnode node-2\nfrom agent-b\n"),
    ] {
        let output = cluster.run(args);
        let stdout = String::from_utf8(output.stdout.clone()).unwrap();
        assert_eq!((output.status.code(), stdout.as_str()), (Some(code), expected), "{args:?}");
        assert!(stderr(&output).contains("no agent runs on the node node-3: see: kubectl"), "{args:?}");
    }
    let output = cluster.run(&["--agent-namespace", "rolling", "--all-nodes", "status"]);
    let stdout = String::from_utf8(output.stdout.clone()).unwrap();
    assert_eq!((output.status.code(), stdout.matches("node node-").count()), (Some(1), 2), "{stdout}");
    let errors = stderr(&output);
    assert!(errors.contains("the agent agent-e is on no node yet") && !errors.contains("node-2"), "{errors}");
}

#[test]
fn data_of_several_nodes_names_the_node_of_each_document() {
    let cluster = Cluster::new();
    let output = cluster.run(&["-l", "zone=west", "status", "-o", "json"]);
    let documents = serde_json::Deserializer::from_slice(&output.stdout).into_iter::<serde_json::Value>();
    let documents: Vec<_> = documents.map(Result::unwrap).collect();
    let expected = [
        serde_json::json!({"node": "node-1", "answer": {"from": "agent-a"}}),
        serde_json::json!({"node": "node-2", "answer": {"from": "agent-b"}}),
        serde_json::json!({"node": "node-2", "answer": [2]}),
    ];
    assert_eq!((output.status.code(), documents.as_slice()), (Some(3), &expected[..]));
    let output = cluster.run(&["-l", "zone=north", "status", "-o", "yaml"]);
    assert_eq!(output.stdout, b"---\nnode: \"node-1\"\nanswer:\n  from: agent-a\n");
    let output = cluster.run(&["--node", "node-1", "status", "-o", "yaml"]);
    assert_eq!(output.stdout, b"from: agent-a\n", "of one node");
    let output = cluster.run(&["-l", "zone=west", "ipam", "-o", "json"]);
    assert!(stderr(&output).contains("the answer of the node node-2 is no JSON"), "{output:?}");
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn a_silent_node_is_named_and_the_others_are_asked_meanwhile() {
    let cluster = Cluster::new();
    let named = "the node node-1 has not answered: no output for 3 s";
    let output = cluster.run(&["--timeout", "3", "-l", "zone=west", "log-level"]);
    let text = stderr(&output);
    assert_eq!(
        (output.status.code(), output.stdout),
        (Some(3), b"node node-1\nnode node-2\nfrom agent-b\n".to_vec())
    );
    let place = |what: &str| text.find(what).unwrap_or_else(|| panic!("{what}: {text}"));
    assert!(place("kubectl waits") < place(named) && place(named) < place("exit code 3"), "{text}");
    let output = cluster.run(&["--timeout", "3", "-l", "zone=west", "log-level", "-o", "json"]);
    assert_eq!(
        String::from_utf8(output.stdout.clone()).unwrap().lines().next(),
        Some("{\"node\":\"node-2\",\"answer\":{\"from\":\"agent-b\"}}")
    );
    let text = stderr(&output);
    assert!(text.contains(named) && !text.contains("no JSON"), "{text}");
    // The first node answers once the second one is asked.
    let output = cluster.run(&["-l", "zone=west", "nodes"]);
    assert_eq!(output.stdout, b"node node-1\nfrom agent-a\nnode node-2\nfrom agent-b\n");
    assert!(stderr(&output).starts_with("note of agent-a\ncommand terminated"), "{output:?}");
}

#[test]
fn a_failure_of_kubectl_itself_is_no_verdict_of_the_command() {
    let cluster = Cluster::new();
    for (pod, code, expected) in [
        ("forbidden", 2, "is forbidden"),
        ("lost", 2, "kubectl itself has failed on the node node-2"),
        ("impaired", 1, "command terminated with exit code 1"),
    ] {
        let output = cluster.run(&["--on", "shop/web-0", "explain", pod]);
        let text = stderr(&output);
        assert!(
            output.status.code() == Some(code) && text.contains(expected),
            "{pod}: {:?} {text}",
            output.status
        );
        assert_eq!(text.contains("kubectl itself has failed"), code == 2, "{text}");
    }
}

#[test]
fn a_reader_that_has_read_enough_is_no_failure() {
    let cluster = Cluster::new();
    let mut plugin = cluster.plugin(&["--node", "node-1", "drops", "-f"]);
    let mut running = plugin.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(running.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let ended = running.wait_with_output().unwrap();
    assert_eq!((ended.status.code(), stderr(&ended), line.as_str()), (Some(0), String::new(), "record\n"));
    let (reader, writer) = io::pipe().unwrap();
    drop(reader);
    for format in ["table", "json", "yaml"] {
        let mut plugin = cluster.plugin(&["-l", "zone=west", "attachments", "-o", format]);
        let ended = plugin.stdout(writer.try_clone().unwrap()).output().unwrap();
        assert_eq!((ended.status.code(), stderr(&ended)), (Some(0), String::new()), "of several nodes");
    }
}

#[test]
fn errors_say_what_was_asked_and_what_to_do() {
    let cluster = Cluster::new();
    for (args, code, expected) in [
        (&["status"][..], 1, "3 nodes have an agent (node-1, node-2, node-3): choose with --node NODE"),
        (
            &["--node", "node-3", "status"],
            1,
            "no agent runs on the node node-3: see: kubectl -n ferrule-system get pods",
        ),
        (&["--agent-namespace", "gone", "status"], 1, "no agent runs in the namespace gone"),
        (
            &["explain", "x"],
            2,
            "`kubectl get pod x -o jsonpath={.spec.nodeName} {.metadata.namespace}` failed: Error from server (NotFound)",
        ),
        (&["explain", "pending"], 2, "the pod pending is not scheduled to a node yet"),
        (&["-l", "zone=east", "status"], 1, "no node has the labels zone=east"),
        (&["--all-nodes", "drops", "-f"], 1, "is of one node: choose one of node-1, node-2 with --node"),
        (&["--all-nodes", "support-bundle", "--file", "-"], 1, "is of one node"),
    ] {
        let output = cluster.run(args);
        let text = stderr(&output);
        assert!(
            output.status.code() == Some(code) && text.contains(expected),
            "{args:?}: {:?} {text}",
            output.status
        );
    }
    cluster.calls();
    let output = cluster.run(&["--node", "node-1", "explian"]);
    assert!(
        output.status.code() == Some(2) && stderr(&output).contains("unrecognized subcommand"),
        "{output:?}"
    );
    assert_eq!(cluster.calls(), [""; 0], "a wrong argument costs no call");
}

#[test]
fn commands_without_an_agent_need_no_cluster() {
    let cluster = Cluster::new();
    let output = cluster.run(&["completion", "bash"]);
    assert!(output.status.success() && !output.stdout.is_empty());
    assert_eq!(cluster.calls(), [""; 0]);
    fs::remove_file(cluster.0.path().join("kubectl")).unwrap();
    let plugin = cluster.0.path().join("kubectl-ferrule");
    let output = Command::new(plugin).arg("status").env("PATH", Path::new("/nowhere")).output().unwrap();
    assert!(stderr(&output).contains("found no kubectl on the PATH"), "{output:?}");
}
