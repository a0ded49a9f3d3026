//! The checksum of an IPv4 header that has lost a hop is the one that a full sum would give.

use ferrule_tests::{
    packet::{self, IPV4, Ipv4, TCP, UDP, data, udp},
    program::{Beside, Program, Programs, TC_ACT_REDIRECT},
};
use proptest::{collection::vec, prelude::*, test_runner::TestRunner};

use crate::{
    random::config,
    table::{A, B, with_pods},
};

/// A delivered packet is the same as one that was made with a hop less.
fn loses_a_hop(programs: &mut Programs, ip: &Ipv4, payload: &[u8]) -> anyhow::Result<()> {
    let ran = programs.run(Program::FromPod, Beside::on(A.ifindex), &A.sends_v4(&ip.with(payload)))?;
    ran.expect(TC_ACT_REDIRECT)?;
    let expected = B.receives(IPV4, &Ipv4 { ttl: ip.ttl - 1, checksum: None, ..ip.clone() }.with(payload));
    anyhow::ensure!(
        ran.packet == expected,
        "{ip:?} has become\n{}and should be\n{}",
        packet::hexdump(&ran.packet),
        packet::hexdump(&expected)
    );
    Ok(())
}

#[test]
fn for_every_checksum_there_is() {
    with_pods(|programs| {
        // The identification takes every value, and so does the checksum.
        for id in 0..=u16::MAX {
            loses_a_hop(programs, &Ipv4 { id, ..Ipv4::new(A.v4, B.v4, UDP) }, &[])?;
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn for_every_hop_count() {
    with_pods(|programs| {
        for ttl in 2..=u8::MAX {
            loses_a_hop(programs, &Ipv4 { ttl, ..Ipv4::new(A.v4, B.v4, TCP) }, &data(20))?;
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn for_both_zeros_of_ones_complement() {
    with_pods(|programs| {
        let right = |id| Ipv4 { id, ..Ipv4::new(A.v4, B.v4, UDP) };
        let sum = |ip: &Ipv4| packet::checksum(&[&Ipv4 { checksum: Some(0), ..ip.clone() }.with(&[])]);
        let zero = (0..=u16::MAX).map(right).find(|ip| sum(ip) == 0);
        let ip = zero.ok_or_else(|| anyhow::anyhow!("no header has the checksum zero"))?;
        loses_a_hop(programs, &ip, &[])?;
        // Nobody should send it, but it sums up to the same.
        loses_a_hop(programs, &Ipv4 { checksum: Some(0xffff), ..ip }, &[])
    })
    .unwrap();
}

#[test]
fn for_any_header() {
    let header = (any::<u8>(), any::<u16>(), any::<u16>(), 2_u8.., any::<u8>(), vec(any::<u8>(), 0..64));
    with_pods(|programs| {
        let programs = std::cell::RefCell::new(programs);
        let result =
            TestRunner::new(config(2000)).run(&header, |(tos, id, fragment, ttl, protocol, payload)| {
                // Not to be fragmented, or reserved: a fragment is the stack's.
                let ip =
                    Ipv4 { tos, id, fragment: fragment & 0xc000, ttl, ..Ipv4::new(A.v4, B.v4, protocol) };
                let result = loses_a_hop(&mut programs.borrow_mut(), &ip, &payload);
                result.map_err(|error| TestCaseError::fail(format!("{error:#}")))
            });
        result.map_err(|error| anyhow::anyhow!("{error}"))
    })
    .unwrap();
}

#[test]
fn the_payload_stays_as_it_is() {
    with_pods(|programs| loses_a_hop(programs, &Ipv4::new(A.v4, B.v4, UDP), &udp(1, 2, &data(1400))))
        .unwrap();
}
