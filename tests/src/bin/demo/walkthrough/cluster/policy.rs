//! Network policies: what they cut, what they allow, and how to ask.

use std::{
    io::{ErrorKind, Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use anyhow::{Context as _, ensure};
use ferrule_tests::{
    apiserver::{Resource, objects},
    dist,
    fabric::Fabric,
    pod::{NAMESPACE, Pod},
    sys::{self, wait_until},
};
use serde_json::json;

use super::{Pods, TIMEOUT};
use crate::report::Report;

/// An echo server in a pod, with connections that stay open.
struct Server {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

const PORT: u16 = 5432;
/// How long an echo may take: what is denied gets none.
const ECHO: Duration = Duration::from_millis(500);
const PAUSE: Duration = Duration::from_millis(2);

pub(super) fn enforce(fabric: &Fabric, pods: &Pods, report: &mut Report) -> anyhow::Result<()> {
    report.chapter("Network policies");
    let Pods { web, db, job, .. } = pods;
    println!("   The kubelets report the pods' addresses to the API server.");
    [web, db, job].into_iter().try_for_each(|pod| report_addresses(fabric, pod))?;
    let _server = Server::start(db)?;
    let (mut of_web, mut of_job) = (connect(web, db)?, connect(job, db)?);
    report.fact("without policies, web-0 on node-1 and job-0 on node-3 talk to db-0 on node-2", || {
        ensure!(echoes(&mut of_web) && echoes(&mut of_job));
        Ok(())
    })?;
    allow(fabric, "web-0", report)?;
    report.fact("job-0 gets no new connection", || {
        wait_until("job-0 is not connected", TIMEOUT, || Ok(connect(job, db).is_err()))
    })?;
    report.fact("job-0's live connection is cut, and web-0's goes on", || {
        ensure!(!echoes(&mut of_job), "a denied connection goes on");
        ensure!(echoes(&mut of_web), "an allowed connection was cut");
        Ok(())
    })?;
    ask(fabric, report)?;
    report.fact("job-0 gets web-0's label, and reaches db-0", || {
        label(fabric, job, "web-0")?;
        wait_until("job-0 is connected", TIMEOUT, || Ok(connect(job, db).is_ok()))
    })?;
    report.fact("job-0 gets its own label back, and does not reach db-0", || {
        label(fabric, job, "job-0")?;
        wait_until("job-0 is not connected", TIMEOUT, || Ok(connect(job, db).is_err()))
    })?;
    report.fact("the policies are deleted, and job-0 reaches db-0", || {
        for name in ["nothing", "web"] {
            fabric.api.delete(Resource::NetworkPolicies, NAMESPACE, name)?;
        }
        wait_until("job-0 is connected", TIMEOUT, || Ok(connect(job, db).is_ok()))
    })
}

/// Sets a pod's addresses in the API, as a kubelet does: other nodes know them from there.
fn report_addresses(fabric: &Fabric, pod: &Pod) -> anyhow::Result<()> {
    let all: Vec<_> = pod.addresses.iter().map(|it| json!({ "ip": it.to_string() })).collect();
    let status = json!({ "status": { "podIP": pod.addresses.first(), "podIPs": all } });
    fabric.api.patch(Resource::Pods, NAMESPACE, &pod.name, status)?;
    Ok(())
}

/// Isolates db-0, but for the pods with a label.
fn allow(fabric: &Fabric, app: &str, report: &Report) -> anyhow::Result<()> {
    let subject = json!({ "matchLabels": { "app": "db-0" } });
    let from = json!([{ "podSelector": { "matchLabels": { "app": app } } }]);
    let rule = json!({ "from": from, "ports": [{ "port": PORT }] });
    for (name, spec) in [
        ("web", json!({ "podSelector": subject, "ingress": [rule] })),
        ("nothing", json!({ "podSelector": subject, "policyTypes": ["Ingress"] })),
    ] {
        report.output(&format!("kubectl apply: NetworkPolicy {NAMESPACE}/{name}"), &spec.to_string());
        let policy = objects::network_policy(NAMESPACE, name, spec);
        fabric.api.create(Resource::NetworkPolicies, policy)?;
    }
    Ok(())
}

/// Shows what the agent of the isolated pod's node knows.
fn ask(fabric: &Fabric, report: &mut Report) -> anyhow::Result<()> {
    let [_, two, _] = &fabric.nodes;
    let (db, port) = (format!("{NAMESPACE}/db-0"), PORT.to_string());
    for args in [vec!["policy", "list"], vec!["policy", "explain", &db]] {
        report.output(&format!("ferrulectl {}, on node-2", args.join(" ")), &two.on(|node| node.ctl(&args))?);
    }
    for (from, code) in [("web-0", 0), ("job-0", 1)] {
        let from = format!("{NAMESPACE}/{from}");
        let args = ["policy", "trace", "--from", &from, "--to", &db, "--port", &port];
        let what = format!("ferrulectl names what decides about {from}, and the rows in the kernel agree");
        let shown = report.fact(&what, || {
            let traced = two.on(|_| Ok(Command::new(dist::binary("ferrulectl")?).args(args).output()?))?;
            let shown = String::from_utf8(traced.stdout)?;
            ensure!(traced.status.code() == Some(code) && shown.contains(" same "), "{shown}");
            Ok(shown)
        })?;
        report.output(&format!("ferrulectl {}", args.join(" ")), &shown);
    }
    let drops = report.fact("the record of a dropped packet names the policies", || {
        let drops = two.on(|node| node.ctl(&["drops", "--to", "db-0", "--last", "1"]))?;
        let names = [format!("NetworkPolicy {NAMESPACE}/nothing"), format!("NetworkPolicy {NAMESPACE}/web")];
        ensure!(names.iter().all(|it| drops.contains(it)), "{drops}");
        Ok(drops)
    })?;
    report.output("ferrulectl drops --to db-0 --last 1", &drops);
    Ok(())
}

fn label(fabric: &Fabric, pod: &Pod, app: &str) -> anyhow::Result<()> {
    let labels = json!({ "metadata": { "labels": { "app": app } } });
    fabric.api.patch(Resource::Pods, NAMESPACE, &pod.name, labels)?;
    Ok(())
}

fn connect(from: &Pod, to: &Pod) -> anyhow::Result<TcpStream> {
    let to = SocketAddr::new(*to.addresses.first().context("no address")?, PORT);
    sys::in_netns(from.path(), || {
        let stream = TcpStream::connect_timeout(&to, ECHO)?;
        stream.set_read_timeout(Some(ECHO))?;
        Ok(stream)
    })
}

fn echoes(stream: &mut TcpStream) -> bool {
    stream.write_all(b"echo").is_ok() && stream.read_exact(&mut [0; 4]).is_ok()
}

// === impl Server ===

impl Server {
    fn start(pod: &Pod) -> anyhow::Result<Self> {
        let address = SocketAddr::new(*pod.addresses.first().context("no address")?, PORT);
        let listener = sys::bind_in(pod.path(), address, TcpListener::bind)?;
        listener.set_nonblocking(true)?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        Ok(Self { stop, thread: Some(thread::spawn(move || serve(&listener, &stopped))) })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn serve(listener: &TcpListener, stop: &AtomicBool) {
    let mut open: Vec<TcpStream> = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        if let Ok((stream, _)) = listener.accept()
            && stream.set_nonblocking(true).is_ok()
        {
            open.push(stream);
        }
        open.retain_mut(|stream| {
            let mut room = [0; 64];
            match stream.read(&mut room) {
                Ok(0) => false,
                Ok(len) => stream.write_all(room.get(..len).unwrap_or_default()).is_ok(),
                Err(error) => error.kind() == ErrorKind::WouldBlock,
            }
        });
        thread::sleep(PAUSE);
    }
}
