//! A registry with two repositories, one of them private, as small as a runtime will talk to.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use agent_runtime::image::{Archive, Blob, BlobSource, ImageTar};
use base64::Engine as _;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::{Bytes, Frame, Incoming};
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio::sync::watch;

/// Repository that everybody may read.
pub const PUBLIC: &str = "public/app";
/// Repository for [`USER`].
pub const PRIVATE: &str = "team/app";
/// Who may read it.
pub const USER: &str = "me";
pub const PASSWORD: &str = "pass:word";

/// A running registry.
pub struct Registry {
    /// `host:port`.
    pub address: String,
    state: Arc<State>,
}

struct State {
    address: String,
    manifest: Stored,
    blobs: BTreeMap<String, Bytes>,
    /// Paths that were asked for with GET.
    got: Mutex<Vec<String>>,
    /// How much of a blob is sent; the rest waits until it may be.
    gate: watch::Sender<usize>,
    /// Where in the largest blob each transfer began.
    begun: Mutex<Vec<usize>>,
}

struct Stored {
    media_type: String,
    digest: String,
    bytes: Bytes,
}

impl Registry {
    /// Serves `tar`'s image under both names, with any tag.
    pub async fn start(tar: &ImageTar) -> Self {
        let bytes = tar.bytes().to_vec();
        let archive = Archive::read(&mut std::io::Cursor::new(&bytes)).expect("archive");
        let image = archive.images.first().expect("image");
        let content = |blob: &Blob| match &blob.source {
            BlobSource::At(offset) => {
                let from = usize::try_from(*offset).expect("offset");
                let len = usize::try_from(blob.size).expect("size");
                Bytes::copy_from_slice(&bytes[from..from + len])
            }
            BlobSource::Bytes(bytes) => Bytes::from(bytes.clone()),
        };
        let blobs = image.layers.iter().chain([&image.config]);
        let blobs = blobs.map(|blob| (blob.digest.clone(), content(blob))).collect();
        let manifest = Stored {
            media_type: image.manifest.media_type.clone(),
            digest: image.manifest.digest.clone(),
            bytes: content(&image.manifest),
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
        let address = listener.local_addr().expect("address").to_string();
        let state = Arc::new(State {
            address: address.clone(),
            manifest,
            blobs,
            got: Mutex::default(),
            gate: watch::Sender::new(usize::MAX),
            begun: Mutex::default(),
        });
        tokio::spawn(serve(listener, state.clone()));
        Self { address, state }
    }

    /// Sends no more than so much of any blob, until it is told otherwise.
    pub fn let_through(&self, bytes: usize) {
        self.state.gate.send_replace(bytes);
    }

    /// Where in the layer each transfer of it began.
    pub fn begun(&self) -> Vec<usize> {
        self.state.begun.lock().expect("lock").clone()
    }

    /// How often content of that kind was fetched: `manifests` or `blobs`.
    pub fn fetched(&self, kind: &str) -> usize {
        let got = self.state.got.lock().expect("lock");
        got.iter().filter(|path| path.contains(&format!("/{kind}/"))).count()
    }
}

async fn serve(listener: TcpListener, state: Arc<State>) {
    while let Ok((stream, _)) = listener.accept().await {
        let state = state.clone();
        let service = hyper::service::service_fn(move |request: Request<Incoming>| {
            let answer = answer(&state, &request);
            async move { Ok::<_, Infallible>(answer) }
        });
        tokio::spawn(
            hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service),
        );
    }
}

type Answer = Response<BoxBody<Bytes, Infallible>>;

fn plain(status: StatusCode, body: impl Into<Bytes>) -> Answer {
    let mut answer = Response::new(Full::new(body.into()).boxed());
    *answer.status_mut() = status;
    answer
}

fn answer(state: &State, request: &Request<Incoming>) -> Answer {
    let path = request.uri().path().to_owned();
    if path == "/token" {
        return token(request);
    }
    let (repository, rest) = match [PUBLIC, PRIVATE]
        .iter()
        .find_map(|name| Some((*name, path.strip_prefix(&format!("/v2/{name}/"))?)))
    {
        Some(found) => found,
        None => return plain(StatusCode::NOT_FOUND, "{}"),
    };
    let bearer = header(request, "authorization");
    if bearer != format!("Bearer {repository}") {
        let address = &state.address;
        let challenge = format!(
            "Bearer realm=\"http://{address}/token\",service=\"test\",scope=\"repository:{repository}:pull\""
        );
        let mut answer = plain(StatusCode::UNAUTHORIZED, "{}");
        answer.headers_mut().insert("www-authenticate", challenge.parse().expect("header"));
        return answer;
    }
    if request.method() == Method::GET {
        state.got.lock().expect("lock").push(path.clone());
    }
    content(state, request, rest)
}

/// A token is good for one repository; the private one's is for who shows the password.
fn token(request: &Request<Incoming>) -> Answer {
    if request.method() == Method::POST {
        return plain(StatusCode::METHOD_NOT_ALLOWED, "{}");
    }
    let query = request.uri().query().unwrap_or_default();
    let private = query.contains("team");
    let basic = base64::engine::general_purpose::STANDARD.encode(format!("{USER}:{PASSWORD}"));
    if private && header(request, "authorization") != format!("Basic {basic}") {
        return plain(StatusCode::UNAUTHORIZED, "{}");
    }
    let repository = if private { PRIVATE } else { PUBLIC };
    plain(StatusCode::OK, format!("{{\"token\": \"{repository}\"}}"))
}

fn content(state: &State, request: &Request<Incoming>, rest: &str) -> Answer {
    let (media_type, digest, bytes) = match rest.split_once('/') {
        Some(("manifests", _)) => {
            let Stored { media_type, digest, bytes } = &state.manifest;
            (media_type.as_str(), digest.as_str(), bytes)
        }
        Some(("blobs", digest)) => match state.blobs.get(digest) {
            Some(bytes) => ("application/octet-stream", digest, bytes),
            None => return plain(StatusCode::NOT_FOUND, "{}"),
        },
        _ => return plain(StatusCode::NOT_FOUND, "{}"),
    };
    let begin = header(request, "range");
    let begin = begin.strip_prefix("bytes=").and_then(|range| range.split_once('-'));
    let begin = begin.and_then(|(begin, _)| begin.parse::<usize>().ok());
    let rest = bytes.slice(begin.unwrap_or(0).min(bytes.len())..);
    let mut answer = plain(StatusCode::OK, "");
    if begin.is_some() {
        *answer.status_mut() = StatusCode::PARTIAL_CONTENT;
    }
    let headers = answer.headers_mut();
    headers.insert("content-type", media_type.parse().expect("header"));
    headers.insert("docker-content-digest", digest.parse().expect("header"));
    headers.insert("content-length", rest.len().to_string().parse().expect("header"));
    if let Some(begin) = begin {
        let (last, len) = (bytes.len() - 1, bytes.len());
        let range = format!("bytes {begin}-{last}/{len}");
        headers.insert("content-range", range.parse().expect("header"));
    }
    if request.method() == Method::HEAD {
        return answer;
    }
    if state.blobs.values().all(|other| other.len() <= bytes.len()) {
        state.begun.lock().expect("lock").push(bytes.len() - rest.len());
    }
    *answer.body_mut() = gated(rest, bytes.len(), state.gate.subscribe());
    answer
}

/// The rest of a blob of `len` bytes, as far as the gate lets it through.
fn gated(rest: Bytes, len: usize, gate: watch::Receiver<usize>) -> BoxBody<Bytes, Infallible> {
    let pieces =
        futures_util::stream::unfold((rest, gate), move |(mut rest, mut gate)| async move {
            if rest.is_empty() {
                return None;
            }
            let sent = len - rest.len();
            let open = *gate.wait_for(|open| *open > sent).await.ok()?;
            let piece = rest.split_to((open - sent).min(rest.len()));
            Some((Ok(Frame::data(piece)), (rest, gate)))
        });
    StreamBody::new(pieces).boxed()
}

fn header(request: &Request<Incoming>, name: &str) -> String {
    let value = request.headers().get(name).and_then(|value| value.to_str().ok());
    value.unwrap_or_default().to_owned()
}
