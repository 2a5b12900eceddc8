use super::*;
use crate::model::{LocalEndpoint, LocalSlice, Protocol, ServiceId, SlicePort};
use proptest::prelude::*;

fn slice(endpoints: &[(u8, EndpointState, Locality)]) -> LocalSlice {
    LocalSlice {
        service: ServiceId::new("ns", "web"),
        ports: [SlicePort { name: "http".into(), protocol: Protocol::Tcp, port: 8080 }].into(),
        endpoints: endpoints
            .iter()
            .map(|&(last, state, place)| LocalEndpoint {
                address: IpAddr::from([10, 0, 0, last]),
                state,
                place,
            })
            .collect(),
        ..LocalSlice::default()
    }
}

fn port(name: &str) -> LocalPort {
    LocalPort { name: name.into(), protocol: Protocol::Tcp, port: 80, node_port: None }
}

/// Last bytes of the selected addresses, for both policies.
fn check(slices: &[LocalSlice], all: &[u8], here: &[u8]) {
    let chosen =
        select_endpoints(&SlicesByPort::new(slices.iter()), Family::Ip, &port("http"), None);
    let last = |backends: &[Backend]| -> Vec<u8> {
        backends
            .iter()
            .map(|b| match b.address {
                IpAddr::V4(v4) => v4.octets()[3],
                IpAddr::V6(_) => 0,
            })
            .collect()
    };
    assert_eq!((last(&chosen.all), last(&chosen.here)), (all.to_vec(), here.to_vec()));
}

#[test]
fn ready_ones_are_used_and_draining_ones_when_there_is_none() {
    use EndpointState::{Down, Draining, Ready};
    use Locality::{Elsewhere, Here};
    check(&[], &[], &[]);
    check(&[slice(&[(1, Ready, Here), (2, Draining, Here), (3, Ready, Elsewhere)])], &[1, 3], &[1]);
    // No ready endpoint here: the draining one serves local traffic only.
    check(&[slice(&[(1, Draining, Here), (2, Ready, Elsewhere)])], &[2], &[1]);
    check(&[slice(&[(1, Draining, Elsewhere), (2, Down, Here)])], &[1], &[]);
    // The same endpoint twice: the better state counts, in any order.
    check(&[slice(&[(1, Down, Here)]), slice(&[(1, Ready, Here)])], &[1], &[1]);
    check(&[slice(&[(1, Ready, Here)]), slice(&[(1, Draining, Here)])], &[1], &[1]);
}

#[test]
fn ports_are_matched_by_name_and_protocol_and_endpoints_by_family() {
    let slices = [slice(&[(1, EndpointState::Ready, Locality::Here)])];
    assert_eq!(
        select_endpoints(&SlicesByPort::new(slices.iter()), Family::Ip, &port("other"), None),
        SelectedEndpoints::default()
    );
    assert_eq!(
        select_endpoints(&SlicesByPort::new(slices.iter()), Family::Ip6, &port("http"), None),
        SelectedEndpoints::default()
    );
    let udp = LocalPort { protocol: Protocol::Udp, ..port("http") };
    assert_eq!(
        select_endpoints(&SlicesByPort::new(slices.iter()), Family::Ip, &udp, None),
        SelectedEndpoints::default()
    );
}

/// Last bytes of the addresses selected in zone `a`, of endpoints with these hints.
fn near(zone: Option<&str>, endpoints: &[(u8, EndpointState, &[&str])]) -> Vec<u8> {
    let plain: Vec<_> =
        endpoints.iter().map(|(n, state, _)| (*n, *state, Locality::Elsewhere)).collect();
    let hints = endpoints.iter().map(|(.., zones)| zones.iter().map(|z| (*z).into()).collect());
    let slices = [LocalSlice { hints: hints.collect(), ..slice(&plain) }];
    let chosen =
        select_endpoints(&SlicesByPort::new(slices.iter()), Family::Ip, &port("http"), zone);
    let last = |b: &Backend| b.address.to_string().rsplit('.').next().unwrap().parse().unwrap();
    chosen.all.iter().map(last).collect()
}

#[test]
fn hints_keep_traffic_in_the_zone_if_they_are_complete() {
    use EndpointState::{Draining, Ready};
    let all: [(u8, EndpointState, &[&str]); 3] =
        [(1, Ready, &["a"]), (2, Ready, &["b"]), (3, Ready, &["b", "a"])];
    assert_eq!(near(Some("a"), &all), [1, 3]);
    assert_eq!(near(Some("b"), &all), [2, 3]);
    // A zone without endpoints, and a node without a zone.
    assert_eq!(near(Some("c"), &all), [1, 2, 3]);
    assert_eq!(near(None, &all), [1, 2, 3]);
    // One ready endpoint has no hint: hints are being changed, so none counts.
    assert_eq!(near(Some("a"), &[(1, Ready, &["a"]), (2, Ready, &[])]), [1, 2]);
    assert_eq!(near(Some("a"), &[(1, Ready, &["a"]), (2, Draining, &[])]), [1]);
    // Draining endpoints are used in all zones.
    assert_eq!(near(Some("a"), &[(1, Draining, &["a"]), (2, Draining, &["b"])]), [1, 2]);
}

fn backends() -> impl Strategy<Value = Vec<Backend>> {
    let backend =
        |n: u8| Backend { address: [10, 0, 0, n].into(), port: 80, place: Locality::Here };
    proptest::collection::btree_set(0u8..12, 0..10)
        .prop_map(move |set| set.into_iter().map(backend).collect())
}

proptest! {
    #[test]
    fn slots_hold_what_is_wanted_and_move_little(before in backends(), wanted in backends()) {
        let old = reslot([].into_iter(), &before);
        let new = reslot(old.iter().copied(), &wanted);
        let mut sorted = new.clone();
        sorted.sort();
        prop_assert_eq!(&sorted, &wanted);
        // A slot is rewritten only for an added or a removed endpoint, or both.
        let rewritten = old.iter().zip(&new).filter(|(a, b)| a != b).count();
        let gone = old.iter().filter(|b| !wanted.contains(b)).count();
        prop_assert!(rewritten <= gone, "{} rewritten, {} gone", rewritten, gone);
    }
}
