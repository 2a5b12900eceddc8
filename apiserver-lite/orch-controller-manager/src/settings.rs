//! Flags, and the settings that they are checked and converted to.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use apiserver_autoscaling_controller::AutoscalingFlags;
use apiserver_controller_io::eviction_flags::EvictionFlags;
use apiserver_controller_io::kubernetes_flags::{KubernetesFlags, UNUSED_CONTROLLERS};
use apiserver_controller_io::sync_flags::SyncFlags;
use apiserver_controllers::disruption_target;
use apiserver_controllers::node_cidr::{NodeRange, NodeRangeError};
use apiserver_controllers::node_lifecycle::{EvictionRates, GracePeriods};
use apiserver_controllers::pod_gc::OutOfServiceTaint;
use apiserver_signers::certificates::authority::CertificateAuthorityError;
use apiserver_signers::certificates::authority_files::AuthorityFiles;
use apiserver_token::SigningKey;
use apiserver_workloads::stateful_set;
use clap::Parser;
use proto_api::{AddressRange, AddressRanges, Cidr, TooManyRanges};
use proto_client::config::flags::ClientFlags;
use proto_client::serving::flags::ServingFlags;
use proto_daemon::feature_gates::GateErrors;
use proto_daemon::flags::CommonFlags;
use proto_daemon::leader_flags::LeaderFlags;
use proto_daemon::{feature_gates, go_duration};

use crate::keys::{CONTROLLERS, ONLY_BY_NAME};

/// Runs the cluster's controllers.
#[derive(Parser, Debug)]
#[command(name = "orch-controller-manager", version)]
pub struct ControllerManagerFlags {
    /// Flags of every program.
    #[command(flatten)]
    pub common: CommonFlags,

    /// The API server.
    #[command(flatten)]
    pub client: ClientFlags,

    /// Controllers to run: `*` for all but bootstrapsigner and tokencleaner, `name` for one, `-name` for all but one. Those of Kubernetes that do not
    /// exist here are accepted and have no effect: cloud-node-lifecycle, route, storage-version-gc, ttl.
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "*",
        allow_hyphen_values = true
    )]
    pub controllers: Vec<String>,

    /// Address ranges of pods, one per IP family.
    #[arg(long, value_name = "CIDR", value_delimiter = ',')]
    pub cluster_cidr: Vec<Cidr>,

    /// Whether nodes are assigned pod CIDRs from --cluster-cidr.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true",
          default_value_t = false, action = clap::ArgAction::Set)]
    pub allocate_node_cidrs: bool,

    /// Prefix length of a node's pod CIDR in a single-stack cluster.
    #[arg(long, value_name = "BITS")]
    pub node_cidr_mask_size: Option<u8>,

    /// Prefix length of a node's IPv4 pod CIDR (24).
    #[arg(long, value_name = "BITS")]
    pub node_cidr_mask_size_ipv4: Option<u8>,

    /// Prefix length of a node's IPv6 pod CIDR (64).
    #[arg(long, value_name = "BITS")]
    pub node_cidr_mask_size_ipv6: Option<u8>,

    /// CA certificates of the API server, published in every namespace.
    #[arg(long, value_name = "FILE")]
    pub root_ca_file: Option<PathBuf>,

    /// The key that signs tokens in token secrets; without it none are issued.
    #[arg(long, value_name = "FILE")]
    pub service_account_private_key_file: Option<PathBuf>,

    /// The CA certificate that signs certificate requests; without it none are signed.
    #[arg(long, value_name = "FILE", requires = "cluster_signing_key_file")]
    pub cluster_signing_cert_file: Option<PathBuf>,

    /// The CA's key.
    #[arg(long, value_name = "FILE", requires = "cluster_signing_cert_file")]
    pub cluster_signing_key_file: Option<PathBuf>,

    /// Maximum validity of a signed certificate.
    #[arg(long, alias = "experimental-cluster-signing-duration", value_name = "DURATION",
          default_value = "8760h", value_parser = go_duration::parse)]
    pub cluster_signing_duration: Duration,

    /// Whether each controller writes as its own service account, with tokens that it issues with the identity of the client configuration.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true",
          default_value_t = false, action = clap::ArgAction::Set)]
    pub use_service_account_credentials: bool,

    /// Feature gates: `Name=true` or `Name=false`.
    #[arg(long, value_name = "LIST", value_parser = feature_gates::parse)]
    pub feature_gates: Option<BTreeMap<String, bool>>,

    /// Leader election.
    #[command(flatten)]
    pub leader: LeaderFlags,

    /// Failed nodes and their evictions.
    #[command(flatten)]
    pub evictions: EvictionFlags,

    /// How long to wait for a node that is not ready to unmount an unused volume before it is detached by force.
    #[arg(long, value_name = "DURATION", default_value = "6m", value_parser = go_duration::parse)]
    pub attach_detach_unmount_timeout: Duration,

    /// Number of finished pods that are kept; 0 keeps all.
    #[arg(long, value_name = "COUNT", default_value_t = 12_500)]
    pub terminated_pod_gc_threshold: usize,

    /// How often the usage of a resource quota is recalculated although no change was observed.
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = go_duration::parse)]
    pub resource_quota_sync_period: Duration,

    /// Horizontal pod autoscalers.
    #[command(flatten)]
    pub autoscaling: AutoscalingFlags,

    /// Maximum number of endpoints in one EndpointSlice.
    #[arg(long, value_name = "COUNT", default_value_t = 100,
          value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub max_endpoints_per_slice: u32,

    /// Addresses for Services of type LoadBalancer without a class, as CIDRs or FIRST-LAST, which nodes announce with orch-proxy's
    /// --announce-load-balancer-addresses; none by default. The controller is called `service` in --controllers.
    #[arg(long, value_name = "RANGES", value_delimiter = ',')]
    pub service_load_balancer_addresses: Vec<AddressRange>,

    /// Number of concurrent reconciles.
    #[arg(long, value_name = "COUNT", default_value_t = 8,
          value_parser = clap::value_parser!(u32).range(1..=64))]
    pub concurrent_tasks: u32,

    /// Workers of single controllers.
    #[command(flatten)]
    pub syncs: SyncFlags,

    /// What installers give besides.
    #[command(flatten)]
    pub kubernetes: KubernetesFlags,

    /// Certificates and authorization of the health and metrics server.
    #[command(flatten)]
    pub serving: ServingFlags,

    /// Address of the health and metrics server (HTTPS).
    #[arg(long, value_name = "IP", default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST))]
    pub bind_address: IpAddr,

    /// Port of the health and metrics server (HTTPS); 0 selects a free one.
    #[arg(long, value_name = "PORT", default_value_t = 10257)]
    pub secure_port: u16,
}

/// Port of the plain-HTTP server when only its address is given, as in Kubernetes.
const PLAIN_PORT: u16 = 10252;

/// The checked settings of the controllers.
#[derive(Clone)]
pub struct Settings {
    /// The controllers that run.
    pub enabled: EnabledControllers,
    /// The cluster CIDRs from which node CIDRs are allocated; empty if they are not allocated.
    pub node_ranges: Vec<NodeRange>,
    /// The root CA to publish, in PEM.
    pub root_ca: Option<String>,
    /// Signs tokens in token secrets; without it none are issued.
    pub token_key: Option<Arc<SigningKey>>,
    /// Signs certificate requests; without it none are signed.
    pub authority: Option<Arc<AuthorityFiles>>,
    /// How long kubelets may be silent.
    pub grace: GracePeriods,
    /// See `--pod-eviction-timeout`; none if the taint manager evicts pods.
    pub eviction_timeout: Option<Duration>,
    /// See `--service-cluster-ip-range`.
    pub service_ranges: Vec<Cidr>,
    /// Whether pods that the controllers end have the condition DisruptionTarget.
    pub adds_disruption_targets: bool,
    /// How fast nodes of a zone are evicted.
    pub evictions: EvictionRates,
    /// See `--attach-detach-unmount-timeout`.
    pub unmount: Duration,
    /// See `--terminated-pod-gc-threshold`.
    pub ended_pods_max: usize,
    /// See `--resource-quota-sync-period`; at least a second.
    pub quota_sync_period: Duration,
    /// The flags of the controller horizontalpodautoscaling.
    pub autoscaling: AutoscalingFlags,
    /// See `--max-endpoints-per-slice`.
    pub endpoints_max: usize,
    /// See `--service-load-balancer-addresses`.
    pub load_balancer_ranges: Option<AddressRanges>,
    /// Whether a token secret is created for every service account.
    pub auto_generates_tokens: bool,
    /// What the taint out-of-service of a node means.
    pub out_of_service: OutOfServiceTaint,
    pub stateful_sets: stateful_set::StatefulSetFeatures,
    /// The workers of the controllers that have a number of their own.
    pub own_workers: BTreeMap<&'static str, usize>,
    /// Warnings to log.
    pub warnings: Vec<String>,
}

/// The feature gate of the taint out-of-service.
const OUT_OF_SERVICE: &str = "NodeOutOfServiceVolumeDetach";
/// The feature gate that stops token secrets from being created for every service account.
const NO_TOKENS: &str = "LegacyServiceAccountTokenNoAutoGeneration";

/// Workers of the disruption controller.
const DISRUPTION_WORKERS: usize = 2;

/// The controllers that `--controllers` selects.
#[derive(Clone, Debug)]
pub struct EnabledControllers(BTreeSet<&'static str>);

/// Why the flags are invalid.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// The name of an unknown controller.
    #[error("--controllers: {name:?} is not one of {known}", name = .0, known = CONTROLLERS.join(", "))]
    Controller(String),
    /// A feature gate is unknown or locked.
    #[error(transparent)]
    Gates(#[from] GateErrors),
    /// The node CIDRs cannot be allocated from the range.
    #[error("--cluster-cidr")]
    Range(#[from] NodeRangeError),
    /// There are too many ranges of addresses.
    #[error("--service-load-balancer-addresses")]
    Addresses(#[from] TooManyRanges),
    /// There is no range to allocate from.
    #[error("--allocate-node-cidrs needs --cluster-cidr")]
    NoRange,
    /// The key cannot be read or parsed.
    #[error("--service-account-private-key-file: cannot use {path}")]
    TokenKey {
        path: PathBuf,
        #[source]
        cause: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The CA cannot be read or parsed.
    #[error("--cluster-signing-cert-file, --cluster-signing-key-file")]
    Authority(#[from] CertificateAuthorityError),
    /// The root CA cannot be read.
    #[error("--root-ca-file: cannot read {path}")]
    RootCa {
        path: PathBuf,
        #[source]
        cause: std::io::Error,
    },
}

/// Whether an item of `--controllers` names a controller of Kubernetes that does not exist here.
fn is_unused(item: &str) -> bool {
    UNUSED_CONTROLLERS.contains(&item.strip_prefix('-').unwrap_or(item))
}

/// The workers of each controller that has its own: those with a flag, and the disruption controller, as users decide how much it reads.
fn own_workers(syncs: &SyncFlags) -> BTreeMap<&'static str, usize> {
    let mut all = syncs.by_controller();
    all.insert("disruption", DISRUPTION_WORKERS);
    all
}

fn read_key(path: &Path) -> Result<Arc<SigningKey>, SettingsError> {
    let failed = |cause: Box<dyn std::error::Error + Send + Sync>| SettingsError::TokenKey {
        path: path.to_owned(),
        cause,
    };
    let pem = std::fs::read(path).map_err(|cause| failed(cause.into()))?;
    SigningKey::from_pem(&pem).map(Arc::new).map_err(|cause| failed(cause.into()))
}

impl ControllerManagerFlags {
    /// Checks the flags and reads the files that they name.
    ///
    /// # Errors
    /// The first flag that is wrong.
    pub fn settings(&self) -> Result<Settings, SettingsError> {
        let root_ca = match &self.root_ca_file {
            None => None,
            Some(path) => Some(
                std::fs::read_to_string(path)
                    .map_err(|cause| SettingsError::RootCa { path: path.clone(), cause })?,
            ),
        };
        let gates = self.feature_gates.clone().unwrap_or_default();
        let own = [
            &[NO_TOKENS, OUT_OF_SERVICE, disruption_target::GATE][..],
            &stateful_set::StatefulSetFeatures::GATES,
        ]
        .concat();
        let gates = feature_gates::resolve_gates(&[], &own, &gates)?;
        let out_of_service = match gates.gates.is_on(OUT_OF_SERVICE) {
            true => OutOfServiceTaint::NodeIsOff,
            false => OutOfServiceTaint::Ignored,
        };
        let load_balancer_ranges = AddressRanges::new(&self.service_load_balancer_addresses)?;
        let mut enabled = EnabledControllers::parse(&self.controllers)?;
        if load_balancer_ranges.is_none() {
            enabled.disable(&["service"]);
        }
        if !self.kubernetes.enable_garbage_collector {
            enabled.disable(&["garbagecollector"]);
        }
        let unused = self.controllers.iter().filter(|item| is_unused(item));
        let unused = unused.map(|item| format!("--controllers={item} has no effect"));
        let warnings = gates.warnings.into_iter().chain(unused).chain(self.kubernetes.warnings());
        Ok(Settings {
            load_balancer_ranges,
            out_of_service,
            stateful_sets: stateful_set::StatefulSetFeatures::from_gates(|gate| {
                gates.gates.is_on(gate)
            }),
            own_workers: own_workers(&self.syncs),
            auto_generates_tokens: !gates.gates.is_on(NO_TOKENS),
            warnings: warnings.collect(),
            enabled,
            node_ranges: self.node_ranges()?,
            root_ca,
            token_key: self
                .service_account_private_key_file
                .as_deref()
                .map(read_key)
                .transpose()?,
            authority: self.authority()?,
            grace: self.evictions.grace(),
            eviction_timeout: (!self.kubernetes.enable_taint_manager)
                .then_some(self.evictions.pod_eviction_timeout),
            service_ranges: self.kubernetes.service_cluster_ip_range.clone(),
            adds_disruption_targets: gates.gates.is_on(disruption_target::GATE),
            evictions: self.evictions.rates(),
            unmount: self.attach_detach_unmount_timeout,
            ended_pods_max: self.terminated_pod_gc_threshold,
            quota_sync_period: self.resource_quota_sync_period.max(Duration::from_secs(1)),
            autoscaling: self.autoscaling.clone(),
            endpoints_max: usize::try_from(self.max_endpoints_per_slice).unwrap_or(1000),
        })
    }

    fn authority(&self) -> Result<Option<Arc<AuthorityFiles>>, SettingsError> {
        let pair =
            self.cluster_signing_cert_file.as_ref().zip(self.cluster_signing_key_file.as_ref());
        let read = |(certificate, key): (&PathBuf, &PathBuf)| {
            AuthorityFiles::open(certificate, key, self.cluster_signing_duration).map(Arc::new)
        };
        Ok(pair.map(read).transpose()?)
    }

    fn node_ranges(&self) -> Result<Vec<NodeRange>, SettingsError> {
        if !self.allocate_node_cidrs {
            return Ok(Vec::new());
        }
        if self.cluster_cidr.is_empty() {
            return Err(SettingsError::NoRange);
        }
        let range = |cluster: &Cidr| {
            let of_family = if cluster.is_ipv4() {
                self.node_cidr_mask_size_ipv4
            } else {
                self.node_cidr_mask_size_ipv6
            };
            Ok(NodeRange::new(*cluster, of_family.or(self.node_cidr_mask_size))?)
        };
        self.cluster_cidr.iter().map(range).collect()
    }

    /// Address of the HTTPS server for health and metrics.
    pub fn secure_address(&self) -> SocketAddr {
        SocketAddr::new(self.bind_address, self.secure_port)
    }

    /// Address of the plain-HTTP server, if it is enabled.
    pub fn plain_address(&self) -> Option<SocketAddr> {
        self.common.healthz_bind_address.map(|address| address.socket(PLAIN_PORT))
    }
}

impl EnabledControllers {
    /// Parses `*`, `name` and `-name`; a name takes precedence over `*`.
    fn parse(list: &[String]) -> Result<Self, SettingsError> {
        let mut enabled = BTreeSet::new();
        if list.iter().any(|item| item == "*") {
            enabled.extend(CONTROLLERS.into_iter().filter(|name| !ONLY_BY_NAME.contains(name)));
        }
        for item in list.iter().filter(|item| *item != "*" && !is_unused(item)) {
            let name = item.strip_prefix('-').unwrap_or(item);
            let known = CONTROLLERS.iter().find(|known| **known == name);
            let known = known.ok_or_else(|| SettingsError::Controller(name.to_owned()))?;
            match item.starts_with('-') {
                true => enabled.remove(known),
                false => enabled.insert(known),
            };
        }
        Ok(Self(enabled))
    }

    /// Whether a controller runs.
    pub fn has(&self, controller: &str) -> bool {
        self.0.contains(controller)
    }

    /// Takes controllers out.
    pub fn disable(&mut self, controllers: &[&str]) {
        self.0.retain(|name| !controllers.contains(name));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(args: &[&str]) -> Result<Settings, String> {
        let flags = ControllerManagerFlags::try_parse_from([&["program"], args].concat())
            .map_err(|e| e.to_string())?;
        flags.settings().map_err(|error| error.to_string())
    }

    #[test]
    fn controllers_are_selected() {
        let count =
            |list: &str| settings(&[&format!("--controllers={list}")]).map(|s| s.enabled.0.len());
        // One needs addresses.
        let all = CONTROLLERS.len() - ONLY_BY_NAME.len() - 1;
        assert_eq!(count("*"), Ok(all));
        assert_eq!(count("*,-podgc,-namespace"), Ok(all - 2));
        assert_eq!(count("*,tokencleaner"), Ok(all + 1));
        assert_eq!(count("*,bootstrapsigner,tokencleaner"), Ok(all + 2));
        assert_eq!(count("podgc"), Ok(1));
        assert_eq!(count("*,-ttl,-route"), Ok(all));
        assert_eq!(count("podgc,cloud-node-lifecycle"), Ok(1));
        assert!(
            count("*,-nothing").unwrap_err().contains("\"nothing\" is not one of attachdetach, ")
        );
    }

    #[test]
    fn what_has_no_effect_is_said() {
        let warnings = |args: &[&str]| settings(args).map(|settings| settings.warnings);
        assert_eq!(warnings(&[]), Ok(Vec::new()));
        let args = ["--controllers=*,-ttl,podgc", "--cluster-name=k", "--node-monitor-period=5s"];
        let effect = "is accepted for compatibility and has no effect";
        let expected = [
            "--controllers=-ttl has no effect".to_owned(),
            format!("flag --cluster-name {effect}"),
            format!("flag --node-monitor-period {effect}"),
        ];
        assert_eq!(warnings(&args), Ok(expected.into()));
    }

    #[test]
    fn flags_of_kubernetes_switch_what_they_name() {
        let has = |args: &[&str]| {
            let settings = settings(args)?;
            let collects = settings.enabled.has("garbagecollector");
            Ok([collects, settings.eviction_timeout.is_none(), settings.adds_disruption_targets])
        };
        for (arg, expected) in [
            ("--enable-garbage-collector", [true, true, false]),
            ("--enable-garbage-collector=false", [false, true, false]),
            ("--enable-taint-manager=false", [true, false, false]),
            ("--feature-gates=PodDisruptionConditions=true", [true, true, true]),
        ] {
            assert_eq!(has(&[arg]), Ok::<_, String>(expected), "{arg}");
        }
    }

    #[test]
    fn without_the_taint_manager_pods_are_evicted_by_the_timeout() {
        let timeout = |args: &[&str]| settings(args).map(|settings| settings.eviction_timeout);
        let (off, minute) = ("--enable-taint-manager=false", "--pod-eviction-timeout=1m");
        let secs = |secs| Ok(Some(Duration::from_secs(secs)));
        assert_eq!(timeout(&[off]), secs(300));
        assert_eq!(timeout(&[off, minute]), secs(60));
        assert_eq!(timeout(&[minute]), Ok(None), "tolerations say so");
    }

    #[test]
    fn addresses_of_load_balancers_are_allocated_only_with_the_flag() {
        let has = |args: &[&str]| {
            settings(args).map(|settings| {
                (settings.load_balancer_ranges.is_some(), settings.enabled.has("service"))
            })
        };
        assert_eq!(has(&[]), Ok((false, false)));
        assert_eq!(has(&["--controllers=service"]), Ok((false, false)));
        let ranges = "--service-load-balancer-addresses=192.0.2.0/28,fd00::1-fd00::9";
        assert_eq!(has(&[ranges]), Ok((true, true)));
        assert_eq!(has(&[ranges, "--controllers=*,-service"]), Ok((true, false)));
        let error = has(&["--service-load-balancer-addresses=192.0.2.9"]).unwrap_err();
        assert!(error.contains("expected a CIDR"), "{error}");
        let many = vec!["192.0.2.0/28"; 65].join(",");
        assert!(has(&[&format!("--service-load-balancer-addresses={many}")]).is_err());
    }

    #[test]
    fn node_cidrs_are_allocated_only_with_the_flag() {
        let ranges = |args: &[&str]| settings(args).map(|settings| settings.node_ranges.len());
        assert_eq!(ranges(&["--cluster-cidr=10.0.0.0/16"]), Ok(0));
        assert_eq!(ranges(&["--cluster-cidr=10.0.0.0/16", "--allocate-node-cidrs"]), Ok(1));
        let dual = ["--cluster-cidr=10.0.0.0/16,fd00::/56", "--allocate-node-cidrs=true"];
        assert_eq!(ranges(&dual), Ok(2));
        assert!(ranges(&["--allocate-node-cidrs"]).is_err());
        assert!(
            ranges(&[
                "--cluster-cidr=10.0.0.0/8",
                "--allocate-node-cidrs",
                "--node-cidr-mask-size=30"
            ])
            .is_err()
        );
    }

    #[test]
    fn token_secrets_are_generated_only_with_the_gate_off() {
        let made = |args: &[&str]| settings(args).map(|settings| settings.auto_generates_tokens);
        assert_eq!(made(&[]), Ok(false));
        let off = "--feature-gates=LegacyServiceAccountTokenNoAutoGeneration=false";
        assert_eq!(made(&[off]), Ok(true));
        assert!(made(&["--feature-gates=Nonsense=true"]).unwrap_err().contains("Nonsense"));
    }

    #[test]
    fn the_taint_out_of_service_is_ignored_unless_its_gate_is_on() {
        let means = |args: &[&str]| settings(args).map(|settings| settings.out_of_service);
        assert_eq!(means(&[]), Ok(OutOfServiceTaint::Ignored));
        let on = "--feature-gates=NodeOutOfServiceVolumeDetach=true";
        assert_eq!(means(&[on]), Ok(OutOfServiceTaint::NodeIsOff));
    }

    #[test]
    fn features_of_stateful_sets_are_off_unless_their_gates_are_on() {
        let of = |gates: &[&str]| {
            stateful_set::StatefulSetFeatures::from_gates(|gate| gates.contains(&gate))
        };
        let means = |args: &[&str]| settings(args).map(|settings| settings.stateful_sets);
        assert_eq!(means(&[]), Ok(of(&[])));
        for gate in stateful_set::StatefulSetFeatures::GATES {
            let on = format!("--feature-gates={gate}=true");
            assert_eq!(means(&[&on]), Ok(of(&[gate])));
            assert!(settings(&[&on]).is_ok_and(|settings| settings.warnings.is_empty()));
        }
        assert_ne!(of(&["MaxUnavailableStatefulSet"]), of(&["StatefulSetAutoDeletePVC"]));
    }

    #[test]
    fn flags_of_workers_name_controllers_that_there_are() {
        let args = ["--concurrent-statefulset-syncs=3", "--concurrent-gc-syncs=20"];
        let workers = settings(&args).expect("settings").own_workers;
        let expected =
            [("statefulset", 3), ("garbagecollector", 20), ("service", 1), ("disruption", 2)];
        assert_eq!(workers, BTreeMap::from(expected));
        assert!(workers.keys().all(|name| CONTROLLERS.contains(name)));
    }

    #[test]
    fn a_missing_file_is_named() {
        let error = settings(&["--root-ca-file=/nowhere/ca.crt"]).err().unwrap_or_default();
        assert!(error.contains("/nowhere/ca.crt"), "{error}");
    }
}
