//! `ferrule-agent config …`: checks and prints configurations, without starting an agent.

use std::path::PathBuf;

use super::{
    Args, ConfigError,
    command::{Command, ConfigAction},
    file, manual,
};

// === impl Args ===

impl Args {
    /// Runs the command, if the arguments have one that prints, and returns what it prints.
    ///
    /// # Errors
    /// If the checked configuration is invalid.
    pub fn run_command(&mut self) -> Option<Result<String, ConfigError>> {
        let Command::Config { action } = self.command.take()? else { return None };
        Some(match action {
            ConfigAction::Check { file } => self.check(file),
            ConfigAction::Default => Ok(manual::default_file(self.deprecated)),
            ConfigAction::Reference => Ok(manual::reference(self.deprecated)),
        })
    }

    fn check(&mut self, path: Option<PathBuf>) -> Result<String, ConfigError> {
        let path = path.unwrap_or_else(|| self.config.clone());
        let (from_file, keys) = file::check(&path)?;
        let settings = std::mem::take(&mut self.settings);
        // A file for agents in pods is checked wherever its author is.
        let config = settings.over(from_file).validate(true, self.deprecated)?;
        let sets = if keys.is_empty() { "no setting".to_owned() } else { keys.join(", ") };
        let mut text = format!("{}: valid; sets {sets}\n", path.display());
        text.extend(config.deprecated.iter().map(|it| format!("{it}\n")));
        Ok(text)
    }
}
