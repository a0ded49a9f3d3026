//! Tells the enforcer of uplinks without filters: what pods send to Services leaves there unjudged.

use std::{future::pending, sync::Arc};

use nix::net::if_::if_indextoname;
use tokio::sync::watch::Receiver;

use crate::{nodes::Report, policy::Enforcer};

/// Never ends.
pub(super) async fn follow(mut decided: Receiver<Arc<Report>>, enforcer: Arc<Enforcer>) {
    loop {
        let report = Arc::clone(&decided.borrow_and_update());
        let bare = report.bare().iter().map(|(ifindex, why)| (name(*ifindex), why.as_str()));
        enforcer.set_unjudged(unjudged(bare));
        if decided.changed().await.is_err() {
            return pending().await;
        }
    }
}

fn unjudged<'a>(bare: impl Iterator<Item = (String, &'a str)>) -> Option<String> {
    let links: Vec<_> = bare.map(|(name, why)| format!("{name} ({why})")).collect();
    let links = (!links.is_empty()).then(|| links.join(", "))?;
    Some(format!("what pods send to addresses of Services is not judged where it leaves by {links}"))
}

fn name(ifindex: u32) -> String {
    let name = if_indextoname(ifindex).ok().and_then(|it| it.into_string().ok());
    name.unwrap_or_else(|| format!("interface {ifindex}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uplinks_without_filters_are_named_with_the_reason() {
        assert_eq!(unjudged([].into_iter()), None);
        let bare = [("wg0".to_owned(), "no Ethernet header"), ("eth1".to_owned(), "a foreign qdisc")];
        let told = unjudged(bare.into_iter()).unwrap();
        assert!(told.ends_with("by wg0 (no Ethernet header), eth1 (a foreign qdisc)"), "{told}");
    }
}
