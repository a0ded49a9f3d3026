//! What is asked of kubectl, in which order, and the errors for each thing that is not there.

use std::{fs, path::Path, process::Command, time::Duration};

use clap::Parser;
use serde_json::Value;
use tempfile::TempDir;

use super::*;

#[derive(Debug, Parser)]
struct Cli {
    #[command(flatten)]
    deploy: Deploy,
}

/// A program in kubectl's place that notes its arguments, and answers as a cluster would.
struct Cluster {
    dir: TempDir,
    kubectl: Kubectl,
}

fn parse(flags: &[&str]) -> Deploy {
    Cli::try_parse_from([&["deploy"], flags].concat()).unwrap().deploy
}

fn cluster(version: &str, image: &str, rollout: u8) -> Cluster {
    cluster_with(version, image, &format!("exit {rollout}"), "")
}

/// `rollout` and `pods` are commands of the shell: the roll-out, and the list of pods in JSON.
fn cluster_with(version: &str, image: &str, rollout: &str, pods: &str) -> Cluster {
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("kubectl");
    let script = format!(
        "#!/bin/sh\necho \"$*\" >> {log}\ncase \"$*\" in\n*get-contexts*) echo one; echo two ;;\n\
         */version*) {version} ;;\n*jsonpath*) echo '{image}' ;;\n*rollout*) {rollout} ;;\n\
         *pods*json*) {pods} ;;\nesac\n",
        log = dir.path().join("log").display(),
    );
    // By a process of its own: one that another test starts meanwhile would have the file open for writing,
    // and the kernel would not run it (ETXTBSY).
    let write = "printf %s \"$1\" > \"$0\" && chmod 755 \"$0\"";
    let written = Command::new("sh").args(["-c", write]).arg(&program).arg(script).status().unwrap();
    assert!(written.success());
    let cluster = ["--context", "two"].map(Into::into).to_vec();
    let kubectl = Kubectl {
        program,
        cluster,
        context: Some("two".to_owned()),
        timeout: "9m".to_owned(),
        every: Duration::from_mins(1),
        manifests: dir.path().join("deploy.yaml"),
    };
    Cluster { dir, kubectl }
}

impl Cluster {
    fn calls(&self) -> Vec<String> {
        let text = fs::read_to_string(self.dir.path().join("log")).unwrap_or_default();
        text.lines().map(ToOwned::to_owned).collect()
    }
}

const GOOD: &str = "echo '{\"minor\":\"31+\",\"gitVersion\":\"v1.31.2\"}'";

fn error(result: Result<()>) -> String {
    result.unwrap_err().to_string()
}

#[test]
fn an_image_reference_is_taken_apart() {
    let parts = |reference| {
        let image = options::image(reference);
        ["repository", "tag", "digest"].map(|it| image["image"][it].as_str().unwrap().to_owned())
    };
    assert_eq!(parts("ferrule"), ["ferrule", "", ""]);
    assert_eq!(parts("a.example:5000/b/ferrule"), ["a.example:5000/b/ferrule", "", ""]);
    assert_eq!(parts("a.example:5000/ferrule:1@sha256:ab"), ["a.example:5000/ferrule", "1", "sha256:ab"]);
}

#[test]
fn flags_override_files_and_files_the_chart() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("values.yaml");
    fs::write(&file, "image: {tag: a, repository: b}\nagent: {log: debug}\n").unwrap();
    let release = parse(&["--values", file.to_str().unwrap(), "--image", "c:d"]).release().unwrap();
    let text = chart::join(&chart::render(&Workspace::find().unwrap(), &release).unwrap());
    assert!(text.contains("image: \"c:d\"") && text.contains("log = \"debug\""), "{text}");
    let gone = parse(&["--values", "/no/such/file"]).release().unwrap_err().to_string();
    assert!(gone.contains("/no/such/file"), "{gone}");
}

#[test]
fn what_is_not_there_is_named() {
    let no_file = parse(&["--kubeconfig", "/no/such/file"]);
    if tools_have_kubectl() {
        let missing = Kubectl::find(&Workspace::find().unwrap(), &no_file).unwrap_err().to_string();
        assert!(missing.contains("/no/such/file is not a file"), "{missing}");
    }
    let mut other = cluster(GOOD, "", 0);
    other.kubectl.context = Some("three".to_owned());
    let unknown = error(other.kubectl.check(30));
    assert!(unknown.contains("no context \"three\", only: one, two"), "{unknown}");
    let away = error(cluster("echo refused >&2; exit 1", "", 0).kubectl.check(30));
    assert!(away.contains("asking the cluster") && away.contains("refused"), "{away}");
    let old = "echo '{\"minor\":\"29\",\"gitVersion\":\"v1.29.1\"}'";
    let old = error(cluster(old, "", 0).kubectl.check(30));
    assert!(old.contains("v1.29.1") && old.contains("need 1.30"), "{old}");
    cluster(GOOD, "", 0).kubectl.check(30).unwrap();
}

#[test]
fn a_deployment_is_applied_and_followed() {
    let (ws, cluster) = (Workspace::find().unwrap(), cluster(GOOD, "", 0));
    install(&ws, &cluster.kubectl, &parse(&[]).release().unwrap()).unwrap();
    let file = &cluster.kubectl.manifests;
    let expected = [
        format!("--context two apply --server-side --filename {}", file.display()),
        "--context two --namespace ferrule-system rollout status daemonset/ferrule-agent --timeout 9m"
            .to_owned(),
        "--context two --namespace ferrule-system get daemonset/ferrule-agent".to_owned(),
    ];
    assert_eq!(cluster.calls(), expected);
}

#[test]
fn a_roll_out_that_fails_shows_the_pods_and_says_how_to_see_more() {
    let (ws, cluster) = (Workspace::find().unwrap(), cluster(GOOD, "", 1));
    let failed = error(install(&ws, &cluster.kubectl, &parse(&[]).release().unwrap()));
    assert!(failed.contains("kubectl --context two --namespace ferrule-system logs"), "{failed}");
    assert!(cluster.calls().last().unwrap().contains("get pods --selector app.kubernetes.io/name"));
}

/// Pods as the API server shows them: one runs, and one waits for its image.
fn pods(reason: &str, message: &str) -> Value {
    let waiting = json!({ "waiting": { "reason": reason, "message": message } });
    let pod = |name: &str, state: Value| {
        let status = json!({ "image": "a.example/ferrule:9", "state": state });
        json!({ "metadata": { "name": name }, "spec": { "nodeName": format!("{name}-node") },
                "status": { "containerStatuses": [status] } })
    };
    json!({ "items": [pod("one", json!({ "running": {} })), pod("two", waiting), { "metadata": { "name": "new" } }] })
}

#[test]
fn a_roll_out_goes_on_while_a_node_cannot_pull_and_its_error_names_image_node_and_reason() {
    let ws = Workspace::find().unwrap();
    let back_off = pods("ImagePullBackOff", "Back-off pulling image: not found");
    let look = format!("echo '{back_off}'");
    // The roll-out ends as kubectl's does, at its deadline, once the pods have been listed twice.
    let rollout = |code| {
        format!("until [ $(grep -c 'get pods' \"${{0%/*}}/log\") -ge 2 ]; do sleep .05; done; exit {code}")
    };
    let mut cluster = cluster_with(GOOD, "", &rollout(1), &look);
    cluster.kubectl.every = Duration::from_millis(50);
    let failed = error(install(&ws, &cluster.kubectl, &parse(&[]).release().unwrap()));
    for named in [
        "two-node",
        "a.example/ferrule:9",
        "Back-off pulling image: not found",
        "--image",
        "pullSecrets",
        "--timeout",
        "rollout status",
    ] {
        assert!(failed.contains(named), "{named}: {failed}");
    }
    assert!(cluster.calls().last().unwrap().contains("get pods"), "{:?}", cluster.calls());
    // The image appears before the deadline.
    let mut cluster = cluster_with(GOOD, "", &rollout(0), &look);
    cluster.kubectl.every = Duration::from_millis(50);
    install(&ws, &cluster.kubectl, &parse(&[]).release().unwrap()).unwrap();
}

/// The error of a roll-out that ends now.
fn blamed(pulls: &Pulls) -> String {
    let [attempted, why, remedy] = ["waiting", "too late", "look"].map(ToOwned::to_owned);
    pulls.blamed(Failure { attempted, why, remedy }.into()).to_string()
}

#[test]
fn a_failing_pull_is_reported_once_and_so_is_its_end() {
    let mut pulls = Pulls::default();
    assert_eq!(pulls.judge(&pods("ContainerCreating", "")).unwrap(), [""; 0]);
    let began = pulls.judge(&pods("ErrImagePull", "no route to a.example")).unwrap();
    let expected = "the node two-node cannot pull the image a.example/ferrule:9: ErrImagePull: no route to a.example; its \
                    kubelet retries";
    assert_eq!(began, [expected]);
    for again in ["ImagePullBackOff", "ErrImagePull", "ContainerCreating"] {
        assert_eq!(pulls.judge(&pods(again, "")).unwrap(), [""; 0], "{again}");
    }
    let ended = pulls.judge(&pods("CrashLoopBackOff", "")).unwrap();
    assert_eq!(ended, ["the node two-node has the image a.example/ferrule:9"]);
    assert!(blamed(&pulls).starts_with("waiting: failed\n  why:   too late\n"), "{}", blamed(&pulls));
    // A pod that is gone has not pulled.
    pulls.judge(&pods("ErrImageNeverPull", "")).unwrap();
    assert_eq!(pulls.judge(&json!({ "items": [] })).unwrap(), [""; 0]);
    assert!(blamed(&pulls).starts_with("waiting: failed\n  why:   too late\n"), "{}", blamed(&pulls));
}

#[test]
fn the_reason_of_the_last_attempt_is_remembered() {
    let mut pulls = Pulls::default();
    pulls.judge(&pods("ErrImagePull", "no route to a.example")).unwrap();
    // Kubelets before 1.32 name no reason here.
    for _ in 0..2 {
        pulls.judge(&pods("ImagePullBackOff", "Back-off pulling image")).unwrap();
        assert!(blamed(&pulls).contains("no route to a.example"), "{}", blamed(&pulls));
    }
    pulls.judge(&pods("ErrImagePull", "denied")).unwrap();
    pulls.judge(&pods("ImagePullBackOff", "Back-off pulling image: denied")).unwrap();
    let last = blamed(&pulls);
    assert!(
        last.contains("ImagePullBackOff: Back-off pulling image: denied") && last.contains("too late"),
        "{last}"
    );
}

#[test]
fn a_name_that_no_image_can_have_ends_the_roll_out() {
    let failed = error(Pulls::default().judge(&pods("InvalidImageName", "couldn't parse it")).map(drop));
    assert!(failed.contains("couldn't parse it") && failed.contains("two-node"), "{failed}");
}

#[test]
fn an_error_names_few_of_many_nodes() {
    let mut all = pods("ErrImagePull", "denied");
    let list = all["items"].as_array_mut().unwrap();
    let two = list[1].clone();
    for number in 0..9 {
        let mut pod = two.clone();
        pod["metadata"]["name"] = format!("more-{number}").into();
        list.push(pod);
    }
    let mut pulls = Pulls::default();
    assert_eq!(pulls.judge(&all).unwrap().len(), 10);
    let failed = blamed(&pulls);
    assert!(failed.matches("cannot pull").count() == 5 && failed.contains("and 5 more"), "{failed}");
}

#[test]
fn a_cluster_that_does_not_list_its_pods_does_not_end_the_roll_out() {
    for answer in ["exit 1", "echo nonsense"] {
        let cluster = cluster_with(GOOD, "", "exit 0", answer);
        Pulls::default().check(&cluster.kubectl, "ferrule-system").unwrap();
    }
}

#[test]
fn an_uninstallation_cleans_the_nodes_first_and_keeps_everything_if_that_fails() {
    let ws = Workspace::find().unwrap();
    let release = || parse(&[]).release().unwrap();
    let absent = cluster(GOOD, "", 0);
    let why = error(uninstall(&ws, &absent.kubectl, release(), false));
    assert!(why.contains("ferrule-system has no daemonset/ferrule-agent"), "{why}");

    let stuck = cluster(GOOD, "a.example/ferrule:7", 1);
    uninstall(&ws, &stuck.kubectl, release(), false).unwrap_err();
    assert!(!stuck.calls().iter().any(|call| call.contains("delete")), "{:?}", stuck.calls());
    let applied = fs::read_to_string(&stuck.kubectl.manifests).unwrap();
    assert!(applied.contains("image: \"a.example/ferrule:7\"") && applied.contains("--stay"), "{applied}");

    let clean = cluster(GOOD, "a.example/ferrule:7", 0);
    uninstall(&ws, &clean.kubectl, release(), false).unwrap();
    let verbs: Vec<String> = clean
        .calls()
        .iter()
        .map(|call| {
            let found = ["jsonpath", "apply", "rollout", "delete"].into_iter().find(|it| call.contains(it));
            found.unwrap_or(call).to_owned()
        })
        .collect();
    assert_eq!(verbs, ["jsonpath", "apply", "rollout", "delete"]);
    // Fields of another manager (Helm, say) are no reason to refuse.
    assert!(clean.calls()[1].contains("apply --server-side --force-conflicts"), "{:?}", clean.calls());
}

fn tools_have_kubectl() -> bool {
    crate::tools::is_there("kubectl") || Path::new("/usr/bin/kubectl").exists()
}
