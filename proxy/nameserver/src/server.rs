//! Sockets: datagrams and streams in, answers out.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use hickory_proto::op::Message;
use proxy_dns::message::{Request, RequestError, datagram_limit, encode, read};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::time::timeout;

use crate::client_limiter::ClientLimiter;
use crate::resolver::Resolver;

/// Datagrams that wait for an answer.
const WAITING_MAX: usize = 2048;
/// Datagrams of one asker that wait: a quarter of the questions that may be on the way to other servers.
const WAITING_EACH_MAX: usize = 256;
/// Streams at once.
const STREAMS_MAX: usize = 512;
/// Streams of one asker at once.
const STREAMS_EACH_MAX: usize = 32;
/// A stream without a question is closed after this; RFC 7766 asks for some seconds.
const STREAM_IDLE: Duration = Duration::from_secs(10);
/// An asker that does not take its answer is given up after this.
const STREAM_WRITE: Duration = Duration::from_secs(5);
/// Pause after a failure of a socket that may go on failing.
const PAUSE: Duration = Duration::from_millis(50);
/// The largest question that is read.
const QUESTION_LEN: usize = 4096;
/// The largest answer in a stream.
const STREAM_ANSWER_LEN: usize = 65_535;

/// Nothing can be heard at an address.
#[derive(Debug, thiserror::Error)]
#[error("listen for {transport} at {address}")]
pub struct BindError {
    transport: &'static str,
    address: SocketAddr,
    #[source]
    source: std::io::Error,
}

/// Says who may ask.
pub type Admission = Arc<dyn Fn(IpAddr) -> bool + Send + Sync>;

/// Both sockets of an address.
#[derive(Debug)]
pub struct Listener {
    udp: Arc<UdpSocket>,
    tcp: TcpListener,
    address: SocketAddr,
}

impl Listener {
    /// Listens at an address; port 0 is any free one.
    pub async fn bind(address: SocketAddr) -> Result<Self, BindError> {
        let tcp = TcpListener::bind(address).await;
        let tcp = tcp.map_err(|source| BindError { transport: "streams", address, source })?;
        let address = tcp.local_addr().unwrap_or(address);
        let udp = UdpSocket::bind(address).await;
        let udp = udp.map_err(|source| BindError { transport: "datagrams", address, source })?;
        Ok(Self { udp: Arc::new(udp), tcp, address })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers those who may ask. Ends only when dropped; what is on the way then gets no answer.
    pub async fn run(self, resolver: Arc<Resolver>, admission: Admission) {
        let datagrams = datagrams(self.udp, resolver.clone(), admission.clone());
        tokio::join!(datagrams, streams(self.tcp, resolver, admission));
    }
}

async fn datagrams(socket: Arc<UdpSocket>, resolver: Arc<Resolver>, admission: Admission) {
    let limiter = ClientLimiter::new(WAITING_MAX, WAITING_EACH_MAX);
    let mut tasks = tokio::task::JoinSet::new();
    let mut buffer = vec![0; QUESTION_LEN];
    loop {
        while tasks.try_join_next().is_some() {}
        let (len, from) = match socket.recv_from(&mut buffer).await {
            Ok(received) => received,
            // An earlier answer came back as unreachable; the socket is as good as before.
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => continue,
            Err(error) => {
                tracing::warn!(%error, "cannot receive DNS datagrams; the socket is read again");
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        let started = Instant::now();
        if !admission(from.ip()) {
            resolver.metrics().turned_away.with_label_values(&["source"]).inc();
            continue;
        }
        resolver.metrics().requests.with_label_values(&["udp"]).inc();
        let request = match read(buffer.get(..len).unwrap_or_default()) {
            Ok(request) => request,
            Err(RequestError::Ignore) => continue,
            Err(RequestError::Answer(message)) => {
                let limit = datagram_limit(&message);
                send(&socket, from, &resolver, *message, limit, started).await;
                continue;
            }
        };
        let limit = datagram_limit(&request.message);
        if let Some(message) = resolver.answer_now(&request) {
            send(&socket, from, &resolver, message, limit, started).await;
            continue;
        }
        let Some(guest) = limiter.admit(from.ip()) else {
            // No answer: the asker comes again, which is what it would do after a failure too.
            resolver.metrics().turned_away.with_label_values(&["busy"]).inc();
            continue;
        };
        let (socket, resolver) = (socket.clone(), resolver.clone());
        tasks.spawn(async move {
            let message = resolver.answer_within_limits(&request).await;
            send(&socket, from, &resolver, message, limit, started).await;
            drop(guest);
        });
    }
}

async fn send(
    socket: &UdpSocket,
    to: SocketAddr,
    resolver: &Resolver,
    message: Message,
    limit: usize,
    started: Instant,
) {
    count(resolver, &message, started);
    if let Some(bytes) = encode(message, limit)
        && let Err(error) = socket.send_to(&bytes, to).await
    {
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

async fn streams(listener: TcpListener, resolver: Arc<Resolver>, admission: Admission) {
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
        if !admission(from.ip()) {
            resolver.metrics().turned_away.with_label_values(&["source"]).inc();
            continue;
        }
        let Some(guest) = limiter.admit(from.ip()) else {
            resolver.metrics().turned_away.with_label_values(&["busy"]).inc();
            continue;
        };
        let resolver = resolver.clone();
        tasks.spawn(async move {
            if let Err(error) = serve(stream, &resolver).await {
                tracing::debug!(%error, %from, "TCP connection of a DNS client ended early");
            }
            drop(guest);
        });
    }
}

/// Answers one question after the other until the asker has no more.
async fn serve(mut stream: TcpStream, resolver: &Resolver) -> std::io::Result<()> {
    loop {
        let Ok(question) = timeout(STREAM_IDLE, question(&mut stream)).await else {
            return Ok(());
        };
        let Some(bytes) = question? else { return Ok(()) };
        let started = Instant::now();
        resolver.metrics().requests.with_label_values(&["tcp"]).inc();
        let message = match read(&bytes) {
            Ok(request) => respond(resolver, &request).await,
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

async fn respond(resolver: &Resolver, request: &Request) -> Message {
    match resolver.answer_now(request) {
        Some(message) => message,
        None => resolver.answer_within_limits(request).await,
    }
}

/// The next question; nothing at the end of the stream, or when it is too long.
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
