//! Blocking work that completes even if its caller is dropped; the result of abandoned work is rolled back.

use std::sync::Arc;

use tokio::{sync::oneshot, task::spawn_blocking};

/// Receives the result of work whose caller was dropped; runs on a blocking thread.
pub(super) type OnAbandon<C, T> = fn(&C, T);

struct Done<T, H> {
    result: T,
    hold: H,
}

/// The caller's side. If dropped with a result in the channel, the result goes to `on_abandon`.
struct Caller<C: Send + Sync + 'static, T: Send + 'static, H: Send + 'static> {
    done: oneshot::Receiver<Done<T, H>>,
    context: Arc<C>,
    on_abandon: OnAbandon<C, T>,
}

/// Runs work on a blocking thread, and returns its result, or `None` if the work panicked.
///
/// The work is never cancelled, so that no change stays half made. If the caller is dropped, `on_abandon`
/// gets the result. `hold` (locks, permits) is dropped only after either side has taken the result.
pub(super) async fn run<C, T, H>(
    context: Arc<C>,
    hold: H,
    work: impl FnOnce(&C) -> T + Send + 'static,
    on_abandon: OnAbandon<C, T>,
) -> Option<T>
where
    C: Send + Sync + 'static,
    T: Send + 'static,
    H: Send + 'static,
{
    let (sender, done) = oneshot::channel();
    let mut caller = Caller { done, context: Arc::clone(&context), on_abandon };
    spawn_blocking(move || {
        let done = Done { result: work(&context), hold };
        if let Err(Done { result, hold }) = sender.send(done) {
            on_abandon(&context, result);
            drop(hold);
        }
    });
    let Done { result, hold } = (&mut caller.done).await.ok()?;
    drop(hold);
    Some(result)
}

impl<C: Send + Sync + 'static, T: Send + 'static, H: Send + 'static> Drop for Caller<C, T, H> {
    fn drop(&mut self) {
        self.done.close();
        // The work finished just before the caller was dropped.
        if let Ok(Done { result, hold }) = self.done.try_recv() {
            let (context, on_abandon) = (Arc::clone(&self.context), self.on_abandon);
            spawn_blocking(move || {
                on_abandon(&context, result);
                drop(hold);
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::mpsc,
        task::{Context, Wake, Waker},
        time::Duration,
    };

    use tokio::time::timeout;

    use super::*;

    type Undone = mpsc::SyncSender<u32>;

    fn undo(undone: &Undone, result: u32) {
        undone.send(result).unwrap();
    }

    const SOON: Duration = Duration::from_secs(30);

    #[tokio::test]
    async fn a_received_result_is_not_abandoned() {
        let (undone, results) = mpsc::sync_channel(1);
        assert_eq!(run(Arc::new(undone), (), |_| 7, undo).await, Some(7));
        assert!(results.recv().is_err(), "on_abandon was called");
    }

    #[tokio::test]
    async fn a_caller_dropped_during_the_work_abandons_its_result() {
        let (undone, results) = mpsc::sync_channel(1);
        let (go, wait) = mpsc::channel::<()>();
        let work = move |_: &Undone| {
            wait.recv().unwrap();
            7
        };
        let call = run(Arc::new(undone), (), work, undo);
        assert!(timeout(Duration::from_millis(1), call).await.is_err());
        go.send(()).unwrap();
        assert_eq!(results.recv_timeout(SOON), Ok(7));
    }

    /// Wakes a test thread instead of a task.
    struct Woken(mpsc::SyncSender<()>);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            // A full channel has a wake-up already.
            let _ = self.0.try_send(());
        }
    }

    #[tokio::test]
    async fn a_caller_dropped_right_after_the_work_abandons_its_result() {
        let (undone, results) = mpsc::sync_channel(1);
        let (go, wait) = mpsc::channel::<()>();
        let (woken, wakes) = mpsc::sync_channel(1);
        // The channel closes when `hold` is dropped.
        let (hold, finished) = mpsc::channel::<()>();
        let work = move |_: &Undone| {
            wait.recv().unwrap();
            7
        };
        let mut call = Box::pin(run(Arc::new(undone), hold, work, undo));
        let waker = Waker::from(Arc::new(Woken(woken)));
        assert!(call.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        go.send(()).unwrap();
        wakes.recv_timeout(SOON).expect("the result is there");
        assert_eq!(
            finished.try_recv(),
            Err(mpsc::TryRecvError::Empty),
            "`hold` lives until the result is taken"
        );
        drop(call);
        assert_eq!(results.recv_timeout(SOON), Ok(7));
        assert_eq!(finished.recv_timeout(SOON), Err(mpsc::RecvTimeoutError::Disconnected));
    }
}
