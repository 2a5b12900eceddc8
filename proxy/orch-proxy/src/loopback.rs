//! Node ports at loopback addresses, for processes on this node. The kernel does not route packets from 127.0.0.1 to
//! other hosts unless `route_localnet` is set, which exposes services that trust loopback addresses; so sockets of
//! this process serve them, on a thread of their own that starts with the first node port. Only these connections end
//! with the process.

use std::sync::Arc;

use proto_daemon::drain::DrainWatch;
use proto_daemon::statusz::TaskStatus;
use proxy_rules::model::Settings;
use proxy_userspace::{ForwardMetrics, Forwarder, ForwarderLimits, Options};

/// Listening sockets of both families; more than the default range of node ports.
const FRONTENDS_MAX: usize = 8192;
/// Concurrent connections and UDP sessions: probes and people use these, not load.
const CONNECTIONS_MAX: usize = 1024;

/// Starts the forwarder. It serves the node ports that it receives until drained.
pub fn start(
    settings: Settings,
    metrics: ForwardMetrics,
    status: TaskStatus,
    drain: DrainWatch,
) -> Arc<Forwarder> {
    let forwarder = Arc::new(Forwarder::of_node_ports(settings));
    let mut limits = ForwarderLimits::of_open_files();
    limits.frontends = FRONTENDS_MAX;
    limits.connections = limits.connections.min(CONNECTIONS_MAX);
    let handle = forwarder.clone();
    tokio::spawn(async move {
        // Both arms are cancel safe.
        tokio::select! {
            () = drain.asked() => return,
            () = handle.complete() => {}
        }
        let options = Options { limits, link: None, metrics, status };
        if let Err(error) = thread(handle, options, drain) {
            tracing::error!(
                %error,
                "cannot start the loopback thread; node ports are not served at loopback addresses"
            );
        }
    });
    forwarder
}

/// A thread of its own, so that forwarded data delays nothing else.
fn thread(forwarder: Arc<Forwarder>, options: Options, drain: DrainWatch) -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let body = move || runtime.block_on(forwarder.run(options, || {}, drain));
    std::thread::Builder::new().name("loopback".into()).spawn(body).map(drop)
}
