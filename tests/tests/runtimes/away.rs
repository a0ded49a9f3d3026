//! Pods that come and go while there is no agent.

use anyhow::{bail, ensure};
use ferrule_tests::sys;

use crate::{addresses, reaches, remove, with_containerd};

#[test]
fn a_pod_that_comes_while_the_agent_is_away_fails_with_a_reason_and_comes_when_it_is_back() {
    with_containerd(|node, containerd| {
        let empty = node.kernel_state()?;
        node.kill_agent()?;
        let Err(refused) = containerd.cri().run("a", &[]) else { bail!("a pod without an agent") };
        let told = format!("{refused:#}");
        let expected = [
            "connecting to the agent at \"/run/ferrule/agent.sock\"",
            "check that ferrule-agent runs on this node",
        ];
        for expected in expected {
            ensure!(told.contains(expected), "{expected} is not in {told}");
        }
        node.start_again()?;
        let pod = containerd.cri().run("a", &[])?;
        ensure!(node.attachments()?.len() == 1 && containerd.cri().status(&pod)?.is_ready);
        // The one that failed may be known to containerd still; a kubelet removes it like any other.
        remove(node, containerd, &containerd.cri().list()?, &empty)
    })
    .unwrap();
}

#[test]
fn pain_5_pods_that_go_while_the_agent_is_away_are_gone_at_once_and_their_addresses_come_back() {
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
        ensure!(containerd.cri().list()?.len() == 1, "containerd has forgotten them");
        ensure!(interfaces()? == 1, "interfaces are left: {}", sys::run("ip -o link show")?);
        node.start_again()?;
        ensure!(node.attachments()?.len() == 1 && addresses(node, &stays.id)? == of_stays);
        let next = containerd.cri().run("a", &[])?;
        reaches(containerd, &in_stays, &of_stays, &addresses(node, &next.id)?)?;
        remove(node, containerd, &[stays, next], &empty)
    })
    .unwrap();
}
