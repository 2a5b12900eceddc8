//! io: asks pods over the network how they are: HTTP, TCP, gRPC. Commands in containers are the runtime's to run.
//!
//! Every connection is used once and closed with a reset, so that a probe leaves no port of the node waiting; every answer is
//! read to a bound; nothing is followed to another host.

#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

mod grpc;
mod http;
mod tcp;
mod tls;

use std::time::Duration;

use agent_pod::handler::Handler;
use agent_pod::probe::Outcome;

pub use http::{GetError, Reply, get};

/// Most bytes that are kept of an answer.
pub const ANSWER_BYTES: usize = 10 << 10;

/// Who asks, and whom.
#[derive(Clone, Copy, Debug)]
pub struct Asker<'a> {
    /// The pod's own address, where the handler names no host.
    pub ip: &'a str,
    /// How the asker calls itself to servers.
    pub user_agent: &'a str,
    /// No answer within this time is a failure.
    pub timeout: Duration,
}

/// Asks once. A command is not asked here.
pub async fn ask(handler: &Handler, asker: Asker<'_>) -> Outcome {
    match handler {
        Handler::Http(request) => http::probe(request, asker).await,
        Handler::Tcp { host, port } => {
            let host = if host.is_empty() { asker.ip } else { host };
            tcp::probe(host, *port, asker.timeout).await
        }
        Handler::Grpc { port, service } => grpc::probe(*port, service, asker).await,
        Handler::Exec(_) => Outcome::Error("a command is not asked over the network".to_owned()),
        Handler::Unusable(why) => Outcome::Error(why.clone()),
    }
}
