use super::*;
use crate::change_handler::ChangeHandler as _;
use proto_daemon::metrics::{BuildInfo, Metrics};
use proto_daemon::ready::Readiness;
use proto_daemon::statusz::StatusBoard;
use proxy_kernel::FakeTransport;
use proxy_netfilter::ack::errno;
use proxy_netfilter::nft::{Family, Ruleset, TableRules};
use proxy_rules::Dataplane;
use proxy_rules::diff::{Difference, diff};
use proxy_rules::layout::FAMILIES;
use proxy_rules::model::{
    EndpointState, LocalEndpoint, LocalPort, LocalService, LocalSlice, Locality, Protocol,
    ServiceId, Settings, SlicePort,
};

const TABLE: &str = "orch-proxy";

fn driver() -> Driver<FakeTransport> {
    driver_at(FakeTransport::default())
}

fn driver_at<T: Transport>(transport: T) -> Driver<T> {
    let layout = Layout {
        table: TABLE.into(),
        flags: TableFlags::NONE,
        families: FAMILIES.into(),
        settings: Settings::default(),
    };
    let registry = Metrics::new("x", BuildInfo { version: "0", commit: "0" }).unwrap();
    let metrics = ProxyMetrics::register(&registry, "x").unwrap();
    Driver::new(
        Arc::new(DesiredForwarding::new(Dataplane::new(layout))),
        Session::new(transport),
        crate::conntrack_cleanup::start(metrics.clone(), None, Duration::ZERO, Duration::ZERO)
            .unwrap(),
        metrics,
        StatusBoard::default().task("forwarding"),
        Readiness::default().guard("forwarding"),
        SyncIntervals { read_back: Duration::from_secs(900), between: Duration::ZERO },
    )
}

fn id() -> ServiceId {
    ServiceId::new("ns", "web")
}

fn service(last: u8) -> LocalService {
    let port = LocalPort { name: "".into(), protocol: Protocol::Tcp, port: 80, node_port: None };
    LocalService {
        cluster_ips: [[10, 96, 0, last].into()].into(),
        ports: [port].into(),
        ..LocalService::default()
    }
}

fn endpoints(lasts: &[u8]) -> LocalSlice {
    let endpoint = |last: &u8| LocalEndpoint {
        address: [10, 244, 0, *last].into(),
        state: EndpointState::Ready,
        place: Locality::Elsewhere,
    };
    LocalSlice {
        service: id(),
        ports: [SlicePort { name: "".into(), protocol: Protocol::Tcp, port: 8080 }].into(),
        endpoints: lasts.iter().map(endpoint).collect(),
        ..LocalSlice::default()
    }
}

/// A driver that has loaded one Service with these endpoints.
fn loaded(lasts: &[u8]) -> Driver<FakeTransport> {
    let mut driver = driver();
    driver.desired.plane().service_changed(&id(), Some(Arc::new(service(1))));
    driver.desired.plane().slice_changed("s", None, Some(Arc::new(endpoints(lasts))));
    driver.pass().unwrap();
    driver
}

/// Loads alternate between two names.
fn table(driver: &Driver<FakeTransport>) -> String {
    driver.desired.plane().layout().table.clone()
}

/// Whether the kernel's tables are the desired ones.
fn is_right(driver: &mut Driver<FakeTransport>) -> bool {
    let tables = driver.desired.plane().tables();
    let name = table(driver);
    let held = driver.session().transport().kernel.ruleset();
    let none = Difference::Elements(Transaction::default());
    tables.iter().all(|(family, should)| {
        diff(*family, held.tables.get(&(*family, name.clone())), should) == none
    })
}

fn change(driver: &Driver<FakeTransport>, from: &[u8], to: &[u8]) {
    let (old, new) = (endpoints(from), endpoints(to));
    driver.desired.plane().slice_changed("s", Some(&old), Some(Arc::new(new)));
}

#[test]
fn a_change_is_one_transaction_and_nothing_is_none() {
    let mut driver = loaded(&[1, 2]);
    let before = driver.session().transport().kernel.generation();
    change(&driver, &[1, 2], &[1, 3]);
    driver.pass().unwrap();
    driver.pass().unwrap();
    assert_eq!(driver.session().transport().kernel.generation(), before + 1);
    assert!(is_right(&mut driver));
}

#[test]
fn deleted_elements_and_tables_are_restored() {
    let mut driver = loaded(&[1, 2]);
    let key = (Family::Ip, table(&driver));
    driver.session().transport().kernel.change_externally(|ruleset| {
        let table = ruleset.tables.get_mut(&key).unwrap();
        table.sets.get_mut("endpoints").unwrap().elements.pop_first();
    });
    assert!(!is_right(&mut driver));
    driver.repair().unwrap();
    assert!(is_right(&mut driver));
    driver.session().transport().kernel.change_externally(|ruleset| ruleset.tables.clear());
    driver.repair().unwrap();
    assert!(is_right(&mut driver));
}

#[test]
fn a_change_that_does_not_fit_what_the_kernel_holds_leads_to_a_load() {
    let mut driver = loaded(&[1, 2]);
    let key = (Family::Ip, table(&driver));
    driver.session().transport().kernel.change_externally(|ruleset| {
        ruleset.tables.get_mut(&key).unwrap().sets.get_mut("endpoints").unwrap().elements.clear();
    });
    change(&driver, &[1, 2], &[1]);
    assert!(matches!(driver.pass(), Err(SyncError::Change(error)) if error.errno() == Some(2)));
    driver.pass().unwrap();
    assert!(is_right(&mut driver));
}

#[test]
fn conflicts_are_tried_again_and_then_looked_into() {
    let mut driver = loaded(&[1, 2]);
    assert!(!driver.was_changed());
    for _ in 0..40 {
        driver.session().transport().kernel.change_externally(|_| {});
    }
    change(&driver, &[1, 2], &[1, 3]);
    driver.pass().unwrap();
    assert!(is_right(&mut driver));
    assert!(driver.was_changed());
    driver.repair().unwrap();
    assert!(!driver.was_changed());
}

/// Another program removes an element from each set.
fn take_out(ruleset: &mut Ruleset) {
    for set in ruleset.tables.values_mut().flat_map(|table| table.sets.values_mut()) {
        set.elements.pop_first();
    }
}

#[test]
fn changes_by_others_during_a_repair_are_repaired_or_detected() {
    let damages: [fn(&mut Ruleset); 3] = [|_| {}, take_out, |ruleset| ruleset.tables.clear()];
    for (damage, at) in damages.iter().flat_map(|damage| (0..40).map(move |at| (damage, at))) {
        let mut driver = loaded(&[1, 2]);
        driver.session().transport().kernel.change_externally(damage);
        driver.session().transport().others = Some((at, take_out));
        // A change that does not fit fails, and the next pass loads the tables.
        let repaired = driver.repair().or_else(|_| driver.pass());
        if driver.session().transport().others.is_some() {
            assert!(is_right(&mut driver), "undisturbed, {at}");
            continue;
        }
        assert!(
            repaired.is_err() || is_right(&mut driver) || driver.was_changed(),
            "what was taken out before datagram {at} stays away"
        );
    }
}

#[test]
fn without_the_right_to_large_transactions_a_load_goes_piece_by_piece() {
    let mut driver = driver();
    for n in 0..=255 {
        let id = ServiceId::new("many", &n.to_string());
        let slice = LocalSlice { service: id.clone(), ..endpoints(&[1, 2, 3, 4, 5, 6, 7, 8]) };
        driver.desired.plane().service_changed(&id, Some(Arc::new(service(n))));
        driver.desired.plane().slice_changed("s", None, Some(Arc::new(slice)));
    }
    driver.session().transport().datagram_len_max = Some(100_000);
    driver.pass().unwrap();
    assert!(is_right(&mut driver));
    assert_eq!(driver.session().transport().kernel.generation(), 7);
    // A limit below the length of a chunk is an error, not a loop.
    driver.desired.plane().invalidate();
    driver.session().transport().datagram_len_max = Some(1000);
    assert!(matches!(driver.pass(), Err(SyncError::Load(CommitError::Send { .. }))));
}

#[test]
fn a_table_that_another_owns_is_left_alone() {
    let mut driver = driver();
    driver.session().transport().kernel.change_externally(|ruleset| {
        let id = (Family::Ip, TABLE.to_owned());
        ruleset.tables.insert(id, TableRules::empty(TableFlags::OWNER));
    });
    driver.session().transport().kernel.give_away(Family::Ip, TABLE);
    let error = driver.pass().unwrap_err();
    assert!(matches!(&error, SyncError::Load(error) if error.errno() == Some(errno::EPERM)));
    assert_eq!(driver.publish(Err(error), 0), 1);
}

/// Panics when used.
struct Panics;

impl Transport for Panics {
    fn send(&mut self, _: &[u8]) -> std::io::Result<()> {
        panic!("send")
    }

    fn receive(&mut self) -> std::io::Result<&[u8]> {
        Ok(&[])
    }

    fn port(&self) -> u32 {
        1
    }
}

#[tokio::test]
async fn a_driver_whose_thread_panics_is_an_error() {
    let driver = driver_at(Panics);
    for _ in 0..2 {
        driver.desired.source_complete();
    }
    let ended = driver.run_on_thread(proto_daemon::drain::Drain::default().watch()).await;
    assert!(matches!(ended, Err(ThreadError::Ended)), "{ended:?}");
}
