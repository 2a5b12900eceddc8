//! A host as a member of a cluster: its proxy, its name and its runtime.

use anyhow::Result;
use apiserver_bootstrap::client_config;
use apiserver_bootstrap::host_programs::Member;
use apiserver_bootstrap::record::HostRecord;
use apiserver_bootstrap::services::Services;

use crate::host::{self, Host};
use crate::runtime::{DEFAULT_SOCKET, socket_path};

/// Starts the proxy. It shows the node's certificate, which orchlet renews: the role `system:node-proxier` of the group of nodes lets it read Services
/// and their endpoints, and there is no other secret that a machine would need.
///
/// # Errors
/// The node's client configuration cannot be read, or the proxy not be started.
pub async fn start_proxy(
    host: &Host,
    member: &Member<'_>,
    services: &mut Services,
    record: &mut HostRecord,
) -> Result<()> {
    client_config::write_for_proxy(&host.layout, host.names, member.node)?;
    services.ensure(&host.layout, record, &member.proxy()).await?;
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
