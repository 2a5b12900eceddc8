//! Node ports at loopback addresses, for processes of this machine. The kernel sends nothing that comes from 127.0.0.1
//! to another machine unless `route_localnet` allows it, which opens to the network what trusts loopback; so sockets of
//! this process serve them, on a thread of its own, from when there is the first. Connections by this way, and no
//! other, end with the process.

use std::sync::Arc;

use proto_daemon::drain::DrainWatch;
use proto_daemon::statusz::TaskStatus;
use proxy_rules::model::Settings;
use proxy_userspace::{ForwardMetrics, Forwarder, ForwarderLimits, Options};

use crate::userspace::connections;

/// Ports that are listened at, of both families: more than the usual range of node ports has.
const FRONTENDS_MAX: usize = 8192;
/// Connections and sessions at a time: this is the way of checks and of people, not of load.
const CONNECTIONS_MAX: usize = 1024;

/// Serves what will be told to the forwarder that this returns, until drained.
pub fn start(
    settings: Settings,
    metrics: ForwardMetrics,
    status: TaskStatus,
    drain: DrainWatch,
) -> Arc<Forwarder> {
    let forwarder = Arc::new(Forwarder::of_node_ports(settings));
    let limits = ForwarderLimits {
        frontends: FRONTENDS_MAX,
        connections: connections().min(CONNECTIONS_MAX),
        ..ForwarderLimits::default()
    };
    let told = forwarder.clone();
    tokio::spawn(async move {
        // Both arms are cancel safe.
        tokio::select! {
            () = drain.asked() => return,
            () = told.complete() => {}
        }
        let options = Options { limits, link: None, metrics, status };
        if let Err(error) = thread(told, options, drain) {
            tracing::error!(
                %error,
                "cannot start the loopback thread; node ports are not served at loopback addresses"
            );
        }
    });
    forwarder
}

/// A thread of its own: what is carried holds up no pass.
fn thread(forwarder: Arc<Forwarder>, options: Options, drain: DrainWatch) -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let body = move || runtime.block_on(forwarder.run(options, || {}, drain));
    std::thread::Builder::new().name("loopback".into()).spawn(body).map(drop)
}
