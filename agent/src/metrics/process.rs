//! The agent's process, under the names of Prometheus' client libraries.

use std::{fmt, fs};

use nix::{
    sys::resource::{Resource, UsageWho, getrlimit, getrusage},
    unistd::{SysconfVar, sysconf},
};
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{MetricType, counter::ConstCounter, gauge::ConstGauge},
};

use super::values::{count, now};

#[derive(Debug)]
pub(super) struct Process {
    /// Seconds since the Unix epoch.
    started: f64,
}

// === impl Process ===

impl Default for Process {
    fn default() -> Self {
        Self { started: now() }
    }
}

impl Collector for Process {
    /// A number that the kernel does not tell is left out.
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut gauge = |name, help, value: f64| {
            let metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            ConstGauge::new(value).encode(metric)
        };
        gauge("process_start_time_seconds", "Start of the process, in Unix time.", self.started)?;
        if let Some([size, resident]) = memory() {
            gauge("process_virtual_memory_bytes", "Virtual memory.", size)?;
            gauge("process_resident_memory_bytes", "Resident memory.", resident)?;
        }
        if let Ok(open) = fs::read_dir("/proc/self/fd") {
            gauge("process_open_fds", "Open file descriptors.", precise(open.count()))?;
        }
        if let Ok((soft, _)) = getrlimit(Resource::RLIMIT_NOFILE) {
            gauge("process_max_fds", "The most file descriptors.", precise(soft as usize))?;
        }
        let Ok(usage) = getrusage(UsageWho::RUSAGE_SELF) else { return Ok(()) };
        let spent = |time: nix::sys::time::TimeVal| time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6;
        let help = "Time on processors, in user and kernel mode.";
        let metric = encoder.encode_descriptor("process_cpu_seconds", help, None, MetricType::Counter)?;
        ConstCounter::new(spent(usage.user_time()) + spent(usage.system_time())).encode(metric)
    }
}

/// Bytes, virtual and resident; see `/proc/PID/statm` in proc(5).
fn memory() -> Option<[f64; 2]> {
    let text = fs::read_to_string("/proc/self/statm").ok()?;
    let page = sysconf(SysconfVar::PAGE_SIZE).ok()??;
    let mut pages = text.split_whitespace().map(|it| it.parse::<f64>().ok());
    Some([pages.next()?? * page as f64, pages.next()?? * page as f64])
}

fn precise(number: usize) -> f64 {
    count(number) as f64
}

#[cfg(test)]
mod tests {
    use crate::metrics::Metrics;

    #[test]
    fn the_process_has_the_usual_names_and_plausible_numbers() {
        let text = Metrics::default().encode().unwrap();
        let value = |name: &str| -> f64 {
            let line = text
                .lines()
                .find(|it| it.starts_with(&format!("{name} ")))
                .unwrap_or_else(|| panic!("{name}: {text}"));
            line.rsplit(' ').next().unwrap().parse().unwrap()
        };
        assert!(value("process_resident_memory_bytes") > 1e6);
        assert!(value("process_virtual_memory_bytes") >= value("process_resident_memory_bytes"));
        assert!((3.0..value("process_max_fds")).contains(&value("process_open_fds")));
        assert!(value("process_cpu_seconds_total") >= 0.0);
        assert!(value("process_start_time_seconds") > 1.7e9);
        assert!(
            text.contains(concat!("ferrule_build_info{version=\"", env!("CARGO_PKG_VERSION"), "\"} 1")),
            "{text}"
        );
    }
}
