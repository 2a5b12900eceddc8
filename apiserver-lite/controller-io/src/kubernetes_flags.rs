//! Flags of kube-controller-manager that installers give: a few that mean something here, and those that are accepted and have no effect.

use clap::Args;
use proto_api::Cidr;
use proto_daemon::define_unused_flags;

/// Flags of kube-controller-manager besides those of single controllers.
#[derive(Args, Clone, Debug)]
pub struct KubernetesFlags {
    /// Whether the controller garbagecollector runs; without it no object is deleted because its owners are.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true",
          default_value_t = true, action = clap::ArgAction::Set)]
    pub enable_garbage_collector: bool,

    /// Whether pods are evicted that do not tolerate a NoExecute taint of their node; if not, those of a failed node are after --pod-eviction-timeout.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true",
          default_value_t = true, action = clap::ArgAction::Set)]
    pub enable_taint_manager: bool,

    /// Address ranges of Services, which nodes do not get as pod CIDRs.
    #[arg(long, value_name = "CIDR", value_delimiter = ',')]
    pub service_cluster_ip_range: Vec<Cidr>,

    /// Flags without effect.
    #[command(flatten)]
    unused: UnusedFlags,
}

/// Controllers of kube-controller-manager that --controllers may name and that do not exist here: those of cloud providers, the annotation for kubelets'
/// caches, and storage versions.
pub const UNUSED_CONTROLLERS: [&str; 4] =
    ["cloud-node-lifecycle", "route", "storage-version-gc", "ttl"];

impl KubernetesFlags {
    /// A warning for each flag that is set and has no effect.
    pub fn warnings(&self) -> Vec<String> {
        self.unused.list_warnings()
    }
}

define_unused_flags! {
    /// Flags for what this program does not have: cloud providers, in-tree volumes, periodic syncs, request limits, signers with keys of their own.
    UnusedFlags {
        allow_untagged_cloud attach_detach_reconcile_sync_period authentication_skip_lookup
        authentication_tolerate_lookup_failure cert_dir cidr_allocator_type cloud_config cloud_provider
        cluster_name cluster_signing_kube_apiserver_client_cert_file
        cluster_signing_kube_apiserver_client_key_file cluster_signing_kubelet_client_cert_file
        cluster_signing_kubelet_client_key_file cluster_signing_kubelet_serving_cert_file
        cluster_signing_kubelet_serving_key_file cluster_signing_legacy_unknown_cert_file
        cluster_signing_legacy_unknown_key_file configure_cloud_routes contention_profiling
        controller_start_interval disable_attach_detach_reconcile_sync enable_dynamic_provisioning
        enable_hostpath_provisioner enable_leader_migration endpoint_updates_batch_period
        endpointslice_updates_batch_period external_cloud_volume_plugin flex_volume_plugin_dir
        http2_max_streams_per_connection kube_api_burst kube_api_content_type kube_api_qps
        leader_migration_config min_resync_period mirroring_endpointslice_updates_batch_period
        mirroring_max_endpoints_per_subset namespace_sync_period node_monitor_period
        permit_address_sharing permit_port_sharing profiling
        pv_recycler_increment_timeout_nfs pv_recycler_minimum_timeout_hostpath
        pv_recycler_minimum_timeout_nfs pv_recycler_pod_template_filepath_hostpath
        pv_recycler_pod_template_filepath_nfs pv_recycler_timeout_increment_hostpath
        pvclaimbinder_sync_period requestheader_allowed_names requestheader_client_ca_file
        requestheader_extra_headers_prefix requestheader_group_headers requestheader_username_headers
        route_reconciliation_period show_hidden_metrics_for_version tls_sni_cert_key
        volume_host_allow_local_loopback volume_host_cidr_denylist
    }
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    use super::*;

    #[derive(Parser)]
    struct Program {
        #[command(flatten)]
        flags: KubernetesFlags,
    }

    fn parse(args: &[&str]) -> Result<KubernetesFlags, String> {
        let parsed = Program::try_parse_from([&["program"], args].concat());
        parsed.map(|program| program.flags).map_err(|error| error.to_string())
    }

    #[test]
    fn the_flags_of_kubeadm_are_accepted_and_those_without_effect_are_named() {
        let args = [
            "--cluster-name=kubernetes",
            "--requestheader-client-ca-file=/etc/kubernetes/pki/front-proxy-ca.crt",
            "--service-cluster-ip-range=10.96.0.0/12,fd00::/112",
            "--tls-sni-cert-key=a,b",
            "--tls-sni-cert-key=c,d",
            "--profiling",
        ];
        let flags = parse(&args).expect("flags");
        let effect = "is accepted for compatibility and has no effect";
        let named =
            ["cluster-name", "profiling", "requestheader-client-ca-file", "tls-sni-cert-key"];
        let expected = named.map(|name| format!("flag --{name} {effect}"));
        assert_eq!(flags.warnings(), expected);
        assert_eq!(flags.service_cluster_ip_range.len(), 2);
        assert!(flags.enable_garbage_collector && flags.enable_taint_manager);
        let off = parse(&["--enable-garbage-collector=false", "--enable-taint-manager=false"]);
        let off = off.expect("flags");
        assert!(!off.enable_garbage_collector && !off.enable_taint_manager);
        assert_eq!(off.warnings(), Vec::<String>::new());
        assert!(parse(&["--no-such-flag=1"]).is_err());
        assert!(parse(&["--service-cluster-ip-range=x"]).is_err());
    }

    #[test]
    fn the_help_shows_no_flag_without_effect() {
        let help = Program::command().render_long_help().to_string();
        assert!(help.contains("--enable-garbage-collector"), "{help}");
        assert!(!help.contains("--node-monitor-period"), "{help}");
    }
}
