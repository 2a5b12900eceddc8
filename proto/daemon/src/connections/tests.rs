//! Connections over pipes in memory, with the clock of the test.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Empty, Full};
use hyper::body::Incoming;
use hyper::client::conn::http2::SendRequest;
use hyper_util::rt::TokioExecutor;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::admission::Bounds;
use super::*;
use crate::drain::Drain;

pub(super) const LIMITS: Limits = Limits {
    bounds: Bounds {
        total: 8,
        unauthenticated: 4,
        unauthenticated_per_peer: 2,
        authenticated_per_peer: 8,
        authenticated_per_user: 8,
    },
    handshake: Duration::from_secs(10),
    first_request: Duration::from_secs(30),
    unauthorized: Duration::from_secs(40),
    answered: Duration::from_secs(60),
    idle: Duration::from_secs(90),
    streams: 8,
};

/// How long a request waits for the server.
const QUEUED: Duration = Duration::from_secs(500);

fn connections() -> (Arc<Connections>, IntCounterVec) {
    let counter = closed_counter("connections_closed_total").expect("a name");
    (Connections::new(LIMITS, Some(counter.clone())), counter)
}

fn from(last: u8) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, last], 1))
}

/// Serves one end of a pipe. `/queued` and `/queued/slow` are answered 20 s and 1,000 s after they have waited for [`QUEUED`]; `/slow`, `/authorized`,
/// which is authorized, and `/stream`, which is one, after 1,000 s; `/a`, which is authorized, and `/s`, which is a stream, at once.
fn served(connection: Connection, drain: &Drain) -> (DuplexStream, JoinHandle<Duration>) {
    let (near, far) = tokio::io::duplex(64 << 10);
    let until = drain.watch();
    let handler = async |open: OpenRequest, request: Request<Incoming>| {
        match request.uri().path() {
            "/authorized" | "/a" => open.authorized(),
            "/stream" | "/s" => open.stream(),
            _ => {}
        }
        if request.uri().path().starts_with("/queued") {
            let waits = open.wait();
            tokio::time::sleep(QUEUED).await;
            drop(waits);
            let more = if request.uri().path() == "/queued" { 20 } else { 1000 };
            tokio::time::sleep(Duration::from_secs(more)).await;
        } else if request.uri().path().len() > 2 {
            tokio::time::sleep(Duration::from_secs(1000)).await;
        }
        Response::new(Full::new(Bytes::from_static(b"ok")))
    };
    let handler = move |request, open| Box::pin(handler(open, request));
    let task = tokio::spawn(async move {
        let began = Instant::now();
        let _ = connection.serve(far, handler, until.asked()).await;
        began.elapsed()
    });
    (near, task)
}

#[tokio::test(start_paused = true)]
async fn a_handshake_has_a_deadline() {
    let (connections, counter) = connections();
    let connection = connections.admit(from(1)).expect("a place");
    let began = Instant::now();
    let done = connection.handshake(std::future::pending::<Result<(), ()>>()).await;
    assert_eq!((done, began.elapsed()), (None, LIMITS.handshake));
    assert_eq!(counter.with_label_values(&["handshake"]).get(), 1);
}

#[tokio::test(start_paused = true)]
async fn silence_half_a_head_and_pings_end_at_the_deadline_of_the_first_request() {
    let (connections, counter) = connections();
    let drain = Drain::default();
    for begin in [&b""[..], b"P", b"GET / HTTP/1.1\r\nhost:"] {
        let connection = connections.admit(from(1)).expect("a place");
        let (mut near, task) = served(connection, &drain);
        near.write_all(begin).await.expect("sent");
        let took = task.await.expect("ended");
        assert!(took >= LIMITS.first_request && took <= LIMITS.first_request + GOODBYE_MAX);
    }
    let connection = connections.admit(from(1)).expect("a place");
    let (mut near, task) = served(connection, &drain);
    near.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.expect("sent");
    let (mut read, mut write) = tokio::io::split(near);
    tokio::spawn(async move {
        // An answer to every PING and PINGs of its own.
        while write.write_all(b"\0\0\x08\x06\0\0\0\0\0pingpong").await.is_ok() {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    });
    tokio::spawn(async move { while matches!(read.read(&mut [0; 512]).await, Ok(1..)) {} });
    let took = task.await.expect("ended");
    assert!(took >= LIMITS.first_request && took <= LIMITS.first_request + GOODBYE_MAX, "{took:?}");
    assert_eq!(counter.with_label_values(&["no_request"]).get(), 4);
    assert!(connections.open().closers.is_empty(), "places are free again");
}

#[tokio::test(start_paused = true)]
async fn an_authorized_request_may_take_long() {
    let (connections, counter) = connections();
    let drain = Drain::default();
    let connection = connections.admit(from(1)).expect("a place");
    let (near, task) = served(connection, &drain);
    let (mut sender, client) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(near))
            .await
            .expect("HTTP/2");
    tokio::spawn(client);
    let began = Instant::now();
    let request = Request::get("http://a/authorized").body(Empty::<Bytes>::new()).expect("valid");
    let answer = sender.send_request(request).await.expect("answered");
    answer.into_body().collect().await.expect("read");
    assert!(began.elapsed() >= Duration::from_secs(1000));
    let took = task.await.expect("ended");
    assert!(took >= Duration::from_secs(1000) + LIMITS.idle, "{took:?}");
    assert_eq!(counter.with_label_values(&["idle"]).get(), 1);
}

#[tokio::test(start_paused = true)]
async fn unauthorized_connections_that_do_not_take_their_answer_in_time_are_closed() {
    let (connections, counter) = connections();
    let drain = Drain::default();
    let expected = LIMITS.unauthorized..=LIMITS.unauthorized + GOODBYE_MAX;
    // One that is never made, and one that a window of zero octets holds back: a SETTINGS frame with
    // INITIAL_WINDOW_SIZE (4) = 0, and HEADERS of stream 1 with GET, http, / (static table 2, 6, 4).
    let mut window =
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\x06\x04\0\0\0\0\0\0\x04\0\0\0\0".to_vec();
    window.extend_from_slice(b"\0\0\x03\x01\x05\0\0\0\x01\x82\x86\x84");
    for begin in [&b"GET /slow HTTP/1.1\r\nhost: a\r\n\r\n"[..], &window] {
        let connection = connections.admit(from(1)).expect("a place");
        let (mut near, task) = served(connection, &drain);
        near.write_all(begin).await.expect("sent");
        let (mut read, mut write) = tokio::io::split(near);
        tokio::spawn(async move { while matches!(read.read(&mut [0; 512]).await, Ok(1..)) {} });
        let pings = tokio::spawn(async move {
            tokio::time::sleep(Duration::from_secs(1)).await;
            while write.write_all(b"\0\0\x08\x06\x01\0\0\0\0pingpong").await.is_ok() {
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        });
        let took = task.await.expect("ended");
        assert!(expected.contains(&took), "{took:?}");
        pings.await.expect("ended");
    }
    assert_eq!(counter.with_label_values(&["not_taken"]).get(), 2);
}

/// The response to a request over HTTP/2 whose client answers PINGs and gives a window of `window` octets, and what keeps the connection open.
async fn stalled(
    near: DuplexStream,
    window: u32,
    path: &str,
) -> (Response<Incoming>, SendRequest<Empty<Bytes>>) {
    let mut client = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
    let client = client.initial_stream_window_size(window).handshake(TokioIo::new(near));
    let (mut sender, client) = client.await.expect("HTTP/2");
    tokio::spawn(client);
    let request = Request::get(format!("http://a{path}")).body(Empty::<Bytes>::new());
    let response = sender.send_request(request.expect("valid")).await.expect("answered");
    (response, sender)
}

#[tokio::test(start_paused = true)]
async fn an_authorized_client_reads_its_responses_in_time_too() {
    let (connections, counter) = connections();
    let drain = Drain::default();
    // Without a window, and with one of a single octet, so that the whole response has left the body and waits to be written.
    for window in [0, 1] {
        let connection = connections.admit(from(1)).expect("a place");
        connection.authenticated("a");
        let (near, task) = served(connection, &drain);
        let _unread = stalled(near, window, "/a").await;
        let took = task.await.expect("ended");
        let expected = LIMITS.answered..=LIMITS.answered + GOODBYE_MAX;
        assert!(expected.contains(&took), "{took:?}");
    }
    assert_eq!(counter.with_label_values(&["not_taken"]).get(), 2);
    let connection = connections.admit(from(1)).expect("a place");
    let (near, task) = served(connection, &drain);
    let _unread = stalled(near, 0, "/s").await;
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert!(!task.is_finished(), "a stream");
    task.abort();
}

#[tokio::test(start_paused = true)]
async fn values_kept_for_a_request_live_until_its_response_is_written() {
    let (connections, _) = connections();
    let (near, far) = tokio::io::duplex(64 << 10);
    let kept = Arc::new(());
    let given = kept.clone();
    let connection = connections.admit(from(1)).expect("a place");
    let handler = move |_: Request<Incoming>, open: OpenRequest| {
        open.authorized();
        open.keep(given.clone());
        std::future::ready(Response::new(Full::new(Bytes::from_static(b"ok"))))
    };
    let serving = tokio::spawn(async move {
        let _ = connection.serve(far, handler, std::future::pending()).await;
    });
    let (response, _sender) = stalled(near, 1, "/a").await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(Arc::strong_count(&kept), 3, "an octet is not written");
    // Reading gives the window.
    response.into_body().collect().await.expect("read");
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(Arc::strong_count(&kept), 2, "written");
    serving.abort();
}

#[tokio::test(start_paused = true)]
async fn clients_that_wait_for_a_slow_response_are_not_closed() {
    let (connections, counter) = connections();
    let drain = Drain::default();
    let (mut near, task) = served(connections.admit(from(1)).expect("a place"), &drain);
    near.write_all(b"GET /queued HTTP/1.1\r\nhost: a\r\n\r\n").await.expect("sent");
    let mut begin = [0; 15];
    near.read_exact(&mut begin).await.expect("answered");
    assert_eq!(&begin, b"HTTP/1.1 200 OK");
    drop(near);
    task.await.expect("ended");
    assert_eq!(counter.with_label_values(&["not_taken"]).get(), 0);
    // Afterwards it has as long as ever.
    let (mut near, task) = served(connections.admit(from(1)).expect("a place"), &drain);
    near.write_all(b"GET /queued/slow HTTP/1.1\r\nhost: a\r\n\r\n").await.expect("sent");
    let took = task.await.expect("ended");
    let deadline = QUEUED + LIMITS.unauthorized;
    let expected = deadline..=deadline + GOODBYE_MAX;
    assert!(expected.contains(&took), "{took:?}");
    assert_eq!(counter.with_label_values(&["not_taken"]).get(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_new_connection_replaces_the_oldest() {
    let (connections, counter) = connections();
    let drain = Drain::default();
    let (mut near, first) = served(connections.admit(from(1)).expect("a place"), &drain);
    // A request in flight that was not authorized does not protect its connection.
    near.write_all(b"GET /slow HTTP/1.1\r\nhost: a\r\n\r\n").await.expect("sent");
    tokio::time::sleep(Duration::from_secs(1)).await;
    let known = connections.admit(from(1)).expect("a place");
    known.authenticated("a");
    let (_near, authenticated) = served(known, &drain);
    let (_near, second) = served(connections.admit(from(1)).expect("a place"), &drain);
    let (_near, _third) = served(connections.admit(from(1)).expect("a place"), &drain);
    assert_eq!(first.await.expect("ended"), Duration::from_secs(1));
    assert!(!authenticated.is_finished() && !second.is_finished());
    assert_eq!(counter.with_label_values(&["replaced"]).get(), 1);
}

#[tokio::test]
async fn a_session_that_lost_its_place_ends() {
    let (connections, _) = connections();
    let connection = connections.admit(from(1)).expect("a place");
    let (_near, far) = tokio::io::duplex(64);
    let mut held = CountedSocket::new(far, connection.clone());
    let reading = tokio::spawn(async move { held.read(&mut [0; 1]).await.map_err(|e| e.kind()) });
    connection.0.closer.cancel();
    let ended = reading.await.expect("ended");
    assert_eq!(ended, Err(std::io::ErrorKind::ConnectionAborted));
}
