//! The cases of Kubernetes' own tests of network policies, as the compiler's rows and its traces judge them.

use ferrule_policy::Change;

use super::{
    cases::{self, Judge},
    world::{End, Engine, Traffic, World},
};

#[test]
fn upstream_cases_pass() {
    cases::run_all(&mut Engine::default());
}

impl Judge for Engine {
    fn begin(&mut self, world: &World) {
        *self = world.engine();
    }

    fn apply(&mut self, change: Change) {
        Engine::apply(self, [change]);
    }

    fn allows(&mut self, world: &World, from: End<'_>, to: End<'_>, traffic: Traffic) -> bool {
        let is_allowed = Engine::allows(self, world, from, to, traffic);
        let traced = self.trace(world, from, to, traffic);
        assert_eq!(traced.is_allowed, is_allowed, "{from:?} to {to:?}: {traced:?}");
        is_allowed
    }
}
