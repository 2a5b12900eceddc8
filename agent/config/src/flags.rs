//! The kubelet's flags. Flags without a field in the configuration file are fields here; the others
//! are rows of [`OVERRIDES`].

mod texts;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;

use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches, Parser};
use proto_daemon::flags::CommonFlags;
use serde_json::{Map, Value};

use texts::{label, read};

/// Node agent: runs the pods that are assigned to this node.
#[derive(Clone, Debug, Parser)]
#[command(name = "orchlet", version)]
pub struct Flags {
    /// Flags shared by all programs.
    #[command(flatten)]
    pub common: CommonFlags,
    /// Client configuration for the API server; without it only static pods run.
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Client configuration to ask for a certificate with, when --kubeconfig does not exist yet; that file is then written.
    #[arg(long, value_name = "FILE")]
    pub bootstrap_kubeconfig: Option<PathBuf>,
    /// Directory of certificates that the agent asked for; `pki` below the root directory by default.
    #[arg(long, value_name = "DIR")]
    pub cert_dir: Option<PathBuf>,
    /// Name of the Node object; the host name by default.
    #[arg(long, value_name = "NAME")]
    pub hostname_override: Option<String>,
    /// Address of the node; that of the default route by default. Two, separated by a comma, for both families.
    #[arg(long, value_name = "IP", value_delimiter = ',')]
    pub node_ip: Vec<IpAddr>,
    /// Directory for pods, volumes and the journal.
    #[arg(long, value_name = "DIR", default_value = "/var/lib/orchlet")]
    pub root_dir: PathBuf,
    /// Directory of the logs of pods.
    #[arg(long, value_name = "DIR", default_value = "/var/log/pods")]
    pub pod_logs_dir: PathBuf,
    /// Directory shown at /logs/ of the HTTPS endpoint.
    #[arg(long, value_name = "DIR", default_value = "/var/log")]
    pub system_logs_dir: PathBuf,
    /// Sandbox image; imported by orchlet itself under this name when the runtime does not have it.
    #[arg(long, value_name = "IMAGE", default_value = agent_runtime::pause::IMAGE)]
    pub pod_infra_container_image: String,
    /// Directory for the network configuration, written once the node's pod network is known.
    #[arg(long, value_name = "DIR")]
    pub cni_conf_dir: Option<PathBuf>,
    /// Labels of the node, `key=value`.
    #[arg(long, value_delimiter = ',', value_parser = label)]
    pub node_labels: Vec<(String, String)>,
    /// Flags of the node.
    #[command(flatten)]
    pub node: super::node::NodeFlags,
    /// Flags that override the configuration file.
    #[command(flatten)]
    pub overrides: Overrides,
}

/// A flag that overrides a field of the file: its name, the field, its format, and its help text.
type Row = (&'static str, &'static str, Shape, &'static str);

/// Format of a flag's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    /// A string: texts, paths, durations, addresses.
    Text,
    /// A whole number.
    Number,
    /// `true` or `false`; the flag alone is `true`.
    Switch,
    /// Texts separated by commas.
    List,
    /// `name=value` separated by commas; thresholds may be written `name<value`.
    Pairs,
    /// `name=true` separated by commas.
    Switches,
    /// `key=value:effect` separated by commas.
    Taints,
    /// `node:name=amount,name=amount` separated by semicolons.
    PerNode,
    /// `name:value` separated by commas; a name may stand several times.
    Headers,
}

use Shape::{Headers, List, Number, Pairs, PerNode, Switch, Switches, Taints, Text};

const OVERRIDES: &[Row] = &[
    ("address", "address", Text, "Address of the HTTPS endpoint"),
    (
        "allowed-unsafe-sysctls",
        "allowedUnsafeSysctls",
        List,
        "Kernel settings that pods may ask for beyond the safe ones",
    ),
    (
        "anonymous-auth",
        "authentication.anonymous.enabled",
        Switch,
        "Whether unknown clients of the HTTPS endpoint are let in as system:anonymous",
    ),
    (
        "authentication-token-webhook",
        "authentication.webhook.enabled",
        Switch,
        "Whether bearer tokens are looked at, by token reviews of the API server",
    ),
    (
        "authentication-token-webhook-cache-ttl",
        "authentication.webhook.cacheTTL",
        Text,
        "How long an answer to a token review is good",
    ),
    (
        "authorization-mode",
        "authorization.mode",
        Text,
        "Who says what clients of the HTTPS endpoint may do: AlwaysAllow or Webhook",
    ),
    (
        "authorization-webhook-cache-authorized-ttl",
        "authorization.webhook.cacheAuthorizedTTL",
        Text,
        "How long a yes of the API server is good",
    ),
    (
        "authorization-webhook-cache-unauthorized-ttl",
        "authorization.webhook.cacheUnauthorizedTTL",
        Text,
        "How long a no of the API server is good",
    ),
    ("cgroup-driver", "cgroupDriver", Text, "Who manages cgroups: cgroupfs or systemd"),
    ("cgroup-root", "cgroupRoot", Text, "Cgroup below which the pods' tree is made"),
    ("cgroups-per-qos", "cgroupsPerQOS", Switch, "Whether pods have cgroups by class and pod"),
    (
        "client-ca-file",
        "authentication.x509.clientCAFile",
        Text,
        "Authorities of clients of the HTTPS endpoint",
    ),
    ("cluster-dns", "clusterDNS", List, "Cluster name servers"),
    ("cluster-domain", "clusterDomain", Text, "DNS domain of the cluster"),
    ("container-log-max-files", "containerLogMaxFiles", Number, "Log files kept a container"),
    (
        "container-log-max-size",
        "containerLogMaxSize",
        Text,
        "Size at which a container's log is rotated",
    ),
    (
        "container-runtime-endpoint",
        "containerRuntimeEndpoint",
        Text,
        "Socket of the container runtime",
    ),
    (
        "contention-profiling",
        "enableContentionProfiling",
        Switch,
        "Accepted; there is no such profile",
    ),
    ("cpu-cfs-quota", "cpuCFSQuota", Switch, "Whether CPU limits are enforced"),
    ("cpu-cfs-quota-period", "cpuCFSQuotaPeriod", Text, "Period of CPU limits"),
    (
        "cpu-manager-policy",
        "cpuManagerPolicy",
        Text,
        "How CPUs are given to containers: none or static",
    ),
    ("cpu-manager-policy-options", "cpuManagerPolicyOptions", Pairs, "Options of the CPU policy"),
    (
        "cpu-manager-reconcile-period",
        "cpuManagerReconcilePeriod",
        Text,
        "How often CPU sets are looked at",
    ),
    (
        "enable-controller-attach-detach",
        "enableControllerAttachDetach",
        Switch,
        "Whether volumes are attached by a controller",
    ),
    (
        "enable-debugging-handlers",
        "enableDebuggingHandlers",
        Switch,
        "Whether logs, exec, attach and port-forward are served",
    ),
    ("enable-server", "enableServer", Switch, "Whether there is an HTTPS endpoint"),
    (
        "enforce-node-allocatable",
        "enforceNodeAllocatable",
        List,
        "What is kept within its bounds: pods, system-reserved, kube-reserved or none",
    ),
    ("event-burst", "eventBurst", Number, "Events that may be written at once"),
    ("event-qps", "eventRecordQPS", Number, "Events a second"),
    (
        "eviction-hard",
        "evictionHard",
        Pairs,
        "Thresholds at which pods are evicted, as memory.available<100Mi",
    ),
    (
        "eviction-max-pod-grace-period",
        "evictionMaxPodGracePeriod",
        Number,
        "Longest grace of a pod that is evicted by a soft threshold, in seconds",
    ),
    (
        "eviction-minimum-reclaim",
        "evictionMinimumReclaim",
        Pairs,
        "What an eviction frees at least beyond the threshold",
    ),
    (
        "eviction-pressure-transition-period",
        "evictionPressureTransitionPeriod",
        Text,
        "How long a pressure condition stays after the pressure",
    ),
    (
        "eviction-soft",
        "evictionSoft",
        Pairs,
        "Thresholds at which pods are evicted after a grace period",
    ),
    (
        "eviction-soft-grace-period",
        "evictionSoftGracePeriod",
        Pairs,
        "Grace period of each soft threshold",
    ),
    ("fail-swap-on", "failSwapOn", Switch, "Whether active swap is refused"),
    ("feature-gates", "featureGates", Switches, "Features switched on or off"),
    (
        "file-check-frequency",
        "fileCheckFrequency",
        Text,
        "How often the manifest directory is looked at",
    ),
    ("hairpin-mode", "hairpinMode", Text, "How pods reach themselves through a service"),
    ("healthz-port", "healthzPort", Number, "Port of the plain health endpoint; 0 for none"),
    ("http-check-frequency", "httpCheckFrequency", Text, "How often the manifest URL is looked at"),
    (
        "image-gc-high-threshold",
        "imageGCHighThresholdPercent",
        Number,
        "Use of the disk at which images are removed, in percent",
    ),
    (
        "image-gc-low-threshold",
        "imageGCLowThresholdPercent",
        Number,
        "Use of the disk down to which images are removed, in percent",
    ),
    (
        "image-service-endpoint",
        "imageServiceEndpoint",
        Text,
        "Socket of the image service; the runtime's by default",
    ),
    ("iptables-drop-bit", "iptablesDropBit", Number, "Accepted; no mark is used"),
    ("iptables-masquerade-bit", "iptablesMasqueradeBit", Number, "Accepted; no mark is used"),
    (
        "kernel-memcg-notification",
        "kernelMemcgNotification",
        Switch,
        "Whether the kernel tells of memory pressure",
    ),
    ("kube-api-burst", "kubeAPIBurst", Number, "Accepted; requests are bounded by concurrency"),
    ("kube-api-qps", "kubeAPIQPS", Number, "Accepted; requests are bounded by concurrency"),
    (
        "kube-reserved",
        "kubeReserved",
        Pairs,
        "What the cluster's own programs are given of the node",
    ),
    ("kube-reserved-cgroup", "kubeReservedCgroup", Text, "Their cgroup"),
    ("kubelet-cgroups", "kubeletCgroups", Text, "Cgroup of the agent"),
    (
        "make-iptables-util-chains",
        "makeIPTablesUtilChains",
        Switch,
        "Accepted; no such chains are made",
    ),
    ("manifest-url", "staticPodURL", Text, "URL of static pod manifests"),
    (
        "manifest-url-header",
        "staticPodURLHeader",
        Headers,
        "Headers of the request for them, name:value",
    ),
    ("max-open-files", "maxOpenFiles", Number, "Files that the agent may open"),
    ("max-pods", "maxPods", Number, "Largest number of pods"),
    (
        "memory-manager-policy",
        "memoryManagerPolicy",
        Text,
        "How memory is given to containers: None or Static",
    ),
    (
        "minimum-image-ttl-duration",
        "imageMinimumGCAge",
        Text,
        "Age below which an unused image is kept",
    ),
    (
        "node-status-max-images",
        "nodeStatusMaxImages",
        Number,
        "Images shown in the node's status; -1 for all",
    ),
    (
        "node-status-update-frequency",
        "nodeStatusUpdateFrequency",
        Text,
        "How often the node's status is computed",
    ),
    ("oom-score-adj", "oomScoreAdj", Number, "The agent's own score when memory runs out"),
    ("pod-cidr", "podCIDR", Text, "Pod network of a node that has no API server to assign one"),
    ("pod-manifest-path", "staticPodPath", Text, "Directory of static pod manifests"),
    ("pod-max-pids", "podPidsLimit", Number, "Largest number of processes of a pod; -1 for none"),
    ("pods-per-core", "podsPerCore", Number, "Pods a processor; 0 for no bound"),
    ("port", "port", Number, "Port of the HTTPS endpoint"),
    (
        "protect-kernel-defaults",
        "protectKernelDefaults",
        Switch,
        "Whether kernel settings are checked instead of set",
    ),
    ("provider-id", "providerID", Text, "Identity of the machine at its provider"),
    ("qos-reserved", "qosReserved", Pairs, "Memory kept for guaranteed pods"),
    (
        "read-only-port",
        "readOnlyPort",
        Number,
        "Accepted as 0: there is no port without authentication",
    ),
    ("register-node", "registerNode", Switch, "Whether to make the Node object"),
    ("register-with-taints", "registerWithTaints", Taints, "Taints of the node at registration"),
    ("registry-burst", "registryBurst", Number, "Pulls that may begin at once"),
    ("registry-qps", "registryPullQPS", Number, "Pulls a second; 0 for no bound"),
    ("reserved-cpus", "reservedSystemCPUs", Text, "Processors kept from containers"),
    (
        "reserved-memory",
        "reservedMemory",
        PerNode,
        "Memory kept back on NUMA nodes: 0:memory=1Gi,hugepages-2Mi=1Gi;1:memory=1Gi",
    ),
    (
        "resolv-conf",
        "resolvConf",
        Text,
        "Resolver configuration that pods without cluster DNS inherit",
    ),
    (
        "rotate-certificates",
        "rotateCertificates",
        Switch,
        "Whether the client certificate is renewed before it ends",
    ),
    (
        "rotate-server-certificates",
        "serverTLSBootstrap",
        Switch,
        "Whether the API server is asked for the certificate of the HTTPS endpoint",
    ),
    (
        "runtime-request-timeout",
        "runtimeRequestTimeout",
        Text,
        "Accepted; each call of the runtime has its own bound",
    ),
    (
        "seccomp-default",
        "seccompDefault",
        Switch,
        "Whether containers get the runtime's seccomp profile unless they say otherwise",
    ),
    (
        "serialize-image-pulls",
        "serializeImagePulls",
        Switch,
        "Whether one image is pulled at a time",
    ),
    (
        "shutdown-grace-period",
        "shutdownGracePeriod",
        Text,
        "Time that pods get when the node shuts down; 0 does not wait for them",
    ),
    (
        "shutdown-grace-period-critical-pods",
        "shutdownGracePeriodCriticalPods",
        Text,
        "How much of it is kept for critical pods",
    ),
    (
        "show-hidden-metrics-for-version",
        "showHiddenMetricsForVersion",
        Text,
        "Release whose hidden metrics are shown",
    ),
    (
        "streaming-connection-idle-timeout",
        "streamingConnectionIdleTimeout",
        Text,
        "How long a session may be silent; 0 for ever",
    ),
    (
        "sync-frequency",
        "syncFrequency",
        Text,
        "Accepted; pods are looked at when something happens",
    ),
    ("system-cgroups", "systemCgroups", Text, "Cgroup for what else runs on the machine"),
    ("system-reserved", "systemReserved", Pairs, "What the system is given of the node"),
    ("system-reserved-cgroup", "systemReservedCgroup", Text, "Its cgroup"),
    ("tls-cert-file", "tlsCertFile", Text, "Certificate of the HTTPS endpoint"),
    ("tls-cipher-suites", "tlsCipherSuites", List, "Cipher suites of the HTTPS endpoint"),
    (
        "tls-min-version",
        "tlsMinVersion",
        Text,
        "Oldest TLS of the HTTPS endpoint: VersionTLS12 or VersionTLS13",
    ),
    ("tls-private-key-file", "tlsPrivateKeyFile", Text, "Its private key"),
    (
        "topology-manager-policy",
        "topologyManagerPolicy",
        Text,
        "How resources are aligned: none, best-effort, restricted or single-numa-node",
    ),
    ("topology-manager-scope", "topologyManagerScope", Text, "What is aligned: container or pod"),
    ("volume-plugin-dir", "volumePluginDir", Text, "Accepted; there are no such plugins"),
    (
        "volume-stats-agg-period",
        "volumeStatsAggPeriod",
        Text,
        "How often the use of volumes is looked at",
    ),
];

/// Values of overriding flags by field path.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Overrides(BTreeMap<&'static str, Value>);

impl Overrides {
    /// Applies the flags to the file's JSON tree.
    pub fn lay_over(&self, tree: &mut Value) {
        for (path, value) in &self.0 {
            let mut at = &mut *tree;
            for name in path.split('.') {
                if !at.is_object() {
                    *at = Value::Object(Map::new());
                }
                // Indexing an object creates the field.
                at = &mut at[name];
            }
            *at = value.clone();
        }
    }
}

impl Args for Overrides {
    fn augment_args(command: Command) -> Command {
        // The last of repeated flags counts, except lists, which are appended.
        command.args_override_self(true).args(OVERRIDES.iter().map(argument))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

fn argument((flag, path, shape, help): &Row) -> Arg {
    let argument =
        Arg::new(*flag).long(*flag).help(format!("{help} (`{path}`)")).allow_hyphen_values(true);
    let shape = *shape;
    let argument =
        argument.value_parser(move |text: &str| read(shape, text).map(|_| text.to_owned()));
    match shape {
        Switch => argument
            .num_args(0..=1)
            .require_equals(true)
            .default_missing_value("true")
            .value_name("BOOL"),
        List | Pairs | Switches | Taints | PerNode | Headers => {
            argument.action(ArgAction::Append).value_name("LIST")
        }
        Number => argument.value_name("NUMBER"),
        Text => argument.value_name("VALUE"),
    }
}

impl FromArgMatches for Overrides {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut overrides = Self::default();
        overrides.update_from_arg_matches(matches)?;
        Ok(overrides)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        for (flag, path, shape, _) in OVERRIDES {
            let Some(values) = matches.get_many::<String>(flag) else { continue };
            // Repeated flags append to a list; of other formats the last one counts.
            let text = values.cloned().collect::<Vec<_>>().join(",");
            let value = read(*shape, &text).map_err(|why| {
                clap::Error::raw(
                    clap::error::ErrorKind::ValueValidation,
                    format!("--{flag}: {why}\n"),
                )
            })?;
            self.0.insert(path, value);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn texts_become_values() {
        let check =
            |shape, text: &str, value: Value| assert_eq!(read(shape, text), Ok(value), "{text}");
        check(Number, "-999", json!(-999));
        check(Switch, "True", json!(true));
        check(List, "10.0.0.1, 10.0.0.2", json!(["10.0.0.1", "10.0.0.2"]));
        check(
            Pairs,
            "memory.available<100Mi,nodefs.available<10%",
            json!({"memory.available": "100Mi", "nodefs.available": "10%"}),
        );
        check(Pairs, "cpu=100m", json!({"cpu": "100m"}));
        check(Switches, "A=true,B=false", json!({"A": true, "B": false}));
        check(
            Taints,
            "a.b/c=d:NoSchedule,x:NoExecute",
            json!([
            {"key": "a.b/c", "value": "d", "effect": "NoSchedule"},
            {"key": "x", "value": "", "effect": "NoExecute"}]),
        );
        check(
            PerNode,
            "0:memory=1Gi,hugepages-2Mi=4Mi;1:memory=2Gi",
            json!([{"numaNode": 0, "limits": {"memory": "1Gi", "hugepages-2Mi": "4Mi"}},
                {"numaNode": 1, "limits": {"memory": "2Gi"}}]),
        );
        check(
            PerNode,
            "0:memory=1Gi,1:memory=2Gi",
            json!([{"numaNode": 0, "limits": {"memory": "1Gi"}},
                {"numaNode": 1, "limits": {"memory": "2Gi"}}]),
        );
        check(Headers, "a:b:c, d: e,a:f", json!({"a": ["b:c", "f"], "d": ["e"]}));
        for (shape, text) in [
            (Headers, "a"),
            (PerNode, "memory=1Gi"),
            (PerNode, "x:memory=1Gi"),
            (PerNode, "0:memory"),
            (PerNode, "0:memory=1;0:memory=2"),
            (Number, "x"),
            (Switch, "maybe"),
            (Pairs, "a"),
            (Pairs, "=1"),
            (Switches, "A=2"),
            (Taints, "a:Never"),
            (Taints, ":NoExecute"),
        ] {
            assert!(read(shape, text).is_err(), "{text}");
        }
        assert_eq!(label("a=b=c"), Ok(("a".into(), "b=c".into())));
        assert!(label("=b").is_err());
    }

    #[test]
    fn every_row_names_a_field_and_no_flag_stands_twice() {
        let tree = serde_json::to_value(super::super::FileConfig::default()).expect("JSON");
        let mut seen = std::collections::BTreeSet::new();
        for (flag, path, ..) in OVERRIDES {
            let pointer = format!("/{}", path.replace('.', "/"));
            assert!(tree.pointer(&pointer).is_some(), "--{flag}: no field {path}");
            assert!(seen.insert(flag), "--{flag} twice");
        }
        <Flags as clap::CommandFactory>::command().debug_assert();
    }

    #[test]
    fn a_switch_may_stand_alone() {
        let flags = |args: &[&str]| {
            Flags::try_parse_from([&["orchlet"], args].concat()).expect("flags").overrides
        };
        assert_eq!(flags(&["--fail-swap-on"]), flags(&["--fail-swap-on=true"]));
        assert_ne!(flags(&["--fail-swap-on"]), flags(&["--fail-swap-on=false"]));
        assert_eq!(
            flags(&["--cluster-dns=10.0.0.1", "--cluster-dns=10.0.0.2"]),
            flags(&["--cluster-dns", "10.0.0.1,10.0.0.2"])
        );
        assert!(Flags::try_parse_from(["orchlet", "--max-pods=many"]).is_err());
    }
}
