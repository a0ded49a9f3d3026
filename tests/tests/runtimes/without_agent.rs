//! Pods created and removed while no agent runs.

use anyhow::{bail, ensure};
use ferrule_tests::sys;

use crate::{addresses, reaches, remove, with_containerd};

#[test]
fn pod_creation_without_an_agent_fails_with_a_reason_and_succeeds_later() {
    with_containerd(|node, containerd| {
        let empty = node.kernel_state()?;
        node.kill_agent()?;
        let Err(refused) = containerd.cri().run("a", &[]) else {
            bail!("pod creation succeeded without an agent")
        };
        let reported = format!("{refused:#}");
        let expected = [
            "connecting to the agent at \"/run/ferrule/agent.sock\"",
            "check that ferrule-agent runs on this node",
        ];
        for expected in expected {
            ensure!(reported.contains(expected), "{expected} is missing in {reported}");
        }
        node.start_again()?;
        let pod = containerd.cri().run("a", &[])?;
        ensure!(node.attachments()?.len() == 1 && containerd.cri().status(&pod)?.is_ready);
        // containerd may still know the failed sandbox; a kubelet removes it like any other.
        remove(node, containerd, &containerd.cri().list()?, &empty)
    })
    .unwrap();
}

#[test]
fn pods_removed_without_an_agent_lose_their_interfaces_and_release_addresses() {
    with_containerd(|node, containerd| {
        let empty = node.kernel_state()?;
        let pods = [containerd.cri().run("a", &[])?, containerd.cri().run("b", &[])?];
        let stays = containerd.cri().run("stays", &[])?;
        let (in_stays, of_stays) = (containerd.cri().start_container(&stays)?, addresses(node, &stays.id)?);
        let interfaces =
            || Ok::<_, anyhow::Error>(sys::run("ip -o link show")?.matches("alias ferrule:").count());
        ensure!(interfaces()? == 3);
        node.kill_agent()?;
        for pod in &pods {
            containerd.cri().stop(pod)?;
            containerd.cri().remove(pod)?;
        }
        ensure!(containerd.cri().list()?.len() == 1, "containerd still knows removed pods");
        ensure!(interfaces()? == 1, "interfaces are left: {}", sys::run("ip -o link show")?);
        node.start_again()?;
        ensure!(node.attachments()?.len() == 1 && addresses(node, &stays.id)? == of_stays);
        let next = containerd.cri().run("a", &[])?;
        reaches(containerd, &in_stays, &of_stays, &addresses(node, &next.id)?)?;
        remove(node, containerd, &[stays, next], &empty)
    })
    .unwrap();
}
