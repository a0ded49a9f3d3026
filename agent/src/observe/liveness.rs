//! Liveness: the agent's tasks run, and the kernel answers netlink requests. A failed probe restarts the
//! agent.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use tokio::{sync::Semaphore, task::spawn_blocking, time::timeout};

/// The liveness of the agent. Clones share it.
#[derive(Clone)]
pub struct Liveness(Arc<Inner>);

struct Inner {
    ended: OnceLock<String>,
    probe: Box<dyn Fn() -> Result<(), String> + Send + Sync>,
    /// One probe at a time: each may block a thread for as long as the kernel does not answer.
    turn: Arc<Semaphore>,
}

/// The kernel answers within microseconds, unless another process holds RTNL.
const ANSWER: Duration = Duration::from_secs(2);

// === impl Liveness ===

impl Liveness {
    /// `probe` sends the kernel a request; it may block.
    pub fn new(probe: impl Fn() -> Result<(), String> + Send + Sync + 'static) -> Self {
        let turn = Arc::new(Semaphore::new(1));
        Self(Arc::new(Inner { ended: OnceLock::new(), probe: Box::new(probe), turn }))
    }

    /// Marks the agent as dead: an essential task ended.
    pub fn ended(&self, why: &str) {
        // The first reason is the cause of the others.
        let _ = self.0.ended.set(why.to_owned());
    }

    /// Probes within two seconds.
    ///
    /// # Errors
    /// The reason why the agent is not alive.
    pub async fn check(&self) -> Result<(), String> {
        if let Some(why) = self.0.ended.get() {
            return Err(why.clone());
        }
        let inner = Arc::clone(&self.0);
        let probe = async {
            // The semaphore is never closed.
            let turn = Arc::clone(&inner.turn).acquire_owned().await.ok();
            spawn_blocking(move || {
                let answer = (inner.probe)();
                drop(turn);
                answer
            })
            .await
        };
        match timeout(ANSWER, probe).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => {
                Err(format!("the kernel has not answered a netlink request for {} s", ANSWER.as_secs()))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::{
            atomic::{AtomicU32, Ordering},
            mpsc,
        },
        time::Instant,
    };

    use super::*;

    #[tokio::test]
    async fn liveness_fails_once_a_task_ended_or_the_kernel_reports_an_error() {
        let liveness = Liveness::new(|| Ok(()));
        assert_eq!(liveness.check().await, Ok(()));
        liveness.ended("the task reaper has ended");
        liveness.ended("and then others");
        assert_eq!(liveness.check().await, Err("the task reaper has ended".to_owned()));
        assert_eq!(
            Liveness::new(|| Err("no buffers".to_owned())).check().await,
            Err("no buffers".to_owned())
        );
    }

    #[tokio::test]
    async fn a_kernel_that_does_not_answer_blocks_one_thread_and_fails_after_two_seconds() {
        let (answer, answers) = mpsc::channel();
        let (answers, asked) = (std::sync::Mutex::new(answers), Arc::new(AtomicU32::new(0)));
        let counted = Arc::clone(&asked);
        let liveness = Liveness::new(move || {
            counted.fetch_add(1, Ordering::SeqCst);
            answers.lock().unwrap().recv().unwrap()
        });
        let before = Instant::now();
        let (first, second) = tokio::join!(liveness.check(), liveness.check());
        assert!(first.unwrap_err().contains("not answered") && second.is_err());
        assert!(before.elapsed() < 2 * ANSWER);
        assert_eq!(asked.load(Ordering::SeqCst), 1, "the second probe waits for its turn");
        answer.send(Ok(())).unwrap();
        answer.send(Ok(())).unwrap();
        assert_eq!(liveness.check().await, Ok(()), "the kernel answers again");
    }
}
