//! Many short TCP connections, and what TCP had to repeat.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpListener},
    path::Path,
    thread,
    time::Duration,
};

use anyhow::{Context as _, ensure};
use nix::sys::{
    socket::{setsockopt, sockopt::ReceiveTimeout},
    time::{TimeVal, TimeValLike as _},
};

use crate::{sys, traffic};

const TIMEOUT: Duration = Duration::from_secs(10);
/// Of one client, few: connections come from the same port soon. Of several, many: each begins a flow.
const FEW_PORTS: &str = "40000 40255";
const MANY_PORTS: &str = "33000 60999";

/// Makes connections from one network namespace to another one; `to` is the server's address, or one that NAT
/// translates to that. Each of the `clients`, threads, makes as many, one after another. Returns how many
/// first packets (SYN) of connections the clients have sent again, each after a second. The server closes
/// first, so that its end waits for late packets (TIME-WAIT).
///
/// # Errors
/// If a connection fails.
pub fn repeated_syns(
    client: &Path,
    to: SocketAddr,
    server: &Path,
    listen: SocketAddr,
    connections: usize,
    clients: usize,
) -> anyhow::Result<u64> {
    let listener = sys::bind_in(server, listen, TcpListener::bind)?;
    // Also for accept: the server does not wait for a client that has failed.
    setsockopt(&listener, ReceiveTimeout, &TimeVal::seconds(TIMEOUT.as_secs().cast_signed()))?;
    thread::scope(|scope| {
        let server = scope.spawn(move || -> anyhow::Result<()> {
            for _ in 0..connections * clients {
                let (mut stream, _) = listener.accept()?;
                stream.set_read_timeout(Some(TIMEOUT))?;
                stream.read_exact(&mut [0])?;
                stream.write_all(b"!")?;
            }
            Ok(())
        });
        let repeated = sys::in_netns(client, || {
            let ports = if clients == 1 { FEW_PORTS } else { MANY_PORTS };
            fs::write("/proc/sys/net/ipv4/ip_local_port_range", ports)?;
            let before = syns_sent_again()?;
            let connect = || (0..connections).try_for_each(|number| exchange(to, number));
            thread::scope(|scope| {
                // In this thread's namespace.
                let clients: Vec<_> = (0..clients).map(|_| scope.spawn(connect)).collect();
                clients
                    .into_iter()
                    .try_for_each(|it| it.join().map_err(|_| anyhow::anyhow!("a client panicked"))?)
            })?;
            Ok(syns_sent_again()? - before)
        });
        server.join().map_err(|_| anyhow::anyhow!("the server panicked"))??;
        repeated
    })
}

fn exchange(to: SocketAddr, number: usize) -> anyhow::Result<()> {
    let what = || format!("connection {number} to {to}");
    let mut stream = traffic::connect(to).with_context(what)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.write_all(b"?").with_context(what)?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).with_context(what)?;
    ensure!(answer == b"!", "{}: {answer:?}", what());
    Ok(())
}

/// Of this thread's network namespace, in both families.
fn syns_sent_again() -> anyhow::Result<u64> {
    let text = fs::read_to_string("/proc/thread-self/net/netstat")?;
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("TcpExt:"));
    let (names, values) = (lines.next().context("no names")?, lines.next().context("no values")?);
    let mut counters = names.split_whitespace().zip(values.split_whitespace());
    let (_, value) = counters.find(|(name, _)| *name == "TCPSynRetrans").context("no TCPSynRetrans")?;
    Ok(value.parse()?)
}
