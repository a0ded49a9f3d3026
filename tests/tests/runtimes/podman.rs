//! podman on the agent's network, by its CNI backend.

use std::path::Path;

use anyhow::ensure;
use ferrule_tests::{image::POD, node::on_node, podman::Podman, sys};

use crate::{NETWORK, PROGRAM, TIMEOUT, addresses, attachment, nothing_is_left, start_agent};

#[test]
fn podman_containers_reach_each_other_and_leak_nothing() {
    on_node(|node| {
        node.pid_namespace()?;
        start_agent(node)?;
        let podman = Podman::new(node, Path::new(PROGRAM))?;
        sys::wait_until("the agent installs the network", TIMEOUT, || {
            Ok(podman.call(&["network", "ls", "--quiet"])?.lines().any(|name| name == NETWORK))
        })?;
        let empty = node.kernel_state()?;
        let (one, two) = (podman.run("one", NETWORK)?, podman.run("two", NETWORK)?);
        let (of_one, of_two) = (addresses(node, &one)?, addresses(node, &two)?);
        let format = "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}";
        let reported = podman.call(&["inspect", "--format", format, "one"])?;
        ensure!(reported == of_one[0].to_string(), "podman reports {reported}, the agent {of_one:?}");
        ensure!(attachment(node, &one)?["pod_name"] == "one");
        for (from, to) in of_one.iter().zip(&of_two) {
            let seen = podman.call(&["exec", "one", POD, "ask", &to.to_string()])?;
            ensure!(seen == from.to_string(), "{to} saw the client address {seen}");
        }
        node.kill_agent()?;
        node.start_again()?;
        podman.call(&["rm", "--force", "--time", "0", "one", "two"])?;
        nothing_is_left(node, &empty)
    })
    .unwrap();
}
