//! The eBPF programs of the agent, a handful: read from the kernel when they are scraped.

use std::fmt;

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric},
    metrics::{MetricType, counter::ConstCounter, gauge::ConstGauge},
};

use super::source::Source;

/// The programs. Clones share them.
pub type ProgramMetrics = Source<ProgramInfo>;

/// What the kernel tells of a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProgramInfo {
    pub name: &'static str,
    pub id: u32,
    /// The kernel's digest of the instructions, as `bpftool prog` prints it.
    pub tag: String,
    /// Those that the verifier has followed.
    pub instructions: u32,
    /// Bytes.
    pub memory: u64,
    /// Zero unless the kernel counts (`kernel.bpf_stats_enabled`).
    pub runs: u64,
    pub run_ns: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct InfoLabels {
    program: &'static str,
    id: u32,
    tag: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    program: &'static str,
}

// === impl ProgramMetrics ===

impl Collector for ProgramMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Some(programs) = self.read() else { return Ok(()) };
        let help = "The eBPF programs; the value is 1";
        let mut metric = encoder.encode_descriptor("program_loaded", help, None, MetricType::Gauge)?;
        for ProgramInfo { name: program, id, tag, .. } in &programs {
            let labels = InfoLabels { program, id: *id, tag: tag.clone() };
            ConstGauge::new(1_u64).encode(metric.encode_family(&labels)?)?;
        }
        for (name, help, value) in GAUGES {
            let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for it in &programs {
                ConstGauge::new(value(it)).encode(metric.encode_family(&Labels { program: it.name })?)?;
            }
        }
        let counted = || programs.iter().filter(|it| it.runs > 0);
        let help = "Runs of an eBPF program, while kernel.bpf_stats_enabled is 1";
        let mut metric = encoder.encode_descriptor("program_runs", help, None, MetricType::Counter)?;
        for it in counted() {
            ConstCounter::new(it.runs).encode(metric.encode_family(&Labels { program: it.name })?)?;
        }
        let help = "Time in an eBPF program on all CPUs, while kernel.bpf_stats_enabled is 1";
        let mut metric = encoder.encode_descriptor("program_seconds", help, None, MetricType::Counter)?;
        for it in counted() {
            let seconds = std::time::Duration::from_nanos(it.run_ns).as_secs_f64();
            ConstCounter::new(seconds).encode(metric.encode_family(&Labels { program: it.name })?)?;
        }
        Ok(())
    }
}

type Value = fn(&ProgramInfo) -> u64;
const GAUGES: [(&str, &str, Value); 2] = [
    ("program_instructions", "Instructions of an eBPF program that the verifier has followed", |it| {
        it.instructions.into()
    }),
    ("program_memory_bytes", "Memory of an eBPF program in the kernel", |it| it.memory),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Metrics;

    #[test]
    fn programs_have_their_id_and_size_and_runs_only_while_the_kernel_counts() {
        let metrics = Metrics::default();
        assert!(!metrics.encode().unwrap().contains("ferrule_program"), "nothing to read from yet");
        metrics.programs.read_from(|| {
            let (tag, instructions, memory) = ("0123456789abcdef".to_owned(), 900, 8192);
            let of = |name, runs| ProgramInfo {
                name,
                id: 7,
                tag: tag.clone(),
                instructions,
                memory,
                runs,
                run_ns: 1_500_000_000,
            };
            vec![of("from_pod", 3), of("to_pod", 0)]
        });
        let text = metrics.encode().unwrap();
        for line in [
            "ferrule_program_loaded{program=\"from_pod\",id=\"7\",tag=\"0123456789abcdef\"} 1",
            "ferrule_program_instructions{program=\"to_pod\"} 900",
            "ferrule_program_memory_bytes{program=\"to_pod\"} 8192",
            "ferrule_program_runs_total{program=\"from_pod\"} 3",
            "ferrule_program_seconds_total{program=\"from_pod\"} 1.5",
        ] {
            assert!(text.lines().any(|it| it == line), "{line} in {text}");
        }
        assert!(!text.contains("ferrule_program_runs_total{program=\"to_pod\"}"), "{text}");
    }
}
