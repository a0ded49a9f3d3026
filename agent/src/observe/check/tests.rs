//! Which check fails for what.

use std::time::Duration;

use ferrule_proto::agent::{Attachment, Deviation, ForwardDrop, HostEnd, MapRow, PodEnd, PodVerdict};

use super::*;

fn interface() -> ExplainedInterface {
    let routes =
        vec!["default via 169.254.1.1".to_owned(), "10.9.0.0/16 via 169.254.1.1 mtu 1400".to_owned()];
    ExplainedInterface {
        attachment: Some(Attachment {
            ifname: "eth0".to_owned(),
            addresses: vec!["10.0.0.2".to_owned()],
            state: State::Attached.into(),
            ..Attachment::default()
        }),
        netns_exists: true,
        host_end: Some(HostEnd { mac: "02:00:00:00:00:01".to_owned(), ..HostEnd::default() }),
        pod_end: Some(PodEnd {
            routes: routes.clone(),
            neighbours: vec!["169.254.1.1 02:00:00:00:00:01".to_owned()],
            ..PodEnd::default()
        }),
        routes,
        rows: vec![MapRow { map: "VIFS.subject".to_owned(), key: "7".to_owned(), value: "open".to_owned() }],
        ..ExplainedInterface::default()
    }
}

fn outcomes(it: ExplainedInterface) -> Vec<(String, Outcome)> {
    let told = ExplainPodResponse { interfaces: vec![it], self_heal: true, ..Default::default() };
    let checks = check(&told, &[]).checks;
    for it in &checks {
        assert_eq!(it.outcome() == Outcome::Failed, !it.todo.is_empty(), "{it:?}");
    }
    checks
        .into_iter()
        .map(|it| (it.name.clone(), it.outcome()))
        .filter(|it| it.1 != Outcome::Passed)
        .collect()
}

fn of(name: &str, outcome: Outcome) -> Vec<(String, Outcome)> {
    vec![(name.to_owned(), outcome)]
}

#[test]
fn a_healthy_pod_passes_every_check() {
    assert_eq!(outcomes(interface()), []);
}

#[test]
fn each_deviation_fails_the_check_of_its_kind() {
    for (kind, name) in [
        ("link-down", "host interface"),
        ("link-localnet", "host interface"),
        ("link-rate", "limits"),
        ("pod-rate", "pod interface"),
        ("filter", "filters"),
        ("neighbour", "host routes"),
        ("map-entry", "map rows"),
        ("pod-mtu", "pod interface"),
        ("address-shared", "pod addresses"),
    ] {
        let deviation =
            Deviation { kind: kind.to_owned(), command: "ip link".to_owned(), ..Deviation::default() };
        let broken = ExplainedInterface { deviations: vec![deviation], ..interface() };
        assert_eq!(outcomes(broken), of(name, Outcome::Failed), "{kind}");
    }
}

#[test]
fn the_pods_own_changes_are_found() {
    let mut it = interface();
    it.pod_end.as_mut().unwrap().routes.remove(0);
    assert_eq!(outcomes(it), of("pod routes", Outcome::Failed));
    let mut it = interface();
    it.pod_end.as_mut().unwrap().routes[0] += " mtu 1300";
    assert_eq!(outcomes(it), [], "a metric that the VIF leaves to the kernel may have any value");
    let mut it = interface();
    it.pod_end.as_mut().unwrap().neighbours = vec!["169.254.1.1 02:00:00:00:00:99".to_owned()];
    assert_eq!(outcomes(it), of("pod neighbours", Outcome::Failed));
    let mut it = interface();
    it.pod_end.as_mut().unwrap().neighbours = vec!["10.0.0.9 02:00:00:00:00:99".to_owned()];
    assert_eq!(outcomes(it), [], "the pod resolves its gateway");
    let mut it = interface();
    it.rows[0].value.clear();
    assert_eq!(outcomes(it), of("judge", Outcome::Failed));
}

#[test]
fn what_cannot_be_read_is_unknown_and_a_lost_namespace_fails() {
    let unread = ExplainedInterface { pod_end: None, no_pod_end_because: "why".to_owned(), ..interface() };
    let names: Vec<_> =
        outcomes(unread).into_iter().filter(|it| it.1 == Outcome::Unknown).map(|it| it.0).collect();
    assert_eq!(names, ["pod interface", "pod addresses", "pod routes", "pod neighbours"]);
    let gone = ExplainedInterface { netns_exists: false, ..interface() };
    assert_eq!(outcomes(gone), of("attachment", Outcome::Failed));
    let verdict =
        PodVerdict { because: vec!["why".to_owned()], todo: vec!["what".to_owned()], ..Default::default() };
    let none = ExplainPodResponse { verdict: Some(verdict), ..Default::default() };
    let first = &check(&none, &[]).checks[0];
    assert_eq!((first.outcome(), first.what.as_str(), first.todo.as_str()), (Outcome::Failed, "why", "what"));
}

#[test]
fn a_firewall_that_drops_all_that_is_forwarded_fails_and_one_that_may_drop_is_unknown() {
    let with = |firewall| {
        let told = ExplainPodResponse { interfaces: vec![interface()], firewall, ..Default::default() };
        let found = check(&told, &[]).checks.into_iter().find(|it| it.name == "firewall").unwrap();
        (found.outcome(), found.what, found.todo)
    };
    let chain = |what: &str, total| ForwardDrop { what: what.to_owned(), see: "nft list".to_owned(), total };
    assert_eq!(with(vec![]).0, Outcome::Passed);
    let may = chain("may", false);
    assert_eq!(with(vec![may.clone()]), (Outcome::Unknown, "may".to_owned(), String::new()));
    let todo = "accept what pods send and receive there, see: nft list".to_owned();
    assert_eq!(with(vec![may, chain("all", true)]), (Outcome::Failed, "may; all".to_owned(), todo));
}

#[test]
fn an_address_without_an_answer_fails_the_probe_of_its_interface() {
    let told = ExplainPodResponse { interfaces: vec![interface()], ..Default::default() };
    let answer = |ifname: &str, address: &str, after: Result<u64, &str>| Answer {
        ifname: ifname.to_owned(),
        address: address.to_owned(),
        after: after.map(Duration::from_micros).map_err(str::to_owned),
    };
    let probe = |answers: &[Answer]| {
        let checks = check(&told, answers).checks.into_iter();
        checks.filter(|it| it.name == "probe").map(|it| (it.outcome(), it.what)).collect::<Vec<_>>()
    };
    assert_eq!(probe(&[]), [], "no address was asked");
    let heard = answer("eth0", "10.0.0.2", Ok(41));
    let expected = (Outcome::Passed, "10.0.0.2 answers after 0.041 ms".to_owned());
    assert_eq!(probe(&[heard.clone(), answer("net1", "10.9.0.2", Err("why"))]), [expected]);
    let expected = (Outcome::Failed, "no answer to the node: fd00::2: none within 1s".to_owned());
    assert_eq!(probe(&[heard, answer("eth0", "fd00::2", Err("none within 1s"))]), [expected]);
}
