//! `ferrulectl ipam`: the node's ranges, and which address is whose.

use std::path::Path;

use ferrule_proto::agent::{
    ListAddressesRequest, ListAddressesResponse, PodAddress, PodRange, pod_address::State,
};

use crate::{
    client,
    filter::Filter,
    output::{Output, Report},
    paint,
    table::{pod, short_id, table},
};

/// A larger number of free addresses is not told exactly.
const MANY: u64 = 1 << 32;

/// Ranges that are not known are a failure, and so is a range without a free address.
pub(crate) async fn run(filter: &Filter, socket: &Path, output: Output) -> anyhow::Result<Report> {
    let response = client::connect(socket).await?.list_addresses(ListAddressesRequest {}).await;
    let mut listed = response.map_err(|status| client::unanswered(status, "ipam"))?.into_inner();
    let failure = failure(&listed);
    listed.addresses.retain(|it| filter.is_empty() || filter.matches(&it.pod_namespace, &it.pod_name));
    Ok(Report::new(output.show(&listed, render)?, failure))
}

fn failure(listed: &ListAddressesResponse) -> Option<String> {
    if !listed.no_ranges_because.is_empty() {
        return Some(format!("no address can be allocated: {}", listed.no_ranges_because));
    }
    // Of several ranges of a family, one with a free address is enough.
    let is_v6 = |it: &PodRange| it.range.contains(':');
    let is_exhausted = |v6: bool| {
        let mut of_family = listed.ranges.iter().filter(|it| is_v6(it) == v6).peekable();
        of_family.peek().is_some() && of_family.all(|it| it.free == 0)
    };
    let families: Vec<_> = [(false, "IPv4"), (true, "IPv6")]
        .into_iter()
        .filter(|it| is_exhausted(it.0))
        .map(|it| it.1)
        .collect();
    (!families.is_empty()).then(|| {
        format!(
            "no {} address is free, so that new pods get none: delete pods, wait for resting addresses, or give the \
             node another range",
            families.join(" and no ")
        )
    })
}

fn render(listed: &ListAddressesResponse) -> String {
    let ranges = listed.ranges.iter().map(|it| {
        let free = if it.free == 0 { paint::bad("0") } else { many(it.free) };
        [it.range.clone(), it.used.to_string(), it.resting.to_string(), free]
    });
    let mut text = table(["RANGE", "USED", "RESTING", "FREE"], ranges);
    if !listed.addresses.is_empty() {
        text += "\n\n";
        text +=
            &table(["ADDRESS", "STATE", "POD", "CONTAINER", "IF", "NOTE"], listed.addresses.iter().map(row));
    }
    text
}

fn row(it: &PodAddress) -> [String; 6] {
    [
        it.address.clone(),
        it.state().name().to_owned(),
        pod(&it.pod_namespace, &it.pod_name),
        short_id(&it.container_id),
        it.ifname.clone(),
        note(it),
    ]
}

fn note(it: &PodAddress) -> String {
    let state = match it.state() {
        State::Resting => format!("free in {} s", it.rests_ms.div_ceil(1000)),
        State::Left => "an interface without a record: see ferrulectl verify".to_owned(),
        State::Promised => "of an ADD in flight".to_owned(),
        State::Used | State::Unspecified => String::new(),
    };
    let outside = if it.in_range { "" } else { "outside of the ranges" };
    let notes = [state.as_str(), outside];
    notes.into_iter().filter(|it| !it.is_empty()).collect::<Vec<_>>().join(", ")
}

fn many(free: u64) -> String {
    if free > MANY { format!("over {MANY}") } else { free.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(range: &str, free: u64) -> PodRange {
        PodRange { range: range.to_owned(), used: 2, resting: 1, free }
    }

    fn address(address: &str, state: State, name: &str) -> PodAddress {
        PodAddress {
            address: address.to_owned(),
            state: state.into(),
            container_id: "0123456789abcdef".to_owned(),
            ifname: "eth0".to_owned(),
            pod_namespace: if name.is_empty() { String::new() } else { "shop".to_owned() },
            pod_name: name.to_owned(),
            in_range: true,
            ..PodAddress::default()
        }
    }

    fn listed() -> ListAddressesResponse {
        ListAddressesResponse {
            ranges: vec![range("10.244.0.0/24", 250), range("fd00::/64", u64::MAX)],
            addresses: vec![
                address("10.244.0.2", State::Used, "web-0"),
                PodAddress { rests_ms: 12_001, ..address("10.244.0.3", State::Resting, "") },
                PodAddress { in_range: false, ..address("192.0.2.9", State::Used, "db-0") },
            ],
            no_ranges_because: String::new(),
        }
    }

    #[test]
    fn table_has_ranges_then_addresses_and_until_when_they_rest() {
        let expected = "\
RANGE          USED  RESTING  FREE
10.244.0.0/24  2     1        250
fd00::/64      2     1        over 4294967296

ADDRESS     STATE    POD         CONTAINER     IF    NOTE
10.244.0.2  used     shop/web-0  0123456789ab  eth0
10.244.0.3  resting  -           0123456789ab  eth0  free in 13 s
192.0.2.9   used     shop/db-0   0123456789ab  eth0  outside of the ranges";
        assert_eq!(render(&listed()), expected);
        assert_eq!(failure(&listed()), None);
    }

    #[test]
    fn an_exhausted_family_and_unknown_ranges_are_failures() {
        let mut listed = listed();
        listed.ranges.push(range("10.244.1.0/24", 0));
        assert_eq!(failure(&listed), None, "the other range of the family has free addresses");
        listed.ranges[0].free = 0;
        assert!(failure(&listed).unwrap().starts_with("no IPv4 address is free"));
        let unknown = ListAddressesResponse { no_ranges_because: "why".to_owned(), ..Default::default() };
        assert_eq!(failure(&unknown).unwrap(), "no address can be allocated: why");
    }

    #[test]
    fn json_names_states() {
        let json = serde_json::to_value(listed()).unwrap();
        assert_eq!(json["addresses"][1]["state"], "resting");
        assert_eq!(
            (&json["addresses"][1]["rests_ms"], &json["ranges"][0]["free"]),
            (&12_001.into(), &250.into())
        );
    }
}
