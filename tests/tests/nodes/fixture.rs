//! A pod on each node, and waits for what the agents do.

use std::{net::IpAddr, time::Duration};

use anyhow::Context as _;
use ferrule_tests::{
    capture::Frames,
    fabric::{Fabric, Member, with_fabric},
    pod::Pod,
    probe::Probe,
    sys,
};

/// For what an agent does within a second, or heals, on a loaded machine.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(20);

/// Runs `run` on a fabric with agents and a pod on each node, which reach each other.
///
/// # Errors
/// The closure's error, or if they do not.
pub(crate) fn with_pods<T: Send>(
    flags: &[&str],
    run: impl FnOnce(&Fabric, &[Pod; 3]) -> anyhow::Result<T> + Send,
) -> anyhow::Result<T> {
    with_fabric(flags, |fabric| {
        let [one, two, three] = &fabric.nodes;
        let pods = [one.attach("a")?, two.attach("b")?, three.attach("c")?];
        wait_until_connected(&pods)?;
        run(fabric, &pods)
    })
}

/// Starts agents on all nodes, whose Node objects have an address of one family only.
///
/// # Errors
/// If an agent does not become ready.
pub(crate) fn begin_over(fabric: &Fabric, family: usize) -> anyhow::Result<()> {
    for node in &fabric.nodes {
        let ranges = node.ranges.each_ref().map(String::as_str);
        node.register_as(&ranges, &[of(&node.addresses, family)?])?;
    }
    fabric.nodes.iter().try_for_each(|node| node.begin_agent(&[]))?;
    fabric.nodes.iter().try_for_each(Member::wait_until_ready)
}

/// Waits until each pod reaches each other one, in both families.
///
/// # Errors
/// If a pod does not.
pub(crate) fn wait_until_connected(pods: &[Pod]) -> anyhow::Result<()> {
    for (number, from) in pods.iter().enumerate() {
        pods.iter()
            .skip(number + 1)
            .flat_map(|to| &to.addresses)
            .try_for_each(|to| wait_until_reached(from, *to))?;
    }
    Ok(())
}

/// Waits until a pod reaches an address by ping.
///
/// # Errors
/// If the pod does not.
pub(crate) fn wait_until_reached(from: &Pod, to: IpAddr) -> anyhow::Result<()> {
    sys::wait_until(&format!("{} reaches {to}", from.name), TIMEOUT, || {
        from.run(&format!("ping -n -c 1 -W 1 {to}"))?;
        Ok(true)
    })
}

/// The address of a pod or node in a family: 0 for IPv4, 1 for IPv6.
///
/// # Errors
/// If there is none.
pub(crate) fn of(addresses: &[IpAddr], family: usize) -> anyhow::Result<IpAddr> {
    addresses.get(family).copied().with_context(|| format!("no address {family} in {addresses:?}"))
}

/// Starts packets between two pods, in both families and directions.
///
/// # Errors
/// If a socket cannot be opened, or no packets arrive.
pub(crate) fn probes_between([one, other]: [&Pod; 2]) -> anyhow::Result<Vec<Probe>> {
    let mut probes = Vec::new();
    for (from, to) in [(one, other), (other, one)] {
        for address in &to.addresses {
            let probe = Probe::start(from.path(), to.path(), *address)?;
            probe.expect_flow("at first")?;
            probes.push(probe);
        }
    }
    Ok(probes)
}

/// # Errors
/// If a packet was lost or reordered, or if none arrives any more.
pub(crate) fn expect_all(probes: Vec<Probe>) -> anyhow::Result<()> {
    probes.iter().try_for_each(|probe| probe.expect_flow("at last"))?;
    probes.into_iter().try_for_each(|probe| probe.end()?.expect_all())
}

/// Runs `run`, and returns what the node sent and received meanwhile.
///
/// # Errors
/// The closure's error, or if the capture fails.
pub(crate) fn captured(node: &Member, run: impl FnOnce() -> anyhow::Result<()>) -> anyhow::Result<Frames> {
    let capture = node.capture()?;
    let result = run();
    let frames = capture.end()?;
    match result {
        Ok(()) => Ok(frames),
        Err(error) => Err(error.context(format!("on the wire of {}:\n{frames}", node.name))),
    }
}

/// Makes a pod believe that all of its link's MTU fits on the way to an address.
///
/// # Errors
/// If the kernel refuses.
pub(crate) fn forget_mtu(pod: &Pod, to: IpAddr) -> anyhow::Result<()> {
    let (gateway, len) = if to.is_ipv4() { ("169.254.1.1", 32) } else { ("fe80::1", 128) };
    pod.run(&format!("ip route replace {to}/{len} via {gateway} dev eth0 onlink")).map(drop)
}

/// Pings twice in packets of a length, and returns what `ping` prints. The discovery `do` forbids fragments.
///
/// # Errors
/// If `ping` cannot be started.
pub(crate) fn ping(from: &Pod, to: IpAddr, len: u32, discovery: &str) -> anyhow::Result<String> {
    let headers = if to.is_ipv4() { 28 } else { 48 };
    let line = format!("-n -c 2 -i 0.2 -W 2 -M {discovery} -s {} {to}", len - headers);
    let output = from.command("ping")?.args(line.split(' ')).output()?;
    Ok(String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
}
