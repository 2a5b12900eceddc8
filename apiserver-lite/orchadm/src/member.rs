//! A host as a member of a cluster: its proxy, its name and its runtime.

use anyhow::{Context as _, Result};
use apiserver_bootstrap::client_config::{self, AuthorityAt, Cluster, Identity};
use apiserver_bootstrap::host_programs::Member;
use apiserver_bootstrap::record::Record;

use crate::host::{self, Host};
use crate::runtime::{DEFAULT_SOCKET, socket_path};
use crate::services::Services;

/// Starts the proxy. It shows the node's certificate, which orchlet renews: the role `system:node-proxier` of the group of nodes lets it read Services
/// and their endpoints, and there is no other secret that a machine would need.
///
/// # Errors
/// The node's client configuration cannot be read, or the proxy not be started.
pub async fn start_proxy(
    host: &Host,
    member: &Member<'_>,
    services: &mut Services,
    record: &mut Record,
) -> Result<()> {
    let (layout, names) = (&host.layout, host.names);
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
    let user = format!("system:node:{}", member.node);
    client_config::write(&layout.proxy, &client_config::text(&cluster, &user, &identity))?;
    services.ensure(layout, record, &member.proxy()).await?;
    host.output.log("addon", "orch-proxy is set up");
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
