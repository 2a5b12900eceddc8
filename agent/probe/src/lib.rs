//! io: network probes of pods: HTTP, TCP, gRPC. Exec probes are run by the container runtime.
//!
//! Every connection is used once and closed with a reset, so that a probe leaves no port of the node in TIME_WAIT; responses are
//! read up to a bound; redirects to other hosts are not followed.

#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

mod grpc;
mod http;
mod tcp;
mod tls;

use std::time::Duration;

use agent_pod::handler::Handler;
use agent_pod::probe::ProbeOutcome;

pub use http::{GetError, Reply, get};

/// Most bytes of a response body that are kept.
pub const ANSWER_BYTES: usize = 10 << 10;

/// Settings of one probe run.
#[derive(Clone, Copy, Debug)]
pub struct Prober<'a> {
    /// Address of the pod, used if the handler has no host.
    pub ip: &'a str,
    /// Value of the header `User-Agent`.
    pub user_agent: &'a str,
    /// Time after which the probe fails.
    pub timeout: Duration,
}

/// Runs a network probe once; exec handlers are not supported here.
pub async fn run_probe(handler: &Handler, asker: Prober<'_>) -> ProbeOutcome {
    match handler {
        Handler::Http(request) => http::probe(request, asker).await,
        Handler::Tcp { host, port } => {
            let host = if host.is_empty() { asker.ip } else { host };
            tcp::probe(host, *port, asker.timeout).await
        }
        Handler::Grpc { port, service } => grpc::probe(*port, service, asker).await,
        Handler::Exec(_) => {
            ProbeOutcome::Error("a command is not asked over the network".to_owned())
        }
        Handler::Unusable(why) => ProbeOutcome::Error(why.clone()),
    }
}
