//! Sockets: UDP and TCP. Each datagram and each connection has a boundary of panics: what a client sends fails that alone, and gets no response.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use hickory_proto::op::Message;
use proto_daemon::panics::{isolate, isolate_sync};
use proxy_dns::message::{Request, RequestError, datagram_limit, encode, read};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::time::timeout;

use crate::client_limiter::{ClientLimiter, ClientPermit};
use crate::resolver::Resolver;

/// Datagrams that wait for a response.
const WAITING_MAX: usize = 2048;
/// The same for one client.
const WAITING_EACH_MAX: usize = 256;
/// Concurrent TCP connections.
const STREAMS_MAX: usize = 512;
/// The same for one client.
const STREAMS_EACH_MAX: usize = 32;
/// Idle timeout of TCP connections; RFC 7766 recommends some seconds.
const STREAM_IDLE: Duration = Duration::from_secs(10);
/// Timeout of writing a response.
const STREAM_WRITE: Duration = Duration::from_secs(5);
/// Pause after an error of a socket that may persist.
const PAUSE: Duration = Duration::from_millis(50);
/// Maximum length of a query.
const QUESTION_LEN: usize = 4096;
/// Maximum length of a response over TCP.
const STREAM_ANSWER_LEN: usize = 65_535;

/// An address cannot be bound.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen for {transport} at {address}")]
pub struct BindError {
    transport: &'static str,
    address: SocketAddr,
    #[source]
    source: std::io::Error,
}

/// Whether a client may query.
pub type ClientFilter = Arc<dyn Fn(IpAddr) -> bool + Send + Sync>;

/// The UDP and TCP sockets of an address.
#[derive(Debug)]
pub struct Listener {
    udp: Arc<UdpSocket>,
    tcp: TcpListener,
    address: SocketAddr,
}

impl Listener {
    /// Binds an address; port 0 selects a free one.
    pub async fn bind(address: SocketAddr) -> Result<Self, BindError> {
        let tcp = TcpListener::bind(address).await;
        let tcp = tcp.map_err(|source| BindError { transport: "streams", address, source })?;
        let address = tcp.local_addr().unwrap_or(address);
        let udp = UdpSocket::bind(address).await;
        let udp = udp.map_err(|source| BindError { transport: "datagrams", address, source })?;
        Ok(Self { udp: Arc::new(udp), tcp, address })
    }

    /// The bound address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves admitted clients. Ends only when dropped; queries under way then get no response.
    pub async fn run(self, resolver: Arc<Resolver>, client_filter: ClientFilter) {
        let datagrams = datagrams(self.udp, resolver.clone(), client_filter.clone());
        tokio::join!(datagrams, streams(self.tcp, resolver, client_filter));
    }
}

async fn datagrams(socket: Arc<UdpSocket>, resolver: Arc<Resolver>, client_filter: ClientFilter) {
    let limiter = ClientLimiter::new(WAITING_MAX, WAITING_EACH_MAX);
    let mut tasks = tokio::task::JoinSet::new();
    let mut buffer = vec![0; QUESTION_LEN];
    loop {
        while tasks.try_join_next().is_some() {}
        let (len, from) = match socket.recv_from(&mut buffer).await {
            Ok(received) => received,
            // ICMP error of an earlier response; the socket still works.
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => continue,
            Err(error) => {
                tracing::warn!(%error, "cannot receive DNS datagrams; the socket is read again");
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        let started = Instant::now();
        let bytes = buffer.get(..len).unwrap_or_default();
        let step = isolate_sync(|| {
            begin(bytes, (from.ip(), started), &resolver, &client_filter, &limiter)
        });
        match step {
            Ok(Step::Reply(bytes)) => send(&socket, from, &bytes).await,
            Ok(Step::Resolve(request, permit)) => {
                let (socket, resolver) = (socket.clone(), resolver.clone());
                tasks.spawn(isolate(async move {
                    let message = resolver.answer_within_limits(&request, from.ip()).await;
                    count(&resolver, &message, started);
                    if let Some(bytes) = encode(message, datagram_limit(&request.message)) {
                        send(&socket, from, &bytes).await;
                    }
                    drop(permit);
                }));
            }
            Ok(Step::Ignore) | Err(_) => {}
        }
    }
}

/// What follows from a datagram.
enum Step {
    /// This response is sent.
    Reply(Vec<u8>),
    /// The response comes from elsewhere.
    Resolve(Box<Request>, ClientPermit),
    /// There is none.
    Ignore,
}

/// Answers a datagram, if that can be done at once.
fn begin(
    bytes: &[u8],
    (client, started): (IpAddr, Instant),
    resolver: &Resolver,
    client_filter: &ClientFilter,
    limiter: &ClientLimiter,
) -> Step {
    if !client_filter(client) {
        resolver.metrics().turned_away.with_label_values(&["source"]).inc();
        return Step::Ignore;
    }
    resolver.metrics().requests.with_label_values(&["udp"]).inc();
    let reply = |message: Message, limit| {
        count(resolver, &message, started);
        encode(message, limit).map_or(Step::Ignore, Step::Reply)
    };
    let request = match read(bytes) {
        Ok(request) => request,
        Err(RequestError::Ignore) => return Step::Ignore,
        Err(RequestError::Answer(message)) => {
            let limit = datagram_limit(&message);
            return reply(*message, limit);
        }
    };
    if let Some(message) = resolver.answer_now(&request) {
        return reply(message, datagram_limit(&request.message));
    }
    match limiter.admit(client) {
        Some(permit) => Step::Resolve(Box::new(request), permit),
        None => {
            // No response: the client retries, as it would after a failure too.
            resolver.metrics().turned_away.with_label_values(&["busy"]).inc();
            Step::Ignore
        }
    }
}

async fn send(socket: &UdpSocket, to: SocketAddr, bytes: &[u8]) {
    if let Err(error) = socket.send_to(bytes, to).await {
        tracing::debug!(%error, %to, "cannot send a reply to the client; it is dropped");
    }
}

fn count(resolver: &Resolver, message: &Message, started: Instant) {
    let metrics = resolver.metrics();
    let code = u16::from(message.metadata.response_code);
    let name = match code {
        0 => "NOERROR",
        1 => "FORMERR",
        2 => "SERVFAIL",
        3 => "NXDOMAIN",
        4 => "NOTIMP",
        5 => "REFUSED",
        _ => "OTHER",
    };
    metrics.responses.with_label_values(&[name]).inc();
    metrics.seconds.observe(started.elapsed().as_secs_f64());
}

async fn streams(listener: TcpListener, resolver: Arc<Resolver>, client_filter: ClientFilter) {
    let limiter = ClientLimiter::new(STREAMS_MAX, STREAMS_EACH_MAX);
    let mut tasks = tokio::task::JoinSet::new();
    loop {
        while tasks.try_join_next().is_some() {}
        let (stream, from) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::debug!(%error, "cannot accept a TCP connection");
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        if !isolate_sync(|| client_filter(from.ip())).unwrap_or(false) {
            resolver.metrics().turned_away.with_label_values(&["source"]).inc();
            continue;
        }
        let Some(permit) = limiter.admit(from.ip()) else {
            resolver.metrics().turned_away.with_label_values(&["busy"]).inc();
            continue;
        };
        let resolver = resolver.clone();
        tasks.spawn(isolate(async move {
            if let Err(error) = serve(stream, &resolver, from.ip()).await {
                tracing::debug!(%error, %from, "TCP connection of a DNS client ended early");
            }
            drop(permit);
        }));
    }
}

/// Serves the queries of one connection, one after another.
async fn serve(mut stream: TcpStream, resolver: &Resolver, client: IpAddr) -> std::io::Result<()> {
    loop {
        let Ok(question) = timeout(STREAM_IDLE, question(&mut stream)).await else {
            return Ok(());
        };
        let Some(bytes) = question? else { return Ok(()) };
        let started = Instant::now();
        resolver.metrics().requests.with_label_values(&["tcp"]).inc();
        let message = match read(&bytes) {
            Ok(request) => respond(resolver, &request, client).await,
            Err(RequestError::Ignore) => return Ok(()),
            Err(RequestError::Answer(message)) => *message,
        };
        count(resolver, &message, started);
        let Some(bytes) = encode(message, STREAM_ANSWER_LEN) else { return Ok(()) };
        let len = u16::try_from(bytes.len()).unwrap_or(u16::MAX);
        let framed = [&len.to_be_bytes(), bytes.as_slice()].concat();
        if timeout(STREAM_WRITE, stream.write_all(&framed)).await.is_err() {
            return Err(ErrorKind::TimedOut.into());
        }
    }
}

async fn respond(resolver: &Resolver, request: &Request, client: IpAddr) -> Message {
    match resolver.answer_now(request) {
        Some(message) => message,
        None => resolver.answer_within_limits(request, client).await,
    }
}

/// The next query; `None` at the end of the stream, or if it is too long.
async fn question(stream: &mut TcpStream) -> std::io::Result<Option<Vec<u8>>> {
    let len = match stream.read_u16().await {
        Ok(len) => usize::from(len),
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(None),
        Err(error) => return Err(error),
    };
    if len > QUESTION_LEN {
        return Ok(None);
    }
    let mut bytes = vec![0; len];
    stream.read_exact(&mut bytes).await?;
    Ok(Some(bytes))
}
