//! Runs the eBPF programs on single packets, without a network (`BPF_PROG_TEST_RUN`).
//!
//! Programs and maps are those of the agent; the maps are not pinned, and the test fills them.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::CString,
    fmt,
    path::Path,
    thread,
    time::Duration,
};

use agent_common::{
    Counters, Dropped, Endpoint, EndpointKey, Flow, FlowKey, NodeEntry, NodeKey, Passed, PrefixLen, RingKey,
    SkbFields, Traffic, UnderlayEntry, UnderlayKey, VifEntry, VifKey,
    event::{Event, FlowStats},
    flows_per_pod, pending_flows,
    policy::{Subject, SubjectChange, View, ViewKey},
    policy_places,
};
use anyhow::{Context as _, ensure};
use aya::{
    Ebpf, EbpfLoader, Pod,
    maps::{
        Array, HashMap, LpmTrie, Map, MapData, MapError, MapInfo, PerCpuArray, PerCpuHashMap, PerCpuValues,
        RingBuf, lpm_trie::Key,
    },
    programs::{SchedClassifier, TcAttachType, TestRun as _, TestRunOptions, tc},
};

use nix::{
    sched::{CpuSet, sched_getcpu, sched_setaffinity},
    unistd::Pid,
};

use crate::{dist, rules::Rules, sys};

/// Not in aya's API. Leaves the packet to the next filter, and to the stack after the last.
pub const TC_ACT_UNSPEC: u32 = u32::MAX;
pub const TC_ACT_SHOT: u32 = 2;
pub const TC_ACT_REDIRECT: u32 = 7;

/// A program of the object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Program {
    FromPod,
    ToPod,
    FromTunnel,
    FromUplink,
    ToTunnel,
    ToLink,
}

/// Log level of the programs: values of `AYA_LOG_LEVEL`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Log {
    /// The agent's default.
    Off = 0,
    Trace = 5,
}

/// The fields of the program's context (`__sk_buff`) that a test can set.
#[derive(Debug, Clone, Copy, Default)]
pub struct SkBuff {
    /// An interface of the caller's network namespace.
    pub ifindex: u32,
    /// The interface by which the packet came; zero for a packet of the host's own.
    pub ingress_ifindex: u32,
    /// Length of the segments that the packet is later cut into; zero without GSO.
    pub gso_size: u32,
}

/// The result of a program for a packet.
#[derive(Clone, PartialEq, Eq)]
pub struct Ran {
    pub verdict: u32,
    pub packet: Vec<u8>,
    /// Average run time.
    pub took: Duration,
}

/// The loaded programs and their maps.
pub struct Programs {
    ebpf: Ebpf,
    pub vifs: HashMap<MapData, VifKey, VifEntry>,
    pub endpoints: HashMap<MapData, EndpointKey, Endpoint>,
    pub stack_flows: HashMap<MapData, FlowKey, Flow>,
    pub flow_rings: HashMap<MapData, RingKey, FlowKey>,
    pub flow_stats: HashMap<MapData, FlowKey, FlowStats>,
    /// Answered flows of pods that policies judge, and pending ones.
    pub policy_flows: HashMap<MapData, ViewKey, View>,
    pub policy_pending: HashMap<MapData, ViewKey, View>,
    pub rules: Rules,
    sampling: Array<MapData, u32>,
    events: RingBuf<MapData>,
    nodes: LpmTrie<MapData, [u8; 16], NodeEntry>,
    node_prefixes: HashMap<MapData, NodeKey, NodeEntry>,
    node_lengths: Array<MapData, PrefixLen>,
    underlay: HashMap<MapData, UnderlayKey, UnderlayEntry>,
    links: PerCpuHashMap<MapData, VifKey, Traffic>,
    traffic: PerCpuArray<MapData, Passed>,
    drops: PerCpuHashMap<MapData, VifKey, Dropped>,
    /// Interfaces with a clsact qdisc.
    qdiscs: BTreeSet<String>,
}

/// Counters by ifindex, summed over all CPUs.
pub type AllCounters = BTreeMap<u32, Counters>;

/// Length of `struct __sk_buff` in `linux/bpf.h`, and offsets of its fields.
const SK_BUFF_LEN: usize = 192;
const SK_BUFF_INGRESS_IFINDEX: usize = 36;
const SK_BUFF_IFINDEX: usize = 40;
const SK_BUFF_GSO_SIZE: usize = 176;

/// Answered flows that policies allow.
const POLICY_FLOWS: u32 = 16384;
pub const POLICY_FLOWS_PER_POD: u32 = flows_per_pod(POLICY_FLOWS);

/// In front of IPv4 addresses in IPv6 (RFC 4291, 2.5.5.2).
const MAPPED: [u8; 12] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];

/// The program that changes what judges a pod.
const SET_SUBJECT: &str = "set_subject";

/// A page: room for 24 drops.
const EVENT_BYTES: u32 = 4096;

/// The kernel keeps packet and metadata of a test run in one page.
const MAX_PACKET: usize = 4096;

/// Creates interfaces with the given indices in a new network namespace, and runs a closure there with newly
/// loaded programs.
///
/// # Errors
/// If the kernel refuses an interface or a program, or the closure fails.
pub fn with_programs<T: Send>(
    interfaces: &[u32],
    run: impl FnOnce(&mut Programs) -> anyhow::Result<T> + Send,
) -> anyhow::Result<T> {
    let body = || -> anyhow::Result<T> {
        stay_on_one_cpu()?;
        sys::leave_host()?;
        for index in interfaces {
            sys::run(&format!("ip link add pod{index} index {index} type veth peer name peer{index}"))?;
        }
        run(&mut Programs::load(Log::Off)?)
    };
    // The namespaces belong to the thread, and end with it.
    match thread::scope(|scope| scope.spawn(body).join()) {
        Ok(result) => result,
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

// === impl Program ===

impl Program {
    pub const ALL: [Self; 6] =
        [Self::FromPod, Self::ToPod, Self::FromTunnel, Self::FromUplink, Self::ToTunnel, Self::ToLink];

    /// The program's name in the object.
    pub fn name(self) -> &'static str {
        match self {
            Self::FromPod => "from_pod",
            Self::ToPod => "to_pod",
            Self::FromTunnel => "from_tunnel",
            Self::FromUplink => "from_uplink",
            Self::ToTunnel => "to_tunnel",
            Self::ToLink => "to_link",
        }
    }
}

// === impl SkBuff ===

impl SkBuff {
    /// A packet on an interface, without GSO.
    pub fn on(ifindex: u32) -> Self {
        Self { ifindex, ..Self::default() }
    }

    /// A packet on its way to an interface, from another one.
    pub fn forwarded(from: u32, to: u32) -> Self {
        Self { ifindex: to, ingress_ifindex: from, ..Self::default() }
    }

    fn bytes(self) -> [u8; SK_BUFF_LEN] {
        let mut bytes = [0; SK_BUFF_LEN];
        let fields = [
            (SK_BUFF_INGRESS_IFINDEX, self.ingress_ifindex),
            (SK_BUFF_IFINDEX, self.ifindex),
            (SK_BUFF_GSO_SIZE, self.gso_size),
        ];
        for (offset, value) in fields {
            for (slot, byte) in bytes.iter_mut().skip(offset).zip(value.to_ne_bytes()) {
                *slot = byte;
            }
        }
        bytes
    }
}

// === impl Programs ===

impl Programs {
    /// # Errors
    /// If the kernel refuses a map, or the object lacks one.
    pub fn load(log: Log) -> anyhow::Result<Self> {
        Self::load_with(log, None, true)
    }

    /// Loads the programs as for an agent that never counts flows (`--flows never`).
    ///
    /// # Errors
    /// As for [`Self::load`].
    pub fn load_without_flows() -> anyhow::Result<Self> {
        Self::load_with(Log::Off, None, false)
    }

    /// Loads the programs with the maps that an agent has pinned in a directory.
    ///
    /// # Errors
    /// As for [`Self::load`], or if the directory cannot be read.
    pub fn load_pinned(pins: &str) -> anyhow::Result<Self> {
        Self::load_with(Log::Off, Some(pins), true)
    }

    fn load_with(log: Log, pins: Option<&str>, counts_flows: bool) -> anyhow::Result<Self> {
        let pinned = pins.map(sys::file_names).transpose()?.unwrap_or_default();
        let level = log as u8;
        // As the agent: whatever the number is, shares hold.
        let secret = fastrand::u64(..);
        let mut loader = EbpfLoader::new();
        loader.override_global("POLICY_PLACES_SECRET", &secret, true);
        let flow_stats = u8::from(counts_flows);
        loader.override_global("FLOW_STATS_ON", &flow_stats, true);
        match pins {
            None => {
                loader.map_max_entries("EVENTS", EVENT_BYTES);
                // The kernel allocates the whole maps for each test.
                loader.map_max_entries("POLICY_FLOWS", POLICY_FLOWS);
                loader.map_max_entries("POLICY_PLACES", policy_places(POLICY_FLOWS));
                loader.map_max_entries("POLICY_PENDING", pending_flows(POLICY_FLOWS));
                loader.override_global("POLICY_FLOWS_PER_POD", &POLICY_FLOWS_PER_POD, true);
            }
            Some(pins) => {
                for map in &pinned {
                    let path = Path::new(pins).join(map);
                    // aya refuses a pinned map of another capacity than the loader asks for.
                    if let Ok(info) = MapInfo::from_pin(&path) {
                        loader.map_max_entries(map, info.max_entries());
                    }
                    loader.map_pin_path(map, path);
                }
            }
        }
        // Read and judged as of an agent: the field is a pointer, which is 0 while a program has the packet.
        let fields = SkbFields { window: 1, ip_summed: 0, csum_start: 8, network_header: 16 };
        loader.override_global("SKB_FIELDS", &fields, true);
        // Required: without it, logging could not be switched off.
        loader.override_global("AYA_LOG_LEVEL", &level, true);
        let mut ebpf = loader.load(&dist::ebpf_object()?)?;
        Ok(Self {
            vifs: take_map(&mut ebpf, "VIFS")?,
            endpoints: take_map(&mut ebpf, "ENDPOINTS")?,
            stack_flows: take_map(&mut ebpf, "STACK_FLOWS")?,
            flow_rings: take_map(&mut ebpf, "FLOW_RINGS")?,
            flow_stats: take_map(&mut ebpf, "FLOW_STATS")?,
            policy_flows: take_map(&mut ebpf, "POLICY_FLOWS")?,
            policy_pending: take_map(&mut ebpf, "POLICY_PENDING")?,
            rules: Rules::take(&mut ebpf)?,
            sampling: take_map(&mut ebpf, "FLOW_SAMPLING")?,
            events: take_map(&mut ebpf, "EVENTS")?,
            nodes: take_map(&mut ebpf, "NODES")?,
            node_prefixes: take_map(&mut ebpf, "NODE_PREFIXES")?,
            node_lengths: take_map(&mut ebpf, "NODE_LENGTHS")?,
            underlay: take_map(&mut ebpf, "UNDERLAY")?,
            links: take_map(&mut ebpf, "LINK_COUNTERS")?,
            traffic: take_map(&mut ebpf, "VIF_TRAFFIC")?,
            drops: take_map(&mut ebpf, "VIF_COUNTERS")?,
            qdiscs: BTreeSet::new(),
            ebpf,
        })
    }

    /// Number of instructions that the verifier walked, which the kernel limits.
    ///
    /// # Errors
    /// If the kernel does not report it.
    pub fn verified_instructions(&mut self, program: Program) -> anyhow::Result<u32> {
        let info = loaded(&mut self.ebpf, program.name())?.info()?;
        info.verified_instruction_count().context("the kernel does not report verified instructions")
    }

    /// Runs a program once.
    ///
    /// # Errors
    /// If the kernel refuses the packet or the interface.
    pub fn run(&mut self, program: Program, skb: SkBuff, packet: &[u8]) -> anyhow::Result<Ran> {
        self.repeat(program, skb, packet, 1)
    }

    /// Runs a program several times, each time on the packet that the run before left.
    ///
    /// # Errors
    /// If the kernel refuses the packet or the interface.
    pub fn repeat(
        &mut self,
        program: Program,
        skb: SkBuff,
        packet: &[u8],
        times: u32,
    ) -> anyhow::Result<Ran> {
        let mut out = vec![0; MAX_PACKET];
        let context = skb.bytes();
        let result = loaded(&mut self.ebpf, program.name())?.test_run(TestRunOptions {
            data_in: Some(packet),
            data_out: Some(&mut out),
            ctx_in: Some(&context),
            repeat: times,
            ..TestRunOptions::default()
        });
        let result = result.with_context(|| format!("cannot run {} with {skb:?}", program.name()))?;
        out.truncate(result.data_size_out as usize);
        Ok(Ran { verdict: result.return_value, packet: out, took: result.duration })
    }

    /// Attaches a program to an interface of the current network namespace, until `self` is dropped.
    ///
    /// # Errors
    /// If the kernel refuses the qdisc or the filter.
    pub fn attach(&mut self, program: Program, interface: &str) -> anyhow::Result<()> {
        let name = CString::new(interface).context("a name of an interface")?;
        if self.qdiscs.insert(interface.to_owned()) {
            tc::qdisc_add_clsact(&*name)?;
        }
        let direction = match program {
            Program::FromPod | Program::FromTunnel | Program::FromUplink => TcAttachType::Ingress,
            Program::ToPod | Program::ToTunnel | Program::ToLink => TcAttachType::Egress,
        };
        loaded(&mut self.ebpf, program.name())?.attach(&*name, direction)?;
        Ok(())
    }

    /// Inserts zero counters of drops for an interface. Without an entry, the programs do not count.
    ///
    /// # Errors
    /// If the map cannot be written.
    pub fn start_counting(&mut self, ifindex: u32) -> anyhow::Result<()> {
        Ok(self.drops.insert(&VifKey { ifindex }, zero()?, 0)?)
    }

    /// What judges a pod; `None` if that is not known.
    ///
    /// # Errors
    /// If the interface has no entry in `VIFS`.
    pub fn subject(&self, ifindex: u32) -> anyhow::Result<Option<Subject>> {
        let VifEntry { subject, .. } = self.vifs.get(&VifKey { ifindex }, 0)?;
        Ok(subject.is_known().then(|| subject.unpack()))
    }

    /// Changes what judges a pod, by the program that does so for the agent.
    ///
    /// # Errors
    /// If the interface has no entry in `VIFS`.
    pub fn set_subject(&mut self, ifindex: u32, subject: Option<Subject>) -> anyhow::Result<()> {
        let subject = subject.map(|it| it.pack()).unwrap_or_default();
        let change = SubjectChange { ifindex, subject, ..SubjectChange::default() };
        let ran = loaded(&mut self.ebpf, SET_SUBJECT)?
            .test_run(TestRunOptions { data_in: Some(&bytes(change)), ..TestRunOptions::default() })?;
        ensure!(ran.return_value == 1, "the interface {ifindex} has no entry");
        Ok(())
    }

    /// Adds an entry to `NODES`.
    ///
    /// # Errors
    /// If the map cannot be written.
    pub fn add_node(&mut self, key: NodeKey, node: NodeEntry) -> anyhow::Result<()> {
        Ok(self.nodes.insert(&Key::new(key.prefix_len, key.address), &node, 0)?)
    }

    /// Adds the entries of `NODES` to its index, but for ranges of other lengths than /24 and /64, and for
    /// those that contain another entry.
    ///
    /// # Errors
    /// If a map cannot be read or written.
    pub fn index_nodes(&mut self) -> anyhow::Result<()> {
        let nodes = self.nodes.iter().map(|it| it.map(|(key, row)| (key.prefix_len(), key.data(), row)));
        let nodes: Vec<(u32, [u8; 16], NodeEntry)> = nodes.collect::<Result<_, _>>()?;
        for (family, ranges) in [(PrefixLen::IPV4, 120), (PrefixLen::IPV6, 64)] {
            let is_of_family =
                |address: &[u8; 16]| address.starts_with(&MAPPED) == (family == PrefixLen::IPV4);
            let mut len = PrefixLen { prefix_len: ranges, is_complete: 1, ..PrefixLen::default() };
            for (prefix_len, address, row) in nodes.iter().filter(|(_, address, _)| is_of_family(address)) {
                let bytes = *prefix_len as usize / 8;
                let inside = nodes.iter().filter(|(_, other, _)| other.get(..bytes) == address.get(..bytes));
                if row.is_address() || *prefix_len == u32::from(ranges) && inside.count() == 1 {
                    let key = NodeKey { prefix_len: *prefix_len, address: *address };
                    self.node_prefixes.insert(&key, row, 0)?;
                } else {
                    len.is_complete = 0;
                }
            }
            self.node_lengths.set(family, &len, 0)?;
        }
        Ok(())
    }

    /// Adds an entry to `UNDERLAY`.
    ///
    /// # Errors
    /// If the map cannot be written.
    pub fn add_underlay(&mut self, node: u32, way: UnderlayEntry) -> anyhow::Result<()> {
        Ok(self.underlay.insert(&UnderlayKey { node }, &way, 0)?)
    }

    /// Inserts zero counters for the tunnel device or an uplink.
    ///
    /// # Errors
    /// If the map cannot be written.
    pub fn start_counting_link(&mut self, ifindex: u32) -> anyhow::Result<()> {
        Ok(self.links.insert(&VifKey { ifindex }, zero()?, 0)?)
    }

    /// Counters of links by ifindex, summed over all CPUs.
    ///
    /// # Errors
    /// If the map cannot be read.
    pub fn links(&self) -> anyhow::Result<BTreeMap<u32, Traffic>> {
        let mut all = BTreeMap::new();
        for entry in self.links.iter() {
            let (VifKey { ifindex }, per_cpu) = entry?;
            let sum: &mut Traffic = all.entry(ifindex).or_default();
            per_cpu.iter().for_each(|one| *sum += *one);
        }
        Ok(all)
    }

    /// Counts and records one in so many flows; 0: none, as at first.
    ///
    /// # Errors
    /// If the map cannot be written.
    pub fn sample_flows(&mut self, one_in: u32) -> anyhow::Result<()> {
        Ok(self.sampling.set(0, &one_in, 0)?)
    }

    /// The records since the last call.
    ///
    /// # Errors
    /// If a record cannot be decoded.
    pub fn events(&mut self) -> anyhow::Result<Vec<Event>> {
        let mut events = Vec::new();
        while let Some(record) = self.events.next() {
            events.push(Event::decode(&record).with_context(|| format!("no record: {record:?}"))?);
        }
        Ok(events)
    }

    /// # Errors
    /// If the map cannot be read.
    pub fn counters(&self) -> anyhow::Result<AllCounters> {
        let mut all = AllCounters::new();
        for entry in self.drops.iter() {
            let (key, per_cpu) = entry?;
            let sum = all.entry(key.ifindex).or_default();
            per_cpu.iter().for_each(|one| *sum += one);
            if let Ok(VifEntry { slot, .. }) = self.vifs.get(&key, 0) {
                self.traffic.get(&slot, 0)?.iter().for_each(|one| *sum += one);
            }
        }
        Ok(all)
    }
}

/// The programs keep some state for each CPU.
fn stay_on_one_cpu() -> anyhow::Result<()> {
    let mut cpus = CpuSet::new();
    cpus.set(sched_getcpu()?)?;
    Ok(sched_setaffinity(Pid::from_raw(0), &cpus)?)
}

/// A zero for each CPU.
fn zero<T: Pod + Default>() -> anyhow::Result<PerCpuValues<T>> {
    let cpus = aya::util::nr_cpus().map_err(|(what, error)| anyhow::anyhow!("{what}: {error}"))?;
    Ok(PerCpuValues::try_from(vec![T::default(); cpus.get() as usize])?)
}

/// A program, loaded at its first use: the kernel verifies each for a tenth of a second, and most tests use
/// one or two.
fn loaded<'a>(ebpf: &'a mut Ebpf, name: &str) -> anyhow::Result<&'a mut SchedClassifier> {
    let found = ebpf.program_mut(name).with_context(|| format!("the object has no program {name}"))?;
    let program: &mut SchedClassifier = found.try_into()?;
    if program.fd().is_err() {
        program.load().with_context(|| format!("cannot load {name}"))?;
    }
    Ok(program)
}

fn bytes(SubjectChange { header, ifindex, reserved, subject }: SubjectChange) -> Vec<u8> {
    let words = [ifindex, reserved].map(u32::to_ne_bytes);
    let halves = [subject.ingress, subject.egress].map(u16::to_ne_bytes);
    [&header[..], words.as_flattened(), halves.as_flattened(), &subject.epoch.to_ne_bytes()].concat()
}

pub(crate) fn take_map<M: TryFrom<Map, Error = MapError>>(ebpf: &mut Ebpf, name: &str) -> anyhow::Result<M> {
    let map = ebpf.take_map(name).with_context(|| format!("the object has no map {name}"))?;
    M::try_from(map).with_context(|| format!("the map {name} has another type or layout"))
}

pub fn verdict_name(verdict: u32) -> String {
    match verdict {
        TC_ACT_UNSPEC => "to the stack (TC_ACT_UNSPEC)".to_owned(),
        TC_ACT_SHOT => "dropped (TC_ACT_SHOT)".to_owned(),
        TC_ACT_REDIRECT => "redirected (TC_ACT_REDIRECT)".to_owned(),
        other => format!("unknown verdict {other}"),
    }
}

// === impl Ran ===

impl fmt::Debug for Ran {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:\n{}", verdict_name(self.verdict), crate::packet::hexdump(&self.packet))
    }
}

impl Ran {
    /// # Errors
    /// If the verdict differs.
    pub fn expect(&self, verdict: u32) -> anyhow::Result<()> {
        ensure!(self.verdict == verdict, "expected {}, got {self:?}", verdict_name(verdict));
        Ok(())
    }
}
