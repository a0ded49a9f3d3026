//! What the programs need from the kernel, probed before anything is changed. The table is in
//! `docs/dataplane.md`; tests compare the table with this list and with the object.

use std::{fmt, fs};

use aya::{
    maps::MapType,
    programs::{ProgramError, ProgramType},
    sys::{BpfHelper, is_helper_supported, is_map_supported},
};

/// A feature of the kernel, and the first release that has the feature.
pub(super) struct Feature {
    name: &'static str,
    since: &'static str,
    kind: Kind,
    /// Whether the programs do without, with a check less.
    is_optional: bool,
}

enum Kind {
    Helper(BpfHelper),
    Map(MapType),
}

/// The running kernel, which has every feature that is needed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kernel {
    release: String,
    lets_programs_read: bool,
    /// Such a kernel may let a program be interrupted by another one on the same CPU.
    is_realtime: bool,
}

/// The kernel cannot run the programs.
#[derive(Debug, thiserror::Error)]
pub enum KernelError {
    #[error(
        "the kernel {release} lacks what the eBPF programs need: {missing}; nothing was changed; run Linux 5.10 or later"
    )]
    TooOld { release: String, missing: String },
    #[error(
        "cannot probe the kernel for {feature}: the agent needs the capabilities BPF and NET_ADMIN, or SYS_ADMIN"
    )]
    Probe {
        feature: &'static str,
        #[source]
        source: Box<ProgramError>,
    },
}

const fn helper(name: &'static str, since: &'static str, helper: BpfHelper) -> Feature {
    Feature { name, since, kind: Kind::Helper(helper), is_optional: false }
}

const fn map(name: &'static str, since: &'static str, map: MapType) -> Feature {
    Feature { name, since, kind: Kind::Map(map), is_optional: false }
}

/// Not in the lockdown mode "confidentiality" (kernel_lockdown(7)).
const READ_KERNEL: Feature = Feature {
    is_optional: true,
    ..helper("bpf_probe_read_kernel", "5.8", BpfHelper::BPF_FUNC_probe_read_kernel)
};

const FEATURES: [Feature; 29] = [
    helper("bpf_redirect_peer", "5.10", BpfHelper::BPF_FUNC_redirect_peer),
    helper("bpf_redirect_neigh", "5.10", BpfHelper::BPF_FUNC_redirect_neigh),
    READ_KERNEL,
    helper("bpf_ktime_get_boot_ns", "5.8", BpfHelper::BPF_FUNC_ktime_get_boot_ns),
    helper("bpf_ringbuf_reserve", "5.8", BpfHelper::BPF_FUNC_ringbuf_reserve),
    helper("bpf_ringbuf_submit", "5.8", BpfHelper::BPF_FUNC_ringbuf_submit),
    helper("bpf_ringbuf_discard", "5.8", BpfHelper::BPF_FUNC_ringbuf_discard),
    map("BPF_MAP_TYPE_RINGBUF", "5.8", MapType::RingBuf),
    helper("bpf_jiffies64", "5.6", BpfHelper::BPF_FUNC_jiffies64),
    helper("bpf_fib_lookup", "4.18", BpfHelper::BPF_FUNC_fib_lookup),
    helper("bpf_skb_adjust_room", "4.13", BpfHelper::BPF_FUNC_skb_adjust_room),
    map("BPF_MAP_TYPE_LPM_TRIE", "4.11", MapType::LpmTrie),
    map("BPF_MAP_TYPE_LRU_HASH", "4.10", MapType::LruHash),
    map("BPF_MAP_TYPE_LRU_PERCPU_HASH", "4.10", MapType::LruPerCpuHash),
    helper("bpf_skb_pull_data", "4.9", BpfHelper::BPF_FUNC_skb_pull_data),
    helper("bpf_csum_update", "4.9", BpfHelper::BPF_FUNC_csum_update),
    helper("bpf_skb_change_type", "4.8", BpfHelper::BPF_FUNC_skb_change_type),
    helper("bpf_get_hash_recalc", "4.8", BpfHelper::BPF_FUNC_get_hash_recalc),
    map("BPF_MAP_TYPE_PERCPU_HASH", "4.6", MapType::PerCpuHash),
    map("BPF_MAP_TYPE_PERCPU_ARRAY", "4.6", MapType::PerCpuArray),
    helper("bpf_skb_load_bytes", "4.5", BpfHelper::BPF_FUNC_skb_load_bytes),
    helper("bpf_redirect", "4.4", BpfHelper::BPF_FUNC_redirect),
    helper("bpf_skb_set_tunnel_key", "4.3", BpfHelper::BPF_FUNC_skb_set_tunnel_key),
    helper("bpf_skb_get_tunnel_key", "4.3", BpfHelper::BPF_FUNC_skb_get_tunnel_key),
    helper("bpf_map_lookup_elem", "3.19", BpfHelper::BPF_FUNC_map_lookup_elem),
    helper("bpf_map_update_elem", "3.19", BpfHelper::BPF_FUNC_map_update_elem),
    helper("bpf_map_delete_elem", "3.19", BpfHelper::BPF_FUNC_map_delete_elem),
    map("BPF_MAP_TYPE_HASH", "3.19", MapType::Hash),
    map("BPF_MAP_TYPE_ARRAY", "3.19", MapType::Array),
];

/// For all such kernels: whether one needs the option, and has it, is not probed.
const REALTIME: &str = "real-time kernels (PREEMPT_RT) are not supported: since Linux 6.18, without \
                        CONFIG_PREEMPT_RT_NEEDS_BH_LOCK, packets on one CPU may be judged by each other's data";

// === impl Kernel ===

impl Kernel {
    /// Probes the running kernel for every feature: about 2 ms.
    ///
    /// # Errors
    /// If the kernel lacks a feature, or refuses the probe.
    pub(super) fn probe() -> Result<Self, KernelError> {
        let kernel = Self::with(release(), Feature::is_there)?;
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        let is_realtime = is_realtime(&read("/proc/sys/kernel/version"), &read("/sys/kernel/realtime"));
        Ok(Self { is_realtime, ..kernel })
    }

    fn with(
        release: String,
        is_there: impl Fn(&Feature) -> Result<bool, ProgramError>,
    ) -> Result<Self, KernelError> {
        let (mut missing, mut lets_programs_read) = (Vec::new(), true);
        for feature in &FEATURES {
            let probe = |source| KernelError::Probe { feature: feature.name, source: Box::new(source) };
            match is_there(feature).map_err(probe)? {
                true => {}
                false if feature.is_optional => lets_programs_read = false,
                false => missing.push(format!("{} (Linux {})", feature.name, feature.since)),
            }
        }
        if missing.is_empty() {
            return Ok(Self { release, lets_programs_read, is_realtime: false });
        }
        Err(KernelError::TooOld { release, missing: missing.join(", ") })
    }

    /// What is wrong with a kernel that has all features, for the log and the status of the dataplane.
    pub fn warning(&self) -> Option<&'static str> {
        self.is_realtime.then_some(REALTIME)
    }

    /// Whether programs may read the kernel's memory.
    pub(super) fn lets_programs_read(&self) -> bool {
        self.lets_programs_read
    }
}

impl fmt::Display for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (release, count) = (&self.release, FEATURES.len());
        if self.lets_programs_read {
            return write!(f, "Linux {release} has all {count} eBPF features that the programs need");
        }
        write!(
            f,
            "Linux {release} has all eBPF features that the programs need, but {}: where checksums of pods' packets \
             are written is not checked",
            READ_KERNEL.name
        )
    }
}

/// As `uname -r` prints it.
fn release() -> String {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease");
    release.map_or_else(|_| "of unknown release".to_owned(), |text| text.trim().to_owned())
}

/// Whether a kernel is one of PREEMPT_RT, by what `uname -v` prints, and by a file that only the patches of
/// distributions add.
fn is_realtime(version: &str, file: &str) -> bool {
    // Before Linux 5.4, with a space.
    version.contains("PREEMPT_RT") || version.contains("PREEMPT RT") || file.trim() == "1"
}

// === impl Feature ===

impl Feature {
    fn is_there(&self) -> Result<bool, ProgramError> {
        match self.kind {
            Kind::Helper(helper) => is_helper_supported(ProgramType::SchedClassifier, helper),
            Kind::Map(map) => Ok(is_map_supported(map)?),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_kernel_is_refused_with_what_it_lacks_and_since_when_others_have_it() {
        let old = |feature: &Feature| Ok(!matches!(feature.since, "5.8" | "5.10"));
        let error = Kernel::with("5.4.0-generic".to_owned(), old).unwrap_err().to_string();
        for expected in [
            "kernel 5.4.0-generic",
            "bpf_redirect_peer (Linux 5.10), bpf_redirect_neigh (Linux 5.10), bpf_ktime_get_boot_ns (Linux 5.8)",
            "BPF_MAP_TYPE_RINGBUF (Linux 5.8); nothing was changed",
        ] {
            assert!(error.contains(expected), "{error}");
        }
        assert!(!error.contains("jiffies") && !error.contains("probe_read"), "{error}");
    }

    #[test]
    fn a_kernel_that_hides_its_memory_is_accepted_and_says_what_is_not_checked() {
        let locked = |feature: &Feature| Ok(feature.name != READ_KERNEL.name);
        let kernel = Kernel::with("6.18.5".to_owned(), locked).unwrap();
        assert!(!kernel.lets_programs_read());
        assert!(kernel.to_string().contains("but bpf_probe_read_kernel: where checksums"), "{kernel}");
    }

    #[test]
    fn a_real_time_kernel_is_accepted_with_a_warning() {
        for (version, file, expected) in [
            ("#1 SMP PREEMPT_RT Debian 6.12.57-1 (2025-11-05)", "", true),
            ("#1 SMP PREEMPT RT Thu Nov 27 12:00:00 UTC 2025", "", true),
            ("#1 SMP Thu Nov 27 12:00:00 UTC 2025", "1\n", true),
            ("#1 SMP PREEMPT_DYNAMIC Debian 6.12.57-1 (2025-11-05)", "", false),
            ("#1 SMP PREEMPT Thu Nov 27 12:00:00 UTC 2025", "0\n", false),
            ("", "", false),
        ] {
            assert_eq!(is_realtime(version, file), expected, "{version:?}, {file:?}");
        }
        let kernel = Kernel::with("6.18.5".to_owned(), |_| Ok(true)).unwrap();
        assert_eq!(kernel.warning(), None);
        let warning = Kernel { is_realtime: true, ..kernel }.warning().unwrap();
        assert!(warning.contains("real-time kernels (PREEMPT_RT) are not supported"), "{warning}");
    }

    #[test]
    fn a_refused_probe_names_feature_and_capabilities() {
        let refused = |_: &Feature| Err(ProgramError::UnexpectedProgramType);
        let error = Kernel::with(String::new(), refused).unwrap_err().to_string();
        assert!(error.contains("bpf_redirect_peer") && error.contains("NET_ADMIN"), "{error}");
    }

    #[test]
    fn a_kernel_with_everything_is_named() {
        let kernel = Kernel::with("6.18.5".to_owned(), |_| Ok(true)).unwrap();
        assert_eq!(kernel.to_string(), "Linux 6.18.5 has all 29 eBPF features that the programs need");
    }

    #[test]
    fn the_documents_list_the_features_that_are_probed() {
        let probed = FEATURES.map(|feature| format!("| `{}` | {} |", feature.name, feature.since));
        let document = include_str!("../../../docs/dataplane.md");
        let (_, table) = document.split_once("## Kernel features").unwrap();
        let (table, _) = table.split_once("\n## ").unwrap();
        let listed: Vec<_> = table.lines().filter(|line| line.starts_with("| `")).collect();
        assert_eq!(listed.len(), probed.len());
        for (listed, probed) in listed.iter().zip(&probed) {
            assert!(listed.starts_with(probed.as_str()), "{listed} is not {probed}");
        }
    }
}
