//! TCP and SCTP: each connection is two, and bytes go both ways until both sides have said that there are no more.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use nix::sys::socket::{setsockopt, sockopt};
use proxy_rules::model::Protocol;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::timeout;

use crate::ports::{Lead, Shared};
use crate::sockets;

/// Endpoints that are tried for one connection.
const TRIES_MAX: usize = 4;
/// A peer that is silent for so many seconds is asked whether it is still there, so that a connection whose ends are
/// gone does not take its place for ever.
const KEEPALIVE_SECS: u32 = 60;
/// Messages of SCTP beyond this length are passed on in pieces.
const MESSAGE_LEN: usize = 64 << 10;
/// Pause after a failure that may go on: too many open files.
const PAUSE: Duration = Duration::from_millis(50);

/// Takes connections and hands each to an endpoint. Ends only when aborted; connections go on.
pub async fn forward(
    listener: TcpListener,
    protocol: Protocol,
    lead: watch::Receiver<Lead>,
    shared: Arc<Shared>,
) {
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
            connection(stream, client, protocol, &lead, &shared).await;
            drop(place);
        });
    }
}

async fn connection(
    mut near: TcpStream,
    client: SocketAddr,
    protocol: Protocol,
    lead: &Lead,
    shared: &Shared,
) {
    let _drain = shared.drain.clone();
    let Some(mut far) = dial(client, protocol, lead, shared).await else {
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
    let label = [if protocol == Protocol::Sctp { "sctp" } else { "tcp" }];
    shared.metrics.begun.with_label_values(&label).inc();
    let open = shared.metrics.open.with_label_values(&label);
    open.inc();
    let carried = match protocol {
        Protocol::Sctp => carry_messages(&mut near, &mut far).await,
        Protocol::Tcp | Protocol::Udp => copy_bidirectional(&mut near, &mut far).await.map(drop),
    };
    if let Err(error) = carried {
        tracing::debug!(%client, %error, "a connection broke");
        // Each side learns from a reset that it did not get everything.
        let _ = near.set_zero_linger();
        let _ = far.set_zero_linger();
    }
    open.dec();
}

/// Carries the messages of an association both ways, each for itself: one read is one message, and so is one write.
/// All go by the first stream, in order; a side that ends ends the association, as is the way of SCTP.
async fn carry_messages(near: &mut TcpStream, far: &mut TcpStream) -> std::io::Result<()> {
    let (mut near_read, mut near_write) = near.split();
    let (mut far_read, mut far_write) = far.split();
    let there = async {
        let mut message = vec![0; MESSAGE_LEN];
        loop {
            match near_read.read(&mut message).await? {
                0 => return far_write.shutdown().await,
                len => far_write.write_all(message.get(..len).unwrap_or_default()).await?,
            }
        }
    };
    let back = async {
        let mut message = vec![0; MESSAGE_LEN];
        loop {
            match far_read.read(&mut message).await? {
                0 => return near_write.shutdown().await,
                len => near_write.write_all(message.get(..len).unwrap_or_default()).await?,
            }
        }
    };
    tokio::try_join!(there, back).map(drop)
}

/// A connection to an endpoint: the next one where one does not answer.
async fn dial(
    client: SocketAddr,
    protocol: Protocol,
    lead: &Lead,
    shared: &Shared,
) -> Option<TcpStream> {
    let mut tried = Vec::new();
    while tried.len() < TRIES_MAX {
        let Some(backend) = lead.pick(shared, client.ip(), &tried) else { break };
        match timeout(shared.limits.dial, sockets::connect(protocol, backend)).await {
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
