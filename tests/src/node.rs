//! A node: namespaces of its own, a way out, and an agent.

use std::{
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

use anyhow::{Context as _, bail, ensure};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::Value;

use crate::{cage::Cage, dist, pod::Pod, runtime::Runtime, sys};

/// A node of a cluster of one.
pub struct Node {
    agent: Option<Child>,
    /// Its binary, below `target/dist`, and what it finds in its environment besides ours.
    program: String,
    environment: Vec<(String, String)>,
    args: Vec<String>,
    pods: AtomicU32,
    /// If real runtimes run on it: the agent sees the PIDs that they see.
    cage: Option<Arc<Cage>>,
}

pub const SOCKET: &str = "/run/ferrule/agent.sock";
pub const PINS: &str = "/sys/fs/bpf/ferrule/v1";
/// The node's own addresses, and its neighbour on the uplink.
pub const NODE_V4: &str = "192.0.2.1";
pub const NODE_V6: &str = "2001:db8::1";
/// Smaller than Ethernet's, so that a pod that has it got it from the uplink.
pub const UPLINK_MTU: u32 = 1450;
pub const POD_V4: &str = "10.244.0.0/24";
pub const POD_V6: &str = "fd00:10:244::/64";

const HTTP: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9469);
const HTTP_LIMIT: Duration = Duration::from_secs(2);
const LOG: &str = "/run/ferrule-agent.log";
const START: Duration = Duration::from_secs(20);
const STOP: Duration = Duration::from_secs(20);

/// Makes a node, without an agent, and does something on it. It is gone afterwards, whatever happened.
///
/// # Errors
/// What the closure says, or if the node cannot be made.
pub fn on_node<T: Send>(run: impl FnOnce(&mut Node) -> anyhow::Result<T> + Send) -> anyhow::Result<T> {
    let body = || -> anyhow::Result<T> {
        let mut node = Node::make()?;
        let result = run(&mut node);
        node.end(result)
    };
    // The namespaces are the thread's, and end with it.
    match thread::scope(|scope| scope.spawn(body).join()) {
        Ok(result) => result,
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

/// The same with an agent that gives out addresses of both families.
///
/// # Errors
/// What the closure says, or if node or agent cannot be made.
pub fn with_agent<T: Send>(run: impl FnOnce(&mut Node) -> anyhow::Result<T> + Send) -> anyhow::Result<T> {
    on_node(|node| {
        node.start_agent(&[POD_V4, POD_V6])?;
        run(node)
    })
}

/// The same with an agent that leaves what others change of pods' interfaces, for those who change them to see what follows.
///
/// # Errors
/// What the closure says, or if node or agent cannot be made.
pub fn with_agent_that_leaves_damage<T: Send>(
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
        sys::mount_private("bpf", "/sys/fs/bpf")?;
        fs::create_dir_all("/run/netns")?;
        let outside = Path::new("/run/netns/outside");
        sys::make_netns(outside)?;
        sys::run("ip link set lo up")?;
        sys::run(&format!("ip link add uplink mtu {UPLINK_MTU} type veth peer name eth0 netns outside"))?;
        sys::run(&format!("ip addr add {NODE_V4}/24 dev uplink"))?;
        sys::run(&format!("ip addr add {NODE_V6}/64 dev uplink nodad"))?;
        sys::run("ip link set uplink up")?;
        sys::run("ip -n outside link set eth0 up")?;
        sys::run("ip route add default via 192.0.2.254 dev uplink")?;
        Ok(Self {
            agent: None,
            program: "ferrule-agent".to_owned(),
            environment: Vec::new(),
            args: Vec::new(),
            pods: AtomicU32::new(0),
            cage: None,
        })
    }

    /// From its next start on, the agent is another binary of `target/dist`, with more in its environment.
    pub fn use_agent(&mut self, program: &str, environment: &[(&str, &str)]) {
        self.program = program.to_owned();
        self.environment = environment.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect();
    }

    /// Starts the agent in standalone mode and waits until it serves.
    ///
    /// # Errors
    /// If it does not; its log is in the error.
    pub fn start_agent(&mut self, pod_cidrs: &[&str]) -> anyhow::Result<()> {
        self.args = vec!["--standalone".to_owned()];
        self.args.extend(pod_cidrs.iter().flat_map(|cidr| ["--pod-cidr".to_owned(), (*cidr).to_owned()]));
        self.start_again()
    }

    /// Starts the agent with these flags and waits until it serves.
    ///
    /// # Errors
    /// If it does not; its log is in the error.
    pub fn start_agent_with(&mut self, flags: &[&str]) -> anyhow::Result<()> {
        self.args = flags.iter().map(|flag| (*flag).to_owned()).collect();
        self.start_again()
    }

    /// Starts the agent as it was started before, with more flags.
    ///
    /// # Errors
    /// If it does not serve; its log is in the error.
    pub fn start_again_with(&mut self, flags: &[&str]) -> anyhow::Result<()> {
        self.args.extend(flags.iter().map(|flag| (*flag).to_owned()));
        self.start_again()
    }

    /// Starts the agent as it was started before.
    ///
    /// # Errors
    /// If it does not serve; its log is in the error.
    pub fn start_again(&mut self) -> anyhow::Result<()> {
        self.begin_start()?;
        let agent = self.agent.as_mut().context("it has just been started")?;
        let mut ended = None;
        let answered = sys::wait_until("the agent serves", START, || {
            ended = agent.try_wait()?;
            // The socket is put in its place at once, but an earlier agent's may be there still.
            Ok(ended.is_some() || std::os::unix::net::UnixStream::connect(SOCKET).is_ok())
        });
        if let Some(status) = ended {
            self.agent = None;
            bail!("the agent has ended, {status}:\n{}", log_text());
        }
        answered
    }

    /// Ends the agent by SIGTERM and waits for it.
    ///
    /// # Errors
    /// If it does not end well.
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
            "the agent ended badly, {status:?}:\n{}",
            log_text()
        );
        Ok(())
    }

    /// Waits for an agent that ends by itself.
    ///
    /// # Errors
    /// If it does not.
    pub fn wait_for_agent_to_end(&mut self, limit: Duration) -> anyhow::Result<ExitStatus> {
        let agent = self.agent.as_mut().context("there is no agent to wait for")?;
        let mut status = None;
        sys::wait_until("the agent ends", limit, || {
            status = agent.try_wait()?;
            Ok(status.is_some())
        })?;
        self.agent = None;
        status.context("it has no status")
    }

    /// Ends the agent as a crash would.
    ///
    /// # Errors
    /// If there is none.
    pub fn kill_agent(&mut self) -> anyhow::Result<()> {
        let mut agent = self.agent.take().context("there is no agent to kill")?;
        agent.kill()?;
        agent.wait()?;
        Ok(())
    }

    /// Waits until the agent has ended by itself, as it does at a crash point. There may be none any more.
    ///
    /// # Errors
    /// If it lives on.
    pub fn wait_for_crash(&mut self, limit: Duration) -> anyhow::Result<()> {
        let Some(agent) = &mut self.agent else { return Ok(()) };
        sys::wait_until("the agent dies", limit, || Ok(agent.try_wait()?.is_some()))?;
        self.agent = None;
        Ok(())
    }

    /// Starts the agent as it was started before, and does not wait for it.
    ///
    /// # Errors
    /// If it runs already.
    pub fn begin_start(&mut self) -> anyhow::Result<()> {
        ensure!(self.agent.is_none(), "the agent runs already");
        let log = File::options().create(true).append(true).open(LOG)?;
        let program = dist::binary(&self.program)?;
        let mut command = match &self.cage {
            Some(cage) => cage.command(program)?,
            None => Command::new(program),
        };
        command.args(&self.args).envs(self.environment.iter().cloned());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        self.agent = Some(match &self.cage {
            Some(cage) => cage.spawn(&mut command)?,
            None => sys::die_with_parent(&mut command).spawn().context("cannot start the agent")?,
        });
        Ok(())
    }

    /// Stops the agent for a while.
    ///
    /// # Errors
    /// If there is none.
    pub fn signal_agent(&self, signal: Signal) -> anyhow::Result<()> {
        Ok(kill(pid(self.agent.as_ref().context("there is no agent")?), signal)?)
    }

    /// The agent's process, while there is one.
    pub fn agent_pid(&self) -> Option<u32> {
        self.agent.as_ref().map(Child::id)
    }

    /// What the agent has written to its log.
    pub fn log(&self) -> String {
        log_text()
    }

    /// A pod that is not attached yet: a network namespace, and who it is.
    ///
    /// # Errors
    /// If the namespace cannot be made.
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

    /// Where real runtimes can run, and from now on the agent.
    ///
    /// # Errors
    /// If it cannot be made, or the agent runs already.
    pub fn cage(&mut self) -> anyhow::Result<Arc<Cage>> {
        if let Some(cage) = &self.cage {
            return Ok(Arc::clone(cage));
        }
        ensure!(self.agent.is_none(), "the agent runs already, and outside");
        Ok(Arc::clone(self.cage.insert(Arc::new(Cage::make()?))))
    }

    /// Makes a pod and attaches it.
    ///
    /// # Errors
    /// If either fails.
    pub fn attach(&self, name: &str) -> anyhow::Result<Pod> {
        let mut pod = self.pod(name)?;
        let result = self.runtime()?.add(&pod)?;
        pod.attached(&result)?;
        Ok(pod)
    }

    /// The name of a pod's interface on the host.
    ///
    /// # Errors
    /// If the pod is not attached.
    pub fn host_ifname(&self, pod: &Pod) -> anyhow::Result<String> {
        let attachments = self.attachments()?;
        let of_pod = |it: &&Value| it.get("container_id").and_then(Value::as_str) == Some(&pod.container_id);
        let found = attachments.iter().find(of_pod).and_then(|it| it.get("host_ifname")?.as_str());
        found.map(str::to_owned).with_context(|| format!("{} is not attached", pod.name))
    }

    /// What `ferrulectl attachments` tells.
    ///
    /// # Errors
    /// If the agent does not answer.
    pub fn attachments(&self) -> anyhow::Result<Vec<Value>> {
        Ok(serde_json::from_str(&self.ctl(&["attachments", "-o", "json"])?)?)
    }

    /// What `ferrulectl` prints.
    ///
    /// # Errors
    /// If it fails; what it printed is in the error.
    pub fn ctl(&self, args: &[&str]) -> anyhow::Result<String> {
        sys::output(Command::new(dist::binary("ferrulectl")?).args(args))
    }

    /// What the agent answers to a request by HTTP: code and body.
    ///
    /// # Errors
    /// If it does not answer within two seconds.
    pub fn http(&self, path: &str) -> anyhow::Result<(u16, String)> {
        let mut stream = TcpStream::connect_timeout(&HTTP, HTTP_LIMIT).context("nobody listens for HTTP")?;
        stream.set_read_timeout(Some(HTTP_LIMIT))?;
        write!(stream, "GET {path} HTTP/1.1\r\nHost: agent\r\nConnection: close\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        let (head, body) = answer.split_once("\r\n\r\n").context("an answer without a head")?;
        let code = head.split(' ').nth(1).context("an answer without a code")?.parse()?;
        Ok((code, body.to_owned()))
    }

    /// The value of one metric, with its labels as they are printed; 0 if there is none.
    ///
    /// # Errors
    /// If the agent does not answer.
    pub fn metric(&self, name: &str) -> anyhow::Result<f64> {
        let (_, body) = self.http("/metrics")?;
        let value = body.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        Ok(value.unwrap_or("0").parse()?)
    }

    /// All that can be ours in the kernel of this node: every interface, permanent neighbours, routes of ours, and the
    /// entries of the maps.
    ///
    /// # Errors
    /// If one of the tools fails.
    pub fn kernel_state(&self) -> anyhow::Result<Vec<String>> {
        let mut state = Vec::new();
        // An interface without a stamp could be half of one of ours.
        state.extend(sys::run("ip -o link show")?.lines().map(str::to_owned));
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
            // Interface 0 stands for all that are not ours.
            let ours = entries
                .filter_map(|entry| entry.get("key"))
                .filter(|key| key.get("ifindex") != Some(&0.into()));
            state.extend(ours.map(|key| format!("{map} {key}")));
        }
        // The kernel dumps its hash tables in any order.
        state.sort_unstable();
        Ok(state)
    }

    /// Waits until [`Self::kernel_state`] is what it should be: the reaper takes a moment.
    ///
    /// # Errors
    /// If it does not become so, with what there is instead.
    pub fn wait_for_kernel_state(&self, expected: &[String]) -> anyhow::Result<()> {
        sys::wait_until("the kernel has what it should", Duration::from_secs(5), || {
            let state = self.kernel_state()?;
            ensure!(state == expected, "there is {state:#?}\nand should be {expected:#?}");
            Ok(true)
        })
    }

    fn end<T>(mut self, result: anyhow::Result<T>) -> anyhow::Result<T> {
        let result = result.map_err(|error| error.context(format!("the agent's log:\n{}", log_text())));
        let stopped = self.stop_agent();
        result.and_then(|value| stopped.map(|()| value))
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Some(agent) = &mut self.agent {
            // In a panic: the node goes with its last process.
            let _ = agent.kill();
            let _ = agent.wait();
            eprintln!("the agent's log:\n{}", log_text());
        }
    }
}

/// Where a file of a node is.
pub fn socket() -> PathBuf {
    PathBuf::from(SOCKET)
}

fn log_text() -> String {
    fs::read_to_string(LOG).unwrap_or_default()
}

fn pid(child: &Child) -> Pid {
    Pid::from_raw(child.id().cast_signed())
}
