//! A host as a member of a cluster: its node agent and its proxy.

use std::path::Path;

use anyhow::{Context as _, Result};
use apiserver_bootstrap::arguments::{
    self, NodeAgent, Program, SANDBOX_IMAGE, command_line, extra, with_own,
};
use apiserver_bootstrap::client_config::{self, AuthorityAt, Cluster, Identity};
use apiserver_bootstrap::configuration::{
    ClusterConfiguration, Networking, NodeRegistration, Taint,
};
use apiserver_bootstrap::preflight::RuntimeFacts;

use crate::host::{self, Host};
use crate::runtime::{DEFAULT_SOCKET, socket_path};
use crate::services::Services;
use apiserver_bootstrap::record::Record;

/// A host as a member, for the arguments of its node agent.
pub struct Member<'a> {
    /// The host.
    pub host: &'a Host,
    /// Name of the Node.
    pub node: &'a str,
    /// The runtime's socket.
    pub runtime: &'a str,
    /// What the runtime says of itself.
    pub facts: &'a RuntimeFacts,
    /// Directory of the programs.
    pub bin_dir: &'a Path,
    /// The cluster's authority.
    pub authority: &'a Path,
    /// The cluster.
    pub cluster: &'a ClusterConfiguration,
    /// What was asked for.
    pub registration: &'a NodeRegistration,
}

/// The node agent of a member; one that `joins` has no certificate yet.
///
/// # Errors
/// The cluster's networks are not valid.
pub fn agent_program(member: &Member<'_>, joins: bool) -> Result<Program> {
    let (layout, names) = (&member.host.layout, member.host.names);
    let sandbox = match member.facts.sandbox_image.as_str() {
        "" => SANDBOX_IMAGE,
        image => image,
    };
    let agent = NodeAgent {
        client_config: &layout.node,
        name: member.node,
        root: &layout.node_root,
        manifests: &layout.manifests,
        runtime: member.runtime,
        cni: &layout.cni,
        dns: Some(member.cluster.dns_address()?),
        domain: &member.cluster.networking.dns_domain,
        authority: member.authority,
        sandbox_image: sandbox,
    };
    let mut flags = agent.flags();
    flags.push(("rotate-certificates", "true".to_owned()));
    let driver = if member.facts.uses_systemd_cgroups { "systemd" } else { "cgroupfs" };
    flags.push(("cgroup-driver", driver.to_owned()));
    if joins {
        flags.push(("bootstrap-kubeconfig", layout.bootstrap_node.display().to_string()));
        let taint = |t: &Taint| format!("{}={}:{}", t.key, t.value, t.effect);
        let taints: Vec<String> = member.registration.taints.iter().flatten().map(taint).collect();
        if !taints.is_empty() {
            flags.push(("register-with-taints", taints.join(",")));
        }
    }
    let line = command_line(member.bin_dir, "orchlet", names, &flags);
    let own = extra(&member.registration.kubelet_extra_args);
    Ok(Program { name: "orchlet".to_owned(), argv: with_own(line, &own) })
}

/// The proxy of a host.
pub struct ProxyOf<'a> {
    /// The host.
    pub host: &'a Host,
    /// Name of the Node.
    pub node: &'a str,
    /// Directory of the programs.
    pub bin_dir: &'a Path,
    /// The cluster's networks.
    pub networking: &'a Networking,
}

/// Starts the proxy. It shows the node's certificate, which orchlet renews: the role `system:node-proxier` of the group of nodes lets it read Services
/// and their endpoints, and there is no other secret that a machine would need.
///
/// # Errors
/// The node's client configuration cannot be read, or the proxy not be started.
pub async fn start_proxy(
    of: &ProxyOf<'_>,
    services: &mut Services,
    record: &mut Record,
) -> Result<()> {
    let (layout, names) = (&of.host.layout, of.host.names);
    let node = client_config::load(&layout.node)?;
    let authority = node.tls.authority.as_ref().and_then(client_config::pem_text);
    let authority = authority
        .with_context(|| format!("{} has no certificate authority", layout.node.display()))?;
    let server = node.server.to_string();
    let cluster = Cluster {
        name: names.api_service_name(),
        server: server.trim_end_matches('/'),
        authority: AuthorityAt::Embedded(&authority),
    };
    let pair = &layout.node_pair;
    let identity = Identity::Files { certificate: pair.clone(), key: pair.clone() };
    let user = format!("system:node:{}", of.node);
    client_config::write(&layout.proxy, &client_config::text(&cluster, &user, &identity))?;
    let networks = of.networking;
    let flags =
        arguments::proxy(&layout.proxy, of.node, &networks.pod_subnet, &networks.dns_domain);
    let argv = command_line(of.bin_dir, "orch-proxy", names, &flags);
    let program = Program { name: "orch-proxy".to_owned(), argv };
    services.ensure(layout, record, &program).await?;
    of.host.output.say("addon", "orch-proxy is set up");
    Ok(())
}

/// The name of this host as a node: the given one, else the host name.
///
/// # Errors
/// The host name cannot be read.
pub fn node_name(given: &str) -> Result<String> {
    if given.is_empty() { host::host_name() } else { Ok(given.to_lowercase()) }
}

/// The runtime's socket: the given one, as `unix:///path`, else containerd's.
///
/// # Errors
/// It is no path.
pub fn runtime_socket(given: &str) -> Result<String> {
    let socket = match given {
        "" => DEFAULT_SOCKET.to_owned(),
        path if path.starts_with('/') => format!("unix://{path}"),
        socket => socket.to_owned(),
    };
    socket_path(&socket)?;
    Ok(socket)
}
