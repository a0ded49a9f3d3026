//! The capability `bandwidth`: limits of what the container receives and sends.

use ferrule_proto::{cni::Bandwidth, quoted::Quoted};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::field::refuse_with;
use crate::error::CniError;

const CAPABILITY: &str = "runtimeConfig.bandwidth";

/// `runtimeConfig`, of which other files decode the rest.
#[derive(Deserialize)]
struct RuntimeConfig<'a> {
    #[serde(borrow)]
    bandwidth: Option<&'a RawValue>,
}

/// Bits per second, and bits. containerd writes Go's field names, capitalized.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Limits {
    #[serde(alias = "IngressRate", default)]
    ingress_rate: u64,
    #[serde(alias = "IngressBurst", default)]
    ingress_burst: u64,
    #[serde(alias = "EgressRate", default)]
    egress_rate: u64,
    #[serde(alias = "EgressBurst", default)]
    egress_burst: u64,
}

/// Parses the limits. `None` without a rate: a burst limits nothing by itself.
///
/// # Errors
/// If a number is malformed.
pub(super) fn parse(runtime_config: Option<&RawValue>) -> Result<Option<Bandwidth>, CniError> {
    // A value that is not an object was refused with the annotations.
    let config = runtime_config.and_then(|raw| serde_json::from_str::<RuntimeConfig<'_>>(raw.get()).ok());
    let Some(raw) = config.and_then(|it| it.bandwidth) else { return Ok(None) };
    let object = Some(raw.get()).filter(|text| text.starts_with('{'));
    let Some(limits) = object.and_then(|text| serde_json::from_str::<Limits>(text).ok()) else {
        let expected = "an object of whole numbers of bits (\"ingressRate\", \"egressRate\", …)";
        let reason = format_args!("found {}, expected {expected}", Quoted(raw.get()));
        let remedy =
            "correct the annotations kubernetes.io/ingress-bandwidth and egress-bandwidth of the pod";
        return Err(refuse_with(CAPABILITY, reason, remedy));
    };
    let Limits { ingress_rate, ingress_burst, egress_rate, egress_burst } = limits;
    let bandwidth = Bandwidth { ingress_rate, ingress_burst, egress_rate, egress_burst };
    Ok((ingress_rate != 0 || egress_rate != 0).then_some(bandwidth))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(limits: &str) -> Result<Option<Bandwidth>, CniError> {
        let raw = RawValue::from_string(format!(r#"{{"bandwidth":{limits},"other":[]}}"#)).unwrap();
        parse(Some(&raw))
    }

    #[test]
    fn limits_of_both_spellings_are_read_and_a_burst_alone_limits_nothing() {
        let both = Bandwidth {
            ingress_rate: 1_000_000,
            ingress_burst: 4_294_967_295,
            egress_rate: 2_000_000,
            egress_burst: 0,
        };
        let go = r#"{"IngressRate":1000000,"IngressBurst":4294967295,"EgressRate":2000000,"EgressBurst":0}"#;
        assert_eq!(parsed(go).unwrap(), Some(both));
        let conventions = r#"{"ingressRate":1000000,"ingressBurst":4294967295,"egressRate":2000000}"#;
        assert_eq!(parsed(conventions).unwrap(), Some(both));
        for nothing in ["null", "{}", r#"{"ingressRate":0,"ingressBurst":9,"egressBurst":9}"#] {
            assert_eq!(parsed(nothing).unwrap(), None, "{nothing}");
        }
        assert_eq!(parse(None).unwrap(), None);
    }

    #[test]
    fn malformed_limits_are_refused_and_named() {
        for bad in ["7", "[1]", r#"{"ingressRate":-1}"#, r#"{"ingressRate":"1M"}"#, r#"{"egressRate":1.5}"#] {
            let error = parsed(bad).unwrap_err();
            assert_eq!(error.code, 7, "{bad}");
            assert!(error.msg.contains("runtimeConfig.bandwidth"), "{}", error.msg);
        }
    }
}
