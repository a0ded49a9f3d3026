//! The cases of Kubernetes' own tests of network policies, as the programs judge them.
#![expect(clippy::unwrap_used, reason = "helpers of a test fail by a panic")]

use ferrule_policy::{Change, Compiler, Op};
use ferrule_tests::program::{Programs, with_programs};

use super::{
    engine::{
        cases::{self, Judge},
        world::{End, Traffic, World},
    },
    random::{FIRST, apply, check, forget, plug, without},
};

struct Judged<'a> {
    programs: &'a mut Programs,
    compiler: Compiler,
    /// So far: the source port of the next one.
    packets: u16,
}

#[test]
fn upstream_cases_pass() {
    let interfaces: Vec<u32> = (1..=9).map(|id| FIRST + id).collect();
    with_programs(&interfaces, |programs| {
        programs.start_counting(0)?;
        cases::run_all(&mut Judged { programs, compiler: Compiler::default(), packets: 0 });
        Ok(())
    })
    .unwrap();
}

impl Judge for Judged<'_> {
    fn begin(&mut self, world: &World) {
        let rows: Vec<Op> = self.compiler.rows().all().collect();
        apply(self.programs, rows.into_iter().rev().map(without)).unwrap();
        self.compiler = Compiler::default();
        world.changes().into_iter().for_each(|change| self.apply(change));
        plug(self.programs, world).unwrap();
    }

    fn apply(&mut self, change: Change) {
        let ops = self.compiler.apply([change]).unwrap().ops;
        apply(self.programs, ops).unwrap();
        forget(self.programs).unwrap();
    }

    fn allows(&mut self, world: &World, from: End<'_>, to: End<'_>, traffic: Traffic) -> bool {
        self.packets = self.packets.wrapping_add(1);
        check(self.programs, &self.compiler, world, (from, to), traffic, self.packets).unwrap().unwrap()
    }
}
