//! `ferrulectl support-bundle`: what a bug report needs, in one archive.

mod archive;
mod collect;
mod scrub;

use std::{
    fs::OpenOptions,
    io::{self, IsTerminal as _, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, bail};

use self::archive::Archive;
use crate::{output::Report, time};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// File to write, which must not exist; - for standard output
    /// [default: ferrule-support-SECONDS.tar.gz]
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
}

/// Parts that the agent does not deliver are named in the bundle and on standard error; they are no failures,
/// because a bundle is made of broken agents.
pub(crate) async fn run(args: &Args, socket: &Path) -> anyhow::Result<Report> {
    let now = time::now();
    let file = args.file.clone().unwrap_or_else(|| format!("ferrule-support-{now}.tar.gz").into());
    let is_stdout = file.as_os_str() == "-";
    if is_stdout && io::stdout().is_terminal() {
        bail!("a bundle is no text for a terminal: name a --file, or redirect the output");
    }
    let mut archive = Archive::new(now)?;
    let progress = |part: &str| {
        if io::stderr().is_terminal() {
            let _ = write!(io::stderr(), "\r\u{1b}[Kcollecting {part}");
        }
    };
    let notes = collect::all(&mut archive, socket, progress).await?;
    if io::stderr().is_terminal() {
        let _ = write!(io::stderr(), "\r\u{1b}[K");
    }
    let bytes = archive.finish()?;
    if is_stdout {
        io::stdout().lock().write_all(&bytes).context("cannot write the bundle")?;
        return Ok(Report { notes, ..Report::default() });
    }
    let place = || format!("cannot write the bundle to {}", file.display());
    // Other users may not read what was collected.
    let mut created =
        OpenOptions::new().write(true).create_new(true).mode(0o600).open(&file).with_context(place)?;
    created.write_all(&bytes).with_context(place)?;
    let text = format!("{} ({} bytes)", file.display(), bytes.len());
    Ok(Report { text, notes, ..Report::default() })
}
