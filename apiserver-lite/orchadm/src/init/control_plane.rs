//! The phase `control-plane`: the API server, the controller manager and the scheduler.

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use apiserver_bootstrap::access;
use apiserver_bootstrap::apply::apply;
use apiserver_bootstrap::arguments::Program;
use apiserver_bootstrap::host_programs::ControlPlane;
use apiserver_bootstrap::services::Services;
use proto_daemon::private_files;

use super::{InitContext, InitSettings};
use crate::cluster;
use crate::host::Host;

/// Starts the programs, each when those before it are ready. Without systemd or a supervisor they are only recorded.
///
/// # Errors
/// A program cannot be started, or the API server is not ready in time.
pub async fn start(context: &mut InitContext, part: &str) -> Result<()> {
    let layout = &context.host.layout;
    if context.settings.cluster.etcd.external.is_none() {
        private_files::create_private_dir(&layout.store)
            .with_context(|| layout.store.display().to_string())?;
    }
    for program in programs(&context.host, &context.settings) {
        let name = program.name.trim_start_matches("orch-").to_owned();
        if !context.is_selected("control-plane", &name, part) {
            continue;
        }
        context.services.ensure(&context.host.layout, &mut context.record, &program).await?;
        context.host.output.log("control-plane", &format!("{} is set up", program.name));
        if name == "apiserver" && !matches!(context.services, Services::Recorded) {
            wait_for_server(context).await?;
        }
    }
    Ok(())
}

async fn wait_for_server(context: &InitContext) -> Result<()> {
    let patience = context.settings.patience;
    let text = format!("waiting for the API server at {}", context.settings.local_server());
    context.host.output.log("wait-control-plane", &text);
    let client = context.client()?;
    let program = (&context.host.layout, "orch-apiserver");
    let what = "the API server is ready";
    let services = &context.services;
    services.until(program, what, patience, async || cluster::ready(&client).await).await?;
    // Nodes are reached from now on, and machines may join.
    apply(&client, &access::bindings(context.host.names)).await?;
    Ok(())
}

/// The control plane's programs, in the order in which they need each other.
pub fn programs(host: &Host, settings: &InitSettings) -> Vec<Program> {
    let plane = ControlPlane {
        names: host.names,
        layout: &host.layout,
        bin_dir: &settings.bin_dir,
        pki: &settings.pki,
        address: settings.address,
        port: settings.init.local_api_endpoint.bind_port,
        cluster: &settings.cluster,
    };
    plane.programs()
}

/// The file of the authority.
pub fn authority(settings: &InitSettings) -> PathBuf {
    settings.pki.join("ca.crt")
}
