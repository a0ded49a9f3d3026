//! Concurrent calls: from an operation's numbers to a runtime's calls and their answers.

use std::{
    collections::BTreeSet,
    path::PathBuf,
    sync::Barrier,
    thread,
    time::{Duration, Instant},
};

use anyhow::anyhow;
use ferrule_tests::{
    pod::{Pod, VIF},
    runtime::Runtime,
};
use serde_json::{Value, json};

use crate::{
    fixture::Fixture,
    model::{Add, Api, Id, vif_text},
    operations::{Call, End, Event, NO_VIF, Op, Uid},
};

/// A call with the sandboxes it refers to.
#[derive(Debug, Clone)]
pub enum BoundCall {
    Add(Add),
    Del(Id),
    Check(Id),
    Gc(BTreeSet<Id>),
    Status,
}

/// A call and its outcome.
#[derive(Debug, Clone)]
pub struct Answer {
    pub call: BoundCall,
    /// The result, or the error's code and message.
    pub outcome: Result<Value, (u64, String)>,
    pub from: Instant,
    pub to: Instant,
}

/// How the agent ended during the batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    No,
    ByTerm,
    ByKill,
}

/// Concurrent calls and what happened meanwhile.
#[derive(Debug)]
pub struct Batch {
    pub answers: Vec<Answer>,
    /// The API state before and after the batch.
    pub apis: Vec<Api>,
    /// If the agent ended, it was restarted afterwards.
    pub ended: Ended,
    /// Whether the calls were made while the agent started.
    pub starts: bool,
    pub from: Instant,
    pub to: Instant,
}

// === impl BoundCall ===

impl BoundCall {
    pub fn id(&self) -> Option<Id> {
        match self {
            Self::Add(add) => Some(add.id),
            Self::Del(id) | Self::Check(id) => Some(*id),
            Self::Gc(_) | Self::Status => None,
        }
    }

    pub fn verb(&self) -> &'static str {
        match self {
            Self::Add(_) => "ADD",
            Self::Del(_) => "DEL",
            Self::Check(_) => "CHECK",
            Self::Gc(_) => "GC",
            Self::Status => "STATUS",
        }
    }
}

// === impl Fixture ===

impl Fixture<'_> {
    pub fn calls(&mut self, calls: &[Call], events: &[Event], end: Option<End>) -> anyhow::Result<()> {
        let end = end.filter(|_| self.model.agent_runs);
        let mut batch = self.batch();
        batch.answers = self.make_calls(calls, |fixture| {
            events.iter().try_for_each(|event| fixture.apply_event(*event))?;
            let Some(end) = end else { return Ok(()) };
            thread::sleep(Duration::from_micros(end.after_us.into()));
            fixture.count(format!("agent ended during calls, kill {}", end.kill));
            if end.kill { fixture.node.kill_agent() } else { fixture.node.stop_agent() }
        })?;
        if !events.is_empty() {
            batch.apis.push(self.model.api.clone());
        }
        if let Some(end) = end {
            self.log(format!("the agent ended during the calls, {end:?}"));
            batch.ended = if end.kill { Ended::ByKill } else { Ended::ByTerm };
            self.node.start_again()?;
        }
        if end.is_some() || !events.is_empty() {
            self.sync()?;
        }
        self.verify(batch)
    }

    pub fn agent_down(&mut self, kill: bool, meanwhile: &[Op], at_start: &[Call]) -> anyhow::Result<()> {
        self.count(format!("agent down, kill {kill}"));
        self.log(format!("the agent is {}", if kill { "killed" } else { "stopped" }));
        if kill {
            self.node.kill_agent()?
        } else {
            self.node.stop_agent()?
        }
        self.model.agent_runs = false;
        for op in meanwhile {
            self.apply(op)?;
        }
        self.log("the agent is started".to_owned());
        // A call that comes too early fails as one to an agent that shuts down.
        let mut batch = Batch { ended: Ended::ByTerm, starts: true, ..self.batch() };
        batch.answers = self.make_calls(at_start, |fixture| fixture.node.start_again())?;
        self.model.agent_runs = true;
        self.sync()?;
        self.verify(batch)
    }

    /// Makes calls concurrently, and something else at the same time.
    fn make_calls(
        &mut self,
        calls: &[Call],
        meanwhile: impl FnOnce(&mut Self) -> anyhow::Result<()>,
    ) -> anyhow::Result<Vec<Answer>> {
        let calls_made = calls.iter().filter_map(|call| Some((self.bind(*call)?, self.call_of(*call)?)));
        let calls_made: Vec<_> = calls_made.collect();
        let barrier = Barrier::new(calls_made.len() + 1);
        let answers = thread::scope(|scope| {
            let barrier = &barrier;
            let spawn = |(bound, (runtime, verb, pod)): (BoundCall, (Runtime, &'static str, Pod))| {
                scope.spawn(move || {
                    barrier.wait();
                    call(bound, &runtime, verb, &pod)
                })
            };
            let threads: Vec<_> = calls_made.into_iter().map(spawn).collect();
            barrier.wait();
            let happened = meanwhile(self);
            let join =
                |it: thread::ScopedJoinHandle<'_, _>| it.join().map_err(|_| anyhow!("a call panicked"))?;
            let answers = threads.into_iter().map(join).collect::<anyhow::Result<Vec<_>>>()?;
            happened.map(|()| answers)
        })?;
        for Answer { call, outcome, .. } in &answers {
            let (code, shown) = match outcome {
                Ok(result) => ("ok".to_owned(), result.get("ips").map_or_else(String::new, Value::to_string)),
                Err((code, text)) => (code.to_string(), text.clone()),
            };
            self.count(format!("{} {code}", call.verb()));
            self.log(format!("{call:?} → {code} {shown}"));
        }
        Ok(answers)
    }

    /// Resolves a call's numbers to sandboxes; None if there is no such sandbox.
    fn bind(&self, call: Call) -> Option<BoundCall> {
        Some(match call {
            Call::Add { pick, annotated, uid } => {
                let id = self.pick(pick)?;
                let sandbox = self.model.sandboxes.get(id)?;
                let uid = match uid {
                    Uid::Own => sandbox.uid.clone(),
                    Uid::Oldest => {
                        self.model.sandboxes.iter().find(|it| it.name == sandbox.name)?.uid.clone()
                    }
                    Uid::Invented => format!("eeeeeeee-0000-4000-8000-{id:012}"),
                };
                let pod = self.model.api.pods.get(&sandbox.name).filter(|pod| pod.uid == uid);
                let annotated = annotated.then(|| pod.map_or(NO_VIF, |pod| pod.vif));
                BoundCall::Add(Add { id, uid, annotated })
            }
            Call::Del { pick, .. } => BoundCall::Del(self.pick(pick)?),
            Call::Check { pick } => BoundCall::Check(self.pick(pick)?),
            Call::Gc { keep } => {
                let all = self.pickable().into_iter().enumerate();
                BoundCall::Gc(all.filter(|(bit, _)| keep >> (bit % 64) & 1 == 1).map(|(_, id)| id).collect())
            }
            Call::Status => BoundCall::Status,
        })
    }

    /// The runtime, verb and pod of a call.
    fn call_of(&self, call: Call) -> Option<(Runtime, &'static str, Pod)> {
        let bound = self.bind(call)?;
        let mut runtime = self.runtime.clone();
        let pod = |id: Id| self.pods.get(id).cloned();
        let (verb, pod) = match bound {
            BoundCall::Add(Add { id, uid, annotated }) => {
                if let Some(vif) = annotated {
                    let annotations = vif_text(vif).map_or_else(|| json!({}), |text| json!({ VIF: text }));
                    runtime = runtime
                        .with("runtimeConfig", json!({ "io.kubernetes.cri.pod-annotations": annotations }));
                }
                ("ADD", Pod { uid, ..pod(id)? })
            }
            BoundCall::Del(id) => {
                let mut pod = pod(id)?;
                if matches!(call, Call::Del { empty_netns: true, .. }) {
                    pod.netns = PathBuf::new();
                }
                ("DEL", pod)
            }
            BoundCall::Check(id) => {
                let kept = self.model.attached.get(&id).and_then(|it| it.result.clone());
                let nothing = || json!({ "cniVersion": "1.1.0", "interfaces": [] });
                runtime = runtime.with("prevResult", kept.unwrap_or_else(nothing));
                ("CHECK", pod(id)?)
            }
            BoundCall::Gc(valid) => {
                let containers = valid.iter().filter_map(|id| self.model.sandboxes.get(*id));
                let valid = containers.map(|it| json!({ "containerID": it.container, "ifname": "eth0" }));
                runtime = runtime.with("cni.dev/valid-attachments", valid.collect());
                ("GC", self.pods.first().cloned()?)
            }
            BoundCall::Status => ("STATUS", self.pods.first().cloned()?),
        };
        Some((runtime, verb, pod))
    }
}

///
/// # Errors
/// If the plugin's output violates the specification.
pub fn call(call: BoundCall, runtime: &Runtime, verb: &str, pod: &Pod) -> anyhow::Result<Answer> {
    let from = Instant::now();
    let answer = runtime.call(verb, pod)?;
    let to = Instant::now();
    let outcome = if answer.status.success() {
        Ok(answer.json)
    } else {
        let error = answer.into_error()?;
        Err((error.code, error.msg))
    };
    Ok(Answer { call, outcome, from, to })
}
