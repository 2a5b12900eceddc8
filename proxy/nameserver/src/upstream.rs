//! Upstream servers: selection, transport, failover.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use hickory_proto::op::{Message, ResponseCode};
use proxy_dns::message::answers;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::timeout;

/// Timeout of one server.
const PATIENCE: Duration = Duration::from_millis(1500);
/// Timeout of all together: less than the five seconds after which the C library retries.
const PATIENCE_ALL: Duration = Duration::from_millis(4500);
/// Consecutive failures after which a server counts as down. A client can bring these about with names that no server answers:
/// a server that is down is asked after the others, but it is asked.
const DOWN_AFTER: u32 = 3;
/// Interval at which a server that is down is asked in its turn.
const PROBE_EVERY: Duration = Duration::from_secs(1);
/// Maximum length of a datagram.
const DATAGRAM_LEN: usize = 65_535;
/// Datagrams that are read while waiting for the matching one.
const WRONG_MAX: usize = 16;

/// No upstream server answered.
#[derive(Debug, thiserror::Error)]
pub enum UpstreamError {
    /// There are no servers.
    #[error("no upstream DNS server is configured")]
    None,
    /// The query cannot be encoded.
    #[error("cannot encode a DNS query")]
    Encode(#[source] hickory_proto::ProtoError),
    /// A socket failed.
    #[error("cannot query DNS server {server}")]
    Socket {
        server: SocketAddr,
        /// The error.
        #[source]
        source: std::io::Error,
    },
    /// The server did not respond in time.
    #[error("DNS server {0} did not answer in time")]
    Late(SocketAddr),
    /// The response does not match the query.
    #[error("DNS server {0} sent a reply that does not answer the query")]
    Wrong(SocketAddr),
}

/// The servers, in the order in which they are tried.
#[derive(Debug, Default)]
pub struct Upstreams {
    servers: Vec<Upstream>,
}

#[derive(Debug)]
struct Upstream {
    address: SocketAddr,
    health: Mutex<Health>,
}

#[derive(Debug, Default)]
struct Health {
    failures: u32,
    tried: Option<Instant>,
}

impl Upstreams {
    /// All are considered up.
    pub fn new(servers: Vec<SocketAddr>) -> Self {
        let server = |address| Upstream { address, health: Mutex::default() };
        Self { servers: servers.into_iter().map(server).collect() }
    }

    /// Their addresses.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.servers.iter().map(|server| server.address).collect()
    }

    /// Tries one server after another, those that are down last. `question` builds the query for an id.
    pub async fn query_server(
        &self,
        question: impl Fn(u16) -> Message,
    ) -> Result<Message, UpstreamError> {
        let until = Instant::now() + PATIENCE_ALL;
        let mut outcome = Err(UpstreamError::None);
        let (mut order, down): (Vec<_>, Vec<_>) =
            self.servers.iter().partition(|server| server.is_due());
        order.extend(down);
        // A datagram may get lost: twice around, while there is time.
        for server in order.iter().chain(&order) {
            let left = until.saturating_duration_since(Instant::now()).min(PATIENCE);
            if left.is_zero() {
                break;
            }
            let answer = server.query_server(&question(rand::random()), left).await;
            server.note(answer.is_ok());
            match answer {
                Ok(message) if is_final(&message) => return Ok(message),
                Ok(message) => outcome = Ok(message),
                // A response code is more informative than a timeout.
                Err(error) if outcome.is_err() => outcome = Err(error),
                Err(_) => {}
            }
        }
        outcome
    }
}

/// Whether the response is final, or another server should be tried.
fn is_final(message: &Message) -> bool {
    !matches!(message.metadata.response_code, ResponseCode::ServFail | ResponseCode::Refused)
}

impl Upstream {
    /// Whether it is up, or was not tried for a while.
    fn is_due(&self) -> bool {
        let health = self.health();
        let rested = health.tried.is_none_or(|tried| tried.elapsed() >= PROBE_EVERY);
        health.failures < DOWN_AFTER || rested
    }

    fn note(&self, answered: bool) {
        let mut health = self.health();
        health.failures = if answered { 0 } else { health.failures.saturating_add(1) };
    }

    fn health(&self) -> MutexGuard<'_, Health> {
        self.health.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn query_server(
        &self,
        question: &Message,
        patience: Duration,
    ) -> Result<Message, UpstreamError> {
        self.health().tried = Some(Instant::now());
        let late = || UpstreamError::Late(self.address);
        let bytes = question.to_vec().map_err(UpstreamError::Encode)?;
        let datagram = timeout(patience, self.by_datagram(question, &bytes));
        let answer = datagram.await.map_err(|_| late())??;
        if !answer.metadata.truncation {
            return Ok(answer);
        }
        timeout(patience, self.by_stream(question, &bytes)).await.map_err(|_| late())?
    }

    /// Each query has its own socket: an attacker would have to guess its port.
    async fn by_datagram(
        &self,
        question: &Message,
        bytes: &[u8],
    ) -> Result<Message, UpstreamError> {
        let failed = |source| UpstreamError::Socket { server: self.address, source };
        let any: IpAddr = match self.address {
            SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let socket = UdpSocket::bind((any, 0)).await.map_err(failed)?;
        socket.connect(self.address).await.map_err(failed)?;
        socket.send(bytes).await.map_err(failed)?;
        let mut buffer = vec![0; DATAGRAM_LEN];
        for _ in 0..WRONG_MAX {
            let len = socket.recv(&mut buffer).await.map_err(failed)?;
            let read = buffer.get(..len).map(Message::from_vec);
            if let Some(Ok(message)) = read
                && answers(question, &message)
            {
                return Ok(message);
            }
        }
        Err(UpstreamError::Wrong(self.address))
    }

    async fn by_stream(&self, question: &Message, bytes: &[u8]) -> Result<Message, UpstreamError> {
        let failed = |source| UpstreamError::Socket { server: self.address, source };
        let wrong = || UpstreamError::Wrong(self.address);
        let mut stream = TcpStream::connect(self.address).await.map_err(failed)?;
        let len = u16::try_from(bytes.len()).map_err(|_| wrong())?;
        let framed = [&len.to_be_bytes(), bytes].concat();
        stream.write_all(&framed).await.map_err(failed)?;
        let len = stream.read_u16().await.map_err(failed)?;
        let mut answer = vec![0; len.into()];
        stream.read_exact(&mut answer).await.map_err(failed)?;
        let message = Message::from_vec(&answer).map_err(|_| wrong())?;
        answers(question, &message).then_some(message).ok_or_else(wrong)
    }
}
