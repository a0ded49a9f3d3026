//! `EVENTS`: records of dropped packets.

use agent_common::{
    DropReason,
    event::{DropRecord, Event},
};
use anyhow::{Context as _, bail, ensure};
use ferrule_tests::{
    packet::{IPV4, Ipv4, UDP, data, frame, udp},
    program::{Program, Programs, SkBuff, TC_ACT_SHOT},
};

use crate::table::{A, B, FAR_V4, GENERATION, NODE_V4, OTHER_MAC, STRANGER, with_pods};

const INGRESS: u32 = 1;
const EGRESS: u32 = 2;
const DROP: u32 = 1;

fn drops(programs: &mut Programs) -> anyhow::Result<Vec<DropRecord>> {
    let one = |event| match event {
        Event::Drop(drop) => Ok(drop),
        Event::Flow(flow) => bail!("a flow: {flow:?}"),
    };
    programs.events()?.into_iter().map(one).collect()
}

fn spoofed(len: usize) -> Vec<u8> {
    A.sends_v4(&Ipv4::new(NODE_V4, FAR_V4, UDP).with(&udp(1, 2, &data(len))))
}

fn drop_often(programs: &mut Programs, packet: &[u8], times: u32) -> anyhow::Result<()> {
    programs.repeat(Program::FromPod, SkBuff::on(A.ifindex), packet, times)?.expect(TC_ACT_SHOT)
}

#[test]
fn a_dropped_packet_has_a_record_with_its_reason_interface_and_headers() {
    let to_b = Ipv4::new(FAR_V4, NODE_V4, UDP).with(&udp(53, 53, b"x"));
    let cases = [
        (Program::FromPod, A.ifindex, spoofed(200), EGRESS, DropReason::SpoofedIpv4, GENERATION),
        (Program::FromPod, A.ifindex, spoofed(0), EGRESS, DropReason::SpoofedIpv4, GENERATION),
        (
            Program::FromPod,
            A.ifindex,
            frame([2; 6], OTHER_MAC, IPV4, &data(20)),
            EGRESS,
            DropReason::SpoofedMac,
            GENERATION,
        ),
        (Program::ToPod, B.ifindex, B.receives(IPV4, &to_b), INGRESS, DropReason::NotForPod, GENERATION),
        (Program::FromPod, STRANGER, spoofed(1), EGRESS, DropReason::NoVif, 0),
    ];
    with_pods(|programs| {
        for (program, ifindex, packet, direction, reason, generation) in cases {
            programs.run(program, SkBuff::on(ifindex), &packet)?.expect(TC_ACT_SHOT)?;
            let all = drops(programs)?;
            let [drop] = all.as_slice() else { bail!("{} records of a {reason:?}", all.len()) };
            let facts = (drop.kind, drop.direction, drop.ifindex, drop.reason, drop.generation);
            ensure!(facts == (DROP, direction, ifindex, reason as u32, generation), "{drop:?}");
            ensure!((drop.suppressed, drop.lost, drop.vlan) == (0, 0, 0), "{drop:?}");
            ensure!(drop.len as usize == packet.len(), "{drop:?}, length {}", packet.len());
            let captured = packet.len().min(112);
            ensure!(packet.get(..captured) == Some(drop.frame()), "{drop:?}, packet {packet:02x?}");
            ensure!(drop.head.iter().skip(captured).all(|byte| *byte == 0), "{drop:?}");
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_record_tells_the_time_since_boot() {
    let boot = || {
        let text = std::fs::read_to_string("/proc/uptime")?;
        let seconds = text.split_whitespace().next().context("no uptime")?;
        anyhow::Ok(seconds.parse::<f64>()?)
    };
    with_pods(|programs| {
        let before = boot()?;
        drop_often(programs, &spoofed(1), 1)?;
        let after = boot()?;
        let drop = drops(programs)?.pop().context("no record")?;
        let seconds = drop.time as f64 / 1e9;
        // The clock of the file has hundredths.
        ensure!(before - 0.02 < seconds && seconds < after + 0.02, "{before} {seconds} {after}");
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_flood_of_drops_is_counted_and_has_few_records() {
    const FLOOD: u32 = 10_000;
    with_pods(|programs| {
        drop_often(programs, &spoofed(1), FLOOD)?;
        let all = drops(programs)?;
        // At once; a token comes back in a tenth of a second.
        ensure!((20..25).contains(&all.len()), "{} records", all.len());
        // Another reason has a budget of its own.
        drop_often(programs, &frame([2; 6], OTHER_MAC, IPV4, &data(20)), 1)?;
        let other = drops(programs)?;
        ensure!(other.len() == 1, "{other:?}");
        std::thread::sleep(std::time::Duration::from_millis(250));
        drop_often(programs, &spoofed(1), 1)?;
        let next = drops(programs)?.pop().context("no record after the flood")?;
        let told: u32 = all.iter().map(|drop| drop.suppressed).sum::<u32>() + next.suppressed;
        ensure!(told + all.len() as u32 == FLOOD, "{told} suppressed, {} records", all.len());
        let counted = programs.counters()?.get(&A.ifindex).map(|it| it.egress.drops.spoofed_ipv4);
        ensure!(counted == Some(u64::from(FLOOD) + 1), "{counted:?}");
        Ok(())
    })
    .unwrap();
}

#[test]
fn records_without_room_are_counted_in_a_later_record() {
    with_pods(|programs| {
        // 20 and 20 records; the ring buffer has room for 24.
        drop_often(programs, &spoofed(1), 20)?;
        let mac = frame([2; 6], OTHER_MAC, IPV4, &data(20));
        drop_often(programs, &mac, 20)?;
        let kept = drops(programs)?;
        let kept = kept.iter().filter(|drop| drop.reason == DropReason::SpoofedMac as u32).count() as u32;
        ensure!(kept < 20, "all records had room");
        std::thread::sleep(std::time::Duration::from_millis(250));
        drop_often(programs, &mac, 1)?;
        let next = drops(programs)?.pop().context("no record")?;
        ensure!((next.lost, next.suppressed) == (20 - kept, 0), "{kept} kept, {next:?}");
        Ok(())
    })
    .unwrap();
}
