//! Pods reach pods of other nodes by their own addresses: a neighbour's directly, others by the tunnel.

use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr, UdpSocket},
};

use anyhow::{Context as _, ensure};
use ferrule_tests::{
    capture::Frame, node::UPLINK_MTU, packet::UDP, pod::Pod, sys, traffic, world::tcp_source,
};

use crate::fixture::{captured, forget_mtu, of, ping, with_pods};

/// Of datagrams: one packet, one that fills the MTU of neither way, both, and fragments.
const LENS: [usize; 6] = [1, 1000, 1300, UPLINK_MTU as usize - 28, 4000, 20_000];
const MEGABYTE: u64 = 1 << 20;

/// The addresses of two pods of one family, for IPv4 and IPv6.
fn pairs(from: &Pod, to: &Pod) -> impl Iterator<Item = (IpAddr, IpAddr)> {
    from.addresses.clone().into_iter().zip(to.addresses.clone())
}

#[test]
fn pods_reach_a_neighbours_pods_directly_and_others_by_the_tunnel() {
    with_pods(&[], |fabric, [a, b, c]| {
        let [one, two, three] = &fabric.nodes;
        for (from, node, to, peer, is_near) in
            [(a, one, b, two, true), (a, one, c, three, false), (c, three, b, two, false)]
        {
            for (source, destination) in pairs(from, to) {
                let frames = captured(node, || {
                    from.ping(&destination.to_string())?;
                    to.ping(&source.to_string())?;
                    let seen = traffic::datagrams(
                        from.path(),
                        to.path(),
                        SocketAddr::new(destination, 8080),
                        &LENS,
                    )?;
                    ensure!(seen.ip() == source, "{} sees datagrams of {seen}", to.name);
                    let seen = tcp_source(from.path(), to.path(), SocketAddr::new(destination, 8081))?;
                    ensure!(seen.ip() == source, "{} sees a connection of {seen}", to.name);
                    traffic::stream(from.path(), to.path(), destination, 8 * MEGABYTE)?;
                    traffic::stream(to.path(), from.path(), source, 8 * MEGABYTE).map(drop)
                })
                .with_context(|| format!("{source} to {destination}"))?;
                let frames = frames.between(source, destination);
                if is_near {
                    frames.expect_bare()?
                } else {
                    frames.expect_tunnelled(&node.addresses, &peer.addresses)?
                }
            }
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn packets_too_long_for_the_tunnel_are_answered_with_the_length_that_fits() {
    with_pods(&[], |fabric, [a, b, c]| {
        let [one, ..] = &fabric.nodes;
        for (near, far) in b.addresses.iter().zip(&c.addresses) {
            [near, far].iter().try_for_each(|to| forget_mtu(a, **to))?;
            let text = ping(a, *near, UPLINK_MTU, "do")?;
            ensure!(text.contains(" 2 received"), "directly: {text}");
            // 50 bytes of headers of a tunnel by IPv4.
            let text = ping(a, *far, UPLINK_MTU - 50, "do")?;
            ensure!(text.contains(" 2 received"), "by the tunnel: {text}");
            for len in [UPLINK_MTU - 49, UPLINK_MTU] {
                let text = ping(a, *far, len, "do")?;
                let fits = UPLINK_MTU - 50;
                let named =
                    ["mtu = ", "mtu=", "mtu: "].iter().any(|it| text.contains(&format!("{it}{fits}")));
                let by = of(&one.addresses, usize::from(far.is_ipv6()))?;
                ensure!(named && text.contains(&format!("From {by}")), "{len} bytes to {far}: {text}");
                // The kernel has learnt what fits.
                a.run("ip route flush cache")?;
                a.run("ip -6 route flush cache")?;
            }
            if far.is_ipv4() {
                let text = ping(a, *far, UPLINK_MTU, "dont")?;
                ensure!(text.contains(" 2 received"), "in fragments: {text}");
            }
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn pods_know_the_length_that_fits_before_they_send() {
    with_pods(&[], |_, [a, _, c]| {
        for far in &c.addresses {
            let text = ping(a, *far, UPLINK_MTU, "do")?;
            ensure!(text.to_lowercase().contains("message too long"), "{text}");
            let text = ping(a, *far, UPLINK_MTU - 50, "do")?;
            ensure!(text.contains(" 2 received"), "{text}");
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn flows_in_the_tunnel_spread_over_outer_source_ports() {
    with_pods(&[], |fabric, [a, _, c]| {
        let [one, _, three] = &fabric.nodes;
        for (source, destination) in pairs(a, c) {
            let frames = captured(one, || {
                let to = SocketAddr::new(destination, 8080);
                let server = sys::bind_in(c.path(), to, UdpSocket::bind)?;
                for _ in 0..100 {
                    traffic::datagrams_to(a.path(), &server, to, &[100])?;
                }
                Ok(())
            })?;
            let frames = frames.between(source, destination);
            frames.expect_tunnelled(&one.addresses, &three.addresses)?;
            let is_sent = |it: &&Frame| it.carried().source == source && it.carried().protocol == UDP;
            let sent = frames.0.iter().filter(is_sent);
            let flows: BTreeSet<_> = sent.clone().filter_map(|it| it.carried().ports).collect();
            let ports: BTreeSet<_> = sent.filter_map(|it| Some(it.packet.ports?.0)).collect();
            ensure!(flows.len() >= 90 && ports.len() >= 8, "{} flows in {} ports", flows.len(), ports.len());
        }
        Ok(())
    })
    .unwrap();
}
