//! The driver on the real kernel: loads of any size, restarts, changes by other programs.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may end anywhere")]

#[path = "../../kernel/tests/support/sys.rs"]
mod sys;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use proto_daemon::drain::Drain;
use proto_daemon::metrics::{BuildInfo, Metrics};
use proto_daemon::ready::Readiness;
use proto_daemon::statusz::StatusBoard;
use proxy_kernel::{KernelFeatures, NftMonitor, Session, Socket};
use proxy_netfilter::nft::Family;
use proxy_netfilter::nft::numbers::TableFlags;
use proxy_rules::diff::{Difference, diff};
use proxy_rules::layout::{FAMILIES, Layout};
use proxy_rules::model::{
    EndpointState, LocalEndpoint, LocalPort, LocalService, LocalSlice, Locality, Protocol,
    ServiceId, Settings, SlicePort,
};
use proxy_rules::{Dataplane, Transaction};
use proxy_sync::change_handler::ChangeHandler;
use proxy_sync::desired::DesiredForwarding;
use proxy_sync::driver::{Driver, SyncIntervals};
use proxy_sync::metrics::ProxyMetrics;
use sys::{in_namespace, in_user_namespace, run};

const TABLE: &str = "orch-proxy";
/// Long enough on a busy machine: a full read-back rests twenty times as long as the last one took.
const PATIENT: Duration = Duration::from_secs(120);
/// Less than the interval of polling with notifications.
const NOTIFIED: Duration = Duration::from_secs(25);

/// A node with `services` Services of three endpoints each, marked but not committed.
fn node(services: u32, flags: TableFlags) -> (Arc<DesiredForwarding>, Driver<Socket>) {
    node_of(services, flags, &FAMILIES)
}

/// The same on a kernel with nat tables of these families.
fn node_of(
    services: u32,
    flags: TableFlags,
    families: &[Family],
) -> (Arc<DesiredForwarding>, Driver<Socket>) {
    let layout = Layout {
        table: TABLE.into(),
        flags,
        families: families.into(),
        settings: Settings::default(),
    };
    let mut plane = Dataplane::new(layout);
    for n in 0..services {
        let id = ServiceId::new("ns", &n.to_string());
        plane.service_changed(&id, Some(Arc::new(service(n))));
        plane.slice_changed(&n.to_string(), None, Some(Arc::new(slice(&id, n))));
    }
    let desired = Arc::new(DesiredForwarding::new(plane));
    let registry = Metrics::new("x", BuildInfo { version: "0", commit: "0" }).unwrap();
    let metrics = ProxyMetrics::register(&registry, "x").unwrap();
    let driver = Driver::new(
        desired.clone(),
        Session::new(Socket::open().unwrap()),
        proxy_sync::conntrack_cleanup::start(metrics.clone(), None, Duration::ZERO, Duration::ZERO)
            .unwrap(),
        metrics,
        StatusBoard::default().task("forwarding"),
        Readiness::default().guard("forwarding"),
        SyncIntervals { read_back: Duration::from_secs(900), between: Duration::ZERO },
    );
    (desired, driver)
}

fn service(n: u32) -> LocalService {
    let port = LocalPort { name: "".into(), protocol: Protocol::Tcp, port: 80, node_port: None };
    let v6 = IpAddr::from((0xfd_u128 << 120 | u128::from(n)).to_be_bytes());
    LocalService {
        cluster_ips: [IpAddr::from((0x0a60_0000 + n).to_be_bytes()), v6].into(),
        ports: [port].into(),
        ..LocalService::default()
    }
}

fn slice(id: &ServiceId, n: u32) -> LocalSlice {
    let endpoint = |k: u32| LocalEndpoint {
        address: IpAddr::from((0x0b00_0000 + n * 4 + k).to_be_bytes()),
        state: EndpointState::Ready,
        place: Locality::Elsewhere,
    };
    LocalSlice {
        service: id.clone(),
        ports: [SlicePort { name: "".into(), protocol: Protocol::Tcp, port: 8080 }].into(),
        endpoints: (0..3).map(endpoint).collect(),
        ..LocalSlice::default()
    }
}

/// Loads alternate between two names.
fn table(desired: &DesiredForwarding) -> String {
    desired.plane().layout().table.clone()
}

/// The kernel, read over another socket, has the desired tables.
fn assert_right(desired: &DesiredForwarding) {
    let mut session = Session::new(Socket::open().unwrap());
    let tables = desired.plane().tables();
    for (family, should) in tables {
        let is = session.read_table(family, &table(desired)).unwrap();
        let none = Difference::Elements(Transaction::default());
        assert_eq!(diff(family, is.as_ref(), &should), none, "{family:?}");
    }
}

fn generation() -> u32 {
    Session::new(Socket::open().unwrap()).generation().unwrap()
}

#[test]
fn kernel_features_are_probed_without_leaving_tables() {
    in_namespace("kernel_features_are_probed_without_leaving_tables", || {
        let mut session = Session::new(Socket::open().unwrap());
        let features = KernelFeatures::probe(&mut session, "probe", &FAMILIES).unwrap();
        assert_eq!(features.families, FAMILIES);
        let none = KernelFeatures::probe(&mut session, "probe", &[]).unwrap();
        assert_eq!((none.families.len(), none.owner_flags), (0, TableFlags::NONE));
        assert_eq!(run(&["nft", "list", "tables"]), "");
    });
}

#[test]
fn a_restart_takes_the_tables_over() {
    in_namespace("a_restart_takes_the_tables_over", || {
        let mut session = Session::new(Socket::open().unwrap());
        let features = KernelFeatures::probe(&mut session, "probe", &FAMILIES).unwrap();
        if features.owner_flags == TableFlags::NONE {
            println!(
                "SKIPPED a_restart_takes_the_tables_over: this kernel's tables have no owners"
            );
            return;
        }
        let owned = TableFlags::OWNER | TableFlags::PERSIST;
        let (desired, mut first) = node(20, owned);
        first.pass().unwrap();
        assert_right(&desired);
        drop(first);
        // The socket is closed as if the process had been killed; another one takes over.
        run(&["nft", "list", "table", "ip", TABLE]);
        let before = generation();
        let (desired, mut second) = node(30, owned);
        second.pass().unwrap();
        assert_right(&desired);
        // Loaded, detached, deleted: nothing of the first is left.
        assert_eq!(generation(), before + 3);
        assert_eq!(run(&["nft", "list", "tables"]).lines().count(), FAMILIES.len());
        let (desired, mut third) = node(10, owned);
        // Tables of a running process are not replaced.
        assert!(third.pass().is_err());
        assert_eq!(table(&desired), TABLE);
        drop(second);
        third.pass().unwrap();
        assert_right(&desired);
    });
}

/// kube-proxy in nftables mode has tables without an owner, and with `--naming=kubernetes` they have the same name.
#[test]
fn tables_of_kube_proxy_with_the_same_name_are_replaced() {
    in_namespace("tables_of_kube_proxy_with_the_same_name_are_replaced", || {
        let mut session = Session::new(Socket::open().unwrap());
        let features = KernelFeatures::probe(&mut session, "probe", &FAMILIES).unwrap();
        for family in FAMILIES.map(Family::name) {
            let table = format!("{family} {TABLE}");
            run(&["nft", "add", "table", &table]);
            run(&["nft", &format!("add chain {table} services")]);
            let hook = "{ type nat hook prerouting priority -100; policy accept; }";
            run(&["nft", &format!("add chain {table} nat-prerouting {hook}")]);
            run(&["nft", &format!("add rule {table} nat-prerouting jump services")]);
        }
        let (desired, mut driver) = node(5, features.owner_flags);
        driver.pass().unwrap();
        assert_right(&desired);
        let tables = run(&["nft", "list", "tables"]);
        assert_eq!(tables.lines().count(), FAMILIES.len(), "{tables}");
        assert!(!run(&["nft", "list", "ruleset"]).contains("nat-prerouting"));
    });
}

/// Missing features of the kernel are simulated by probing for fewer.
#[test]
fn a_kernel_with_one_family_and_without_owners_serves_that_family() {
    in_namespace("a_kernel_with_one_family_and_without_owners_serves_that_family", || {
        for family in FAMILIES {
            let (desired, mut driver) = node_of(20, TableFlags::NONE, &[family]);
            driver.pass().unwrap();
            assert_right(&desired);
            let tables = run(&["nft", "list", "tables"]);
            assert_eq!(tables, format!("table {} {}\n", family.name(), table(&desired)));
            let id = ServiceId::new("ns", "3");
            desired.service_changed(&id, None);
            driver.pass().unwrap();
            assert_right(&desired);
            // Without owners other programs can change the tables at any time.
            run(&["nft", "delete", "table", family.name(), &table(&desired)]);
            driver.repair().unwrap();
            assert_right(&desired);
            run(&["nft", "flush", "ruleset"]);
        }
    });
}

#[test]
fn a_large_load_works_without_rights_over_the_machine() {
    in_user_namespace("a_large_load_works_without_rights_over_the_machine", || {
        // In one or several transactions, as the kernel allows.
        let (desired, mut driver) = node(4000, TableFlags::NONE);
        driver.pass().unwrap();
        assert_right(&desired);
    });
}

#[test]
fn deleted_elements_are_restored_and_foreign_tables_left_alone() {
    in_namespace("deleted_elements_are_restored_and_foreign_tables_left_alone", || {
        let (desired, mut driver) = node(5, TableFlags::NONE);
        driver.pass().unwrap();
        run(&["nft", "add", "table", "ip", "theirs"]);
        let key = "10.96.0.1 . tcp . 80 . 0x00000001";
        let element = format!("{{ {key} }}");
        run(&["nft", "delete", "element", "ip", &table(&desired), "endpoints", &element]);
        driver.repair().unwrap();
        assert_right(&desired);
        run(&["nft", "delete", "table", "ip6", &table(&desired)]);
        driver.repair().unwrap();
        assert_right(&desired);
        run(&["nft", "list", "table", "ip", "theirs"]);
    });
}

/// Changes by other programs are detected without notifications and repaired; their tables stay.
#[test]
fn a_running_proxy_repairs_what_others_flush_and_edit() {
    in_namespace("a_running_proxy_repairs_what_others_flush_and_edit", || {
        let (desired, driver) = node(50, TableFlags::NONE);
        repairs(&desired, driver, PATIENT);
    });
}

/// The same with notifications: polling would take longer than this test waits for what they report.
#[test]
fn a_proxy_with_notifications_repairs_flushed_and_edited_tables() {
    in_namespace("a_proxy_with_notifications_repairs_flushed_and_edited_tables", || {
        let (desired, mut driver) = node(50, TableFlags::NONE);
        driver.use_nft_monitor(NftMonitor::open().unwrap());
        repairs(&desired, driver, NOTIFIED);
    });
}

/// Changes by other programs, each repaired within `bound` before the next. Those of elements wait for the next full
/// read-back, which after one that took long is later than that: they are tried three times.
fn repairs(desired: &Arc<DesiredForwarding>, driver: Driver<Socket>, bound: Duration) {
    for _ in 0..2 {
        desired.source_complete();
    }
    let drain = Drain::default();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let watch = drain.watch();
    let running = std::thread::spawn(move || runtime.block_on(driver.run(watch)));
    wait_until_right(desired, PATIENT);
    let element = "endpoints { 10.96.0.1 . tcp . 80 . 0x00000001 }";
    let deeds = [
        ("flush ruleset".to_owned(), 1),
        ("delete table ip TABLE".to_owned(), 1),
        ("flush chain ip TABLE services".to_owned(), 1),
        ("add chain ip6 TABLE strange".to_owned(), 1),
        (format!("delete element ip TABLE {element}"), 3),
        ("flush map ip TABLE endpoints".to_owned(), 3),
    ];
    for (deed, tries) in deeds {
        let is_repaired_in_time = || {
            run(&["nft", "add", "table", "ip", "theirs"]);
            run(&["nft", "add", "set", "ip", "theirs", "s", "{ type ipv4_addr; }"]);
            run(&["nft", &deed.replace("TABLE", &table(desired))]);
            let done = Instant::now();
            let theirs = run(&["nft", "list", "tables"]).contains("theirs");
            wait_until_right(desired, PATIENT);
            println!("{deed}: right again after {:?}", done.elapsed());
            assert_eq!(run(&["nft", "list", "tables"]).contains("theirs"), theirs, "{deed}");
            done.elapsed() < bound
        };
        assert!((0..tries).any(|_| is_repaired_in_time()), "{deed}: not within {bound:?}");
    }
    let ending = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    ending.block_on(drain.drain(Duration::from_secs(60)));
    running.join().unwrap();
}

fn wait_until_right(desired: &DesiredForwarding, bound: Duration) {
    let started = std::time::Instant::now();
    loop {
        let mut session = Session::new(Socket::open().unwrap());
        let none = Difference::Elements(Transaction::default());
        let tables = desired.plane().tables();
        let right = tables.iter().all(|(family, should)| {
            // It may change or go while it is read.
            let is = session.read_table(*family, &table(desired));
            is.is_ok_and(|is| diff(*family, is.as_ref(), should) == none)
        });
        if right {
            return;
        }
        assert!(started.elapsed() < bound, "not repaired within {bound:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
