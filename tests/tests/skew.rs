//! Version skew: recorded requests of shims of other releases, byte for byte.

use std::{future::Future, io};

use anyhow::{Context as _, ensure};
use bytes::{Buf as _, BufMut as _};
use ferrule_proto::{
    API,
    cni::{AddResponse, CheckResponse, Error, add_response::Outcome, error::Code},
};
use ferrule_tests::node::{Node, SOCKET, with_agent};
use hyper_util::rt::TokioIo;
use prost::Message as _;
use serde::Deserialize;
use tokio::net::UnixStream;
use tonic::{
    Request, Status,
    codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder},
    transport::Endpoint,
};

/// A recorded request of a shim release, for the first pod of a node.
#[derive(Deserialize)]
struct Recorded {
    shim: String,
    method: String,
    hex: String,
}

/// A codec that passes messages as raw bytes.
#[derive(Clone, Copy)]
struct Raw;

// === impl Recorded ===

impl Recorded {
    /// All recorded requests of a release, in the order of a pod's life cycle.
    fn of(shim: &str) -> anyhow::Result<Vec<Self>> {
        let lines = include_str!("../../shim/testdata/protocol/shims.jsonl").lines();
        let all = lines.map(serde_json::from_str).collect::<Result<Vec<Self>, _>>()?;
        let of: Vec<_> = all.into_iter().filter(|it| it.shim == shim).collect();
        ensure!(of.len() == 5, "{} recorded calls of {shim}, expected 5", of.len());
        Ok(of)
    }

    /// Sends the request and returns the raw answer.
    fn send(&self) -> anyhow::Result<Vec<u8>> {
        let digit = |at: usize| self.hex.get(at..at + 2).context("odd number of hex digits");
        let bytes = (0..self.hex.len()).step_by(2).map(|at| Ok(u8::from_str_radix(digit(at)?, 16)?));
        let bytes = bytes.collect::<anyhow::Result<Vec<u8>>>()?;
        let path = format!("/ferrule.cni.v1.Cni/{}", self.method).parse()?;
        blocking(async {
            let connector = tower::service_fn(|_| async {
                io::Result::Ok(TokioIo::new(UnixStream::connect(SOCKET).await?))
            });
            let channel = Endpoint::from_static("http://ferrule").connect_with_connector(connector).await?;
            let mut client = tonic::client::Grpc::new(channel);
            client.ready().await?;
            Ok(client.unary(Request::new(bytes), path, Raw).await?.into_inner())
        })
        .with_context(|| format!("{} of the shim {:?}", self.method, self.shim))
    }

    /// Sends the request and returns the answer's CNI error.
    fn error(&self) -> anyhow::Result<Option<Error>> {
        let answer = self.send()?;
        Ok(match self.method.as_str() {
            "Add" => {
                match AddResponse::decode(answer.as_slice())?.outcome.context("the answer has no outcome")? {
                    Outcome::Error(error) => Some(error),
                    Outcome::Result(result) => {
                        ensure!(result.interfaces.len() == 2 && result.ips.len() == 2, "{result:?}");
                        None
                    }
                }
            }
            // All other answers carry an optional error in the same field.
            _ => CheckResponse::decode(answer.as_slice())?.error,
        })
    }
}

// === impl Raw ===

impl Codec for Raw {
    type Encode = Vec<u8>;
    type Decode = Vec<u8>;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        *self
    }

    fn decoder(&mut self) -> Self {
        *self
    }
}

impl Encoder for Raw {
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(&mut self, item: Vec<u8>, room: &mut EncodeBuf<'_>) -> Result<(), Status> {
        room.put_slice(&item);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Vec<u8>;
    type Error = Status;

    fn decode(&mut self, bytes: &mut DecodeBuf<'_>) -> Result<Option<Vec<u8>>, Status> {
        let mut message = vec![0; bytes.remaining()];
        bytes.copy_to_slice(&mut message);
        Ok(Some(message))
    }
}

fn blocking<T>(what: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(what)
}

/// The pod of the recorded requests.
fn recorded_pod(node: &Node) -> anyhow::Result<ferrule_tests::pod::Pod> {
    let pod = node.pod("old")?;
    ensure!(pod.netns.ends_with("cni-0000") && pod.container_id == "0".repeat(64), "{pod:?}");
    Ok(pod)
}

#[test]
fn shims_of_other_releases_are_served() {
    for shim in ["first", "annotations", "newer"] {
        with_agent(|node| {
            let pod = recorded_pod(node)?;
            let before = node.kernel_state()?;
            for call in Recorded::of(shim)? {
                let error = call.error()?;
                ensure!(error.is_none(), "{} of the shim {shim:?}: {error:?}", call.method);
                match call.method.as_str() {
                    "Add" => {
                        pod.ping(ferrule_tests::node::NODE_V4)?;
                        ensure!(pod.run("ip link show eth0")?.contains("mtu 1400"));
                    }
                    "Gc" => ensure!(node.attachments()?.len() == 1, "GC removed a valid attachment"),
                    "Del" => ensure!(node.attachments()?.is_empty()),
                    _ => {}
                }
            }
            node.wait_for_kernel_state(&before)
        })
        .unwrap();
    }
}

#[test]
fn shim_without_a_common_api_version_is_refused_without_side_effects() {
    with_agent(|node| {
        recorded_pod(node)?;
        let before = node.kernel_state()?;
        for call in Recorded::of("future")? {
            let error = call.error()?.with_context(|| format!("{} should be refused", call.method))?;
            ensure!(error.code() == Code::ApiIncompatible && error.api == Some(API), "{error:?}");
            ensure!(error.message.contains("the caller speaks API v2 to v3"), "{error:?}");
            ensure!(error.details.contains("install plugin and agent from the same release"), "{error:?}");
        }
        ensure!(node.attachments()?.is_empty() && node.kernel_state()? == before);
        Ok(())
    })
    .unwrap();
}
