//! What was dropped and why, and which flows there are: `ferrulectl drops` and `flows`, as users run them.

use std::{
    io::{BufRead as _, BufReader, Read as _},
    net::{IpAddr, SocketAddr, UdpSocket},
    process::{Child, Command, Stdio},
    sync::mpsc::{Receiver, channel},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use ferrule_tests::{
    dist,
    node::{Node, with_agent},
    pod::Pod,
    sys,
    traffic::{self, echo},
};
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(20);
/// An address of no pod.
const FORGED: &str = "10.244.0.77";

/// A running `ferrulectl`, and the records that it prints.
struct Following {
    child: Child,
    records: Receiver<Value>,
}

// === impl Following ===

impl Following {
    fn start(args: &[&str]) -> anyhow::Result<Self> {
        let mut command = Command::new(dist::binary("ferrulectl")?);
        command.args(args).args(["--follow", "-o", "json"]);
        let mut child =
            sys::die_with_parent(&mut command).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        let lines = BufReader::new(child.stdout.take().context("no output")?).lines();
        let (sender, records) = channel();
        thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let record = serde_json::from_str(&line).unwrap_or(Value::String(line));
                if sender.send(record).is_err() {
                    break;
                }
            }
        });
        Ok(Self { child, records })
    }

    /// The next record that matches. `cause` is repeated meanwhile.
    fn expect(
        &self,
        what: &str,
        cause: impl Fn() -> anyhow::Result<()>,
        matches: impl Fn(&Value) -> bool,
    ) -> anyhow::Result<Value> {
        let mut found = None;
        sys::wait_until(what, LIMIT, || {
            cause()?;
            found = self.records.try_iter().find(&matches);
            Ok(found.is_some())
        })?;
        found.with_context(|| format!("no record of {what}"))
    }

    /// Waits for the end; returns exit code and standard error.
    fn end(mut self) -> anyhow::Result<(Option<i32>, String)> {
        let mut errors = String::new();
        let code = self.child.wait()?.code();
        self.child.stderr.take().context("no errors")?.read_to_string(&mut errors)?;
        Ok((code, errors))
    }
}

impl Drop for Following {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn text<'a>(record: &'a Value, pointer: &str) -> &'a str {
    record.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

fn number(record: &Value, pointer: &str) -> u64 {
    let value = record.pointer(pointer);
    // 64 bits are a string in the JSON of Protocol Buffers.
    let number = value.and_then(|it| it.as_u64().or_else(|| it.as_str()?.parse().ok()));
    number.unwrap_or_default()
}

fn is(record: &Value, reason: &str) -> bool {
    text(record, "/flow/ferrule/reason") == reason
}

/// The first address of a pod: IPv4.
fn address(pod: &Pod) -> anyhow::Result<IpAddr> {
    pod.addresses.first().copied().context("no address")
}

/// Sends a ping with an address that is not the pod's.
fn forge(from: &Pod, to: IpAddr) -> anyhow::Result<()> {
    ensure!(
        from.run(&format!("ping -n -c 1 -W 1 -I {FORGED} {to}")).is_err(),
        "a forged packet was answered"
    );
    Ok(())
}

#[test]
fn a_forged_packet_is_shown_with_the_pods_at_both_ends_and_the_reason() {
    with_agent(|node| {
        let (a, b) = (node.attach("a")?, node.attach("b")?);
        let (of_a, to) = (address(&a)?, address(&b)?);
        a.run(&format!("ip addr add {FORGED}/32 dev eth0"))?;
        let following = Following::start(&["drops", "--pod", "default/a"])?;
        let found = following.expect("the forged packet", || forge(&a, to), |it| is(it, "spoofed_ipv4"))?;
        ensure!(text(&found, "/flow/IP/source") == FORGED, "{found}");
        ensure!(text(&found, "/flow/IP/destination") == to.to_string(), "{found}");
        for (end, name, own) in [("source", "a", of_a), ("destination", "b", to)] {
            let of_end = |field: &str| format!("/flow/{end}/{field}");
            ensure!(text(&found, &of_end("namespace")) == "default", "{found}");
            ensure!(text(&found, &of_end("pod_name")) == name, "{found}");
            ensure!(text(&found, &of_end("addresses/0")) == own.to_string(), "{found}");
        }
        ensure!(text(&found, "/flow/verdict") == "DROPPED", "{found}");
        ensure!(text(&found, "/flow/drop_reason_desc") == "INVALID_SOURCE_IP", "{found}");
        ensure!(text(&found, "/flow/traffic_direction") == "EGRESS", "{found}");
        ensure!(number(&found, "/flow/l4/ICMPv4/type") == 8, "{found}");
        ensure!(text(&found, "/flow/interface/name") == node.host_ifname(&a)?, "{found}");
        ensure!(number(&found, "/flow/interface/index") == u64::from(node.host_ifindex(&a)?), "{found}");
        let time: jiff::Timestamp = text(&found, "/flow/time").parse().with_context(|| found.to_string())?;
        let age = jiff::Timestamp::now().duration_since(time);
        ensure!((0..60).contains(&age.as_secs()), "the record is {age} old: {found}");

        // The pod's kernel reports multicast groups meanwhile, which `--to` does not hide.
        let table = node.ctl(&["drops", "--to", "default/b", "--last", "9"])?;
        ensure!(table.contains(&format!("default/a ({FORGED})  default/b")), "{table}");
        ensure!(table.contains("ICMPv4 8/0") && table.contains("dropped spoofed_ipv4"), "{table}");
        ensure!(node.ctl(&["drops", "--pod", "default/c", "-o", "json"])?.is_empty(), "no such pod");

        let direction = r#"direction="egress",reason="spoofed_ipv4""#;
        let name =
            format!(r#"ferrule_pod_drops_total{{namespace="default",pod="a",interface="eth0",{direction}}}"#);
        ensure!(node.count(&name)? > 0.0, "{name}");
        ensure!(node.count(r#"ferrule_events_total{kind="drop"}"#)? > 0.0);
        Ok(())
    })
    .unwrap();
}

#[test]
fn packets_to_multicast_groups_are_shown_on_demand_only() {
    with_agent(|node| {
        let pod = node.attach("a")?;
        let drops = |args: &[&str]| node.ctl(&[&["drops", "--pod", "default/a"], args].concat());
        sys::wait_until("a report of the pod's groups", LIMIT, || {
            let _ = pod.run("ping -n -c 1 -W 1 ff02::1%eth0");
            Ok(drops(&["--multicast"])?.contains("dropped multicast"))
        })?;
        let shown = drops(&["-o", "json"])?;
        ensure!(shown.is_empty(), "{shown}");
        let to_group = drops(&["--to", "ff02::/16"])?;
        ensure!(to_group.contains("dropped multicast"), "{to_group}");
        let explained = node.ctl(&["explain", "a"])?;
        ensure!(explained.contains("last drops: none recorded"), "{explained}");
        wait_for_record(node, &pod)?;
        let shown = drops(&[])?;
        ensure!(shown.contains("spoofed_ipv4") && !shown.contains("multicast"), "{shown}");
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_record_that_follows_long_after_the_first_is_shown_and_the_agent_stops_at_once() {
    with_agent(|node| {
        let (a, b) = (node.attach("a")?, node.attach("b")?);
        let to = address(&b)?;
        a.run(&format!("ip addr add {FORGED}/32 dev eth0"))?;
        let following = Following::start(&["drops", "--pod", "default/a"])?;
        let one = |what: &str| following.expect(what, || forge(&a, to), |it| is(it, "spoofed_ipv4"));
        one("the first packet")?;
        // Longer than a connection takes new calls.
        thread::sleep(Duration::from_secs(12));
        one("the later packet")?;
        let start = Instant::now();
        node.stop_agent()?;
        ensure!(start.elapsed() < Duration::from_secs(10), "the agent stopped after {:?}", start.elapsed());
        let (code, errors) = following.end()?;
        ensure!(code == Some(1) && errors.contains("the agent has stopped"), "{code:?}: {errors}");
        Ok(())
    })
    .unwrap();
}

/// Connects once to port 8080 of a pod, with a request and its echo.
fn connect(from: &Pod, to: &Pod) -> anyhow::Result<()> {
    let at = SocketAddr::new(address(to)?, 8080);
    echo(to.path(), at, || sys::in_netns(from.path(), || traffic::connect(at)))
}

fn flows(node: &Node) -> anyhow::Result<Vec<Value>> {
    let args = ["flows", "--verdict", "forwarded", "--port", "8080", "--since", "1m", "-o", "json"];
    node.ctl(&args)?.lines().map(|line| Ok(serde_json::from_str(line)?)).collect()
}

/// Waits for the record of a later packet: records keep their order.
fn wait_for_record(node: &Node, pod: &Pod) -> anyhow::Result<()> {
    let args = ["drops", "--pod", &format!("default/{}", pod.name), "--since", "1m", "-o", "json"];
    let count = || anyhow::Ok(node.ctl(&args)?.matches("spoofed_ipv4").count());
    let before = count()?;
    pod.run(&format!("ip addr add {FORGED}/32 dev eth0"))?;
    forge(pod, "192.0.2.9".parse()?)?;
    pod.run(&format!("ip addr del {FORGED}/32 dev eth0"))?;
    sys::wait_until("the record of a forged packet", LIMIT, || Ok(count()? > before))
}

#[test]
fn flows_are_recorded_from_first_to_last_packet_while_sampling_is_on() {
    with_agent(|node| {
        let (a, b) = (node.attach("a")?, node.attach("b")?);
        connect(&a, &b)?;
        wait_for_record(node, &a)?;
        ensure!(flows(node)?.is_empty(), "flows are recorded by default");
        let set = node.ctl(&["flows", "--sampling", "1"])?;
        ensure!(set.contains("every flow is recorded (before: no flow is recorded)"), "{set}");
        connect(&a, &b)?;
        let state = |it: &Value| text(it, "/flow/ferrule/state").to_owned();
        sys::wait_until("the flow's end", LIMIT, || {
            Ok(flows(node)?.iter().any(|it| state(it) == "FLOW_STATE_CLOSED"))
        })?;
        let all = flows(node)?;
        let first = all.first().context("no flow")?;
        let last = all.last().context("no flow")?;
        ensure!(state(first) == "FLOW_STATE_NEW", "{first}");
        for record in [first, last] {
            ensure!(text(record, "/flow/source/pod_name") == "a", "{record}");
            ensure!(text(record, "/flow/destination/pod_name") == "b", "{record}");
            ensure!(number(record, "/flow/l4/TCP/destination_port") == 8080, "{record}");
        }
        // SYN, ACK, data and FIN at least; SYN-ACK, data and FIN.
        ensure!(number(last, "/flow/ferrule/forward/packets") >= 3, "{last}");
        ensure!(number(last, "/flow/ferrule/reverse/packets") >= 2, "{last}");
        ensure!(number(last, "/flow/ferrule/reverse/bytes") > 100, "{last}");
        node.ctl(&["flows", "--sampling", "off"])?;
        let before = flows(node)?.len();
        connect(&a, &b)?;
        wait_for_record(node, &a)?;
        ensure!(flows(node)?.len() == before, "flows are recorded after --sampling off");
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_udp_flow_that_ends_has_a_last_record_with_all_its_packets() {
    const PACKETS: u64 = 5;
    with_agent(|node| {
        node.ctl(&["flows", "--sampling", "1"])?;
        let (a, b) = (node.attach("a")?, node.attach("b")?);
        for (from, to) in a.addresses.iter().zip(&b.addresses) {
            let server = sys::bind_in(b.path(), SocketAddr::new(*to, 8080), UdpSocket::bind)?;
            server.set_read_timeout(Some(LIMIT))?;
            let client = sys::bind_in(a.path(), SocketAddr::new(*from, 0), UdpSocket::bind)?;
            client.connect(server.local_addr()?)?;
            for _ in 0..PACKETS {
                client.send(b"datagram")?;
                server.recv(&mut [0; 8])?;
            }
        }
        let ended = || -> anyhow::Result<Vec<Value>> {
            let all = flows(node)?.into_iter();
            Ok(all.filter(|it| text(it, "/flow/ferrule/state") == "FLOW_STATE_ENDED").collect())
        };
        // A minute without packets, and the time between two looks.
        sys::wait_until("both flows end", Duration::from_secs(120), || Ok(ended()?.len() == 2))?;
        for record in ended()? {
            ensure!(number(&record, "/flow/ferrule/forward/packets") == PACKETS, "{record}");
            ensure!(text(&record, "/flow/source/pod_name") == "a", "{record}");
            ensure!(text(&record, "/flow/destination/pod_name") == "b", "{record}");
        }
        let table = node.ctl(&["flows", "--since", "2m"])?;
        ensure!(table.contains("forwarded ended"), "{table}");
        // The entries are gone: the next look finds nothing that ends.
        thread::sleep(Duration::from_secs(12));
        ensure!(ended()?.len() == 2, "a flow has ended twice");
        Ok(())
    })
    .unwrap();
}
