//! Applies switches, called directly or over HTTP.

use std::{sync::Arc, time::Duration};

use http::Method;
use serde_json::{Value, json};

use super::{
    core::Core,
    faults::{Command, Switch, lock},
    server::Order,
    status::Status,
    store::History,
    watch::error_line,
};

/// A restart that the listener must perform.
#[derive(Debug, Clone, Copy)]
pub(super) struct Restart {
    pub pause: Duration,
    pub history: History,
}

/// Applies a switch. Returns a restart, which only the listener can perform.
pub(super) fn throw(core: &Core, switch: Switch) -> Option<Restart> {
    let faults = &core.faults;
    let settings = || lock(&core.settings);
    match switch {
        Switch::CutWatches { which } => {
            faults.command(which, &Command::Cut);
        }
        Switch::SendGarbage { garbage, which } => {
            faults.command(which, &Command::Send(garbage.line()));
        }
        Switch::SendError { code, retry_after, which } => {
            let status = Status::of_code(code, "injected by the test").retry_after(retry_after);
            faults.command(which, &Command::End(error_line(&status)));
        }
        Switch::StallWatches {} => faults.set_flow(|flow| flow.is_stalled = true),
        Switch::ResumeWatches {} => faults.set_flow(|flow| flow.is_stalled = false),
        Switch::SlowWatches { delay_ms } => {
            faults.set_flow(|flow| flow.delay = Duration::from_millis(delay_ms));
        }
        Switch::DropConnections { reset } => core.connections.kill_all(reset),
        Switch::Refuse(refusal) => faults.refuse(refusal),
        Switch::RefuseNothing {} => faults.refuse_nothing(),
        Switch::Compact {} => lock(&core.store).compact(),
        Switch::Restart { pause_ms, history } => {
            return Some(Restart { pause: Duration::from_millis(pause_ms), history });
        }
        Switch::SetTokens { tokens } => settings().tokens = tokens,
        Switch::Deny { resource, token } => settings().denied.push((resource, token)),
        Switch::DenyNothing {} => settings().denied.clear(),
        Switch::InstallKuryr { installed } => settings().kuryr = installed,
        Switch::InstallClusterPolicies { installed } => settings().cluster_policies = installed,
        Switch::RenameClusterPolicies { version } => settings().cluster_policies_as = version,
        Switch::WatchList { enabled } => settings().watch_list = enabled,
        Switch::GoneAtOpening { enabled } => settings().gone_at_opening = enabled,
        Switch::BookmarkInterval { every_ms } => {
            settings().bookmark_interval = Duration::from_millis(every_ms.max(1));
        }
    }
    None
}

/// Serves `POST /_test/<switch>` and the read-only inspection paths.
///
/// # Errors
/// If no such switch exists.
pub(super) fn over_http(core: &Arc<Core>, method: &Method, name: &str, body: &[u8]) -> Result<Value, Status> {
    match (method, name) {
        (&Method::GET, "requests") => Ok(json!(core.log.requests())),
        (&Method::DELETE, "requests") => {
            core.log.clear();
            Ok(json!({}))
        }
        (&Method::GET, "state") => Ok(json!({
            "resourceVersion": lock(&core.store).version().to_string(),
            "watches": core.faults.open_watches(),
            "bytes": core.log.total_bytes(),
        })),
        (&Method::POST, name) => {
            let fields = if body.is_empty() { Ok(json!({})) } else { serde_json::from_slice(body) };
            let switch = fields.and_then(|fields| serde_json::from_value(json!({ name: fields })));
            let switch = switch.map_err(|error| Status::bad_request(error.to_string()))?;
            if let Some(restart) = throw(core, switch) {
                // Send the response before the restart.
                let core = Arc::clone(core);
                tokio::spawn(async move {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                    let _stopping = core.orders.send(Order::Restart(restart, None));
                });
            }
            Ok(json!({}))
        }
        _ => Err(Status::method_not_allowed()),
    }
}
