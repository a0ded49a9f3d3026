//! Clients of UDP that go on sending while pods with their port come and go.

use std::net::UdpSocket;

use anyhow::{Context as _, ensure};
use ferrule_tests::{
    node::{NODE_V4, NODE_V6, with_agent},
    pod::Pod,
    sys,
};
use serde_json::json;

use super::{OUTSIDE, POD_PORT, PORT, TIMEOUT, at, attach, mapping, server, with_outside};

/// Whether a datagram of the client gets to the pod, which answers.
fn arrives(client: &UdpSocket, pod: &Pod, to: &str) -> anyhow::Result<()> {
    let to = at(to)?;
    let serving = sys::bind_in(pod.path(), server(pod, to)?, UdpSocket::bind)?;
    serving.set_read_timeout(Some(TIMEOUT))?;
    client.set_read_timeout(Some(TIMEOUT))?;
    client.send_to(pod.name.as_bytes(), to)?;
    let mut room = [0; 64];
    let (_, from) = serving.recv_from(&mut room).with_context(|| format!("not at {}", pod.name))?;
    serving.send_to(b"answer", from)?;
    let (length, by) = client.recv_from(&mut room).context("no answer")?;
    ensure!(room.get(..length) == Some(b"answer") && by == to, "{length} bytes from {by}");
    Ok(())
}

#[test]
fn a_client_of_udp_reaches_the_pod_that_has_the_port_now() {
    with_outside(|node| {
        for (to, any) in [(NODE_V4, "0.0.0.0:0"), (NODE_V6, "[::]:0")] {
            let client = sys::in_netns(std::path::Path::new(OUTSIDE), || Ok(UdpSocket::bind(any)?))?;
            // A process of the node has the port first: conntrack knows the flow as one to the node.
            let before = UdpSocket::bind(at(to)?)?;
            before.set_read_timeout(Some(TIMEOUT))?;
            client.send_to(b"before", at(to)?)?;
            let (_, from) = before.recv_from(&mut [0; 64])?;
            before.send_to(b"answer", from)?;
            drop(before);
            client.set_read_timeout(Some(TIMEOUT))?;
            client.recv_from(&mut [0; 64])?;

            for name in ["first", "second"] {
                let (pod, mut of_pod) = attach(node, name, json!([mapping("udp", "")]))?;
                arrives(&client, &pod, to).with_context(|| format!("{name} at {to}"))?;
                of_pod.del(&pod)?;
                let flows = sys::run(&format!("conntrack -L -p udp --orig-port-dst {PORT}"))?;
                ensure!(flows.trim().is_empty(), "{flows}");
            }
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn flows_of_other_ports_and_pods_are_not_forgotten() {
    with_agent(|node| {
        let (pod, _) =
            attach(node, "kept", json!([{ "hostPort": 9090, "containerPort": 80, "protocol": "udp" }]))?;
        let client = UdpSocket::bind("0.0.0.0:0")?;
        let serving = sys::bind_in(pod.path(), server(&pod, at(NODE_V4)?)?, UdpSocket::bind)?;
        serving.set_read_timeout(Some(TIMEOUT))?;
        client.send_to(b"x", (NODE_V4, 9090))?;
        serving.recv_from(&mut [0; 8])?;
        let kept = || anyhow::Ok(sys::run("conntrack -L -p udp --orig-port-dst 9090")?.lines().count() == 1);
        ensure!(kept()?, "no flow");
        let (other, mut of_other) = attach(node, "other", json!([mapping("udp", ""), mapping("sctp", "")]))?;
        of_other.del(&other)?;
        ensure!(kept()?, "forgotten");
        Ok(())
    })
    .unwrap();
}

/// The pod's DEL comes while no agent runs, or never, because the runtime has lost the pod.
#[test]
fn flows_of_a_pod_that_went_while_no_agent_ran_are_forgotten_at_the_start() {
    for has_del in [true, false] {
        with_outside(|node| {
            let flows = |port: u16| sys::run(&format!("conntrack -L -p udp --orig-port-dst {port}"));
            let other = json!([{ "hostPort": 9090, "containerPort": POD_PORT, "protocol": "udp" }]);
            let (_other, _) = attach(node, "other", other)?;
            let (pod, mut of_pod) = attach(node, "pod", json!([mapping("udp", "")]))?;
            let client = UdpSocket::bind("0.0.0.0:0")?;
            client.send_to(b"x", (NODE_V4, 9090))?;
            for (to, any) in [(NODE_V4, "0.0.0.0:0"), (NODE_V6, "[::]:0")] {
                let client = sys::in_netns(std::path::Path::new(OUTSIDE), || Ok(UdpSocket::bind(any)?))?;
                arrives(&client, &pod, to)?;
            }
            let links = || anyhow::Ok(sys::run("ip -o link show type veth")?.lines().count());
            let before = links()?;
            node.kill_agent()?;
            if has_del {
                of_pod.del(&pod)?;
            }
            pod.remove()?;
            // The kernel deletes a namespace's links later. An agent that starts before would find a pod.
            sys::wait_until("the pod's interface is gone", TIMEOUT, || Ok(links()? < before))?;
            ensure!(flows(PORT)?.lines().count() == 2, "{}", flows(PORT)?);
            node.start_again()?;
            sys::wait_until("the flows are forgotten", TIMEOUT, || Ok(flows(PORT)?.trim().is_empty()))
                .with_context(|| format!("with a DEL: {has_del}"))?;
            ensure!(
                flows(9090)?.lines().count() == 1,
                "a flow of another pod is forgotten: {}",
                flows(9090)?
            );
            Ok(())
        })
        .unwrap();
    }
}
