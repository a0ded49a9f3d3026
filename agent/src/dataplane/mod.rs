//! The eBPF programs and their maps: loaded, pinned, read and written.

#[expect(unsafe_code, reason = "bpf(2) takes pointers")]
mod bpf;
mod btf;
mod capacity;
mod counted_flows;
mod events;
mod handover;
mod judging;
mod kernel;
mod layout;
mod loading;
mod log;
mod maps;
mod owner;
mod pins;
mod programs;
mod sampling;
mod settings;
mod skb_fields;
mod verification;
mod verified;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    os::fd::{AsFd as _, OwnedFd},
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use agent_common::{
    Counters, FlowKey, NodeEntry, NodeKey, Traffic, UnderlayEntry, UnderlayKey, event::FlowStats,
    policy::Subject,
};
use aya::{
    programs::{NetworkInterface, SchedClassifier, TcAttachType},
    sys::{Stats, SyscallError, enable_stats},
};

pub use capacity::Capacities;
pub use events::EventReader;
pub use handover::CapacityError;
pub use kernel::{Kernel, KernelError};
pub use layout::LayoutError;
pub use loading::LoadError;
pub use log::LogLevel;
pub use maps::{Audit, Entries, Entry, MapFailure, Recorded, SUBJECT, ShownRow, shown_subject, shown_text};
pub use owner::OwnerError;
pub use pins::{PinDirectoryError, PinFailure, remove as remove_pins};
pub use sampling::{Flows, SamplingError};
pub use settings::Settings;

use crate::{
    health::Reporter,
    metrics::{MapMetrics, ProgramInfo},
    plug::filter::{Filters, LinkFilters},
    registry::Attachment,
};
use counted_flows::CountedFlows;
use ferrule_policy::{EndpointId, Op, Rows, Table};
use ferrule_vif::Addresses;
use handover::Predecessors;
use layout::Layouts;
use loading::Ready;
use maps::{Maps, PolicyMaps, Subjects, runs};
use pins::{PinLock, Pins};
use programs::Programs;
use sampling::Sampling;
use verification::Verification;
use verified::Verified;

/// The loaded programs and their maps.
pub struct Dataplane {
    kernel: Kernel,
    programs: Verification<LoadError>,
    writer: Mutex<Maps>,
    /// The same maps, opened once more, so that a walk does not block writers.
    reader: Maps,
    policy: Mutex<PolicyMaps>,
    sampling: Mutex<Sampling>,
    counted_flows: Mutex<CountedFlows>,
    pinned: Pins,
    predecessors: Predecessors,
}

/// The dataplane cannot be loaded or changed.
#[derive(Debug, thiserror::Error)]
pub enum DataplaneError {
    #[error(transparent)]
    Kernel(#[from] KernelError),
    #[error(transparent)]
    Directory(#[from] PinDirectoryError),
    #[error(transparent)]
    Owner(#[from] OwnerError),
    #[error(transparent)]
    Layout(#[from] LayoutError),
    #[error(transparent)]
    Capacity(#[from] CapacityError),
    #[error(transparent)]
    Load(#[from] LoadError),
    #[error(transparent)]
    Map(#[from] MapFailure),
}

// === impl Dataplane ===

impl Dataplane {
    /// Loads the object. Maps that are already pinned below `directory` are taken over with their contents;
    /// the programs are new, and replace those of an earlier agent when they are attached. The kernel may
    /// still verify them: see [`Dataplane::verified`].
    ///
    /// # Errors
    /// If the kernel rejects the object, another agent uses the maps or its pods do, a pinned map has another
    /// layout, or a capacity is smaller than the entries in use.
    pub fn load(
        object: &[u8],
        directory: &Path,
        settings: &Settings,
        metrics: &MapMetrics,
    ) -> Result<Self, DataplaneError> {
        let kernel = Kernel::probe()?;
        let pins = directory.join(format!("v{}", layout::version()));
        pins::make_bpf_dir(directory)?;
        let lock = PinLock::take(directory)?;
        owner::claim(directory)?;
        pins::make_directory(&pins)?;
        let predecessors = Predecessors::prepare(&pins, Layouts::of_object(object)?, &settings.capacities)?;
        let verified = Verified::of(&pins, object, settings);
        let taken = verified.as_ref().and_then(Verified::take);
        let Ready { programs, set_subject, sampling, flows } = match taken {
            Some(taken) => taken,
            None => loading::load(object, settings, &kernel, &pins, move |ebpf| {
                if let Some(verified) = verified {
                    verified.leave(ebpf);
                }
            })?,
        };
        let sampling = Mutex::new(Sampling::take(sampling, settings.flows)?);
        let counted_flows = Mutex::new(CountedFlows::take(flows)?);
        let subjects = Arc::new(Subjects::open(&pins, set_subject.fd)?);
        let open = || Maps::open(&pins, subjects.clone(), metrics);
        let mut writer = open()?;
        writer.take_over();
        let mut policy = PolicyMaps::open(&pins, subjects.clone(), metrics)?;
        predecessors.copy_rows(&mut writer, &mut policy, &subjects);
        let (reader, pinned) = (open()?, Pins::open(&pins, lock)?);
        let (writer, policy) = (Mutex::new(writer), Mutex::new(policy));
        Ok(Self { kernel, programs, writer, reader, policy, sampling, counted_flows, pinned, predecessors })
    }

    /// Waits until the kernel has verified the programs. To be called before filters are attached.
    ///
    /// # Errors
    /// If the kernel refuses a program.
    pub fn verified(&self) -> Result<(), LoadError> {
        self.programs.end()
    }

    /// Copies counters and flows from replaced maps. Call when the maps hold all attachments and the filters
    /// are not replaced yet. Contents that cannot be copied are logged.
    pub fn inherit(&self) {
        self.predecessors.copy_counters(&mut self.writer());
        self.predecessors.copy_flows(&mut self.writer());
    }

    /// Removes the pins of replaced maps. Call when the filters are replaced.
    pub fn disinherit(&self) {
        // Flows that began since `inherit`.
        self.predecessors.copy_flows(&mut self.writer());
        self.predecessors.remove();
    }

    /// Opens the records of dropped packets and flows. Only one reader may exist at a time.
    ///
    /// # Errors
    /// If the map cannot be opened, mapped or waited for.
    pub fn events(&self) -> Result<EventReader, MapFailure> {
        EventReader::open(self.pins())
    }

    /// Of how many flows one is counted and recorded; 0: none.
    pub fn flow_sampling(&self) -> u32 {
        self.sampling().one_in()
    }

    /// Counts and records one in so many flows from now on; 0: none.
    ///
    /// # Errors
    /// If the programs cannot count flows, or the map cannot be written.
    pub fn set_flow_sampling(&self, one_in: u32) -> Result<(), SamplingError> {
        self.sampling().set(one_in)
    }

    /// The flows that the programs count; some can be there twice. A walk over the map: blocks.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn counted_flows(&self) -> Result<Vec<(FlowKey, FlowStats)>, MapFailure> {
        self.counted_flows.lock().unwrap_or_else(PoisonError::into_inner).all()
    }

    /// Removes a flow: its next packet begins another one.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn forget_flow(&self, flow: &FlowKey) -> Result<(), MapFailure> {
        self.counted_flows.lock().unwrap_or_else(PoisonError::into_inner).remove(flow)
    }

    /// The programs to attach to a pod's host interface.
    pub fn filters(&self) -> Filters<'_> {
        let Programs { from_pod, to_pod, .. } = self.programs.programs();
        Filters { from_pod: from_pod.fd.as_fd(), to_pod: to_pod.fd.as_fd() }
    }

    /// The filters of the tunnel device.
    pub fn tunnel_filters(&self) -> LinkFilters<'_> {
        let Programs { from_tunnel, to_tunnel, .. } = self.programs.programs();
        LinkFilters { ingress: from_tunnel.as_filter(), egress: to_tunnel.as_filter() }
    }

    /// The filters of an uplink.
    pub fn uplink_filters(&self) -> LinkFilters<'_> {
        let Programs { from_uplink, to_link, .. } = self.programs.programs();
        LinkFilters { ingress: from_uplink.as_filter(), egress: to_link.as_filter() }
    }

    /// The rows of `NODES`.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn nodes(&self) -> Result<BTreeMap<NodeKey, NodeEntry>, MapFailure> {
        self.reader.nodes()
    }

    /// Whether the programs find these rows of `NODES` by its index as they should.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn are_indexed(&self, nodes: &BTreeMap<NodeKey, NodeEntry>) -> Result<bool, MapFailure> {
        self.reader.are_indexed(nodes)
    }

    /// Makes the rows of `NODES` these: adds and replaces first, then removes. Returns the rows before.
    /// Removes even if a row cannot be written: a full map has room then.
    ///
    /// # Errors
    /// If the map is full, or the kernel refuses.
    pub fn set_nodes(
        &self,
        wanted: &BTreeMap<NodeKey, NodeEntry>,
    ) -> Result<BTreeMap<NodeKey, NodeEntry>, MapFailure> {
        self.writer().set_nodes(wanted)
    }

    /// The rows of `UNDERLAY`.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn underlay(&self) -> Result<BTreeMap<UnderlayKey, UnderlayEntry>, MapFailure> {
        self.reader.underlay()
    }

    /// Makes the rows of `UNDERLAY` these.
    ///
    /// # Errors
    /// If the map is full, or the kernel refuses.
    pub fn set_underlay(&self, wanted: &BTreeMap<UnderlayKey, UnderlayEntry>) -> Result<(), MapFailure> {
        self.writer().set_underlay(wanted)
    }

    /// The counters of the tunnel device and the uplinks, summed over all CPUs, by interface index.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn links(&self) -> Result<BTreeMap<u32, Traffic>, MapFailure> {
        self.reader.links()
    }

    /// Counts the packets from these interfaces, and no others. Call before their filters are attached:
    /// packets of an interface without counters are not counted.
    ///
    /// # Errors
    /// If the map is full, or the kernel refuses.
    pub fn count_links(&self, wanted: &BTreeSet<u32>) -> Result<(), MapFailure> {
        self.writer().count_links(wanted)
    }

    /// The running kernel.
    pub fn kernel(&self) -> &Kernel {
        &self.kernel
    }

    /// The kernel's IDs of the programs: `from_pod`, `to_pod`.
    pub fn program_ids(&self) -> [u32; 2] {
        let Programs { from_pod, to_pod, .. } = self.programs.programs();
        [from_pod.id, to_pod.id]
    }

    /// The kernel's digests of the same programs, as `bpftool prog` prints them.
    pub fn program_tags(&self) -> [String; 2] {
        let Programs { from_pod, to_pod, .. } = self.programs.programs();
        [from_pod, to_pod].map(|it| format!("{:016x}", it.tag))
    }

    /// The programs of the filters, without those that the kernel does not tell about.
    pub fn programs(&self) -> Vec<ProgramInfo> {
        self.programs.programs().info()
    }

    /// Lets the kernel count the runs of all programs, and their time, while the result is open (Linux 5.8).
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn count_runs(&self) -> Result<OwnedFd, SyscallError> {
        enable_stats(Stats::RunTime)
    }

    /// The directory of the pins.
    pub fn pins(&self) -> &Path {
        self.pinned.directory()
    }

    /// The maps whose pins are missing: the next agent would not find them.
    pub fn lost_pins(&self) -> Vec<&'static str> {
        self.pinned.lost()
    }

    /// Reports whether the next agent would find the maps.
    pub fn report_pins(&self, health: &Reporter) {
        match self.pinned.trouble() {
            Some(why) => health.unhealthy(why),
            None => health.healthy(format!("the maps are pinned in {}", self.pins().display())),
        }
    }

    /// Pins a map again, if its pin is lost.
    ///
    /// # Errors
    /// If a foreign file has the pin's name, or the BPF file system is gone.
    pub fn renew_pin(&self, map: &str) -> Result<(), PinFailure> {
        self.pinned.restore(map)
    }

    /// Adds the entry that counts packets of interfaces without an attachment, if it is missing.
    ///
    /// # Errors
    /// If the map is full.
    pub fn count_unknown(&self) -> Result<(), MapFailure> {
        self.writer().count_unknown()
    }

    /// Lets an attachment's packets pass and be delivered, through a host interface. On an error, no entry is
    /// left.
    ///
    /// # Errors
    /// If a map is full.
    pub fn insert(&self, ifindex: u32, attachment: &Attachment) -> Result<(), MapFailure> {
        let mut maps = self.writer();
        let written = maps.ensure(ifindex, attachment);
        if written.is_err() {
            // The first error is the cause.
            let _ = maps.remove(ifindex, attachment.vif.addresses);
        }
        written
    }

    /// Like [`Self::insert`], for a live attachment: entries stay on an error.
    ///
    /// # Errors
    /// If a map is full.
    pub fn keep(&self, ifindex: u32, attachment: &Attachment) -> Result<(), MapFailure> {
        self.writer().ensure(ifindex, attachment)
    }

    /// Removes an attachment's entries, so that no packet passes. Succeeds if they are absent.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn remove(&self, ifindex: u32, addresses: Addresses) -> Result<(), MapFailure> {
        self.policy().close(ifindex)?;
        self.writer().remove(ifindex, addresses)
    }

    /// As [`Self::remove`], and keeps what judges the interface, for the time when it gets its entries again.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn withdraw(&self, ifindex: u32, addresses: Addresses) -> Result<(), MapFailure> {
        self.writer().remove(ifindex, addresses)
    }

    /// The counters of a host interface, summed over all CPUs; `None` if it has no entry.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn counters(&self, ifindex: u32) -> Result<Option<Counters>, MapFailure> {
        self.reader.counters(ifindex)
    }

    /// The entries of a host interface; `None` if `VIFS` has none.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn recorded(&self, ifindex: u32) -> Result<Option<Recorded>, MapFailure> {
        self.reader.recorded(ifindex)
    }

    /// All entries. Updates the pressure metrics; does not block writers.
    pub fn entries(&self) -> Entries {
        self.reader.entries()
    }

    /// The entries of an interface and of addresses.
    pub fn entries_of(&self, ifindex: u32, addresses: Addresses) -> Entries {
        self.reader.entries_of(ifindex, addresses)
    }

    /// Removes a stray entry, unless it has changed since the snapshot.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn forget(&self, entry: Entry, snapshot: &Entries) -> Result<(), MapFailure> {
        self.writer().remove_stray(entry, snapshot)
    }

    /// The IDs of other programs' tcx attachments on an interface, by the pod's direction. Empty without
    /// kernel support.
    pub fn tcx(&self, ifindex: u32) -> [Vec<u32>; 2] {
        [TcAttachType::Ingress, TcAttachType::Egress].map(|hook| {
            let programs = SchedClassifier::query_tcx(NetworkInterface::Index(ifindex), hook)
                .map(|(_, programs)| programs);
            programs.unwrap_or_default().iter().map(aya::programs::ProgramInfo::id).collect()
        })
    }

    /// Removes stray entries: those of interfaces and addresses without an attachment, as a crash can leave
    /// them. What judges `lost` interfaces stays, for those that
    /// replace them.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn retain(&self, live: &HashMap<u32, Addresses>, lost: &HashSet<u32>) -> Result<(), MapFailure> {
        self.policy().retain(|ifindex| live.contains_key(&ifindex) || lost.contains(&ifindex))?;
        self.writer().retain(live, lost)
    }

    /// Whether pods may be attached that nothing judges yet, because an agent attached them whose programs
    /// knew no policy.
    pub fn has_unjudged(&self) -> bool {
        self.predecessors.judge_nothing()
    }

    /// Lets an interface pass everything, unless something judges it already.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn open_subject(&self, ifindex: u32) -> Result<(), MapFailure> {
        self.policy().open_subject(ifindex)
    }

    /// What judges an interface.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn subject(&self, ifindex: u32) -> Result<Option<Subject>, MapFailure> {
        self.policy().subject(ifindex)
    }

    /// Sets what judges an interface, if nothing does: for an interface that replaces another one of the same
    /// pod, what judged that one.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn judge(&self, ifindex: u32, subject: Subject) -> Result<(), MapFailure> {
        self.policy().judge(ifindex, subject)
    }

    /// What judges each interface.
    pub fn subjects(&self) -> BTreeMap<EndpointId, Subject> {
        self.policy().subjects()
    }

    /// Makes changes to the rows of a table, one after the other. After one that fails, no other is made.
    ///
    /// # Errors
    /// If a map is full, or the kernel refuses.
    pub fn apply_policy(&self, changes: &[Op], table: Table) -> Result<(), MapFailure> {
        runs(changes).try_for_each(|run| self.policy().apply_run(run, table))
    }

    /// The policy maps have the rows of one table only: sets what the metrics say.
    pub fn count_policy(&self, rows: &Rows) {
        self.policy().count(rows);
    }

    /// Removes all policy rows of a table, which no subject reads any more.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn clear_policy(&self, table: Table) -> Result<(), MapFailure> {
        self.policy().clear(table)
    }

    /// Compares some rows of the policy maps with those that are wanted now. Returns whether more follow.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn audit_policy(&self, audit: &mut Audit, wanted: &Rows, table: Table) -> Result<bool, MapFailure> {
        self.policy().audit(audit, wanted, table)
    }

    /// Held for single map operations and walks.
    fn policy(&self) -> MutexGuard<'_, PolicyMaps> {
        self.policy.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn sampling(&self) -> MutexGuard<'_, Sampling> {
        self.sampling.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Held for single map operations. Only the allocation of counters can wait, for at most 50 ms.
    fn writer(&self) -> MutexGuard<'_, Maps> {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
