use super::*;

fn good() -> Facts {
    Facts {
        is_root: true,
        cpus: 2,
        memory_mib: 4000,
        swap: None,
        has_cgroups: true,
        has_netfilter: true,
        missing_programs: Vec::new(),
        name_lookup: NameLookup::Found,
        has_address: true,
        busy_ports: Vec::new(),
        existing: Vec::new(),
        not_empty: Vec::new(),
        ip_forward: Some("1".into()),
        bridge_netfilter: Some("1".into()),
        has_bridge_module: true,
        has_cni_plugins: true,
        runtime: Ok(RuntimeFacts::default()),
        etcd: Vec::new(),
    }
}

fn wanted() -> PreflightScope {
    PreflightScope {
        role: Role::ControlPlane,
        node: "n".into(),
        runtime: "unix:///r".into(),
        bin_dir: "/b".into(),
        programs: Vec::new(),
        ports: Vec::new(),
        address: None,
        absent: Vec::new(),
        empty: Vec::new(),
        may_swap: false,
        seen_by_units: Vec::new(),
        resumes: false,
        etcd: None,
    }
}

fn names(findings: &[PreflightFinding]) -> Vec<(&str, PreflightLevel)> {
    findings.iter().map(|finding| (finding.name.as_str(), finding.level)).collect()
}

fn bad() -> Facts {
    Facts {
        is_root: false,
        cpus: 1,
        memory_mib: 100,
        swap: Some("/dev/s".into()),
        has_cgroups: false,
        has_netfilter: false,
        missing_programs: vec!["orchlet"],
        busy_ports: vec![6443],
        existing: vec!["/etc/kubernetes/kubelet.conf".into()],
        not_empty: vec!["/var/lib/orch-apiserver".into()],
        ip_forward: Some("0".into()),
        bridge_netfilter: None,
        has_bridge_module: false,
        has_cni_plugins: false,
        runtime: Err(RuntimeSilent("refused".into())),
        ..good()
    }
}

#[test]
fn a_good_host_passes() {
    assert_eq!(check(&good(), &wanted()), []);
}

#[test]
fn all_failed_preflight_checks_are_reported_with_the_names_of_kubeadm() {
    let findings = check(&bad(), &wanted());
    assert_eq!(
        names(&findings),
        [
            ("IsPrivilegedUser", PreflightLevel::Error),
            ("NumCPU", PreflightLevel::Error),
            ("Mem", PreflightLevel::Error),
            ("Swap", PreflightLevel::Error),
            ("SystemVerification", PreflightLevel::Error),
            ("SystemVerification", PreflightLevel::Warning),
            ("FileExisting-orchlet", PreflightLevel::Error),
            ("Port-6443", PreflightLevel::Error),
            ("FileAvailable--etc-kubernetes-kubelet.conf", PreflightLevel::Error),
            ("DirAvailable--var-lib-orch-apiserver", PreflightLevel::Error),
            ("FileContent--proc-sys-net-ipv4-ip_forward", PreflightLevel::Warning),
            ("FileContent--proc-sys-net-bridge-bridge-nf-call-iptables", PreflightLevel::Error),
            ("FileExisting-cni", PreflightLevel::Error),
            ("CRI", PreflightLevel::Error),
        ]
    );
}

#[test]
fn a_module_that_a_unit_loads_is_no_error() {
    let findings = check(&Facts { bridge_netfilter: None, ..good() }, &wanted());
    let bridge = "FileContent--proc-sys-net-bridge-bridge-nf-call-iptables";
    assert_eq!(names(&findings), [(bridge, PreflightLevel::Warning)]);
}

#[test]
fn a_run_that_is_continued_finds_its_own_files_and_programs() {
    let findings = check(&bad(), &PreflightScope { resumes: true, ..wanted() });
    let own = ["Port-", "FileAvailable-", "DirAvailable-"];
    assert!(!findings.iter().any(|f| own.iter().any(|prefix| f.name.starts_with(prefix))));
}

#[test]
fn a_node_needs_less_than_a_control_plane() {
    let small = Facts { cpus: 1, memory_mib: 500, ..good() };
    assert_eq!(check(&small, &PreflightScope { role: Role::Node, ..wanted() }), []);
}

#[test]
fn names_of_nodes_are_dns_names() {
    for (name, is_one) in
        [("a", true), ("a.b-c", true), ("", false), ("A", false), ("a_b", false), ("-a", false)]
    {
        let found = check(&good(), &PreflightScope { node: name.into(), ..wanted() });
        assert_eq!(found.is_empty(), is_one, "{name:?}");
    }
    assert!(!dns_names::is_name(&"a".repeat(64)));
    let unresolved = check(&Facts { name_lookup: NameLookup::Missing, ..good() }, &wanted());
    assert_eq!(names(&unresolved), [("Hostname", PreflightLevel::Warning)]);
}

#[test]
fn program_directories_invisible_to_systemd_units_are_refused() {
    let of =
        |dir: &str| check(&good(), &PreflightScope { seen_by_units: vec![dir.into()], ..wanted() });
    for good in ["/usr/bin", "/opt/orch", "/rooted", "/var/tmpfiles"] {
        assert_eq!(of(good), [], "{good}");
    }
    for bad in ["/root/bin", "/home/a/b", "/tmp/x", "/var/tmp/x", "/run/user/0"] {
        let found = of(bad);
        assert_eq!(found.len(), 1, "{bad}");
        assert_eq!(found[0].level, PreflightLevel::Error);
        assert!(found[0].name.starts_with("DirVisible-"));
    }
}

#[test]
fn an_address_of_another_host_is_an_error_and_no_address_is_none() {
    let elsewhere = Facts { has_address: false, ..good() };
    assert_eq!(check(&elsewhere, &wanted()), []);
    let advertised = PreflightScope { address: Some([192, 0, 2, 1].into()), ..wanted() };
    assert_eq!(
        names(&check(&elsewhere, &advertised)),
        [("AdvertiseAddress", PreflightLevel::Error)]
    );
    assert_eq!(check(&good(), &advertised), []);
}

#[test]
fn a_silent_name_server_and_an_unknown_name_have_different_warnings() {
    let of = |name_lookup| {
        let findings = check(&Facts { name_lookup, ..good() }, &wanted());
        assert_eq!(names(&findings), [("Hostname", PreflightLevel::Warning)]);
        findings[0].message.clone()
    };
    assert!(of(NameLookup::Missing).contains("no address in /etc/hosts or DNS"));
    assert!(of(NameLookup::NoAnswer(3)).contains("within 3 s"));
}

#[test]
fn every_member_of_etcd_that_cannot_be_used_is_named() {
    let member = |endpoint: &str, version: Result<&str, &str>| EtcdMember {
        endpoint: endpoint.into(),
        version: version.map(str::to_owned).map_err(|why| EtcdSilent(why.to_owned())),
    };
    let facts = Facts {
        etcd: vec![
            member("http://a:1", Ok("3.4.23")),
            member("http://b:1", Err("connection refused")),
            member("http://c:1", Ok("3.3.27")),
            member("http://d:1", Ok("nonsense")),
            member("http://e:1", Ok("3.10.0")),
            member("http://f:1", Ok("4.0.0")),
        ],
        ..good()
    };
    let found = check(&facts, &wanted());
    let expected = [("ExternalEtcdVersion", PreflightLevel::Error); 3];
    assert_eq!(names(&found), expected, "{found:?}");
    assert!(found[0].message.contains("http://b:1") && found[0].message.contains("refused"));
    assert!(found[1].message.contains("http://c:1") && found[1].message.contains("3.4 or newer"));
    assert!(found[2].message.contains("http://d:1"));
}
