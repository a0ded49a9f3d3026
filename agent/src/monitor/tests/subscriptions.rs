//! What clients get, in which order, and what happens to slow ones.

use std::{pin::pin, sync::Arc, time::Duration};

use ferrule_proto::{
    flow::{FlowFilter, LostEvent},
    observer::{
        GetFlowsRequest, GetFlowsResponse, ServerStatusRequest, get_flows_response::ResponseTypes,
        observer_server::Observer as _,
    },
};
use futures_util::{FutureExt as _, Stream, StreamExt as _};
use tokio::{sync::Semaphore, time::timeout};
use tonic::{Code, Request, Status};

use super::{Pods, dropped, seen, syn};
use crate::monitor::{
    ObserverService,
    history::{CAPACITY, History},
    query::{Query, QueryError},
    seen::{Interface, Seen},
    show::timestamp,
    subscription::Subscription,
};

/// An entry with its number as time and as destination port.
fn entry(number: u16) -> Seen {
    let mut frame = syn([10, 0, 0, 1], [10, 0, 0, 2]);
    frame[36..38].copy_from_slice(&number.to_be_bytes());
    Seen { time: number.into(), ..seen(dropped(1, &frame), &Pods::default()) }
}

fn history(numbers: impl IntoIterator<Item = u16>) -> Arc<History> {
    let history = Arc::new(History::default());
    numbers.into_iter().for_each(|number| history.push(entry(number)));
    history
}

fn messages(
    history: &Arc<History>,
    request: &GetFlowsRequest,
) -> impl Stream<Item = Result<GetFlowsResponse, Status>> + use<> {
    let place = Arc::new(Semaphore::new(1)).try_acquire_owned().unwrap();
    let query = Query::new(request).unwrap();
    Subscription::new(query, Arc::clone(history), "node-1".to_owned(), place).messages()
}

fn lost(entries: u64) -> LostEvent {
    LostEvent { source: 3, num_events_lost: entries }
}

/// The number of an entry, or the lost ones.
fn number(message: Option<Result<GetFlowsResponse, Status>>) -> Result<i32, LostEvent> {
    let message = message.unwrap().unwrap();
    assert_eq!(message.node_name, "node-1");
    match message.response_types.unwrap() {
        ResponseTypes::Flow(_) => Ok(message.time.unwrap().nanos),
        ResponseTypes::LostEvents(lost) => Err(lost),
    }
}

/// The numbers of a stream that ends.
async fn all(history: &Arc<History>, request: GetFlowsRequest) -> Vec<i32> {
    let messages: Vec<_> = messages(history, &request).collect().await;
    messages.into_iter().map(|it| number(Some(it)).unwrap()).collect()
}

fn to_port(port: u16) -> FlowFilter {
    FlowFilter { destination_port: vec![port.to_string()], ..FlowFilter::default() }
}

#[tokio::test]
async fn recorded_entries_are_the_newest_or_the_oldest_that_match() {
    let history = history(1..=9);
    let base = GetFlowsRequest::default;
    assert_eq!(all(&history, base()).await, [1, 2, 3, 4, 5, 6, 7, 8, 9]);
    assert_eq!(all(&history, GetFlowsRequest { number: 2, ..base() }).await, [8, 9]);
    assert_eq!(all(&history, GetFlowsRequest { number: 2, first: true, ..base() }).await, [1, 2]);
    assert_eq!(all(&history, GetFlowsRequest { number: u64::MAX, ..base() }).await.len(), 9);
    let (since, until) = (Some(timestamp(3)), Some(timestamp(6)));
    assert_eq!(all(&history, GetFlowsRequest { since, until, ..base() }).await, [3, 4, 5, 6]);
    assert_eq!(all(&history, GetFlowsRequest { since, until, number: 2, ..base() }).await, [5, 6]);
    let (whitelist, blacklist) = (vec![to_port(2), to_port(4)], vec![to_port(4)]);
    assert_eq!(
        all(&history, GetFlowsRequest { number: 2, whitelist: whitelist.clone(), ..base() }).await,
        [2, 4]
    );
    assert_eq!(all(&history, GetFlowsRequest { whitelist, blacklist, ..base() }).await, [2]);
}

#[tokio::test]
async fn a_client_that_follows_gets_recorded_entries_and_then_new_ones_without_a_gap() {
    let history = history(1..=3);
    let mut all =
        pin!(messages(&history, &GetFlowsRequest { number: 2, follow: true, ..Default::default() }));
    let whitelist = vec![to_port(5)];
    let mut some =
        pin!(messages(&history, &GetFlowsRequest { follow: true, whitelist, ..Default::default() }));
    history.push(entry(4));
    for expected in [2, 3, 4] {
        assert_eq!(number(all.next().await), Ok(expected));
    }
    assert!(all.next().now_or_never().is_none() && some.next().now_or_never().is_none());
    history.push(entry(5));
    assert_eq!(number(all.next().await), Ok(5));
    assert_eq!(number(some.next().await), Ok(5));
}

#[tokio::test]
async fn a_slow_client_misses_entries_and_learns_how_many() {
    let history = history([]);
    let mut slow = pin!(messages(&history, &GetFlowsRequest { follow: true, ..Default::default() }));
    let entries = u16::try_from(CAPACITY).unwrap() + 10;
    (1..=entries).for_each(|number| history.push(entry(number)));
    assert_eq!(number(slow.next().await), Err(lost(10)));
    assert_eq!(number(slow.next().await), Ok(11), "the oldest that is left");
    // The rest of a batch is kept; what is behind the batch is overwritten.
    (1..=entries).for_each(|number| history.push(entry(number)));
    for expected in 12..=74 {
        assert_eq!(number(slow.next().await), Ok(expected));
    }
    assert_eq!(number(slow.next().await), Err(lost(u64::from(entries) - 74 + 10)));
    assert_eq!(number(slow.next().await), Ok(11));
}

#[tokio::test]
async fn the_history_is_bounded_and_empty_at_first() {
    let history = history([]);
    assert!(history.is_empty());
    (0..5000).for_each(|number| history.push(entry(number)));
    assert_eq!((history.len(), history.end().borrow().position), (4096, 5000));
}

/// How many entries of each of two interfaces there are.
fn held(history: &History) -> (usize, usize) {
    let entries = history.read(0, usize::MAX).entries;
    let of = |ifindex| entries.iter().filter(|it| it.interface.ifindex == ifindex).count();
    (of(1), of(2))
}

#[test]
fn a_pod_that_has_its_share_of_a_full_history_displaces_its_own_entries_only() {
    let history = History::default();
    let push = |ifindex, number: usize| {
        for _ in 0..number {
            let seen = entry(1);
            history.push(Seen { interface: Interface { ifindex, ..seen.interface }, ..seen });
        }
    };
    push(2, 100);
    push(1, 10_000);
    assert_eq!(held(&history), (3996, 100));
    // Below its share, the other pod displaces the oldest of all: first its own.
    push(2, 100);
    assert_eq!(held(&history), (3996, 100));
    push(2, 1000);
    assert_eq!(held(&history), (3840, 256));
    let batch = history.read(0, usize::MAX);
    assert_eq!((batch.missed + 4096, batch.next), (11_200, 11_200));
}

#[tokio::test]
async fn streams_end_when_the_history_is_closed() {
    let history = history([1]);
    let mut messages = pin!(messages(&history, &GetFlowsRequest { follow: true, ..Default::default() }));
    assert!(messages.next().now_or_never().is_none());
    history.push(entry(2));
    history.close();
    assert_eq!(number(messages.next().await), Ok(2), "what came before the end is sent");
    assert!(timeout(Duration::from_secs(5), messages.next()).await.unwrap().is_none());
}

#[tokio::test]
async fn a_client_that_follows_until_a_time_ends_without_another_entry() {
    let history = history([1]);
    let request = GetFlowsRequest { follow: true, until: Some(timestamp(7)), ..Default::default() };
    let mut messages = pin!(messages(&history, &request));
    assert!(timeout(Duration::from_secs(5), messages.next()).await.unwrap().is_none());
}

#[test]
fn contradictions_and_invalid_times_are_refused() {
    let base = GetFlowsRequest::default;
    let error = |request| Query::new(&request).unwrap_err();
    assert_eq!(error(GetFlowsRequest { first: true, follow: true, ..base() }), QueryError::FirstAndFollow);
    let before_1970 = prost_types::Timestamp { seconds: -1, nanos: 0 };
    assert_eq!(error(GetFlowsRequest { since: Some(before_1970), ..base() }), QueryError::Time("since"));
    let late = prost_types::Timestamp { seconds: i64::MAX, nanos: 0 };
    assert_eq!(error(GetFlowsRequest { until: Some(late), ..base() }), QueryError::Time("until"));
    let filters = vec![FlowFilter { uuid: vec![String::new()], ..FlowFilter::default() }];
    assert!(matches!(error(GetFlowsRequest { whitelist: filters, ..base() }), QueryError::Filter(_)));
}

#[tokio::test]
async fn clients_are_bounded_and_make_room_when_they_end() {
    let service = ObserverService::new(history([1, 2]), || 7, "node-1".to_owned());
    let follow = || Request::new(GetFlowsRequest { follow: true, ..Default::default() });
    let mut streams = Vec::new();
    for _ in 0..32 {
        streams.push(service.get_flows(follow()).await.unwrap());
    }
    let refused = service.get_flows(follow()).await.err().unwrap();
    assert_eq!(refused.code(), Code::ResourceExhausted);
    streams.pop();
    assert!(service.get_flows(follow()).await.is_ok());
    let status = service.server_status(Request::new(ServerStatusRequest {})).await.unwrap().into_inner();
    assert_eq!(
        (status.num_flows, status.max_flows, status.seen_flows, status.flow_sampling),
        (2, 4096, 2, 7)
    );
}

#[tokio::test]
async fn an_invalid_request_is_refused_with_its_reason() {
    let service = ObserverService::new(history([]), || 0, String::new());
    let request = GetFlowsRequest { first: true, follow: true, ..Default::default() };
    let refused = service.get_flows(Request::new(request)).await.err().unwrap();
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert!(refused.message().contains("exclude each other"), "{refused}");
}
