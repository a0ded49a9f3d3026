//! The machine and the code that figures belong to.

use std::{fs, thread};

use ferrule_tests::sys;
use serde_json::{Value, json};

use crate::markdown;

#[derive(Debug)]
pub(crate) struct Machine {
    cpu: String,
    cores: usize,
    kernel: String,
    /// In UTC.
    date: String,
    /// With `-dirty` if files differ from the commit.
    commit: String,
}

const UNKNOWN: &str = "unknown";

// === impl Machine ===

impl Machine {
    /// This machine, now. A report without one of these is still a report.
    pub(crate) fn this() -> Self {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        let cpu = cpu_model(&read("/proc/cpuinfo")).unwrap_or(UNKNOWN).to_owned();
        let commit = sys::run("git describe --always --dirty --abbrev=12 --exclude=*");
        Self {
            cpu,
            cores: thread::available_parallelism().map_or(0, usize::from),
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            date: jiff::Timestamp::now().strftime("%Y-%m-%d %H:%M UTC").to_string(),
            commit: commit.map_or_else(|_| UNKNOWN.to_owned(), |text| text.trim().to_owned()),
        }
    }

    pub(crate) fn to_json(&self) -> Value {
        let Self { cpu, cores, kernel, date, commit } = self;
        json!({ "cpu": cpu, "cores": cores, "kernel": kernel, "date": date, "commit": commit })
    }

    pub(crate) fn to_markdown(&self) -> String {
        let Self { cpu, cores, kernel, date, commit } = self;
        let cores = cores.to_string();
        let row = [cpu, &cores, kernel, date, commit].map(String::clone).into();
        markdown::table(&["CPU", "cores", "Linux", "date", "commit"], [row])
    }
}

/// Of the first core; `None` if the architecture names none.
fn cpu_model(cpuinfo: &str) -> Option<&str> {
    cpuinfo.lines().find_map(|line| Some(line.strip_prefix("model name")?.split_once(':')?.1.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_model_is_that_of_the_first_core() {
        let text = "processor\t: 0\nmodel\t\t: 85\nmodel name\t: Some CPU: 2 GHz\n\nmodel name\t: Other\n";
        assert_eq!(cpu_model(text), Some("Some CPU: 2 GHz"));
        assert_eq!(cpu_model("processor: 0\nCPU part: 0xd0c\n"), None);
    }
}
