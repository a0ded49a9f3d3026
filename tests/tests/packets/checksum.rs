//! The incremental update of the IPv4 header checksum equals a full computation.

use ferrule_tests::{
    packet::{self, IPV4, Ipv4, TCP, UDP, data, udp},
    program::{Program, Programs, SkBuff, TC_ACT_REDIRECT},
};
use proptest::{collection::vec, prelude::*, test_runner::TestRunner};

use crate::{
    random::config,
    table::{A, B, with_pods},
};

/// Checks that a delivered packet equals one built with a TTL one lower.
fn check_ttl_decrement(programs: &mut Programs, ip: &Ipv4, payload: &[u8]) -> anyhow::Result<()> {
    let ran = programs.run(Program::FromPod, SkBuff::on(A.ifindex), &A.sends_v4(&ip.with(payload)))?;
    ran.expect(TC_ACT_REDIRECT)?;
    let expected = B.receives(IPV4, &Ipv4 { ttl: ip.ttl - 1, checksum: None, ..ip.clone() }.with(payload));
    anyhow::ensure!(
        ran.packet == expected,
        "{ip:?}: got\n{}expected\n{}",
        packet::hexdump(&ran.packet),
        packet::hexdump(&expected)
    );
    Ok(())
}

#[test]
fn update_is_correct_for_every_checksum() {
    with_pods(|programs| {
        // As the IPv4 identification takes every value, so does the header checksum.
        for id in 0..=u16::MAX {
            check_ttl_decrement(programs, &Ipv4 { id, ..Ipv4::new(A.v4, B.v4, UDP) }, &[])?;
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn update_is_correct_for_every_ttl() {
    with_pods(|programs| {
        for ttl in 2..=u8::MAX {
            check_ttl_decrement(programs, &Ipv4 { ttl, ..Ipv4::new(A.v4, B.v4, TCP) }, &data(20))?;
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn update_is_correct_for_both_zeros_of_ones_complement() {
    with_pods(|programs| {
        let with_id = |id| Ipv4 { id, ..Ipv4::new(A.v4, B.v4, UDP) };
        let sum = |ip: &Ipv4| packet::checksum(&[&Ipv4 { checksum: Some(0), ..ip.clone() }.with(&[])]);
        let zero = (0..=u16::MAX).map(with_id).find(|ip| sum(ip) == 0);
        let ip = zero.ok_or_else(|| anyhow::anyhow!("no header has the checksum zero"))?;
        check_ttl_decrement(programs, &ip, &[])?;
        // 0xffff is the other zero, and sums up to the same.
        check_ttl_decrement(programs, &Ipv4 { checksum: Some(0xffff), ..ip }, &[])
    })
    .unwrap();
}

#[test]
fn update_is_correct_for_random_headers() {
    let header = (any::<u8>(), any::<u16>(), any::<u16>(), 2_u8.., any::<u8>(), vec(any::<u8>(), 0..64));
    with_pods(|programs| {
        let programs = std::cell::RefCell::new(programs);
        let result =
            TestRunner::new(config(2000)).run(&header, |(tos, id, fragment, ttl, protocol, mut payload)| {
                // From a privileged port: a SYN from some others goes to the stack.
                payload.iter_mut().take(1).for_each(|byte| *byte = 0);
                // Only the flags "reserved" and "do not fragment": fragments go to the stack.
                let ip =
                    Ipv4 { tos, id, fragment: fragment & 0xc000, ttl, ..Ipv4::new(A.v4, B.v4, protocol) };
                let result = check_ttl_decrement(&mut programs.borrow_mut(), &ip, &payload);
                result.map_err(|error| TestCaseError::fail(format!("{error:#}")))
            });
        result.map_err(|error| anyhow::anyhow!("{error}"))
    })
    .unwrap();
}

#[test]
fn payload_is_unchanged() {
    with_pods(|programs| check_ttl_decrement(programs, &Ipv4::new(A.v4, B.v4, UDP), &udp(1, 2, &data(1400))))
        .unwrap();
}
