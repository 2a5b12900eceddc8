//! Runs a probe by its kind.

use agent_pod::handler::Handler;
use agent_pod::probe::ProbeOutcome;

use crate::prober::Prober;
use crate::{grpc, http, tcp};

/// Runs a network probe once; exec handlers are not supported here.
pub async fn run_probe(handler: &Handler, asker: Prober<'_>) -> ProbeOutcome {
    match handler {
        Handler::Http(request) => http::probe(request, asker).await,
        Handler::Tcp { host, port } => {
            let host = if host.is_empty() { asker.ip } else { host };
            tcp::probe(host, *port, asker).await
        }
        Handler::Grpc { port, service } => grpc::probe(*port, service, asker).await,
        Handler::Exec(_) => {
            ProbeOutcome::Error("a command is not asked over the network".to_owned())
        }
        Handler::Unusable(why) => ProbeOutcome::Error(why.clone()),
    }
}
