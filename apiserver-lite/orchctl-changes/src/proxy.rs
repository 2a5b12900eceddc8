//! `proxy`: passes local requests on to the API server as this user. Only programs of this machine reach it.

mod forward_request;
mod listener;

use std::convert::Infallible;
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use orchctl_client::{CommandError, Output, Session};
use orchctl_plans::proxy_rules::{ProxyFlags, ProxyRules};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use listener::{Accepted, Listener};

/// Most connections at one time, with those that have switched protocols.
const CONNECTIONS_MAX: usize = 256;
/// Longest time until the head of a request is there.
const HEAD_MAX: Duration = Duration::from_secs(60);
/// Bytes of a request's head.
const HEAD_LEN_MAX: usize = 64 << 10;

/// Flags of the command.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Port to listen on; 0 for any
    #[arg(long, short, value_name = "PORT", default_value_t = 8001)]
    port: u16,
    /// Address to listen on: localhost, or a loopback address
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    address: String,
    /// Patterns of hosts that requests may name
    #[arg(long, value_name = "PATTERNS", default_value = r"^localhost$,^127\.0\.0\.1$,^\[::1\]$")]
    accept_hosts: String,
    /// Patterns of paths that are passed on
    #[arg(long, value_name = "PATTERNS", default_value = "^.*")]
    accept_paths: String,
    /// Patterns of paths that are not passed on
    #[arg(
        long,
        value_name = "PATTERNS",
        default_value = "^/api/.*/pods/.*/exec,^/api/.*/pods/.*/attach"
    )]
    reject_paths: String,
    /// Patterns of methods that are not passed on
    #[arg(long, value_name = "PATTERNS", default_value = "^$")]
    reject_methods: String,
    /// Path below which the API is
    #[arg(long, value_name = "PATH", default_value = "/")]
    api_prefix: String,
    /// Socket to listen on instead of a port
    #[arg(long, short, value_name = "PATH")]
    unix_socket: Option<PathBuf>,
    /// Not served: a directory with files
    #[arg(long, short, value_name = "DIRECTORY")]
    www: Option<PathBuf>,
}

/// Runs the command, until it is ended.
///
/// # Errors
/// When a flag is invalid, or nothing can be listened on.
pub async fn run(
    session: &Session,
    args: Args,
    output: &mut Output,
) -> Result<ExitCode, CommandError> {
    if args.www.is_some() {
        return Err(CommandError::with_text(
            "--www is refused: every client of the proxy has this user's rights in the cluster; serve them with a web server",
        ));
    }
    let rules = ProxyRules::parse(ProxyFlags {
        accept_hosts: &args.accept_hosts,
        accept_paths: &args.accept_paths,
        reject_paths: &args.reject_paths,
        reject_methods: &args.reject_methods,
        api_prefix: &args.api_prefix,
    })
    .map_err(|error| CommandError::with_text(error.to_string()))?;
    // What is wrong with the configuration is said now, not to the first request.
    session.client()?;
    let listener = match &args.unix_socket {
        Some(path) => Listener::unix(path)?,
        None => Listener::tcp(read_address(&args.address)?, args.port).await?,
    };
    writeln!(output.out, "Starting to serve on {}", listener.address())?;
    output.out.flush()?;
    serve(session, &rules, &listener).await
}

fn read_address(text: &str) -> Result<IpAddr, CommandError> {
    let address = match text {
        "localhost" => Some(IpAddr::from([127, 0, 0, 1])),
        text => text.parse().ok(),
    };
    let address = address.ok_or_else(|| {
        CommandError::with_text(format!(
            "invalid address {text:?}: expected localhost or an IP address"
        ))
    })?;
    if !address.is_loopback() {
        return Err(CommandError::with_text(format!(
            "--address {text} is refused: every client of the proxy has this user's rights in the cluster; expected a loopback address"
        )));
    }
    Ok(address)
}

async fn serve(
    session: &Session,
    rules: &ProxyRules,
    listener: &Listener,
) -> Result<ExitCode, CommandError> {
    let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let mut connections = FuturesUnordered::new();
    let interrupted = tokio::signal::ctrl_c();
    tokio::pin!(interrupted);
    loop {
        tokio::select! {
            (accepted, permit) = accept(listener, &room) => {
                connections.push(answer_all(session, rules, accepted, Arc::new(permit)));
            }
            Some(()) = connections.next() => {}
            ended = &mut interrupted => {
                ended?;
                return Ok(ExitCode::SUCCESS);
            }
        }
    }
}

/// The next connection, once there is room for it.
async fn accept(listener: &Listener, room: &Arc<Semaphore>) -> (Accepted, OwnedSemaphorePermit) {
    loop {
        // The semaphore is never closed.
        if let Ok(permit) = room.clone().acquire_owned().await {
            return (listener.accept().await, permit);
        }
    }
}

/// Answers the requests of one connection. Other connections go on when it breaks.
async fn answer_all(
    session: &Session,
    rules: &ProxyRules,
    accepted: Accepted,
    permit: Arc<OwnedSemaphorePermit>,
) {
    let peer = accepted.peer_address();
    let service = service_fn(|mut request: Request<Incoming>| {
        let permit = permit.clone();
        if let Some(peer) = peer {
            forward_request::add_forwarded_for(request.headers_mut(), peer);
        }
        async move {
            Ok::<_, Infallible>(forward_request::answer(session, rules, request, permit).await)
        }
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_MAX)
        .max_buf_size(HEAD_LEN_MAX)
        .half_close(true)
        .serve_connection(TokioIo::new(accepted), service)
        .with_upgrades();
    // The client sees what was wrong with its request; a disconnect is not reported.
    let _ = served.await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_this_machine_is_listened_to() {
        for address in ["localhost", "127.0.0.1", "127.1.2.3", "::1"] {
            assert!(read_address(address).is_ok(), "{address}");
        }
        for address in ["0.0.0.0", "::", "192.168.0.1", "example.com", ""] {
            assert!(read_address(address).is_err(), "{address}");
        }
    }
}
