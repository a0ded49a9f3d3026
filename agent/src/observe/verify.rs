//! `ferrulectl verify`: every deviation of kernel and maps from the desired state.

use std::{sync::Arc, time::Duration};

use ferrule_proto::agent::{Deviation as ShownDeviation, Foreign as ShownForeign, VerifyResponse};
use tokio::{sync::Semaphore, task::spawn_blocking, time::timeout};
use tonic::{Response, Status};

use crate::{
    chain::chain,
    desired::{Advice, Deviation, Findings, Foreign, Inspector, Subject},
    registry::{Attachment, HostLink, Key},
};

/// Runs one verification at a time: each may block a thread for as long as the kernel does not answer.
pub struct Verifier {
    inspector: Inspector,
    self_heal: bool,
    turn: Arc<Semaphore>,
}

/// Shorter than the deadline of `ferrulectl`.
const DEADLINE: Duration = Duration::from_secs(8);

// === impl Verifier ===

impl Verifier {
    /// `self_heal`: whether the agent repairs deviations, for the report.
    pub fn new(inspector: Inspector, self_heal: bool) -> Self {
        Self { inspector, self_heal, turn: Arc::new(Semaphore::new(1)) }
    }

    /// # Errors
    /// `DEADLINE_EXCEEDED`, or `UNAVAILABLE` if the kernel refuses a dump.
    pub(super) async fn verify(&self) -> Result<Response<VerifyResponse>, Status> {
        let found = self.read(Inspector::verify).await?;
        let found = found.map_err(|error| Status::unavailable(chain(&error)))?;
        Ok(Response::new(show(&found, self.self_heal)))
    }

    /// Reads kernel and maps on a blocking thread, one reader at a time.
    ///
    /// # Errors
    /// `DEADLINE_EXCEEDED`.
    pub(super) async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Inspector) -> T + Send + 'static,
    ) -> Result<T, Status> {
        let reading = async {
            // The semaphore is never closed. The permit moves into the work, which continues if the caller
            // leaves.
            let permit = Arc::clone(&self.turn).acquire_owned().await.ok();
            let inspector = self.inspector.clone();
            spawn_blocking(move || {
                let _permit = permit;
                read(&inspector)
            })
            .await
        };
        let late = |_| Status::deadline_exceeded("reading the kernel's state exceeded its deadline");
        let joined = timeout(DEADLINE, reading).await.map_err(late)?;
        joined.map_err(|error| Status::internal(chain(&error)))
    }

    pub(super) fn self_heal(&self) -> bool {
        self.self_heal
    }
}

fn show(found: &Findings, self_heal: bool) -> VerifyResponse {
    let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    VerifyResponse {
        deviations: found.deviations.iter().map(|it| show_deviation(it, &found.attachments)).collect(),
        foreign: found.foreign.iter().map(|it| show_foreign(it, &found.attachments)).collect(),
        attachments: count(found.attachments.len()),
        in_work: count(found.in_work),
        self_heal,
    }
}

pub(super) fn show_deviation(it: &Deviation, attachments: &[Attachment]) -> ShownDeviation {
    let of = it.of.attachment().and_then(|key| attachments.iter().find(|it| it.key == *key));
    let Advice { means, command, is_repaired } = it.advice(of);
    let mut shown = ShownDeviation {
        kind: it.kind.name().to_owned(),
        what: it.what.clone(),
        means: means.to_owned(),
        command,
        repairable: is_repaired,
        ..Default::default()
    };
    let (key, ifindex) = match &it.of {
        Subject::Attachment(key) => (key, None),
        Subject::Interface(ifindex, key) => (key, Some(*ifindex)),
        Subject::Entry(_)
        | Subject::Setting(_)
        | Subject::Pin(_)
        | Subject::Range(_)
        | Subject::MasqueradeTable
        | Subject::HostPortsTable
        | Subject::NodeRoutes
        | Subject::PolicyRows => return shown,
    };
    (shown.network, shown.container_id, shown.ifname) = names(key);
    let of = attachments.iter().find(|it| it.key == *key);
    let pod = of.map(|it| it.pod.clone()).unwrap_or_default();
    (shown.pod_namespace, shown.pod_name) = (pod.namespace, pod.name);
    let host = of.filter(|_| ifindex.is_none()).and_then(|it| it.host.device().cloned());
    let host = host.unwrap_or(HostLink { ifname: String::new(), ifindex: ifindex.unwrap_or_default() });
    (shown.host_ifname, shown.host_ifindex) = (host.ifname, host.ifindex);
    shown
}

pub(super) fn show_foreign(it: &Foreign, attachments: &[Attachment]) -> ShownForeign {
    let Foreign { of, link, what } = it.clone();
    let (network, container_id, ifname) = of.as_ref().map(names).unwrap_or_default();
    let of = attachments.iter().find(|it| of.as_ref() == Some(&it.key));
    let pod = of.map(|it| it.pod.clone()).unwrap_or_default();
    let (host_ifname, host_ifindex) = link.map(|it| (it.ifname, it.ifindex)).unwrap_or_default();
    ShownForeign {
        network,
        container_id,
        ifname,
        pod_namespace: pod.namespace,
        pod_name: pod.name,
        host_ifname,
        host_ifindex,
        what,
    }
}

fn names(key: &Key) -> (String, String, String) {
    (key.network.to_string(), key.container_id.to_string(), key.ifname.to_string())
}
