//! A test node: network and mount namespaces, an uplink and an agent.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{Read as _, Write as _},
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    thread,
    time::Duration,
};

use agent_common::{VifEntry, VifKey, policy::PackedSubject};
use anyhow::{Context as _, bail, ensure};
use aya::maps::{HashMap, Map, MapData};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::Value;

use crate::{dist, pid_namespace::PidNamespace, pod::Pod, runtime::Runtime, sys};

/// A Kubernetes node made of namespaces.
pub struct Node {
    agent: Option<Child>,
    /// The agent binary, below `target/dist`, and its additional environment.
    program: String,
    environment: Vec<(String, String)>,
    args: Vec<String>,
    pods: AtomicU32,
    /// Set if real container runtimes run on the node; the agent shares their PID namespace.
    pid_namespace: Option<Arc<PidNamespace>>,
}

pub const SOCKET: &str = "/run/ferrule/agent.sock";
pub const PINS: &str = "/sys/fs/bpf/ferrule/v6";
/// The node's addresses on the uplink.
pub const NODE_V4: &str = "192.0.2.1";
pub const NODE_V6: &str = "2001:db8::1";
/// Smaller than Ethernet's 1500, so that a pod with this MTU must have taken it from the uplink.
pub const UPLINK_MTU: u32 = 1450;
pub const POD_V4: &str = "10.244.0.0/24";
pub const POD_V6: &str = "fd00:10:244::/64";

const HTTP: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9469);
const HTTP_LIMIT: Duration = Duration::from_secs(2);
const LOG: &str = "/run/ferrule-agent.log";
const START: Duration = Duration::from_secs(20);
const STOP: Duration = Duration::from_secs(20);

/// Lists every metric.
const GUIDE: &str = include_str!("../../docs/monitor.md");

/// Runs `run` on a new node without an agent. The node is removed afterwards, also on failure.
///
/// # Errors
/// The closure's error, or a failure to set up the node.
pub fn on_node<T: Send>(run: impl FnOnce(&mut Node) -> anyhow::Result<T> + Send) -> anyhow::Result<T> {
    let body = || -> anyhow::Result<T> {
        let mut node = Node::make()?;
        let result = run(&mut node);
        node.end(result)
    };
    // The namespaces belong to the thread and end with it.
    match thread::scope(|scope| scope.spawn(body).join()) {
        Ok(result) => result,
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

/// As [`on_node`], with an agent that allocates addresses of both families.
///
/// # Errors
/// The closure's error, or a failure to set up the node.
pub fn with_agent<T: Send>(run: impl FnOnce(&mut Node) -> anyhow::Result<T> + Send) -> anyhow::Result<T> {
    on_node(|node| {
        node.start_agent(&[POD_V4, POD_V6])?;
        run(node)
    })
}

/// As [`with_agent`], with self-healing off, for tests that observe the effect of damage.
///
/// # Errors
/// The closure's error, or a failure to set up the node.
pub fn with_agent_without_healing<T: Send>(
    run: impl FnOnce(&mut Node) -> anyhow::Result<T> + Send,
) -> anyhow::Result<T> {
    on_node(|node| {
        let flags = ["--standalone", "--pod-cidr", POD_V4, "--pod-cidr", POD_V6, "--self-heal", "off"];
        node.start_agent_with(&flags)?;
        run(node)
    })
}

// === impl Node ===

impl Node {
    fn make() -> anyhow::Result<Self> {
        sys::leave_host()?;
        sys::mount_private("tmpfs", "/run")?;
        fs::create_dir_all("/run/netns")?;
        let node = Self::without_uplink(0)?;
        let outside = Path::new("/run/netns/outside");
        sys::make_netns(outside)?;
        sys::run(&format!("ip link add uplink mtu {UPLINK_MTU} type veth peer name eth0 netns outside"))?;
        sys::run(&format!("ip addr add {NODE_V4}/24 dev uplink"))?;
        sys::run(&format!("ip addr add {NODE_V6}/64 dev uplink nodad"))?;
        sys::run("ip link set uplink up")?;
        sys::run("ip -n outside link set eth0 up")?;
        sys::run("ip route add default via 192.0.2.254 dev uplink")?;
        Ok(node)
    }

    /// A node in the current namespaces, whose `/run` is its own. Names, UIDs and containers of pods are
    /// numbered from `first_pod`.
    pub(crate) fn without_uplink(first_pod: u32) -> anyhow::Result<Self> {
        sys::mount_private("bpf", "/sys/fs/bpf")?;
        sys::run("ip link set lo up")?;
        Ok(Self {
            agent: None,
            program: "ferrule-agent".to_owned(),
            environment: Vec::new(),
            args: Vec::new(),
            pods: AtomicU32::new(first_pod),
            pid_namespace: None,
        })
    }

    /// Selects another agent binary of `target/dist` and additional environment, from the next start on.
    pub fn use_agent(&mut self, program: &str, environment: &[(&str, &str)]) {
        self.program = program.to_owned();
        self.environment = environment.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect();
    }

    /// Starts the agent in standalone mode and waits until it serves.
    ///
    /// # Errors
    /// If the agent does not serve; the error carries its log.
    pub fn start_agent(&mut self, pod_cidrs: &[&str]) -> anyhow::Result<()> {
        self.args = vec!["--standalone".to_owned()];
        self.args.extend(pod_cidrs.iter().flat_map(|cidr| ["--pod-cidr".to_owned(), (*cidr).to_owned()]));
        self.start_again()
    }

    /// Sets the agent's flags, from the next start on.
    pub fn use_flags(&mut self, flags: &[&str]) {
        self.args = flags.iter().map(|flag| (*flag).to_owned()).collect();
    }

    /// Starts the agent with these flags and waits until it serves.
    ///
    /// # Errors
    /// If the agent does not serve; the error carries its log.
    pub fn start_agent_with(&mut self, flags: &[&str]) -> anyhow::Result<()> {
        self.use_flags(flags);
        self.start_again()
    }

    /// Starts the agent with its previous flags and more, and waits until it serves.
    ///
    /// # Errors
    /// If the agent does not serve; the error carries its log.
    pub fn start_again_with(&mut self, flags: &[&str]) -> anyhow::Result<()> {
        self.args.extend(flags.iter().map(|flag| (*flag).to_owned()));
        self.start_again()
    }

    /// Starts the agent with its previous flags and waits until it serves.
    ///
    /// # Errors
    /// If the agent does not serve; the error carries its log.
    pub fn start_again(&mut self) -> anyhow::Result<()> {
        self.begin_start()?;
        self.wait_until_it_serves()
    }

    /// Waits until the agent serves that was started last.
    ///
    /// # Errors
    /// If the agent does not serve; the error carries its log.
    pub fn wait_until_it_serves(&mut self) -> anyhow::Result<()> {
        let agent = self.agent.as_mut().context("no agent process")?;
        let mut ended = None;
        let answered = sys::wait_until("the agent serves", START, || {
            ended = agent.try_wait()?;
            // The socket file may be a previous agent's, and the agent listens before it is ready to serve.
            Ok(ended.is_some() || http("/readyz?verbose")?.1.contains("[+] socket "))
        });
        if let Some(status) = ended {
            self.agent = None;
            bail!("the agent exited, {status}:\n{}", log_text());
        }
        answered
    }

    /// Stops the agent by SIGTERM and waits for its exit.
    ///
    /// # Errors
    /// If the agent does not exit with code 0.
    pub fn stop_agent(&mut self) -> anyhow::Result<()> {
        let Some(mut agent) = self.agent.take() else { return Ok(()) };
        kill(pid(&agent), Signal::SIGTERM)?;
        let mut status = None;
        let stopped = sys::wait_until("the agent stops", STOP, || {
            status = agent.try_wait()?;
            Ok(status.is_some())
        });
        if stopped.is_err() {
            agent.kill()?;
            agent.wait()?;
        }
        stopped?;
        ensure!(
            status.is_some_and(|status| status.success()),
            "the agent exited with an error, {status:?}:\n{}",
            log_text()
        );
        Ok(())
    }

    /// Waits until the agent exits by itself.
    ///
    /// # Errors
    /// If the agent does not exit within `limit`.
    pub fn wait_for_agent_to_end(&mut self, limit: Duration) -> anyhow::Result<ExitStatus> {
        let agent = self.agent.as_mut().context("no agent is running")?;
        let mut status = None;
        sys::wait_until("the agent exits", limit, || {
            status = agent.try_wait()?;
            Ok(status.is_some())
        })?;
        self.agent = None;
        status.context("the agent has no exit status")
    }

    /// Kills the agent by SIGKILL.
    ///
    /// # Errors
    /// If no agent is running.
    pub fn kill_agent(&mut self) -> anyhow::Result<()> {
        let mut agent = self.agent.take().context("no agent is running")?;
        agent.kill()?;
        agent.wait()?;
        Ok(())
    }

    /// Waits until the agent has died by itself, as at a crash point. Succeeds if no agent is running.
    ///
    /// # Errors
    /// If the agent stays alive.
    pub fn wait_for_crash(&mut self, limit: Duration) -> anyhow::Result<()> {
        let Some(agent) = &mut self.agent else { return Ok(()) };
        sys::wait_until("the agent dies", limit, || Ok(agent.try_wait()?.is_some()))?;
        self.agent = None;
        Ok(())
    }

    /// Starts the agent with its previous flags, without waiting for it to serve.
    ///
    /// # Errors
    /// If an agent is already running.
    pub fn begin_start(&mut self) -> anyhow::Result<()> {
        ensure!(self.agent.is_none(), "the agent is already running");
        let log = File::options().create(true).append(true).open(LOG)?;
        let program = dist::binary(&self.program)?;
        let mut command = match &self.pid_namespace {
            Some(pid_namespace) => pid_namespace.command(program)?,
            None => Command::new(program),
        };
        // The tests read the log as people do.
        command.env("FERRULE_LOG_FORMAT", "text");
        command.args(&self.args).envs(self.environment.iter().cloned());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        self.agent = Some(match &self.pid_namespace {
            Some(pid_namespace) => pid_namespace.spawn(&mut command)?,
            None => sys::die_with_parent(&mut command).spawn().context("cannot start the agent")?,
        });
        Ok(())
    }

    /// Sends a signal to the agent.
    ///
    /// # Errors
    /// If no agent is running.
    pub fn signal_agent(&self, signal: Signal) -> anyhow::Result<()> {
        Ok(kill(pid(self.agent.as_ref().context("no agent is running")?), signal)?)
    }

    /// The agent's PID, while it runs.
    pub fn agent_pid(&self) -> Option<u32> {
        self.agent.as_ref().map(Child::id)
    }

    /// A number in the agent's `/proc/PID/status`; memory is in KiB.
    ///
    /// # Errors
    /// If no agent is running or the field is missing.
    pub fn agent_status(&self, field: &str) -> anyhow::Result<u64> {
        let pid = self.agent_pid().context("no agent is running")?;
        let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
        let value = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        let value = value.with_context(|| format!("no {field} in /proc/{pid}/status"))?;
        Ok(value.trim().trim_end_matches(" kB").parse()?)
    }

    /// The agent's log.
    pub fn log(&self) -> String {
        log_text()
    }

    /// Creates a pod's network namespace and identity. The pod is not attached.
    ///
    /// # Errors
    /// If the namespace cannot be created.
    pub fn pod(&self, name: &str) -> anyhow::Result<Pod> {
        let number = self.pods.fetch_add(1, Ordering::Relaxed);
        Pod::make(name, number)
    }

    /// A container runtime on this node.
    ///
    /// # Errors
    /// If the shim has not been built.
    pub fn runtime(&self) -> anyhow::Result<Runtime> {
        Runtime::new()
    }

    /// The PID namespace for real runtimes and, from now on, the agent. Created on first use.
    ///
    /// # Errors
    /// If creation fails, or an agent runs outside the namespace.
    pub fn pid_namespace(&mut self) -> anyhow::Result<Arc<PidNamespace>> {
        if let Some(pid_namespace) = &self.pid_namespace {
            return Ok(Arc::clone(pid_namespace));
        }
        ensure!(self.agent.is_none(), "the agent is already running, outside the PID namespace");
        Ok(Arc::clone(self.pid_namespace.insert(Arc::new(PidNamespace::make()?))))
    }

    /// Creates a pod and attaches it.
    ///
    /// # Errors
    /// If either step fails.
    pub fn attach(&self, name: &str) -> anyhow::Result<Pod> {
        let mut pod = self.pod(name)?;
        let result = self.runtime()?.add(&pod)?;
        pod.attached(&result)?;
        Ok(pod)
    }

    /// The name of a pod's host interface.
    ///
    /// # Errors
    /// If the pod is not attached.
    pub fn host_ifname(&self, pod: &Pod) -> anyhow::Result<String> {
        let attachments = self.attachments()?;
        let of_pod = |it: &&Value| it.get("container_id").and_then(Value::as_str) == Some(&pod.container_id);
        let found = attachments.iter().find(of_pod).and_then(|it| it.get("host_ifname")?.as_str());
        found.map(str::to_owned).with_context(|| format!("{} is not attached", pod.name))
    }

    /// The index of a pod's host interface.
    ///
    /// # Errors
    /// If the pod is not attached.
    pub fn host_ifindex(&self, pod: &Pod) -> anyhow::Result<u32> {
        let attachments = self.attachments()?;
        let of_pod = |it: &&Value| it.get("container_id").and_then(Value::as_str) == Some(&pod.container_id);
        let found = attachments.iter().find(of_pod).and_then(|it| it.get("host_ifindex")?.as_u64());
        Ok(u32::try_from(found.with_context(|| format!("{} is not attached", pod.name))?)?)
    }

    /// The output of `ferrulectl attachments`.
    ///
    /// # Errors
    /// If the agent does not answer.
    pub fn attachments(&self) -> anyhow::Result<Vec<Value>> {
        Ok(serde_json::from_str(&self.ctl(&["attachments", "-o", "json"])?)?)
    }

    /// Runs `ferrulectl` and returns its standard output.
    ///
    /// # Errors
    /// If `ferrulectl` fails; the error carries its output.
    pub fn ctl(&self, args: &[&str]) -> anyhow::Result<String> {
        sys::output(Command::new(dist::binary("ferrulectl")?).args(args))
    }

    /// Sends an HTTP request to the agent and returns status code and body.
    ///
    /// # Errors
    /// If the agent does not answer within two seconds.
    pub fn http(&self, path: &str) -> anyhow::Result<(u16, String)> {
        http(path)
    }

    /// The value of a metric, named with its printed labels.
    ///
    /// # Errors
    /// If the agent does not answer, or the series does not exist.
    pub fn metric(&self, name: &str) -> anyhow::Result<f64> {
        self.series(name)?.with_context(|| format!("the agent has no metric {name}"))
    }

    /// The value of a counter with labels, whose series appear with the first count: 0 before.
    ///
    /// # Errors
    /// If the agent does not answer, or `docs/monitor.md` has no such counter with these labels.
    pub fn count(&self, name: &str) -> anyhow::Result<f64> {
        let (family, labels) = name.split_once('{').with_context(|| format!("{name} has no labels"))?;
        let keys: Vec<_> = labels.split(',').filter_map(|label| Some(label.split_once('=')?.0)).collect();
        // A histogram's.
        let family = family.trim_end_matches("_count");
        let documented = format!("`{family}{{{}}}`", keys.join(","));
        ensure!(GUIDE.contains(&documented), "docs/monitor.md has no counter {documented}");
        Ok(self.series(name)?.unwrap_or_default())
    }

    fn series(&self, name: &str) -> anyhow::Result<Option<f64>> {
        let (_, body) = self.http("/metrics")?;
        let value = body.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        Ok(value.map(str::parse).transpose()?)
    }

    /// Packets dropped at interfaces without an entry in `VIFS`, all together.
    ///
    /// # Errors
    /// If the map cannot be read.
    pub fn unknown_interface_drops(&self) -> anyhow::Result<u64> {
        let dump = sys::run(&format!("bpftool -j map lookup pinned {PINS}/VIF_COUNTERS key 0 0 0 0"))?;
        let dump: Value = serde_json::from_str(&dump)?;
        let of_cpus = dump.pointer("/formatted/values").and_then(Value::as_array).context("no values")?;
        let drops = |it: &Value| {
            let of = |direction| it.pointer(&format!("/value/{direction}/no_vif")).and_then(Value::as_u64);
            Some(of("egress")? + of("ingress")?)
        };
        of_cpus.iter().map(|it| drops(it).with_context(|| format!("no drops in {it}"))).sum()
    }

    /// Packets of a pod that were dropped in both directions, by reason; without the reasons that did not
    /// occur.
    ///
    /// # Errors
    /// If the pod is not attached.
    pub fn drops(&self, pod: &Pod) -> anyhow::Result<BTreeMap<String, u64>> {
        let attachments = self.attachments()?;
        let of_pod = |it: &&Value| it.get("container_id").and_then(Value::as_str) == Some(&pod.container_id);
        let counters = attachments.iter().find(of_pod).and_then(|it| it.pointer("/counters"));
        let mut counted = BTreeMap::new();
        for direction in ["egress_drops", "ingress_drops"] {
            let drops = counters.and_then(|it| it.get(direction)).and_then(Value::as_object);
            for (reason, count) in drops.with_context(|| format!("{} has no counters", pod.name))? {
                *counted.entry(reason.clone()).or_default() += count.as_u64().unwrap_or_default();
            }
        }
        Ok(counted)
    }

    /// Everything on this node that the agent could leak: all interfaces, permanent neighbours, routes of
    /// proto 70 and map entries.
    ///
    /// # Errors
    /// If one of the tools fails.
    pub fn kernel_state(&self) -> anyhow::Result<Vec<String>> {
        let mut state = Vec::new();
        // An interface without a stamp could be a half-created one of ours. Without the operational state,
        // which the kernel updates up to a second late (`linkwatch_event`); the flags UP and LOWER_UP stay.
        let without_operstate = |line: &str| {
            let line = line.replace("NO-CARRIER,", "");
            ["UP", "DOWN", "UNKNOWN"]
                .iter()
                .fold(line, |line, it| line.replace(&format!(" state {it} "), " "))
        };
        state.extend(sys::run("ip -o link show")?.lines().map(without_operstate));
        state.extend(sys::run("ip neigh show nud permanent")?.lines().map(str::to_owned));
        for family in ["-4", "-6"] {
            let routes = sys::run(&format!("ip {family} route show proto 70"))?;
            state.extend(routes.lines().map(str::to_owned));
        }
        for map in ["VIFS", "ENDPOINTS", "VIF_COUNTERS"] {
            let path = format!("{PINS}/{map}");
            if !Path::new(&path).exists() {
                continue;
            }
            let dump: Vec<Value> =
                serde_json::from_str(&sys::run(&format!("bpftool --json map dump pinned {path}"))?)?;
            let entries = dump.iter().map(|entry| entry.get("formatted").unwrap_or(entry));
            // Interface 0 counts packets of interfaces without an entry.
            let ours = entries
                .filter_map(|entry| entry.get("key"))
                .filter(|key| key.get("ifindex") != Some(&0.into()));
            state.extend(ours.map(|key| format!("{map} {key}")));
        }
        // The kernel dumps its hash tables in any order.
        state.sort_unstable();
        Ok(state)
    }

    /// Waits until [`Self::kernel_state`] equals `expected`; the reaper deletes asynchronously.
    ///
    /// # Errors
    /// If the states still differ; the error carries both.
    pub fn wait_for_kernel_state(&self, expected: &[String]) -> anyhow::Result<()> {
        sys::wait_until("the kernel state is as expected", Duration::from_secs(10), || {
            let state = self.kernel_state()?;
            ensure!(state == expected, "found {state:#?}\nexpected {expected:#?}");
            Ok(true)
        })
    }

    pub(crate) fn end<T>(mut self, result: anyhow::Result<T>) -> anyhow::Result<T> {
        let result = result.map_err(|error| error.context(format!("the agent's log:\n{}", log_text())));
        let stopped = self.stop_agent();
        result.and_then(|value| stopped.map(|()| value))
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Some(agent) = &mut self.agent {
            // On panic: the node ends with its last process.
            let _ = agent.kill();
            let _ = agent.wait();
            eprintln!("the agent's log:\n{}", log_text());
        }
    }
}

/// What judges a pod, as the pinned maps say.
///
/// # Errors
/// If the interface has no row in `VIFS`.
pub fn subject(ifindex: u32) -> anyhow::Result<PackedSubject> {
    let vif: VifEntry = vifs()?.get(&VifKey { ifindex }, 0)?;
    Ok(vif.subject)
}

/// Changes what judges a pod, behind the agent's back.
///
/// # Errors
/// As for [`subject`].
pub fn set_subject(ifindex: u32, subject: PackedSubject) -> anyhow::Result<()> {
    let (key, mut vifs) = (VifKey { ifindex }, vifs()?);
    let vif: VifEntry = vifs.get(&key, 0)?;
    Ok(vifs.insert(&key, &VifEntry { subject, ..vif }, 0)?)
}

fn vifs() -> anyhow::Result<HashMap<MapData, VifKey, VifEntry>> {
    Ok(Map::HashMap(MapData::from_pin(format!("{PINS}/VIFS"))?).try_into()?)
}

/// The bpftool command that deletes a map entry.
pub fn map_delete(map: &str, key: &[u8]) -> String {
    let key: Vec<_> = key.iter().map(u8::to_string).collect();
    format!("bpftool map delete pinned {PINS}/{map} key {}", key.join(" "))
}

/// The connections to the agent's socket that wait for the agent or are open.
///
/// # Errors
/// If `/proc` is not mounted.
pub fn connections() -> anyhow::Result<usize> {
    // The kernel keeps the name under which the agent bound the socket before the rename; the accepting sides
    // have the listener's.
    let sockets = fs::read_to_string("/proc/thread-self/net/unix")?;
    Ok(sockets.lines().filter(|line| line.ends_with("/run/ferrule/agent.new")).count().saturating_sub(1))
}

/// The agent's socket.
pub fn socket() -> PathBuf {
    PathBuf::from(SOCKET)
}

/// Sends an HTTP request to the agent and returns status code and body.
fn http(path: &str) -> anyhow::Result<(u16, String)> {
    let mut stream =
        TcpStream::connect_timeout(&HTTP, HTTP_LIMIT).context("cannot connect to the agent's HTTP port")?;
    stream.set_read_timeout(Some(HTTP_LIMIT))?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: agent\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").context("the HTTP response has no header")?;
    let code = head.split(' ').nth(1).context("the HTTP response has no status code")?.parse()?;
    Ok((code, body.to_owned()))
}

fn log_text() -> String {
    fs::read_to_string(LOG).unwrap_or_default()
}

fn pid(child: &Child) -> Pid {
    Pid::from_raw(child.id().cast_signed())
}
