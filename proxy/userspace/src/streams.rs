//! TCP: each connection is two, and bytes go both ways until both sides have said that there are no more.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use nix::sys::socket::{setsockopt, sockopt};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::timeout;

use crate::ports::{Lead, Shared};

/// Endpoints that are tried for one connection.
const TRIES_MAX: usize = 4;
/// A peer that is silent for so many seconds is asked whether it is still there, so that a connection whose ends are
/// gone does not take its place for ever.
const KEEPALIVE_SECS: u32 = 60;
/// Pause after a failure that may go on: too many open files.
const PAUSE: Duration = Duration::from_millis(50);

/// Takes connections and hands each to an endpoint. Ends only when aborted; connections go on.
pub async fn forward(listener: TcpListener, lead: watch::Receiver<Lead>, shared: Arc<Shared>) {
    loop {
        let (stream, client) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::debug!(%error, "cannot take a connection");
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        let Ok(place) = shared.room.clone().try_acquire_owned() else {
            shared.metrics.refused.with_label_values(&["bound"]).inc();
            let _ = stream.set_zero_linger();
            continue;
        };
        let lead = lead.borrow().clone();
        let shared = shared.clone();
        tokio::spawn(async move {
            connection(stream, client, &lead, &shared).await;
            drop(place);
        });
    }
}

async fn connection(mut near: TcpStream, client: SocketAddr, lead: &Lead, shared: &Shared) {
    let _drain = shared.drain.clone();
    let Some(mut far) = dial(client, lead, shared).await else {
        // Closed with a reset: the client sees a failure, not an empty answer.
        let _ = near.set_zero_linger();
        return;
    };
    for stream in [&near, &far] {
        // Best effort, each.
        let _ = stream.set_nodelay(true);
        let _ = setsockopt(stream, sockopt::KeepAlive, &true);
        let _ = setsockopt(stream, sockopt::TcpKeepIdle, &KEEPALIVE_SECS);
    }
    shared.metrics.begun.with_label_values(&["tcp"]).inc();
    let open = shared.metrics.open.with_label_values(&["tcp"]);
    open.inc();
    if let Err(error) = copy_bidirectional(&mut near, &mut far).await {
        tracing::debug!(%client, %error, "a connection broke");
        // Each side learns from a reset that it did not get everything.
        let _ = near.set_zero_linger();
        let _ = far.set_zero_linger();
    }
    open.dec();
}

/// A connection to an endpoint: the next one where one does not answer.
async fn dial(client: SocketAddr, lead: &Lead, shared: &Shared) -> Option<TcpStream> {
    let mut tried = Vec::new();
    while tried.len() < TRIES_MAX {
        let Some(backend) = lead.pick(shared, client.ip(), &tried) else { break };
        match timeout(shared.limits.dial, TcpStream::connect(backend)).await {
            Ok(Ok(stream)) => return Some(stream),
            Ok(Err(error)) => tracing::debug!(%backend, %error, "an endpoint does not answer"),
            Err(_) => tracing::debug!(%backend, "an endpoint does not answer in time"),
        }
        shared.metrics.unanswered.inc();
        tried.push(backend);
    }
    shared.metrics.refused.with_label_values(&["none"]).inc();
    None
}
