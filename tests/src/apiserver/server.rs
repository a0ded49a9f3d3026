//! The listener: accepts connections and performs restarts.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use tokio::{
    net::TcpListener,
    sync::{mpsc, oneshot},
    task::JoinSet,
    time::{Instant, sleep_until},
};

use super::{connections, control::Restart, core::Core};

/// Pause before another attempt to bind a port that is in use.
const RETRY: Duration = Duration::from_millis(20);

/// A command for the listener.
#[derive(Debug)]
pub(super) enum Order {
    /// The sender is notified when the server is down or, without a pause, when the server is up again.
    Restart(Restart, Option<oneshot::Sender<()>>),
    Stop,
}

/// Serves until ordered to stop.
pub(super) async fn run(
    core: Arc<Core>,
    listener: TcpListener,
    address: SocketAddr,
    mut orders: mpsc::UnboundedReceiver<Order>,
) {
    let mut listener = Some(listener);
    let mut up_at = Instant::now();
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = accept(listener.as_ref()) => {
                if let Ok((stream, _)) = accepted {
                    connections.spawn(connections::serve(Arc::clone(&core), stream));
                }
            }
            () = sleep_until(up_at), if listener.is_none() => {
                listener = TcpListener::bind(address).await.ok();
                up_at = Instant::now() + RETRY;
            }
            Some(order) = orders.recv() => match order {
                Order::Stop => return,
                Order::Restart(restart, done) => {
                    listener = None;
                    connections.shutdown().await;
                    core.restart(restart.history);
                    if restart.pause.is_zero() {
                        listener = TcpListener::bind(address).await.ok();
                    }
                    up_at = Instant::now() + restart.pause;
                    // The caller may have stopped waiting.
                    let _not_waiting = done.map(|done| done.send(()));
                }
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn accept(listener: Option<&TcpListener>) -> std::io::Result<(tokio::net::TcpStream, SocketAddr)> {
    match listener {
        Some(listener) => listener.accept().await,
        None => std::future::pending().await,
    }
}
