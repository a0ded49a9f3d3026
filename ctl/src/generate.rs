//! `ferrulectl completion` and `ferrulectl man`: from the definition of the arguments.

use std::{fs, path::Path};

use anyhow::Context as _;
use clap::CommandFactory as _;
use clap_complete::Shell;

use crate::args::Args;

/// The completion script of a shell.
pub(crate) fn completion(shell: Shell) -> anyhow::Result<String> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Args::command(), "ferrulectl", &mut script);
    Ok(String::from_utf8(script)?)
}

/// Writes a man page for each command to a directory, which is created if it is missing. Returns what was
/// written.
pub(crate) fn man(directory: &Path) -> anyhow::Result<String> {
    fs::create_dir_all(directory).with_context(|| format!("cannot create {}", directory.display()))?;
    clap_mangen::generate_to(Args::command(), directory)
        .with_context(|| format!("cannot write man pages to {}", directory.display()))?;
    let count = fs::read_dir(directory)?.count();
    Ok(format!("{count} files in {}", directory.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_shell_has_a_script_with_the_commands() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let script = completion(shell).unwrap();
            for command in ["explain", "ipam", "attachments"] {
                assert!(script.contains(command), "{shell}: {command}");
            }
        }
    }

    #[test]
    fn each_command_has_a_man_page() {
        let directory = tempfile::tempdir().unwrap();
        let written = man(&directory.path().join("man1")).unwrap();
        let page = |name: &str| fs::read_to_string(directory.path().join("man1").join(name)).unwrap();
        assert!(page("ferrulectl.1").contains(".TH ferrulectl 1"), "{}", page("ferrulectl.1"));
        assert!(page("ferrulectl.1").contains("Exit codes"));
        assert!(page("ferrulectl-policy-trace.1").contains("Judge the first packet"));
        let count = fs::read_dir(directory.path().join("man1")).unwrap().count();
        assert!(written.starts_with(&format!("{count} files")) && count > 15, "{written}");
        assert!(man(Path::new("/proc/nowhere")).unwrap_err().to_string().contains("/proc/nowhere"));
    }
}
