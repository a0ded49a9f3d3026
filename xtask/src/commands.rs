//! The commands of helm and kubectl that documents show, parsed by these programs themselves.

use anyhow::Result;

use crate::{
    book::shown::{self, Shown},
    clients::{Client, HELM, KUBECTL},
    failure::{Failure, OrFail as _},
    run::{Step, say},
    workspace::Workspace,
};

const REMEDY: &str = "correct the document";

/// Checks subcommands and flags; no cluster is asked.
///
/// # Errors
/// If a client cannot be installed, or refuses a command.
pub(crate) fn check(ws: &Workspace) -> Result<()> {
    for client in [HELM, KUBECTL] {
        let program = client.find(ws)?;
        let doing = format!("parsing the documents' commands of {}", client.name);
        say(&doing);
        let commands = shown::commands(&ws.root, client.name).or_fail(&*doing, REMEDY)?;
        for Shown { place, words } in commands.iter().filter(|it| !is_plugin(client, &it.words)) {
            let doing = format!("parsing `{}` ({place})", words.join(" "));
            let help = Step::new(&program, &*doing, REMEDY).args(asking_for_help(words)).ask()?;
            if !is_of_a_command(&help) {
                let why = format!("{} has no such subcommand", client.name);
                return Err(Failure { attempted: doing, why, remedy: REMEDY.to_owned() }.into());
            }
        }
    }
    Ok(())
}

/// Whether `ferrulectl` gets the command, whose unit tests parse it.
fn is_plugin(client: Client, words: &[String]) -> bool {
    client.name == KUBECTL.name && words.get(1).is_some_and(|it| it == "ferrule")
}

/// The arguments with `--help`, before which both programs parse all others; what follows `--` is another
/// program's.
fn asking_for_help(words: &[String]) -> impl Iterator<Item = &str> {
    let own = words.iter().skip(1).map(String::as_str).take_while(|it| *it != "--");
    own.chain(["--help"])
}

/// Both programs answer an unknown subcommand with the help of its parent.
fn is_of_a_command(help: &str) -> bool {
    let usage = help.lines().skip_while(|line| *line != "Usage:").nth(1);
    usage.is_some_and(|it| !it.contains("SUBCOMMAND") && !it.contains("[command]"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn the_help_of_a_parent_is_that_of_an_unknown_subcommand() {
        assert!(is_of_a_command("Show status\n\nUsage:\n  kubectl rollout status (TYPE NAME) [flags]\n"));
        assert!(!is_of_a_command("Manage\n\nUsage:\n  kubectl rollout SUBCOMMAND [options]\n"));
        assert!(!is_of_a_command("The package manager\n\nUsage:\n  helm [command]\n"));
        assert!(!is_of_a_command(""));
    }

    #[test]
    fn commands_of_others_are_left_to_them() {
        assert!(asking_for_help(&words("kubectl exec client -- wget -q")).eq(["exec", "client", "--help"]));
        assert!(is_plugin(KUBECTL, &words("kubectl ferrule status")));
        assert!(!is_plugin(KUBECTL, &words("kubectl get nodes")));
        assert!(!is_plugin(HELM, &words("helm ferrule")));
    }
}
