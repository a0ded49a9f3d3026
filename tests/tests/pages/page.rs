//! One block of a page: its commands are run, and its output is compared.
//!
//! A comment `<!-- shown: NAME -->` precedes the block. Lines that begin with `# ` are commands, all others
//! output. FERRULE_BLESS=1 writes what the commands print into the page.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
    sync::{Mutex, PoisonError},
};

use anyhow::{Context as _, bail, ensure};
use ferrule_tests::dist;
use tempfile::TempDir;

/// A page of `docs/`, and the folder in which its commands run.
#[derive(Debug)]
pub struct Page {
    path: PathBuf,
    folder: TempDir,
}

/// Separates the output of commands; no tool prints this character.
const END: char = '\u{1}';

const STILL_RUNS: &str = "still runs";

/// Blocks are blessed one at a time.
static PAGES: Mutex<()> = Mutex::new(());

/// A command and what it prints.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Step {
    command: String,
    output: String,
}

// === impl Page ===

impl Page {
    /// # Errors
    /// If there is no room for its folder.
    pub fn open(name: &str) -> anyhow::Result<Self> {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs").join(name);
        Ok(Self { path, folder: TempDir::new()? })
    }

    /// Where the commands run.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Runs the commands of a block in one shell, and compares what each prints with the page.
    ///
    /// # Errors
    /// If the page has no such block, or the commands print something else.
    pub fn compare(&self, name: &str) -> anyhow::Result<()> {
        self.compare_by(name, normal)
    }

    /// The same for a block of measurements: numbers are left out, and the records of packets at its end.
    ///
    /// # Errors
    /// As for [`Self::compare`].
    pub fn compare_form(&self, name: &str) -> anyhow::Result<()> {
        self.compare_by(name, form)
    }

    /// Runs the commands of a block, each of which must succeed, whatever it prints.
    ///
    /// # Errors
    /// If the page has no such block, or a command fails.
    pub fn succeed(&self, name: &str) -> anyhow::Result<()> {
        let shown = steps(find(&self.read()?, name)?.1);
        ensure!(!shown.is_empty(), "{}: the block {name} has no command", self.path.display());
        self.run("set -e\n", &shown).with_context(|| format!("the block {name}")).map(drop)
    }

    /// Runs the commands of a block, none of which ends by itself within two seconds.
    ///
    /// # Errors
    /// If the page has no such block, or a command ends.
    pub fn follow(&self, name: &str) -> anyhow::Result<()> {
        let shown = steps(find(&self.read()?, name)?.1);
        ensure!(!shown.is_empty(), "{}: the block {name} has no command", self.path.display());
        for step in shown {
            // The exit code of `timeout` for a command that it has ended.
            let command = format!("timeout 2 {}\n[ $? = 124 ] && echo {STILL_RUNS}", step.command);
            let printed = self.run("", &[Step { command, ..step.clone() }])?;
            let ended = printed.iter().find(|it| !it.output.ends_with(&format!("{STILL_RUNS}\n")));
            ensure!(ended.is_none(), "the block {name}: {} has ended: {ended:?}", step.command);
        }
        Ok(())
    }

    fn compare_by(&self, name: &str, normal: impl Fn(&Step) -> Vec<Vec<String>>) -> anyhow::Result<()> {
        let page = self.path.display();
        let shown = steps(find(&self.read()?, name)?.1);
        ensure!(!shown.is_empty(), "{page}: the block {name} has no command");
        let printed = self.run("", &shown)?;
        let is_same = shown.iter().map(&normal).eq(printed.iter().map(&normal));
        if is_same {
            return Ok(());
        }
        if env::var_os("FERRULE_BLESS").is_some() {
            return self.bless(name, &printed);
        }
        let differs = |(shown, printed): &(&Step, &Step)| normal(shown) != normal(printed);
        let (shown, printed) = shown.iter().zip(&printed).find(differs).context("no step differs")?;
        bail!(
            "{page}: the block {name} is stale, and FERRULE_BLESS=1 renews it\n# {}\nprints:\n{}\nexpected:\n{}",
            shown.command,
            printed.output,
            shown.output
        )
    }

    fn bless(&self, name: &str, printed: &[Step]) -> anyhow::Result<()> {
        let _guard = PAGES.lock().unwrap_or_else(PoisonError::into_inner);
        let text = self.read()?;
        let (at, block) = find(&text, name)?;
        let (before, rest) = text.split_at(at);
        let rest = rest.get(block.len()..).context("the block ends beyond the page")?;
        let blessed: String = printed.iter().map(Step::show).collect();
        Ok(fs::write(&self.path, format!("{before}{blessed}{rest}"))?)
    }

    fn run(&self, before: &str, steps: &[Step]) -> anyhow::Result<Vec<Step>> {
        let script = steps.iter().map(|step| format!("{{ {}\n}} 2>&1\nprintf '\\001'\n", step.command));
        let script: String = std::iter::once(before.to_owned()).chain(script).collect();
        let folder = dist::binary("ferrule")?.parent().map(PathBuf::from).unwrap_or_default();
        let system = ["/usr/sbin", "/usr/bin", "/sbin", "/bin"].map(PathBuf::from);
        let path = env::join_paths(std::iter::once(folder).chain(system))?;
        let mut shell = Command::new("sh");
        let output = shell.args(["-c", &script]).current_dir(self.folder()).env("PATH", path).output()?;
        let text = String::from_utf8(output.stdout)?;
        let outputs: Vec<&str> = text.split_terminator(END).collect();
        ensure!(outputs.len() == steps.len(), "the shell stopped at {text}");
        let printed = steps.iter().zip(outputs);
        let with = |(step, output): (&Step, &str)| Step { output: output.to_owned(), ..step.clone() };
        Ok(printed.map(with).collect())
    }

    fn read(&self) -> anyhow::Result<String> {
        fs::read_to_string(&self.path).with_context(|| format!("cannot read {}", self.path.display()))
    }
}

/// The block's place in the text, and the block without its fences.
fn find<'a>(text: &'a str, name: &str) -> anyhow::Result<(usize, &'a str)> {
    let start = format!("<!-- shown: {name} -->\n\n```console\n");
    let at = text.find(&start).with_context(|| format!("no block {name}"))? + start.len();
    let block = text.get(at..).and_then(|rest| rest.split("```").next()).context("no block")?;
    Ok((at, block))
}

fn steps(block: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    let mut goes_on = false;
    for line in block.lines() {
        match (line.strip_prefix("# "), steps.last_mut()) {
            (_, Some(last)) if goes_on => last.command += &format!("\n{line}"),
            (Some(command), _) => steps.push(Step { command: command.to_owned(), output: String::new() }),
            (None, Some(last)) => last.output += &format!("{line}\n"),
            (None, None) => {}
        }
        goes_on = line.ends_with('\\') && (goes_on || line.starts_with("# "));
    }
    steps
}

/// Output without what differs between runs: times, names of host interfaces, ports of clients, and the width
/// of columns.
fn normal(step: &Step) -> Vec<Vec<String>> {
    let line = |line: &str| {
        let mut words: Vec<String> = line.split_whitespace().map(word).collect();
        for at in 1..words.len() {
            let is_unit =
                words.get(at).is_some_and(|it| matches!(it.trim_end_matches([',', ':', ';']), "s" | "ms"));
            if let Some(number) = words.get_mut(at - 1).filter(|it| is_unit && it.parse::<f64>().is_ok()) {
                "TIME".clone_into(number);
            }
        }
        words
    };
    step.output.lines().map(line).collect()
}

/// Output without numbers: [`normal`], and any number, also a hexadecimal one, counts as every other; so does
/// `-`, which stands for none, and a unit of time.
fn form(step: &Step) -> Vec<Vec<String>> {
    let lines = normal(step).into_iter().map(|words| words.iter().map(|it| formed(it)).collect::<Vec<_>>());
    let lines = lines.map(without_wait);
    // A line of its own above records; `last drops: none recorded` without any.
    let is_record =
        |words: &[String]| matches!(words, [last, drops, ..] if last == "last" && drops.starts_with("drops"));
    lines.take_while(|words| !is_record(words)).collect()
}

/// A phase of an ADD that some have: the ADD comes before the thread of policies has looked.
fn without_wait(mut words: Vec<String>) -> Vec<String> {
    if let Some(at) = words.iter().position(|it| it == "wait_for_policy") {
        // The name, the number and the unit.
        words.drain(at..words.len().min(at + 3));
    }
    words
}

fn formed(word: &str) -> String {
    let bare = word.trim_end_matches([',', ':', ';']);
    match bare {
        "TIME" | "-" => return word.replacen(bare, "N", 1),
        "s" | "ms" | "µs" | "ns" => return word.replacen(bare, "UNIT", 1),
        _ => {}
    }
    let parts = word.split_inclusive(|c: char| !c.is_ascii_alphanumeric()).map(|part| {
        let text = part.trim_end_matches(|c: char| !c.is_ascii_alphanumeric());
        let is_number =
            text.contains(|c: char| c.is_ascii_digit()) && text.chars().all(|c| c.is_ascii_hexdigit());
        if is_number { part.replacen(text, "N", 1) } else { part.to_owned() }
    });
    // A number has a fraction or none.
    parts.collect::<String>().replace("N.N", "N")
}

fn word(word: &str) -> String {
    let word = word.trim_matches(['(', ')']);
    let is_time = word.len() >= 20 && word.get(4..5) == Some("-") && word.get(10..11) == Some("T");
    let seconds = word.strip_suffix("ms").or_else(|| word.strip_suffix('s'));
    if is_time || seconds.is_some_and(|it| it.parse::<f64>().is_ok()) {
        return "TIME".to_owned();
    }
    // Names of host interfaces: "fr" and a hash.
    let mut masked: String = word
        .split_inclusive(|c: char| !c.is_ascii_alphanumeric())
        .map(|part| {
            let name = part.trim_end_matches(|c: char| !c.is_ascii_alphanumeric());
            if name.starts_with("fr") && name.len() >= 13 {
                part.replacen(name, "IF", 1)
            } else {
                part.to_owned()
            }
        })
        .collect();
    if let Some((address, port)) = word.rsplit_once(':')
        && port.parse::<u16>().is_ok_and(|port| port >= 32768)
    {
        masked = format!("{address}:CLIENT");
    }
    masked
}

// === impl Step ===

impl Step {
    fn show(&self) -> String {
        let end = if self.output.is_empty() || self.output.ends_with('\n') { "" } else { "\n" };
        format!("# {}\n{}{end}", self.command, self.output)
    }
}

#[test]
fn a_block_is_read_as_it_is_written() {
    let block = "# a \\\n    b\nout\n\nmore\n# c\n";
    let steps = steps(block);
    assert_eq!(steps.iter().map(Step::show).collect::<String>(), block);
    assert_eq!(steps.len(), 2);
}

#[test]
fn a_form_has_no_numbers_and_no_records_of_packets() {
    let of = |output: &str| form(&Step { command: String::new(), output: output.to_owned() });
    let one = "from_pod  77029  1.8  tag 772d8d758cac611c\n\nlast drops\n  x";
    assert_eq!(of(one), of("from_pod 7 15 tag 0a\n\n"));
    assert_eq!(of(one), of("from_pod 7 15 tag 0a\n\nlast drops: none recorded"));
    assert_eq!(of("a 1 2.5 ms, -"), of("a 30 113 µs, 7"));
    assert_ne!(of(one), of("to_pod 7 15 tag 0a\n\n"));
}

#[test]
fn only_what_differs_between_runs_is_left_out() {
    let of = |output: &str| normal(&Step { command: String::new(), output: output.to_owned() });
    let one = "2026-11-23T18:29:05.939Z  shop/web-0:40001  frvhuopshewq7:  3 s ago, 1.5ms";
    let other = "2026-01-01T00:00:00.000Z shop/web-0:50001 fr5d4a90c1e2b3: 12 s ago, 2ms";
    assert_eq!(of(one), of(other));
    for other in ["frequency 3", "shop/web-0:443", "10.244.0.2", "4 of 4 entries"] {
        assert_eq!(of(other), [other.split(' ').map(str::to_owned).collect::<Vec<_>>()], "kept as it is");
    }
}
