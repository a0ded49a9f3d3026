//! Missing, second and unreachable agents.

use super::*;

#[test]
fn agent_refuses_unusable_pod_cidrs() {
    on_node(|node| {
        for (cidrs, expected) in [
            (["10.244.0.0/31", "fd00::/64"], "is too small"),
            (["10.244.0.1/24", "fd00::/64"], "10.244.0.0/24"),
            (["10.244.0.0/16", "10.244.3.0/24"], "overlap"),
        ] {
            let error = node
                .start_agent(&cidrs)
                .map_or_else(|error| format!("{error:#}"), |()| "the agent started".to_owned());
            ensure!(error.contains(expected), "{error}");
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn calls_without_an_agent_fail_with_the_socket() {
    with_agent(|node| {
        let pod = node.pod("a")?;
        node.kill_agent()?;
        for (verb, code) in [("ADD", 11), ("CHECK", 11)] {
            let mut runtime = node.runtime()?;
            if verb == "CHECK" {
                runtime = runtime.with("prevResult", json!({}));
            }
            let error = runtime.call(verb, &pod)?.into_error()?;
            ensure!(error.code == code && error.msg.contains("/run/ferrule/agent.sock"), "{verb}: {error}");
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn second_agent_is_refused_without_side_effects() {
    with_agent(|node| {
        let pod = node.attach("a")?;
        let before = node.kernel_state()?;
        let start = |flags: &[&str]| -> anyhow::Result<String> {
            let mut second = Command::new(ferrule_tests::dist::binary("ferrule-agent")?);
            second.args(["--standalone", "--pod-cidr", "10.9.0.0/24"]).args(flags);
            let output = second.output()?;
            ensure!(output.status.code() == Some(1), "{output:?}");
            Ok(String::from_utf8_lossy(&output.stderr).into_owned())
        };
        // Separate paths do not help: both agents share the kernel.
        let own = [
            "--socket",
            "/run/other/agent.sock",
            "--state-dir",
            "/run/other",
            "--bpf-dir",
            "/sys/fs/bpf/other",
        ];
        for flags in [&own[..], &[]] {
            let reported = start(flags)?;
            ensure!(reported.contains("another ferrule-agent works in this network namespace"), "{reported}");
        }
        ensure!(!PathBuf::from("/sys/fs/bpf/other").exists(), "the second agent created pins");
        // An interface's operstate follows its carrier with a delay.
        node.wait_for_kernel_state(&before)?;
        node.runtime()?.check(&pod)
    })
    .unwrap();
}

#[test]
fn state_directory_of_another_agent_is_refused() {
    with_agent(|node| {
        let outside = PathBuf::from("/run/netns/outside");
        let mut second = sys::command_in(&outside, ferrule_tests::dist::binary("ferrule-agent")?)?;
        let output = second.args(["--standalone", "--pod-cidr", "10.9.0.0/24"]).output()?;
        let reported = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(
            output.status.code() == Some(1) && reported.contains("another ferrule-agent (pid"),
            "{reported}"
        );
        node.attach("a").map(drop)
    })
    .unwrap();
}

#[test]
fn non_root_caller_is_refused() {
    with_agent(|node| {
        use std::os::unix::{fs::PermissionsExt as _, process::CommandExt as _};
        let socket = ferrule_tests::node::socket();
        let directory = socket.parent().context("no directory")?;
        ensure!(fs::metadata(directory)?.permissions().mode() & 0o777 == 0o700);
        ensure!(fs::metadata(&socket)?.permissions().mode() & 0o777 == 0o600);
        // Even with open file permissions, the agent serves root only.
        fs::set_permissions(directory, fs::Permissions::from_mode(0o755))?;
        fs::set_permissions(&socket, fs::Permissions::from_mode(0o666))?;
        // A path that other users can reach. Not a copy, which would be busy (ETXTBSY) while another test
        // forks.
        let reachable = PathBuf::from("/run/ferrulectl");
        fs::write(&reachable, "")?;
        let binary = ferrule_tests::dist::binary("ferrulectl")?;
        nix::mount::mount(
            Some(&binary),
            &reachable,
            None::<&str>,
            nix::mount::MsFlags::MS_BIND,
            None::<&str>,
        )?;
        let output = Command::new(&reachable).arg("attachments").uid(65534).gid(65534).output()?;
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(!output.status.success() && text.contains("only root may call the agent"), "{text}");
        node.attach("a").map(drop)
    })
    .unwrap();
}
