//! What a rebuild reads from the kernel.

use super::*;

#[test]
fn attached_pod_whose_record_reverted_to_reserved_stays_connected() {
    with_agent(|node| {
        let clean = node.kernel_state()?;
        let (a, b) = (node.attach("a")?, node.attach("b")?);
        node.stop_agent()?;
        // The record lacks only its last transition, to Attached.
        let path = record_of(&a)?;
        let (kind, mut record) = record::read(&path)?;
        record["attachment"]["state"] = "Reserved".into();
        record["attachment"]["host"] = "unplugged".into();
        record::write(&path, &kind, &record)?;
        let meta = Path::new(STORE).join("meta");
        let (kind, mut mark) = record::read(&meta)?;
        mark["complete"] = false.into();
        record::write(&meta, &kind, &mark)?;
        node.start_again()?;
        lives_on(node, &a, &b)?;
        let runtime = node.runtime()?;
        runtime.del(&a)?;
        runtime.del(&b)?;
        node.wait_for_kernel_state(&clean)
    })
    .unwrap();
}

#[test]
fn additional_interfaces_are_rebuilt_and_deleted_with_the_first_after_store_loss() {
    const TWO: &str = r#"{"interfaces":[
        {"name":"eth0","addresses":["10.244.0.20","fd00:10:244::20"],"gateways":["10.244.0.1","fd00:10:244::1"],
         "routes":[{"dst":"198.18.0.0/15","gw":"10.244.0.254","mtu":1300}],"mac":"02:00:00:00:00:14","mtu":1400},
        {"name":"a1","addresses":["10.244.0.21"],"routes":[{"dst":"203.0.113.0/24","priority":7}]}]}"#;
    with_cluster(&[], |node, cluster| {
        let clean = node.kernel_state()?;
        let pod = cluster.pod(node, "two", &[("vif.ferrule.dev/v1", TWO)])?;
        let runtime = node.runtime()?;
        let answer = runtime.add(&pod)?;
        let before = identity(&node.attachments()?);
        ensure!(before.len() == 2, "{before:#?}");
        node.kill_agent()?;
        fs::remove_dir_all(STORE)?;
        node.start_again()?;
        let after = identity(&node.attachments()?);
        ensure!(after == before, "attachments {after:#?}\nbefore: {before:#?}");
        runtime.check(&pod)?;
        let again = runtime.add(&pod)?;
        ensure!(again == answer, "a repeated ADD returns {again:#}\nexpected {answer:#}");
        ensure!(identity(&node.attachments()?) == before, "the interfaces were recreated");
        runtime.del(&pod)?;
        ensure!(node.attachments()?.is_empty());
        node.wait_for_kernel_state(&clean)
    })
    .unwrap();
}

#[test]
fn attachment_without_known_pod_is_kept_until_its_namespace_ends() {
    with_cluster(&["--reconcile-period", "1"], |node, cluster| {
        let clean = node.kernel_state()?;
        let pod = cluster.attach(node, "web")?;
        node.kill_agent()?;
        fs::remove_dir_all(STORE)?;
        fs::remove_dir_all("/sys/fs/bpf/ferrule")?;
        node.start_again()?;
        // The API server may even report the pod as deleted.
        cluster.delete(&pod)?;
        let rounds = node.metric("ferrule_reconcile_rounds_total")?;
        sys::wait_until("the garbage collector has examined all attachments several times", LIMIT, || {
            Ok(node.metric("ferrule_reconcile_rounds_total")? >= rounds + 4.0)
        })?;
        let kept = node.attachments()?;
        ensure!(kept.len() == 1 && kept[0]["pod_name"] == "", "{kept:#?}");
        pod.ping(NODE_V4)?;
        pod.remove()?;
        sys::wait_until("the attachment is removed", LIMIT, || Ok(node.attachments()?.is_empty()))?;
        node.wait_for_kernel_state(&clean)
    })
    .unwrap();
}

#[test]
fn single_family_pod_is_rebuilt_with_its_family_after_store_loss() {
    on_node(|node| {
        node.start_agent(&[POD_V4])?;
        let a = node.attach("a")?;
        node.stop_agent()?;
        node.start_agent(&[POD_V4, POD_V6])?;
        let b = node.attach("b")?;
        ensure!((a.addresses.len(), b.addresses.len()) == (1, 2));
        let before = identity(&node.attachments()?);
        node.stop_agent()?;
        fs::remove_dir_all(STORE)?;
        node.start_again()?;
        let after = identity(&node.attachments()?);
        ensure!(after == before, "attachments {after:#?}\nbefore: {before:#?}");
        lives_on(node, &a, &b)
    })
    .unwrap();
}

#[test]
fn deferred_del_is_applied_despite_store_loss() {
    with_agent(|node| {
        let clean = node.kernel_state()?;
        let (a, b) = (node.attach("a")?, node.attach("b")?);
        node.kill_agent()?;
        let runtime = node.runtime()?;
        runtime.del(&a)?;
        fs::remove_dir_all(STORE)?;
        node.start_again()?;
        let left = node.attachments()?;
        ensure!(left.len() == 1 && left[0]["container_id"] == b.container_id.as_str(), "{left:#?}");
        runtime.del(&b)?;
        node.wait_for_kernel_state(&clean)
    })
    .unwrap();
}

#[test]
fn lost_maps_and_store_are_rebuilt_from_routes_and_neighbours() {
    with_agent(|node| {
        let (a, b) = (node.attach("a")?, node.attach("b")?);
        let traffic = Traffic::begin(&a, &b)?;
        let before = node.attachments()?;
        node.kill_agent()?;
        fs::remove_dir_all(STORE)?;
        fs::remove_dir_all("/sys/fs/bpf/ferrule")?;
        node.start_again()?;
        let after = node.attachments()?;
        for key in ["addresses", "mac", "host_ifindex", "netns_ino"] {
            let of = |all: &[Value]| all.iter().map(|it| it[key].clone()).collect::<Vec<_>>();
            ensure!(of(&after) == of(&before), "{key}: {after:#?}");
        }
        lives_on(node, &a, &b)?;
        traffic.end()
    })
    .unwrap();
}

#[test]
fn unreachable_namespace_is_adopted_when_the_runtime_names_it() {
    with_agent(|node| {
        let a = node.attach("a")?;
        let hidden = a.netns.with_extension("hidden");
        node.kill_agent()?;
        fs::remove_dir_all(STORE)?;
        // Outside the directories that the agent searches for namespaces, and without a process inside.
        fs::create_dir_all("/run/elsewhere")?;
        let elsewhere = std::path::Path::new("/run/elsewhere").join(hidden.file_name().context("no name")?);
        fs::write(&elsewhere, "")?;
        sys::run(&format!("mount --bind {} {}", a.netns.display(), elsewhere.display()))?;
        sys::run(&format!("umount {}", a.netns.display()))?;
        node.start_again()?;
        let kept = node.attachments()?;
        ensure!(
            kept.len() == 1 && kept[0]["netns"] == "" && kept[0]["netns_ino"].as_u64().unwrap_or(0) == 0,
            "{kept:#?}"
        );
        let a = Pod { netns: elsewhere.clone(), ..a };
        let mut again = a.clone();
        again.attached(&node.runtime()?.add(&a)?)?;
        ensure!(again.addresses == a.addresses);
        let known = node.attachments()?;
        ensure!(known[0]["netns"] == elsewhere.to_string_lossy().as_ref(), "{known:#?}");
        ensure!(known[0]["host_ifindex"] == kept[0]["host_ifindex"], "the interface was recreated");
        node.runtime()?.check(&a)?;
        node.runtime()?.del(&a)
    })
    .unwrap();
}

#[test]
fn unrecoverable_stamped_interface_is_kept_and_logged() {
    with_agent(|node| {
        let a = node.attach("a")?;
        sys::run("ip link add frunknown type veth peer name frunknown1")?;
        sys::run("ip link set frunknown alias ferrule:cluster:deadbeef:eth0")?;
        node.kill_agent()?;
        fs::remove_dir_all(STORE)?;
        for _ in 0..2 {
            node.start_again()?;
            ensure!(sys::run("ip -o link show")?.contains("frunknown@"), "the interface was deleted");
            ensure!(node.log().contains("deadbeef") && node.attachments()?.len() == 1);
            ensure!(node.metric("ferrule_registry_unknown_interfaces")? == 1.0);
            node.runtime()?.check(&a)?;
            node.kill_agent()?;
        }
        Ok(())
    })
    .unwrap();
}
