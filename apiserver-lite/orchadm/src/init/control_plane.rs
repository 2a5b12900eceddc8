//! The phase `control-plane`: the API server, the controller manager and the scheduler.

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use apiserver_bootstrap::access;
use apiserver_bootstrap::apply::apply;
use apiserver_bootstrap::arguments::{
    self, ApiServer, Flags, PkiFiles, Program, command_line, extra, with_own,
};
use proto_daemon::private_files;

use super::{InitContext, InitSettings};
use crate::cluster;
use crate::host::Host;
use crate::services::Services;

/// Starts the programs, each when those before it are ready. Where nobody runs them they are recorded.
///
/// # Errors
/// A program cannot be started, or the API server is not ready in time.
pub async fn start(context: &mut InitContext, part: &str) -> Result<()> {
    let layout = &context.host.layout;
    private_files::create_private_dir(&layout.store)
        .with_context(|| layout.store.display().to_string())?;
    for program in programs(&context.host, &context.settings) {
        let name = program.name.trim_start_matches("orch-").to_owned();
        if !context.wants("control-plane", &name, part) {
            continue;
        }
        context.services.ensure(&context.host.layout, &mut context.record, &program).await?;
        context.host.output.say("control-plane", &format!("{} is set up", program.name));
        if name == "apiserver" && !matches!(context.services, Services::Recorded) {
            wait_for_server(context).await?;
        }
    }
    Ok(())
}

async fn wait_for_server(context: &InitContext) -> Result<()> {
    let patience = context.settings.patience;
    let text = format!("waiting for the API server at {}", context.settings.local_server());
    context.host.output.say("wait-control-plane", &text);
    let client = context.client()?;
    let ready = cluster::wait_ready(&client, patience).await;
    let log = context.host.layout.log("orch-apiserver");
    ready.with_context(|| format!("see {}, or `journalctl -u orch-apiserver`", log.display()))?;
    // Nodes are reached from now on, and machines may join.
    apply(&client, &access::bindings(context.host.names)).await?;
    Ok(())
}

/// The control plane's programs, in the order in which they need each other.
fn programs(host: &Host, settings: &InitSettings) -> Vec<Program> {
    let pki = PkiFiles::new(host.names, &settings.pki);
    let cluster = &settings.cluster;
    let server = ApiServer {
        bind: bind_address(settings),
        advertise: settings.address,
        port: settings.init.local_api_endpoint.bind_port,
        store: &host.layout.store,
        pki: &pki,
        service_cidr: &cluster.networking.service_subnet,
        domain: &cluster.networking.dns_domain,
    };
    let mut server = server.flags();
    server.extend(arguments::request_headers(&pki));
    let pods = &cluster.networking.pod_subnet;
    let mut manager = arguments::controller_manager(&host.layout.controller_manager, &pki, pods);
    // The last two are off otherwise: tokens sign the ConfigMap by which machines join, and end.
    manager.push(("controllers", "*,bootstrapsigner,tokencleaner".to_owned()));
    let mut scheduler = arguments::scheduler(&host.layout.scheduler, &pki);
    // There is one of each, like the API server: a restart need not wait for the lease of what it replaces.
    for flags in [&mut manager, &mut scheduler] {
        flags.push(("leader-elect", "false".to_owned()));
    }
    let program = |name: &str, flags: &Flags, own: &Extra| Program {
        name: name.to_owned(),
        argv: with_own(command_line(&settings.bin_dir, name, host.names, flags), &extra(own)),
    };
    vec![
        program("orch-apiserver", &server, &cluster.api_server.extra_args),
        program("orch-controller-manager", &manager, &cluster.controller_manager.extra_args),
        program("orch-scheduler", &scheduler, &cluster.scheduler.extra_args),
    ]
}

type Extra = std::collections::BTreeMap<String, String>;

/// All addresses, as kubeadm has it: the host's own programs and those of other networks reach it too.
fn bind_address(settings: &InitSettings) -> std::net::IpAddr {
    match settings.address {
        std::net::IpAddr::V4(_) => std::net::Ipv4Addr::UNSPECIFIED.into(),
        std::net::IpAddr::V6(_) => std::net::Ipv6Addr::UNSPECIFIED.into(),
    }
}

/// The file of the authority.
pub fn authority(settings: &InitSettings) -> PathBuf {
    settings.pki.join("ca.crt")
}
