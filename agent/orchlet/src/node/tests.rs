//! The heartbeat beside everything that hangs.

use std::convert::Infallible;
use std::net::SocketAddr;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use proto_api::names::{Names, Profile};
use proto_client::config::ClientConfig;
use proto_daemon::drain::Drain;
use proto_daemon::statusz::StatusBoard;
use tokio::net::TcpListener;
use tokio::sync::mpsc;

use super::*;

/// Long enough for a machine that does other things.
const PATIENCE: Duration = Duration::from_secs(60);
/// The shortest lease: renewed every second.
const LASTS_SECS: u16 = 4;

/// What a request asked for, and over which connection.
type Asked = (Method, String, SocketAddr);

/// A server that answers requests for leases, each with what it was sent, and no others, ever.
async fn server() -> (SocketAddr, mpsc::UnboundedReceiver<Asked>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
    let address = listener.local_addr().expect("bound");
    let (tell, asked) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Ok((socket, peer)) = listener.accept().await {
            let tell = tell.clone();
            let service = service_fn(move |request| answer(request, peer, tell.clone()));
            let connection = hyper::server::conn::http1::Builder::new();
            tokio::spawn(connection.serve_connection(TokioIo::new(socket), service));
        }
    });
    (address, asked)
}

async fn answer(
    request: Request<Incoming>,
    peer: SocketAddr,
    tell: mpsc::UnboundedSender<Asked>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let (shared, body) = request.into_parts();
    let path = shared.uri.path().to_owned();
    let _ = tell.send((shared.method.clone(), path.clone(), peer));
    if !path.contains("/leases") {
        std::future::pending::<()>().await;
    }
    let sent = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    let mut response = match shared.method {
        Method::GET => {
            let missing = serde_json::json!({
                "kind": "Status", "apiVersion": "v1", "status": "Failure",
                "reason": "NotFound", "code": 404,
            });
            Response::new(Full::new(missing.to_string().into()))
        }
        _ => Response::new(Full::new(sent)),
    };
    *response.status_mut() = match shared.method {
        Method::GET => StatusCode::NOT_FOUND,
        Method::POST => StatusCode::CREATED,
        _ => StatusCode::OK,
    };
    let kind = shared.headers.get("content-type").cloned();
    let kind = kind.unwrap_or(http::HeaderValue::from_static("application/json"));
    response.headers_mut().insert("content-type", kind);
    Ok(response)
}

#[tokio::test]
async fn the_lease_is_renewed_while_everything_else_hangs() {
    let (address, mut asked) = server().await;
    let config = ClientConfig::direct(format!("http://{address}").parse().expect("valid"));
    let client = Client::new(&config, Names::new(Profile::Kubernetes), "test/1").expect("valid");
    let reading = client.clone();
    let hangs = tokio::spawn(async move { reading.all::<Node>().get("n").await.map(|_| ()) });
    let (_, path, of_others) = asked.recv().await.expect("asked");
    assert!(path.ends_with("/nodes/n"), "{path}");

    let (_keep, node) = watch::channel(Some(Arc::new(Node::default())));
    let (drain, board) = (Drain::default(), StatusBoard::default());
    let own = client.separate().expect("client");
    let lease = ("n".to_owned(), LASTS_SECS);
    tokio::spawn(renew(own, lease, node, board.task("lease"), drain.watch()));
    let mut renewals = 0;
    while renewals < 3 {
        let next = tokio::time::timeout(PATIENCE, asked.recv()).await;
        let (method, path, peer) = next.expect("in time").expect("the server runs");
        assert!(path.contains("/leases"), "{path}");
        assert_ne!(peer, of_others, "over a connection of its own");
        renewals += usize::from(method == Method::PUT);
    }
    assert!(!hangs.is_finished(), "it hangs all the while");
}
