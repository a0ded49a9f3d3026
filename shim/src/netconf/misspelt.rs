//! Misspelt keys of the network configuration.
//!
//! Unknown keys are legal: runtimes and other tools add some. One that differs from a key of ours by a single
//! typing error is taken for that key: without the error, the pod would silently lack the setting.

use std::collections::BTreeMap;

use ferrule_proto::misspelt::is_misspelt;
use serde::de::IgnoredAny;

use super::field::refuse_with;
use crate::error::CniError;

/// The keys that an operator writes and that can be missing. A misspelt `name` or `type` fails anyway.
const OURS: [&str; 4] = ["socket", "mtu", "dns", "capabilities"];

/// # Errors
/// If an unknown key is one typing error away from a known one.
pub(super) fn check(text: &str) -> Result<(), CniError> {
    // The syntax was checked before.
    let keys: BTreeMap<String, IgnoredAny> = serde_json::from_str(text).unwrap_or_default();
    for key in keys.keys().filter(|key| !OURS.contains(&key.as_str())) {
        if let Some(meant) = OURS.into_iter().find(|ours| is_misspelt(key, ours)) {
            let details = "correct the key, or rename a key that is meant for another program";
            return Err(refuse_with(key, format_args!("unknown key, did you mean \"{meant}\"?"), details));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_with_one_typing_error_is_refused_with_the_key_that_was_meant() {
        for (key, meant) in [
            ("mtuu", "mtu"),
            ("MTU", "mtu"),
            ("mt", "mtu"),
            ("mut", "mtu"),
            ("mtx", "mtu"),
            ("xmtu", "mtu"),
            ("sockett", "socket"),
            ("soket", "socket"),
            ("scoket", "socket"),
            ("Dns", "dns"),
            ("capabilites", "capabilities"),
        ] {
            let error = check(&format!(r#"{{"name":"n","{key}":1}}"#)).unwrap_err();
            assert_eq!(error.code, 7, "{key}");
            let expected = format!(
                "reading \"{key}\" of the network configuration: unknown key, did you mean \"{meant}\"?"
            );
            assert_eq!(error.msg, expected);
        }
    }

    #[test]
    fn keys_of_runtimes_and_other_tools_are_accepted() {
        let text = r#"{"cniVersion":"1.1.0","cniVersions":[],"name":"n","type":"ferrule","socket":"","mtu":1,"dns":{},
            "capabilities":{},"args":{},"ipam":{},"ipMasq":true,"prevResult":{},"runtimeConfig":{},"plugins":[],
            "cni.dev/valid-attachments":[],"cni.dev/attachments":[],"disableCheck":true,"disableGC":true,
            "isGateway":true,"mtuV6":1500,"x":1e999,"":0,"m":1,"mtuxy":2,"sockets2":1,"bridge":"cni0"}"#;
        assert_eq!(check(text), Ok(()));
    }
}
