//! `orchadm join`: this host becomes a node, or one more control plane. It finds the cluster, and a node's orchlet gets its certificate with the token (TLS
//! bootstrap).

mod control_plane;
mod dry_run;
mod settings;

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use apiserver_bootstrap::client_config::{self, AuthInfo, AuthorityAt, ClusterEntry};
use apiserver_bootstrap::cluster_info::FoundCluster;
use apiserver_bootstrap::configuration::ClusterConfiguration;
use apiserver_bootstrap::discovery;
use apiserver_bootstrap::host_facts::seen_by_units;
use apiserver_bootstrap::host_programs::Member;
use apiserver_bootstrap::poll_until::NotYet;
use apiserver_bootstrap::preflight::{IgnoredChecks, PreflightScope, Role, RuntimeFacts, check};
use apiserver_bootstrap::record::{HostRecord, Progress};
use apiserver_bootstrap::resumed_join::{check_same_cluster, check_same_node};
use apiserver_bootstrap::services::Services;
use clap::{Args, Subcommand};
use proto_api::core::v1::Node;
use proto_daemon::private_files;
use serde_json::json;

use crate::cluster;
use crate::failure::not_valid;
use crate::host::Host;
use crate::member::start_proxy;
use crate::preflight;
use crate::runtime::Runtime;
use crate::supervisor::{run_until_stopped, stop_signal};

pub use settings::{JoinFlags, JoinSettings};

/// How long the certificate and the registration are waited for.
const PATIENCE: Duration = Duration::from_secs(240);
/// Mode of the authority's certificate.
const PUBLIC_MODE: u32 = 0o644;

/// `join` and `join phase`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct JoinCommand {
    #[command(flatten)]
    flags: JoinFlags,
    #[command(subcommand)]
    only: Option<Only>,
}

#[derive(Debug, Subcommand)]
enum Only {
    /// Run one phase of join.
    Phase(PhaseFlags),
}

#[derive(Debug, Args)]
struct PhaseFlags {
    /// preflight, kubelet-start or addon.
    phase: String,
    #[command(flatten)]
    flags: JoinFlags,
}

/// The phases, in order.
pub const PHASES: [&str; 3] = ["preflight", "kubelet-start", "addon"];

/// Runs `join`, or one phase of it.
///
/// # Errors
/// A phase failed; what was done stays, and the command can be repeated.
pub async fn run(host: Host, command: &JoinCommand) -> Result<()> {
    let (flags, only) = match &command.only {
        None => (&command.flags, None),
        Some(Only::Phase(one)) => (&one.flags, Some(one.phase.as_str())),
    };
    if let Some(phase) = only
        && !PHASES.contains(&phase)
    {
        let text = format!("phase {phase:?}: must be one of {}", PHASES.join(", "));
        return Err(not_valid(text));
    }
    let settings = flags.settings(&host)?;
    if let Some(endpoint) = &settings.control_plane {
        return match only {
            None => control_plane::run(host, &settings, endpoint.clone()).await,
            Some(_) => Err(not_valid(
                "a control plane joins as a whole: phases of one that has joined are those of `orchadm init phase`",
            )),
        };
    }
    if host.record.as_ref().is_some_and(|record| record.role == Role::ControlPlane) {
        bail!("this host is the control plane of a cluster: `orchadm reset` first");
    }
    match only {
        Some("preflight") => preflight(&host, &settings).await,
        Some(phase) if settings.is_dry_run => dry_run::print_plan(&host, &settings, &[phase]).await,
        Some(phase) => {
            let _lock = host.lock().await?;
            let mut services = Services::for_phase(&host.layout);
            let mut joining = Joining::new(&host, &settings)?;
            joining.phase(phase, &mut services).await?;
            match phase {
                "kubelet-start" => joining.finish_agent(&services).await,
                // It has read the cluster with the node's certificate.
                _ => joining.forget_token(),
            }
        }
        None => run_all(host, &settings).await,
    }
}

async fn run_all(host: Host, settings: &JoinSettings) -> Result<()> {
    let mut stop = std::pin::pin!(stop_signal()?);
    if !settings.skips("preflight") {
        preflight(&host, settings).await?;
    }
    if settings.is_dry_run {
        return dry_run::print_plan(&host, settings, &PHASES).await;
    }
    let lock = host.lock().await?;
    let mut joining = Joining::new(&host, settings)?;
    let mut services = Services::begin(&host.layout)?;
    // Cancel-safe: what is cut off is continued by the next run.
    let ended = tokio::select! {
        ended = joining.all(&mut services) => ended,
        () = &mut stop => Err(anyhow::anyhow!("interrupted: `orchadm join` again continues")),
    };
    run_until_stopped(services, &host, (lock, ended), stop).await
}

async fn preflight(host: &Host, settings: &JoinSettings) -> Result<()> {
    let layout = &host.layout;
    let extra = &settings.registration.kubelet_extra_args;
    let may_swap = extra.get("fail-swap-on").map(String::as_str);
    let wanted = PreflightScope {
        role: Role::Node,
        node: settings.node.clone(),
        runtime: settings.runtime.clone(),
        bin_dir: settings.bin_dir.clone(),
        programs: vec!["orchlet", "orch-proxy"],
        ports: vec![10250],
        address: None,
        absent: vec![
            layout.node.clone(),
            layout.bootstrap_node.clone(),
            settings.authority.clone(),
            layout.programs(),
        ],
        empty: vec![layout.manifests.clone()],
        may_swap: may_swap == Some("false"),
        seen_by_units: seen_by_units(layout, &[&settings.bin_dir]),
        resumes: host.record.as_ref().is_some_and(|record| record.progress == Progress::Begun),
        etcd: None,
    };
    let facts = preflight::gather(&wanted, host).await;
    let given = settings.registration.ignore_preflight_errors.iter();
    let ignored = IgnoredChecks::new(given.chain(&settings.ignored));
    preflight::report(check(&facts, &wanted), &ignored, host.output)
}

/// What the phases work on.
struct Joining<'a> {
    host: &'a Host,
    settings: &'a JoinSettings,
    record: HostRecord,
}

impl<'a> Joining<'a> {
    fn new(host: &'a Host, settings: &'a JoinSettings) -> Result<Self> {
        let fresh = || HostRecord::new(host.names, Role::Node, &settings.node, &settings.runtime);
        let record = host.record.clone().unwrap_or_else(fresh);
        check_same_node(&record, &settings.node, &settings.runtime)?;
        Ok(Self { host, settings, record })
    }

    async fn all(&mut self, services: &mut Services) -> Result<()> {
        for phase in PHASES.iter().filter(|phase| **phase != "preflight") {
            if !self.settings.skips(phase) {
                self.phase(phase, services).await?;
            }
        }
        if !self.settings.skips("kubelet-start") {
            self.finish_agent(services).await?;
        }
        self.record.progress = Progress::Done;
        self.record.store(&self.host.layout)?;
        let text = format!(
            "\nThis node has joined the cluster: `kubectl get nodes` on the control plane shows {}.",
            self.settings.node
        );
        let server = client_config::load(&self.host.layout.node);
        let server = server.map(|config| config.server.to_string()).unwrap_or_default();
        let server = server.trim_end_matches('/');
        let value = json!({"node": self.settings.node, "server": server});
        self.host.output.result(&text, &value);
        Ok(())
    }

    async fn phase(&mut self, phase: &str, services: &mut Services) -> Result<()> {
        match phase {
            "kubelet-start" => self.start_agent(services).await,
            _ => self.start_proxy(services).await,
        }
    }

    /// Finds the cluster, and has orchlet request its certificate with the token. Returns once it has one: the proxy needs no more, and starts before the
    /// node has pods, whose answers to pods of other nodes need its routes.
    async fn start_agent(&mut self, services: &mut Services) -> Result<()> {
        let (host, settings, layout) = (self.host, self.settings, &self.host.layout);
        let found = discovery::find(&settings.source, host.names, settings.patience).await?;
        host.output.log("discovery", &format!("the cluster is {}", found.server));
        if host.record.is_some() {
            check_same_cluster(layout, &settings.authority, &found)?;
        }
        self.record.store(layout)?;
        write_discovered(host, settings, &found)?;
        let by_token = cluster::client(&layout.bootstrap_node, host.names)?;
        if !layout.node.exists() {
            discovery::check_name_is_free(&by_token, &settings.node).await?;
        }
        let cluster = discovery::read_configuration(&by_token, host.names).await?;
        let facts = ask_runtime(settings).await;
        let program = member(host, settings, &facts, &cluster).agent(true)?;
        services.ensure(layout, &mut self.record, &program).await?;
        host.output.log("kubelet-start", "orchlet is set up, and requests its certificate");
        match services {
            // Nothing runs it yet.
            Services::Recorded => Ok(()),
            _ => wait_for_certificate(host, services).await,
        }
    }

    /// Waits until the node is registered; the token is of no use then.
    async fn finish_agent(&mut self, services: &Services) -> Result<()> {
        if matches!(services, Services::Recorded) {
            return Ok(());
        }
        wait_for_node(self.host, services, &self.settings.node).await?;
        self.forget_token()
    }

    fn forget_token(&self) -> Result<()> {
        Ok(private_files::remove_private(&self.host.layout.bootstrap_node)?)
    }

    /// Starts the proxy with the certificate that the node has got.
    async fn start_proxy(&mut self, services: &mut Services) -> Result<()> {
        let (host, settings) = (self.host, self.settings);
        let client = cluster::client(&host.layout.node, host.names)?;
        let cluster = discovery::read_configuration(&client, host.names).await?;
        let facts = RuntimeFacts::default();
        let member = member(host, settings, &facts, &cluster);
        start_proxy(host, &member, services, &mut self.record).await
    }
}

/// The runtime settings of orchlet; preflight reports a runtime that does not respond.
async fn ask_runtime(settings: &JoinSettings) -> RuntimeFacts {
    match Runtime::connect(&settings.runtime).await {
        Ok(mut runtime) => runtime.facts().await.unwrap_or_default(),
        Err(_) => RuntimeFacts::default(),
    }
}

/// This host as a member of the cluster that was found.
fn member<'a>(
    host: &'a Host,
    settings: &'a JoinSettings,
    facts: &'a RuntimeFacts,
    cluster: &'a ClusterConfiguration,
) -> Member<'a> {
    Member {
        names: host.names,
        layout: &host.layout,
        node: &settings.node,
        runtime: &settings.runtime,
        facts,
        bin_dir: &settings.bin_dir,
        authority: &settings.authority,
        cluster,
        registration: &settings.registration,
    }
}

/// Writes the authority and the client configuration with the token.
fn write_discovered(host: &Host, settings: &JoinSettings, found: &FoundCluster) -> Result<()> {
    let layout = &host.layout;
    let wrote = |path: &Path| path.display().to_string();
    for dir in [Some(layout.config.as_path()), settings.authority.parent()].into_iter().flatten() {
        private_files::create_trusted_dir(dir).with_context(|| wrote(dir))?;
    }
    private_files::write_atomically(&settings.authority, found.authority.as_bytes(), PUBLIC_MODE)
        .with_context(|| wrote(&settings.authority))?;
    let cluster = ClusterEntry {
        name: host.names.api_service_name(),
        server: &found.server,
        authority: AuthorityAt::Embedded(&found.authority),
    };
    let token = settings.tls_token.text();
    let text = client_config::text(&cluster, "tls-bootstrap-token-user", &AuthInfo::Token(&token));
    Ok(client_config::write(&layout.bootstrap_node, &text)?)
}

/// Waits until orchlet has the client configuration with its certificate.
async fn wait_for_certificate(host: &Host, services: &Services) -> Result<()> {
    let path = &host.layout.node;
    let what = format!("orchlet has written {}", path.display());
    let look =
        async || if path.exists() { Ok(()) } else { Err(NotYet("it does not exist".to_owned())) };
    Ok(services.until((&host.layout, "orchlet"), &what, PATIENCE, look).await?)
}

async fn wait_for_node(host: &Host, services: &Services, name: &str) -> Result<()> {
    let (api, what) = (
        cluster::client(&host.layout.node, host.names)?.all::<Node>(),
        format!("the node {name} is registered"),
    );
    let look = async || api.get(name).await.map(drop).map_err(cluster::chain);
    Ok(services.until((&host.layout, "orchlet"), &what, PATIENCE, look).await?)
}

#[cfg(test)]
mod tests;
