//! Conntrack does not see the packets of the tunnel between nodes.

use anyhow::ensure;
use ferrule_tests::{fabric::Member, sys};

use crate::fixture::{TIMEOUT, with_pods};

/// Counts the tunnel's packets behind conntrack, and those that it does not see.
const COUNTERS: &str = "\
add table inet seen
add chain inet seen in { type filter hook input priority 0; }
add chain inet seen out { type filter hook output priority 0; }
add rule inet seen in udp dport 4789 counter
add rule inet seen in udp dport 4789 ct state untracked counter
add rule inet seen out udp dport 4789 counter
add rule inet seen out udp dport 4789 ct state untracked counter
";

/// Packets: all and untracked ones to the node, all and untracked ones from it.
fn counted(node: &Member) -> anyhow::Result<Vec<u64>> {
    let text = node.run("nft list table inet seen")?;
    let counters = text.split("counter packets ").skip(1);
    Ok(counters.filter_map(|rest| rest.split(' ').next()?.parse().ok()).collect())
}

#[test]
fn packets_of_the_tunnel_are_untracked_and_the_rules_are_healed() {
    // Past the stack, conntrack sees none of them anyway.
    with_pods(&["--node-fast-path", "off"], |fabric, [a, _, c]| {
        let [one, ..] = &fabric.nodes;
        let rules = [
            "udp dport 4789 ip daddr @nodes4 ip saddr @nodes4 notrack",
            "udp dport 4789 ip6 daddr @nodes6 ip6 saddr @nodes6 notrack",
        ];
        let drops =
            ["ip daddr @nodes4 ct state != untracked drop", "ip6 daddr @nodes6 ct state != untracked drop"];
        let is_complete = || {
            let table = one.run("nft list table inet ferrule")?;
            let is_dropped = drops.iter().all(|rule| table.contains(rule));
            Ok(is_dropped && rules.iter().all(|rule| table.matches(rule).count() == 2))
        };
        sys::wait_until("the table has the rules", TIMEOUT, is_complete)?;
        // Fails if the agent finds a difference.
        sys::wait_until("the table is as wanted", TIMEOUT, || {
            one.on(|node| node.ctl(&["verify"]))?;
            Ok(true)
        })?;
        one.on(|_| {
            std::fs::write("/run/seen.nft", COUNTERS)?;
            sys::run("nft -f /run/seen.nft").map(drop)
        })?;
        for to in &c.addresses {
            a.ping(&to.to_string())?;
        }
        let seen = counted(one)?;
        let [arrived, untracked_in, left, untracked_out] = seen[..] else { anyhow::bail!("{seen:?}") };
        ensure!(arrived >= 2 && left >= 2, "{seen:?}");
        ensure!(untracked_in == arrived && untracked_out == left, "{seen:?}");

        for chain in ["tunnel_in", "tunnel_out", "not_tunnel"] {
            one.run(&format!("nft flush chain inet ferrule {chain}"))?;
            sys::wait_until(&format!("the rules of {chain} are back"), TIMEOUT, is_complete)?;
        }
        Ok(())
    })
    .unwrap();
}
