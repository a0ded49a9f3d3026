//! What takes longer than the random operations: cooldown of released addresses, and garbage collection.

use std::{
    net::Ipv4Addr,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail, ensure};
use ferrule_tests::{cluster::with_cluster_of, node::POD_V6};

use crate::{
    fixture::Fixture,
    model::Id,
    operations::{Call, Event, NO_VIF, Op, Uid},
};

/// Five addresses, from 2 to 6.
const POOL: &str = "10.244.0.0/29";
const ADDRESSES: (Ipv4Addr, Ipv4Addr) = (Ipv4Addr::new(10, 244, 0, 2), Ipv4Addr::new(10, 244, 0, 6));
const FLAGS: [&str; 6] = ["--vif-timeout", "1", "--reconcile-period", "5", "--self-heal", "off"];

/// A released address is not allocated for this long.
const COOLDOWN: Duration = Duration::from_secs(30);
/// Between the two observations of an orphan, with the period above.
const SPACING: Duration = Duration::from_secs(5);
/// For what has to happen at last, on a loaded machine.
const LIMIT: Duration = Duration::from_secs(90);
const PACE: Duration = Duration::from_millis(300);

/// Adds a sandbox in a slot, and calls ADD for it. Returns the sandbox, attached or not.
fn add(fixture: &mut Fixture<'_>, slot: u8) -> anyhow::Result<Id> {
    fixture.apply(&Op::MakePod { slot, vif: NO_VIF })?;
    let id = fixture.pods.len().checked_sub(1).context("no sandbox")?;
    call(fixture, id, |pick| Call::Add { pick, annotated: true, uid: Uid::Own })?;
    Ok(id)
}

fn call(fixture: &mut Fixture<'_>, id: Id, call: impl FnOnce(u16) -> Call) -> anyhow::Result<()> {
    let op = Op::Calls { calls: vec![call(pick(fixture, id)?)], events: Vec::new(), end: None };
    fixture.apply(&op)
}

/// The number by which operations refer to a sandbox.
fn pick(fixture: &Fixture<'_>, id: Id) -> anyhow::Result<u16> {
    let at = fixture.pickable().iter().position(|it| *it == id);
    Ok(u16::try_from(at.with_context(|| format!("no operation can pick #{id}"))?)?)
}

/// On a full node, a DEL frees an address for the next pod after 30 s, and not before. Meanwhile an
/// attachment loses its namespace and its pod: garbage collection removes the attachment, after two
/// observations.
pub fn check() -> anyhow::Result<()> {
    with_cluster_of(&[POOL, POD_V6], &FLAGS, |node, cluster| {
        let mut fixture = Fixture::new(node, cluster, ADDRESSES)?;
        fixture.sync()?;
        let ids = (0..5).map(|slot| add(&mut fixture, slot)).collect::<anyhow::Result<Vec<_>>>()?;
        ensure!(fixture.model.attached.len() == 5, "{:#?}", fixture.model.attached);
        let [freed, orphan, ..] = ids.as_slice() else { bail!("{ids:?}") };

        let released = Instant::now();
        call(&mut fixture, *freed, |pick| Call::Del { pick, empty_netns: false })?;
        ensure!(!fixture.model.attached.contains_key(freed));
        let next = add(&mut fixture, 5)?;
        let orphaned = Instant::now();
        let ended = Op::EndNetns { pick: pick(&fixture, *orphan)? };
        fixture.apply(&ended)?;
        // The pod of the second sandbox.
        fixture.apply(&Op::Event(Event::Delete { slot: 1 }))?;

        let (mut allocated, mut collected) = (None, None);
        while allocated.is_none() || collected.is_none() {
            ensure!(released.elapsed() < LIMIT, "allocated: {allocated:?}, collected: {collected:?}");
            if allocated.is_none() {
                call(&mut fixture, next, |pick| Call::Add { pick, annotated: true, uid: Uid::Own })?;
                if fixture.model.attached.contains_key(&next) {
                    allocated = Some(released.elapsed());
                }
            }
            let batch = fixture.batch();
            fixture.verify(batch)?;
            if collected.is_none() && !fixture.model.attached.contains_key(orphan) {
                collected = Some(orphaned.elapsed());
            }
            thread::sleep(PACE);
        }
        let (allocated, collected) = allocated.zip(collected).context("the loop ended early")?;
        println!("allocated again after {allocated:?}, orphan collected after {collected:?}");
        ensure!(allocated >= COOLDOWN, "a released address was allocated after {allocated:?}");
        ensure!(collected >= SPACING, "an orphan was collected after {collected:?}");
        fixture.clear()
    })
}
