//! `join --dry-run`: reads from the cluster, and writes and starts nothing on this host.

use anyhow::Result;
use apiserver_bootstrap::{discovery, dry_run, systemd};
use serde_json::json;

use super::{JoinSettings, ask_runtime, member};
use crate::host::Host;

/// Says what phases would write and run.
///
/// # Errors
/// The cluster is not found, or does not let this host join.
pub async fn print_plan(host: &Host, settings: &JoinSettings, phases: &[&str]) -> Result<()> {
    let layout = &host.layout;
    let found = discovery::find(&settings.source, host.names, settings.patience).await?;
    host.output.log("discovery", &format!("the cluster is {}", found.server));
    let client = discovery::client_by_token(&found, &settings.tls_token, host.names)?;
    if !layout.node.exists() {
        discovery::check_name_is_free(&client, &settings.node).await?;
    }
    let cluster = discovery::read_configuration(&client, host.names).await?;
    let facts = ask_runtime(settings).await;
    let member = member(host, settings, &facts, &cluster);
    let has_systemd = systemd::runs_host(layout);
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
