//! A proxy between the agent and its runtime that withholds the responses of one call.
//!
//! The runtime's socket is renamed and this one listens in its place, for all later connections.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context as _, Result};
use http_body_util::{BodyExt as _, Full, combinators::UnsyncBoxBody};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http2::SendRequest;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use orch_tests::wait::until;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::context::{Context, PATIENCE};

/// Which calls are held: those of this name whose request contains these words.
#[derive(Clone, Debug, Default)]
struct Hold {
    call: String,
    words: String,
}

/// What the connections share.
#[derive(Default)]
struct Shared {
    hold: Mutex<Option<Hold>>,
    /// Calls that are held.
    held: watch::Sender<usize>,
}

/// The process between.
pub struct Between<'a> {
    c: &'a Context,
    shared: Arc<Shared>,
    task: JoinHandle<()>,
    socket: PathBuf,
    real: PathBuf,
}

impl<'a> Between<'a> {
    /// Takes the place of the first node's runtime, and has the agent start again to connect here.
    pub async fn start(c: &'a Context) -> Result<Between<'a>> {
        let socket = c.spec.containerd_socket("node-1");
        let real = socket.with_extension("real");
        std::fs::rename(&socket, &real).context("renaming the runtime's socket")?;
        let listener = UnixListener::bind(&socket)?;
        let shared = Arc::<Shared>::default();
        let task = tokio::spawn(serve(listener, real.clone(), shared.clone()));
        c.kill("orchlet-node-1").await?;
        Ok(Between { c, shared, task, socket, real })
    }

    /// From now on no call of this name is answered whose request contains these words.
    pub fn hold(&self, call: &str, words: &str) {
        let hold = Hold { call: call.to_owned(), words: words.to_owned() };
        *self.shared.hold.lock().unwrap_or_else(PoisonError::into_inner) = Some(hold);
    }

    /// Waits until a call is held.
    pub async fn held(&self) -> Result<()> {
        until("the call is held", PATIENCE, async || match *self.shared.held.borrow() {
            0 => Err("none is"),
            _ => Ok(()),
        })
        .await
    }

    /// Lets all held calls go on.
    pub fn release(&self) {
        *self.shared.hold.lock().unwrap_or_else(PoisonError::into_inner) = None;
        self.shared.held.send_replace(0);
    }

    /// Gives the runtime its place back.
    pub async fn end(self) -> Result<()> {
        self.release();
        std::fs::rename(&self.real, &self.socket).context("renaming the runtime's socket back")?;
        self.c.kill("orchlet-node-1").await?;
        self.task.abort();
        Ok(())
    }
}

async fn serve(listener: UnixListener, real: PathBuf, shared: Arc<Shared>) {
    while let Ok((stream, _)) = listener.accept().await {
        let (real, shared) = (real.clone(), shared.clone());
        tokio::spawn(async move {
            if let Err(error) = connection(stream, &real, shared).await {
                println!("    between agent and runtime: {error:#}");
            }
        });
    }
}

async fn connection(stream: UnixStream, real: &PathBuf, shared: Arc<Shared>) -> Result<()> {
    let io = TokioIo::new(UnixStream::connect(real).await?);
    let (sender, driver) = hyper::client::conn::http2::handshake(TokioExecutor::new(), io).await?;
    tokio::spawn(driver);
    let pass = hyper::service::service_fn(move |request| {
        let (sender, shared) = (sender.clone(), shared.clone());
        async move { pass_on(request, sender, &shared).await }
    });
    let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
    // It ends when the agent does, in whatever way.
    drop(server.serve_connection(TokioIo::new(stream), pass).await);
    Ok(())
}

type Body = UnsyncBoxBody<Bytes, hyper::Error>;

/// One call: to the runtime and back. One that is held has not reached the runtime.
async fn pass_on(
    request: Request<Incoming>,
    mut sender: SendRequest<Full<Bytes>>,
    shared: &Shared,
) -> Result<Response<Body>, hyper::Error> {
    let (head, body) = request.into_parts();
    let body = body.collect().await?.to_bytes();
    let fits = |hold: &Hold| {
        head.uri.path().ends_with(&format!("/{}", hold.call))
            && body.windows(hold.words.len().max(1)).any(|part| part == hold.words.as_bytes())
    };
    let is_held =
        shared.hold.lock().unwrap_or_else(PoisonError::into_inner).as_ref().is_some_and(fits);
    if is_held {
        let mut released = shared.held.subscribe();
        shared.held.send_modify(|held| *held += 1);
        // The sender lives as long as this connection's tasks.
        drop(released.wait_for(|held| *held == 0).await);
    }
    let answer = sender.send_request(Request::from_parts(head, Full::new(body))).await?;
    Ok(answer.map(|body| body.boxed_unsync()))
}
