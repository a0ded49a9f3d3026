//! Deadlines and retries, with a fake clock, and the mapping of transport errors to CNI errors.

use std::{
    cell::{Cell, RefCell},
    os::unix::net::{UnixListener, UnixStream},
};

use ferrule_proto::cni::AttachmentKey;
use nix::sys::socket::{AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, listen, socket};

use super::*;

#[derive(Default)]
struct FakeClock(Cell<Duration>);

impl Clock for FakeClock {
    fn now(&self) -> Duration {
        self.0.get()
    }

    fn sleep(&self, pause: Duration) {
        self.0.set(self.0.get() + pause);
    }
}

fn requests() -> [Request; 5] {
    [
        Request::Add(AddRequest::default()),
        Request::Del(DelRequest::default()),
        Request::Check(CheckRequest::default()),
        Request::Gc(GcRequest::default()),
        Request::Status(StatusRequest::default()),
    ]
}

fn del_of_a() -> Request {
    let key = AttachmentKey { network: "n".into(), container_id: "a".into(), ifname: "eth0".into() };
    Request::Del(DelRequest { key: Some(key), ..DelRequest::default() })
}

fn failure(cause: Cause) -> Failure {
    Failure { error: CniError::new(Code::PluginNotAvailable, "STATUS: connecting: refused", ""), cause }
}

#[test]
fn each_verb_has_its_deadline() {
    let seconds: Vec<_> = requests().iter().map(|it| (it.verb().as_str(), it.deadline().as_secs())).collect();
    // The kubelet's two minutes for a sandbox and 30 s for the status of its runtime are longer.
    assert_eq!(seconds, [("ADD", 90), ("DEL", 30), ("CHECK", 30), ("GC", 30), ("STATUS", 20)]);
}

#[test]
fn hanging_agent_fails_the_call_at_its_deadline() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("agent.sock");
    let _never_accepted = UnixListener::bind(&path).unwrap();
    let deadline = Duration::from_millis(60);
    for request in requests() {
        let (verb, start) = (request.verb(), Instant::now());
        let answer = attempt(path.to_str().unwrap(), &request, None, deadline);
        let Failure { error, cause } = answer.unwrap_err();
        let elapsed = start.elapsed();
        assert!(elapsed >= deadline && elapsed < deadline + CONNECT_TIMEOUT, "{verb:?} took {elapsed:?}");
        assert_eq!(error.code, if verb == Verb::Status { 50 } else { 11 });
        assert_eq!(cause, Cause::Unserved, "the agent may still complete the call");
        assert!(error.msg.contains("no response after 60ms"), "{}", error.msg);
    }
}

#[test]
fn full_accept_queue_fails_the_call_at_the_connect_timeout() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("agent.sock");
    let fd = socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_NONBLOCK, None).unwrap();
    bind(std::os::fd::AsRawFd::as_raw_fd(&fd), &UnixAddr::new(&path).unwrap()).unwrap();
    listen(&fd, Backlog::new(0).unwrap()).unwrap();
    let _fills_the_queue = UnixStream::connect(&path).unwrap();

    let start = Instant::now();
    let request = Request::Add(AddRequest::default());
    let answer = attempt(path.to_str().unwrap(), &request, None, ADD_DEADLINE);
    let Failure { error, cause } = answer.unwrap_err();
    assert_eq!((error.code, cause), (11, Cause::Unserved), "{}", error.msg);
    assert!(start.elapsed() >= CONNECT_TIMEOUT && start.elapsed() < 2 * CONNECT_TIMEOUT);
}

#[test]
fn missing_agent_is_an_error_with_the_socket() {
    let dir = tempfile::tempdir().unwrap();
    let missing = dir.path().join("missing.sock");
    let stale = dir.path().join("stale.sock");
    drop(UnixListener::bind(&stale).unwrap());
    for path in [&missing, &stale] {
        for request in requests().into_iter().filter(|it| it.verb() != Verb::Del) {
            let (path, clock) = (path.to_str().unwrap(), FakeClock::default());
            let code = if request.verb() == Verb::Status { 50 } else { 11 };
            let error =
                call_with(&clock, path, &request, |left| attempt(path, &request, None, left)).unwrap_err();
            assert_eq!(error.code, code, "{}", error.msg);
            assert!(error.msg.contains(path), "{}", error.msg);
            assert!(error.details.contains("check that ferrule-agent runs"), "{}", error.details);
            let waits = clock.now() > Duration::from_secs(19);
            let may_return = code == 50 && path == stale.to_str().unwrap();
            assert_eq!(waits, may_return, "only STATUS, and only for an agent that may return: {request:?}");
            assert!(waits || clock.now() == Duration::ZERO);
        }
    }
}

#[test]
fn status_waits_twenty_seconds_for_an_agent() {
    let clock = FakeClock::default();
    let attempts = Cell::new(0);
    let status = Request::Status(StatusRequest::default());
    let error = call_with(&clock, "/x", &status, |left| {
        attempts.set(attempts.get() + 1);
        assert_eq!(left, Duration::from_secs(20) - clock.now(), "the answer has the rest of the time");
        // A starting agent's socket appears, or an agent that stops breaks its connections.
        Err(failure(if attempts.get() % 2 == 0 { Cause::ConnectionLost } else { Cause::NoAgent }))
    });
    let error = error.unwrap_err();
    assert_eq!(
        (error.code, error.msg.as_str()),
        (50, "STATUS: connecting: refused (waited 19 s for an agent)")
    );
    assert!(
        clock.now() > Duration::from_secs(19) && clock.now() < Duration::from_secs(20),
        "{:?}",
        clock.now()
    );
    assert!((40..=80).contains(&attempts.get()), "an attempt every quarter of a second: {}", attempts.get());
}

#[test]
fn status_succeeds_as_soon_as_an_agent_answers_and_repeats_no_answer() {
    let status = Request::Status(StatusRequest::default());
    let not_ready = CniError::new(Code::PluginNotAvailable, "ranges: waiting", "");
    for answer in [Ok(None), Err(not_ready)] {
        let (clock, expected) = (FakeClock::default(), answer.clone());
        let found = call_with(&clock, "/x", &status, |_| {
            if clock.now() < Duration::from_secs(6) {
                Err(failure(Cause::NoAgent))
            } else {
                Ok(answer.clone())
            }
        });
        assert_eq!(found, expected);
        assert_eq!(clock.now().as_secs(), 6);
        let clock = FakeClock::default();
        assert_eq!(call_with(&clock, "/x", &status, |_| Ok(expected.clone())), expected);
        assert_eq!(clock.now(), Duration::ZERO, "an agent that is there answers at once");
    }
    let clock = FakeClock::default();
    let attempts = Cell::new(0);
    let unserved = call_with(&clock, "/x", &status, |_| {
        attempts.set(attempts.get() + 1);
        Err(failure(Cause::Unserved))
    });
    assert_eq!((unserved.unwrap_err().code, attempts.get(), clock.now()), (50, 1, Duration::ZERO));
}

#[test]
fn other_verbs_do_not_wait_for_an_agent() {
    let requests = requests().into_iter().filter(|it| !matches!(it.verb(), Verb::Status | Verb::Del));
    for request in requests {
        let (clock, attempts) = (FakeClock::default(), Cell::new(0));
        let failed = call_with(&clock, "/x", &request, |_| {
            attempts.set(attempts.get() + 1);
            Err(failure(Cause::ConnectionLost))
        });
        assert!(failed.is_err());
        assert_eq!((attempts.get(), clock.now()), (1, Duration::ZERO), "{request:?}");
    }
}

/// Runs a DEL whose attempts have these outcomes, the last one for ever. Returns the outcome, the number of
/// attempts, the time spent, and whether a deferred DEL was left.
fn del(outcomes: &[Result<Answer, Cause>]) -> (Answer, usize, Duration, bool) {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("agent.sock");
    let (clock, attempts) = (FakeClock::default(), RefCell::new(outcomes.iter()));
    let (made, last) = (Cell::new(0), outcomes.last().unwrap());
    let answer = call_with(&clock, socket.to_str().unwrap(), &del_of_a(), |_| {
        made.set(made.get() + 1);
        attempts.borrow_mut().next().unwrap_or(last).clone().map_err(failure)
    });
    let is_deferred = dir.path().join("deferred/n:a:eth0").exists();
    (answer, made.get(), clock.now(), is_deferred)
}

#[test]
fn del_is_deferred_only_if_a_second_look_finds_no_agent_either() {
    let (none, lost) = (Err(Cause::NoAgent), Err(Cause::ConnectionLost));
    assert_eq!(del(std::slice::from_ref(&none)), (Ok(None), 2, Duration::ZERO, true));
    assert_eq!(del(&[Err(Cause::NoSocket)]), (Ok(None), 2, Duration::ZERO, true));
    assert_eq!(
        del(&[none.clone(), Ok(Ok(None))]),
        (Ok(None), 2, Duration::ZERO, false),
        "an agent has started"
    );
    assert_eq!(del(&[lost.clone(), Ok(Ok(None))]), (Ok(None), 2, Duration::ZERO, false));
    let refused = CniError::new(Code::TryAgainLater, "DEL failed: disk full", "");
    let (answer, _, _, is_deferred) = del(&[none.clone(), Ok(Err(refused.clone()))]);
    assert_eq!((answer, is_deferred), (Err(refused), false), "the agent's error is the answer");

    // An agent that stops: until its socket closes.
    let (answer, attempts, waited, is_deferred) = del(&[lost.clone(), lost.clone(), lost.clone(), none]);
    assert_eq!((answer, attempts, is_deferred), (Ok(None), 4, true));
    assert_eq!(waited, Duration::from_millis(100));
    let (answer, _, waited, is_deferred) = del(&[lost]);
    assert!(answer.is_err() && !is_deferred, "a listener that never answers may be an agent");
    assert!(waited > Duration::from_secs(9) && waited < Duration::from_secs(10), "{waited:?}");
}

#[test]
fn del_of_a_container_without_an_interface_leaves_half_of_the_room_to_others() {
    let dir = tempfile::tempdir().unwrap();
    let (socket, deferred) = (dir.path().join("agent.sock"), dir.path().join("deferred"));
    std::fs::create_dir(&deferred).unwrap();
    for number in 0..512 {
        std::fs::write(deferred.join(number.to_string()), "").unwrap();
    }
    let no_agent = |_| Err(failure(Cause::NoAgent));
    let answer = call_with(&FakeClock::default(), socket.to_str().unwrap(), &del_of_a(), no_agent);
    assert_eq!(answer, Ok(None), "the pod must terminate");
    assert!(!deferred.join("n:a:eth0").exists());
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
