//! All benchmarks, one after another, and one report of them.

use std::{collections::BTreeMap, fs, path::PathBuf, time::Instant};

use anyhow::{Context as _, ensure};
use clap::Parser;
use serde_json::{Value, json};

use crate::{One, machine::Machine, results::Results};

/// Where the report goes, and how long it takes.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Options {
    /// Directory of report.md, report.json, dataplane.svg and policy.svg.
    #[arg(long, default_value = "target/bench")]
    output: PathBuf,
    /// Few and short measurements, to check that everything runs: the figures mean nothing.
    #[arg(long)]
    quick: bool,
    /// Only these benchmarks, separated by commas.
    #[arg(long, value_delimiter = ',', value_parser = PARTS.map(|(name, _)| name))]
    only: Vec<String>,
}

/// One benchmark, as `bench` parses its command line.
#[derive(Debug, Parser)]
struct Line {
    #[command(subcommand)]
    one: One,
}

/// A benchmark that ran, and its results or its failure.
struct Part {
    name: &'static str,
    results: anyhow::Result<Box<dyn Results>>,
}

/// Names, and the options of a quick run.
const PARTS: [(&str, &str); 6] = [
    ("add", "--iterations 2 --parallel 2 --burst 4 --workers 2 --rounds 1 --full 0"),
    ("dataplane", "--rounds 1 --milliseconds 50 --pods 0"),
    ("nodes", "--rounds 1 --milliseconds 50 --others 20 --joins 2 --lists 1"),
    (
        "policy",
        "--rounds 1 --milliseconds 50 --rules 200 --events 2 --large 1 --pods 60 --namespaces 6 --policies 8 \
         --local 4",
    ),
    ("watch", "--events 100 --pods 5 --many 0 --waits 2 --lists 1 --idle 1"),
    ("start", "--pods 3 --rounds 2"),
];

/// Runs the benchmarks and writes the report, after each one that of all so far.
///
/// # Errors
/// If a benchmark failed, after the report of the others is written.
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let Options { output, quick, only } = options;
    fs::create_dir_all(output).with_context(|| format!("cannot create {}", output.display()))?;
    let machine = Machine::this();
    let mut parts = Vec::new();
    let chosen: Vec<_> =
        PARTS.into_iter().filter(|(name, _)| only.is_empty() || only.iter().any(|it| it == name)).collect();
    for (number, (name, small)) in (1..).zip(&chosen) {
        eprintln!("==> bench {name} ({number} of {})", chosen.len());
        let start = Instant::now();
        let results = line(name, if *quick { small } else { "" })?.one.run();
        let outcome = if results.is_ok() { "done" } else { "failed" };
        eprintln!("==> bench {name}: {outcome} after {:.0} s", start.elapsed().as_secs_f64());
        parts.push(Part { name, results });
        for (name, text) in files(&machine, &parts, *quick) {
            let path = output.join(name);
            fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        }
    }
    files(&machine, &parts, *quick).keys().for_each(|name| println!("{}", output.join(name).display()));
    let failed: Vec<_> = parts.iter().filter(|it| it.results.is_err()).map(|it| it.name).collect();
    ensure!(failed.is_empty(), "failed: {}; the report has the reasons", failed.join(", "));
    Ok(())
}

/// The names of files, and their contents.
fn files(machine: &Machine, parts: &[Part], quick: bool) -> BTreeMap<String, String> {
    let mut files = BTreeMap::from([
        ("report.md".to_owned(), document(machine, parts, quick)),
        ("report.json".to_owned(), format!("{:#}\n", json(machine, parts, quick))),
    ]);
    for Part { name, results } in parts {
        files.extend(results.as_ref().ok().and_then(|it| Some((format!("{name}.svg"), it.to_svg()?))));
    }
    files
}

fn line(name: &str, options: &str) -> anyhow::Result<Line> {
    Ok(Line::try_parse_from(["bench", name].into_iter().chain(options.split_whitespace()))?)
}

fn document(machine: &Machine, parts: &[Part], quick: bool) -> String {
    let mut text = format!("# Benchmarks\n\n{}", machine.to_markdown());
    if quick {
        text += "\nA quick run: the figures mean nothing.\n";
    }
    for Part { name, results } in parts {
        let body = match results {
            Ok(results) => results.to_markdown(),
            Err(error) => format!("Failed:\n\n```\n{error:#}\n```"),
        };
        text += &format!("\n## `cargo xtask bench {name}`\n\n{}\n", body.trim_end());
    }
    text
}

fn json(machine: &Machine, parts: &[Part], quick: bool) -> Value {
    let part = |Part { name, results }: &Part| {
        let value = match results {
            Ok(results) => results.to_json(),
            Err(error) => json!({ "error": format!("{error:#}") }),
        };
        ((*name).to_owned(), value)
    };
    let parts: serde_json::Map<_, _> = parts.iter().map(part).collect();
    json!({ "machine": machine.to_json(), "quick": quick, "benchmarks": parts })
}

#[cfg(test)]
mod tests {
    use std::fmt;

    use super::*;

    struct Two;

    impl fmt::Display for Two {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("two")
        }
    }

    impl Results for Two {
        fn to_json(&self) -> Value {
            2.into()
        }

        fn to_markdown(&self) -> String {
            "| two |\n\n".to_owned()
        }
    }

    fn parts() -> [Part; 2] {
        let failed = Err(anyhow::anyhow!("no bridge").context("cannot measure"));
        [Part { name: "add", results: Ok(Box::new(Two)) }, Part { name: "start", results: failed }]
    }

    #[test]
    fn a_quick_run_knows_the_options_of_its_parts() {
        for (name, small) in PARTS {
            line(name, small).unwrap();
            line(name, "").unwrap();
        }
    }

    #[test]
    fn a_report_has_the_other_parts_when_one_fails() {
        let text = document(&Machine::this(), &parts(), false);
        let end = "## `cargo xtask bench add`\n\n| two |\n\n\
                   ## `cargo xtask bench start`\n\nFailed:\n\n```\ncannot measure: no bridge\n```\n";
        assert!(text.ends_with(end), "{text}");
        assert!(!text.contains("mean nothing"), "{text}");
        let json = json(&Machine::this(), &parts(), true);
        assert_eq!(json.pointer("/benchmarks/add"), Some(&2.into()));
        assert_eq!(json.pointer("/benchmarks/start/error"), Some(&"cannot measure: no bridge".into()));
    }

    #[test]
    fn a_quick_report_says_that_its_figures_mean_nothing() {
        assert!(document(&Machine::this(), &[], true).contains("mean nothing"));
    }
}
