//! Faulty and hostile callers: the agent refuses or outlives them, keeps serving others, and leaks nothing.

use std::{
    fs,
    io::{ErrorKind, Read as _, Write as _},
    os::unix::{fs::symlink, net::UnixStream, process::CommandExt as _},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, anyhow, ensure};
use ferrule_tests::{
    dist,
    node::{Node, POD_V4, SOCKET, on_node, with_agent},
    pod::Pod,
    runtime::Runtime,
    sys,
};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use serde_json::json;

const INVALID_NETNS: u64 = 8;
const INTERFACE_EXISTS: u64 = 102;
const ROUTE_EXISTS: u64 = 103;
/// The HTTP/2 connection preface (RFC 9113, 3.4) and an empty SETTINGS frame.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

fn refused(runtime: &Runtime, pod: &Pod, code: u64) -> anyhow::Result<()> {
    let error = runtime.call("ADD", pod)?.into_error()?;
    ensure!(error.code == code, "expected code {code}, found {error}");
    Ok(())
}

/// Raises the limit of open files to the hard limit.
fn many_files() -> anyhow::Result<()> {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    Ok(setrlimit(Resource::RLIMIT_NOFILE, hard.min(32 * 1024), hard)?)
}

fn open_files(node: &Node) -> anyhow::Result<usize> {
    Ok(fs::read_dir(format!("/proc/{}/fd", node.agent_pid().context("no agent")?))?.count())
}

/// Peak resident memory since the previous call.
fn peak_kib(node: &Node) -> anyhow::Result<u64> {
    let peak = node.agent_status("VmHWM")?;
    // Resets VmHWM (proc(5)).
    fs::write(format!("/proc/{}/clear_refs", node.agent_pid().context("no agent")?), "5")?;
    Ok(peak)
}

/// Waits until the agent has used no CPU time for two seconds: the full resync that follows lost netlink
/// notifications is over.
fn wait_until_idle(node: &Node) -> anyhow::Result<()> {
    let ticks = || -> anyhow::Result<u64> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", node.agent_pid().context("no agent")?))?;
        // After the name, which ends the parenthesis: `utime` and `stime` are fields 14 and 15 (proc(5)).
        let (_, fields) = stat.rsplit_once(')').context("no name")?;
        let times = fields.split_whitespace().skip(11).take(2).map(str::parse::<u64>);
        Ok(times.collect::<Result<Vec<_>, _>>()?.into_iter().sum())
    };
    let (mut last, mut since) = (ticks()?, Instant::now());
    sys::wait_until("the agent is idle", Duration::from_secs(60), || {
        let now = ticks()?;
        // A tick, of 10 ms, is noise.
        if now > last + 1 {
            (last, since) = (now, Instant::now());
        }
        Ok(since.elapsed() >= Duration::from_secs(2))
    })
}

/// Attaches and removes a pod; returns the time that took.
fn is_served(node: &Node, name: &str) -> anyhow::Result<Duration> {
    let start = Instant::now();
    let pod = node.attach(name).context("ADD during the attack")?;
    let took = start.elapsed();
    node.runtime()?.del(&pod)?;
    Ok(took)
}

#[test]
fn ten_thousand_connections_do_not_block_add() {
    with_agent(|node| {
        many_files()?;
        is_served(node, "before")?;
        let (files, memory) = (open_files(node)?, node.agent_status("VmRSS")?);
        let mut connections = Vec::new();
        let end = Instant::now() + Duration::from_secs(20);
        while connections.len() < 10_000 && Instant::now() < end {
            match UnixStream::connect(SOCKET) {
                Ok(stream) => connections.push(stream),
                // The listen queue is full.
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    thread::sleep(Duration::from_millis(1))
                }
                Err(error) => return Err(error.into()),
            }
            if let (Some(mut last), true) = (connections.last(), connections.len() % 3 == 0) {
                // A third of them send a valid preface. Evicted ones are closed already.
                let _ = last.write_all(PREFACE);
            }
            if connections.len() % 2500 == 0 {
                is_served(node, &format!("at-{}", connections.len()))?;
            }
        }
        ensure!(connections.len() == 10_000, "only {} connections opened in time", connections.len());
        // The agent has accepted connections up to its limit, and closed the others.
        let open = open_files(node)?;
        ensure!((files + 500..files + 2_200).contains(&open), "{open} files are open");
        is_served(node, "among-them")?;
        // The agent's idle timeout closes them.
        sys::wait_until("idle connections are closed", Duration::from_secs(20), || {
            Ok(open_files(node)? <= files + 3)
        })?;
        let grown = node.agent_status("VmRSS")?.saturating_sub(memory);
        ensure!(grown < 64 * 1024, "the agent's memory grew by {grown} KiB");
        drop(connections);
        is_served(node, "after").map(drop)
    })
    .unwrap();
}

#[test]
fn slow_or_malformed_connections_are_closed() {
    with_agent(|node| {
        many_files()?;
        let files = open_files(node)?;
        thread::scope(|scope| -> anyhow::Result<()> {
            let slow = scope.spawn(|| {
                let mut connections: Vec<_> =
                    (0..300).map(|_| UnixStream::connect(SOCKET)).collect::<Result<_, _>>()?;
                // One byte at a time, within the protocol: the preface, then a HEADERS frame that never ends.
                let bytes = PREFACE.iter().copied().chain([0, 0x40, 0, 1, 0, 0, 0, 0, 1]).chain([b'x'; 60]);
                for (number, byte) in bytes.enumerate() {
                    if number == 2 {
                        let open = connections.len();
                        ensure!(open == 300, "{open} connections are open, expected all in the beginning");
                    }
                    connections.retain_mut(|it| it.write_all(&[byte]).is_ok());
                    thread::sleep(Duration::from_millis(120));
                }
                anyhow::Ok(connections.len())
            });
            for number in 0..40_u8 {
                let mut noise = UnixStream::connect(SOCKET)?;
                let bytes: Vec<u8> = (0..64 * 1024).map(|i: u32| i.to_le_bytes()[0] ^ number).collect();
                // The agent may close the connection before the write completes.
                let _ = noise.write_all(&bytes);
            }
            for number in 0..5 {
                is_served(node, &format!("p{number}"))?;
            }
            let left = slow.join().map_err(|_| anyhow!("panicked"))??;
            ensure!(left == 0, "{left} connections without a request are still open");
            Ok(())
        })?;
        sys::wait_until("the connections' descriptors are closed", Duration::from_secs(10), || {
            Ok(open_files(node)? <= files + 3)
        })
    })
    .unwrap();
}

#[test]
fn client_that_never_reads_replies_is_disconnected() {
    with_agent(|node| {
        let files = open_files(node)?;
        // PING frames (RFC 9113, 6.7), each of which requires a reply.
        let ping = [0, 0, 8, 6, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8];
        let flood = ping.repeat(4096);
        let mut peers = (0..8).map(|_| UnixStream::connect(SOCKET)).collect::<Result<Vec<_>, _>>()?;
        for peer in &mut peers {
            peer.set_write_timeout(Some(Duration::from_millis(200)))?;
            peer.write_all(PREFACE)?;
        }
        for peer in &mut peers {
            // The header of the agent's SETTINGS frame: the agent serves this connection.
            peer.set_read_timeout(Some(Duration::from_secs(10)))?;
            peer.read_exact(&mut [0; 9])?;
        }
        for peer in &mut peers {
            for _ in 0..200 {
                if peer.write_all(&flood).is_err() {
                    break;
                }
            }
        }
        is_served(node, "meanwhile")?;
        sys::wait_until("the connections are closed", Duration::from_secs(20), || {
            Ok(open_files(node)? <= files + 3)
        })?;
        // By the agent: the peers are still there.
        for mut peer in peers {
            let error =
                sys::wait_until("the agent has closed the connection", Duration::from_secs(10), || {
                    Ok(peer.write_all(&ping).is_err_and(|error| error.kind() == ErrorKind::BrokenPipe))
                });
            error?;
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn netns_of_another_attachment_is_refused_and_unharmed() {
    with_agent(|node| {
        let runtime = node.runtime()?;
        let victim = node.attach("victim")?;
        let before = node.kernel_state()?;
        let thief = Pod { netns: victim.netns.clone(), ..node.pod("thief")? };
        refused(&runtime, &thief, INTERFACE_EXISTS)?;
        symlink(&victim.netns, "/run/link")?;
        let through_a_link = Pod { netns: PathBuf::from("/run/link"), ..thief.clone() };
        refused(&runtime, &through_a_link, INTERFACE_EXISTS)?;
        let mut beside = node.runtime()?;
        beside.ifname = "eth1".to_owned();
        refused(&beside, &thief, ROUTE_EXISTS)?;
        // The node's own namespace, through a symbolic link.
        symlink(format!("/proc/{}/task/{}/ns/net", std::process::id(), nix::unistd::gettid()), "/run/own")?;
        for path in ["/run/own", "/run/netns/../own", "/proc/self/cwd/run/own"] {
            refused(&runtime, &Pod { netns: PathBuf::from(path), ..thief.clone() }, INVALID_NETNS)?;
        }
        for pod in [&thief, &through_a_link] {
            runtime.del(pod)?;
        }
        ensure!(node.kernel_state()? == before);
        runtime.check(&victim)?;
        victim.ping(ferrule_tests::node::NODE_V4).map(drop)
    })
    .unwrap();
}

#[test]
fn netns_deleted_during_add_leaks_nothing() {
    with_agent(|node| {
        let runtime = node.runtime()?;
        let empty = node.kernel_state()?;
        for round in 0..25_u64 {
            let pod = node.pod(&format!("p{round}"))?;
            thread::scope(|scope| -> anyhow::Result<()> {
                let adding = scope.spawn(|| runtime.call("ADD", &pod));
                thread::sleep(Duration::from_micros(200 * round));
                pod.clone().remove()?;
                // Success and a CNI error are both valid.
                adding.join().map_err(|_| anyhow!("panicked"))?.map(drop)
            })?;
            runtime.del(&pod)?;
        }
        ensure!(node.attachments()?.is_empty());
        node.wait_for_kernel_state(&empty)
    })
    .unwrap();
}

#[test]
fn del_cleans_up_after_a_killed_shim() {
    with_agent(|node| {
        let runtime = node.runtime()?;
        let empty = node.kernel_state()?;
        let start = |verb: &str, pod: &Pod| -> anyhow::Result<std::process::Child> {
            let mut command = Command::new(dist::binary("ferrule")?);
            command.env_clear().envs(runtime.environment(verb, pod)).stdin(Stdio::piped());
            let mut child = sys::die_with_parent(command.stdout(Stdio::null())).spawn()?;
            let config = runtime.config().to_string();
            child.stdin.take().context("no stdin")?.write_all(config.as_bytes())?;
            Ok(child)
        };
        let mut killed = 0;
        for round in 0..60_u64 {
            let pod = node.pod(&format!("p{round}"))?;
            for verb in ["ADD", "DEL"] {
                let mut shim = start(verb, &pod)?;
                thread::sleep(Duration::from_micros(100 * round));
                shim.kill()?;
                // The last ones may have ended by themselves.
                killed += usize::from(shim.wait()?.code().is_none());
            }
            if round % 3 == 0 {
                runtime
                    .add(&pod)
                    .with_context(|| format!("repeated ADD of the same container, round {round}"))?;
                runtime.check(&pod)?;
            }
            runtime.del(&pod)?;
        }
        ensure!(killed >= 10, "only {killed} of 120 shims were killed at work");
        ensure!(node.attachments()?.is_empty(), "{:#?}", node.attachments()?);
        node.wait_for_kernel_state(&empty)
    })
    .unwrap();
}

#[test]
fn oversized_configuration_is_rejected_within_time_and_memory_limits() {
    with_agent(|node| {
        let runtime = node.runtime()?;
        let pod = node.pod("a")?;
        let start = r#"{"cniVersion":"1.1.0","name":"cluster","type":"ferrule","#;
        let mib = 1 << 20;
        // A DEL accepts 16 MiB and decodes no list; the other verbs accept 4 MiB.
        let bombs = |size: usize| {
            [
                format!(r#"{start}"dns":{}"#, "[".repeat(size / 2)),
                format!(r#"{start}"x":{}"#, r#"{"a":"#.repeat(size / 10)),
                format!(r#"{start}"x":[{}1]}}"#, "1,".repeat(size / 2 - 100)),
                format!(r#"{start}"mtu":{}}}"#, "9".repeat(size / 2)),
                format!(r#"{start}"dns":{{"nameservers":[{}""]}}}}"#, r#""","#.repeat(size / 4)),
                format!(r#"{start}"prevResult":{{"ips":[{}{{}}]}}}}"#, "{},".repeat(size / 4)),
                format!(r#"{start}"cni.dev/valid-attachments":[{}{{}}]}}"#, "{},".repeat(size / 4)),
                format!(r#"{start}"runtimeConfig":{{{}"z":1}}}}"#, r#""a":{},"#.repeat(size / 10)),
                format!(r#"{start}"runtimeConfig":{{"portMappings":[{}{{}}]}}}}"#, "{},".repeat(size / 4)),
                format!(r#"{start}"x":"{}"}}"#, r"\u0000".repeat(size / 8)),
                "x".repeat(100 * mib),
            ]
        };
        for (verbs, size) in [(["ADD", "CHECK", "GC"].as_slice(), 4 * mib), (&["DEL"], 16 * mib)] {
            for (bomb, verb) in bombs(size).iter().flat_map(|it| verbs.iter().map(move |verb| (it, *verb))) {
                let begin = bomb.get(..100).unwrap_or_default();
                let mut command = Command::new("prlimit");
                // Limit of private mappings, including the stack.
                command.arg(format!("--data={}", 4 * size)).arg(dist::binary("ferrule")?);
                command.env_clear().envs(runtime.environment(verb, &pod));
                command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
                let mut shim = sys::die_with_parent(&mut command).spawn()?;
                // The shim may exit without reading all input.
                let _ = shim.stdin.take().context("no stdin")?.write_all(bomb.as_bytes());
                let output = shim.wait_with_output()?;
                let text = String::from_utf8_lossy(&output.stdout).into_owned();
                ensure!(output.status.code().is_some(), "{verb} of {begin}: {}", output.status);
                ensure!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
                if !output.status.success() {
                    let error: serde_json::Value =
                        serde_json::from_str(&text).with_context(|| text.clone())?;
                    ensure!(error["code"].is_u64() && text.len() < 2000, "{verb} of {begin}: {text}");
                }
            }
        }
        runtime.del(&pod)?;
        ensure!(node.attachments()?.is_empty());
        is_served(node, "after").map(drop)
    })
    .unwrap();
}

#[test]
fn path_traversal_is_refused_in_every_field() {
    with_agent(|node| {
        let runtime = node.runtime()?;
        let pod = node.pod("a")?;
        let before = node.kernel_state()?;
        let up = "../../../../etc/passwd";
        for (key, value) in [("CNI_CONTAINERID", up), ("CNI_IFNAME", "../x"), ("CNI_NETNS", up)] {
            let mut environment = runtime.environment("ADD", &pod);
            environment.retain(|(name, _)| name != key);
            environment.push((key.to_owned(), value.to_owned()));
            let answer = runtime.call_with(&environment, runtime.config().to_string().as_bytes())?;
            ensure!(answer.into_error()?.code == 4, "{key}");
        }
        for args in ["K8S_POD_NAME", "K8S_POD_NAMESPACE", "K8S_POD_UID"] {
            let mut environment = runtime.environment("ADD", &pod);
            environment.retain(|(name, _)| name != "CNI_ARGS");
            environment.push(("CNI_ARGS".to_owned(), format!("{args}={up}")));
            let answer = runtime.call_with(&environment, runtime.config().to_string().as_bytes())?;
            ensure!(answer.into_error()?.code == 4, "{args}");
        }
        for (key, value) in [("name", up), ("socket", up), ("socket", "/run/ferrule/\n.sock")] {
            let error = runtime.clone().with(key, json!(value)).call("ADD", &pod)?.into_error()?;
            ensure!(error.code == 7, "{key}: {error}");
        }
        ensure!(node.kernel_state()? == before);
        ensure!(!Path::new("/run/ferrule/deferred").exists(), "a deferred DEL was written");
        Ok(())
    })
    .unwrap();
}

#[test]
fn unprivileged_squatter_of_the_lock_name_cannot_prevent_agent_start() {
    on_node(|node| {
        // A directory in which any user may execute files.
        // By a process of its own: a child of another test would have the file open for writing (ETXTBSY).
        sys::run(concat!("cp ", env!("CARGO_BIN_EXE_pod"), " /run/holder"))?;
        let mut holder = Command::new("/run/holder");
        holder.args(["hold", "ferrule-agent"]).uid(65_534).gid(65_534).stdout(Stdio::piped());
        let mut holder = sys::die_with_parent(&mut holder).spawn()?;
        let mut ready = [0];
        holder.stdout.as_mut().context("no output")?.read_exact(&mut ready)?;
        node.start_agent(&[POD_V4])?;
        let log = node.log();
        ensure!(log.contains("uid=65534") && log.contains(&format!("pid={}", holder.id())), "{log}");
        let pod = node.attach("a")?;
        let mut second = Command::new(dist::binary("ferrule-agent")?);
        second.args(["--standalone", "--pod-cidr", "10.9.0.0/24", "--http", "127.0.0.1:9470"]);
        let output = second.output()?;
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(output.status.code() == Some(1) && stderr.contains("another ferrule-agent (pid"), "{stderr}");
        holder.kill()?;
        holder.wait()?;
        node.runtime()?.check(&pod)
    })
    .unwrap();
}

#[test]
fn unprivileged_holder_of_the_lock_name_with_a_full_queue_cannot_prevent_agent_start() {
    on_node(|node| {
        // By a process of its own: a child of another test would have the file open for writing (ETXTBSY).
        sys::run(concat!("cp ", env!("CARGO_BIN_EXE_pod"), " /run/holder"))?;
        let mut holder = Command::new("/run/holder");
        holder.args(["fill", "ferrule-agent"]).uid(65_534).gid(65_534).stdout(Stdio::piped());
        let mut holder = sys::die_with_parent(&mut holder).spawn()?;
        let mut ready = [0];
        holder.stdout.as_mut().context("no output")?.read_exact(&mut ready)?;
        node.start_agent(&[POD_V4])?;
        let log = node.log();
        ensure!(log.contains("does not accept connections"), "{log}");
        let pod = node.attach("a")?;
        holder.kill()?;
        holder.wait()?;
        node.runtime()?.check(&pod)
    })
    .unwrap();
}

#[test]
fn check_memory_does_not_grow_with_foreign_routes_and_neighbours() {
    with_agent(|node| {
        let pod = node.attach("a")?;
        let mut routes = String::new();
        for number in 0..100_000 {
            let [_, a, b, c] = u32::to_be_bytes(number);
            routes += &format!("route add 20.{a}.{b}.{c} dev uplink\n");
        }
        fs::write("/run/routes", routes)?;
        sys::run("ip -batch /run/routes")?;
        let routes = sys::run("ip route show dev uplink")?.lines().filter(|it| it.starts_with("20.")).count();
        ensure!(routes == 100_000, "the node has {routes} foreign routes");
        wait_until_idle(node)?;
        peak_kib(node)?;
        let before = node.agent_status("VmRSS")?;
        for _ in 0..3 {
            node.runtime()?.check(&pod)?;
            // A repeated ADD.
            node.runtime()?.add(&pod)?;
        }
        let peak = peak_kib(node)?;
        ensure!(peak < before + 8 * 1024, "memory: {before} KiB before, peak {peak} KiB");
        Ok(())
    })
    .unwrap();
}
