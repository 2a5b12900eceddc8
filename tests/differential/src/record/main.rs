//! Passes requests on to an API server behind `orchctl proxy`, and writes what they were to a file (`hack/clients --record`).

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context as _, Result};
use bytes::Bytes;
use clap::Parser;
use http::header::{
    ACCEPT, CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, HOST, TRANSFER_ENCODING, UPGRADE, USER_AGENT,
};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use orch_differential::recording::{Recorded, Recording};
use tokio::net::{TcpListener, TcpStream};

/// Largest body that is passed on.
const BODY_LEN_MAX: usize = 16 << 20;

/// Records the requests of clients.
#[derive(Debug, Parser)]
struct Flags {
    /// Address of the proxy of the API server, which needs no credentials.
    #[arg(long)]
    to: SocketAddr,
    /// The file of requests; what it has is kept, and only requests of other shapes are added.
    #[arg(long)]
    out: PathBuf,
    /// Gets the URL at which clients are served.
    #[arg(long)]
    url: PathBuf,
}

type Answer = Response<BoxBody<Bytes, hyper::Error>>;

struct Recorder {
    to: SocketAddr,
    out: PathBuf,
    recording: Mutex<Recording>,
}

#[tokio::main]
async fn main() -> Result<()> {
    let flags = Flags::parse();
    let mut recording = Recording::default();
    if let Ok(text) = std::fs::read_to_string(&flags.out) {
        for request in orch_differential::recording::parse(&text)? {
            recording.add(request);
        }
    }
    let recorder = Recorder { to: flags.to, out: flags.out, recording: Mutex::new(recording) };
    let recorder = Arc::new(recorder);
    let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
    write(&flags.url, &format!("http://{}\n", listener.local_addr()?))?;
    // Cancel safe: connections end with the program.
    tokio::select! {
        signal = proto_daemon::drain::stop_signal() => println!("ended by {}", signal?),
        () = serve(&recorder, &listener) => {}
    }
    let recording = recorder.recording.lock().unwrap_or_else(PoisonError::into_inner);
    println!(
        "{} bytes recorded, {} requests without room",
        recording.text().len(),
        recording.dropped
    );
    Ok(())
}

fn write(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text).with_context(|| path.display().to_string())
}

async fn serve(recorder: &Arc<Recorder>, listener: &TcpListener) {
    loop {
        let Ok((socket, _)) = listener.accept().await else { continue };
        let recorder = Arc::clone(recorder);
        tokio::spawn(async move {
            let service = service_fn(move |request| {
                let recorder = Arc::clone(&recorder);
                async move { Ok::<_, Infallible>(recorder.pass(request).await) }
            });
            let connection = hyper::server::conn::http1::Builder::new();
            // A client that goes away ends its connection.
            let _ =
                connection.serve_connection(TokioIo::new(socket), service).with_upgrades().await;
        });
    }
}

impl Recorder {
    async fn pass(&self, request: Request<Incoming>) -> Answer {
        match self.try_pass(request).await {
            Ok(answer) => answer,
            Err(error) => {
                let text = Full::new(Bytes::from(format!("{error:#}")));
                let mut answer = Response::new(text.map_err(|never| match never {}).boxed());
                *answer.status_mut() = StatusCode::BAD_GATEWAY;
                answer
            }
        }
    }

    async fn try_pass(&self, mut request: Request<Incoming>) -> Result<Answer> {
        let client =
            request.headers().contains_key(UPGRADE).then(|| hyper::upgrade::on(&mut request));
        let (mut head, body) = request.into_parts();
        let body = Limited::new(body, BODY_LEN_MAX).collect().await;
        let body = body.map_err(|error| anyhow::anyhow!("{error}"))?.to_bytes();
        if client.is_none() {
            self.record(&head, &body)?;
            head.headers.remove(CONNECTION);
        }
        head.headers.remove(TRANSFER_ENCODING);
        head.headers.remove(CONTENT_LENGTH);
        head.headers.insert(HOST, HeaderValue::from_str(&self.to.to_string())?);
        let socket = TcpStream::connect(self.to).await?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(socket)).await?;
        tokio::spawn(connection.with_upgrades());
        let mut answer = sender.send_request(Request::from_parts(head, Full::new(body))).await?;
        if let (Some(client), StatusCode::SWITCHING_PROTOCOLS) = (client, answer.status()) {
            let server = hyper::upgrade::on(&mut answer);
            tokio::spawn(async move {
                let (Ok(client), Ok(server)) = tokio::join!(client, server) else { return };
                let (mut client, mut server) = (TokioIo::new(client), TokioIo::new(server));
                // Either side ends the stream.
                let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
            });
        }
        Ok(answer.map(BodyExt::boxed))
    }

    fn record(&self, head: &http::request::Parts, body: &Bytes) -> Result<()> {
        // Protobuf is of one version of a program; the comparison has cases of it.
        let Ok(body) = std::str::from_utf8(body) else { return Ok(()) };
        let path = head.uri.path_and_query().map(ToString::to_string).unwrap_or_default();
        let recorded = Recorded {
            client: client_name(text(&head.headers, USER_AGENT)),
            method: head.method.to_string(),
            path,
            accept: text(&head.headers, ACCEPT).to_owned(),
            content_type: text(&head.headers, CONTENT_TYPE).to_owned(),
            body: body.to_owned(),
        };
        let mut recording = self.recording.lock().unwrap_or_else(PoisonError::into_inner);
        if recording.add(recorded) {
            write(&self.out, recording.text())?;
        }
        Ok(())
    }
}

fn text(headers: &HeaderMap, name: HeaderName) -> &str {
    headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
}

/// `kubectl v1.31.0` of `kubectl/v1.31.0 (linux/amd64) kubernetes/9edcffc`.
fn client_name(agent: &str) -> String {
    let first = agent.split_whitespace().next().unwrap_or("unknown");
    first.replacen('/', " ", 1)
}
