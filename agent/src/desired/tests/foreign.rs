//! What others run beside the agent's programs.

use super::{
    super::foreign::{foreign, on_links},
    *,
};
use crate::nodes::Ahead;

#[test]
fn foreign_programs_beside_the_agents_are_listed_and_no_deviations() {
    let it = one("a", 2, INDEX);
    let mut actual = good(&it);
    let theirs = Attached {
        is_ours: false,
        priority: 9,
        kind: "flower".to_owned(),
        name: None,
        ..ours(Hook::ToPod, 0)
    };
    filters(&mut actual).push(Attached { program: None, ..theirs });
    link(&mut actual).xdp.push(33);
    assert_eq!(actual.deviations_of(&it), []);
    let listed: Vec<_> = foreign(&it, &actual, &[vec![44], vec![]]).into_iter().map(|it| it.what).collect();
    assert_eq!(listed.len(), 3, "{listed:?}");
    for (what, part) in listed.iter().zip(["flower filter on ingress", "XDP program 33", "tcx program 44"]) {
        assert!(what.contains(part), "{what}");
    }
}

#[test]
fn what_others_run_before_the_agents_filters_on_links_of_the_node_is_listed() {
    let mut state = good(&one("a", 2, INDEX)).host.links[&INDEX].clone();
    (state.name, state.xdp) = ("eth0".to_owned(), vec![33]);
    let ahead = |ifindex| Ahead { ifindex, hook: Hook::ToPod, what: "a tcx program 44".to_owned() };
    let listed = on_links(&[2, 3], &HashMap::from([(2, state)]), &[ahead(2), ahead(3)]);
    let link = Some(HostLink { ifname: "eth0".to_owned(), ifindex: 2 });
    let what = |program: &str| {
        format!("{program}, which runs before the agent's filters and may keep packets from them")
    };
    let expected = ["an XDP program 33", "a tcx program 44"].map(|program| Foreign {
        of: None,
        link: link.clone(),
        what: what(program),
    });
    assert_eq!(listed, expected, "a link that is gone has none");
}
