//! Whether a pod's packets are carried, why not, and what to do. Pure.

use ferrule_proto::agent::{
    Deviation, DroppedPacket, ExplainPodResponse, ExplainedInterface, ForwardDrop, ListedPod, PodVerdict,
    attachment::State, pod_verdict::Kind, policy_state,
};

use crate::{
    dataplane::SUBJECT,
    observe::{
        check::firewall_remedy,
        inside::{self, Gateways},
    },
};

/// Collects causes, each with what to do.
#[derive(Default)]
struct Causes {
    /// Nothing is carried.
    fatal: Vec<(String, String)>,
    /// Something is not carried.
    partial: Vec<(String, String)>,
}

/// Dropped packets that are so old tell nothing about now, in milliseconds.
const RECENT: u64 = 60_000;
/// Deviations without which no packet is carried. Those of counters are excepted.
const FATAL: [&str; 8] = [
    "link-gone",
    "link-down",
    "pod-link",
    "pod-mac",
    "pod-address",
    "map-entry",
    "address-shared",
    "link-stamp",
];

/// `now_ms`: since the Unix epoch.
pub(super) fn judge(told: &ExplainPodResponse, now_ms: u64) -> PodVerdict {
    let mut causes = Causes::default();
    if told.pod.as_ref().is_some_and(|it| it.host_network) {
        let what = "hostNetwork: the pod has its node's addresses and no interface of its own, and no NetworkPolicy \
                    judges it";
        let todo = "see the node's own network, for instance by `kubectl debug node/NAME`";
        return PodVerdict {
            kind: Kind::NodeNetwork.into(),
            because: vec![what.to_owned()],
            todo: vec![todo.to_owned()],
        };
    }
    match told.interfaces.first() {
        None => causes.add_without_attachment(told, now_ms),
        Some(newest) => {
            let container = newest.attachment.as_ref().map(|it| &it.container_id);
            let is_current =
                |it: &&ExplainedInterface| it.attachment.as_ref().map(|it| &it.container_id) == container;
            told.interfaces.iter().filter(is_current).for_each(|it| causes.add_interface(it, told.self_heal));
            causes.add_node(told);
            causes.add_firewall(&told.firewall);
            causes.add_drops(&told.drops, now_ms);
        }
    }
    causes.verdict()
}

// === impl Causes ===

impl Causes {
    fn add_without_attachment(&mut self, told: &ExplainPodResponse, now_ms: u64) {
        if let Some(add) = told.adds_in_flight.first() {
            let (doing, todo) = match add.phase.as_str() {
                "wait_for_vif" if add.missing.contains("at the API server") => (
                    "waits for the pod's VIF",
                    "see `ferrulectl status`, the component pods, and whether `kubectl get pod` shows the pod \
                     on this node",
                ),
                "wait_for_vif" if add.missing.contains("spec.podCIDRs") => (
                    "waits for the pod's VIF",
                    "see `kubectl get node -o yaml`: a controller (--allocate-node-cidrs) assigns spec.podCIDRs; or \
                     set --pod-cidr",
                ),
                "wait_for_vif" => (
                    "waits for the pod's VIF",
                    "see what is missing: `kubectl describe pod`, the Event WaitingForVif; or wait, the ADD ends with \
                     the reason",
                ),
                "wait_for_policy" => (
                    "waits until the policies that judge the pod are known",
                    "see `ferrulectl status`, the component policy-feed",
                ),
                "queue" => ("waits for its turn", "see `ferrulectl status`, and repeat this command"),
                phase => (phase, "repeat this command in a moment"),
            };
            let since = now_ms.saturating_sub(add.began_ms) / 1000;
            let mut what = format!("an ADD runs since {since} s, and {doing}");
            if !add.missing.is_empty() {
                let since = now_ms.saturating_sub(add.phase_since_ms) / 1000;
                what += &format!(", since {since} s: {}", add.missing);
            }
            return self.fatal.push((what, todo.to_owned()));
        }
        if let Some(failed) = told.failed_adds.first() {
            let times = if failed.times > 1 { format!(" ({} times)", failed.times) } else { String::new() };
            let what = format!(
                "the ADD failed {} s ago{times}, code {}: {}",
                now_ms.saturating_sub(failed.last_ms) / 1000,
                failed.code,
                failed.message
            );
            let todo = "remove the cause that the message names; the kubelet tries again".to_owned();
            return self.fatal.push((what, todo));
        }
        if let Some(ended) = told.pod.as_ref().filter(|it| matches!(&*it.phase, "Succeeded" | "Failed")) {
            return self.fatal.push(end(ended));
        }
        let what = "the API server lists the pod for this node, and no ADD has come since the agent's start";
        let todo = "see `kubectl describe pod`: the kubelet has not started a sandbox, or the runtime uses another \
                    CNI configuration than 05-ferrule.conflist";
        self.fatal.push((what.to_owned(), todo.to_owned()));
    }

    fn add_interface(&mut self, it: &ExplainedInterface, self_heal: bool) {
        let Some(attachment) = &it.attachment else { return };
        let of = &attachment.ifname;
        match attachment.state() {
            State::Attached => {}
            State::Unplugging => {
                let todo = "wait for the next sandbox; if none comes: `ferrulectl gc --dry-run`";
                return self.fatal.push((format!("a DEL removes {of}"), todo.to_owned()));
            }
            State::Reserved | State::Plugged | State::Unspecified => {
                let what = format!("the ADD of {of} is not done");
                return self.fatal.push((what, "repeat this command in a moment".to_owned()));
            }
        }
        if !it.netns_exists {
            let what = format!("the network namespace {} of the sandbox is gone", attachment.netns);
            let todo = "wait for the DEL of the runtime; if none comes: `ferrulectl gc --dry-run`";
            return self.fatal.push((what, todo.to_owned()));
        }
        for deviation in &it.deviations {
            self.add_deviation(deviation, self_heal);
        }
        self.add_inside(it);
        if !it.outside_ranges.is_empty() {
            let what = format!(
                "{} of {of} is outside of the node's ranges: other nodes do not send there any more, and another pod \
                 may get it",
                it.outside_ranges
            );
            self.partial.push((what, "delete the pod, so that it gets another address".to_owned()));
        }
        for lost in &it.lost_ports {
            let todo = "choose another port, for the pod or for the agent, and delete the pod";
            self.partial.push((lost.clone(), todo.to_owned()));
        }
        let has_subject = it.rows.iter().all(|it| it.map != SUBJECT || !it.value.is_empty());
        if !has_subject {
            let what =
                format!("nothing judges {of}: its row in VIFS does not say what, so that nothing passes");
            let todo = "see `ferrulectl status`, the components policy and policy-feed; `ferrulectl verify`";
            self.fatal.push((what, todo.to_owned()));
        }
    }

    fn add_deviation(&mut self, it: &Deviation, self_heal: bool) {
        let cause = format!("{}: {}; {}", it.kind, it.what, it.means);
        let todo = match (it.repairable && self_heal, it.kind.starts_with("pod-")) {
            (true, _) => format!("wait, the agent repairs this; else see: {}", it.command),
            (false, true) => {
                format!("delete the pod, so that it gets a new sandbox; see: {}", it.command)
            }
            (false, false) => format!("run: {}", it.command),
        };
        let is_of_counters = it.what.contains("VIF_COUNTERS");
        let is_fatal = FATAL.contains(&it.kind.as_str()) && !is_of_counters;
        if is_fatal { &mut self.fatal } else { &mut self.partial }.push((cause, todo));
    }

    fn add_inside(&mut self, it: &ExplainedInterface) {
        let lost = inside::lost_routes(it).unwrap_or_default();
        for route in lost {
            let cause = (format!("the pod has lost the route {route}"), inside::routes_remedy(it));
            let causes = if inside::is_default(route) { &mut self.fatal } else { &mut self.partial };
            causes.push(cause);
        }
        if let Some(Gateways::Wrong(entry, mac)) = inside::gateways(it) {
            let what = format!("the pod's entry {entry} has another MAC than its gateway, {mac}");
            self.partial.push((what, inside::gateways_remedy(it)));
        }
    }

    fn add_firewall(&mut self, firewall: &[ForwardDrop]) {
        for ForwardDrop { what, see, .. } in firewall.iter().filter(|it| it.total) {
            self.partial.push((what.clone(), firewall_remedy(see)));
        }
    }

    fn add_node(&mut self, told: &ExplainPodResponse) {
        for it in told.troubles.iter().filter(|it| it.needed_by_pods) {
            let cause = format!("{} is {}: {}", it.name, it.state().name(), it.reason);
            self.partial.push((cause, "see `ferrulectl status` and `ferrulectl nodes`".to_owned()));
        }
        if let Some(state) = told.policy_state.as_ref().filter(|it| it.kind() == policy_state::Kind::Refused)
        {
            let cause = format!("the last changes of policies are not in force: {}", state.reason);
            self.partial.push((cause, "see `ferrulectl policy list`".to_owned()));
        }
    }

    fn add_drops(&mut self, drops: &[DroppedPacket], now_ms: u64) {
        let is_recent = |it: &&DroppedPacket| !it.audited && now_ms.saturating_sub(it.time_ms) < RECENT;
        let recent: Vec<_> = drops.iter().filter(is_recent).collect();
        let Some(last) = recent.first() else { return };
        let count = if recent.len() == 1 {
            "a packet".to_owned()
        } else {
            format!("{} packets or more", recent.len())
        };
        let what = format!(
            "{count} dropped in the last minute, the last from {} to {}: {}",
            last.source, last.destination, last.summary
        );
        let todo = match last.reason.as_str() {
            "policy_egress" | "policy_ingress" | "policy_unknown" | "peer_unknown" => {
                "ask `ferrulectl policy trace --from … --to … --port …` which rule decides"
            }
            reason if reason.starts_with("spoofed") => {
                "the pod sends with an address that is not its own: see `ferrulectl drops --pod`"
            }
            _ => "see `ferrulectl drops --pod`, and the reason in docs/dataplane.md",
        };
        self.partial.push((what, todo.to_owned()));
    }

    fn verdict(self) -> PodVerdict {
        let kind = match (self.fatal.is_empty(), self.partial.is_empty()) {
            (false, _) => Kind::NotCarried,
            (true, false) => Kind::Impaired,
            (true, true) => Kind::Carried,
        };
        let (because, todo) = self.fatal.into_iter().chain(self.partial).unzip();
        PodVerdict { kind: kind.into(), because, todo }
    }
}

/// A pod whose containers have ended, or never began.
fn end(ListedPod { phase, reason, message, .. }: &ListedPod) -> (String, String) {
    let because = [reason, message].into_iter().filter(|it| !it.is_empty()).map(|it| format!(": {it}"));
    let what = format!("the pod has ended ({phase}){}", because.collect::<String>());
    let todo = match reason.as_str() {
        "NodePorts" => {
            "free the port: another pod of the node has the hostPort (`kubectl get pods -A -o wide`), or listens \
             there on its node's network; then create the pod again"
        }
        _ => "see `kubectl describe pod`; an ended pod has no network",
    };
    (what, todo.to_owned())
}

#[cfg(test)]
mod tests;
