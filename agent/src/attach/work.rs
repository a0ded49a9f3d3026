//! Work that is finished whether or not its caller waits for it.

use std::sync::Arc;

use tokio::{sync::oneshot, task::spawn_blocking};

/// What to do with a result that nobody takes.
pub(super) type Abandoned<C, T> = fn(&C, T);

struct Done<T, H> {
    result: T,
    hold: H,
}

/// The caller's side. Dropped with a result in it, it hands that to `abandoned`.
struct Waiting<C: Send + Sync + 'static, T: Send + 'static, H: Send + 'static> {
    done: oneshot::Receiver<Done<T, H>>,
    context: Arc<C>,
    abandoned: Abandoned<C, T>,
}

/// Does work on a thread that may block, and gives its result, or `None` if the work panicked.
///
/// The work goes on when the caller is dropped, so that nothing is left half done; then `abandoned` gets the result, on
/// such a thread too. `hold` is dropped when one of them has it, and not before: nobody comes in between.
pub(super) async fn run<C, T, H>(
    context: Arc<C>,
    hold: H,
    work: impl FnOnce(&C) -> T + Send + 'static,
    abandoned: Abandoned<C, T>,
) -> Option<T>
where
    C: Send + Sync + 'static,
    T: Send + 'static,
    H: Send + 'static,
{
    let (sender, done) = oneshot::channel();
    let mut waiting = Waiting { done, context: Arc::clone(&context), abandoned };
    spawn_blocking(move || {
        let done = Done { result: work(&context), hold };
        if let Err(Done { result, hold }) = sender.send(done) {
            abandoned(&context, result);
            drop(hold);
        }
    });
    let Done { result, hold } = (&mut waiting.done).await.ok()?;
    drop(hold);
    Some(result)
}

impl<C: Send + Sync + 'static, T: Send + 'static, H: Send + 'static> Drop for Waiting<C, T, H> {
    fn drop(&mut self) {
        self.done.close();
        // The work was done just before the caller went.
        if let Ok(Done { result, hold }) = self.done.try_recv() {
            let (context, abandoned) = (Arc::clone(&self.context), self.abandoned);
            spawn_blocking(move || {
                abandoned(&context, result);
                drop(hold);
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, time::Duration};

    use tokio::time::timeout;

    use super::*;

    type Undone = mpsc::SyncSender<u32>;

    fn undo(undone: &Undone, result: u32) {
        undone.send(result).unwrap();
    }

    const SOON: Duration = Duration::from_secs(5);

    #[tokio::test]
    async fn a_result_that_is_taken_is_not_abandoned() {
        let (undone, told) = mpsc::sync_channel(1);
        assert_eq!(run(Arc::new(undone), (), |_| 7, undo).await, Some(7));
        assert!(told.recv().is_err(), "nobody can tell any more, and nobody has");
    }

    #[tokio::test]
    async fn a_caller_who_goes_during_the_work_abandons_its_result() {
        let (undone, told) = mpsc::sync_channel(1);
        let (go, wait) = mpsc::channel::<()>();
        let work = move |_: &Undone| {
            wait.recv().unwrap();
            7
        };
        let call = run(Arc::new(undone), (), work, undo);
        assert!(timeout(Duration::from_millis(1), call).await.is_err());
        go.send(()).unwrap();
        assert_eq!(told.recv_timeout(SOON), Ok(7));
    }

    #[tokio::test]
    async fn a_caller_who_goes_right_after_the_work_abandons_its_result() {
        let (undone, told) = mpsc::sync_channel(1);
        let (done, finished) = mpsc::channel::<()>();
        // Dropped when somebody has the result.
        let mut call = Box::pin(run(Arc::new(undone), done, |_| 7, undo));
        assert!(poll_once(&mut call).await.is_none(), "the work is on its way");
        std::thread::sleep(Duration::from_millis(200));
        assert!(matches!(finished.try_recv(), Err(mpsc::TryRecvError::Empty)), "the hold is held");
        drop(call);
        assert_eq!(told.recv_timeout(SOON), Ok(7));
        assert_eq!(finished.recv_timeout(SOON), Err(mpsc::RecvTimeoutError::Disconnected));
    }

    /// Polls once.
    async fn poll_once<F: Future + Unpin>(future: &mut F) -> Option<F::Output> {
        std::future::poll_fn(|context| match std::pin::Pin::new(&mut *future).poll(context) {
            std::task::Poll::Ready(output) => std::task::Poll::Ready(Some(output)),
            std::task::Poll::Pending => std::task::Poll::Ready(None),
        })
        .await
    }
}
