//! Nodes and their own processes, as kubelets and pods with `hostNetwork` are, and pods of other nodes.

use std::net::{IpAddr, SocketAddr};

use anyhow::{Context as _, ensure};
use ferrule_tests::{
    fabric::{Member, underlay::WORLD_ADDRESSES},
    pod::Pod,
    traffic,
    world::tcp_source,
};

use crate::fixture::{captured, with_pods};

const LENS: [usize; 4] = [1, 1000, 4000, 20_000];
const MEGABYTE: u64 = 1 << 20;

/// Traffic of all kinds between a pod and another node, in one family; either end may begin. Both see each
/// other's own address.
fn talk(pod: &Pod, of_pod: IpAddr, node: &Member, of_node: IpAddr) -> anyhow::Result<()> {
    pod.ping(&of_node.to_string())?;
    node.ping(of_pod)?;
    for (client, from, server, to) in
        [(pod.path(), of_pod, node.path(), of_node), (node.path(), of_node, pod.path(), of_pod)]
    {
        let seen = traffic::datagrams(client, server, SocketAddr::new(to, 8080), &LENS)?;
        ensure!(seen.ip() == from, "{to} sees datagrams of {seen} instead of {from}");
        let seen = tcp_source(client, server, SocketAddr::new(to, 8081))?;
        ensure!(seen.ip() == from, "{to} sees a connection of {seen} instead of {from}");
        traffic::stream(client, server, to, 4 * MEGABYTE)?;
    }
    Ok(())
}

#[test]
fn pods_and_other_nodes_reach_each_other_by_their_own_addresses() {
    with_pods(&[], |fabric, [a, b, c]| {
        let [one, two, three] = &fabric.nodes;
        for (pod, home, node, is_near) in
            [(a, one, two, true), (b, two, one, true), (a, one, three, false), (c, three, one, false)]
        {
            for (of_pod, of_node) in pod.addresses.iter().zip(&node.addresses) {
                let frames = captured(home, || talk(pod, *of_pod, node, *of_node))
                    .with_context(|| format!("{} and {}, {of_node}", pod.name, node.name))?;
                let frames = frames.between(*of_pod, *of_node);
                if is_near {
                    frames.expect_bare()?;
                } else {
                    frames.expect_tunnelled(&home.addresses, &node.addresses)?;
                }
            }
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn pods_and_their_own_node_reach_each_other_without_the_wire() {
    with_pods(&[], |fabric, [a, ..]| {
        let [one, ..] = &fabric.nodes;
        for (of_pod, of_node) in a.addresses.iter().zip(&one.addresses) {
            let frames = captured(one, || talk(a, *of_pod, one, *of_node))?;
            frames.between(*of_pod, *of_node).expect_none()?;
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn the_world_sees_the_address_of_each_pods_node() {
    with_pods(&[], |fabric, pods| {
        let world = fabric.world();
        for (pod, node) in pods.iter().zip(&fabric.nodes) {
            for (of_node, to) in node.addresses.iter().zip(WORLD_ADDRESSES) {
                let seen = [world.tcp_source(pod, to)?, world.udp_source(pod, to)?];
                ensure!(seen.iter().all(|it| it.ip() == *of_node), "{to} sees {seen:?} of {}", pod.name);
            }
        }
        Ok(())
    })
    .unwrap();
}
