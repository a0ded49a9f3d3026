//! What happens to pods and their flows when something changes.

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use ferrule_tests::{
    apiserver::{History, Switch},
    pod::Pod,
    sys::{self, wait_until},
};
use serde_json::json;

use crate::scene::{By, Scene, Servers, TIMEOUT, WEB, expect, reaches, wait_until_reached, with_scene};

const UDP: By = By::Udp(80);

/// Allows the pods with the label `app=front` of the namespace `web` only.
fn allow_front(scene: &Scene<'_>) -> anyhow::Result<()> {
    let spec = json!({ "podSelector": { "matchLabels": { "app": "server" } },
        "ingress": [{ "from": [{ "podSelector": { "matchLabels": { "app": "front" } } }] }] });
    scene.set_policy("web", "front", spec)
}

/// A TCP connection to each address of a server.
fn connect(from: &Pod, to: &Pod) -> anyhow::Result<Vec<TcpStream>> {
    let connect = |address: &std::net::IpAddr| {
        let to = SocketAddr::new(*address, 80);
        let stream = sys::in_netns(from.path(), || Ok(TcpStream::connect_timeout(&to, TIMEOUT)?))?;
        stream.set_read_timeout(Some(Duration::from_millis(700)))?;
        Ok(stream)
    };
    to.addresses.iter().map(connect).collect()
}

fn echoes(stream: &mut TcpStream) -> bool {
    stream.write_all(b"echo").is_ok() && stream.read_exact(&mut [0; 4]).is_ok()
}

#[test]
fn labels_of_pods_and_of_namespaces_act_at_once() {
    with_scene(|scene| {
        let ((server, _server), (a, _a)) = (scene.pod("web", "server")?, scene.pod("web", "a")?);
        let (stranger, _s) = scene.pod("db", "stranger")?;
        allow_front(scene)?;
        wait_until_reached(&a, &server, WEB, false)?;
        scene.relabel(&a, "front")?;
        wait_until_reached(&a, &server, WEB, true)?;
        let mut flows = connect(&a, &server)?;
        ensure!(flows.iter_mut().all(echoes));
        scene.relabel(&a, "a")?;
        wait_until_reached(&a, &server, WEB, false)?;
        ensure!(!flows.iter_mut().any(echoes), "a peer that is no longer allowed keeps its flow");
        let spec = json!({ "podSelector": {},
            "ingress": [{ "from": [{ "namespaceSelector": { "matchLabels": { "team": "friend" } } }] }] });
        scene.set_policy("web", "friends", spec)?;
        wait_until_reached(&stranger, &server, WEB, false)?;
        scene.relabel_namespace("db", "friend")?;
        wait_until_reached(&stranger, &server, WEB, true)?;
        scene.relabel_namespace("db", "db")?;
        wait_until_reached(&stranger, &server, WEB, false)?;
        // The subject, too.
        scene.delete_policy("web", "friends")?;
        scene.relabel(&server, "other")?;
        wait_until_reached(&stranger, &server, WEB, true)
    })
    .unwrap();
}

#[test]
fn a_policy_cuts_a_live_flow_and_leaves_those_that_it_allows() {
    with_scene(|scene| {
        let (server, _server) = scene.pod("web", "server")?;
        let ((front, _f), (a, _a)) = (scene.pod("web", "front")?, scene.pod("web", "a")?);
        let (mut kept, mut cut) = (connect(&front, &server)?, connect(&a, &server)?);
        ensure!(kept.iter_mut().chain(&mut cut).all(echoes));
        allow_front(scene)?;
        wait_until_reached(&a, &server, WEB, false)?;
        ensure!(!cut.iter_mut().any(echoes), "a flow that began before the policy goes on");
        for _ in 0..3 {
            ensure!(kept.iter_mut().all(echoes), "an allowed flow was cut");
        }
        scene.set_policy("web", "front", json!({ "podSelector": { "matchLabels": { "app": "server" } } }))?;
        wait_until_reached(&front, &server, WEB, false)?;
        let alive: Vec<_> = kept.iter_mut().map(echoes).collect();
        ensure!(!alive.contains(&true), "the changed policy denies the flow: {alive:?} of {kept:?}");
        Ok(())
    })
    .unwrap();
}

#[test]
fn no_packet_reaches_a_new_pod_that_a_policy_isolates() {
    with_scene(|scene| {
        let (a, _a) = scene.pod("web", "a")?;
        scene.set_policy(
            "web",
            "deny",
            json!({ "podSelector": {}, "policyTypes": ["Ingress", "Egress"] }),
        )?;
        wait_until(&format!("{} is isolated", a.name), TIMEOUT, || {
            Ok(scene.health("policy-feed")?.contains("following the policies (1)"))
        })?;
        let (outside, _o) = scene.pod("db", "outside")?;
        for number in 0..4 {
            let mut pod = scene.unattached("web", &format!("new-{number}"))?;
            let _servers = Servers::start(pod.path())?;
            let result = scene.node.runtime()?.add(&pod)?;
            pod.attached(&result)?;
            for address in &pod.addresses {
                for by in [WEB, UDP] {
                    ensure!(!reaches(outside.path(), *address, by)?, "{by:?} reaches {address} of a new pod");
                }
            }
            expect(&pod, &outside, UDP, false)?;
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn an_agent_that_is_killed_and_restarted_neither_opens_nor_cuts() {
    with_scene(|scene| {
        let (server, _server) = scene.pod("web", "server")?;
        let ((front, _f), (a, _a)) = (scene.pod("web", "front")?, scene.pod("web", "a")?);
        allow_front(scene)?;
        wait_until_reached(&a, &server, WEB, false)?;
        expect(&front, &server, WEB, true)?;
        let mut flows = connect(&front, &server)?;
        ensure!(flows.iter_mut().all(echoes));
        let (stop, intruded, asked) = (AtomicBool::new(false), AtomicUsize::new(0), AtomicUsize::new(0));
        thread::scope(|scope| {
            // Many short attempts, so that a gap of some milliseconds shows.
            let intruder = scope.spawn(|| -> anyhow::Result<()> {
                sys::in_netns(a.path(), || {
                    let socket = std::net::UdpSocket::bind("[::]:0")?;
                    socket.set_read_timeout(Some(Duration::from_millis(1)))?;
                    while !stop.load(Ordering::Relaxed) {
                        for address in server.addresses.iter().filter(|it| it.is_ipv6()) {
                            socket.send_to(b"x", SocketAddr::new(*address, 80)).context("send")?;
                        }
                        asked.fetch_add(1, Ordering::Relaxed);
                        if socket.recv(&mut [0; 8]).is_ok() {
                            intruded.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                    Ok(())
                })
            });
            let friend = scope.spawn(|| {
                let mut count = 0;
                while !stop.load(Ordering::Relaxed) {
                    if !flows.iter_mut().all(echoes) {
                        return Err(count);
                    }
                    count += 1;
                    thread::sleep(Duration::from_millis(5));
                }
                Ok(count)
            });
            let mut restart = || -> anyhow::Result<()> {
                for _ in 0..2 {
                    scene.node.kill_agent()?;
                    thread::sleep(Duration::from_millis(500));
                    scene.node.start_again()?;
                    wait_until("policies are enforced again", TIMEOUT, || {
                        Ok(scene.health("policy-feed")?.contains("following the policies (1)"))
                    })?;
                    thread::sleep(Duration::from_millis(500));
                }
                Ok(())
            };
            let restarted = restart();
            stop.store(true, Ordering::Relaxed);
            intruder.join().unwrap()?;
            let echoed = friend.join().unwrap();
            restarted?;
            ensure!(echoed.is_ok_and(|count| count > 100), "an allowed flow was cut: {echoed:?}");
            anyhow::Ok(())
        })?;
        let (intruded, asked) = (intruded.into_inner(), asked.into_inner());
        ensure!(intruded == 0 && asked > 100, "{intruded} of {asked} datagrams were answered");
        // And the new agent goes on.
        scene.relabel(&a, "front")?;
        wait_until_reached(&a, &server, WEB, true)
    })
    .unwrap();
}

#[test]
fn an_agent_that_starts_without_the_api_server_judges_new_pods_by_the_last_known_policies() {
    with_scene(|scene| {
        let (server, _server) = scene.pod("web", "server")?;
        let (front, _f) = scene.pod("web", "front")?;
        let mut new = scene.unattached("web", "new")?;
        let serving = Servers::start(new.path())?;
        allow_front(scene)?;
        wait_until_reached(&front, &server, WEB, true)?;
        wait_until("the checkpoints have all", TIMEOUT, || {
            let stored = |watch: &str| std::fs::read_to_string(format!("/run/ferrule/watch/{watch}.log"));
            Ok(stored("all-pods").is_ok_and(|it| it.contains("web/new"))
                && stored("networkpolicies").is_ok_and(|it| it.contains("web/front"))
                && stored("namespaces").is_ok_and(|it| it.contains("web"))
                && stored("services").is_ok())
        })?;
        scene.node.kill_agent()?;
        scene.cluster.api.switch(Switch::Restart { pause_ms: 600_000, history: History::Kept });
        scene.node.start_again()?;
        let result = scene.node.runtime()?.add(&new)?;
        new.attached(&result)?;
        expect(&new, &server, WEB, false)?;
        expect(&front, &server, WEB, true)?;
        expect(&front, &new, WEB, true)?;
        ensure!(
            scene.health("policy-feed")?.contains("following the policies (1)"),
            "{}",
            scene.health("policy-feed")?
        );
        drop(serving);
        Ok(())
    })
    .unwrap();
}

#[test]
fn without_the_api_server_and_checkpoints_of_peers_policies_stay_and_new_pods_wait() {
    with_scene(|scene| {
        let (server, _server) = scene.pod("web", "server")?;
        let ((front, _f), (a, _a)) = (scene.pod("web", "front")?, scene.pod("web", "a")?);
        allow_front(scene)?;
        wait_until_reached(&a, &server, WEB, false)?;
        scene.node.stop_agent()?;
        // As an agent of an earlier version leaves them.
        std::fs::remove_file("/run/ferrule/watch/all-pods.log")?;
        scene.cluster.api.switch(Switch::Restart { pause_ms: 12_000, history: History::Kept });
        let away = Instant::now();
        scene.node.begin_start()?;
        while away.elapsed() < Duration::from_secs(6) {
            expect(&front, &server, WEB, true)?;
            expect(&a, &server, WEB, false)?;
        }
        ensure!(scene.health("policy-feed")?.contains("gathering"), "{}", scene.health("policy-feed")?);
        wait_until("the agent follows the cluster again", Duration::from_secs(60), || {
            Ok(scene.health("policy-feed")?.contains("following the policies (1)"))
        })?;
        let (new, _n) = scene.pod("web", "new")?;
        expect(&new, &server, WEB, false)?;
        scene.relabel(&new, "front")?;
        wait_until_reached(&new, &server, WEB, true)
    })
    .unwrap();
}
