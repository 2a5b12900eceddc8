//! `orchadm init`: the phases that make a control plane of this host, in kubeadm's order and by its names.

mod addon;
mod certs;
mod control_plane;
mod dry_run;
mod node;
mod settings;
mod upload;

use anyhow::{Result, bail};
use apiserver_bootstrap::bootstrap_token::join_command;
use apiserver_bootstrap::external_etcd::ExternalEtcd;
use apiserver_bootstrap::host_facts::seen_by_units;
use apiserver_bootstrap::preflight::{IgnoredChecks, PreflightScope, Role, RuntimeFacts, check};
use apiserver_bootstrap::record::{HostRecord, Progress};
use apiserver_bootstrap::resumed_join::check_same_store;
use apiserver_bootstrap::services::Services;
use clap::{Args, Subcommand};
use serde_json::json;

use crate::cluster;
use crate::failure::not_valid;
use crate::host::Host;
use crate::preflight;
use crate::supervisor::{run_until_stopped, stop_signal};

pub use settings::{InitFlags, InitSettings};

/// `init` and `init phase`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct InitCommand {
    #[command(flatten)]
    flags: InitFlags,
    #[command(subcommand)]
    only: Option<Only>,
}

#[derive(Debug, Subcommand)]
enum Only {
    /// Run one phase of init.
    Phase(PhaseFlags),
}

#[derive(Debug, Args)]
struct PhaseFlags {
    /// preflight, certs, kubeconfig, control-plane, upload-config, bootstrap-token, kubelet-start, mark-control-plane, kubelet-finalize or addon.
    phase: String,
    /// A part of it: of certs, kubeconfig, control-plane or addon.
    #[arg(default_value = "all")]
    part: String,
    #[command(flatten)]
    flags: InitFlags,
}

/// The phases, in order, each with its parts.
const PHASES: &[(&str, &[&str])] = &[
    ("preflight", &[]),
    (
        "certs",
        &[
            "ca",
            "apiserver",
            "apiserver-kubelet-client",
            "front-proxy-ca",
            "front-proxy-client",
            "sa",
        ],
    ),
    ("kubeconfig", &["admin", "kubelet", "controller-manager", "scheduler"]),
    ("control-plane", &["apiserver", "controller-manager", "scheduler"]),
    ("upload-config", &[]),
    ("bootstrap-token", &[]),
    ("kubelet-start", &[]),
    ("mark-control-plane", &[]),
    ("kubelet-finalize", &[]),
    ("addon", &["dns", "kube-proxy"]),
];

/// What the phases work on.
pub struct InitContext {
    /// The host.
    pub host: Host,
    /// The settings.
    pub settings: InitSettings,
    /// What was done.
    pub record: HostRecord,
    /// Who runs the programs.
    pub services: Services,
    /// What the runtime says of itself.
    pub runtime: RuntimeFacts,
}

/// Runs `init`, or one phase of it.
///
/// # Errors
/// A phase failed; what was done stays, and the command can be repeated.
pub async fn run(host: Host, command: &InitCommand) -> Result<()> {
    match &command.only {
        Some(Only::Phase(only)) => run_phase(host, only).await,
        None => run_all(host, &command.flags).await,
    }
}

async fn run_phase(host: Host, only: &PhaseFlags) -> Result<()> {
    let Some((phase, parts)) = PHASES.iter().find(|(phase, _)| *phase == only.phase) else {
        let all: Vec<&str> = PHASES.iter().map(|(phase, _)| *phase).collect();
        return Err(not_valid(format!(
            "phase {:?}: must be one of {}",
            only.phase,
            all.join(", ")
        )));
    };
    if only.part != "all" && !parts.contains(&only.part.as_str()) {
        let text =
            format!("phase {phase} {:?}: must be one of all, {}", only.part, parts.join(", "));
        return Err(not_valid(text));
    }
    check_role(&host)?;
    let settings = only.flags.phase_settings(&host)?;
    let services = Services::for_phase(&host.layout);
    let mut context = InitContext::new(host, settings, services);
    if *phase == "preflight" {
        context.preflight().await?;
    } else if only.flags.is_dry_run() {
        context.ask_runtime().await;
        dry_run::print_plan(&context, phase, &only.part)?;
    } else {
        let _lock = context.host.lock().await?;
        context.ask_runtime().await;
        context.phase(phase, &only.part).await?;
    }
    Ok(())
}

async fn run_all(host: Host, flags: &InitFlags) -> Result<()> {
    let settings = flags.settings(&host)?;
    run_with(host, settings, flags.is_dry_run()).await
}

/// Runs all phases that are not left out.
///
/// # Errors
/// As [`run`].
pub async fn run_with(host: Host, settings: InitSettings, is_dry_run: bool) -> Result<()> {
    check_skipped(&settings.init.skip_phases)?;
    check_role(&host)?;
    if let Some(record) = &host.record {
        check_same_store(record, settings.cluster.etcd.external.as_ref())?;
    }
    let mut stop = std::pin::pin!(stop_signal()?);
    let mut context = InitContext::new(host, settings, Services::Recorded);
    if !context.skips("preflight") {
        context.preflight().await?;
    }
    if is_dry_run {
        context.ask_runtime().await;
        for (phase, _) in PHASES.iter().filter(|(phase, _)| *phase != "preflight") {
            if !context.skips(phase) {
                dry_run::print_plan(&context, phase, "all")?;
            }
        }
        let done = json!({"dryRun": true});
        context.host.output.result("\nNothing was written, and nothing was started.", &done);
        return Ok(());
    }
    let lock = context.host.lock().await?;
    context.services = Services::begin(&context.host.layout)?;
    // Cancel-safe: a phase that is cut off is continued by the next run.
    let ended = tokio::select! {
        ended = context.phases() => ended,
        () = &mut stop => Err(anyhow::anyhow!("interrupted: the same command again continues")),
    };
    run_until_stopped(context.services, &context.host, (lock, ended), stop).await
}

fn check_role(host: &Host) -> Result<()> {
    if host.record.as_ref().is_some_and(|record| record.role == Role::Node) {
        bail!("this host is a node of a cluster: `orchadm reset` first");
    }
    Ok(())
}

/// The name that a phase of kubeadm has here.
fn own_name(phase: &str) -> &str {
    match phase {
        "addon/coredns" => "addon/dns",
        other => other,
    }
}

fn check_skipped(skipped: &[String]) -> Result<()> {
    let is_known = |name: &String| {
        let name = own_name(name);
        let (phase, part) = name.split_once('/').unwrap_or((name, ""));
        PHASES
            .iter()
            .any(|(known, parts)| *known == phase && (part.is_empty() || parts.contains(&part)))
    };
    match skipped.iter().find(|name| !is_known(name)) {
        Some(name) => Err(not_valid(format!("--skip-phases: there is no phase {name:?}"))),
        None => Ok(()),
    }
}

impl InitContext {
    fn new(host: Host, settings: InitSettings, services: Services) -> Self {
        let fresh =
            || HostRecord::new(host.names, Role::ControlPlane, &settings.node, &settings.runtime);
        // One without programs is of a run that made none: what is given now counts.
        let known = host.record.clone().filter(|record| !record.programs.is_empty());
        let mut record = known.unwrap_or_else(fresh);
        record.certificates_dir = Some(settings.pki.clone()).filter(|pki| *pki != host.layout.pki);
        Self { host, settings, record, services, runtime: RuntimeFacts::default() }
    }

    fn skips(&self, name: &str) -> bool {
        self.settings.init.skip_phases.iter().any(|skipped| own_name(skipped) == name)
    }

    async fn phases(&mut self) -> Result<()> {
        // First, so that a reset finds what is made from now on, wherever this ends.
        self.record.store(&self.host.layout)?;
        self.ask_runtime().await;
        for (phase, _) in PHASES.iter().filter(|(phase, _)| *phase != "preflight") {
            if !self.skips(phase) {
                self.phase(phase, "all").await?;
            }
        }
        self.record.progress = Progress::Done;
        self.record.store(&self.host.layout)?;
        self.tell_the_end()
    }

    async fn phase(&mut self, phase: &str, part: &str) -> Result<()> {
        match phase {
            "certs" => certs::make(self, part),
            "kubeconfig" => certs::make_client_configs(self, part),
            "control-plane" => control_plane::start(self, part).await,
            "upload-config" => upload::configuration(self).await,
            "bootstrap-token" => upload::bootstrap_token(self).await,
            "kubelet-start" => node::start(self).await,
            "mark-control-plane" => node::mark_control_plane(self).await,
            "kubelet-finalize" => node::finalize(self).await,
            _ => addon::make(self, part).await,
        }
    }

    /// Whether a part of a phase is selected and not skipped.
    fn is_selected(&self, phase: &str, part: &str, asked: &str) -> bool {
        (asked == "all" || asked == part) && !self.skips(&format!("{phase}/{part}"))
    }

    async fn preflight(&mut self) -> Result<()> {
        let (layout, settings) = (&self.host.layout, &self.settings);
        let etcd = settings.cluster.etcd.external.as_ref();
        let store = etcd.is_none().then(|| layout.store.clone());
        let mut read = vec![settings.bin_dir.as_path(), settings.pki.as_path()];
        read.extend(etcd.into_iter().flat_map(ExternalEtcd::directories));
        let registration = &settings.init.node_registration;
        let port = settings.init.local_api_endpoint.bind_port;
        let resumes =
            self.host.record.as_ref().is_some_and(|record| record.progress == Progress::Begun);
        let may_swap = registration.kubelet_extra_args.get("fail-swap-on").map(String::as_str);
        let wanted = PreflightScope {
            role: Role::ControlPlane,
            node: settings.node.clone(),
            runtime: settings.runtime.clone(),
            bin_dir: settings.bin_dir.clone(),
            programs: vec![
                "orch-apiserver",
                "orch-controller-manager",
                "orch-scheduler",
                "orchlet",
                "orch-proxy",
            ],
            ports: vec![port, 10257, 10259, 10250],
            address: Some(settings.address),
            absent: vec![layout.programs(), layout.bootstrap_node.clone()],
            empty: store.into_iter().chain([layout.manifests.clone()]).collect(),
            may_swap: may_swap == Some("false"),
            seen_by_units: seen_by_units(layout, &read),
            resumes,
            etcd: etcd.cloned(),
        };
        let facts = preflight::gather(&wanted, &self.host).await;
        let ignored = registration.ignore_preflight_errors.iter();
        let ignored = IgnoredChecks::new(ignored.chain(&settings.ignored));
        preflight::report(check(&facts, &wanted), &ignored, self.host.output)
    }

    /// The runtime settings of orchlet; preflight reports a runtime that does not respond.
    async fn ask_runtime(&mut self) {
        if let Ok(mut runtime) = crate::runtime::Runtime::connect(&self.settings.runtime).await {
            self.runtime = runtime.facts().await.unwrap_or_default();
        }
    }

    /// A client of the administrator's, towards this machine's own API server.
    fn client(&self) -> Result<proto_client::Client> {
        cluster::client_at(&self.host.layout.admin, &self.settings.local_server(), self.host.names)
    }

    fn tell_the_end(&self) -> Result<()> {
        let (host, settings) = (&self.host, &self.settings);
        let admin = host.layout.admin.display();
        if settings.joins {
            let text = format!(
                "\nThis host has joined the cluster as a control plane: its administrator's client configuration is {admin}."
            );
            let value = json!({
                "node": settings.node, "server": settings.server(), "adminConfig": host.layout.admin,
            });
            host.output.result(&text, &value);
            return Ok(());
        }
        let pins = settings.pins()?;
        let token = settings.tokens.first().map(|token| token.token.text()).unwrap_or_default();
        let join = join_command(&settings.server(), &token, &pins);
        let alone = node::how_to_run_pods_here(self);
        let text = format!(
            "\nYour control plane has been initialized.\n\nTo use it as root:\n\n  export {}={admin}\n  orchctl get nodes\n{alone}\nHosts join as nodes with, as root:\n\n{join}\n",
            host.names.client_config_env(),
        );
        let value = json!({
            "node": settings.node,
            "server": settings.server(),
            "adminConfig": host.layout.admin,
            "token": token,
            "caCertHashes": pins,
            "joinCommand": join.replace("\\\n\t", ""),
        });
        host.output.result(&text, &value);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_and_their_parts_can_be_left_out_by_name() {
        let check = |name: &str| check_skipped(&[name.to_owned()]).is_ok();
        assert!(check("addon") && check("addon/kube-proxy") && check("certs/sa"));
        assert!(check("addon/coredns"), "kubeadm's name of addon/dns");
        assert!(!check("addons") && !check("addon/nonsense") && !check("etcd"));
    }

    #[derive(clap::Parser)]
    struct Alone {
        #[command(flatten)]
        flags: InitFlags,
    }

    #[tokio::test]
    async fn a_reset_finds_what_an_init_has_made_that_went_no_further_than_its_certificates() {
        let root = tempfile::tempdir().unwrap();
        let names = proto_api::names::Names::new(proto_api::names::Profile::Kubernetes);
        let layout = apiserver_bootstrap::layout::Layout::new(names, root.path());
        let output = crate::output::LineOutput { format: crate::output::OutputFormat::Text };
        let host = Host { names, layout, record: None, output };
        let line = [
            "x",
            "--apiserver-advertise-address=10.0.0.1",
            "--node-name=n",
            "--cri-socket=/missing/runtime.sock",
            "--cert-dir=/srv/pki",
        ];
        let flags = <Alone as clap::Parser>::parse_from(line).flags;
        let settings = flags.settings(&host).unwrap();
        let pki = settings.pki.clone();
        std::fs::create_dir_all(pki.parent().unwrap()).unwrap();
        std::fs::write(&pki, "no directory").unwrap();
        let mut context = InitContext::new(host, settings, Services::Recorded);
        assert!(context.phases().await.is_err());
        let record = HostRecord::load(root.path()).unwrap().unwrap();
        assert_eq!((record.progress, record.certificates_dir), (Progress::Begun, Some(pki)));
    }

    #[test]
    fn a_node_is_no_control_plane() {
        let root = tempfile::tempdir().unwrap();
        let names = proto_api::names::Names::new(proto_api::names::Profile::Kubernetes);
        let layout = apiserver_bootstrap::layout::Layout::new(names, root.path());
        let output = crate::output::LineOutput { format: crate::output::OutputFormat::Text };
        let mut host = Host { names, layout, record: None, output };
        check_role(&host).unwrap();
        host.record = Some(HostRecord::new(names, Role::ControlPlane, "n", ""));
        check_role(&host).unwrap();
        host.record = Some(HostRecord::new(names, Role::Node, "n", ""));
        assert!(check_role(&host).is_err());
    }
}
