//! The messages of one client: recorded entries first, then new ones as they come.

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use ferrule_proto::{
    flow::{LostEvent, LostEventSource},
    observer::{GetFlowsResponse, get_flows_response::ResponseTypes},
};
use futures_util::{Stream, stream};
use tokio::{
    sync::{OwnedSemaphorePermit, watch},
    task::yield_now,
    time::timeout,
};
use tonic::Status;

use super::{
    history::{End, History},
    query::Query,
    seen::Seen,
    show,
};

/// A client and its position in the history. Reads only when the client takes messages, and never holds up
/// the writer.
pub(super) struct Subscription {
    query: Query,
    history: Arc<History>,
    end: watch::Receiver<End>,
    /// Of the next entry to read.
    position: u64,
    /// Read, not yet sent.
    pending: VecDeque<Message>,
    node_name: String,
    _place: OwnedSemaphorePermit,
}

enum Message {
    Seen(Arc<Seen>),
    /// Entries that were overwritten before the client took them.
    Missed(u64),
}

/// Entries read at once: the history's lock is held for so many, and so many are kept for a slow client.
const BATCH: usize = 64;

// === impl Subscription ===

impl Subscription {
    pub fn new(query: Query, history: Arc<History>, node_name: String, place: OwnedSemaphorePermit) -> Self {
        let end = history.end();
        let (recorded, position) = query.recorded(&history);
        let pending = recorded.into_iter().map(Message::Seen).collect();
        Self { query, history, end, position, pending, node_name, _place: place }
    }

    /// Ends after the recorded entries; for a client that follows, when `until` has passed or the history is
    /// closed.
    pub fn messages(self) -> impl Stream<Item = Result<GetFlowsResponse, Status>> {
        stream::unfold(self, async |mut this| {
            let message = this.next().await?;
            Some((Ok(this.show(message)), this))
        })
    }

    async fn next(&mut self) -> Option<Message> {
        loop {
            if let Some(message) = self.pending.pop_front() {
                return Some(message);
            }
            if !self.query.follows || !self.wait().await {
                return None;
            }
            let batch = self.history.read(self.position, BATCH);
            self.position = batch.next;
            if batch.missed > 0 {
                self.pending.push_back(Message::Missed(batch.missed));
            }
            let matching = batch.entries.into_iter().filter(|it| self.query.matches(it));
            self.pending.extend(matching.map(Message::Seen));
            // A filter that matches nothing must not keep the thread.
            yield_now().await;
        }
    }

    /// Waits for an entry behind the position. Returns whether there is one.
    async fn wait(&mut self) -> bool {
        let position = self.position;
        let news = self.end.wait_for(|end| end.position > position || end.is_closed);
        let end = match self.query.until.map(from_now) {
            None => news.await,
            Some(limit) => match timeout(limit, news).await {
                Ok(end) => end,
                Err(_) => return false,
            },
        };
        end.is_ok_and(|end| end.position > position)
    }

    fn show(&self, message: Message) -> GetFlowsResponse {
        let (time, response) = match message {
            Message::Seen(seen) => {
                (seen.time, ResponseTypes::Flow(Box::new(show::flow(&seen, &self.node_name))))
            }
            Message::Missed(entries) => {
                let source = LostEventSource::HubbleRingBuffer.into();
                (now(), ResponseTypes::LostEvents(LostEvent { source, num_events_lost: entries }))
            }
        };
        GetFlowsResponse {
            response_types: Some(response),
            node_name: self.node_name.clone(),
            time: Some(show::timestamp(time)),
        }
    }
}

/// Nanoseconds since the Unix epoch.
fn now() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
}

fn from_now(at: u64) -> Duration {
    Duration::from_nanos(at.saturating_sub(now()))
}
