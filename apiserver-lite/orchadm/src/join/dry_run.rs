//! `join --dry-run`: reads from the cluster, and writes and starts nothing on this host.

use anyhow::{Context as _, Result};
use apiserver_bootstrap::cluster_info::FoundCluster;
use apiserver_bootstrap::dry_run;
use proto_api::names::Names;
use proto_client::Client;
use proto_client::config::{ClientConfig, Credential, Pem};
use serde_json::json;

use super::{JoinSettings, ask_runtime, check_name_is_free, configuration, member};
use crate::host::{self, Host};
use crate::{cluster, discovery};

/// Says what phases would write and run.
///
/// # Errors
/// The cluster is not found, or does not let this host join.
pub async fn print_plan(host: &Host, settings: &JoinSettings, phases: &[&str]) -> Result<()> {
    let layout = &host.layout;
    let found = discovery::find(&settings.source, host.names, settings.patience).await?;
    host.output.log("discovery", &format!("the cluster is {}", found.server));
    let client = by_token(settings, &found, host.names)?;
    if !layout.node.exists() {
        check_name_is_free(&client, &settings.node).await?;
    }
    let cluster = configuration(&client, host).await?;
    let facts = ask_runtime(settings).await;
    let member = member(host, settings, &facts, &cluster);
    let has_systemd = host::has_systemd(layout);
    let would = |phase: &str, action: &str| {
        if phases.contains(&phase) && !settings.skips(phase) {
            host.output.log(phase, &format!("[dryrun] would {action}"));
        }
    };
    for path in [&settings.authority, &layout.bootstrap_node] {
        would("kubelet-start", &format!("write {}", path.display()));
    }
    let agent = dry_run::program(layout, has_systemd, &member.agent(true)?);
    would("kubelet-start", &agent);
    let certificate = format!("wait for {}, and remove the token", layout.node.display());
    would("kubelet-start", &certificate);
    would("addon", &format!("write {}", layout.proxy.display()));
    would("addon", &dry_run::program(layout, has_systemd, &member.proxy()));
    let done = json!({"dryRun": true});
    host.output.result("\nNothing was written, and nothing was started.", &done);
    Ok(())
}

/// A client that shows the token, without a file.
fn by_token(
    settings: &JoinSettings,
    found: &FoundCluster,
    names: &'static Names,
) -> Result<Client> {
    let server = found.server.parse();
    let server = server.with_context(|| format!("the server {:?}", found.server))?;
    let mut config = ClientConfig::direct(server);
    config.tls.authority = Some(Pem::Data(found.authority.clone().into_bytes()));
    config.credential = Credential::Token(settings.tls_token.text());
    cluster::of(&config, names)
}
