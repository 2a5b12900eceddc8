//! Queries and responses, as tables.

use super::*;
use proptest::prelude::*;

fn ports(list: &[(&str, &'static str, u16)]) -> Box<[NamedPort]> {
    let port = |&(name, protocol, port): &(&str, &'static str, u16)| NamedPort {
        name: name.into(),
        protocol,
        port,
    };
    list.iter().map(port).collect()
}

fn service(leads: ServiceTarget, list: &[(&str, &'static str, u16)]) -> Option<Arc<NamedService>> {
    Some(Arc::new(NamedService { leads, ports: ports(list) }))
}

fn slice(
    service: &str,
    list: &[(&str, &'static str, u16)],
    endpoints: &[(&str, &str)],
) -> Arc<NamedSlice> {
    let endpoint = |&(hostname, address): &(&str, &str)| NamedEndpoint {
        address: address.parse().unwrap(),
        hostname: hostname.into(),
    };
    Arc::new(NamedSlice {
        namespace: "demo".into(),
        service: service.into(),
        ports: ports(list),
        endpoints: endpoints.iter().map(endpoint).collect(),
    })
}

fn zone() -> Zone {
    let mut zone = Zone::new("Cluster.Local", ("system", "dns")).unwrap();
    let itself = |list: &[&str]| {
        ServiceTarget::ToItself(list.iter().map(|ip| ip.parse().unwrap()).collect())
    };
    let own = service(itself(&["10.96.0.10"]), &[("dns", "udp", 53), ("dns-tcp", "tcp", 53)]);
    zone.service_changed("system", "dns", own);
    let web = service(itself(&["10.96.0.20", "fd96::20"]), &[("http", "tcp", 80), ("", "udp", 9)]);
    zone.service_changed("demo", "web", web);
    zone.service_changed(
        "demo",
        "db",
        service(ServiceTarget::ToEndpoints, &[("sql", "tcp", 5432)]),
    );
    zone.service_changed(
        "demo",
        "idle",
        service(ServiceTarget::ToEndpoints, &[("sql", "tcp", 5432)]),
    );
    zone.service_changed(
        "demo",
        "out",
        service(ServiceTarget::ToName("www.example.com".into()), &[]),
    );
    let alias = ServiceTarget::ToName("web.demo.svc.cluster.local".into());
    zone.service_changed("demo", "alias", service(alias, &[]));
    let ring = |to: &str| {
        service(ServiceTarget::ToName(format!("{to}.demo.svc.cluster.local").into()), &[])
    };
    zone.service_changed("demo", "ring-a", ring("ring-b"));
    zone.service_changed("demo", "ring-b", ring("ring-a"));
    let sql = [("sql", "tcp", 15_432)];
    zone.slice_changed(
        "db-4",
        None,
        Some(slice("db", &sql, &[("db-0", "10.244.0.5"), ("10-244-1-6", "10.244.1.6")])),
    );
    zone.slice_changed("db-6", None, Some(slice("db", &sql, &[("db-0", "fd00::5")])));
    // Endpoints of a Service with a cluster IP have no names, regardless of the author of the EndpointSlice.
    zone.slice_changed(
        "web-4",
        None,
        Some(slice("web", &[("http", "tcp", 8080)], &[("web-0", "10.244.0.9")])),
    );
    zone
}

/// The response code, and each record as text without name and TTL.
fn ask(zone: &Zone, name: &str, kind: RecordType) -> String {
    let name = Name::from_ascii(name).unwrap();
    let text = |records: &[Record]| {
        let text = |r: &Record| format!(" {} {}", r.record_type(), r.data);
        records.iter().map(text).collect::<String>()
    };
    match zone.resolve_query(&Query::query(name, kind), 0) {
        Resolution::Elsewhere => "elsewhere".to_owned(),
        Resolution::Continues { records, target } => {
            format!("continues{} ? {target}", text(&records))
        }
        Resolution::Answered(reply) => {
            let has_authority =
                reply.authorities.iter().any(|r| r.record_type() == RecordType::SOA);
            let about_nothing = reply.answers.is_empty() && reply.code != ResponseCode::Refused;
            assert_eq!(
                has_authority, about_nothing,
                "an answer without records says how long: {reply:?}"
            );
            let code = match reply.code {
                ResponseCode::NoError => "ok",
                ResponseCode::NXDomain => "none",
                ResponseCode::Refused => "refused",
                ResponseCode::ServFail => "failed",
                _ => "?",
            };
            format!("{code}{}", text(&reply.answers))
        }
    }
}

#[test]
#[allow(clippy::too_many_lines, reason = "one table")]
fn dns_names_resolve_as_in_the_specification() {
    use RecordType::{A, AAAA, ANY, AXFR, CNAME, MX, NS, PTR, SOA, SRV, TXT};
    let zone = zone();
    let cases = [
        // A Service with a cluster IP.
        ("web.demo.svc.cluster.local.", A, "ok A 10.96.0.20"),
        ("WEB.Demo.svc.CLUSTER.local.", A, "ok A 10.96.0.20"),
        ("web.demo.svc.cluster.local.", AAAA, "ok AAAA fd96::20"),
        ("web.demo.svc.cluster.local.", ANY, "ok A 10.96.0.20 AAAA fd96::20"),
        ("web.demo.svc.cluster.local.", MX, "ok"),
        ("web.demo.svc.cluster.local.", CNAME, "ok"),
        ("dns.system.svc.cluster.local.", AAAA, "ok"),
        ("web-0.web.demo.svc.cluster.local.", A, "none"),
        // Its ports.
        (
            "_http._tcp.web.demo.svc.cluster.local.",
            SRV,
            "ok SRV 0 100 80 web.demo.svc.cluster.local.",
        ),
        ("_http._tcp.web.demo.svc.cluster.local.", A, "ok"),
        ("_tcp.web.demo.svc.cluster.local.", SRV, "ok"),
        ("_sctp.web.demo.svc.cluster.local.", SRV, "none"),
        ("_http._udp.web.demo.svc.cluster.local.", SRV, "none"),
        ("_https._tcp.web.demo.svc.cluster.local.", SRV, "none"),
        ("http.tcp.web.demo.svc.cluster.local.", SRV, "none"),
        (
            "web.demo.svc.cluster.local.",
            SRV,
            "ok SRV 0 50 80 web.demo.svc.cluster.local. SRV 0 50 9 web.demo.svc.cluster.local.",
        ),
        // A headless Service.
        ("db.demo.svc.cluster.local.", A, "ok A 10.244.0.5 A 10.244.1.6"),
        ("db.demo.svc.cluster.local.", AAAA, "ok AAAA fd00::5"),
        ("db-0.db.demo.svc.cluster.local.", A, "ok A 10.244.0.5"),
        ("db-0.db.demo.svc.cluster.local.", AAAA, "ok AAAA fd00::5"),
        ("10-244-1-6.db.demo.svc.cluster.local.", A, "ok A 10.244.1.6"),
        ("db-1.db.demo.svc.cluster.local.", A, "none"),
        (
            "_sql._tcp.db.demo.svc.cluster.local.",
            SRV,
            "ok SRV 0 50 15432 db-0.db.demo.svc.cluster.local. SRV 0 50 15432 10-244-1-6.db.demo.svc.cluster.local.",
        ),
        ("idle.demo.svc.cluster.local.", A, "none"),
        // Other names.
        ("out.demo.svc.cluster.local.", A, "continues CNAME www.example.com. ? www.example.com."),
        ("out.demo.svc.cluster.local.", CNAME, "ok CNAME www.example.com."),
        ("alias.demo.svc.cluster.local.", CNAME, "ok CNAME web.demo.svc.cluster.local."),
        ("x.out.demo.svc.cluster.local.", A, "none"),
        ("alias.demo.svc.cluster.local.", A, "ok CNAME web.demo.svc.cluster.local. A 10.96.0.20"),
        // Pods.
        ("10-244-0-5.demo.pod.cluster.local.", A, "ok A 10.244.0.5"),
        ("10-244-0-5.demo.pod.cluster.local.", AAAA, "ok"),
        ("fd00--5.demo.pod.cluster.local.", AAAA, "ok AAAA fd00::5"),
        ("x.demo.pod.cluster.local.", A, "none"),
        // Addresses.
        ("20.0.96.10.in-addr.arpa.", PTR, "ok PTR web.demo.svc.cluster.local."),
        ("20.0.96.10.in-addr.arpa.", A, "ok"),
        ("5.0.244.10.in-addr.arpa.", PTR, "ok PTR db-0.db.demo.svc.cluster.local."),
        ("6.1.244.10.IN-ADDR.arpa.", PTR, "ok PTR 10-244-1-6.db.demo.svc.cluster.local."),
        ("9.0.244.10.in-addr.arpa.", PTR, "elsewhere"),
        (
            "5.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.d.f.ip6.arpa.",
            PTR,
            "ok PTR db-0.db.demo.svc.cluster.local.",
        ),
        ("0.96.10.in-addr.arpa.", PTR, "elsewhere"),
        // The domain itself, and empty non-terminals.
        ("cluster.local.", NS, "ok NS ns.dns.cluster.local."),
        ("cluster.local.", A, "ok"),
        ("ns.dns.cluster.local.", A, "ok A 10.96.0.10"),
        ("dns-version.cluster.local.", TXT, "ok TXT 1.1.0"),
        ("svc.cluster.local.", A, "ok"),
        ("demo.svc.cluster.local.", A, "ok"),
        ("other.svc.cluster.local.", A, "none"),
        ("web.other.svc.cluster.local.", A, "none"),
        ("nothing.cluster.local.", A, "none"),
        // Names made by search lists.
        ("www.example.com.demo.svc.cluster.local.", A, "none"),
        ("www.example.com.svc.cluster.local.", A, "none"),
        ("www.example.com.cluster.local.", A, "none"),
        // Outside the zone.
        ("www.example.com.", A, "elsewhere"),
        ("local.", A, "elsewhere"),
        ("xcluster.local.", A, "elsewhere"),
        ("localhost.", A, "ok A 127.0.0.1"),
        ("a.localhost.", AAAA, "ok AAAA ::1"),
        ("x.invalid.", A, "none"),
        ("cluster.local.", AXFR, "refused"),
    ];
    for (name, kind, expected) in cases {
        assert_eq!(ask(&zone, name, kind), expected, "{name} {kind}");
    }
    let soa = ask(&zone, "cluster.local.", SOA);
    assert!(soa.starts_with("ok SOA ns.dns.cluster.local. hostmaster.cluster.local. "), "{soa}");
    let ring = ask_code(&zone, "ring-a.demo.svc.cluster.local.");
    assert_eq!(ring, ResponseCode::ServFail);
}

fn ask_code(zone: &Zone, name: &str) -> ResponseCode {
    match zone.resolve_query(&Query::query(Name::from_ascii(name).unwrap(), RecordType::A), 0) {
        Resolution::Answered(reply) => reply.code,
        other => panic!("{other:?}"),
    }
}

#[test]
fn ports_come_with_the_addresses_they_lead_to() {
    let name = Name::from_ascii("_sql._tcp.db.demo.svc.cluster.local.").unwrap();
    let Resolution::Answered(reply) = zone().resolve_query(&Query::query(name, RecordType::SRV), 0)
    else {
        panic!("not ours");
    };
    let mut addresses: Vec<String> =
        reply.additionals.iter().map(|r| format!("{} {}", r.name, r.data)).collect();
    addresses.sort();
    let expected = [
        "10-244-1-6.db.demo.svc.cluster.local. 10.244.1.6",
        "db-0.db.demo.svc.cluster.local. 10.244.0.5",
        "db-0.db.demo.svc.cluster.local. fd00::5",
    ];
    assert_eq!(addresses, expected);
}

#[test]
fn every_address_comes_first_in_turn() {
    let zone = zone();
    let name = Name::from_ascii("db.demo.svc.cluster.local.").unwrap();
    let first = |turn| match zone.resolve_query(&Query::query(name.clone(), RecordType::A), turn) {
        Resolution::Answered(reply) => reply.answers[0].data.to_string(),
        other => panic!("{other:?}"),
    };
    assert_eq!([first(0), first(1), first(2)], ["10.244.0.5", "10.244.1.6", "10.244.0.5"]);
}

#[test]
fn names_follow_changes() {
    let mut zone = zone();
    let old = slice(
        "db",
        &[("sql", "tcp", 15_432)],
        &[("db-0", "10.244.0.5"), ("10-244-1-6", "10.244.1.6")],
    );
    let new = slice("db", &[("sql", "tcp", 15_432)], &[("db-0", "10.244.0.7")]);
    zone.slice_changed("db-4", Some(&old), Some(new.clone()));
    assert_eq!(ask(&zone, "db-0.db.demo.svc.cluster.local.", RecordType::A), "ok A 10.244.0.7");
    assert_eq!(ask(&zone, "5.0.244.10.in-addr.arpa.", RecordType::PTR), "elsewhere");
    zone.slice_changed("db-4", Some(&new), None);
    assert_eq!(ask(&zone, "db.demo.svc.cluster.local.", RecordType::A), "ok");
    for name in ["web", "db", "idle", "out", "alias", "ring-a", "ring-b"] {
        zone.service_changed("demo", name, None);
    }
    assert_eq!(ask(&zone, "20.0.96.10.in-addr.arpa.", RecordType::PTR), "elsewhere");
    assert_eq!(zone.services_len(), 1);
    for (name, service, endpoints) in
        [("db-6", "db", ("db-0", "fd00::5")), ("web-4", "web", ("web-0", "10.244.0.9"))]
    {
        zone.slice_changed(name, Some(&slice(service, &[], &[endpoints])), None);
    }
    assert_eq!(ask(&zone, "demo.svc.cluster.local.", RecordType::A), "none");
    assert_eq!((zone.namespaces.len(), zone.addresses.len()), (1, 1));
}

#[test]
fn a_zone_with_an_invalid_domain_is_refused() {
    for wrong in ["", ".", "a..b"] {
        assert!(Zone::new(wrong, ("a", "b")).is_err(), "{wrong}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// After any history a zone responds like a new one with the same objects.
    #[test]
    fn any_history_leads_to_the_zone_of_a_fresh_start(steps in prop::collection::vec((0..4usize, 0..4usize, 0..3u8), 0..40)) {
        let names = ["a", "b", "c", "d"];
        let mut zone = Zone::new("cluster.local", ("system", "dns")).unwrap();
        let mut services: HashMap<usize, Arc<NamedService>> = HashMap::new();
        let mut slices: HashMap<usize, Arc<NamedSlice>> = HashMap::new();
        for (which, what, act) in steps {
            if act == 0 {
                let leads = match what {
                    0 => None,
                    1 => Some(ServiceTarget::ToItself([IpAddr::from([10, 0, 0, 1])].into())),
                    2 => Some(ServiceTarget::ToEndpoints),
                    _ => Some(ServiceTarget::ToName("x.example".into())),
                };
                let new = leads.and_then(|leads| service(leads, &[("p", "tcp", 1)]));
                zone.service_changed("demo", names[which], new.clone());
                match new { Some(new) => services.insert(which, new), None => services.remove(&which) };
            } else {
                // The EndpointSlice `which` belongs to the Service `what`, and may move.
                let new = (act == 1).then(|| slice(names[what], &[("p", "tcp", 1)], &[("h", "10.1.0.1")]));
                zone.slice_changed(names[which], slices.get(&which).map(|s| &**s), new.clone());
                match new { Some(new) => slices.insert(which, new), None => slices.remove(&which) };
            }
        }
        let mut fresh = Zone::new("cluster.local", ("system", "dns")).unwrap();
        slices.iter().for_each(|(which, slice)| fresh.slice_changed(names[*which], None, Some(slice.clone())));
        services.iter().for_each(|(which, s)| fresh.service_changed("demo", names[*which], Some(s.clone())));
        let questions = names.iter().map(|name| format!("{name}.demo.svc.cluster.local."))
            .chain(["1.0.1.10.in-addr.arpa.".to_owned(), "1.0.0.10.in-addr.arpa.".to_owned()]);
        for question in questions {
            for kind in [RecordType::A, RecordType::SRV, RecordType::PTR] {
                let sorted = |zone: &Zone| {
                    let text = ask(zone, &question, kind);
                    let mut words: Vec<String> = text.split(' ').map(str::to_owned).collect();
                    words.sort();
                    words
                };
                prop_assert_eq!(sorted(&zone), sorted(&fresh), "{}", question);
            }
        }
    }
}

/// Work may grow with the objects or the response, and by a logarithm.
fn check(what: &str, cost: impl Fn(u32) -> u64) {
    let sizes = [100, 200, 400, 800];
    let costs = sizes.map(cost);
    for pair in costs.windows(2) {
        assert!(pair[0] > 0 && pair[1] <= pair[0] * 5 / 2, "{what}: {costs:?} steps for {sizes:?}");
    }
}

/// An EndpointSlice of a headless Service with `count` endpoints, each with a name.
fn many(address: impl Fn(u32) -> IpAddr, count: u32) -> Arc<NamedSlice> {
    let endpoint = |n: u32| NamedEndpoint { address: address(n), hostname: format!("h{n}").into() };
    Arc::new(NamedSlice {
        namespace: "demo".into(),
        service: "db".into(),
        ports: ports(&[("sql", "tcp", 5432)]),
        endpoints: (0..count).map(endpoint).collect(),
    })
}

fn own_address(n: u32) -> IpAddr {
    std::net::Ipv4Addr::from(0x0af4_0000 + n).into()
}

#[test]
fn changes_and_questions_cost_what_they_are_about() {
    check("slices of a service", |count| {
        let mut zone = zone();
        proto_api::steps::count_during(|| {
            for n in 0..count {
                zone.slice_changed(&n.to_string(), None, Some(many(|_| own_address(n), 1)));
            }
            for n in 0..count {
                let old = many(|_| own_address(n), 1);
                zone.slice_changed(&n.to_string(), Some(&old), None);
            }
        })
    });
    let ask = |zone: &Zone, name: &str, kind| {
        let query = Query::query(Name::from_ascii(name).unwrap(), kind);
        match zone.resolve_query(&query, 0) {
            Resolution::Answered(reply) => reply,
            other => panic!("{other:?}"),
        }
    };
    check("targets of a port", |count| {
        let mut zone = zone();
        zone.slice_changed("many", None, Some(many(own_address, count)));
        proto_api::steps::count_during(|| {
            let reply = ask(&zone, "_sql._tcp.db.demo.svc.cluster.local.", RecordType::SRV);
            assert!(reply.answers.len() >= count as usize);
        })
    });
    // One address with very many names.
    let mut zone = zone();
    zone.slice_changed("many", None, Some(many(|_| own_address(9), 5000)));
    let reply = ask(&zone, "9.0.244.10.in-addr.arpa.", RecordType::PTR);
    assert_eq!(reply.answers.len(), ENDPOINTS_MAX);
}

#[test]
fn an_address_is_a_services_as_long_as_one_of_its_slices_has_it() {
    let mut zone = zone();
    let name = "7.0.244.10.in-addr.arpa.";
    let known = |zone: &Zone| {
        let query = Query::query(Name::from_ascii(name).unwrap(), RecordType::PTR);
        matches!(zone.resolve_query(&query, 0), Resolution::Answered(_))
    };
    let slice = || many(|_| own_address(7), 2);
    zone.slice_changed("one", None, Some(slice()));
    zone.slice_changed("two", None, Some(slice()));
    zone.slice_changed("two", Some(&slice()), Some(slice()));
    zone.slice_changed("one", Some(&slice()), None);
    assert!(known(&zone));
    // Its Service is removed and added.
    zone.service_changed("demo", "db", None);
    assert!(!known(&zone));
    zone.service_changed("demo", "db", service(ServiceTarget::ToEndpoints, &[]));
    zone.service_changed("demo", "db", service(ServiceTarget::ToEndpoints, &[("sql", "tcp", 1)]));
    assert!(known(&zone));
    zone.slice_changed("two", Some(&slice()), None);
    assert!(!known(&zone));
}
