//! Which facts make which verdict.

use ferrule_proto::agent::{
    AddInFlight, Attachment, Component, FailedAdd, HostEnd, ListedPod, MapRow, PodEnd, PolicyState, component,
};

use super::*;

const NOW: u64 = 1_000_000;

fn interface(container: &str) -> ExplainedInterface {
    let attachment = Attachment {
        container_id: container.to_owned(),
        ifname: "eth0".to_owned(),
        netns: "/run/netns/web".to_owned(),
        state: State::Attached.into(),
        ..Attachment::default()
    };
    let row = MapRow { map: "VIFS.subject".to_owned(), key: "7".to_owned(), value: "open".to_owned() };
    ExplainedInterface {
        attachment: Some(attachment),
        netns_exists: true,
        rows: vec![row],
        ..Default::default()
    }
}

fn told() -> ExplainPodResponse {
    ExplainPodResponse { interfaces: vec![interface("new")], self_heal: true, ..Default::default() }
}

fn deviation(kind: &str, what: &str, repairable: bool) -> Deviation {
    Deviation {
        kind: kind.to_owned(),
        what: what.to_owned(),
        means: "the pod has no network".to_owned(),
        command: "ip link".to_owned(),
        repairable,
        ..Deviation::default()
    }
}

fn judged(told: &ExplainPodResponse) -> (Kind, String, String) {
    let verdict = judge(told, NOW);
    assert_eq!(verdict.because.len(), verdict.todo.len());
    (verdict.kind(), verdict.because.join("; "), verdict.todo.join("; "))
}

#[test]
fn a_healthy_pod_is_carried_whatever_its_older_sandbox_lacks() {
    let mut told = told();
    told.interfaces.push(ExplainedInterface { netns_exists: false, ..interface("old") });
    assert_eq!(judged(&told), (Kind::Carried, String::new(), String::new()));
}

#[test]
fn pod_whose_address_the_node_has_lost_is_impaired() {
    let mut told = told();
    told.interfaces[0].outside_ranges = "10.244.9.2".to_owned();
    let (kind, because, todo) = judged(&told);
    assert!(kind == Kind::Impaired && because.starts_with("10.244.9.2 of eth0 is outside"), "{because}");
    assert!(todo.starts_with("delete the pod"), "{todo}");
}

#[test]
fn a_pod_without_an_attachment_is_explained_by_its_adds() {
    let mut told = ExplainPodResponse::default();
    assert!(judged(&told).1.contains("no ADD has come"));
    told.failed_adds = vec![FailedAdd {
        last_ms: NOW - 3000,
        times: 4,
        code: 11,
        message: "no IPv4 address is free".to_owned(),
        ..FailedAdd::default()
    }];
    let (kind, because, _) = judged(&told);
    let expected = "the ADD failed 3 s ago (4 times), code 11: no IPv4 address is free";
    assert_eq!((kind, because.as_str()), (Kind::NotCarried, expected));
    let add = AddInFlight { began_ms: NOW - 12_000, phase: "wait_for_vif".to_owned(), ..Default::default() };
    told.adds_in_flight = vec![add];
    assert!(
        judged(&told).1.contains("runs since 12 s, and waits for the pod's VIF"),
        "the newest comes first"
    );
}

#[test]
fn a_pod_that_the_kubelet_refused_or_that_has_ended_has_no_network_by_that() {
    let ended = |phase: &str, reason: &str, message: &str| {
        let (phase, reason, message) = (phase.to_owned(), reason.to_owned(), message.to_owned());
        let pod = ListedPod { phase, reason, message, ..ListedPod::default() };
        judged(&ExplainPodResponse { pod: Some(pod), ..Default::default() })
    };
    let (kind, because, todo) = ended("Failed", "NodePorts", "Predicate NodePorts failed");
    let expected = "the pod has ended (Failed): NodePorts: Predicate NodePorts failed";
    assert_eq!((kind, because.as_str()), (Kind::NotCarried, expected));
    assert!(todo.starts_with("free the port"), "{todo}");
    assert_eq!(ended("Succeeded", "", "").1, "the pod has ended (Succeeded)");
    assert!(ended("Running", "", "").1.contains("no ADD has come"), "not ended");
}

#[test]
fn a_pod_on_its_nodes_network_is_no_matter_of_the_agent() {
    let pod = ListedPod { host_network: true, phase: "Running".to_owned(), ..ListedPod::default() };
    let (kind, because, _) = judged(&ExplainPodResponse { pod: Some(pod), ..Default::default() });
    assert!(kind == Kind::NodeNetwork && because.starts_with("hostNetwork"), "{kind:?} {because}");
}

#[test]
fn a_pod_that_lost_a_port_of_the_node_is_impaired() {
    let mut told = told();
    told.interfaces[0].lost_ports = vec!["the node's port TCP 0.0.0.0:9469 is the agent's own".to_owned()];
    let (kind, because, todo) = judged(&told);
    assert_eq!((kind, because), (Kind::Impaired, told.interfaces[0].lost_ports[0].clone()));
    assert!(todo.starts_with("choose another port"), "{todo}");
}

#[test]
fn a_waiting_add_names_what_is_missing_since_when_and_whom_to_ask() {
    let waits = |phase: &str, missing: &str| {
        let add = AddInFlight {
            began_ms: NOW - 12_000,
            phase: phase.to_owned(),
            missing: missing.to_owned(),
            phase_since_ms: NOW - 7000,
            ..Default::default()
        };
        let told = ExplainPodResponse { adds_in_flight: vec![add], ..Default::default() };
        let (kind, because, todo) = judged(&told);
        assert_eq!(kind, Kind::NotCarried);
        (because, todo)
    };
    let (because, todo) = waits("wait_for_vif", "no pod of this name and UID at the API server");
    assert_eq!(
        because,
        "an ADD runs since 12 s, and waits for the pod's VIF, since 7 s: no pod of this name and UID at the API server"
    );
    assert!(todo.contains("component pods"), "{todo}");
    assert!(waits("wait_for_vif", "no pod CIDR in the node's spec.podCIDRs").1.contains("--pod-cidr"));
    let (because, todo) = waits("wait_for_vif", "no annotation vif.ferrule.dev/v1 on the pod");
    assert!(because.ends_with("no annotation vif.ferrule.dev/v1 on the pod"), "{because}");
    assert!(todo.contains("kubectl describe pod"), "{todo}");
    let (because, todo) = waits("wait_for_policy", "no complete list of policies yet");
    assert!(because.ends_with("since 7 s: no complete list of policies yet"), "{because}");
    assert!(todo.contains("policy-feed"), "{todo}");
    assert!(waits("plug", "").0.ends_with("and plug"));
}

#[test]
fn what_carries_nothing_comes_before_what_only_impairs() {
    let mut told = told();
    let it = &mut told.interfaces[0];
    it.deviations = vec![
        deviation("link-mtu", "wrong MTU", true),
        deviation("link-down", "frabc is down", true),
        deviation("map-entry", "the map entry VIF_COUNTERS 7 is missing", true),
        deviation("pod-link", "the pod has no interface eth0", false),
    ];
    let verdict = judge(&told, NOW);
    assert_eq!(verdict.kind(), Kind::NotCarried);
    let kinds: Vec<_> = verdict.because.iter().map(|it| it.split(':').next().unwrap()).collect();
    assert_eq!(kinds, ["link-down", "pod-link", "link-mtu", "map-entry"]);
    assert!(verdict.todo[0].starts_with("wait, the agent repairs this"), "{verdict:?}");
    assert!(verdict.todo[1].starts_with("delete the pod"), "{verdict:?}");
    told.self_heal = false;
    assert!(judge(&told, NOW).todo[0].starts_with("run: ip link"));
}

#[test]
fn a_lost_namespace_an_end_and_a_missing_judge_carry_nothing() {
    let mut told = told();
    told.interfaces[0].rows[0].value.clear();
    assert!(judged(&told).1.contains("VIFS does not say what"));
    told.interfaces[0].netns_exists = false;
    assert!(judged(&told).1.contains("/run/netns/web of the sandbox is gone"));
    for state in [State::Unplugging, State::Reserved] {
        told.interfaces[0].attachment.as_mut().unwrap().state = state.into();
        assert_eq!(judged(&told).0, Kind::NotCarried, "{state:?}");
    }
}

#[test]
fn a_pod_without_its_default_route_is_cut_off_and_one_without_another_route_impaired() {
    let routes = ["default via 169.254.1.1", "10.9.0.0/16 via 169.254.1.1"].map(str::to_owned);
    let with = |routes: Vec<String>, neighbour: &str| {
        let mut told = told();
        let it = &mut told.interfaces[0];
        it.routes = ["default via 169.254.1.1", "10.9.0.0/16 via 169.254.1.1"].map(str::to_owned).to_vec();
        it.host_end = Some(HostEnd { mac: "02:00:00:00:00:01".to_owned(), ..HostEnd::default() });
        let neighbours = vec![format!("169.254.1.1 {neighbour}")];
        it.pod_end = Some(PodEnd { routes, neighbours, ..PodEnd::default() });
        judged(&told)
    };
    let right = "02:00:00:00:00:01";
    assert_eq!(with(routes.to_vec(), right).0, Kind::Carried);
    let (kind, because, todo) = with(routes[1..].to_vec(), right);
    assert_eq!(
        (kind, because.as_str()),
        (Kind::NotCarried, "the pod has lost the route default via 169.254.1.1")
    );
    assert!(todo.contains("nsenter --net=/run/netns/web ip route show dev eth0"), "{todo}");
    assert_eq!(with(routes[..1].to_vec(), right).0, Kind::Impaired);
    let (kind, because, todo) = with(routes.to_vec(), "02:00:00:00:00:99");
    assert_eq!(kind, Kind::Impaired);
    assert!(because.contains("169.254.1.1 02:00:00:00:00:99 has another MAC"), "{because}");
    assert!(todo.contains("ip neighbour flush dev eth0"), "{todo}");
}

#[test]
fn a_firewall_that_drops_all_that_is_forwarded_impairs() {
    let chain = |total| ForwardDrop { what: "a chain".to_owned(), see: "nft list".to_owned(), total };
    let with = |total| judged(&ExplainPodResponse { firewall: vec![chain(total)], ..told() });
    assert_eq!(with(false).0, Kind::Carried, "its rules may concern others");
    let (kind, because, todo) = with(true);
    assert_eq!((kind, because.as_str()), (Kind::Impaired, "a chain"));
    assert!(todo.ends_with("see: nft list"), "{todo}");
}

#[test]
fn the_node_and_recent_drops_impair() {
    let mut base = told();
    base.troubles = vec![Component { name: "pods".to_owned(), ..Component::default() }];
    assert_eq!(judged(&base).0, Kind::Carried, "the component concerns no running pod");
    let trouble = Component {
        name: "default-route".to_owned(),
        state: component::State::Unhealthy.into(),
        reason: "no default route".to_owned(),
        needed_by_pods: true,
        ..Component::default()
    };
    let troubled = ExplainPodResponse { troubles: vec![trouble], ..told() };
    assert_eq!(judged(&troubled).0, Kind::Impaired);
    assert_eq!(judged(&troubled).1, "default-route is unhealthy: no default route");
    let state = PolicyState { kind: policy_state::Kind::Refused.into(), reason: "full".to_owned() };
    let refused = ExplainPodResponse { policy_state: Some(state), ..told() };
    assert_eq!(judged(&refused).0, Kind::Impaired);
    let drop = |reason: &str, time_ms, audited| DroppedPacket {
        reason: reason.to_owned(),
        time_ms,
        audited,
        source: "a".to_owned(),
        destination: "b".to_owned(),
        summary: "TCP".to_owned(),
        ..DroppedPacket::default()
    };
    let harmless = vec![drop("policy_ingress", NOW, true), drop("no_vif", NOW - RECENT, false)];
    assert_eq!(judged(&ExplainPodResponse { drops: harmless, ..told() }).0, Kind::Carried);
    let drops = vec![drop("policy_ingress", NOW - 1, false), drop("policy_ingress", NOW - 2, false)];
    let (kind, because, todo) = judged(&ExplainPodResponse { drops, ..told() });
    let expected = "2 packets or more dropped in the last minute, the last from a to b: TCP";
    assert_eq!((kind, because.as_str()), (Kind::Impaired, expected));
    assert!(todo.contains("policy trace"), "{todo}");
}
