//! The ranges of Services: those of the settings, the address of the API server's own Service, and the
//! ServiceCIDRs of the API, which clusters have since Kubernetes 1.33.
//!
//! A list from time to time and no watch: a range of Services changes perhaps once in the life of a cluster.

use std::{env, net::IpAddr, sync::Arc, time::Duration};

use ipnet::IpNet;
use serde::Deserialize;
use tokio::time::{Instant, sleep};

use crate::{
    api::{Api, ApiError},
    backoff::{Backoff, Policy},
    chain::chain,
    config::Config,
    ipam::parse_cidr,
    nodes::Table,
};

/// A list of ServiceCIDRs, without the fields that are not used.
#[derive(Deserialize)]
struct ServiceCidrs {
    items: Vec<ServiceCidr>,
}

#[derive(Deserialize)]
struct ServiceCidr {
    spec: Spec,
}

#[derive(Deserialize)]
struct Spec {
    cidrs: Vec<String>,
}

/// Between two lists, and up to a tenth more, so that nodes that start together do not stay together.
const PERIOD: Duration = Duration::from_secs(300);
const BACKOFF: Policy = Policy::new(Duration::from_millis(800), Duration::from_secs(60))
    .with_jitter()
    .reset_after(Duration::from_secs(120));
/// A cluster has one ServiceCIDR, or a few.
const REQUEST: &str = "/apis/networking.k8s.io/v1/servicecidrs?limit=250";
const WHAT: &str = "list the ServiceCIDRs";

/// The ranges that are known without the API.
pub(super) fn known(config: &Config) -> Vec<IpNet> {
    let api = env::var("KUBERNETES_SERVICE_HOST").ok().and_then(|it| it.parse::<IpAddr>().ok());
    config.service_cidrs.iter().copied().chain(api.map(IpNet::from)).collect()
}

/// Tells the table of the ServiceCIDRs, beside the `known` ranges. Never returns.
pub(super) async fn follow(api: Arc<Api>, known: Vec<IpNet>, table: Arc<Table>) {
    let (mut is_failing, mut backoff) = (false, Backoff::new(BACKOFF));
    loop {
        let wait = match listed(&api).await {
            Ok(listed) => {
                table.set_services([known.clone(), listed].concat());
                is_failing = false;
                PERIOD.mul_f64(1.0 + 0.1 * fastrand::f64())
            }
            Err(error) => {
                if !std::mem::replace(&mut is_failing, true) {
                    tracing::warn!(
                        error = chain(&error) + error.remedy(),
                        "the ServiceCIDRs are unknown, and a node's range inside of one would be accepted; retrying"
                    );
                }
                backoff.next_requested(error.retry_after(), Instant::now())
            }
        };
        sleep(wait).await;
    }
}

async fn listed(api: &Api) -> Result<Vec<IpNet>, ApiError> {
    match api.get(WHAT, REQUEST).await {
        Ok(json) => {
            parse(&json).map_err(|error| ApiError::Invalid { what: WHAT.to_owned(), why: error.to_string() })
        }
        // An older cluster.
        Err(error) if error.is_not_found() => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// The API server lets no unreadable range in.
fn parse(json: &[u8]) -> Result<Vec<IpNet>, serde_json::Error> {
    let list: ServiceCidrs = serde_json::from_slice(json)?;
    let texts = list.items.into_iter().flat_map(|it| it.spec.cidrs);
    Ok(texts.filter_map(|text| parse_cidr(&text).ok()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_all_objects_and_both_families_count() {
        let json = br#"{"kind": "ServiceCIDRList", "metadata": {"resourceVersion": "9"}, "items": [
            {"metadata": {"name": "kubernetes"}, "spec": {"cidrs": ["10.96.0.0/16", "fd00:96::/112"]}},
            {"metadata": {"name": "more"}, "spec": {"cidrs": ["10.98.0.0/24"]}, "status": {}}]}"#;
        let expected = ["10.96.0.0/16", "fd00:96::/112", "10.98.0.0/24"];
        assert_eq!(parse(json).unwrap(), expected.map(|it| it.parse().unwrap()));
        assert_eq!(parse(br#"{"items": []}"#).unwrap(), []);
        assert!(parse(br#"{"kind": "Status"}"#).is_err(), "no list");
    }
}
