//! Graceful shutdown: readiness, calls in flight, the socket and exit codes.

use std::{
    fs,
    io::{Read as _, Write as _},
    os::unix::net::UnixStream,
    process::Command,
    thread,
    time::Duration,
};

use anyhow::{Context as _, ensure};
use ferrule_tests::{
    dist,
    node::{connections, on_node, socket, with_agent},
    pod::Pod,
    sys,
};
use nix::sys::signal::Signal;

/// A gRPC call over HTTP/2 without its message: connection preface, empty SETTINGS, HEADERS and PING
/// (RFC 9113, 6.2 and 6.7; RFC 7541, 6).
fn unfinished_call() -> Vec<u8> {
    let text = |name: u8, value: &str| [&[name, value.len() as u8], value.as_bytes()].concat();
    let (path, authority, content) = (0x44, 0x41, 0x5f);
    // Indexed `:method: POST` and `:scheme: http`.
    let mut headers = vec![0x83, 0x86];
    headers.extend(text(path, "/ferrule.cni.v1.Cni/Status"));
    headers.extend(text(authority, "agent"));
    headers.extend(text(content, "application/grpc"));
    // A literal header field with a literal name.
    headers.push(0x40);
    headers.extend(b"\x02te\x08trailers");
    let frame = [&[0, 0, headers.len() as u8, 1, 4, 0, 0, 0, 1], headers.as_slice()].concat();
    let ping = b"\0\0\x08\x06\0\0\0\0\0in order";
    [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".as_slice(), &frame, ping].concat()
}

/// Reads until the agent has answered the PING, and so has taken the call before it.
fn until_taken(caller: &mut UnixStream) -> anyhow::Result<()> {
    caller.set_read_timeout(Some(Duration::from_secs(20)))?;
    let (mut received, mut part) = (Vec::new(), [0; 1024]);
    let answer = b"\0\0\x08\x06\x01\0\0\0\0in order";
    while !received.windows(answer.len()).any(|it| it == answer) {
        let length = caller.read(&mut part).context("no answer to the PING")?;
        ensure!(length > 0, "the agent closed the connection");
        received.extend_from_slice(part.get(..length).unwrap_or_default());
    }
    Ok(())
}

#[test]
fn readiness_fails_before_in_flight_calls_end() {
    with_agent(|node| {
        let limit = Duration::from_secs(10);
        sys::wait_until("the agent is ready", limit, || Ok(node.http("/readyz")?.0 == 200))?;
        let mut caller = UnixStream::connect(socket())?;
        caller.write_all(&unfinished_call())?;
        until_taken(&mut caller)?;
        node.signal_agent(Signal::SIGTERM)?;
        // The agent drains for 15 s, and ends at once without the call.
        sys::wait_until("the agent is not ready while a call is in flight", limit, || {
            let (code, text) = node.http("/readyz")?;
            Ok(code == 503 && text.contains("stopping"))
        })?;
        drop(caller);
        node.stop_agent()
    })
    .unwrap();
}

#[test]
fn agent_without_its_socket_file_releases_the_node_on_shutdown() {
    with_agent(|node| {
        let pod = node.attach("a")?;
        fs::remove_file(socket())?;
        let ended = node.wait_for_agent_to_end(Duration::from_secs(15))?;
        ensure!(ended.code() == Some(1), "{ended}");
        node.start_again()?;
        node.runtime()?.check(&pod)
    })
    .unwrap();
}

#[test]
fn calls_in_flight_at_shutdown_complete_or_roll_back() {
    with_agent(|node| {
        let empty = node.kernel_state()?;
        for round in 0..3 {
            let pods = (0..24)
                .map(|number| node.pod(&format!("r{round}-{number}")))
                .collect::<Result<Vec<_>, _>>()?;
            // The signal arrives while all calls wait for the agent, or while some are served.
            let is_suspended = round == 0;
            if is_suspended {
                node.signal_agent(Signal::SIGSTOP)?;
            }
            let calls: Vec<_> = pods
                .iter()
                .map(|pod| {
                    let (runtime, pod) = (node.runtime()?, pod.clone());
                    Ok(thread::spawn(move || runtime.call("ADD", &pod)))
                })
                .collect::<anyhow::Result<_>>()?;
            let expected = if is_suspended { pods.len() } else { 4 * round };
            sys::wait_until("the calls are in flight", Duration::from_secs(30), || {
                Ok(connections()? >= expected || calls.iter().all(thread::JoinHandle::is_finished))
            })?;
            if is_suspended {
                node.signal_agent(Signal::SIGTERM)?;
                node.signal_agent(Signal::SIGCONT)?;
            }
            node.stop_agent()?;
            let mut added = Vec::new();
            for call in calls {
                let answer = call.join().map_err(|_| anyhow::anyhow!("a caller panicked"))??;
                let refused = answer.into_error();
                ensure!(refused.as_ref().map_or(true, |refused| refused.code == 11), "{refused:?}");
                added.push(refused.is_err());
            }
            node.start_again()?;
            let runtime = node.runtime()?;
            ensure!(node.attachments()?.len() == added.iter().filter(|added| **added).count(), "{added:?}");
            for pod in &pods {
                runtime.add(pod).context("the runtime's retry of ADD")?;
                runtime.check(pod)?;
            }
            pods.iter().try_for_each(|pod| runtime.del(pod))?;
            node.wait_for_kernel_state(&empty)?;
            pods.into_iter().try_for_each(Pod::remove)?;
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn exit_code_distinguishes_shutdown_usage_error_and_failure() {
    let ends = |flags: &[&str]| -> anyhow::Result<(Option<i32>, String)> {
        let output = Command::new(dist::binary("ferrule-agent")?).args(flags).output()?;
        Ok((output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned()))
    };
    // Graceful shutdown: `stop_agent` requires 0.
    with_agent(|node| node.stop_agent()).unwrap();
    // Invalid flags: a restart cannot help.
    for flags in [&["--no-such-flag"][..], &["--standalone"], &["--standalone", "--pod-cidr", "10.0.0.0/33"]]
    {
        let (code, stderr) = ends(flags).unwrap();
        assert_eq!(code, Some(64), "{flags:?}: {stderr}");
    }
    assert_eq!(ends(&["--version"]).unwrap().0, Some(0));
    let mut misspelt = Command::new(dist::binary("ferrule-agent").unwrap());
    misspelt.args(["--standalone", "--pod-cidr", "10.9.0.0/24"]).env("FERRULE_LOG", "blah=foo");
    let output = misspelt.output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(64) && stderr.contains("FERRULE_LOG"), "{stderr}");
    // A range of the node's neighbours.
    on_node(|_| {
        let (code, stderr) = ends(&["--standalone", "--pod-cidr", "192.0.2.128/25"])?;
        let named = "the network of this node's interface uplink";
        ensure!(code == Some(64) && stderr.contains(named), "{code:?} {stderr}");
        Ok(())
    })
    .unwrap();
    // Another failure: an agent is already running.
    with_agent(|node| {
        let _node = node;
        let (code, stderr) = ends(&["--standalone", "--pod-cidr", "10.9.0.0/24"])?;
        ensure!(code == Some(1) && stderr.contains("another ferrule-agent"), "{code:?} {stderr}");
        Ok(())
    })
    .unwrap();
}
