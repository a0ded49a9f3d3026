//! What the pod itself, or a later plugin of the chain, may have changed inside of the pod: routes, and the
//! neighbour entries of gateways. Pure.

use ferrule_proto::agent::{ExplainedInterface, HostEnd, PodEnd};

/// The gateways' neighbour entries in the pod.
pub(super) enum Gateways {
    /// The pod resolves its gateways itself.
    Unresolved,
    /// `10.0.0.1 02:00:00:00:00:01`.
    Right(Vec<String>),
    /// An entry, and the MAC that it should have.
    Wrong(String, String),
}

/// The routes that the pod should have and has not; `None` if the pod's end was not read.
pub(super) fn lost_routes(it: &ExplainedInterface) -> Option<Vec<&str>> {
    let PodEnd { routes, .. } = it.pod_end.as_ref()?;
    let lost = it.routes.iter().filter(|wanted| !routes.iter().any(|it| serves(it, wanted)));
    Some(lost.map(String::as_str).collect())
}

/// `None` if an end was not read.
pub(super) fn gateways(it: &ExplainedInterface) -> Option<Gateways> {
    let (Some(pod), Some(HostEnd { mac, .. })) = (&it.pod_end, &it.host_end) else { return None };
    let is_gateway = |address: &str| {
        it.routes
            .iter()
            .any(|route| route.split(" via ").nth(1).is_some_and(|it| it.split(' ').next() == Some(address)))
    };
    let entries = pod.neighbours.iter().filter(|it| it.split(' ').next().is_some_and(is_gateway));
    let entries: Vec<_> = entries.cloned().collect();
    let wrong = entries.iter().find(|it| it.split(' ').nth(1) != Some(mac));
    Some(match wrong {
        Some(wrong) => Gateways::Wrong(wrong.clone(), mac.clone()),
        None if entries.is_empty() => Gateways::Unresolved,
        None => Gateways::Right(entries),
    })
}

pub(super) fn routes_remedy(it: &ExplainedInterface) -> String {
    let show = in_pod(it, "ip route show");
    format!("see what the pod, or a later plugin of the chain, has changed: {show}; a new pod has its routes")
}

pub(super) fn gateways_remedy(it: &ExplainedInterface) -> String {
    in_pod(it, "ip neighbour flush")
}

pub(super) fn is_default(route: &str) -> bool {
    route.starts_with("default ")
}

fn in_pod(it: &ExplainedInterface, command: &str) -> String {
    let of = it.attachment.clone().unwrap_or_default();
    format!("nsenter --net={} {command} dev {}", of.netns, of.ifname)
}

/// The route with the metrics that are wanted, and any others.
fn serves(found: &str, wanted: &str) -> bool {
    found == wanted || found.strip_prefix(wanted).is_some_and(|rest| rest.starts_with(' '))
}
