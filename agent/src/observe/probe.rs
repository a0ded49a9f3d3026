//! Whether a pod answers the node: a TCP connection to a port without a listener, which the pod refuses.
//!
//! The packets go through the node's firewall, both programs, and the pod's own firewall, as those of a
//! kubelet's probes. A connection needs no capability, other than an echo request.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket},
    time::{Duration, Instant},
};

use ferrule_proto::agent::ExplainedInterface;
use futures_util::future::join_all;
use tokio::{net::TcpStream, time::timeout};

use super::inside::is_default;

/// What an address of a pod answered.
#[derive(Debug, Clone)]
pub(super) struct Answer {
    pub(super) ifname: String,
    pub(super) address: String,
    /// How long the answer took, or why there was none.
    pub(super) after: Result<Duration, String>,
}

/// tcpmux (RFC 1078), which is no longer in use. A connection that a pod accepts is closed at once.
const PORT: u16 = 1;
/// The kernel sends the first packet again after a second.
const LIMIT: Duration = Duration::from_millis(900);

/// Asks an address. Returns how long the answer took.
///
/// # Errors
/// If there is no answer within [`LIMIT`], or the kernel has no way to the address.
pub(super) async fn ask(address: IpAddr) -> io::Result<Duration> {
    let start = Instant::now();
    match timeout(LIMIT, TcpStream::connect((address, PORT))).await {
        Ok(Ok(_)) => Ok(start.elapsed()),
        Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(start.elapsed()),
        Ok(Err(error)) => Err(error),
        Err(_) => Err(io::Error::new(io::ErrorKind::TimedOut, format!("none within {LIMIT:?}"))),
    }
}

/// Whether the node has an address to ask from: one without IPv6 would ask from a link-local one, to which no
/// pod answers.
pub(super) fn can_ask(address: IpAddr) -> bool {
    let any: IpAddr = match address {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    // Sends nothing: the kernel chooses a route, and the source.
    let source = UdpSocket::bind((any, 0)).and_then(|socket| {
        socket.connect((address, PORT))?;
        socket.local_addr()
    });
    source.is_ok_and(|source| match source.ip() {
        IpAddr::V4(source) => !source.is_unspecified(),
        IpAddr::V6(source) => !source.is_unspecified() && !source.is_unicast_link_local(),
    })
}

/// Asks all addresses at once of interfaces by which pods answer.
pub(super) async fn ask_all(interfaces: impl Iterator<Item = &ExplainedInterface>) -> Vec<Answer> {
    // Without a default route a pod may answer by another interface, or not at all.
    let answering = interfaces.filter(|it| it.netns_exists && it.routes.iter().any(|it| is_default(it)));
    let addresses = answering.filter_map(|it| it.attachment.as_ref()).flat_map(|it| {
        let parsed = it.addresses.iter().filter_map(|address| address.parse::<IpAddr>().ok());
        parsed.filter(|it| can_ask(*it)).map(|address| (it.ifname.clone(), address))
    });
    join_all(addresses.map(async |(ifname, address)| Answer {
        ifname,
        address: address.to_string(),
        after: ask(address).await.map_err(|error| error.to_string()),
    }))
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_refused_connection_is_an_answer() {
        let after = ask(IpAddr::from([127, 0, 0, 1])).await.unwrap();
        assert!(after < LIMIT);
    }

    #[tokio::test]
    async fn an_address_without_a_way_has_no_answer() {
        assert!(ask(IpAddr::from([255, 255, 255, 255])).await.is_err());
    }

    #[test]
    fn a_question_needs_an_address_of_the_node() {
        assert!(can_ask(IpAddr::from([127, 0, 0, 1])));
        assert!(!can_ask("fe80::1".parse().unwrap()), "no interface is named");
    }
}
