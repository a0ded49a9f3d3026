//! The tasks that the agent is made of. One that ends though nobody asked it to takes the agent with it: it is started anew,
//! and packets flow on meanwhile. A part that is silently missing would be worse.

use std::{collections::HashMap, future::pending};

use tokio::task::{Id, JoinError, JoinSet};

/// Tasks that run until they are dropped.
#[derive(Debug, Default)]
pub(super) struct Tasks {
    running: JoinSet<()>,
    known: HashMap<Id, (&'static str, End)>,
}

/// Whether a task may end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Never,
    WhenDone,
}

/// A task ended and should not have.
#[derive(Debug, thiserror::Error)]
pub(super) enum TaskError {
    #[error("the agent's task {0:?} has ended by itself, which is a defect of the agent: please report it")]
    Ended(&'static str),
    #[error("the agent's task {name:?} has failed, which is a defect of the agent: please report it")]
    Failed {
        name: &'static str,
        #[source]
        source: JoinError,
    },
}

// === impl Tasks ===

impl Tasks {
    /// Starts one that runs as long as the agent.
    pub fn spawn(&mut self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        self.start(name, End::Never, task);
    }

    /// Starts one that may come to its end.
    pub fn spawn_until_done(&mut self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        self.start(name, End::WhenDone, task);
    }

    /// Waits for the first that ends and should not.
    pub async fn failure(&mut self) -> TaskError {
        loop {
            let (id, failed) = match self.running.join_next_with_id().await {
                Some(Ok((id, ()))) => (id, None),
                Some(Err(error)) => (error.id(), Some(error)),
                None => pending().await,
            };
            match (self.known.remove(&id), failed) {
                (Some((_, End::WhenDone)), None) | (None, _) => {}
                (Some((name, End::Never)), None) => return TaskError::Ended(name),
                (Some((name, _)), Some(source)) => return TaskError::Failed { name, source },
            }
        }
    }

    fn start(&mut self, name: &'static str, end: End, task: impl Future<Output = ()> + Send + 'static) {
        let id = self.running.spawn(task).id();
        self.known.insert(id, (name, end));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::{sync::oneshot, time::timeout};

    use super::*;

    #[tokio::test]
    async fn fix_a_task_that_ends_though_nobody_asked_it_to_is_noticed() {
        let mut tasks = Tasks::default();
        let (end, ended) = oneshot::channel::<()>();
        tasks.spawn("reaper", pending());
        tasks.spawn("http", async { drop(ended.await) });
        assert!(timeout(Duration::from_millis(20), tasks.failure()).await.is_err());
        end.send(()).unwrap();
        assert!(matches!(tasks.failure().await, TaskError::Ended("http")));
    }

    #[tokio::test]
    async fn a_task_that_may_end_ends_without_notice_but_not_in_a_panic() {
        let mut tasks = Tasks::default();
        tasks.spawn_until_done("install", async {});
        assert!(timeout(Duration::from_millis(20), tasks.failure()).await.is_err());
        tasks.spawn_until_done("install", async { panic!("on the way") });
        let error = anyhow::Error::new(tasks.failure().await);
        let text = format!("{error:#}");
        assert!(text.contains("install") && text.contains("on the way"), "{text}");
    }

    #[tokio::test]
    async fn what_is_dropped_runs_no_longer() {
        let (kept, dropped) = oneshot::channel::<()>();
        let mut tasks = Tasks::default();
        tasks.spawn("reaper", async move {
            let _kept = kept;
            pending().await
        });
        drop(tasks);
        timeout(Duration::from_secs(5), dropped).await.unwrap().unwrap_err();
    }
}
