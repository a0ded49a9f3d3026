//! A decided VIF in the kernel: several interfaces, routes, gateways, MTU.

use anyhow::ensure;
use ferrule_tests::{cluster::with_cluster, pod::VIF};
use serde_json::Value;

const TWO: &str = r#"{"interfaces":[
    {"name":"eth0","addresses":["10.244.0.20","fd00:10:244::20"],"gateways":["10.244.0.1","fd00:10:244::1"],
     "routes":[{"dst":"198.18.0.0/15","gw":"10.244.0.254"}],"mac":"02:00:00:00:00:14","mtu":1400},
    {"name":"eth1","addresses":["10.244.0.21"],"routes":[{"dst":"203.0.113.0/24"}]}]}"#;

#[test]
fn del_without_an_agent_eventually_deletes_all_interfaces() {
    with_cluster(&[], |node, cluster| {
        let before = node.kernel_state()?;
        let pod = cluster.pod(node, "two", &[(VIF, TWO)])?;
        node.runtime()?.add(&pod)?;
        node.kill_agent()?;
        node.runtime()?.del(&pod)?;
        node.start_again()?;
        ensure!(node.attachments()?.is_empty());
        node.wait_for_kernel_state(&before)
    })
    .unwrap();
}

#[test]
fn any_interface_deleted_while_no_agent_ran_is_recreated() {
    with_cluster(&[], |node, cluster| {
        let before = node.kernel_state()?;
        let pod = cluster.pod(node, "two", &[(VIF, TWO)])?;
        let runtime = node.runtime()?;
        let result = runtime.add(&pod)?;
        for lost in ["eth1", "eth0"] {
            node.kill_agent()?;
            pod.run(&format!("ip link del {lost}"))?;
            node.start_again()?;
            runtime.check(&pod)?;
            pod.ping(ferrule_tests::node::NODE_V4)?;
            ensure!(node.attachments()?.len() == 2);
        }
        let again = runtime.add(&pod)?;
        ensure!(again == result, "{again}");
        runtime.del(&pod)?;
        node.wait_for_kernel_state(&before)
    })
    .unwrap();
}

#[test]
fn add_of_a_further_interface_of_the_same_container_is_refused_and_changes_nothing() {
    with_cluster(&[], |node, cluster| {
        let runtime = node.runtime()?;
        let pod = cluster.pod(node, "two", &[(VIF, TWO)])?;
        let result = runtime.add(&pod)?;
        let before = node.kernel_state()?;
        let mut further = runtime.clone();
        further.ifname = "eth1".to_owned();
        for _ in 0..2 {
            let error = further.call("ADD", &pod)?.into_error()?;
            ensure!(error.code == 102 && error.msg.contains("eth1"), "{error}");
            ensure!(node.kernel_state()? == before && node.attachments()?.len() == 2);
        }
        // Only the requested interface is the key of the pair.
        further.call("DEL", &pod)?.into_result()?;
        ensure!(node.kernel_state()? == before && node.attachments()?.len() == 2);
        runtime.check(&pod)?;
        ensure!(runtime.add(&pod)? == result);
        runtime.del(&pod)?;
        ensure!(node.attachments()?.is_empty());
        Ok(())
    })
    .unwrap();
}

#[test]
fn all_interfaces_and_addresses_are_created_and_returned() {
    with_cluster(&[], |node, cluster| {
        let before = node.kernel_state()?;
        let runtime = node.runtime()?;
        let pod = cluster.pod(node, "two", &[(VIF, TWO)])?;
        let result = runtime.add(&pod)?;
        let names: Vec<&str> = result["interfaces"]
            .as_array()
            .into_iter()
            .flatten()
            .filter(|it| it["sandbox"].as_str().is_some_and(|sandbox| !sandbox.is_empty()))
            .filter_map(|it| it["name"].as_str())
            .collect();
        ensure!(names == ["eth0", "eth1"], "{result:#}");
        let addresses: Vec<_> =
            result["ips"].as_array().into_iter().flatten().filter_map(|ip| ip["address"].as_str()).collect();
        ensure!(addresses == ["10.244.0.20/32", "fd00:10:244::20/128", "10.244.0.21/32"], "{addresses:?}");
        ensure!(result["ips"][0]["gateway"] == "10.244.0.1");
        let routes = pod.run("ip -4 route")?;
        for route in [
            "default via 10.244.0.1 dev eth0",
            "198.18.0.0/15 via 10.244.0.254 dev eth0",
            "203.0.113.0/24 via 169.254.1.1 dev eth1",
        ] {
            ensure!(routes.contains(route), "{route} is missing in {routes}");
        }
        ensure!(pod.run("ip -6 route")?.contains("default via fd00:10:244::1 dev eth0"));
        let link = pod.run("ip link show eth0")?;
        ensure!(link.contains("mtu 1400") && link.contains("02:00:00:00:00:14"), "{link}");
        runtime.check(&pod)?;
        ensure!(runtime.add(&pod)? == result, "a repeated ADD returned another result");

        let other = cluster.attach(node, "other")?;
        for address in ["10.244.0.20", "fd00:10:244::20", "10.244.0.21"] {
            // Packets to eth1's address enter there, but replies leave through eth0, as the routes direct.
            if address != "10.244.0.21" {
                other.ping(address)?;
            }
        }
        pod.ping(&other.addresses[0].to_string())?;
        node.kill_agent()?;
        node.start_again()?;
        runtime.check(&pod)?;
        pod.ping(&other.addresses[0].to_string())?;
        ensure!(node.attachments()?.len() == 3);
        runtime.del(&pod)?;
        runtime.del(&other)?;
        ensure!(node.attachments()?.is_empty(), "DEL left an interface of the attachment");
        node.wait_for_kernel_state(&before)
    })
    .unwrap();
}

#[test]
fn gc_keeps_additional_interfaces_of_valid_attachments() {
    with_cluster(&[], |node, cluster| {
        let pod = cluster.pod(node, "two", &[(VIF, TWO)])?;
        let runtime = node.runtime()?;
        runtime.add(&pod)?;
        let valid = serde_json::json!([{ "containerID": pod.container_id, "ifname": "eth0" }]);
        runtime.clone().with("cni.dev/valid-attachments", valid).call("GC", &pod)?.into_result()?;
        runtime.check(&pod)?;
        runtime
            .clone()
            .with("cni.dev/valid-attachments", Value::Array(Vec::new()))
            .call("GC", &pod)?
            .into_result()?;
        ensure!(node.attachments()?.is_empty());
        Ok(())
    })
    .unwrap();
}

#[test]
fn failure_to_create_an_additional_interface_rolls_back_all() {
    with_cluster(&[], |node, cluster| {
        let before = node.kernel_state()?;
        let pod = cluster.pod(node, "two", &[(VIF, TWO)])?;
        pod.run("ip link add eth1 type bridge")?;
        let refused = node.runtime()?.call("ADD", &pod)?.into_error()?;
        ensure!(refused.code == 102 && refused.msg.contains("eth1"), "{refused}");
        ensure!(node.attachments()?.is_empty());
        node.wait_for_kernel_state(&before)?;
        pod.run("ip link del eth1")?;
        node.runtime()?.add(&pod).map(drop)
    })
    .unwrap();
}

#[test]
fn route_attributes_are_applied_returned_and_checked() {
    let vif = |route: &str| {
        format!(
            r#"{{"interfaces":[{{"addresses":["10.244.0.30","fd00:10:244::30"],"mtu":1400,"routes":[
                {{"dst":"198.18.0.0/15",{route}}},
                {{"dst":"fd01::/64","mtu":1300,"advmss":1220,"priority":9}}]}}]}}"#
        )
    };
    with_cluster(&[], |node, cluster| {
        let runtime = node.runtime()?;
        let good = vif(r#""mtu":1300,"advmss":1200,"priority":7"#);
        let pod = cluster.pod(node, "routed", &[(VIF, &good)])?;
        let result = runtime.add(&pod)?;
        let route = result["routes"].as_array().into_iter().flatten().find(|it| it["dst"] == "198.18.0.0/15");
        let numbers = route.map(|it| [&it["mtu"], &it["advmss"], &it["priority"]]);
        ensure!(numbers == Some([&1300.into(), &1200.into(), &7.into()]), "{result:#}");
        ensure!(result["routes"][0].get("mtu").is_none() && result["routes"][0]["dst"] == "0.0.0.0/0");
        let route = pod.run("ip route show 198.18.0.0/15")?;
        for part in ["metric 7", "mtu 1300", "advmss 1200"] {
            ensure!(route.contains(part), "{part} is missing in {route}");
        }
        let route = pod.run("ip -6 route show fd01::/64")?;
        ensure!(route.contains("metric 9") && route.contains("mtu 1300"), "{route}");
        runtime.check(&pod)?;
        ensure!(runtime.add(&pod)? == result, "a repeated ADD returned another result");
        // Results of older CNI versions have no fields for route attributes.
        let older = runtime.clone().with("cniVersion", "1.0.0".into());
        let older = older.add(&pod)?;
        let route = older["routes"].as_array().into_iter().flatten().find(|it| it["dst"] == "198.18.0.0/15");
        ensure!(route.is_some_and(|it| it.as_object().is_some_and(|it| it.len() == 2)), "{older:#}");

        runtime.add(&pod)?;
        pod.run("ip route replace 198.18.0.0/15 via 169.254.1.1 dev eth0 onlink metric 7 mtu 1299")?;
        let error = runtime.check(&pod).map_or_else(|error| error.to_string(), |()| String::new());
        ensure!(error.contains("no route to 198.18.0.0/15") && error.contains("MTU 1300"), "{error}");
        runtime.del(&pod)?;

        let larger = vif(r#""mtu":1401"#);
        let refused = cluster.pod(node, "refused", &[(VIF, &larger)])?;
        let error = runtime.add(&refused).map_or_else(|error| error.to_string(), |it| it.to_string());
        ensure!(
            error.contains("CNI error 104") && error.contains("expected at most 1400, the interface's MTU"),
            "{error}"
        );
        Ok(())
    })
    .unwrap();
}

#[test]
fn gateways_of_its_own_answer_a_pod_that_has_lost_its_neighbour_entries() {
    with_cluster(&[], |node, cluster| {
        let pod = cluster.pod(node, "two", &[(VIF, TWO)])?;
        let runtime = node.runtime()?;
        runtime.add(&pod)?;
        for gateway in ["10.244.0.1", "fd00:10:244::1", "10.244.0.254"] {
            pod.run(&format!("ip neigh del {gateway} dev eth0"))?;
        }
        pod.ping(ferrule_tests::node::NODE_V4)?;
        pod.ping(ferrule_tests::node::NODE_V6)?;
        let known = pod.run("ip neigh show dev eth0")?;
        for gateway in ["10.244.0.1", "fd00:10:244::1"] {
            let of_gateway = format!("{gateway} lladdr 66:65:72:72:75:6c");
            let is_learnt = known.lines().any(|it| it.starts_with(&of_gateway) && !it.contains("PERMANENT"));
            ensure!(is_learnt, "{gateway} was not resolved: {known}");
        }
        runtime.del(&pod)
    })
    .unwrap();
}
