//! What operators read: the label of each kind, found and expected values, and whether packets suffer.

use super::*;

/// Everything that is found of a case.
fn found(case: &Case) -> Vec<Deviation> {
    let desired = desired(&case.attachment, PROGRAMS).unwrap();
    let pod = case.pod.as_ref().map_or(PodEnd::Missing, PodEnd::Present);
    let Inventory { host, entries, lost_links, .. } = &case.actual;
    let netns_exists = lost_links.contains(&case.attachment.key);
    let mut found = desired.diff(&Actual { host, entries, netns_exists, pod });
    let all: Vec<_> = [&case.attachment].into_iter().chain(&case.others).cloned().collect();
    found.extend(case.actual.deviations(&all, &all));
    found
}

/// The line about one kind, after the change that causes this kind.
fn line(kind: Kind) -> String {
    let mut case = Case::new();
    apply(kind, &mut case);
    found(&case).iter().find(|it| it.kind == kind).unwrap_or_else(|| panic!("{kind:?}")).to_string()
}

#[test]
fn each_kind_has_its_label_and_says_whether_packets_suffer() {
    let labels: Vec<_> = every_kind()
        .into_iter()
        .map(|kind| format!("{} {}", kind.name(), if kind.affects_packets() { "suffer" } else { "pass" }))
        .collect();
    assert_eq!(
        labels,
        [
            "link-gone suffer",
            "link-stamp suffer",
            "link-group pass",
            "link-master suffer",
            "link-name pass",
            "link-mac suffer",
            "link-mtu suffer",
            "link-down suffer",
            "link-forwarding pass",
            "link-redirects pass",
            "link-localnet pass",
            "link-rate pass",
            "qdisc suffer",
            "filter suffer",
            "filter suffer",
            "route suffer",
            "neighbour suffer",
            "map-entry suffer",
            "map-entry suffer",
            "map-entry pass",
            "pod-link suffer",
            "pod-mac suffer",
            "pod-mtu suffer",
            "pod-rate pass",
            "pod-address suffer",
            "pod-route suffer",
            "pod-neighbour suffer",
            "address-shared suffer",
            "stray-link pass",
            "stray-map-entry pass",
            "node-forwarding pass",
            "node-redirects pass",
            "range-route pass",
            "masquerade-table pass",
            "host-ports-table pass",
            "node-routes pass",
            "policy-rows pass",
            "pin pass",
        ]
    );
}

#[test]
fn a_line_has_the_object_and_what_was_found_and_expected() {
    let gateway = Mac(GATEWAY_MAC).to_string();
    for (kind, parts) in [
        (Kind::LinkGone, vec!["link-gone: ", "fra (7)"]),
        (Kind::LinkStamp, vec!["link-stamp: ", "fra (7)", "ferrule:net:a:eth0"]),
        (Kind::LinkGroup, vec!["link-group: ", "(retired interfaces), expected 0, on fra"]),
        (Kind::LinkMaster, vec!["link-master: ", "fra", " 3"]),
        (Kind::LinkName, vec!["link-name: ", "wrong name other, expected fra, of host interface 7"]),
        (Kind::LinkMac, vec!["link-mac: ", "02:00:00:00:00:02, expected", &gateway, "on fra"]),
        (Kind::LinkMtu, vec!["link-mtu: ", "1400, expected 1500, on fra"]),
        (Kind::LinkDown, vec!["link-down: ", "fra", "down"]),
        (Kind::LinkForwarding, vec!["link-forwarding: ", "net.ipv4.conf.fra.forwarding is 0, expected 1"]),
        (Kind::LinkRedirects, vec!["link-redirects: ", "net.ipv4.conf.fra.send_redirects is 1, expected 0"]),
        (Kind::LinkLocalnet, vec!["link-localnet: ", "net.ipv4.conf.fra.route_localnet is 0, expected 1"]),
        (Kind::LinkRate, vec!["link-rate: ", "wrong rate none, expected 1000000 bytes/s, on fra"]),
        (Kind::Qdisc, vec!["qdisc: ", "fra", "ingress"]),
        (Kind::Filter(Hook::FromPod), vec!["filter: ", "from_pod", "fra"]),
        (Kind::Filter(Hook::ToPod), vec!["filter: ", "to_pod", "fra"]),
        (Kind::Route(V4), vec!["route: ", "10.0.0.2", "fra"]),
        (Kind::Neighbour(V4), vec!["neighbour: ", "10.0.0.2", "fra"]),
        (Kind::Entry(Entry::Vif(INDEX)), vec!["map-entry: ", "VIFS", "7"]),
        (Kind::Entry(Entry::Endpoint(V4)), vec!["map-entry: ", "ENDPOINTS", "10.0.0.2"]),
        (Kind::Entry(Entry::Counters(INDEX)), vec!["map-entry: ", "VIF_COUNTERS", "7"]),
        (Kind::PodLink, vec!["pod-link: ", "no interface eth0"]),
        (Kind::PodMac, vec!["pod-mac: ", &gateway, ", expected 02:00:00:00:00:02", "eth0"]),
        (Kind::PodMtu, vec!["pod-mtu: ", "wrong MTU 1600, expected 1500", "eth0"]),
        (Kind::PodRate, vec!["pod-rate: ", "wrong rate none, expected 1000000 bytes/s", "eth0"]),
        (Kind::PodAddress(V4), vec!["pod-address: ", "eth0", "10.0.0.2"]),
        (
            Kind::PodRoute(IpNet::V4(ipnet::Ipv4Net::default())),
            vec!["pod-route: ", "no default route through 169.254.1.1"],
        ),
        (Kind::PodNeighbour(GATEWAY.0.into()), vec!["pod-neighbour: ", "169.254.1.1"]),
        (Kind::AddressShared(V4), vec!["address-shared: ", "net/b/eth0 has the address 10.0.0.2"]),
        (Kind::StrayLink, vec!["stray-link: ", "frgone (99)", "net/gone/eth0"]),
        (Kind::StrayEntry, vec!["stray-map-entry: ", "belongs to no attachment"]),
        (Kind::NodeForwarding, vec!["node-forwarding: ", "net.ipv4.", "is 0, expected 1"]),
        (Kind::NodeRedirects, vec!["node-redirects: ", "net.ipv4.conf.all.send_redirects is 1, expected 0"]),
        (Kind::RangeRoute, vec!["range-route: ", "10.0.0.0/24"]),
        (Kind::Masquerade, vec!["masquerade-table: ", "table inet ferrule is missing"]),
        (Kind::HostPorts, vec!["host-ports-table: ", "table inet ferrule-ports is missing"]),
        (Kind::NodeRoutes, vec!["node-routes: ", "10.1.0.0/24"]),
        (Kind::PolicyRows, vec!["policy-rows: ", "VIFS.subject"]),
        (Kind::Pin, vec!["pin: ", "VIFS"]),
    ] {
        let line = line(kind);
        for part in parts {
            assert!(line.contains(part), "{part:?} in {line:?}");
        }
    }
}

#[test]
fn a_wrong_program_neighbour_or_route_is_named_with_the_expected_one() {
    let lines = |change: &dyn Fn(&mut Case)| {
        let mut case = Case::new();
        change(&mut case);
        found(&case).iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
    };
    let text = lines(&|case| filters(&mut case.actual)[0].program = Some(9));
    assert!(text.contains("wrong program 9, expected 100, of the filter from_pod on fra"), "{text}");
    let text = lines(&|case| filters(&mut case.actual)[0].program = None);
    assert!(text.contains("wrong program none, expected 100, of the filter from_pod on fra"), "{text}");

    let wrong = (Mac(GATEWAY_MAC), true);
    let text = lines(&|case| case.actual.host.neighbours.extend([((INDEX, V4), wrong)]));
    assert!(
        text.contains(&format!("wrong MAC {}, expected {MAC}, of the neighbour 10.0.0.2", wrong.0)),
        "{text}"
    );
    let text = lines(&|case| case.pod().neighbours.extend([(GATEWAY.0.into(), MAC)]));
    let expected = format!("wrong MAC {MAC}, expected {}, in the pod's neighbour entry", wrong.0);
    assert!(text.contains(&expected), "{text}");

    // Another default route; the desired one is missing.
    let text = lines(&|case| {
        let route = &mut case.pod().routes[0];
        (route.gateway, route.mtu) = ("10.0.0.1".parse().unwrap(), Some(1400));
        (route.advmss, route.priority) = (Some(1300), Some(7));
    });
    let expected = "no default route through 169.254.1.1; found: through 10.0.0.1 with the MTU 1400 and \
                    advertised MSS 1300 and priority 7";
    assert!(text.contains(expected), "{text}");
    let text = lines(&|case| case.link().group = 5);
    assert!(text.contains("wrong link group 5, expected 0, on fra"), "{text}");
}

#[test]
fn each_property_of_a_route_is_compared() {
    let dst = "172.16.0.0/12".parse().unwrap();
    let gateway = "10.0.0.1".parse().unwrap();
    let full = ferrule_vif::Route {
        mtu: Some(1400),
        advmss: Some(1300),
        priority: Some(7),
        ..ferrule_vif::Route::new(dst, Some(gateway))
    };
    let changes: [fn(&mut ferrule_vif::PodRoute); 5] = [
        |route| route.gateway = "10.0.0.9".parse().unwrap(),
        |route| route.mtu = Some(1401),
        |route| route.advmss = None,
        |route| route.priority = Some(8),
        |route| route.dst = "172.16.0.0/13".parse().unwrap(),
    ];
    for (i, change) in changes.into_iter().enumerate() {
        let mut case = Case::new();
        case.attachment.vif.routes.push(full.clone());
        case.pod = Some(good_pod(&case.attachment));
        assert_eq!(case.both_ends(), []);
        change(case.pod().routes.last_mut().unwrap());
        assert_eq!(case.both_ends(), [Kind::PodRoute(dst)], "change {i}");
    }
}

#[test]
fn subjects_are_shown_with_what_identifies_them() {
    let key = || one("a", 2, INDEX).key;
    for (subject, shown, attachment) in [
        (Subject::Attachment(key()), "net/a/eth0", Some(key())),
        (Subject::Interface(99, key()), "interface 99 of net/a/eth0", None),
        (Subject::Setting("ipv4/ip_forward"), "net.ipv4.ip_forward", None),
        (Subject::Pin("VIFS"), "pin of VIFS", None),
        (Subject::Range("10.0.0.0/24".parse().unwrap()), "range 10.0.0.0/24", None),
        (Subject::MasqueradeTable, "table inet ferrule", None),
        (Subject::HostPortsTable, "table inet ferrule-ports", None),
        (Subject::NodeRoutes, "routes to other nodes", None),
        (Subject::PolicyRows, "rows of policies", None),
    ] {
        assert_eq!(subject.to_string(), shown);
        assert_eq!(subject.attachment(), attachment.as_ref());
    }
}

#[test]
fn up_to_three_deviations_are_spelled_out() {
    let deviation = found(&{
        let mut case = Case::new();
        case.link().up = false;
        case
    })
    .remove(0);
    let of = |count| summary(&vec![deviation.clone(); count]);
    let line = deviation.to_string();
    assert_eq!(of(0), "");
    assert_eq!(of(1), line);
    assert_eq!(of(3), format!("{line}; {line}; {line}"));
    assert_eq!(of(4), format!("{line}; {line}; {line}; and 1 more"));
}

#[test]
fn the_expected_mtu_is_shown_with_its_bound() {
    assert_eq!(ExpectedMtu::Exactly(1500).to_string(), "1500");
    assert_eq!(ExpectedMtu::AtMost(1500).to_string(), "at most 1500");
}

#[test]
fn deviations_name_found_and_expected() {
    let mut case = Case::new();
    case.pod().mac = Some(Mac(GATEWAY_MAC));
    let desired = desired(&case.attachment, PROGRAMS).unwrap();
    let pod = PodEnd::Present(case.pod.as_ref().unwrap());
    let Inventory { host, entries, .. } = &case.actual;
    let found = desired.diff(&Actual { host, entries, netns_exists: true, pod });
    let expected =
        format!("pod-mac: wrong MAC {}, expected {MAC}, on the pod's interface eth0", Mac(GATEWAY_MAC));
    assert_eq!(summary(&found), expected);
    let many: Vec<_> = found.iter().cycle().take(5).cloned().collect();
    assert!(summary(&many).ends_with("; and 2 more"), "{}", summary(&many));
}
