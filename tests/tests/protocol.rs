//! The gRPC interface to arbitrary clients: versions, health, reflection, and requests that our shim never
//! sends.

use std::{
    future::Future,
    io, thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use ferrule_proto::{
    API,
    cni::{
        AddRequest, ApiRange, AttachmentKey, DelRequest, add_response::Outcome, cni_client::CniClient,
        error::Code,
    },
};
use ferrule_tests::{
    node::{SOCKET, connections, with_agent},
    pod::Pod,
    sys,
};
use hyper_util::rt::TokioIo;
use nix::sys::signal::Signal;
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint};
use tonic_health::pb::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};
use tonic_reflection::pb::v1::{
    ServerReflectionRequest, server_reflection_client::ServerReflectionClient,
    server_reflection_request::MessageRequest, server_reflection_response::MessageResponse,
};

/// The longest that a component may take to become healthy.
const HEALTHY: Duration = Duration::from_secs(20);

fn with_channel<T, F: Future<Output = anyhow::Result<T>>>(
    talk: impl FnOnce(Channel) -> F,
) -> anyhow::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let connector =
            tower::service_fn(|_| async { io::Result::Ok(TokioIo::new(UnixStream::connect(SOCKET).await?)) });
        talk(Endpoint::from_static("http://ferrule").connect_with_connector(connector).await?).await
    })
}

fn named(name: &str) -> ferrule_proto::cni::Pod {
    ferrule_proto::cni::Pod { name: name.to_owned(), ..Default::default() }
}

fn add_request(pod: &Pod) -> AddRequest {
    let key = AttachmentKey {
        network: "cluster".to_owned(),
        container_id: pod.container_id.clone(),
        ifname: "eth0".to_owned(),
    };
    let netns = pod.netns.to_string_lossy().into_owned();
    AddRequest { api: Some(API), key: Some(key), netns, ..Default::default() }
}

fn add(request: AddRequest) -> anyhow::Result<Outcome> {
    with_channel(|channel| async {
        let response = CniClient::new(channel).add(request).await?;
        response.into_inner().outcome.context("the answer has no outcome")
    })
}

fn refused(request: AddRequest) -> anyhow::Result<ferrule_proto::cni::Error> {
    match add(request)? {
        Outcome::Error(error) => Ok(error),
        Outcome::Result(result) => anyhow::bail!("the request succeeded: {result:?}"),
    }
}

#[test]
fn api_versions_are_negotiated_and_a_mismatch_reports_the_agents_range() {
    with_agent(|node| {
        let pod = node.pod("a")?;
        let future =
            AddRequest { api: Some(ApiRange { min: API.max + 1, max: API.max + 3 }), ..add_request(&pod) };
        let error = refused(future)?;
        ensure!(error.code() == Code::ApiIncompatible && error.api == Some(API), "{error:?}");
        ensure!(node.attachments()?.is_empty());
        let newer =
            AddRequest { api: Some(ApiRange { min: API.min, max: API.max + 3 }), ..add_request(&pod) };
        ensure!(
            matches!(add(newer)?, Outcome::Result(_)),
            "a newer shim that supports our version was refused"
        );
        Ok(())
    })
    .unwrap();
}

#[test]
fn agent_validates_every_request_field() {
    with_agent(|node| {
        let pod = node.pod("a")?;
        let before = node.kernel_state()?;
        let with_key = |change: &dyn Fn(&mut AttachmentKey)| {
            let mut request = add_request(&pod);
            request.key.iter_mut().for_each(change);
            request
        };
        let bad = [
            AddRequest { api: None, ..add_request(&pod) },
            AddRequest { key: None, ..add_request(&pod) },
            AddRequest { pod: Some(named("a\nb")), ..add_request(&pod) },
            AddRequest { netns: String::new(), ..add_request(&pod) },
            AddRequest { netns: "run/netns/x".to_owned(), ..add_request(&pod) },
            with_key(&|key| key.container_id = "../../etc".to_owned()),
            with_key(&|key| key.container_id = "a".repeat(1 << 20)),
            with_key(&|key| key.ifname = "lo".to_owned()),
            with_key(&|key| key.ifname = "a:b".to_owned()),
            with_key(&|key| key.network = "a\nb".to_owned()),
        ];
        for request in bad {
            let error = refused(request)?;
            ensure!(error.code() == Code::InvalidEnvironment, "{error:?}");
            ensure!(error.message.len() < 500 && !error.message.contains('\n'), "{error:?}");
        }
        ensure!(node.attachments()?.is_empty() && node.kernel_state()? == before);
        Ok(())
    })
    .unwrap();
}

#[test]
fn oversized_message_is_refused_and_others_are_served() {
    with_agent(|node| {
        let pod = node.pod("a")?;
        let huge = AddRequest { netns: format!("/{}", "a".repeat(16 << 20)), ..add_request(&pod) };
        ensure!(add(huge).is_err());
        node.attach("b").map(drop)
    })
    .unwrap();
}

#[test]
fn cancelled_add_completes_or_rolls_back() {
    with_agent(|node| {
        let runtime = node.runtime()?;
        let before = node.kernel_state()?;
        let pod = node.pod("a")?;
        // The calls that the agent found abandoned.
        let abandoned =
            || node.count(r#"ferrule_cni_duration_seconds_count{verb="ADD",phase="total",code="11"}"#);
        let end = Instant::now() + Duration::from_secs(120);
        // The time of the cancellation relative to the ADD is random.
        for round in 0.. {
            if round >= 20 && abandoned()? >= 3.0 {
                break;
            }
            ensure!(Instant::now() < end, "no ADD was cancelled in flight in {round} rounds");
            let request = add_request(&pod);
            with_channel(|channel| async {
                let mut client = CniClient::new(channel);
                let call = client.add(request);
                Ok(tokio::time::timeout(Duration::from_micros(200 * (round % 40)), call).await.is_err())
            })?;
            // Complete or rolled back: the retry tells, and gets the result that CHECK needs.
            runtime.add(&pod)?;
            runtime.check(&pod)?;
            runtime.del(&pod)?;
            ensure!(node.attachments()?.is_empty());
            node.wait_for_kernel_state(&before)?;
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn call_to_a_suspended_agent_completes_after_it_resumes() {
    with_agent(|node| {
        let runtime = node.runtime()?;
        let mut pod = node.pod("a")?;
        node.signal_agent(Signal::SIGSTOP)?;
        let result = thread::scope(|scope| {
            let call = scope.spawn(|| runtime.add(&pod));
            sys::wait_until("the call waits for the agent", Duration::from_secs(20), || {
                Ok(connections()? > 0)
            })?;
            node.signal_agent(Signal::SIGCONT)?;
            call.join().map_err(|_| anyhow::anyhow!("the call panicked"))?
        })?;
        pod.attached(&result)?;
        pod.ping(ferrule_tests::node::NODE_V4).map(drop)
    })
    .unwrap();
}

#[test]
fn health_and_reflection_are_served() {
    with_agent(|_| {
        with_channel(|channel| async {
            let ours = ["", "ferrule.cni.v1.Cni", "ferrule.agent.v1.Agent", "observer.Observer"];
            // The name by which Hubble's clients ask.
            for service in ours.into_iter().chain(["hubble.server.Observer"]) {
                let request = HealthCheckRequest { service: service.to_owned() };
                let mut health = HealthClient::new(channel.clone()).watch(request).await?.into_inner();
                // Components that ADD needs may become healthy only after the socket is there.
                let serving = async {
                    while health.message().await?.context("the watch ended")?.status()
                        != ServingStatus::Serving
                    {}
                    anyhow::Ok(())
                };
                tokio::time::timeout(HEALTHY, serving).await.with_context(|| format!("{service:?}"))??;
            }
            let list = ServerReflectionRequest {
                message_request: Some(MessageRequest::ListServices(String::new())),
                ..Default::default()
            };
            let mut client = ServerReflectionClient::new(channel);
            let mut answers = client.server_reflection_info(tokio_stream::iter([list])).await?.into_inner();
            let answer = answers
                .message()
                .await?
                .and_then(|answer| answer.message_response)
                .context("no reflection response")?;
            let MessageResponse::ListServicesResponse(services) = answer else {
                anyhow::bail!("{answer:?}");
            };
            let names: Vec<_> = services.service.into_iter().map(|service| service.name).collect();
            for expected in ours.into_iter().skip(1).chain(["grpc.health.v1.Health"]) {
                ensure!(names.iter().any(|name| name == expected), "{names:?}");
            }
            Ok(())
        })
    })
    .unwrap();
}

#[test]
fn del_of_one_container_does_not_affect_another() {
    with_agent(|node| {
        let (a, b) = (node.attach("a")?, node.attach("b")?);
        with_channel(|channel| async {
            let AddRequest { api, key, netns, .. } = add_request(&a);
            let response = CniClient::new(channel).del(DelRequest { api, key, netns }).await?.into_inner();
            ensure!(response.error.is_none(), "{response:?}");
            Ok(())
        })?;
        node.runtime()?.check(&b)
    })
    .unwrap();
}
