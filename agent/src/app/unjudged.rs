//! Tells the enforcer where what pods send to Services leaves unjudged: of uplinks without filters, and of
//! programs of others that run before the agent's.

use std::{collections::BTreeMap, future::pending, sync::Arc};

use nix::net::if_::if_indextoname;
use tokio::sync::watch::Receiver;

use crate::{
    nodes::{Ahead, Report},
    plug::filter::Hook,
    policy::{Enforcer, Unjudged},
};

/// Never ends.
pub(super) async fn follow(mut decided: Receiver<Arc<Report>>, enforcer: Arc<Enforcer>) {
    let mut told = None;
    loop {
        let report = Arc::clone(&decided.borrow_and_update());
        let bare = report.bare().iter().map(|(ifindex, why)| (name(*ifindex), why.as_str()));
        let ahead = report.ahead().iter().filter(|it| !report.bare().contains_key(&it.ifindex));
        let unjudged = Unjudged { surely: surely(bare), perhaps: perhaps(ahead, name) };
        if told != unjudged.perhaps {
            if let Some(why) = &unjudged.perhaps {
                tracing::warn!(why, "programs of others run before the agent's: see ferrulectl verify");
            }
            told.clone_from(&unjudged.perhaps);
        }
        enforcer.set_unjudged(unjudged);
        if decided.changed().await.is_err() {
            return pending().await;
        }
    }
}

fn surely<'a>(bare: impl Iterator<Item = (String, &'a str)>) -> Option<String> {
    let links: Vec<_> = bare.map(|(name, why)| format!("{name} ({why})")).collect();
    let links = (!links.is_empty()).then(|| links.join(", "))?;
    Some(format!("what pods send to addresses of Services is not judged where it leaves by {links}"))
}

/// Those where packets leave; of each link, the first one is named.
fn perhaps<'a>(ahead: impl Iterator<Item = &'a Ahead>, name: impl Fn(u32) -> String) -> Option<String> {
    let mut links = BTreeMap::<_, Vec<_>>::new();
    for it in ahead.filter(|it| it.hook == Hook::ToPod) {
        links.entry(it.ifindex).or_default().push(it.what.as_str());
    }
    let links = links.into_iter().filter_map(|(ifindex, all)| {
        let (first, more) = (all.first()?, all.len() - 1);
        let more = if more == 0 { String::new() } else { format!(" and {more} more") };
        Some(format!("{} ({first}{more})", name(ifindex)))
    });
    let links: Vec<_> = links.collect();
    let links = (!links.is_empty()).then(|| links.join(", "))?;
    Some(format!(
        "what pods send to addresses of Services may not be judged where it leaves by {links}: programs of others \
         run before the agent's"
    ))
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
        assert_eq!(surely([].into_iter()), None);
        let bare = [("wg0".to_owned(), "no Ethernet header"), ("eth1".to_owned(), "a foreign qdisc")];
        let told = surely(bare.into_iter()).unwrap();
        assert!(told.ends_with("by wg0 (no Ethernet header), eth1 (a foreign qdisc)"), "{told}");
    }

    #[test]
    fn links_where_programs_of_others_see_what_leaves_before_the_agents_are_named_with_the_first_one() {
        let ahead = |ifindex, hook, what: &str| Ahead { ifindex, hook, what: what.to_owned() };
        let perhaps = |all: &[Ahead]| perhaps(all.iter(), |ifindex| format!("eth{ifindex}"));
        let arriving = ahead(1, Hook::FromPod, "a tcx program 3");
        assert_eq!(perhaps(std::slice::from_ref(&arriving)), None);
        let leaving = |ifindex, id| ahead(ifindex, Hook::ToPod, &format!("a tcx program {id}"));
        let told = perhaps(&[arriving, leaving(1, 4), leaving(1, 5), leaving(2, 6)]).unwrap();
        let part = "by eth1 (a tcx program 4 and 1 more), eth2 (a tcx program 6): programs of others";
        assert!(told.contains(part), "{told}");
    }
}
