//! `ferrulectl check`: CHECK without a runtime.

use std::path::Path;

use ferrule_proto::agent::{CheckPodRequest, CheckPodResponse, pod_check::Outcome};

use crate::{
    client,
    output::{Output, Report},
    paint,
    pod_arg::PodArg,
    table::{plain, pod, table},
};

/// A check that fails is a failure.
pub(crate) async fn run(arg: &PodArg, socket: &Path, output: Output) -> anyhow::Result<Report> {
    let (namespace, name) = arg.resolve()?;
    let checked = client::connect(socket).await?.check_pod(CheckPodRequest { namespace, name }).await;
    let checked = checked.map_err(|status| client::unanswered(status, "check"))?.into_inner();
    Ok(Report::new(output.show(&checked, render)?, failure(&checked)))
}

fn failure(checked: &CheckPodResponse) -> Option<String> {
    let failed = checked.checks.iter().filter(|it| it.outcome() == Outcome::Failed).count();
    let all = checked.checks.len();
    (failed > 0)
        .then(|| format!("{failed} of {all} checks of {} failed", pod(&checked.namespace, &checked.name)))
}

fn render(checked: &CheckPodResponse) -> String {
    let rows = checked.checks.iter().map(|it| {
        let outcome = it.outcome();
        let painted = match outcome {
            Outcome::Passed => paint::good(outcome.name()),
            Outcome::Failed => paint::bad(outcome.name()),
            Outcome::Unknown | Outcome::Unspecified => paint::warn(outcome.name()),
        };
        let todo = if it.todo.is_empty() { String::new() } else { format!("; to do: {}", plain(&it.todo)) };
        let ifname = if it.ifname.is_empty() { "-".to_owned() } else { it.ifname.clone() };
        [ifname, it.name.clone(), painted, format!("{}{todo}", plain(&it.what))]
    });
    let name = pod(&checked.namespace, &checked.name);
    format!("{name}\n\n{}", table(["IF", "CHECK", "RESULT", "FOUND"], rows))
}

#[cfg(test)]
mod tests {
    use ferrule_proto::agent::PodCheck;

    use super::*;

    fn checked() -> CheckPodResponse {
        let check = |name: &str, outcome: Outcome, what: &str, todo: &str| PodCheck {
            ifname: "eth0".to_owned(),
            name: name.to_owned(),
            outcome: outcome.into(),
            what: what.to_owned(),
            todo: todo.to_owned(),
        };
        CheckPodResponse {
            namespace: "shop".to_owned(),
            name: "web-0".to_owned(),
            checks: vec![
                check("attachment", Outcome::Passed, "attached", ""),
                check("pod routes", Outcome::Failed, "the pod lacks default", "look"),
            ],
        }
    }

    #[test]
    fn table_has_a_line_for_each_check_and_a_failed_one_says_what_to_do() {
        let expected = "\
shop/web-0

IF    CHECK       RESULT  FOUND
eth0  attachment  passed  attached
eth0  pod routes  failed  the pod lacks default; to do: look";
        assert_eq!(render(&checked()), expected);
        assert_eq!(failure(&checked()).unwrap(), "1 of 2 checks of shop/web-0 failed");
        let mut passed = checked();
        passed.checks.truncate(1);
        assert_eq!(failure(&passed), None);
        assert_eq!(serde_json::to_value(checked()).unwrap()["checks"][1]["outcome"], "failed");
    }
}
