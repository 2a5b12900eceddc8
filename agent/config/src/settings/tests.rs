//! Files and flags as users write them.

use std::net::IpAddr;

use clap::Parser as _;

use super::*;
use crate::file::{CgroupDriver, Mode};

fn settings(args: &[&str]) -> Result<Settings, ConfigError> {
    let flags = Flags::try_parse_from([&["orchlet"], args].concat()).expect("flags");
    Settings::load(flags)
}

fn with_file(text: &str, args: &[&str]) -> Result<Settings, String> {
    let dir = tempfile::tempdir().expect("tempdir");
    let path = dir.path().join("config.yaml");
    let head = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";
    std::fs::write(&path, format!("{head}{text}")).expect("write");
    let path = path.to_str().expect("text");
    settings(&[&["--config", path], args].concat()).map_err(|error| error.to_string())
}

#[test]
fn flags_win_over_the_file() {
    let text = "maxPods: 50\nport: 10255\nclusterDNS: [10.0.0.10]\nsystemReserved: {cpu: 100m}\n\
                authentication: {x509: {clientCAFile: /ca}}\n";
    let args = ["--max-pods", "7", "--anonymous-auth", "--eviction-hard=memory.available<1Gi"];
    let settings = with_file(text, &args).expect("valid");
    assert_eq!(settings.file.max_pods, 7);
    assert_eq!(settings.file.port, 10255);
    assert_eq!(settings.file.cluster_dns, ["10.0.0.10".parse::<IpAddr>().expect("ip")]);
    assert_eq!(settings.file.system_reserved["cpu"].as_milli(), 100);
    assert_eq!(settings.file.authentication.x509.client_ca_file, Some("/ca".into()));
    assert!(settings.file.authentication.anonymous.enabled);
    assert_eq!(settings.file.eviction_hard.len(), 1);
    assert_eq!(settings.file.eviction_hard["memory.available"], "1Gi");
}

#[test]
fn a_file_closes_the_endpoint_and_flags_alone_leave_it_open() {
    let of_flags = settings(&[]).expect("valid").file;
    assert!(of_flags.authentication.anonymous.enabled && !of_flags.authentication.webhook.enabled);
    assert_eq!(of_flags.authorization.mode, Mode::AlwaysAllow);
    let of_file = with_file("maxPods: 1\n", &[]).expect("valid").file;
    assert!(!of_file.authentication.anonymous.enabled && of_file.authentication.webhook.enabled);
    assert_eq!(of_file.authorization.mode, Mode::Webhook);
}

#[test]
fn every_fault_is_listed() {
    let args = [
        "--max-pods=0",
        "--tls-cert-file=x",
        "--feature-gates=Nonsense=true",
        "--image-gc-low-threshold=90",
        "--eviction-soft=memory.available<1Gi",
        "--eviction-hard=tea.available<1",
        "--tls-cipher-suites=TLS_NONE",
        "--container-log-max-files=1",
        "--enforce-node-allocatable=pods,none",
    ];
    let text = settings(&args).expect_err("invalid").to_string();
    for part in [
        "maxPods",
        "tlsPrivateKeyFile",
        "unrecognized feature gate: Nonsense",
        "imageGCLowThresholdPercent",
        "evictionSoft.memory.available: needs a grace period",
        "evictionHard.tea.available: unknown eviction signal",
        "tlsCipherSuites",
        "containerLogMaxFiles",
        "enforceNodeAllocatable: cannot contain other values",
    ] {
        assert!(text.contains(part), "{part} in {text}");
    }
    let text = settings(&["--authorization-mode=Maybe"]).expect_err("invalid").to_string();
    assert!(text.contains("authorization.mode: unknown variant `Maybe`"), "{text}");
    let text = with_file("maxPod: 1\n", &[]).expect_err("invalid");
    assert!(text.contains("maxPod: unknown field"), "{text}");
    let text = settings(&[
        "--rotate-server-certificates",
        "--feature-gates=RotateKubeletServerCertificate=false",
    ]);
    assert!(
        text.expect_err("invalid")
            .to_string()
            .contains("serverTLSBootstrap: needs the feature gate")
    );
}

#[test]
fn the_whole_file_of_another_agent_is_accepted() {
    // As `kubeadm` writes it, with empty values for what is not set.
    let text = "
address: 0.0.0.0
authentication:
  anonymous: {enabled: false}
  webhook: {cacheTTL: 0s, enabled: true}
  x509: {clientCAFile: /etc/ca.crt}
authorization:
  mode: Webhook
  webhook: {cacheAuthorizedTTL: 0s, cacheUnauthorizedTTL: 0s}
cgroupDriver: systemd
clusterDNS: [10.96.0.10]
clusterDomain: cluster.local
cpuManagerReconcilePeriod: 0s
evictionPressureTransitionPeriod: 0s
fileCheckFrequency: 20s
healthzBindAddress: 127.0.0.1
healthzPort: 10248
imageMinimumGCAge: 0s
logging: {flushFrequency: 0, options: {json: {infoBufferSize: \"0\"}}, verbosity: 0}
memorySwap: {}
nodeStatusUpdateFrequency: 10s
rotateCertificates: true
staticPodPath: \"\"
staticPodURL: \"\"
tlsCertFile: \"\"
";
    let settings = with_file(text, &[]).expect("valid");
    assert_eq!(
        (settings.file.cgroup_driver, settings.file.static_pod_path),
        (CgroupDriver::Systemd, None)
    );
    assert_eq!(settings.warnings, Vec::<String>::new());
}

#[test]
fn flags_that_do_nothing_are_warned_of() {
    for flag in [
        "--enable-controller-attach-detach=false",
        "--image-service-endpoint=unix:///x",
        "--protect-kernel-defaults",
        "--qos-reserved=memory=50%",
        "--streaming-connection-idle-timeout=1h",
        "--max-open-files=5",
        "--oom-score-adj=0",
        "--pods-per-core=10",
    ] {
        let warnings = settings(&[flag]).expect(flag).warnings;
        assert!(
            matches!(&warnings[..], [one] if one.contains("no effect")),
            "{flag}: {warnings:?}"
        );
    }
}

#[test]
fn unused_flags_have_warnings_and_configz_shows_the_effective_settings() {
    let settings =
        settings(&["--sync-frequency=1s", "--feature-gates=NodeSwap=true", "--naming=kubernetes"])
            .expect("valid");
    assert_eq!(settings.warnings.len(), 2, "{:?}", settings.warnings);
    let shown = settings.to_configz();
    let config = &shown["kubeletconfig"];
    assert_eq!(
        (&config["maxPods"], &config["featureGates"]["NodeSwap"]),
        (&110.into(), &true.into())
    );
    assert_eq!(config["featureGates"]["SeccompDefault"], true);
}
