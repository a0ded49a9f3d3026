//! Stores of another network namespace or another boot.

use super::*;

/// Starts an agent in another network namespace, as a deployment without `hostNetwork` does. Returns the
/// reason of its exit.
fn start_outside(flags: &[&str]) -> anyhow::Result<String> {
    let outside = std::path::Path::new("/run/netns/outside");
    let mut agent = sys::command_in(outside, ferrule_tests::dist::binary("ferrule-agent")?)?;
    agent.args(["--standalone", "--pod-cidr", POD_V4, "--pod-cidr", POD_V6]).args(flags);
    let mut agent = sys::die_with_parent(&mut agent).stderr(Stdio::piped()).spawn()?;
    let mut ended = None;
    let refused = sys::wait_until("the agent exits", LIMIT, || {
        ended = agent.try_wait()?;
        Ok(ended.is_some())
    });
    // An agent that keeps running has done its damage by now.
    agent.kill()?;
    let stderr = String::from_utf8_lossy(&agent.wait_with_output()?.stderr).into_owned();
    refused?;
    ensure!(ended.and_then(|it| it.code()) == Some(1), "{stderr}");
    Ok(stderr)
}

#[test]
fn agent_in_another_netns_cannot_share_the_maps_of_a_running_agent() {
    with_agent(|node| {
        let (a, b) = (node.attach("a")?, node.attach("b")?);
        let traffic = Traffic::begin(&a, &b)?;
        let state = node.kernel_state()?;
        let stderr = start_outside(&["--state-dir", "/run/another", "--socket", "/run/another/agent.sock"])?;
        ensure!(
            stderr.contains("another agent uses the maps") && stderr.contains("hostNetwork: true"),
            "{stderr}"
        );
        ensure!(node.kernel_state()? == state, "{:#?}\nwas {state:#?}", node.kernel_state()?);
        lives_on(node, &a, &b)?;
        // The maps of a dead agent do not block a new one.
        node.kill_agent()?;
        node.start_again()?;
        lives_on(node, &a, &b)?;
        traffic.end()
    })
    .unwrap();
}

/// Flags of an agent that shares nothing with the node's but the pins.
const OWN_STATE: [&str; 4] = ["--state-dir", "/run/another", "--socket", "/run/another/agent.sock"];

/// The pins but for those of programs, without which the next agent of the node has them verified again.
fn pins() -> anyhow::Result<Vec<String>> {
    let found = sys::run("find /sys/fs/bpf -not -path */v*/[[:lower:]]* -printf %p=%l\\n")?;
    let mut found: Vec<_> = found.lines().map(str::to_owned).collect();
    found.sort();
    Ok(found)
}

#[test]
fn agent_in_another_netns_with_a_new_state_directory_cannot_take_the_maps_of_pods() {
    with_agent(|node| {
        let (a, b) = (node.attach("a")?, node.attach("b")?);
        let traffic = Traffic::begin(&a, &b)?;
        node.kill_agent()?;
        let (state, before) = (node.kernel_state()?, pins()?);
        // A capacity of its own would rename the directory of pins.
        let stderr = start_outside(&[&OWN_STATE[..], &["--max-vifs", "100"]].concat())?;
        let [inside, outside] = ["/proc/thread-self/ns/net", "/run/netns/outside"]
            .map(|path| std::os::unix::fs::MetadataExt::ino(&fs::metadata(path).unwrap()));
        for part in
            [&format!("net:[{inside}] cookie "), &format!("net:[{outside}] cookie "), "hostNetwork: true"]
        {
            ensure!(stderr.contains(part), "{part} is missing in: {stderr}");
        }
        ensure!(node.kernel_state()? == state, "the kernel state was changed: {:#?}", node.kernel_state()?);
        ensure!(pins()? == before, "{:#?}\nwas {before:#?}", pins()?);
        node.start_again()?;
        lives_on(node, &a, &b)?;
        traffic.end()
    })
    .unwrap();
}

#[test]
fn maps_of_a_namespace_without_pods_are_taken_over_from_another() {
    with_agent(|node| {
        let host = node.attach("a").and_then(|pod| node.host_ifname(&pod))?;
        node.kill_agent()?;
        // As left by a namespace that is gone: entries, and an owner, but no interface with filters.
        sys::run(&format!("ip link del {host}"))?;
        sys::run("tc qdisc del dev uplink clsact")?;
        let record = "/sys/fs/bpf/ferrule/netns";
        fs::remove_file(record)?;
        std::os::unix::fs::symlink("net:[1] cookie 999999", record)?;
        // The kernel frees the programs a little later than the interface.
        sys::wait_until("the agent starts", LIMIT, || node.start_again().map(|()| true))?;
        ensure!(node.log().contains("no program uses the pinned maps"), "{}", node.log());
        let owner = fs::read_link(record)?.to_string_lossy().into_owned();
        ensure!(owner.contains("cookie") && !owner.contains("999999"), "{owner}");
        // Pins of an earlier build have no owner.
        node.stop_agent()?;
        fs::remove_file(record)?;
        node.start_again()?;
        ensure!(fs::read_link(record)?.to_string_lossy() == owner);
        node.attach("b").map(drop)
    })
    .unwrap();
}

#[test]
fn agent_in_another_netns_is_refused_without_side_effects() {
    with_agent(|node| {
        let (a, b) = (node.attach("a")?, node.attach("b")?);
        let traffic = Traffic::begin(&a, &b)?;
        node.stop_agent()?;
        let (state, bytes) = (node.kernel_state()?, files()?);
        ensure!(state.iter().any(|it| it.starts_with("VIFS")), "{state:#?}");
        let stderr = start_outside(&[])?;
        ensure!(stderr.contains("hostNetwork: true"), "{stderr}");
        ensure!(node.kernel_state()? == state, "the kernel state was changed: {:#?}", node.kernel_state()?);
        ensure!(files()? == bytes, "the store was written to");
        node.start_again()?;
        lives_on(node, &a, &b)?;
        traffic.end()
    })
    .unwrap();
}

#[test]
fn attachments_from_before_a_reboot_are_dropped_unless_the_kernel_has_them() {
    with_agent(|node| {
        let (a, b) = (node.attach("a")?, node.attach("b")?);
        node.runtime()?.del(&node.attach("resting")?)?;
        let before = identity(&node.attachments()?);
        node.stop_agent()?;
        let boot = |id: &str| -> anyhow::Result<()> {
            fs::write("/run/boot_id", id)?;
            sys::run("mount --bind /run/boot_id /proc/sys/kernel/random/boot_id").map(drop)
        };
        // A changed boot ID alone: the kernel still has everything.
        boot("00000000-0000-0000-0000-000000000001\n")?;
        node.start_again()?;
        ensure!(node.log().contains("before the reboot records=3"), "the reboot is not logged");
        ensure!(identity(&node.attachments()?) == before, "existing attachments were changed");
        lives_on(node, &a, &b)?;
        node.stop_agent()?;
        // A reboot deletes the interfaces. The namespaces stay: their inode numbers prove nothing after a
        // reboot.
        for link in before.iter().filter_map(|it| it.get(11)?.as_str()) {
            sys::run(&format!("ip link del {link}"))?;
        }
        fs::remove_dir_all("/sys/fs/bpf/ferrule")?;
        boot("00000000-0000-0000-0000-000000000002\n")?;
        node.start_again()?;
        ensure!(node.attachments()?.is_empty(), "{:#?}", node.attachments()?);
        ensure!(
            node.metric("ferrule_registry_rebuilds_total")? == 0.0,
            "the registry was rebuilt without a loss"
        );
        node.attach("new").map(drop)
    })
    .unwrap();
}
