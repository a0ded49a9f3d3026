//! What a failed pass means for the node.

use super::*;
use crate::plug::nodes::setting;

#[test]
fn a_strict_rp_filter_that_stays_is_named_and_does_not_cut_this_node_off() {
    let refused = setting::change(&["ipv4/conf/lo/rp_filter".to_owned()], "no number").unwrap_err();
    let error = KeepError::Strict(refused);
    assert!(!error.cuts_off());
    let text = chain(&error);
    assert!(text.contains("net.ipv4.conf.lo.rp_filter") && !text.contains("tunnel"), "{text}");
    assert!(KeepError::Tunnel(TunnelError::NoAnswer).cuts_off());
}
