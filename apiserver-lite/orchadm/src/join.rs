//! `orchadm join`: this host becomes a node. It finds the cluster, and orchlet gets its certificate with the token (TLS bootstrap).

mod settings;

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use apiserver_bootstrap::access;
use apiserver_bootstrap::client_config::{self, AuthorityAt, Cluster, Identity};
use apiserver_bootstrap::cluster_info::FoundCluster;
use apiserver_bootstrap::configuration::{ClusterConfiguration, parse};
use apiserver_bootstrap::layout::Layout;
use apiserver_bootstrap::preflight::{Ignored, Role, RuntimeFacts, Wanted, check};
use proto_api::core::v1::{ConfigMap, Node};
use proto_client::Client;
use proto_daemon::private_files;
use serde_json::json;

use crate::cluster::{self, until};
use crate::discovery;
use crate::host::{Host, seen_by_units};
use crate::member::{Member, ProxyOf, agent_program, start_proxy};
use crate::preflight;
use crate::runtime::Runtime;
use crate::services::{Services, stay};
use crate::supervisor::stop_signal;
use apiserver_bootstrap::record::{Progress, Record};

pub use settings::{JoinFlags, JoinSettings};

/// How long the certificate and the registration are waited for.
const PATIENCE: Duration = Duration::from_secs(240);
/// Mode of the authority's certificate.
const PUBLIC_MODE: u32 = 0o644;
/// Key of the configuration in its ConfigMap, as kubeadm's.
const CONFIGURATION_KEY: &str = "ClusterConfiguration";

/// Runs `join`.
///
/// # Errors
/// A phase failed; what was done stays, and the command can be repeated.
pub async fn run(host: Host, flags: &JoinFlags) -> Result<()> {
    let settings = flags.settings(&host)?;
    if host.record.as_ref().is_some_and(|record| record.role == Role::ControlPlane) {
        bail!("this host is the control plane of a cluster: `orchadm reset` first");
    }
    let mut stop = std::pin::pin!(stop_signal()?);
    preflight(&host, &settings).await?;
    let mut services = Services::begin(&host.layout)?;
    // Cancel-safe: what is cut off is continued by the next run.
    let ended = tokio::select! {
        ended = join(&host, &settings, &mut services) => ended,
        () = &mut stop => Err(anyhow::anyhow!("interrupted: `orchadm join` again continues")),
    };
    stay(services, &host, ended, stop).await
}

async fn preflight(host: &Host, settings: &JoinSettings) -> Result<()> {
    let layout = &host.layout;
    let extra = &settings.registration.kubelet_extra_args;
    let may_swap = extra.get("fail-swap-on").map(String::as_str);
    let wanted = Wanted {
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
    };
    let facts = preflight::gather(&wanted, host).await;
    let given = settings.registration.ignore_preflight_errors.iter();
    let ignored = Ignored::new(given.chain(&settings.ignored));
    preflight::conclude(check(&facts, &wanted), &ignored, host.output)
}

async fn join(host: &Host, settings: &JoinSettings, services: &mut Services) -> Result<()> {
    let names = host.names;
    let fresh = || Record::new(names, Role::Node, &settings.node, &settings.runtime);
    let mut record = host.record.clone().unwrap_or_else(fresh);
    check_same_node(&record, settings)?;
    let found = discovery::find(&settings.source, names, settings.patience).await?;
    host.output.say("discovery", &format!("the cluster is {}", found.server));
    if host.record.is_some() {
        check_same_cluster(&host.layout, settings, &found)?;
    }
    record.store(&host.layout)?;
    write_discovered(host, settings, &found)?;
    let by_token = cluster::client(&host.layout.bootstrap_node, names)?;
    let has_certificate = host.layout.node.exists();
    if !has_certificate {
        check_name_is_free(&by_token, &settings.node).await?;
    }
    let cluster = configuration(&by_token, host).await?;
    let facts = match Runtime::connect(&settings.runtime).await {
        Ok(mut runtime) => runtime.facts().await.unwrap_or_default(),
        // Preflight's to tell.
        Err(_) => RuntimeFacts::default(),
    };
    let member = Member {
        host,
        node: &settings.node,
        runtime: &settings.runtime,
        facts: &facts,
        bin_dir: &settings.bin_dir,
        authority: &settings.authority,
        cluster: &cluster,
        registration: &settings.registration,
    };
    let program = agent_program(&member, true)?;
    services.ensure(&host.layout, &mut record, &program).await?;
    host.output.say("kubelet-start", "orchlet is set up, and requests its certificate");
    wait_for_node(host, &settings.node).await?;
    // The token is of no use any more.
    private_files::remove_private(&host.layout.bootstrap_node)?;
    let networking = &cluster.networking;
    let proxy = ProxyOf { host, node: &settings.node, bin_dir: &settings.bin_dir, networking };
    start_proxy(&proxy, services, &mut record).await?;
    record.progress = Progress::Done;
    record.store(&host.layout)?;
    let text = format!(
        "\nThis node has joined the cluster: `kubectl get nodes` on the control plane shows {}.",
        settings.node
    );
    host.output.result(&text, &json!({"node": settings.node, "server": found.server}));
    Ok(())
}

/// A join that is continued is the same join: half a node of one cluster does not become one of another.
fn check_same_node(record: &Record, settings: &JoinSettings) -> Result<()> {
    for (what, before, now) in [
        ("node name", &record.node, &settings.node),
        ("container runtime", &record.runtime, &settings.runtime),
    ] {
        if before != now {
            bail!(
                "an earlier join of this host used the {what} {before:?}, and this one {now:?}: give the same, or `orchadm reset` first"
            );
        }
    }
    Ok(())
}

/// Compares the cluster with the one that an earlier join found, by its server and its authority.
fn check_same_cluster(
    layout: &Layout,
    settings: &JoinSettings,
    found: &FoundCluster,
) -> Result<()> {
    let authority = read_known(&settings.authority)?;
    if authority.is_some_and(|known| known != found.authority) {
        bail!(
            "{} is the authority of another cluster than {}: give the server and the hash of the earlier join, or `orchadm reset` first",
            settings.authority.display(),
            found.server
        );
    }
    for path in [&layout.bootstrap_node, &layout.node] {
        if read_known(path)?.is_none() {
            continue;
        }
        let known = client_config::load(path)?.server.to_string();
        if known.trim_end_matches('/') != found.server.trim_end_matches('/') {
            bail!(
                "{} is for the server {known}, and this join is for {}: give the same, or `orchadm reset` first",
                path.display(),
                found.server
            );
        }
    }
    Ok(())
}

fn read_known(path: &Path) -> Result<Option<String>> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| path.display().to_string()),
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
    let cluster = Cluster {
        name: host.names.api_service_name(),
        server: &found.server,
        authority: AuthorityAt::Embedded(&found.authority),
    };
    let token = settings.tls_token.text();
    let text = client_config::text(&cluster, "tls-bootstrap-token-user", &Identity::Token(&token));
    Ok(client_config::write(&layout.bootstrap_node, &text)?)
}

/// As kubeadm: a node of this name that is Ready is another machine.
async fn check_name_is_free(client: &Client, name: &str) -> Result<()> {
    let found = client.all::<Node>().find(name).await;
    let found = found.with_context(|| format!("looking whether the node {name} exists"))?;
    let is_ready = found.is_some_and(|node| {
        node.status.conditions.iter().any(|c| c.type_ == "Ready" && c.status == "True")
    });
    if is_ready {
        bail!(
            "a node {name:?} that is Ready is in the cluster: remove it with `kubectl delete node {name}` on the control plane, or give --node-name"
        );
    }
    Ok(())
}

async fn configuration(client: &Client, host: &Host) -> Result<ClusterConfiguration> {
    let name = access::configuration_name(host.names);
    let api = client.within::<ConfigMap>(host.names.system_namespace());
    let map = api.get(&name).await.with_context(|| format!("reading the ConfigMap {name}"))?;
    let text = map.data.get(CONFIGURATION_KEY).map(String::as_str).unwrap_or_default();
    let read = parse(text, host.names).with_context(|| format!("the ConfigMap {name}"))?;
    read.cluster.with_context(|| format!("the ConfigMap {name} has no {CONFIGURATION_KEY}"))
}

/// Waits for the certificate, then for the Node.
async fn wait_for_node(host: &Host, name: &str) -> Result<()> {
    let path = &host.layout.node;
    let log = host.layout.log("orchlet");
    let hint = || format!("see {}, or `journalctl -u orchlet`", log.display());
    until(&format!("orchlet has written {}", path.display()), PATIENCE, async || {
        if path.exists() { Ok(()) } else { Err("it does not exist".to_owned()) }
    })
    .await
    .with_context(hint)?;
    let client = cluster::client(path, host.names)?;
    let api = client.all::<Node>();
    until(&format!("the node {name} is registered"), PATIENCE, async || {
        api.get(name).await.map(drop).map_err(cluster::chain)
    })
    .await
    .with_context(hint)
}

#[cfg(test)]
mod tests;
