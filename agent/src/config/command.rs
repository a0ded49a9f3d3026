//! The commands of `ferrule-agent` that start no agent.

use std::path::PathBuf;

use clap::Subcommand;

/// What `ferrule-agent` does instead of serving.
#[derive(Debug, Clone, Subcommand)]
pub enum Command {
    /// Check or print configurations.
    Config {
        #[command(subcommand)]
        action: ConfigAction,
    },
    /// Remove everything that agents with these settings leave on a node, pods' interfaces included.
    Uninstall {
        /// Then wait for a signal instead of ending.
        #[arg(long)]
        stay: bool,
    },
}

/// A command about configurations.
#[derive(Debug, Clone, Subcommand)]
pub enum ConfigAction {
    /// Check a configuration file, together with the flags before `config` and the environment.
    Check {
        /// The file, or `-` for standard input [default: the one that --config names].
        file: Option<PathBuf>,
    },
    /// Print a configuration file with all settings as comments.
    Default,
    /// Print the reference of all settings, in Markdown.
    Reference,
}
