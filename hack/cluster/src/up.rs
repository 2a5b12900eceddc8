//! Starts a cluster or mends one that is there, step by step, and shows that it works.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use apiserver_bootstrap::supervise::STOP_GRACE;
use clap::Args;
use proto_api::names::Names;
use proto_client::Client;

use crate::apply::apply;
use crate::directory::{ClusterDirectory, check_unused};
use crate::files::{make_dir, write_file};
use crate::processes::command_line;
use crate::program_watch::ProgramWatch;
use crate::progress::Progress;
use crate::spec::Spec;
use crate::supervisor::{Programs, end_supervisor, find, find_supervisor, start_supervisor};
use crate::{access, certificates, demo, namespaces, network, programs};

/// Flags of `up`; those that are not given keep what the cluster was last started with.
#[derive(Debug, Default, Args)]
pub struct Flags {
    /// Where the cluster lies.
    #[command(flatten)]
    pub place: ClusterDirectory,
    /// Number of nodes; each has its own namespaces, containerd, orchlet and orch-proxy. A running cluster can grow.
    #[arg(long)]
    pub nodes: Option<u8>,
    /// Names on the wire: kubernetes (the default), which kubectl and client libraries speak, or orch.
    #[arg(long)]
    pub naming: Option<String>,
    /// Start the cluster only: without the demo, and without its image.
    #[arg(long)]
    pub no_demo: bool,
    /// A flag more for each orchlet, such as `--max-pods=300`; may be given several times.
    #[arg(long = "agent-flag", value_name = "FLAG", allow_hyphen_values = true)]
    pub agent_flags: Vec<String>,
    /// A flag more for orch-apiserver; may be given several times.
    #[arg(long = "server-flag", value_name = "FLAG", allow_hyphen_values = true)]
    pub server_flags: Vec<String>,
    /// A flag more for orch-controller-manager; may be given several times.
    #[arg(long = "manager-flag", value_name = "FLAG", allow_hyphen_values = true)]
    pub manager_flags: Vec<String>,
    /// A flag more for orch-scheduler; may be given several times.
    #[arg(long = "scheduler-flag", value_name = "FLAG", allow_hyphen_values = true)]
    pub scheduler_flags: Vec<String>,
    /// A flag more for each orch-proxy; may be given several times.
    #[arg(long = "proxy-flag", value_name = "FLAG", allow_hyphen_values = true)]
    pub proxy_flags: Vec<String>,
    /// Directory of our programs, this one among them; that of this program when not given.
    #[arg(long)]
    pub bin_dir: Option<PathBuf>,
    /// Whether the caller has put files into the directory of a new cluster, which are removed with it.
    #[arg(skip)]
    pub is_prepared: bool,
}

/// Brings the cluster up and returns when it is ready, the demo included.
pub async fn up(flags: &Flags, progress: &Progress) -> Result<Spec> {
    if !nix::unistd::geteuid().is_root() {
        bail!("namespaces, mounts and containers need root");
    }
    let spec = progress.step("plan the cluster", plan(flags)).await?;
    let names = names(&spec);
    progress.step("bridge and certificates", prepare(&spec, names)).await?;
    let (restarted, mut watch) = progress.step("supervisor", supervise(&spec)).await?;
    if !restarted.is_empty() {
        println!("     started again, with other flags: {}", restarted.join(", "));
    }
    let connected = watch.during(demo::connect(&spec, names));
    let client = progress.step("API server ready", connected).await?;
    let bindings = access::bindings(names);
    progress.step("roles of the API server and of nodes", apply(&client, &bindings)).await?;
    let nodes = format!("{} node{} ready", spec.nodes, if spec.nodes == 1 { "" } else { "s" });
    progress.step(&nodes, watch.during(demo::wait_nodes(&spec, &client))).await?;
    progress.step("programs run with the flags given", watch.settled()).await?;
    let dns = dns_service(&client, names);
    progress.step("Service of the nodes' resolvers", dns).await?;
    if !flags.no_demo {
        demo::run(&spec, &client, progress).await?;
    }
    println!("\nThe cluster in {} is up after {}.", spec.dir.display(), progress.elapsed());
    println!("  logs                  {}", spec.dir.join("logs").display());
    println!("{}", demo::how_to_reach(&spec, !flags.no_demo));
    Ok(spec)
}

async fn dns_service(client: &Client, names: &Names) -> Result<()> {
    Ok(access::ensure_dns_service(client, names, Spec::DNS_SERVICE_ADDRESS.into()).await?)
}

/// The names that the cluster's programs use.
pub fn names(spec: &Spec) -> &'static Names {
    spec.names()
}

/// What the cluster is to be.
async fn plan(flags: &Flags) -> Result<Spec> {
    let dir = flags.place.absolute()?;
    let own_dir = || -> Result<PathBuf> {
        let own = std::env::current_exe().context("cannot find the path of this program")?;
        Ok(own.parent().context("cannot find the directory of this program")?.to_owned())
    };
    let bin_dir = match &flags.bin_dir {
        Some(dir) => std::path::absolute(dir)?,
        None => own_dir()?,
    };
    let spec = match Spec::load(&dir)? {
        Some(old) => changed(old, flags, bin_dir)?,
        None => Spec {
            dir: if flags.is_prepared { dir } else { unused(dir)? },
            bin_dir,
            naming: flags.naming.clone().unwrap_or_else(|| "kubernetes".to_owned()),
            nodes: flags.nodes.unwrap_or(1),
            subnet: network::free_subnet().await?,
            agent_flags: given_or(&flags.agent_flags, &[]),
            server_flags: given_or(&flags.server_flags, &[]),
            manager_flags: given_or(&flags.manager_flags, &[]),
            scheduler_flags: given_or(&flags.scheduler_flags, &[]),
            proxy_flags: given_or(&flags.proxy_flags, &[]),
        },
    };
    spec.validate()?;
    Ok(spec)
}

/// Programs that run with other flags than the plan's, whatever was stored when: an `up` that is cut off has stored flags and started nothing. Where the
/// programs lie does not count. `running` gives the command line of a program that runs.
fn with_other_flags(spec: &Spec, running: impl Fn(&str) -> Option<Vec<String>>) -> Vec<String> {
    let mut all = programs::programs(spec);
    all.retain(|program| {
        running(&program.name).is_some_and(|line| line.get(1..) != program.argv.get(1..))
    });
    all.into_iter().map(|program| program.name).collect()
}

/// The command line of a program of the cluster, if it runs.
fn running_line(spec: &Spec, program: &str) -> Option<Vec<String>> {
    let line = command_line(find(spec, program)?.identity.pid);
    // One that has just ended has the line of a process without arguments.
    find(spec, program).is_some().then_some(line)
}

/// A directory that a new cluster can have.
fn unused(dir: PathBuf) -> Result<PathBuf> {
    check_unused(&dir)?;
    Ok(dir)
}

/// A cluster that exists can get more nodes, newer programs and other flags, nothing else.
fn changed(old: Spec, flags: &Flags, bin_dir: PathBuf) -> Result<Spec> {
    let naming = flags.naming.clone().unwrap_or_else(|| old.naming.clone());
    if naming != old.naming {
        bail!("--naming {naming}: this cluster was started with {}", old.naming);
    }
    let nodes = flags.nodes.unwrap_or(old.nodes);
    if nodes < old.nodes {
        bail!("--nodes {nodes}: this cluster has {} and cannot shrink", old.nodes);
    }
    Ok(Spec {
        nodes,
        bin_dir,
        agent_flags: given_or(&flags.agent_flags, &old.agent_flags),
        server_flags: given_or(&flags.server_flags, &old.server_flags),
        manager_flags: given_or(&flags.manager_flags, &old.manager_flags),
        scheduler_flags: given_or(&flags.scheduler_flags, &old.scheduler_flags),
        proxy_flags: given_or(&flags.proxy_flags, &old.proxy_flags),
        ..old
    })
}

/// The flags that are given, or those of before; an empty one only removes these.
fn given_or(given: &[String], old: &[String]) -> Vec<String> {
    let flags = if given.is_empty() { old } else { given };
    flags.iter().filter(|flag| !flag.is_empty()).cloned().collect()
}

async fn prepare(spec: &Spec, names: &Names) -> Result<()> {
    spec.store()?;
    make_dir(&spec.dir.join("logs"))?;
    network::ensure_bridge(spec).await?;
    certificates::ensure(spec, names)?;
    for node in spec.node_list() {
        let dir = spec.node_dir(&node.name);
        for sub in ["containerd", "orchlet", "manifests", "cni"] {
            make_dir(&dir.join(sub))?;
        }
        let config = programs::containerd_config(spec, &node);
        write_file(&dir.join("containerd/config.toml"), config.as_bytes())?;
    }
    // The API server's address exists before the first connection: a host whose ARP request failed repeats it after a second.
    if let Some(node) = spec.node_list().first() {
        namespaces::ensure(spec, node).await?;
    }
    Ok(())
}

/// A supervisor that runs may know an older plan: the new one adopts its programs, and starts those that end here, which are named.
async fn supervise(spec: &Spec) -> Result<(Vec<String>, ProgramWatch<'_>)> {
    if find_supervisor(spec).is_some() {
        end_supervisor(spec, Programs::Leave).await?;
    }
    let restarted = with_other_flags(spec, |program| running_line(spec, program));
    for program in &restarted {
        if let Some(handle) = find(spec, program) {
            handle.stop(STOP_GRACE).await?;
        }
    }
    let watch = ProgramWatch::begin(spec);
    start_supervisor(spec)?;
    Ok((restarted, watch))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn old() -> Spec {
        Spec {
            dir: "/var/tmp/c".into(),
            bin_dir: "/opt/bin".into(),
            naming: "kubernetes".into(),
            nodes: 2,
            subnet: 1,
            agent_flags: vec!["--max-pods=30".into()],
            server_flags: Vec::new(),
            manager_flags: Vec::new(),
            scheduler_flags: Vec::new(),
            proxy_flags: Vec::new(),
        }
    }

    /// Programs that start again by other flags, where those of the first plan run.
    fn restarted(flags: &Flags) -> Vec<String> {
        let new = changed(old(), flags, "/usr/bin".into()).expect("it may change");
        let running = programs::programs(&old());
        with_other_flags(&new, |name| {
            running.iter().find(|program| program.name == name).map(|program| program.argv.clone())
        })
    }

    #[test]
    fn programs_start_again_that_get_other_flags() {
        assert!(restarted(&Flags { nodes: Some(3), ..Flags::default() }).is_empty());
        let same = Flags { agent_flags: vec!["--max-pods=30".into()], ..Flags::default() };
        assert!(restarted(&same).is_empty());
        let verbose = || vec!["--v=4".to_owned()];
        let agents = Flags { agent_flags: verbose(), ..Flags::default() };
        assert_eq!(restarted(&agents), ["orchlet-node-1", "orchlet-node-2"]);
        let server = Flags { server_flags: verbose(), ..Flags::default() };
        assert_eq!(restarted(&server), ["orch-apiserver"]);
        let manager = Flags { manager_flags: verbose(), ..Flags::default() };
        assert_eq!(restarted(&manager), ["orch-controller-manager"]);
        let scheduler = Flags { scheduler_flags: verbose(), ..Flags::default() };
        assert_eq!(restarted(&scheduler), ["orch-scheduler"]);
        let without = Flags { agent_flags: vec![String::new()], ..Flags::default() };
        assert_eq!(restarted(&without), ["orchlet-node-1", "orchlet-node-2"]);
        let proxies = Flags { proxy_flags: verbose(), nodes: Some(3), ..Flags::default() };
        assert_eq!(restarted(&proxies), ["orch-proxy-node-1", "orch-proxy-node-2"]);
    }

    #[tokio::test]
    async fn programs_start_again_after_an_up_that_stored_flags_and_was_cut_off() {
        let dir = tempfile::tempdir().expect("a directory");
        std::fs::create_dir(dir.path().join("processes")).expect("a directory of records");
        let place = ClusterDirectory { dir: dir.path().to_owned() };
        let stored = Spec { dir: dir.path().into(), proxy_flags: vec!["--v=4".into()], ..old() };
        stored.store().expect("a cluster");
        // It runs with the flags of before.
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().expect("a process");
        let identity =
            crate::processes::ProcessIdentity::from_pid(child.id() as i32).expect("it runs");
        let name = "orch-proxy-node-1";
        crate::supervisor::record_identity(&stored, name, &identity).expect("a record");

        let spec = plan(&Flags { place, ..Flags::default() }).await.expect("a plan");
        let restarted = with_other_flags(&spec, |program| running_line(&spec, program));
        child.kill().and_then(|()| child.wait()).expect("it ends");
        assert_eq!(restarted, [name]);
        assert!(running_line(&spec, name).is_none(), "it has ended");
    }

    #[test]
    fn the_script_s_help_lists_every_option() {
        let script = include_str!("../../up");
        let (help, _) = script.split_once("\nset ").expect("options come before the commands");
        let command = Flags::augment_args(clap::Command::new("up"));
        for name in command.get_arguments().filter_map(clap::Arg::get_long) {
            assert!(help.contains(&format!("#   --{name} ")), "--{name} is not in hack/up");
        }
    }
}
