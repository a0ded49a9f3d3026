//! Supervision of the agent's background tasks. A task that ends unexpectedly ends the agent, which the
//! service manager restarts while packets keep flowing: better than an agent that silently lacks a part.

use std::{collections::HashMap, future::pending};

use tokio::task::{Id, JoinError, JoinSet};

/// Running tasks, aborted on drop.
#[derive(Debug, Default)]
pub(super) struct Tasks {
    running: JoinSet<()>,
    names: HashMap<Id, &'static str>,
}

/// A task that ended unexpectedly.
#[derive(Debug, thiserror::Error)]
pub(super) enum TaskError {
    #[error("the agent's task {0:?} ended unexpectedly: please report this defect")]
    Ended(&'static str),
    #[error("the agent's task {name:?} failed: please report this defect")]
    Failed {
        name: &'static str,
        #[source]
        source: JoinError,
    },
}

// === impl Tasks ===

impl Tasks {
    /// Starts a task that runs as long as the agent.
    pub fn spawn(&mut self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        let id = self.running.spawn(task).id();
        self.names.insert(id, name);
    }

    /// Waits for the first task that ends unexpectedly.
    pub async fn failure(&mut self) -> TaskError {
        loop {
            let (id, failed) = match self.running.join_next_with_id().await {
                Some(Ok((id, ()))) => (id, None),
                Some(Err(error)) => (error.id(), Some(error)),
                None => pending().await,
            };
            match (self.names.remove(&id), failed) {
                (None, _) => {}
                (Some(name), None) => return TaskError::Ended(name),
                (Some(name), Some(source)) => return TaskError::Failed { name, source },
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::{sync::oneshot, time::timeout};

    use super::*;

    #[tokio::test]
    async fn a_task_that_ends_unexpectedly_is_reported() {
        let mut tasks = Tasks::default();
        let (end, ended) = oneshot::channel::<()>();
        tasks.spawn("reaper", pending());
        tasks.spawn("http", async { drop(ended.await) });
        assert!(timeout(Duration::from_millis(20), tasks.failure()).await.is_err());
        end.send(()).unwrap();
        assert!(matches!(tasks.failure().await, TaskError::Ended("http")));
    }

    #[tokio::test]
    async fn a_panic_of_a_task_is_reported_with_its_message() {
        let mut tasks = Tasks::default();
        tasks.spawn("install", async { panic!("half done") });
        let error = anyhow::Error::new(tasks.failure().await);
        let text = format!("{error:#}");
        assert!(text.contains("install") && text.contains("half done"), "{text}");
    }

    #[tokio::test]
    async fn dropping_the_tasks_aborts_them() {
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
