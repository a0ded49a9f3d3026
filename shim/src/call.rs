//! The call to the agent: request in, result or CNI error out.

use std::{
    io, mem, thread,
    time::{Duration, Instant},
};

use ferrule_proto::cni::{
    self, AddRequest, AddResult, CheckRequest, DelRequest, GcRequest, StatusRequest, add_response::Outcome,
    cni_client::CniClient, error::Code,
};
use ferrule_proto::names::InvalidName;
use tokio::{runtime::Builder, time};
use tonic::{Status, codegen::http::Uri};

use crate::{
    away,
    env::Verb,
    error::{CniError, Shown},
    trace::Trace,
    transport::Transport,
};

/// What is asked of the agent.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Request {
    Add(AddRequest),
    Del(DelRequest),
    Check(CheckRequest),
    Gc(GcRequest),
    Status(StatusRequest),
}

/// How long the agent may take to accept a connection.
const CONNECT: Duration = Duration::from_secs(1);
/// How long it may take to answer: less than the runtimes' own two minutes, so that the answer to a deadline
/// missed is ours. An ADD may have to wait for a controller's decision.
const ADD: Duration = Duration::from_secs(90);
const OTHERS: Duration = Duration::from_secs(30);

/// For how long to call an agent that is going away, and how long to wait in between.
const GOING: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(50);

const START_AGENT: &str = "check that ferrule-agent runs on this node and that \"socket\" in the network \
                           configuration, if it is set, names the agent's socket";

/// A call that the agent has not served.
#[derive(Debug)]
struct Failure {
    error: CniError,
    cause: Cause,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cause {
    /// Nobody listens.
    Away,
    /// Somebody who listened has gone, or does not speak our language.
    Lost,
    /// Somebody listens, and could not serve.
    Unserved,
}

/// Calls the agent, as a part of the trace if there is one, and waits for its answer. Only ADD has a result. A DEL succeeds without
/// an agent.
///
/// # Errors
/// Those of the agent, and those of getting through to it.
pub(crate) fn call(
    socket: &str,
    request: Request,
    trace: Option<Trace>,
) -> Result<Option<AddResult>, CniError> {
    match (attempt(socket, &request, trace.as_ref()), &request) {
        (Ok(answer), _) => answer,
        (
            Err(Failure { cause: Cause::Away | Cause::Lost, .. }),
            Request::Del(DelRequest { key: Some(key), .. }),
        ) => {
            let key = away::Key::new(key).map_err(|error| invalid(&error))?;
            let again = || again(socket, &request, trace.as_ref());
            away::del(socket, &key, again).map(|()| None)
        }
        (Err(Failure { error, .. }), _) => Err(error),
    }
}

/// Calls an agent that was away or went away: whether there is one now, and its answer. One that is going away takes a moment
/// to be gone.
fn again(socket: &str, request: &Request, trace: Option<&Trace>) -> Option<Result<(), CniError>> {
    let end = Instant::now() + GOING;
    loop {
        match attempt(socket, request, trace) {
            Ok(answer) => return Some(answer.map(drop)),
            Err(Failure { cause: Cause::Away, .. }) => return None,
            Err(Failure { cause: Cause::Lost, .. }) if Instant::now() < end => {
                thread::sleep(PAUSE);
            }
            Err(Failure { error, .. }) => return Some(Err(error)),
        }
    }
}

/// Calls the agent once.
fn attempt(
    socket: &str,
    request: &Request,
    trace: Option<&Trace>,
) -> Result<Result<Option<AddResult>, CniError>, Failure> {
    // A socket and its deadline have no more than two events at a time.
    let runtime =
        Builder::new_current_thread().enable_all().max_io_events_per_tick(8).build().map_err(|e| {
            let msg = format!("{}: preparing the call to the agent: {e}", request.verb().as_str());
            let details = "check the limits on open files and memory of the runtime";
            Failure { error: CniError::new(Code::IoFailure, msg, details), cause: Cause::Unserved }
        })?;
    let answer = runtime.block_on(exchange(socket, request.clone(), trace.cloned()));
    // The process is about to end, which closes the connection too: nothing has to be taken apart before.
    mem::forget(runtime);
    answer
}

async fn exchange(
    socket: &str,
    request: Request,
    trace: Option<Trace>,
) -> Result<Result<Option<AddResult>, CniError>, Failure> {
    let verb = request.verb();
    let transport = match time::timeout(CONNECT, Transport::connect(socket, trace)).await {
        Ok(connected) => connected.map_err(|e| unreachable(verb, socket, &e))?,
        Err(_) => return Err(unreachable(verb, socket, &io::ErrorKind::TimedOut.into())),
    };
    let within = request.deadline();
    match time::timeout(within, send(transport, request, within)).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(status)) => Err(failed(verb, socket, &status)),
        Err(_) => {
            let status = Status::deadline_exceeded(format!("there is no answer after {within:?}"));
            Err(failed(verb, socket, &status))
        }
    }
}

/// Sends the request. The outer error is the transport's, the inner one the agent's.
async fn send(
    transport: Transport,
    request: Request,
    within: Duration,
) -> Result<Result<Option<AddResult>, CniError>, Status> {
    // HTTP wants a name for the server; a socket has none.
    let mut client = CniClient::with_origin(transport, Uri::from_static("http://ferrule-agent"));
    let error = match request {
        Request::Add(request) => match client.add(timed(request, within)).await?.into_inner().outcome {
            Some(Outcome::Result(result)) => return Ok(Ok(Some(result))),
            Some(Outcome::Error(error)) => Some(error),
            None => return Err(Status::internal("the answer has neither a result nor an error")),
        },
        Request::Del(request) => client.del(timed(request, within)).await?.into_inner().error,
        Request::Check(request) => client.check(timed(request, within)).await?.into_inner().error,
        Request::Gc(request) => client.gc(timed(request, within)).await?.into_inner().error,
        Request::Status(request) => client.status(timed(request, within)).await?.into_inner().error,
    };
    Ok(error.map_or(Ok(None), |error: cni::Error| Err(error.into())))
}

// === impl Request ===

impl Request {
    fn verb(&self) -> Verb {
        match self {
            Self::Add(_) => Verb::Add,
            Self::Del(_) => Verb::Del,
            Self::Check(_) => Verb::Check,
            Self::Gc(_) => Verb::Gc,
            Self::Status(_) => Verb::Status,
        }
    }

    fn deadline(&self) -> Duration {
        if matches!(self, Self::Add(_)) { ADD } else { OTHERS }
    }
}

/// Tells the agent the deadline too (`grpc-timeout`), so that it does not go on for nobody.
fn timed<T>(message: T, within: Duration) -> tonic::Request<T> {
    let mut request = tonic::Request::new(message);
    request.set_timeout(within);
    request
}

/// The error for a socket that does not lead to an agent.
fn unreachable(verb: Verb, socket: &str, error: &io::Error) -> Failure {
    let (code, details) = match error.kind() {
        io::ErrorKind::PermissionDenied => (Code::IoFailure, "run the plugin as root"),
        // The last: it has closed its socket with us in the queue.
        io::ErrorKind::NotFound
        | io::ErrorKind::ConnectionRefused
        | io::ErrorKind::TimedOut
        | io::ErrorKind::ConnectionReset => (away(verb), START_AGENT),
        _ => (Code::IoFailure, START_AGENT),
    };
    let msg = format!("{}: connecting to the agent at {}: {error}", verb.as_str(), Shown(socket));
    let cause = match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused | io::ErrorKind::ConnectionReset => {
            Cause::Away
        }
        _ => Cause::Unserved,
    };
    Failure { error: CniError::new(code, msg, details), cause }
}

/// The error for a call that was not served.
fn failed(verb: Verb, socket: &str, status: &Status) -> Failure {
    let (code, details) = match status.code() {
        // A server that sees the deadline first says that the call is cancelled.
        tonic::Code::Unavailable | tonic::Code::DeadlineExceeded | tonic::Code::Cancelled => {
            (away(verb), START_AGENT)
        }
        tonic::Code::ResourceExhausted => (away(verb), "the agent has too much to do: try again later"),
        tonic::Code::PermissionDenied | tonic::Code::Unauthenticated => {
            (Code::IoFailure, "run the plugin as root")
        }
        tonic::Code::Unimplemented => {
            (Code::ApiIncompatible, "the agent is older than this plugin: install both from the same release")
        }
        _ => (Code::Internal, "see the log of ferrule-agent on this node"),
    };
    let (verb, socket) = (verb.as_str(), Shown(socket));
    let msg = format!(
        "{verb}: calling the agent at {socket}: {:?}: {}",
        status.code(),
        status.message().escape_debug()
    );
    // The agent never says this itself: it is the connection that was lost.
    let cause = if status.code() == tonic::Code::Unavailable { Cause::Lost } else { Cause::Unserved };
    Failure { error: CniError::new(code, msg, details), cause }
}

fn invalid(error: &InvalidName) -> CniError {
    CniError::new(Code::InvalidEnvironment, format!("DEL: {error}"), "the runtime must name the container")
}

/// The code for an agent that cannot serve now: STATUS has one of its own for that.
fn away(verb: Verb) -> Code {
    if verb == Verb::Status { Code::PluginNotAvailable } else { Code::TryAgainLater }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::{UnixListener, UnixStream};

    use nix::sys::socket::{AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, listen, socket};
    use tokio::time::Instant;

    use super::*;

    fn requests() -> [Request; 5] {
        [
            Request::Add(AddRequest::default()),
            Request::Del(DelRequest::default()),
            Request::Check(CheckRequest::default()),
            Request::Gc(GcRequest::default()),
            Request::Status(StatusRequest::default()),
        ]
    }

    #[tokio::test(start_paused = true)]
    async fn an_agent_that_hangs_is_given_up_at_the_deadline() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("agent.sock");
        let _never_accepted = UnixListener::bind(&path).unwrap();
        for request in requests() {
            let (deadline, verb) = (request.deadline(), request.verb());
            let start = Instant::now();
            let Failure { error, cause } = exchange(path.to_str().unwrap(), request, None).await.unwrap_err();
            let elapsed = start.elapsed();
            assert!(elapsed >= deadline && elapsed < deadline + CONNECT, "{verb:?} took {elapsed:?}");
            assert_eq!(error.code, if verb == Verb::Status { 50 } else { 11 });
            assert_eq!(cause, Cause::Unserved, "it may come to its senses: nobody may do its work");
            assert!(error.msg.contains("there is no answer after"), "{}", error.msg);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_full_queue_of_connections_is_waited_for_but_not_for_long() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("agent.sock");
        let fd = socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_NONBLOCK, None).unwrap();
        bind(std::os::fd::AsRawFd::as_raw_fd(&fd), &UnixAddr::new(&path).unwrap()).unwrap();
        listen(&fd, Backlog::new(0).unwrap()).unwrap();
        let _fills_the_queue = UnixStream::connect(&path).unwrap();

        let start = Instant::now();
        let request = Request::Add(AddRequest::default());
        let Failure { error, cause } = exchange(path.to_str().unwrap(), request, None).await.unwrap_err();
        assert_eq!((error.code, cause), (11, Cause::Unserved), "{}", error.msg);
        assert!(start.elapsed() >= CONNECT && start.elapsed() < 2 * CONNECT);
    }

    #[test]
    fn an_agent_that_is_away_is_named_by_its_socket() {
        let dir = tempfile::tempdir().unwrap();
        let missing = dir.path().join("missing.sock");
        let stale = dir.path().join("stale.sock");
        drop(UnixListener::bind(&stale).unwrap());
        for path in [missing, stale] {
            for request in requests().into_iter().filter(|it| it.verb() != Verb::Del) {
                let code = if request.verb() == Verb::Status { 50 } else { 11 };
                let error = call(path.to_str().unwrap(), request, None).unwrap_err();
                assert_eq!(error.code, code, "{}", error.msg);
                assert!(error.msg.contains(path.to_str().unwrap()), "{}", error.msg);
                assert!(error.details.contains("check that ferrule-agent runs"), "{}", error.details);
            }
        }
    }

    #[test]
    fn a_socket_that_may_not_be_opened_asks_for_root() {
        let Failure { error, cause } = unreachable(Verb::Add, "/x", &io::ErrorKind::PermissionDenied.into());
        assert_eq!(cause, Cause::Unserved);
        assert_eq!((error.code, error.details.as_str()), (5, "run the plugin as root"));
    }

    #[test]
    fn every_failure_of_the_transport_has_its_code() {
        use tonic::Code as Grpc;
        for (grpc, add, status) in [
            (Grpc::Unavailable, 11, 50),
            (Grpc::DeadlineExceeded, 11, 50),
            (Grpc::Cancelled, 11, 50),
            (Grpc::ResourceExhausted, 11, 50),
            (Grpc::PermissionDenied, 5, 5),
            (Grpc::Unauthenticated, 5, 5),
            (Grpc::Unimplemented, 100, 100),
            (Grpc::Internal, 999, 999),
            (Grpc::Unknown, 999, 999),
        ] {
            let failure = Status::new(grpc, "it\nbroke");
            let Failure { error, cause } = failed(Verb::Add, "/x", &failure);
            assert_eq!(error.code, add, "{grpc:?}");
            assert!(error.msg.contains(r"it\nbroke"));
            assert_eq!(cause == Cause::Lost, grpc == Grpc::Unavailable);
            assert_eq!(failed(Verb::Status, "/x", &failure).error.code, status, "{grpc:?}");
        }
    }
}
