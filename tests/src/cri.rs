//! A client of the Container Runtime Interface, the API through which a kubelet runs pods.

use std::{
    io,
    net::IpAddr,
    path::PathBuf,
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use anyhow::{Context as _, ensure};
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint};

use crate::{image, pod::NAMESPACE};
use proto::{image_service_client::ImageServiceClient, runtime_service_client::RuntimeServiceClient};

/// The used subset of `runtime.v1`.
#[expect(clippy::allow_attributes_without_reason, reason = "generated code")]
pub mod proto {
    tonic::include_proto!("runtime.v1");
}

/// A runtime behind a socket. Each call opens its own connection, so threads can share the client, and a
/// restart of the runtime does not matter.
#[derive(Debug, Clone)]
pub struct Cri {
    socket: PathBuf,
    /// Parent cgroup of the containers.
    cgroup: String,
}

/// A pod's ID at the runtime and the configuration it was created with.
#[derive(Debug, Clone)]
pub struct Sandbox {
    pub id: String,
    config: proto::PodSandboxConfig,
}

/// The runtime's status of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SandboxStatus {
    pub is_ready: bool,
    /// A kubelet reports the first one as the pod's address.
    pub addresses: Vec<IpAddr>,
}

/// The kubelet's timeout.
const TIMEOUT: Duration = Duration::from_secs(120);
/// Timeout of a command in a container, in seconds.
const EXEC: i64 = 30;

// === impl Cri ===

impl Cri {
    pub(crate) fn new(socket: PathBuf, cgroup: String) -> Self {
        Self { socket, cgroup }
    }

    /// Creates a pod's sandbox and thereby its network. The pod's UID is `uid-of-<name>`; each call is a new
    /// attempt, as a kubelet counts them.
    ///
    /// # Errors
    /// The runtime's error.
    pub fn run(&self, name: &str, annotations: &[(&str, &str)]) -> anyhow::Result<Sandbox> {
        static ATTEMPT: AtomicU32 = AtomicU32::new(0);
        let metadata = proto::PodSandboxMetadata {
            name: name.to_owned(),
            uid: format!("uid-of-{name}"),
            namespace: NAMESPACE.to_owned(),
            attempt: ATTEMPT.fetch_add(1, Ordering::Relaxed),
        };
        let owned = annotations.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let config = proto::PodSandboxConfig {
            metadata: Some(metadata),
            annotations: owned.collect(),
            linux: Some(proto::LinuxPodSandboxConfig { cgroup_parent: self.cgroup.clone() }),
        };
        let request = proto::RunPodSandboxRequest { config: Some(config.clone()) };
        let ran = self
            .runtime(async |mut runtime| runtime.run_pod_sandbox(request).await)
            .with_context(|| format!("RunPodSandbox of {name}"))?;
        Ok(Sandbox { id: ran.pod_sandbox_id, config })
    }

    /// Stops a pod's processes and its network.
    ///
    /// # Errors
    /// The runtime's error.
    pub fn stop(&self, sandbox: &Sandbox) -> anyhow::Result<()> {
        let request = proto::StopPodSandboxRequest { pod_sandbox_id: sandbox.id.clone() };
        self.runtime(async |mut runtime| runtime.stop_pod_sandbox(request).await)
            .context("StopPodSandbox")?;
        Ok(())
    }

    /// Removes a pod, stopping it first if necessary.
    ///
    /// # Errors
    /// The runtime's error.
    pub fn remove(&self, sandbox: &Sandbox) -> anyhow::Result<()> {
        let request = proto::RemovePodSandboxRequest { pod_sandbox_id: sandbox.id.clone() };
        self.runtime(async |mut runtime| runtime.remove_pod_sandbox(request).await)
            .context("RemovePodSandbox")?;
        Ok(())
    }

    /// The runtime's status of a pod.
    ///
    /// # Errors
    /// If the runtime does not know the pod.
    pub fn status(&self, sandbox: &Sandbox) -> anyhow::Result<SandboxStatus> {
        let request = proto::PodSandboxStatusRequest { pod_sandbox_id: sandbox.id.clone() };
        let answer = self
            .runtime(async |mut runtime| runtime.pod_sandbox_status(request).await)
            .context("PodSandboxStatus")?;
        let status = answer.status.context("the response has no status")?;
        let is_ready = status.state() == proto::PodSandboxState::SandboxReady;
        let network = status.network.unwrap_or_default();
        // A stopped pod has no address.
        let all = std::iter::once(network.ip).chain(network.additional_ips.into_iter().map(|it| it.ip));
        let addresses = all.filter(|ip| !ip.is_empty()).map(|ip| ip.parse()).collect::<Result<_, _>>()?;
        Ok(SandboxStatus { is_ready, addresses })
    }

    /// All pods that the runtime knows, including those whose creation failed.
    ///
    /// # Errors
    /// If the runtime does not answer.
    pub fn list(&self) -> anyhow::Result<Vec<Sandbox>> {
        let request = proto::ListPodSandboxRequest {};
        let answer = self
            .runtime(async |mut runtime| runtime.list_pod_sandbox(request).await)
            .context("ListPodSandbox")?;
        let sandbox = |it: proto::PodSandbox| Sandbox { id: it.id, config: Default::default() };
        Ok(answer.items.into_iter().map(sandbox).collect())
    }

    /// Starts a second container of [`image::NAME`] in a pod; the first has the port. Returns its ID.
    ///
    /// # Errors
    /// The runtime's error.
    pub fn start_container(&self, sandbox: &Sandbox) -> anyhow::Result<String> {
        let config = proto::ContainerConfig {
            metadata: Some(proto::ContainerMetadata { name: "main".to_owned(), attempt: 0 }),
            image: Some(proto::ImageSpec { image: image::NAME.to_owned() }),
            args: vec!["rest".to_owned()],
        };
        let request = proto::CreateContainerRequest {
            pod_sandbox_id: sandbox.id.clone(),
            config: Some(config),
            sandbox_config: Some(sandbox.config.clone()),
        };
        let container_id = self
            .runtime(async |mut runtime| runtime.create_container(request).await)
            .context("CreateContainer")?
            .container_id;
        let request = proto::StartContainerRequest { container_id: container_id.clone() };
        self.runtime(async |mut runtime| runtime.start_container(request).await).context("StartContainer")?;
        Ok(container_id)
    }

    /// Runs a command in a container and returns its standard output.
    ///
    /// # Errors
    /// If the command fails; the error carries its output.
    pub fn exec(&self, container_id: &str, command: &[&str]) -> anyhow::Result<String> {
        let request = proto::ExecSyncRequest {
            container_id: container_id.to_owned(),
            cmd: command.iter().map(|word| (*word).to_owned()).collect(),
            timeout: EXEC,
        };
        let ran = self.runtime(async |mut runtime| runtime.exec_sync(request).await).context("ExecSync")?;
        let (stdout, stderr) = (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
        ensure!(ran.exit_code == 0, "{command:?} exited with {}: {stdout}{stderr}", ran.exit_code);
        Ok(stdout.trim().to_owned())
    }

    /// The runtime's `NetworkReady` condition, or the reason why it is false. A kubelet derives the node's
    /// `Ready` from it.
    ///
    /// # Errors
    /// If the runtime does not answer.
    pub fn network_ready(&self) -> anyhow::Result<Result<(), String>> {
        let request = proto::StatusRequest {};
        let answer = self.runtime(async |mut runtime| runtime.status(request).await).context("Status")?;
        let conditions = answer.status.context("the response has no status")?.conditions;
        let ready = conditions.into_iter().find(|it| it.r#type == "NetworkReady");
        let ready = ready.context("the status has no condition NetworkReady")?;
        Ok(if ready.status { Ok(()) } else { Err(format!("{}: {}", ready.reason, ready.message)) })
    }

    /// Whether the runtime has the image [`image::NAME`].
    ///
    /// # Errors
    /// If the runtime does not answer.
    pub fn has_image(&self) -> anyhow::Result<bool> {
        let request =
            proto::ImageStatusRequest { image: Some(proto::ImageSpec { image: image::NAME.to_owned() }) };
        let call = async |channel| ImageServiceClient::new(channel).image_status(request).await;
        Ok(self.call(call).context("ImageStatus")?.image.is_some())
    }

    fn runtime<T>(
        &self,
        call: impl AsyncFnOnce(RuntimeServiceClient<Channel>) -> tonic::Result<tonic::Response<T>>,
    ) -> anyhow::Result<T> {
        self.call(async |channel| call(RuntimeServiceClient::new(channel)).await)
    }

    fn call<T>(
        &self,
        call: impl AsyncFnOnce(Channel) -> tonic::Result<tonic::Response<T>>,
    ) -> anyhow::Result<T> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let socket = self.socket.clone();
        runtime.block_on(async {
            let connector = tower::service_fn(move |_| {
                let socket = socket.clone();
                async { io::Result::Ok(TokioIo::new(UnixStream::connect(socket).await?)) }
            });
            let channel = Endpoint::from_static("http://runtime").connect_with_connector(connector).await?;
            let answer = tokio::time::timeout(TIMEOUT, call(channel)).await.context("the call timed out")?;
            // A tonic status prints all of its metadata; people read only the message.
            answer.map(tonic::Response::into_inner).map_err(|status| anyhow::anyhow!("{}", status.message()))
        })
    }
}
