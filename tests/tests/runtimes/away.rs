//! Pods that come and go while there is no agent.

use anyhow::{bail, ensure};

use crate::{remove, with_containerd};

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
