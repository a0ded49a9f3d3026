//! The client of the agent: deadlines, retries of a DEL, and the mapping of transport errors to CNI errors.

use std::{
    io, mem, thread,
    time::{Duration, Instant},
};

use ferrule_proto::cni::{
    self, AddRequest, AddResult, CheckRequest, DelRequest, GcRequest, StatusRequest, add_response::Outcome,
    cni_client::CniClient, error::Code,
};
use ferrule_proto::{names::InvalidName, quoted::Quoted};
use tokio::{runtime::Builder, time};
use tonic::{Status, codegen::http::Uri};

use crate::{agentless, env::Verb, error::CniError, trace::Trace, transport::Transport};

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Request {
    Add(AddRequest),
    Del(DelRequest),
    Check(CheckRequest),
    Gc(GcRequest),
    Status(StatusRequest),
}

const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// Deadline of an ADD, which may wait for a controller to write the VIF. Shorter than the runtimes' two
/// minutes, so that the runtime receives our error instead of its own timeout.
const ADD_DEADLINE: Duration = Duration::from_secs(90);
/// Deadline of all other calls.
const DEADLINE: Duration = Duration::from_secs(30);

/// How long to retry a DEL while an agent stops, and the backoff between attempts.
const RETRY_DEADLINE: Duration = Duration::from_secs(10);
const RETRY_BACKOFF: Duration = Duration::from_millis(50);

const START_AGENT: &str = "check that ferrule-agent runs on this node and that \"socket\" in the network \
                           configuration, if set, is the path of the agent's socket";

/// A call that the agent did not answer.
#[derive(Debug)]
struct Failure {
    error: CniError,
    cause: Cause,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cause {
    /// No process listens on the socket.
    NoAgent,
    /// The connection broke: the agent stopped, or the listener does not speak gRPC.
    ConnectionLost,
    /// The listener is there but failed to serve the call.
    Unserved,
}

/// Calls the agent and waits for its answer, which has a result only for ADD. Without an agent, a DEL
/// completes here.
///
/// # Errors
/// The agent's error, or an error of the transport.
pub(crate) fn call(
    socket: &str,
    request: Request,
    trace: Option<Trace>,
) -> Result<Option<AddResult>, CniError> {
    match (attempt(socket, &request, trace.as_ref()), &request) {
        (Ok(answer), _) => answer,
        (
            Err(Failure { cause: Cause::NoAgent | Cause::ConnectionLost, .. }),
            Request::Del(DelRequest { key: Some(key), .. }),
        ) => {
            let key = agentless::Key::new(key).map_err(|error| invalid(&error))?;
            let retry = || retry(socket, &request, trace.as_ref());
            agentless::del(socket, &key, retry).map(|()| None)
        }
        (Err(Failure { error, .. }), _) => Err(error),
    }
}

/// Retries the call after a failed first attempt. Returns `None` if no agent listens. While an agent stops,
/// its connections break before its socket closes, so broken connections are retried.
fn retry(socket: &str, request: &Request, trace: Option<&Trace>) -> Option<Result<(), CniError>> {
    let deadline = Instant::now() + RETRY_DEADLINE;
    loop {
        match attempt(socket, request, trace) {
            Ok(answer) => return Some(answer.map(drop)),
            Err(Failure { cause: Cause::NoAgent, .. }) => return None,
            Err(Failure { cause: Cause::ConnectionLost, .. }) if Instant::now() < deadline => {
                thread::sleep(RETRY_BACKOFF);
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
    // The socket and the deadline have at most two events at a time; the default of 1024 costs memory.
    let runtime =
        Builder::new_current_thread().enable_all().max_io_events_per_tick(8).build().map_err(|e| {
            let msg = format!("{}: creating the event loop for the call: {e}", request.verb().as_str());
            let details = "check the container runtime's limits on open files and memory";
            Failure { error: CniError::new(Code::IoFailure, msg, details), cause: Cause::Unserved }
        })?;
    let answer = runtime.block_on(exchange(socket, request.clone(), trace.cloned()));
    // Skips the shutdown of the event loop: the process exits next, which closes the connection.
    mem::forget(runtime);
    answer
}

async fn exchange(
    socket: &str,
    request: Request,
    trace: Option<Trace>,
) -> Result<Result<Option<AddResult>, CniError>, Failure> {
    let verb = request.verb();
    let transport = match time::timeout(CONNECT_TIMEOUT, Transport::connect(socket, trace)).await {
        Ok(connected) => connected.map_err(|e| unreachable(verb, socket, &e))?,
        Err(_) => return Err(unreachable(verb, socket, &io::ErrorKind::TimedOut.into())),
    };
    let deadline = request.deadline();
    match time::timeout(deadline, send(transport, request, deadline)).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(status)) => Err(failed(verb, socket, &status)),
        Err(_) => {
            let status = Status::deadline_exceeded(format!("no response after {deadline:?}"));
            Err(failed(verb, socket, &status))
        }
    }
}

/// Sends the request. The outer error is the transport's, the inner error is the agent's.
async fn send(
    transport: Transport,
    request: Request,
    deadline: Duration,
) -> Result<Result<Option<AddResult>, CniError>, Status> {
    // HTTP requires an authority; a unix socket has none.
    let mut client = CniClient::with_origin(transport, Uri::from_static("http://ferrule-agent"));
    let error = match request {
        Request::Add(request) => {
            match client.add(with_timeout(request, deadline)).await?.into_inner().outcome {
                Some(Outcome::Result(result)) => return Ok(Ok(Some(result))),
                Some(Outcome::Error(error)) => Some(error),
                None => return Err(Status::internal("the response has neither a result nor an error")),
            }
        }
        Request::Del(request) => client.del(with_timeout(request, deadline)).await?.into_inner().error,
        Request::Check(request) => client.check(with_timeout(request, deadline)).await?.into_inner().error,
        Request::Gc(request) => client.gc(with_timeout(request, deadline)).await?.into_inner().error,
        Request::Status(request) => client.status(with_timeout(request, deadline)).await?.into_inner().error,
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
        if matches!(self, Self::Add(_)) { ADD_DEADLINE } else { DEADLINE }
    }
}

/// Passes the deadline to the agent (`grpc-timeout`), so that the agent cancels work that no caller waits
/// for.
fn with_timeout<T>(message: T, timeout: Duration) -> tonic::Request<T> {
    let mut request = tonic::Request::new(message);
    request.set_timeout(timeout);
    request
}

/// A failed connection attempt.
fn unreachable(verb: Verb, socket: &str, error: &io::Error) -> Failure {
    let (code, details) = match error.kind() {
        io::ErrorKind::PermissionDenied => (Code::IoFailure, "run the plugin as root"),
        // ConnectionReset: the agent closed its socket while the connection was in its accept queue.
        io::ErrorKind::NotFound
        | io::ErrorKind::ConnectionRefused
        | io::ErrorKind::TimedOut
        | io::ErrorKind::ConnectionReset => (unavailable(verb), START_AGENT),
        _ => (Code::IoFailure, START_AGENT),
    };
    let msg = format!("{}: connecting to the agent at {}: {error}", verb.as_str(), Quoted(socket));
    let cause = match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused | io::ErrorKind::ConnectionReset => {
            Cause::NoAgent
        }
        _ => Cause::Unserved,
    };
    Failure { error: CniError::new(code, msg, details), cause }
}

/// A call that failed after the connection was made.
fn failed(verb: Verb, socket: &str, status: &Status) -> Failure {
    let (code, details) = match status.code() {
        // Cancelled: the agent noticed the deadline first.
        tonic::Code::Unavailable | tonic::Code::DeadlineExceeded | tonic::Code::Cancelled => {
            (unavailable(verb), START_AGENT)
        }
        tonic::Code::ResourceExhausted => (unavailable(verb), "the agent is overloaded: retry later"),
        tonic::Code::PermissionDenied | tonic::Code::Unauthenticated => {
            (Code::IoFailure, "run the plugin as root")
        }
        tonic::Code::Unimplemented => {
            (Code::ApiIncompatible, "the agent is older than this plugin: install both from one release")
        }
        _ => (Code::Internal, "see the log of ferrule-agent on this node"),
    };
    let (verb, socket) = (verb.as_str(), Quoted(socket));
    let msg = format!(
        "{verb}: calling the agent at {socket}: {:?}: {}",
        status.code(),
        status.message().escape_debug()
    );
    // The agent never returns Unavailable: only our transport does.
    let lost = status.code() == tonic::Code::Unavailable;
    let cause = if lost { Cause::ConnectionLost } else { Cause::Unserved };
    Failure { error: CniError::new(code, msg, details), cause }
}

fn invalid(error: &InvalidName) -> CniError {
    let details = "the runtime must pass valid names of network, container and interface";
    CniError::new(Code::InvalidEnvironment, format!("DEL: {error}"), details)
}

/// The code for an agent that cannot serve at the moment. The specification has a special one for STATUS.
fn unavailable(verb: Verb) -> Code {
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
    async fn hanging_agent_fails_the_call_at_its_deadline() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("agent.sock");
        let _never_accepted = UnixListener::bind(&path).unwrap();
        for request in requests() {
            let (deadline, verb) = (request.deadline(), request.verb());
            let start = Instant::now();
            let Failure { error, cause } = exchange(path.to_str().unwrap(), request, None).await.unwrap_err();
            let elapsed = start.elapsed();
            assert!(elapsed >= deadline && elapsed < deadline + CONNECT_TIMEOUT, "{verb:?} took {elapsed:?}");
            assert_eq!(error.code, if verb == Verb::Status { 50 } else { 11 });
            assert_eq!(cause, Cause::Unserved, "the agent may still complete the call");
            assert!(error.msg.contains("no response after"), "{}", error.msg);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn full_accept_queue_fails_the_call_at_the_connect_timeout() {
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
        assert!(start.elapsed() >= CONNECT_TIMEOUT && start.elapsed() < 2 * CONNECT_TIMEOUT);
    }

    #[test]
    fn missing_agent_is_an_error_with_the_socket() {
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
    fn permission_denied_on_the_socket_asks_for_root() {
        let Failure { error, cause } = unreachable(Verb::Add, "/x", &io::ErrorKind::PermissionDenied.into());
        assert_eq!(cause, Cause::Unserved);
        assert_eq!((error.code, error.details.as_str()), (5, "run the plugin as root"));
    }

    #[test]
    fn grpc_codes_map_to_cni_codes() {
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
            assert_eq!(cause == Cause::ConnectionLost, grpc == Grpc::Unavailable);
            assert_eq!(failed(Verb::Status, "/x", &failure).error.code, status, "{grpc:?}");
        }
    }
}
