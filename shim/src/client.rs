//! The client of the agent: deadlines, retries of a DEL, and the mapping of transport errors to CNI errors.

use std::{
    io, thread,
    time::{Duration, Instant},
};

use ferrule_proto::cni::{
    self, AddRequest, AddResult, CheckRequest, DelRequest, GcRequest, StatusRequest, add_response::Outcome,
    cni_client::CniClient, error::Code,
};
use ferrule_proto::{names::InvalidName, quoted::Quoted};
use tonic::{Status, codegen::http::Uri};

use crate::{
    agentless,
    env::Verb,
    error::CniError,
    executor,
    trace::Trace,
    transport::{Connected, Transport},
};

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
/// Deadline of a STATUS, including the wait for an agent that restarts. The kubelet asks its runtime every
/// five seconds, one call at a time, and takes the runtime for dead 30 s after the last answer
/// (`maxWaitForContainerRuntime`).
const STATUS_DEADLINE: Duration = Duration::from_secs(20);
/// Deadline of all other calls.
const DEADLINE: Duration = Duration::from_secs(30);

/// How long to retry a DEL while an agent stops, and the pause between attempts.
const DEL_RETRY_DEADLINE: Duration = Duration::from_secs(10);
const DEL_PAUSE: Duration = Duration::from_millis(50);
/// The pause between attempts of a STATUS: an attempt without an agent is a single connect(2).
const STATUS_PAUSE: Duration = Duration::from_millis(250);

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
    /// There is no socket: no agent has served since the node booted.
    NoSocket,
    /// No process listens on the socket.
    NoAgent,
    /// The connection broke: the agent stopped, or the listener does not speak gRPC.
    ConnectionLost,
    /// The listener is there but failed to serve the call.
    Unserved,
}

/// The agent's answer. The error is the agent's.
type Answer = Result<Option<AddResult>, CniError>;

/// The time since an arbitrary moment, and sleep; a test has another one.
trait Clock {
    fn now(&self) -> Duration;
    fn sleep(&self, pause: Duration);
}

struct RealClock(Instant);

/// Calls the agent and waits for its answer, which has a result only for ADD. Without an agent, a DEL
/// completes here, and a STATUS waits for one that restarts. Before the first agent since the node booted,
/// STATUS fails at once: a kubelet that starts asks twice before it starts any pod, the agent's included.
///
/// # Errors
/// The agent's error, or an error of the transport.
pub(crate) fn call(socket: &str, request: Request, trace: Option<Trace>) -> Answer {
    let clock = RealClock(Instant::now());
    call_with(&clock, socket, &request, |left| attempt(socket, &request, trace.as_ref(), left))
}

/// `attempt` makes one attempt, with a deadline.
fn call_with(
    clock: &impl Clock,
    socket: &str,
    request: &Request,
    mut attempt: impl FnMut(Duration) -> Result<Answer, Failure>,
) -> Answer {
    let began = clock.now();
    let failure = match attempt(request.deadline()) {
        Ok(answer) => return answer,
        Err(failure) => failure,
    };
    match (failure.cause, request) {
        (
            Cause::NoSocket | Cause::NoAgent | Cause::ConnectionLost,
            Request::Del(DelRequest { key: Some(key), .. }),
        ) => {
            let key = agentless::Key::new(key).map_err(|error| invalid(&error))?;
            // While an agent stops, its connections break before its socket closes.
            let is_stopping = |cause| cause == Cause::ConnectionLost;
            let again = || {
                let end = clock.now() + DEL_RETRY_DEADLINE;
                match persist(clock, end, DEL_PAUSE, is_stopping, |_| attempt(request.deadline())) {
                    Err(Failure { cause: Cause::NoSocket | Cause::NoAgent, .. }) => None,
                    Err(Failure { error, .. }) => Some(Err(error)),
                    Ok(answer) => Some(answer.map(drop)),
                }
            };
            agentless::del(socket, &key, again).map(|()| None)
        }
        (Cause::NoAgent | Cause::ConnectionLost, Request::Status(_)) => {
            clock.sleep(STATUS_PAUSE);
            let may_come = |cause| matches!(cause, Cause::NoAgent | Cause::ConnectionLost);
            let end = began + STATUS_DEADLINE;
            persist(clock, end, STATUS_PAUSE, may_come, attempt).unwrap_or_else(
                |Failure { error, .. }| {
                    let waited = clock.now().saturating_sub(began).as_secs();
                    Err(CniError { msg: format!("{} (waited {waited} s for an agent)", error.msg), ..error })
                },
            )
        }
        _ => Err(failure.error),
    }
}

/// Repeats a call as long as `again` says so for the cause of its failure, until `end`.
fn persist(
    clock: &impl Clock,
    end: Duration,
    pause: Duration,
    again: impl Fn(Cause) -> bool,
    mut attempt: impl FnMut(Duration) -> Result<Answer, Failure>,
) -> Result<Answer, Failure> {
    loop {
        match attempt(end.saturating_sub(clock.now())) {
            Err(Failure { cause, .. }) if again(cause) && clock.now() + pause < end => clock.sleep(pause),
            outcome => return outcome,
        }
    }
}

/// Calls the agent once.
fn attempt(
    socket: &str,
    request: &Request,
    trace: Option<&Trace>,
    deadline: Duration,
) -> Result<Answer, Failure> {
    let verb = request.verb();
    let Connected { transport, socket: stream, connection } =
        Connected::open(socket, trace.cloned(), Instant::now() + CONNECT_TIMEOUT)
            .map_err(|e| unreachable(verb, socket, &e))?;
    // The call reports the connection's error too.
    let connection = async { drop(connection.await) };
    let call = send(transport, request.clone(), deadline);
    let answer = match executor::run(&stream, call, connection, Instant::now() + deadline) {
        Ok(Some(answer)) => answer,
        Ok(None) => Err(Status::deadline_exceeded(format!("no response after {deadline:?}"))),
        Err(error) => Err(Status::unavailable(error.to_string())),
    };
    answer.map_err(|status| failed(verb, socket, &status))
}

/// Sends the request. The outer error is the transport's, the inner error is the agent's.
async fn send(transport: Transport, request: Request, deadline: Duration) -> Result<Answer, Status> {
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
        match self {
            Self::Add(_) => ADD_DEADLINE,
            Self::Status(_) => STATUS_DEADLINE,
            Self::Del(_) | Self::Check(_) | Self::Gc(_) => DEADLINE,
        }
    }
}

// === impl RealClock ===

impl Clock for RealClock {
    fn now(&self) -> Duration {
        self.0.elapsed()
    }

    fn sleep(&self, pause: Duration) {
        thread::sleep(pause);
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
        io::ErrorKind::NotFound => Cause::NoSocket,
        io::ErrorKind::ConnectionRefused | io::ErrorKind::ConnectionReset => Cause::NoAgent,
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
    // From our transport, or from an agent that is stopping (STATUS).
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
mod tests;
