//! What a test tells the agent, and what that tells the test: the other side of `agent/src/crash.rs`.

use std::{collections::BTreeMap, fmt, fs, path::Path, str::FromStr};

use anyhow::{Context as _, ensure};

/// Below `target/dist`: built with crash points.
pub const AGENT: &str = "test/ferrule-agent";
/// Names the directory of the orders to it.
pub const VARIABLE: &str = "FERRULE_CRASH_POINTS";
/// Tells it which version of the maps it is to be of.
pub const ABI: &str = "FERRULE_ABI_VERSION";
pub const DIRECTORY: &str = "/run/crash";

/// Where the agent is to die: a step, and the how manieth time that it is passed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    pub step: String,
    times: usize,
}

/// Lets the agent start over with its list of passed steps, and die at a place or nowhere.
///
/// # Errors
/// If the files cannot be written.
pub fn give(place: Option<&Place>) -> anyhow::Result<()> {
    fs::create_dir_all(DIRECTORY)?;
    write("at", &place.map(Place::to_string).unwrap_or_default())?;
    write("passed", "")
}

/// The steps that were passed since, in their order.
///
/// # Errors
/// If there is no list.
pub fn passed() -> anyhow::Result<Vec<Place>> {
    let mut times = BTreeMap::<String, usize>::new();
    let place = |step: &str| {
        let times = times.entry(step.to_owned()).or_default();
        *times += 1;
        Place { step: step.to_owned(), times: *times }
    };
    Ok(read("passed")?.lines().map(place).collect())
}

/// All steps that there are.
///
/// # Errors
/// If the agent has told none: it is not the one with crash points.
pub fn steps() -> anyhow::Result<Vec<String>> {
    let steps: Vec<String> = read("steps")?.lines().map(str::to_owned).collect();
    ensure!(!steps.is_empty(), "the agent has no steps");
    Ok(steps)
}

fn read(name: &str) -> anyhow::Result<String> {
    fs::read_to_string(Path::new(DIRECTORY).join(name)).with_context(|| {
        format!(
            "no list `{name}` of {AGENT}: was it built with the feature crash-points, by `cargo xtask test`?"
        )
    })
}

fn write(name: &str, text: &str) -> anyhow::Result<()> {
    fs::write(Path::new(DIRECTORY).join(name), text)
        .with_context(|| format!("cannot write the order `{name}`"))
}

// === impl Place ===

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
