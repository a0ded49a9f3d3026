//! Who reaches whom under which policy.

use std::{fs, net::SocketAddr, path::Path};

use anyhow::ensure;
use ferrule_tests::{
    apiserver::{Options, Resource, objects},
    sys,
};
use serde_json::json;

use crate::scene::{By, PORTS, WEB, expect, reaches, wait_until_reached, with_scene, with_scene_of};

const UDP: By = By::Udp(80);

fn own_node() -> &'static Path {
    Path::new("/proc/thread-self/ns/net")
}

#[test]
fn an_isolated_pod_answers_its_node_only_and_its_own_questions_are_answered() {
    with_scene(|scene| {
        let ((a, _a), (b, _b)) = (scene.pod("web", "a")?, scene.pod("web", "b")?);
        for by in [WEB, UDP, By::Ping] {
            wait_until_reached(&a, &b, by, true)?;
        }
        scene.set_policy("web", "deny", json!({ "podSelector": { "matchLabels": { "app": "b" } } }))?;
        for by in [WEB, UDP, By::Ping] {
            wait_until_reached(&a, &b, by, false)?;
            expect(&b, &a, by, true)?;
        }
        for address in &b.addresses {
            ensure!(reaches(own_node(), *address, WEB)?, "the node does not reach {address}");
        }
        scene.delete_policy("web", "deny")?;
        for by in [WEB, UDP, By::Ping] {
            wait_until_reached(&a, &b, by, true)?;
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn peers_are_allowed_by_the_labels_of_pods_and_of_their_namespaces() {
    with_scene(|scene| {
        let (server, _server) = scene.pod("web", "server")?;
        let ((front, _f), (other, _o)) = (scene.pod("web", "front")?, scene.pod("web", "other")?);
        let ((stranger, _s), (same, _m)) = (scene.pod("db", "stranger")?, scene.pod("db", "front")?);
        let subject = json!({ "matchLabels": { "app": "server" } });
        let front_pods = json!({ "matchLabels": { "app": "front" } });
        let of_db = json!({ "matchLabels": { "team": "db" } });
        let cases = [
            (json!([{ "podSelector": front_pods }]), [true, false, false, false]),
            (json!([{ "podSelector": {} }]), [true, true, false, false]),
            (json!([{ "namespaceSelector": of_db }]), [false, false, true, true]),
            (json!([{ "namespaceSelector": of_db, "podSelector": front_pods }]), [false, false, false, true]),
            (
                json!([{ "namespaceSelector": of_db }, { "podSelector": front_pods }]),
                [true, false, true, true],
            ),
            (json!([{ "namespaceSelector": {} }]), [true; 4]),
        ];
        scene.set_policy("web", "p", json!({ "podSelector": subject }))?;
        for (peers, reached) in cases {
            scene.set_policy(
                "web",
                "p",
                json!({ "podSelector": subject, "ingress": [{ "from": peers }] }),
            )?;
            for (from, is_reached) in [&front, &other, &stranger, &same].into_iter().zip(reached) {
                wait_until_reached(from, &server, WEB, is_reached)?;
            }
            for (from, is_reached) in [&front, &other, &stranger, &same].into_iter().zip(reached) {
                expect(from, &server, UDP, is_reached)?;
            }
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn blocks_contain_pods_and_their_exceptions_do_not() {
    with_scene(|scene| {
        let (server, _server) = scene.pod("web", "server")?;
        let ((a, _a), (b, _b)) = (scene.pod("db", "a")?, scene.pod("db", "b")?);
        let [v4, v6] = *b.addresses.as_slice() else { anyhow::bail!("{:?}", b.addresses) };
        let spec = json!({ "podSelector": {}, "ingress": [{ "from": [
            { "ipBlock": { "cidr": "10.0.0.0/8", "except": [format!("{v4}/32")] } },
            { "ipBlock": { "cidr": "fd00::/8", "except": [format!("{v6}/128")] } },
        ] }] });
        scene.set_policy("web", "blocks", spec)?;
        wait_until_reached(&b, &server, WEB, false)?;
        expect(&a, &server, WEB, true)?;
        expect(&b, &server, By::Ping, false)
    })
    .unwrap();
}

#[test]
fn ports_are_chosen_by_number_range_and_name_and_protocols_are_apart() {
    with_scene(|scene| {
        let ((server, _server), (a, _a)) = (scene.pod("web", "server")?, scene.pod("web", "a")?);
        let allowed = |ports| json!({ "podSelector": {}, "ingress": [{ "ports": ports }] });
        let [first, second] = PORTS;
        let all = [By::Tcp(first), By::Tcp(second), By::Udp(first), By::Udp(second)];
        let cases = [
            (json!([{ "port": "http" }]), [true, false, false, false]),
            (json!([{ "port": second, "protocol": "UDP" }]), [false, false, false, true]),
            (json!([{ "port": first, "endPort": second }]), [true, true, false, false]),
            (json!([{ "protocol": "UDP" }]), [false, false, true, true]),
        ];
        for (ports, reached) in cases {
            scene.set_policy("web", "ports", allowed(ports))?;
            for _ in 0..2 {
                for (by, is_reached) in all.into_iter().zip(reached) {
                    wait_until_reached(&a, &server, by, is_reached)?;
                }
            }
            expect(&a, &server, By::Ping, false)?;
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_pod_without_egress_begins_nothing_and_still_answers() {
    with_scene(|scene| {
        let ((a, _a), (b, _b)) = (scene.pod("web", "a")?, scene.pod("db", "b")?);
        let spec = json!({ "podSelector": {}, "policyTypes": ["Egress"] });
        scene.set_policy("web", "egress", spec)?;
        for by in [WEB, UDP, By::Ping] {
            wait_until_reached(&a, &b, by, false)?;
            expect(&b, &a, by, true)?;
        }
        let spec = json!({ "podSelector": {}, "policyTypes": ["Egress"], "egress": [
            { "to": [{ "namespaceSelector": { "matchLabels": { "team": "db" } } }], "ports": [{ "port": "http" }] },
        ] });
        scene.set_policy("web", "egress", spec)?;
        wait_until_reached(&a, &b, WEB, true)?;
        expect(&a, &b, By::Tcp(81), false)
    })
    .unwrap();
}

#[test]
fn a_service_is_judged_by_its_backend() {
    const SERVICES: [&str; 2] = ["10.96.0.10", "fd00:96::10"];
    const PORT: u16 = 8000;
    with_scene(|scene| {
        let ((a, _a), (b, _b)) = (scene.pod("web", "a")?, scene.pod("db", "b")?);
        let [v4, v6] = *b.addresses.as_slice() else { anyhow::bail!("{:?}", b.addresses) };
        let rules = format!(
            "table inet services {{\nchain prerouting {{\ntype nat hook prerouting priority dstnat;\n\
             meta l4proto {{ tcp, udp }} ip daddr {} th dport {PORT} dnat ip to {v4}:80\n\
             meta l4proto {{ tcp, udp }} ip6 daddr {} th dport {PORT} dnat ip6 to [{v6}]:80\n}}\n}}\n",
            SERVICES[0], SERVICES[1]
        );
        fs::write("/run/services.nft", rules)?;
        sys::run("nft -f /run/services.nft")?;
        let addresses = SERVICES.map(|it| it.parse().unwrap());
        scene.cluster.api.create(Resource::Services, objects::service("db", "b", &addresses))?;
        let through = |by: fn(u16) -> By, is_reached: bool| {
            addresses.into_iter().try_for_each(|to| {
                sys::wait_until(&format!("{to}: {is_reached}"), crate::scene::TIMEOUT, || {
                    Ok(reaches(a.path(), to, by(PORT))? == is_reached)
                })
            })
        };
        through(By::Tcp, true)?;
        let egress = |to, port| {
            json!({ "podSelector": {}, "policyTypes": ["Egress"], "egress": [
                { "to": [to], "ports": [{ "port": port }, { "port": port, "protocol": "UDP" }] },
            ] })
        };
        let backend = json!({ "namespaceSelector": { "matchLabels": { "team": "db" } } });
        let service = json!({ "ipBlock": { "cidr": "10.96.0.0/16" } });
        // Neither the Service's address nor its port is what counts.
        scene.set_policy("web", "p", egress(service, PORT))?;
        through(By::Tcp, false)?;
        through(By::Udp, false)?;
        scene.set_policy("web", "p", egress(backend.clone(), 80))?;
        through(By::Tcp, true)?;
        through(By::Udp, true)?;
        scene.set_policy("web", "p", egress(backend, 81))?;
        through(By::Tcp, false)?;
        through(By::Udp, false)?;
        // The backend's own policy.
        scene.delete_policy("web", "p")?;
        through(By::Tcp, true)?;
        scene.set_policy(
            "db",
            "q",
            json!({ "podSelector": {}, "ingress": [{ "from": [{ "podSelector": {} }] }] }),
        )?;
        through(By::Tcp, false)?;
        through(By::Udp, false)
    })
    .unwrap();
}

#[test]
fn cluster_policies_come_before_those_of_namespaces_and_behind() {
    let options = Options { cluster_policies: true, ..Options::default() };
    with_scene_of(options, |scene| {
        let ((server, _server), (a, _a)) = (scene.pod("web", "server")?, scene.pod("web", "a")?);
        let (stranger, _s) = scene.pod("db", "stranger")?;
        let cluster = |name, tier, action, team| -> anyhow::Result<()> {
            let spec = json!({ "tier": tier, "priority": 10,
                "subject": { "namespaces": { "matchLabels": { "team": "web" } } },
                "ingress": [{ "action": action, "from": [{ "namespaces": { "matchLabels": { "team": team } } }] }] });
            let policy = objects::cluster_network_policy(name, spec);
            scene.cluster.api.create(Resource::ClusterNetworkPolicies, policy)?;
            Ok(())
        };
        cluster("baseline", "Baseline", "Deny", "db")?;
        wait_until_reached(&stranger, &server, WEB, false)?;
        expect(&a, &server, WEB, true)?;
        scene.set_policy("web", "open", json!({ "podSelector": {}, "ingress": [{}] }))?;
        wait_until_reached(&stranger, &server, WEB, true)?;
        cluster("admin", "Admin", "Deny", "db")?;
        wait_until_reached(&stranger, &server, WEB, false)?;
        expect(&a, &server, WEB, true)
    })
    .unwrap();
}

#[test]
fn a_servers_answer_is_no_permission_to_begin() {
    with_scene(|scene| {
        let ((a, _a), (b, _b)) = (scene.pod("web", "a")?, scene.pod("web", "b")?);
        scene.set_policy("web", "p", json!({ "podSelector": { "matchLabels": { "app": "b" } } }))?;
        wait_until_reached(&a, &b, WEB, false)?;
        // From the port that the server of the flow has, to the port that its client has.
        for to in b.addresses.iter().copied() {
            let server = a.addresses.iter().copied().find(|it| it.is_ipv4() == to.is_ipv4());
            let server = SocketAddr::new(server.unwrap(), 80);
            expect(&b, &a, UDP, true)?;
            let guess = sys::in_netns(a.path(), || {
                Ok(std::net::UdpSocket::bind(SocketAddr::new(server.ip(), 4000))?)
            })?;
            guess.send_to(b"guess", SocketAddr::new(to, 80))?;
        }
        expect(&a, &b, UDP, false)
    })
    .unwrap();
}
