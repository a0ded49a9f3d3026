//! Calls that are made at once: from the numbers of an operation to a runtime's calls, and to their answers.

use std::{
    collections::BTreeSet,
    path::PathBuf,
    sync::Barrier,
    thread,
    time::{Duration, Instant},
};

use anyhow::anyhow;
use ferrule_tests::{pod::Pod, runtime::Runtime};
use serde_json::{Value, json};

use crate::{
    model::{Add, Api, Id, vif_text},
    ops::{Call, End, Event, NO_VIF, Op, Uid},
    world::{VIF, World},
};

/// A call with its objects.
#[derive(Debug, Clone)]
pub enum Issued {
    Add(Add),
    Del(Id),
    Check(Id),
    Gc(BTreeSet<Id>),
    Status,
}

/// A call, and what came of it.
#[derive(Debug, Clone)]
pub struct Answer {
    pub call: Issued,
    /// The result, or the code of the error and its text.
    pub outcome: Result<Value, (u64, String)>,
    pub from: Instant,
    pub to: Instant,
}

/// How the agent ended, if it did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    No,
    ByTerm,
    ByKill,
}

/// Calls that were made at once.
#[derive(Debug)]
pub struct Batch {
    pub answers: Vec<Answer>,
    /// What the API server had before and after.
    pub apis: Vec<Api>,
    /// After which it was started again.
    pub ended: Ended,
    /// Whether the calls were made while it started.
    pub starts: bool,
    pub from: Instant,
    pub to: Instant,
}

// === impl Issued ===

impl Issued {
    pub fn id(&self) -> Option<Id> {
        match self {
            Self::Add(add) => Some(add.id),
            Self::Del(id) | Self::Check(id) => Some(*id),
            Self::Gc(_) | Self::Status => None,
        }
    }

    /// The verb, as a runtime has it.
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

// === impl World ===

impl World<'_> {
    pub fn calls(&mut self, calls: &[Call], events: &[Event], end: Option<End>) -> anyhow::Result<()> {
        let end = end.filter(|_| self.model.agent_runs);
        let mut batch = self.batch();
        batch.answers = self.make_calls(calls, |world| {
            events.iter().try_for_each(|event| world.happen(*event))?;
            let Some(end) = end else { return Ok(()) };
            thread::sleep(Duration::from_micros(end.after_us.into()));
            world.count(format!("ended in the middle, kill {}", end.kill));
            if end.kill { world.node.kill_agent() } else { world.node.stop_agent() }
        })?;
        if !events.is_empty() {
            batch.apis.push(self.model.api.clone());
        }
        if let Some(end) = end {
            self.say(format!("the agent was ended meanwhile, {end:?}"));
            batch.ended = if end.kill { Ended::ByKill } else { Ended::ByTerm };
            self.node.start_again()?;
        }
        if end.is_some() || !events.is_empty() {
            self.settle()?;
        }
        self.look_and_judge(batch)
    }

    pub fn away(&mut self, kill: bool, meanwhile: &[Op], at_start: &[Call]) -> anyhow::Result<()> {
        self.count(format!("away, kill {kill}"));
        self.say(format!("the agent is {}", if kill { "killed" } else { "stopped" }));
        if kill {
            self.node.kill_agent()?
        } else {
            self.node.stop_agent()?
        }
        self.model.agent_runs = false;
        for op in meanwhile {
            self.apply(op)?;
        }
        self.say("the agent is started".to_owned());
        // Who calls too early is told so, as by one that stops.
        let mut batch = Batch { ended: Ended::ByTerm, starts: true, ..self.batch() };
        batch.answers = self.make_calls(at_start, |world| world.node.start_again())?;
        self.model.agent_runs = true;
        self.settle()?;
        self.look_and_judge(batch)
    }

    /// Makes calls at once, and something else at the same time.
    fn make_calls(
        &mut self,
        calls: &[Call],
        meanwhile: impl FnOnce(&mut Self) -> anyhow::Result<()>,
    ) -> anyhow::Result<Vec<Answer>> {
        let made = calls.iter().filter_map(|call| Some((self.issue(*call)?, self.call_of(*call)?)));
        let made: Vec<_> = made.collect();
        let together = Barrier::new(made.len() + 1);
        let answers = thread::scope(|scope| {
            let together = &together;
            let spawn = |(issued, (runtime, verb, pod)): (Issued, (Runtime, &'static str, Pod))| {
                scope.spawn(move || {
                    together.wait();
                    call(issued, &runtime, verb, &pod)
                })
            };
            let threads: Vec<_> = made.into_iter().map(spawn).collect();
            together.wait();
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
            self.say(format!("{call:?} → {code} {shown}"));
        }
        Ok(answers)
    }

    /// What a call is about, if it makes sense now.
    fn issue(&self, call: Call) -> Option<Issued> {
        Some(match call {
            Call::Add { pick, told, uid } => {
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
                let told = told.then(|| pod.map_or(NO_VIF, |pod| pod.vif));
                Issued::Add(Add { id, uid, told })
            }
            Call::Del { pick, .. } => Issued::Del(self.pick(pick)?),
            Call::Check { pick } => Issued::Check(self.pick(pick)?),
            Call::Gc { keep } => {
                let all = self.pickable().into_iter().enumerate();
                Issued::Gc(all.filter(|(bit, _)| keep >> (bit % 64) & 1 == 1).map(|(_, id)| id).collect())
            }
            Call::Status => Issued::Status,
        })
    }

    /// The same as a runtime makes it.
    fn call_of(&self, call: Call) -> Option<(Runtime, &'static str, Pod)> {
        let issued = self.issue(call)?;
        let mut runtime = self.runtime.clone();
        let pod = |id: Id| self.pods.get(id).cloned();
        let (verb, pod) = match issued {
            Issued::Add(Add { id, uid, told }) => {
                if let Some(vif) = told {
                    let annotations = vif_text(vif).map_or_else(|| json!({}), |text| json!({ VIF: text }));
                    runtime = runtime
                        .with("runtimeConfig", json!({ "io.kubernetes.cri.pod-annotations": annotations }));
                }
                ("ADD", Pod { uid, ..pod(id)? })
            }
            Issued::Del(id) => {
                let mut pod = pod(id)?;
                if matches!(call, Call::Del { empty_netns: true, .. }) {
                    pod.netns = PathBuf::new();
                }
                ("DEL", pod)
            }
            Issued::Check(id) => {
                let kept = self.model.attached.get(&id).and_then(|it| it.result.clone());
                let nothing = || json!({ "cniVersion": "1.1.0", "interfaces": [] });
                runtime = runtime.with("prevResult", kept.unwrap_or_else(nothing));
                ("CHECK", pod(id)?)
            }
            Issued::Gc(valid) => {
                let containers = valid.iter().filter_map(|id| self.model.sandboxes.get(*id));
                let valid = containers.map(|it| json!({ "containerID": it.container, "ifname": "eth0" }));
                runtime = runtime.with("cni.dev/valid-attachments", valid.collect());
                ("GC", self.pods.first().cloned()?)
            }
            Issued::Status => ("STATUS", self.pods.first().cloned()?),
        };
        Some((runtime, verb, pod))
    }
}

/// Makes one call.
///
/// # Errors
/// If the plugin does not behave as one.
pub fn call(call: Issued, runtime: &Runtime, verb: &str, pod: &Pod) -> anyhow::Result<Answer> {
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
