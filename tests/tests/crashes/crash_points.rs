//! Control of the agent's crash points: the counterpart of `agent/src/crash.rs`.

use std::{collections::BTreeMap, fmt, fs, path::Path, str::FromStr};

use anyhow::{Context as _, ensure};

/// The build with crash points, below `target/dist`.
pub const AGENT: &str = "test/ferrule-agent";
/// Environment variable with the control directory.
pub const VARIABLE: &str = "FERRULE_CRASH_POINTS";
/// Environment variable that overrides the maps' ABI version.
pub const ABI: &str = "FERRULE_ABI_VERSION";
pub const DIRECTORY: &str = "/run/crash";

/// A step and the occurrence at which the agent crashes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    pub step: String,
    times: usize,
}

/// Resets the list of passed steps and arms a crash at a place, or none.
///
/// # Errors
/// If the files cannot be written.
pub fn arm(place: Option<&Place>) -> anyhow::Result<()> {
    fs::create_dir_all(DIRECTORY)?;
    write("at", &place.map(Place::to_string).unwrap_or_default())?;
    write("passed", "")
}

/// The steps passed since the last [`arm`], in order.
///
/// # Errors
/// If the agent has written no list.
pub fn passed() -> anyhow::Result<Vec<Place>> {
    let mut times = BTreeMap::<String, usize>::new();
    let place = |step: &str| {
        let times = times.entry(step.to_owned()).or_default();
        *times += 1;
        Place { step: step.to_owned(), times: *times }
    };
    Ok(read("passed")?.lines().map(place).collect())
}

/// All crash points of the agent.
///
/// # Errors
/// If the agent was built without crash points.
pub fn steps() -> anyhow::Result<Vec<String>> {
    let steps: Vec<String> = read("steps")?.lines().map(str::to_owned).collect();
    ensure!(!steps.is_empty(), "the agent has no crash points");
    Ok(steps)
}

fn read(name: &str) -> anyhow::Result<String> {
    fs::read_to_string(Path::new(DIRECTORY).join(name)).with_context(|| {
        format!(
            "no list `{name}` of {AGENT}; build it with the feature crash-points through `cargo xtask test`"
        )
    })
}

fn write(name: &str, text: &str) -> anyhow::Result<()> {
    fs::write(Path::new(DIRECTORY).join(name), text).with_context(|| format!("cannot write `{name}`"))
}

// === impl Place ===

impl Place {
    /// Whether the agent passes the step there for the first time.
    pub fn is_first(&self) -> bool {
        self.times == 1
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.step, self.times)
    }
}

impl FromStr for Place {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        let (step, times) = text.split_once(':').unwrap_or((text, "1"));
        Ok(Self { step: step.to_owned(), times: times.parse()? })
    }
}
