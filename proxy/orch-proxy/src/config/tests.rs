use super::*;
use clap::Parser;
use proto_api::names::Profile;

fn config(words: &[&str]) -> Result<Config, String> {
    let flags = Flags::try_parse_from([&["orch-proxy"], words].concat());
    let flags = flags.map_err(|error| error.to_string())?;
    load(&flags, Names::new(Profile::default())).map_err(|error| error.to_string())
}

#[test]
fn defaults_are_those_that_are_documented() {
    let config = config(&["--hostname-override= Node-1 "]).unwrap();
    assert_eq!(config.node_name, "node-1");
    assert_eq!(config.conntrack, Conntrack::default());
    assert_eq!(config.sync_period, Duration::from_secs(900));
    assert_eq!(config.health_address, "0.0.0.0:10256".parse().unwrap());
    assert_eq!(config.metrics_address, "127.0.0.1:10249".parse().unwrap());
    assert_eq!((config.settings, config.table.as_str()), (Settings::default(), "orch-proxy"));
}

#[test]
fn flags_reach_the_configuration() {
    let config = config(&[
        "--cluster-cidr=10.244.0.0/16,fd00::/48",
        "--nodeport-addresses=192.168.0.0/16",
        "--masquerade-all",
        "--conntrack-max-per-core=0",
        "--conntrack-tcp-timeout-established=0s",
        "--config-sync-period=30s",
        "--bind-address=::",
        "--nft-table=test",
        "--pod-routes=true",
        "--announce-load-balancer-addresses=192.0.2.8-192.0.2.9,fd00:2::/120",
    ])
    .unwrap();
    let announcing = config.settings.announcing.clone().expect("ranges");
    let has = |address: &str| announcing.ranges.contains(address.parse().unwrap());
    let found = ["192.0.2.7", "192.0.2.8", "192.0.2.9", "fd00:2::ff", "fd00:3::1"].map(has);
    assert_eq!(found, [false, true, true, true, false]);
    assert_eq!(*announcing.node, config.node_name);
    assert_eq!(config.settings.cluster_cidrs.len(), 2);
    assert_eq!(config.settings.node_port_cidrs.len(), 1);
    assert_eq!(config.settings.masquerade, Masquerade::All);
    assert_eq!((config.conntrack.max_per_core, config.conntrack.min), (0, 131_072));
    assert!(config.conntrack.tcp_established.is_zero());
    assert_eq!(config.health_address, "[::]:10256".parse().unwrap());
    assert_eq!((config.table.as_str(), config.pod_routes), ("test", PodRoutes::Keep));
}

#[test]
fn invalid_settings_are_refused_by_name() {
    let refused = |words: &[&str], field: &str| {
        let error = config(words).unwrap_err();
        assert!(error.contains(field), "{error}");
    };
    refused(&["--config-sync-period=0s"], "configSyncPeriod");
    refused(&["--cluster-cidr=10.0.0.0/8,11.0.0.0/8"], "at most one block per family");
    refused(&["--cluster-cidr=x"], "--cluster-cidr");
    refused(&["--detect-local-mode=Guess"], "detectLocalMode");
    refused(&["--detect-local-mode=BridgeInterface"], "detectLocal.bridgeInterface");
    refused(&["--feature-gates=NoSuchGate=true"], "unrecognized feature gate: NoSuchGate");
    refused(&["--show-hidden-metrics-for-version=x"], "showHiddenMetricsForVersion");
    refused(&["--oom-score-adj=-1001"], "oom-score-adj");
    let flag = "--announce-load-balancer-addresses";
    refused(&[flag], flag);
    for wrong in ["true", "127.0.0.0/8", "192.0.2.1"] {
        refused(&[&format!("{flag}={wrong}")], flag);
    }
    let many = vec!["192.0.2.0/24"; 65].join(",");
    refused(&[&format!("{flag}={many}")], "announceLoadBalancerAddresses: 65 ranges");
}

#[test]
fn a_file_of_the_profile_is_read_and_flags_go_before_it() {
    let dir = std::env::temp_dir().join(format!("orch-proxy-config-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let path = dir.join("config.yaml");
    let text = "apiVersion: orchproxy.config.orch.io/v1alpha1\nkind: OrchProxyConfiguration\n\
        clusterCIDR: 10.1.0.0/16\nmode: nftables\nconntrack:\n  min: 7\n  tcpCloseWaitTimeout: 5m\n";
    std::fs::write(&path, text).unwrap();
    let flag = format!("--config={}", path.display());
    let config = config(&[&flag, "--conntrack-min=9"]).unwrap();
    assert_eq!(config.settings.cluster_cidrs, ["10.1.0.0/16".parse().unwrap()]);
    assert_eq!(config.conntrack.min, 9);
    assert_eq!(config.conntrack.tcp_close_wait, Duration::from_secs(300));
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn flags_of_kube_proxy_are_accepted() {
    let config = config(&[
        "--bind-address-hard-fail",
        "--detect-local-mode=NodeCIDR",
        "--iptables-localhost-nodeports=false",
        "--iptables-min-sync-period=1s",
        "--iptables-sync-period=30s",
        "--iptables-masquerade-bit=14",
        "--ipvs-scheduler=rr",
        "--kube-api-qps=5",
        "--profiling",
        "--feature-gates=AllAlpha=false",
        "--show-hidden-metrics-for-version=1.24",
        "--conntrack-udp-timeout=10s",
        "--oom-score-adj=-998",
        "--reset-removed-endpoints",
    ])
    .unwrap();
    assert_eq!((config.bind_failure, config.oom_score_adj), (BindFailure::End, -998));
    assert_eq!(config.detect_local, DetectLocal::NodeBlocks);
    assert_eq!(config.settings.removed, RemovedEndpointPolicy::Reset);
    assert_eq!(config.min_sync_period, Duration::from_secs(1));
    assert_eq!(config.conntrack.udp, Duration::from_secs(10));
    assert!(
        config.warnings.iter().any(|w| w.contains("--ipvs-scheduler")),
        "{:?}",
        config.warnings
    );
}

#[test]
fn a_written_configuration_can_be_given_again() {
    let ranges = "--announce-load-balancer-addresses=192.0.2.0/28,fd00::1-fd00::2";
    let cluster = "--cluster-cidr=10.7.0.0/16";
    let words = ["orch-proxy", cluster, "--conntrack-tcp-timeout-established=2h", ranges];
    let flags = Flags::try_parse_from(words).unwrap();
    let names = Names::new(Profile::Kubernetes);
    let text = write_config(&flags, names).unwrap();
    assert!(text.contains("KubeProxyConfiguration"), "{text}");
    let path = std::env::temp_dir().join(format!("orch-proxy-written-{}", std::process::id()));
    std::fs::write(&path, text).unwrap();
    let config = format!("--config={}", path.display());
    let flags = Flags::try_parse_from(["orch-proxy", &config]).unwrap();
    let config = load(&flags, names).unwrap();
    assert_eq!(config.settings.cluster_cidrs, ["10.7.0.0/16".parse().unwrap()]);
    assert_eq!(config.conntrack.tcp_established, Duration::from_secs(7200));
    let ranges = config.settings.announcing.expect("ranges").ranges;
    assert!(ranges.contains("fd00::2".parse().unwrap()));
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn the_operation_is_chosen_by_command_or_flag() {
    let act = |words: &[&str]| {
        let flags = Flags::try_parse_from([&["orch-proxy"], words].concat()).unwrap();
        format!("{:?}", flags.operation()).split('(').next().unwrap_or_default().to_owned()
    };
    assert_eq!(act(&[]), "Forward");
    assert_eq!(act(&["--cleanup"]), "CleanUp");
    assert_eq!(act(&["--cleanup=false"]), "Forward");
    assert_eq!(act(&["--masquerade-all", "cleanup"]), "CleanUp");
    assert_eq!(act(&["--init-only"]), "Prepare");
    assert_eq!(act(&["--write-config-to=/x"]), "WriteConfig");
    assert_eq!(act(&["trace", "tcp", "10.0.0.1", "80", "--from", "10.0.0.2"]), "Trace");
}
