//! The first packets of a pod.

use std::{
    fs,
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream, UdpSocket},
    path::Path,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant},
};

use agent_common::GATEWAY_MAC;
use anyhow::{Context as _, ensure};
use ferrule_tests::{
    packet::{self, Ipv4, udp},
    pod::Pod,
    sys,
    wire::{self, Wire},
};
use serde_json::json;

use crate::scene::{By, Scene, TIMEOUT, WEB, expect, wait_until_reached, with_scene};

/// Of the servers of a scene.
const PORT: u16 = 80;
/// Of the socket that counts what arrives.
const COUNTED: u16 = 4000;
/// Starts of pods that send at once; fewer if they take longer than `LIMIT`. The node's range has few more
/// addresses, and one that was released is not given away for a while.
const STARTS: usize = 240;
const LIMIT: Duration = Duration::from_secs(30);

/// SYNs that this network namespace has sent more than once.
fn repeated_syns() -> anyhow::Result<u64> {
    let text = fs::read_to_string("/proc/thread-self/net/netstat")?;
    let mut lines = text.lines().filter(|it| it.starts_with("TcpExt:"));
    let (names, numbers) = lines.next().zip(lines.next()).context("no TcpExt")?;
    let mut fields = names.split(' ').zip(numbers.split(' '));
    let (_, number) = fields.find(|(name, _)| *name == "TCPSynRetrans").context("no TCPSynRetrans")?;
    Ok(number.parse()?)
}

#[test]
fn a_new_pod_that_is_allowed_reaches_another_pod_of_the_node_with_its_first_syn() {
    with_scene(|scene| {
        let ((server, _server), (a, _a)) = (scene.pod("web", "server")?, scene.pod("web", "a")?);
        let front = json!([{ "podSelector": { "matchLabels": { "app": "front" } } }]);
        let spec =
            json!({ "podSelector": { "matchLabels": { "app": "server" } }, "ingress": [{ "from": front }] });
        scene.set_policy("web", "server", spec)?;
        // The new pod is judged, too.
        let to = json!([{ "podSelector": { "matchLabels": { "app": "server" } } }]);
        let spec = json!({ "podSelector": { "matchLabels": { "app": "front" } }, "policyTypes": ["Egress"],
            "egress": [{ "to": to, "ports": [{ "port": PORT }] }] });
        scene.set_policy("web", "front", spec)?;
        wait_until_reached(&a, &server, WEB, false)?;
        for number in 0..6 {
            let mut pod = Pod { namespace: "web".to_owned(), ..scene.node.pod(&format!("front-{number}"))? };
            crate::scene::schedule(&scene.cluster.api, ferrule_tests::cluster::NODE, &pod, "front")?;
            let result = scene.node.runtime()?.add(&pod)?;
            let repeated = sys::in_netns(pod.path(), || {
                for address in &server.addresses {
                    TcpStream::connect_timeout(&SocketAddr::new(*address, PORT), Duration::from_secs(10))
                        .with_context(|| format!("{address} is not reached"))?;
                }
                repeated_syns()
            })?;
            ensure!(repeated == 0, "{repeated} SYNs of the pod {number} were sent again");
            pod.attached(&result)?;
            expect(&pod, &server, By::Udp(PORT), false)?;
        }
        Ok(())
    })
    .unwrap();
}

/// The IPv4 address of `eth0` in this network namespace, if there is one.
fn own_address() -> Option<Ipv4Addr> {
    let all = nix::ifaddrs::getifaddrs().ok()?;
    let addresses = all.filter(|it| it.interface_name == "eth0").filter_map(|it| it.address);
    addresses.filter_map(|it| it.as_sockaddr_in().map(|it| it.ip())).next()
}

/// Sends frames to an address from the moment on that a pod has an interface, whatever its state. Counts
/// those that the kernel takes.
fn send_from_the_first_moment(
    at: &Path,
    to: Ipv4Addr,
    stop: &AtomicBool,
    sent: &AtomicUsize,
) -> anyhow::Result<()> {
    sys::in_netns(at, || {
        let mut begun = None;
        while !stop.load(Ordering::Relaxed) {
            if begun.is_none() {
                let own = own_address().zip(wire::mac("eth0").ok());
                begun = own.and_then(|(own, mac)| Some((own, mac, Wire::open(at, "eth0").ok()?)));
                continue;
            }
            let Some((own, mac, wire)) = &begun else { continue };
            let ip = Ipv4::new(own.octets(), to.octets(), packet::UDP).with(&udp(5000, COUNTED, b"first"));
            // Refused while the interface is down.
            if wire.send(&packet::frame(GATEWAY_MAC, *mac, packet::IPV4, &ip)).is_ok() {
                sent.fetch_add(1, Ordering::Relaxed);
            }
        }
        Ok(())
    })
}

/// Starts a pod that sends at once, until a while after ADD's answer, and removes it. Returns the number of
/// frames.
fn start_sender(scene: &Scene<'_>, name: &str, to: Ipv4Addr) -> anyhow::Result<usize> {
    let pod = scene.unattached("web", name)?;
    let (stop, sent) = (AtomicBool::new(false), AtomicUsize::new(0));
    thread::scope(|scope_of_threads| {
        let sender = scope_of_threads.spawn(|| send_from_the_first_moment(pod.path(), to, &stop, &sent));
        let added = scene.node.runtime().and_then(|it| it.add(&pod));
        let sends = added.and_then(|_| {
            let some = || Ok(sent.load(Ordering::Relaxed) > 10);
            sys::wait_until("the pod sends", TIMEOUT, some)
        });
        stop.store(true, Ordering::Relaxed);
        sender.join().map_err(|_| anyhow::anyhow!("the sender panicked"))??;
        sends
    })?;
    scene.node.runtime()?.del(&pod)?;
    scene.cluster.delete(&pod)?;
    pod.remove()?;
    Ok(sent.into_inner())
}

#[test]
fn pods_that_send_frames_from_their_first_moment_reach_no_one_whom_a_policy_denies_them() {
    with_scene(|scene| {
        let (victim, _victim) = scene.pod("db", "victim")?;
        let Some(IpAddr::V4(to)) = victim.addresses.iter().copied().find(IpAddr::is_ipv4) else {
            anyhow::bail!("{:?}", victim.addresses)
        };
        let socket = sys::bind_in(victim.path(), SocketAddr::new(to.into(), COUNTED), UdpSocket::bind)?;
        socket.set_nonblocking(true)?;
        let arrived = || std::iter::from_fn(|| socket.recv(&mut [0; 8]).ok()).count();
        // Without a policy, what such a pod sends does arrive.
        let sent = start_sender(scene, "free", to)?;
        ensure!(sent > 0 && arrived() > 0, "{sent} frames were sent, and none has arrived");
        let spec = json!({ "podSelector": {}, "policyTypes": ["Egress"] });
        scene.set_policy("web", "closed", spec)?;
        let (a, _a) = scene.pod("web", "a")?;
        wait_until_reached(&a, &victim, WEB, false)?;
        let began = Instant::now();
        let (mut starts, mut total) = (0, 0);
        while starts < STARTS && began.elapsed() < LIMIT {
            total += start_sender(scene, &format!("sender-{starts}"), to)?;
            starts += 1;
            let arrived = arrived();
            ensure!(arrived == 0, "{arrived} frames of the start {starts} have arrived");
        }
        println!("{starts} starts, {total} frames");
        ensure!(starts >= 20, "only {starts} starts in {LIMIT:?}");
        Ok(())
    })
    .unwrap();
}
