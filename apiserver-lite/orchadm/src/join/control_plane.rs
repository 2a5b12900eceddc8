//! `join --control-plane`: this host becomes one more control plane of a cluster on an external etcd. The phases are those of `init`, with the cluster's own
//! configuration and the certificates of its first control plane, which were copied here.

use anyhow::{Result, bail};
use apiserver_bootstrap::certificates::check_shared;
use apiserver_bootstrap::configuration::{InitConfiguration, LocalApiEndpoint};
use apiserver_bootstrap::discovery;

use super::JoinSettings;
use crate::host::Host;
use crate::init::{self, InitSettings};

/// Phases of init whose work the first control plane has done for all.
const DONE: [&str; 2] = ["upload-config", "bootstrap-token"];

/// Runs the command.
///
/// # Errors
/// The cluster is not found, has a store of one machine, or a phase failed; the command can be repeated.
pub async fn run(host: Host, settings: &JoinSettings, endpoint: LocalApiEndpoint) -> Result<()> {
    let found = discovery::find(&settings.source, host.names, settings.patience).await?;
    host.output.log("discovery", &format!("the cluster is {}", found.server));
    let client = discovery::client_by_token(&found, &settings.tls_token, host.names)?;
    if !host.layout.node.exists() {
        discovery::check_name_is_free(&client, &settings.node).await?;
    }
    let cluster = discovery::read_configuration(&client, host.names).await?;
    if cluster.etcd.external.is_none() {
        bail!(
            "the API server of this cluster keeps its objects in its own store, on one machine: only a cluster with etcd.external in its ClusterConfiguration can have more control planes"
        );
    }
    let mut init = InitConfiguration {
        node_registration: settings.registration.clone(),
        local_api_endpoint: endpoint,
        skip_phases: DONE.map(str::to_owned).to_vec(),
        ..InitConfiguration::default()
    };
    init.skip_phases.extend(settings.skipped.iter().cloned());
    let made = InitSettings::new(&host, init, cluster, settings.bin_dir.clone())?;
    check_shared(&made.pki, &found.authority)?;
    let made = InitSettings { ignored: settings.ignored.clone(), joins: true, ..made };
    init::run_with(host, made, settings.is_dry_run).await
}
