//! Starts a cluster or mends one that is there, step by step, and shows that it works.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::Args;
use proto_api::names::Names;
use proto_client::Client;

use crate::apply::apply;
use crate::directory::{ClusterDirectory, check_unused};
use crate::files::{make_dir, write_file};
use crate::progress::Progress;
use crate::spec::Spec;
use crate::supervisor::{Programs, end_supervisor, find_supervisor, start_supervisor};
use crate::{access, certificates, demo, namespaces, network, programs};

/// Flags of `up`; those that are not given keep what the cluster was first started with.
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
    /// Start the cluster only.
    #[arg(long)]
    pub no_demo: bool,
    /// A flag more for each orchlet, such as `--max-pods=300`; may be given several times.
    #[arg(long = "agent-flag", value_name = "FLAG", allow_hyphen_values = true)]
    pub agent_flags: Vec<String>,
    /// A flag more for orch-controller-manager; may be given several times.
    #[arg(long = "manager-flag", value_name = "FLAG", allow_hyphen_values = true)]
    pub manager_flags: Vec<String>,
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
    progress.step("supervisor", supervise(&spec)).await?;
    let client = progress.step("API server ready", demo::connect(&spec, names)).await?;
    let bindings = access::bindings(names);
    progress.step("roles of the API server and of nodes", apply(&client, &bindings)).await?;
    let nodes = format!("{} node{} ready", spec.nodes, if spec.nodes == 1 { "" } else { "s" });
    progress.step(&nodes, demo::wait_nodes(&spec, &client)).await?;
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
            agent_flags: flags.agent_flags.clone(),
            manager_flags: flags.manager_flags.clone(),
        },
    };
    spec.validate()?;
    Ok(spec)
}

/// A directory that a new cluster can have.
fn unused(dir: PathBuf) -> Result<PathBuf> {
    check_unused(&dir)?;
    Ok(dir)
}

/// A cluster that exists can get more nodes and newer programs, nothing else.
fn changed(old: Spec, flags: &Flags, bin_dir: PathBuf) -> Result<Spec> {
    let naming = flags.naming.clone().unwrap_or_else(|| old.naming.clone());
    if naming != old.naming {
        bail!("--naming {naming}: this cluster was started with {}", old.naming);
    }
    let nodes = flags.nodes.unwrap_or(old.nodes);
    if nodes < old.nodes {
        bail!("--nodes {nodes}: this cluster has {} and cannot shrink", old.nodes);
    }
    let or_old = |given: &[String], old: &[String]| match given {
        [] => old.to_vec(),
        given => given.to_vec(),
    };
    let agent_flags = or_old(&flags.agent_flags, &old.agent_flags);
    let manager_flags = or_old(&flags.manager_flags, &old.manager_flags);
    Ok(Spec { nodes, bin_dir, agent_flags, manager_flags, ..old })
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

/// A supervisor that runs may know an older plan: the new one adopts its programs.
async fn supervise(spec: &Spec) -> Result<()> {
    if find_supervisor(spec).is_some() {
        end_supervisor(spec, Programs::Leave).await?;
    }
    start_supervisor(spec)
}
