//! Services and their frontends, as tables.

use super::*;
use proptest::prelude::*;
use proxy_rules::model::{EndpointState, LocalEndpoint, Locality, SlicePort};

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn service() -> LocalService {
    let port = |name: &str, protocol, port, node_port| LocalPort {
        name: name.into(),
        protocol,
        port,
        node_port,
    };
    LocalService {
        cluster_ips: [ip("10.96.0.1"), ip("fd96::1")].into(),
        ports: [
            port("http", Protocol::Tcp, 80, Some(30_080)),
            port("dns", Protocol::Udp, 53, None),
            port("sctp", Protocol::Sctp, 7, None),
        ]
        .into(),
        ..LocalService::default()
    }
}

fn slice(endpoints: &[(&str, Locality)]) -> Arc<LocalSlice> {
    let endpoint = |(address, place): &(&str, Locality)| LocalEndpoint {
        address: ip(address),
        state: EndpointState::Ready,
        place: *place,
    };
    let port = |name: &str, protocol| SlicePort { name: name.into(), protocol, port: 8080 };
    Arc::new(LocalSlice {
        service: ServiceId::new("ns", "web"),
        ports: [port("http", Protocol::Tcp), port("dns", Protocol::Udp)].into(),
        endpoints: endpoints.iter().map(endpoint).collect(),
        ..LocalSlice::default()
    })
}

fn plan() -> Plan {
    let settings =
        Settings { cluster_cidrs: vec!["10.244.0.0/16".parse().unwrap()], ..Settings::default() };
    let mut plan = Plan::new(settings);
    plan.node_changed(["192.0.2.1", "127.0.0.1", "fe80::1"].map(ip).into());
    plan.nodes_changed(["192.0.2.1", "192.0.2.2"].map(ip).into());
    plan
}

/// Each frontend with its endpoints for clients inside and outside.
fn opened(changes: &ListenerChanges) -> Vec<String> {
    let text = |(frontend, target): &(Frontend, Arc<FrontendBackends>)| {
        format!(
            "{:?} {} -> {:?} {:?}",
            frontend.protocol, frontend.at, target.inside, target.outside
        )
    };
    changes.open.iter().map(text).collect()
}

#[test]
fn every_frontend_of_a_service_leads_to_its_endpoints() {
    let mut plan = plan();
    let id = ServiceId::new("ns", "web");
    plan.service_changed(&id, Some(Arc::new(service())));
    // Without endpoints nothing listens: the kernel refuses clients.
    assert!(plan.pass().is_empty());
    assert_eq!(plan.addresses(), ["10.96.0.1", "fd96::1"].map(ip).into());
    plan.slice_changed("a", None, Some(slice(&[("10.244.0.5", Locality::Here)])));
    let all = "[10.244.0.5:8080] [10.244.0.5:8080]";
    assert_eq!(
        opened(&plan.pass()),
        [
            format!("Tcp 10.96.0.1:80 -> {all}"),
            format!("Tcp 127.0.0.1:30080 -> {all}"),
            format!("Tcp 192.0.2.1:30080 -> {all}"),
            format!("Udp 10.96.0.1:53 -> {all}"),
        ]
    );
    assert!(plan.pass().is_empty());
    let two = slice(&[("10.244.0.5", Locality::Here), ("10.244.1.5", Locality::Elsewhere)]);
    plan.slice_changed("a", Some(&slice(&[])), Some(two.clone()));
    assert_eq!(plan.pass().open.len(), 4);
    plan.slice_changed("a", Some(&two), None);
    let changes = plan.pass();
    assert_eq!((changes.close.len(), changes.open.len()), (4, 0));
    plan.service_changed(&id, None);
    assert!(plan.pass().is_empty() && plan.addresses().is_empty() && plan.services.is_empty());
}

#[test]
fn policies_decide_who_gets_which_endpoint() {
    let mut plan = plan();
    let mut local = LocalService { external: Policy::Local, ..service() };
    local.external_ips = [ip("198.51.100.1")].into();
    local.load_balancer_ips = [ip("203.0.113.1")].into();
    local.source_ranges = ["192.0.2.0/24".parse().unwrap()].into();
    plan.service_changed(&ServiceId::new("ns", "web"), Some(Arc::new(local)));
    let two = slice(&[("10.244.0.5", Locality::Here), ("10.244.1.5", Locality::Elsewhere)]);
    plan.slice_changed("a", None, Some(two));
    let changes = plan.pass();
    let (one, both) = ("[10.244.0.5:8080]", "[10.244.0.5:8080, 10.244.1.5:8080]");
    let tcp: Vec<String> = opened(&changes).into_iter().filter(|l| l.starts_with("Tcp")).collect();
    assert_eq!(
        tcp,
        [
            format!("Tcp 10.96.0.1:80 -> {both} {both}"),
            format!("Tcp 127.0.0.1:30080 -> {both} {one}"),
            format!("Tcp 192.0.2.1:30080 -> {both} {one}"),
            format!("Tcp 198.51.100.1:80 -> {both} {one}"),
            format!("Tcp 203.0.113.1:80 -> {both} {one}"),
        ]
    );
    let inside = plan.inside();
    for (client, expected) in [
        ("10.244.7.7", true),
        ("192.0.2.1", true),
        ("10.96.0.1", true),
        ("127.0.0.9", true),
        ("192.0.2.2", false),
    ] {
        assert_eq!(inside.contains(ip(client)), expected, "{client}");
    }
    // Only the load balancer's address has source ranges.
    let of = |at: &str| {
        let at: SocketAddr = at.parse().unwrap();
        changes.open.iter().find(|(f, _)| f.at == at).map(|(_, target)| target.clone()).unwrap()
    };
    let balanced = of("203.0.113.1:80");
    assert_eq!(balanced.backends(ip("192.0.2.9"), false).len(), 1);
    assert_eq!(balanced.backends(ip("198.51.100.9"), false).len(), 0);
    assert_eq!(balanced.backends(ip("10.244.0.9"), true).len(), 2);
    assert_eq!(of("198.51.100.1:80").backends(ip("198.51.100.9"), false).len(), 1);
}

#[test]
fn node_ports_follow_the_nodes_addresses() {
    let mut plan = plan();
    plan.settings.node_port_cidrs = vec!["192.0.2.0/24".parse().unwrap()];
    plan.service_changed(&ServiceId::new("ns", "web"), Some(Arc::new(service())));
    plan.slice_changed("a", None, Some(slice(&[("10.244.0.5", Locality::Here)])));
    let at = |changes: &ListenerChanges| {
        let node_port = |(f, _): &&(Frontend, _)| f.at.port() == 30_080;
        changes.open.iter().filter(node_port).map(|(f, _)| f.at.ip()).collect::<Vec<_>>()
    };
    assert_eq!(at(&plan.pass()), [ip("192.0.2.1")]);
    plan.node_changed(["192.0.2.2", "203.0.113.5"].map(ip).into());
    let changes = plan.pass();
    assert_eq!(at(&changes), [ip("192.0.2.2")]);
    assert_eq!(changes.close.iter().map(|f| f.at.ip()).collect::<Vec<_>>(), [ip("192.0.2.1")]);
}

#[test]
fn a_cluster_address_is_not_for_the_taking() {
    let mut plan = plan();
    let thief = LocalService {
        cluster_ips: [ip("10.96.0.9")].into(),
        external_ips: [ip("10.96.0.1")].into(),
        ..service()
    };
    plan.slice_changed("a", None, Some(slice(&[("10.244.0.5", Locality::Here)])));
    let mut stolen = (*slice(&[("10.244.0.66", Locality::Here)])).clone();
    stolen.service = ServiceId::new("a", "thief");
    plan.slice_changed("b", None, Some(Arc::new(stolen)));
    plan.service_changed(&ServiceId::new("a", "thief"), Some(Arc::new(thief)));
    plan.service_changed(&ServiceId::new("ns", "web"), Some(Arc::new(service())));
    let leads = |changes: &ListenerChanges| {
        let at: SocketAddr = "10.96.0.1:80".parse().unwrap();
        let found = changes.open.iter().find(|(f, _)| f.at == at);
        found.map(|(_, target)| target.inside[0].ip().to_string())
    };
    assert_eq!(leads(&plan.pass()).as_deref(), Some("10.244.0.5"));
    plan.service_changed(&ServiceId::new("ns", "web"), None);
    assert_eq!(leads(&plan.pass()).as_deref(), Some("10.244.0.66"));
}

/// Whether an address of a Service is assigned, at which ports it is served, and why it is refused.
fn outcome(
    plan: &mut Plan,
    address: IpAddr,
    service: LocalService,
) -> (bool, Vec<u16>, Option<AddressRefusal>) {
    let id = ServiceId::new("ns", "web");
    plan.service_changed(&id, Some(Arc::new(service)));
    let changes = plan.pass();
    let at = changes.open.iter().map(|(frontend, _)| frontend.at);
    let at = at.filter(|at| at.ip() == address && at.port() != 30_080);
    let mut ports: Vec<u16> = at.map(|at| at.port()).collect();
    ports.sort_unstable();
    let refused = changes.refused.first().map(|(_, refused)| refused[0]);
    let is_assigned = plan.addresses().contains(&address);
    plan.service_changed(&id, None);
    plan.pass();
    (is_assigned, ports, refused.filter(|(refused, _)| *refused == address).map(|(_, why)| why))
}

#[test]
fn an_address_of_another_machine_is_neither_assigned_nor_served() {
    let mut plan = plan();
    plan.settings.protected =
        ["203.0.113.6:6443", "192.0.2.1:10250"].map(|socket| socket.parse().unwrap()).into();
    plan.settings.kept_ports = [10250].into();
    plan.slice_changed("a", None, Some(slice(&[("10.244.0.5", Locality::Here)])));
    let with_kubelets_port = || {
        let mut service = service();
        let kubelet = LocalPort { port: 10250, node_port: None, ..service.ports[0].clone() };
        service.ports = [service.ports[0].clone(), kubelet].into();
        service
    };
    let refused = |why| (false, vec![], Some(why));
    for (address, expected) in [
        ("198.51.100.1", (true, vec![80, 10250], None)),
        // The node has it already.
        ("192.0.2.1", (true, vec![80], None)),
        ("192.0.2.2", refused(AddressRefusal::Node)),
        ("203.0.113.6", refused(AddressRefusal::Protected)),
        ("10.244.9.9", refused(AddressRefusal::PodRange)),
        ("127.0.0.1", refused(AddressRefusal::Special)),
        ("169.254.169.254", refused(AddressRefusal::Special)),
        ("224.0.0.1", refused(AddressRefusal::Special)),
        ("0.0.0.0", refused(AddressRefusal::Special)),
    ] {
        let list: Box<[IpAddr]> = [ip(address)].into();
        let of_user = LocalService { external_ips: list.clone(), ..with_kubelets_port() };
        let of_balancer = LocalService { load_balancer_ips: list, ..with_kubelets_port() };
        for service in [of_user, of_balancer] {
            assert_eq!(outcome(&mut plan, ip(address), service), expected, "{address}");
        }
    }
}

#[test]
fn a_node_takes_its_address_back() {
    let mut plan = Plan::new(Settings::default());
    plan.slice_changed("a", None, Some(slice(&[("10.244.0.5", Locality::Here)])));
    let external_ips = ["198.51.100.1", "192.0.2.7"].map(ip).into();
    let service = LocalService { external_ips, ..service() };
    plan.service_changed(&ServiceId::new("ns", "web"), Some(Arc::new(service)));
    let step = |plan: &mut Plan| {
        let changes = plan.pass();
        let external = |ip: &IpAddr| !ip.to_string().contains("96");
        let assigned: Vec<String> =
            plan.addresses().iter().filter(|ip| external(ip)).map(IpAddr::to_string).collect();
        (assigned.join(" "), changes.close.len(), changes.refused.len())
    };
    // Before the Nodes are known an external address may be one of them.
    assert_eq!(step(&mut plan), (String::new(), 0, 0));
    plan.nodes_changed(["192.0.2.1"].map(ip).into());
    assert_eq!(step(&mut plan), ("192.0.2.7 198.51.100.1".into(), 0, 0));
    plan.nodes_changed(["192.0.2.1", "192.0.2.7"].map(ip).into());
    assert_eq!(step(&mut plan), ("198.51.100.1".into(), 2, 1));
    // Reported once.
    plan.nodes_changed(["192.0.2.7"].map(ip).into());
    plan.zone_changed(Some("east"));
    assert_eq!(step(&mut plan), ("198.51.100.1".into(), 0, 0));
    plan.nodes_changed([].into());
    assert_eq!(step(&mut plan).0, "192.0.2.7 198.51.100.1");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// The sum of changes equals the plan of a fresh start.
    #[test]
    fn any_changes_lead_to_the_plan_of_a_fresh_start(steps in prop::collection::vec((0..3usize, 0..3usize, 0..5u8, any::<bool>()), 0..30)) {
        let mut plan = plan();
        let mut open: HashMap<Frontend, Arc<FrontendBackends>> = HashMap::new();
        let mut services: HashMap<usize, Arc<LocalService>> = HashMap::new();
        let mut slices: HashMap<usize, Arc<LocalSlice>> = HashMap::new();
        let mut nodes: BTreeSet<IpAddr> = plan.machines.nodes.clone().unwrap();
        let id = |n: usize| ServiceId::new("ns", ["a", "b", "c"][n]);
        for (which, what, act, pass) in steps {
            match act {
                0 => {
                    services.remove(&which);
                    plan.service_changed(&id(which), None);
                }
                1 => {
                    // Adjacent Services have the same addresses.
                    let address = |n: usize| IpAddr::from([10, 96, 0, u8::try_from(n).unwrap()]);
                    let mut new = service();
                    new.cluster_ips = [address(which)].into();
                    new.external_ips = [address((which + what) % 3)].into();
                    let new = Arc::new(new);
                    services.insert(which, new.clone());
                    plan.service_changed(&id(which), Some(new));
                }
                4 => {
                    nodes = [IpAddr::from([10, 96, 0, u8::try_from(which).unwrap()])].into();
                    plan.nodes_changed(nodes.clone());
                }
                _ => {
                    let new = (act == 2).then(|| {
                        let mut new = (*slice(&[("10.244.0.5", Locality::Here)])).clone();
                        new.service = id(what);
                        Arc::new(new)
                    });
                    let old = slices.remove(&which);
                    plan.slice_changed(&which.to_string(), old.as_deref(), new.clone());
                    if let Some(new) = new { slices.insert(which, new); }
                }
            }
            if pass {
                let changes = plan.pass();
                changes.close.iter().for_each(|f| drop(open.remove(f)));
                open.extend(changes.open);
            }
        }
        let changes = plan.pass();
        changes.close.iter().for_each(|f| drop(open.remove(f)));
        open.extend(changes.open);
        let mut fresh = self::plan();
        fresh.nodes_changed(nodes);
        slices.iter().for_each(|(n, s)| fresh.slice_changed(&n.to_string(), None, Some(s.clone())));
        services.iter().for_each(|(n, s)| fresh.service_changed(&id(*n), Some(s.clone())));
        let expected: HashMap<_, _> = fresh.pass().open.into_iter().collect();
        prop_assert_eq!(open, expected);
        prop_assert_eq!(plan.addresses(), fresh.addresses());
    }
}

#[test]
fn beside_the_kernel_only_node_ports_are_served_and_only_at_configured_addresses() {
    let settings = |blocks: &[&str]| Settings {
        node_port_cidrs: blocks.iter().map(|block| block.parse().unwrap()).collect(),
        ..Settings::default()
    };
    let loopback = || ["127.0.0.1", "::1"].map(ip).into();
    let id = ServiceId::new("ns", "web");
    let service = Arc::new(LocalService { external: Policy::Local, ..service() });
    let elsewhere = slice(&[("10.244.1.5", Locality::Elsewhere)]);
    let v6 = slice(&[("fd00::5", Locality::Here)]);
    let told = || {
        let slices = [("a", &elsewhere), ("b", &v6)];
        NodePortService::from_service(&service, slices.into_iter())
    };
    for (blocks, expected) in [
        (&[][..], &["127.0.0.1:30080", "[::1]:30080"][..]),
        (&["127.0.0.0/8"], &["127.0.0.1:30080"]),
        (&["192.0.2.0/24"], &[]),
    ] {
        let mut plan = Plan::of_node_ports(settings(blocks), loopback());
        plan.service_replaced(&id, told());
        let opened = plan.pass().open;
        let at: Vec<String> = opened.iter().map(|(f, _)| f.at.to_string()).collect();
        assert_eq!(at, expected);
        assert!(plan.addresses().is_empty());
        // This node reaches all endpoints of an external frontend.
        for (frontend, target) in &opened {
            let client = frontend.at.ip();
            assert_eq!(target.backends(client, plan.inside().contains(client)).len(), 1);
        }
        plan.service_replaced(&id, None);
        assert_eq!(plan.pass().close.len(), expected.len());
        assert!(plan.services.is_empty());
    }
}

#[test]
fn sctp_is_served_where_the_host_has_sockets_for_it() {
    for (sctp, unserved, count) in [(Sctp::Absent, 1, 0), (Sctp::Present, 0, 1)] {
        let mut plan = plan().with_sctp(sctp);
        plan.service_changed(&ServiceId::new("ns", "web"), Some(Arc::new(service())));
        let mut all = (*slice(&[("10.244.0.5", Locality::Here)])).clone();
        all.ports = [SlicePort { name: "sctp".into(), protocol: Protocol::Sctp, port: 9 }].into();
        plan.slice_changed("a", None, Some(Arc::new(all)));
        assert_eq!((plan.pass().open.len(), plan.unserved_len()), (count, unserved));
    }
}

#[test]
fn health_checks_report_the_ready_endpoints_of_the_node() {
    let mut plan = plan();
    let id = ServiceId::new("ns", "web");
    let asked = LocalService { health_check_port: Some(32_000), ..service() };
    plan.service_changed(&id, Some(Arc::new(asked)));
    let two = slice(&[("10.244.0.5", Locality::Here), ("10.244.1.5", Locality::Elsewhere)]);
    plan.slice_changed("a", None, Some(two.clone()));
    plan.pass();
    let check = HealthCheck { port: 32_000, local_endpoints: 1 };
    assert_eq!(plan.changed_health_checks(), Some(HealthChecks::from([(id.clone(), check)])));
    plan.slice_changed("a", Some(&two), Some(two.clone()));
    plan.pass();
    assert_eq!(plan.changed_health_checks(), None);
    plan.service_changed(&id, None);
    plan.pass();
    assert_eq!(plan.changed_health_checks(), Some(HealthChecks::new()));
}
