//! TCP and SCTP: each connection is forwarded by a second one, in both directions until both are closed.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, Shutdown, recv, send, setsockopt, shutdown, sockopt};
use proxy_rules::model::Protocol;
use tokio::io::{Interest, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::timeout;

use crate::backend_picker::BackendPicker;
use crate::forwarder_state::Shared;
use crate::sockets;

/// Endpoints tried for one connection.
const TRIES_MAX: usize = 4;
/// Interval of keepalive probes, so that a connection whose peers are dead does not hold its permit forever.
const KEEPALIVE_SECS: u32 = 60;
/// Longer SCTP messages are split.
const MESSAGE_LEN: usize = 64 << 10;
/// Pause after an error that may persist, such as too many open files.
const PAUSE: Duration = Duration::from_millis(50);

/// Accepts connections and forwards each to an endpoint. Ends only when aborted; its connections continue.
pub async fn forward(
    listener: TcpListener,
    protocol: Protocol,
    picker: watch::Receiver<BackendPicker>,
    shared: Arc<Shared>,
) {
    loop {
        let (stream, client) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::debug!(%error, "cannot accept a connection");
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        let Some(place) = shared.room.admit(client.ip()) else {
            shared.metrics.refused.with_label_values(&["bound"]).inc();
            let _ = stream.set_zero_linger();
            continue;
        };
        let picker = picker.borrow().clone();
        let shared = shared.clone();
        tokio::spawn(async move {
            connection(stream, client, protocol, &picker, &shared).await;
            drop(place);
        });
    }
}

async fn connection(
    mut near: TcpStream,
    client: SocketAddr,
    protocol: Protocol,
    picker: &BackendPicker,
    shared: &Shared,
) {
    let _drain = shared.drain.clone();
    let Some(mut far) = dial(client, protocol, picker, shared).await else {
        // Reset, so that the client sees a failure and not an empty response.
        let _ = near.set_zero_linger();
        return;
    };
    for stream in [&near, &far] {
        // Best effort.
        let _ = stream.set_nodelay(true);
        let _ = setsockopt(stream, sockopt::KeepAlive, &true);
        let _ = setsockopt(stream, sockopt::TcpKeepIdle, &KEEPALIVE_SECS);
    }
    let label = [if protocol == Protocol::Sctp { "sctp" } else { "tcp" }];
    shared.metrics.begun.with_label_values(&label).inc();
    let open = shared.metrics.open.with_label_values(&label);
    open.inc();
    let carried = match protocol {
        Protocol::Sctp => carry_messages(&near, &far).await,
        Protocol::Tcp | Protocol::Udp => copy_bidirectional(&mut near, &mut far).await.map(drop),
    };
    if let Err(error) = carried {
        tracing::debug!(%client, %error, "a forwarded connection ended with an error");
        // Each side learns from a reset that data may be missing.
        let _ = near.set_zero_linger();
        let _ = far.set_zero_linger();
    }
    open.dec();
}

/// Forwards messages of an association in both directions: one read is one message, and so is one write. All use the
/// first stream, in order; when one side closes, the association ends, as SCTP has no half-closed state.
async fn carry_messages(near: &TcpStream, far: &TcpStream) -> std::io::Result<()> {
    tokio::try_join!(carry_one_way(near, far), carry_one_way(far, near)).map(drop)
}

/// The runtime takes a short read as the end of available data, which is right for byte streams; here it is the end of
/// a message, and the next one may be available. So the socket is read directly.
async fn carry_one_way(from: &TcpStream, to: &TcpStream) -> std::io::Result<()> {
    let mut message = vec![0; MESSAGE_LEN];
    loop {
        let received = from.async_io(Interest::READABLE, || {
            Ok(recv(from.as_raw_fd(), &mut message, MsgFlags::MSG_DONTWAIT)?)
        });
        // The end of an association is reported in one way or the other.
        let len = match received.await {
            Err(error) if error.kind() == ErrorKind::NotConnected => 0,
            other => other?,
        };
        if len == 0 {
            return match shutdown(to.as_raw_fd(), Shutdown::Write) {
                Ok(()) | Err(Errno::ENOTCONN) => Ok(()),
                Err(errno) => Err(errno.into()),
            };
        }
        let mut rest = message.get(..len).unwrap_or_default();
        while !rest.is_empty() {
            let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
            let sent =
                to.async_io(Interest::WRITABLE, || Ok(send(to.as_raw_fd(), rest, flags)?)).await?;
            rest = rest.get(sent..).unwrap_or_default();
        }
    }
}

/// Connects to an endpoint; tries the next one if it fails.
async fn dial(
    client: SocketAddr,
    protocol: Protocol,
    picker: &BackendPicker,
    shared: &Shared,
) -> Option<TcpStream> {
    let mut tried = Vec::new();
    while tried.len() < TRIES_MAX {
        let Some(backend) = picker.pick(shared, client.ip(), &tried) else { break };
        if shared.listening.leads_back(protocol, backend) {
            tracing::debug!(%backend, "an endpoint is a frontend of this proxy; trying the next");
            shared.metrics.refused.with_label_values(&["loop"]).inc();
            tried.push(backend);
            continue;
        }
        match timeout(shared.limits.dial, sockets::connect(protocol, backend)).await {
            Ok(Ok(stream)) => return Some(stream),
            Ok(Err(error)) => {
                tracing::debug!(%backend, %error, "cannot connect to an endpoint; trying the next")
            }
            Err(_) => {
                tracing::debug!(%backend, "timed out connecting to an endpoint; trying the next")
            }
        }
        shared.metrics.unanswered.inc();
        tried.push(backend);
    }
    shared.metrics.refused.with_label_values(&["none"]).inc();
    None
}
