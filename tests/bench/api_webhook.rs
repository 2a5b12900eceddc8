//! What a validating webhook adds to a write: it is in this process, behind TLS on loopback, and allows everything.

use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use proto_api::Collection;
use proto_api::core::v1::ConfigMap;
use proto_client::dynamic::Dynamic;
use proto_client::{DeleteParams, WriteParams};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use crate::api_load::{self, SERIAL_CREATES};
use crate::api_server::Served;
use crate::figures::{Figure, Group, KUBERNETES, Unit};

const NAME: &str = "allow.bench.example.com";

/// Creates of one client, each of which the webhook is asked about.
pub async fn measure(server: &Served) -> Result<()> {
    let asked = Arc::new(AtomicUsize::new(0));
    let address = serve(&server.pki, asked.clone()).await?;
    let configurations = Collection {
        group: "admissionregistration.k8s.io".to_owned(),
        version: "v1".to_owned(),
        plural: "validatingwebhookconfigurations".to_owned(),
        namespace: None,
    };
    let configurations = Dynamic::new(server.client.clone(), configurations);
    let authority = STANDARD.encode(std::fs::read(server.pki.join("ca.crt"))?);
    let webhook = json!({"name": NAME, "sideEffects": "None", "admissionReviewVersions": ["v1"],
        "clientConfig": {"url": format!("https://{address}/"), "caBundle": authority},
        "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"], "scope": "*"}]});
    let configuration = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": NAME}, "webhooks": [webhook]});
    configurations.create(&configuration, &WriteParams::default()).await?;
    let api = server.client.within::<ConfigMap>("default");
    // A server notices the configuration a little later.
    let mut n = 0;
    while asked.load(Ordering::Relaxed) == 0 {
        ensure!(n < 1_000, "the webhook is never asked");
        api.create(&api_load::map(format!("webhook-first-{n}")), &WriteParams::default()).await?;
        tokio::time::sleep(Duration::from_millis(20)).await;
        n += 1;
    }
    let before = asked.load(Ordering::Relaxed);
    let mut samples = Vec::new();
    for n in 0..SERIAL_CREATES {
        let began = Instant::now();
        api.create(&api_load::map(format!("webhook-{n}")), &WriteParams::default()).await?;
        samples.push(began.elapsed());
    }
    let calls = asked.load(Ordering::Relaxed) - before;
    ensure!(calls == SERIAL_CREATES, "the webhook was asked {calls} times");
    configurations.delete(NAME, &DeleteParams::default()).await?;
    let what = "durable create with a validating webhook, one client";
    let figure = Figure::of_times(Group::Api, what, Unit::Millis, samples);
    Ok(figure.side(server.side).beside(KUBERNETES).tell()?)
}

/// Serves on a port of its own, with the certificate of the API server.
async fn serve(pki: &Path, asked: Arc<AtomicUsize>) -> Result<SocketAddr> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let (chain, key) =
        (std::fs::read(pki.join("apiserver.crt"))?, std::fs::read(pki.join("apiserver.key"))?);
    let (chain, key) = proto_daemon::tls::identity(("certificate", "key"), (&chain, &key))?;
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, key)?;
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            tokio::spawn(serve_connection(acceptor.clone(), socket, asked.clone()));
        }
    });
    Ok(address)
}

async fn serve_connection(acceptor: TlsAcceptor, socket: TcpStream, asked: Arc<AtomicUsize>) {
    // The latency of a small answer is what is measured.
    let _ = socket.set_nodelay(true);
    let Ok(stream) = acceptor.accept(socket).await else { return };
    let service = service_fn(async |request: Request<Incoming>| {
        let answer = allow(request).await.unwrap_or_default();
        asked.fetch_add(1, Ordering::Relaxed);
        Ok::<_, Infallible>(Response::new(Full::new(Bytes::from(answer))))
    });
    let _ = hyper::server::conn::http1::Builder::new()
        .serve_connection(TokioIo::new(stream), service)
        .await;
}

async fn allow(request: Request<Incoming>) -> Result<String> {
    let body = request.into_body().collect().await?.to_bytes();
    let review: Value = serde_json::from_slice(&body)?;
    let uid = review["request"]["uid"].as_str().context("no uid")?;
    let response = json!({"uid": uid, "allowed": true});
    Ok(json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}).to_string())
}
