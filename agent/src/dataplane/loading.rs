//! Loads the object into the kernel: the maps, and the programs, which the kernel verifies while the agent
//! goes on.

use std::{
    collections::BTreeMap,
    hash::{BuildHasher as _, RandomState},
    io,
    os::fd::AsFd as _,
    panic::resume_unwind,
    path::Path,
    thread::{self, ScopedJoinHandle},
};

use agent_common::SkbFields;
use aya::{
    Ebpf, EbpfError, EbpfLoader,
    maps::{Map, MapData, MapError},
    programs::{Program, ProgramError, SchedClassifier},
};

use super::{
    counted_flows::FLOW_STATS,
    kernel::Kernel,
    log::{self, LogLevel},
    maps::{MapFailure, PINNED},
    programs::{FILTERS, Loaded, Programs, SET_SUBJECT},
    sampling::{FLOW_SAMPLING, Flows},
    settings::Settings,
    skb_fields,
    verification::Verification,
};
use crate::{
    chain::chain,
    crash::{self, Step},
    memory,
};

/// The programs, and their maps that have no pin.
pub(super) struct Ready {
    pub(super) programs: Verification<LoadError>,
    pub(super) set_subject: Loaded,
    pub(super) sampling: Map,
    pub(super) flows: Map,
}

/// The kernel does not take the object.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    #[error(
        "cannot load the eBPF object; the kernel needs BTF (CONFIG_DEBUG_INFO_BTF) for its maps, and the agent's \
         limit of memory must have room for them (docs/install.md, \"Memory\")"
    )]
    Object(#[from] EbpfError),
    /// The verifier rejects the program, or the object lacks it.
    #[error("cannot load the eBPF program {name}")]
    Program {
        name: &'static str,
        #[source]
        source: ProgramError,
    },
    #[error(transparent)]
    Map(#[from] MapFailure),
    #[error("cannot start the thread that loads the eBPF programs")]
    Thread(#[source] io::Error),
}

/// Loads the object into the kernel. Maps that are pinned are taken over. `leave` pins the programs once the
/// kernel has verified them.
///
/// # Errors
/// If the kernel rejects the object.
pub(super) fn load(
    object: &[u8],
    settings: &Settings,
    kernel: &Kernel,
    pins: &Path,
    leave: impl FnOnce(&mut Ebpf) + Send + 'static,
) -> Result<Ready, LoadError> {
    let mut loader = EbpfLoader::new();
    let level = settings.log.as_u8();
    loader.override_global(aya_log::LEVEL, &level, true);
    let flows_per_pod = agent_common::flows_per_pod(settings.capacities.stack_flows);
    loader.override_global("FLOWS_PER_POD", &flows_per_pod, true);
    let policy_flows_per_pod = agent_common::flows_per_pod(settings.capacities.policy_flows);
    loader.override_global("POLICY_FLOWS_PER_POD", &policy_flows_per_pod, true);
    let secret = RandomState::new().hash_one(());
    loader.override_global("POLICY_PLACES_SECRET", &secret, true);
    let dhcp_servers = u8::from(settings.dhcp_servers);
    loader.override_global("DHCP_SERVERS", &dhcp_servers, true);
    loader.override_global("TUNNEL_PORT", &settings.tunnel_port, true);
    let has_tunnel = u8::from(settings.has_tunnel);
    loader.override_global("HAS_TUNNEL", &has_tunnel, true);
    loader.override_global("TUNNEL_SOURCE_PORTS", &settings.tunnel_source_ports, true);
    let skb_fields = skb_fields(kernel);
    loader.override_global("SKB_FIELDS", &skb_fields, true);
    let flow_stats = u8::from(settings.flows != Flows::Never);
    loader.override_global("FLOW_STATS_ON", &flow_stats, true);
    if settings.flows == Flows::Never {
        loader.map_max_entries(FLOW_STATS, 1);
        loader.map_max_entries("FLOW_PLACES", 1);
    }
    for map in PINNED {
        loader.map_max_entries(map.name, (map.capacity)(&settings.capacities));
        loader.map_pin_path(map.name, map.path(pins));
    }
    let mut ebpf = loader.load(object)?;
    crash::point(Step::MapsPinned);
    if settings.log != LogLevel::Off {
        log::follow(&mut ebpf);
    }
    let set_subject = load_one(SET_SUBJECT, ebpf.program_mut(SET_SUBJECT))?;
    let map = |name| {
        let failure = |source| MapFailure::Access { action: "open", map: name, source: Box::new(source) };
        open_again(&ebpf, name).map_err(failure)
    };
    let (sampling, flows) = (map(FLOW_SAMPLING)?, map(FLOW_STATS)?);
    let programs = Verification::begin(move || {
        let programs = load_filters(&mut ebpf)?;
        leave(&mut ebpf);
        Ok(programs)
    });
    let programs = programs.map_err(LoadError::Thread)?;
    drop(loader);
    memory::release();
    Ok(Ready { programs, set_subject, sampling, flows })
}

/// Without them, the programs do not check where checksums are written later.
fn skb_fields(kernel: &Kernel) -> SkbFields {
    if !kernel.lets_programs_read() {
        return SkbFields::default();
    }
    skb_fields::find().unwrap_or_else(|error| {
        let error = chain(&error);
        tracing::warn!(error, "the programs cannot check where the kernel writes pods' checksums");
        SkbFields::default()
    })
}

/// Opens another descriptor of a map. The kernel finds a program's maps by the object's descriptors, which
/// must stay open until the program is loaded.
fn open_again(ebpf: &Ebpf, name: &str) -> Result<Map, MapError> {
    let (Map::Array(data) | Map::LruHashMap(data)) =
        ebpf.map(name).ok_or_else(|| MapError::InvalidName { name: name.to_owned() })?
    else {
        return Err(MapError::InvalidName { name: name.to_owned() });
    };
    let fd = data.fd().as_fd().try_clone_to_owned()?;
    Map::from_map_data(MapData::from_fd(fd)?)
}

/// Loads the programs of the filters. The kernel verifies a program for a tenth of a second, and several at
/// once.
fn load_filters(ebpf: &mut Ebpf) -> Result<Programs, LoadError> {
    let mut programs: BTreeMap<_, _> = ebpf.programs_mut().collect();
    let mut loaded: BTreeMap<_, _> = thread::scope(|scope| {
        let loads = FILTERS.map(|name| {
            let program = programs.remove(name);
            (name, scope.spawn(move || load_one(name, program)))
        });
        let join = |load: ScopedJoinHandle<'_, _>| load.join().unwrap_or_else(|panic| resume_unwind(panic));
        loads.into_iter().map(|(name, load)| (name, join(load))).collect()
    });
    Programs::each(|name| loaded.remove(name).unwrap_or_else(|| load_one(name, None)))
}

fn load_one(name: &'static str, program: Option<&mut Program>) -> Result<Loaded, LoadError> {
    let load = || {
        let program: &mut SchedClassifier = program.ok_or(ProgramError::UnexpectedProgramType)?.try_into()?;
        program.load()?;
        Loaded::of(name, program)
    };
    load().map_err(|source| LoadError::Program { name, source })
}
