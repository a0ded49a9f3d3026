//! Whether the agent is alive: its tasks run, and the kernel answers. An agent that is not is to be started anew.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use tokio::{sync::Semaphore, task::spawn_blocking, time::timeout};

/// What is known of the agent's life. Cloning it is cheap, and knows the same.
#[derive(Clone)]
pub struct Liveness(Arc<Inner>);

struct Inner {
    ended: OnceLock<String>,
    ask: Box<dyn Fn() -> Result<(), String> + Send + Sync>,
    /// One question at a time: each may keep a thread for as long as the kernel does not answer.
    turn: Arc<Semaphore>,
}

/// The kernel answers within microseconds, unless somebody keeps its lock over network configuration.
const ANSWER: Duration = Duration::from_secs(2);

// === impl Liveness ===

impl Liveness {
    /// `ask` asks the kernel something. It may block.
    pub fn new(ask: impl Fn() -> Result<(), String> + Send + Sync + 'static) -> Self {
        let turn = Arc::new(Semaphore::new(1));
        Self(Arc::new(Inner { ended: OnceLock::new(), ask: Box::new(ask), turn }))
    }

    /// Says that a part has ended without which the agent is none.
    pub fn ended(&self, why: &str) {
        // The first one is the cause.
        let _ = self.0.ended.set(why.to_owned());
    }

    /// Looks whether all is alive, within two seconds.
    ///
    /// # Errors
    /// What is not, in words.
    pub async fn check(&self) -> Result<(), String> {
        if let Some(why) = self.0.ended.get() {
            return Err(why.clone());
        }
        let inner = Arc::clone(&self.0);
        let asked = async {
            // It is never closed.
            let turn = Arc::clone(&inner.turn).acquire_owned().await.ok();
            spawn_blocking(move || {
                let answer = (inner.ask)();
                drop(turn);
                answer
            })
            .await
        };
        match timeout(ANSWER, asked).await {
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
    async fn alive_is_whose_tasks_run_and_whom_the_kernel_answers() {
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
    async fn a_kernel_that_does_not_answer_costs_one_thread_and_two_seconds() {
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
        assert_eq!(asked.load(Ordering::SeqCst), 1, "nobody else waits in the kernel");
        answer.send(Ok(())).unwrap();
        answer.send(Ok(())).unwrap();
        assert_eq!(liveness.check().await, Ok(()), "it answers again");
    }
}
