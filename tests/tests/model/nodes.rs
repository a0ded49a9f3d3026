//! Other nodes: they join, leave and come again with another range, also while no agent runs. What the node
//! must have for them follows from the Node objects alone.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    time::Duration,
};

use anyhow::ensure;
use fastrand::Rng;
use ferrule_tests::{
    apiserver::{Resource, objects},
    cluster::NODE,
    others, sys,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::fixture::Fixture;

/// Something happens to a Node object; nothing, if that does not apply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum NodeEvent {
    Join {
        node: u8,
        range: u8,
    },
    Leave {
        node: u8,
    },
    /// The object is deleted, and created again at once with another range.
    Replace {
        node: u8,
        range: u8,
    },
}

/// The range of each other node.
pub type OtherNodes = BTreeMap<u8, u8>;

/// Fewer ranges than nodes, so that some nodes want the same one.
pub const NODES: u8 = 5;
const RANGES: u8 = 4;
const TIMEOUT: Duration = Duration::from_secs(20);

// === impl NodeEvent ===

impl NodeEvent {
    pub fn random(rng: &mut Rng) -> Self {
        let (node, range) = (rng.u8(..NODES), rng.u8(..RANGES));
        match rng.u8(..5) {
            0..3 => Self::Join { node, range },
            3 => Self::Leave { node },
            _ => Self::Replace { node, range },
        }
    }
}

// === impl Fixture ===

impl Fixture<'_> {
    /// Applies the event to the API and to the model.
    ///
    /// # Errors
    /// If the API server refuses.
    pub fn change_nodes(&mut self, event: NodeEvent) -> anyhow::Result<()> {
        let (leaves, joins) = match event {
            NodeEvent::Join { node, range } => (None, Some((node, range))),
            NodeEvent::Leave { node } => (Some(node), None),
            NodeEvent::Replace { node, range } => (Some(node), Some((node, range))),
        };
        if let Some(node) = leaves {
            if self.model.nodes.remove(&node).is_none() {
                return Ok(());
            }
            self.log(format!("node {node} leaves"));
            self.cluster.api.delete(Resource::Nodes, "", &name(node))?;
        }
        if let Some((node, range)) = joins
            && !self.model.nodes.contains_key(&node)
        {
            self.model.nodes.insert(node, range);
            self.log(format!("node {node} joins with range {range}"));
            let ranges = ranges(range);
            let object = objects::node(&name(node), &ranges.each_ref().map(String::as_str));
            self.cluster.api.create(Resource::Nodes, objects::with_addresses(object, &[address(node)]))?;
        }
        self.count(format!("{event:?}").split(' ').next().unwrap_or_default().to_owned());
        Ok(())
    }

    /// Waits until routes and rows are those of the nodes.
    ///
    /// # Errors
    /// If they do not become so.
    pub fn expect_nodes(&self) -> anyhow::Result<()> {
        let nodes = &self.model.nodes;
        sys::wait_until(&format!("the node has what it needs for the nodes {nodes:?}"), TIMEOUT, || {
            let (routes, rows) = (others::routes()?, others::rows()?);
            let wanted: BTreeSet<_> = nodes.values().flat_map(|range| ranges(*range)).collect();
            let destinations: BTreeSet<_> =
                routes.iter().filter_map(|it| it.split(' ').next()).map(str::to_owned).collect();
            ensure!(destinations == wanted && routes.len() == wanted.len(), "{routes:#?}");
            for route in &routes {
                // Which of several nodes has the range depends on their ages in seconds.
                let claims = |(_, range): &(&u8, &u8)| ranges(**range).iter().any(|it| starts(route, it));
                let mut leads = nodes.iter().filter(claims).map(|(node, _)| leads_to(route, *node));
                ensure!(leads.any(|it| it), "{route} leads to no node that has the range");
            }
            let object = self.cluster.api.get(Resource::Nodes, "", NODE).unwrap_or_default();
            let own = object.pointer("/spec/podCIDRs").and_then(Value::as_array).into_iter().flatten();
            let own = own.filter_map(Value::as_str).map(str::to_owned);
            let addresses = nodes.keys().map(|node| format!("{}/32", address(*node)));
            let wanted: BTreeSet<_> = wanted.into_iter().chain(own).chain(addresses).collect();
            ensure!(rows == wanted, "{rows:#?}, expected {wanted:#?}");
            let has_tunnel = others::tunnel()?.is_some();
            ensure!(has_tunnel != nodes.is_empty(), "tunnel: {has_tunnel}");
            Ok(true)
        })
    }
}

fn name(node: u8) -> String {
    format!("other-{node}")
}

fn ranges(range: u8) -> [String; 2] {
    [format!("10.245.{range}.0/24"), format!("fd00:10:245:{range:x}::/64").replace(":0::", "::")]
}

/// Every second one is on the uplink's network.
fn address(node: u8) -> IpAddr {
    if is_near(node) { [192, 0, 2, 100 + node].into() } else { [198, 51, 100, node].into() }
}

fn is_near(node: u8) -> bool {
    node.is_multiple_of(2)
}

fn starts(route: &str, range: &str) -> bool {
    route.starts_with(&format!("{range} "))
}

/// No node has an IPv6 address, so that IPv6 takes the tunnel.
fn leads_to(route: &str, node: u8) -> bool {
    let is_direct = is_near(node) && route.starts_with("10.");
    let how = if is_direct { "via" } else { "dst" };
    route.contains("encap") != is_direct && route.contains(&format!("{how} {} ", address(node)))
}
