//! An API server that follows a script, in the paused time of the test.

use std::{
    collections::VecDeque,
    io,
    sync::{Arc, Mutex},
    time::Duration,
};

use http::{Request, Response};
use http_body_util::StreamBody;
use kube::client::Body;
use tokio::time::{Instant, sleep};
use tokio_stream::Stream;

/// A scripted response.
#[derive(Debug, Clone)]
pub(super) enum Reply {
    /// Status, headers and body.
    Whole(u16, Vec<(&'static str, String)>, String),
    /// The connection is refused.
    Unreachable,
    /// A stream that performs these steps and ends.
    Stream(Vec<Step>),
}

#[derive(Debug, Clone)]
pub(super) enum Step {
    Send(String),
    Wait(Duration),
    /// Waits until this long before the time that the request asks for.
    Early(Duration),
    /// The connection breaks.
    Break,
    /// The stream stays open and silent.
    Hang,
}

/// A received request, and its time since the start.
#[derive(Debug, Clone)]
pub(super) struct Asked {
    pub at: Duration,
    pub query: String,
}

/// The script and the requests so far. After its end, requests hang, unless [`Script::otherwise`] was called.
#[derive(Clone)]
pub(super) struct Script(Arc<Mutex<Inner>>);

struct Inner {
    replies: VecDeque<Reply>,
    /// The replies to each watch and to each list after the end of the script.
    otherwise: Option<(Reply, Reply)>,
    asked: Vec<Asked>,
    start: Instant,
}

impl Script {
    pub(super) fn new(replies: impl IntoIterator<Item = Reply>) -> Self {
        let inner = Inner {
            replies: replies.into_iter().collect(),
            otherwise: None,
            asked: Vec::new(),
            start: Instant::now(),
        };
        Self(Arc::new(Mutex::new(inner)))
    }

    /// Sets the replies after the end of the script.
    pub(super) fn otherwise(&self, watch: Reply, list: Reply) {
        self.0.lock().unwrap().otherwise = Some((watch, list));
    }

    pub(super) fn asked(&self) -> Vec<Asked> {
        self.0.lock().unwrap().asked.clone()
    }

    pub(super) fn client(&self) -> kube::Client {
        let script = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let script = script.clone();
            let query = request.uri().query().unwrap_or_default().to_owned();
            async move { script.answer(query).await }
        });
        kube::Client::new(service, "default")
    }

    async fn answer(&self, query: String) -> io::Result<Response<TestBody>> {
        let requested;
        let reply = {
            let mut inner = self.0.lock().unwrap();
            let at = inner.start.elapsed();
            let is_watch = query.contains("watch=true");
            requested = super::requested(&query);
            inner.asked.push(Asked { at, query });
            let otherwise = inner.otherwise.clone();
            let otherwise = otherwise.map(|(watch, list)| if is_watch { watch } else { list });
            inner.replies.pop_front().or(otherwise)
        };
        match reply {
            Some(Reply::Whole(code, headers, text)) => {
                let mut response = Response::builder().status(code);
                for (name, value) in headers {
                    response = response.header(name, value);
                }
                Ok(response.body(body(vec![Step::Send(text)], requested)).unwrap())
            }
            Some(Reply::Unreachable) => Err(io::ErrorKind::ConnectionRefused.into()),
            Some(Reply::Stream(steps)) => Ok(Response::new(body(steps, requested))),
            None => std::future::pending().await,
        }
    }
}

type Frame = http_body::Frame<hyper::body::Bytes>;
type TestBody = StreamBody<std::pin::Pin<Box<dyn Stream<Item = Result<Frame, io::Error>> + Send>>>;

fn body(steps: Vec<Step>, requested: Duration) -> TestBody {
    let (sender, receiver) = tokio::sync::mpsc::channel(1);
    tokio::spawn(async move {
        for step in steps {
            match step {
                Step::Send(text) => {
                    if sender.send(Ok(Frame::data(text.into()))).await.is_err() {
                        return;
                    }
                }
                Step::Wait(time) => sleep(time).await,
                Step::Early(time) => sleep(requested - time).await,
                Step::Break => {
                    let _ = sender.send(Err(io::ErrorKind::ConnectionReset.into())).await;
                }
                Step::Hang => sender.closed().await,
            }
        }
    });
    StreamBody::new(Box::pin(tokio_stream::wrappers::ReceiverStream::new(receiver)))
}
