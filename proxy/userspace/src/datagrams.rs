//! UDP: each client has a session with one endpoint, on a socket of its own whose replies are sent back.

use std::collections::HashMap;
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nix::sys::socket::{MsgFlags, send};
use proxy_rules::model::Protocol;
use tokio::net::UdpSocket;
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::timeout;

use crate::backend_picker::BackendPicker;
use crate::connection_limiter::ConnectionPermit;
use crate::forwarder_state::Shared;

/// Maximum length of a datagram.
const DATAGRAM_LEN: usize = 65_535;
/// Pause after an error that may persist.
const PAUSE: Duration = Duration::from_millis(20);

/// Time of the last datagram, in milliseconds since the frontend was opened.
#[derive(Clone, Debug)]
struct LastWord {
    began: Instant,
    at: Arc<AtomicU64>,
}

impl LastWord {
    fn now(began: Instant) -> Self {
        let last = Self { began, at: Arc::default() };
        last.note_traffic();
        last
    }

    fn note_traffic(&self) {
        self.at.store(self.millis(), Ordering::Relaxed);
    }

    fn millis(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn at(&self) -> u64 {
        self.at.load(Ordering::Relaxed)
    }

    fn silence(&self) -> Duration {
        Duration::from_millis(self.millis().saturating_sub(self.at()))
    }
}

/// A client with its endpoint.
struct UdpSession {
    backend: SocketAddr,
    socket: Arc<UdpSocket>,
    last: LastWord,
    task: AbortHandle,
    /// Distinguishes successive sessions of a client.
    number: u64,
}

/// The sessions of one frontend.
struct Sessions {
    near: Arc<UdpSocket>,
    shared: Arc<Shared>,
    began: Instant,
    open: HashMap<SocketAddr, UdpSession>,
    tasks: JoinSet<(SocketAddr, u64)>,
    numbers: u64,
}

/// Forwards datagrams. Ends only when aborted, with its sessions.
pub async fn forward(
    socket: Arc<UdpSocket>,
    mut picker: watch::Receiver<BackendPicker>,
    shared: Arc<Shared>,
) {
    let mut sessions = Sessions {
        near: socket.clone(),
        shared,
        began: Instant::now(),
        open: HashMap::new(),
        tasks: JoinSet::new(),
        numbers: 0,
    };
    loop {
        // All arms are cancel safe.
        tokio::select! {
            ready = socket.readable() => {
                let picker = picker.borrow().clone();
                match ready.and_then(|()| sessions.take_one(&picker)) {
                    // A spurious wake-up, or the ICMP error of an earlier reply.
                    Err(error)
                        if matches!(
                            error.kind(),
                            ErrorKind::WouldBlock | ErrorKind::ConnectionRefused
                        ) => {}
                    Err(error) => {
                        tracing::debug!(
                            %error,
                            "cannot receive datagrams of a frontend; the socket is read again"
                        );
                        tokio::time::sleep(PAUSE).await;
                    }
                    Ok(()) => {}
                }
            },
            changed = picker.changed() => match changed {
                Ok(()) => {
                    let picker = picker.borrow_and_update().clone();
                    sessions.end_removed(&picker);
                }
                Err(_) => return,
            },
            Some(ended) = sessions.tasks.join_next(), if !sessions.tasks.is_empty() => {
                if let Ok((client, number)) = ended {
                    sessions.forget(client, number);
                }
            }
        }
    }
}

impl Sessions {
    /// Forwards one datagram; fails if none can be received. The buffer is on the stack, so that thousands of idle
    /// frontends hold none.
    fn take_one(&mut self, picker: &BackendPicker) -> std::io::Result<()> {
        let mut buffer = [0; DATAGRAM_LEN];
        let (len, client) = self.near.try_recv_from(&mut buffer)?;
        self.hand_on(buffer.get(..len).unwrap_or_default(), client, picker);
        Ok(())
    }

    fn hand_on(&mut self, datagram: &[u8], client: SocketAddr, picker: &BackendPicker) {
        if !self.open.contains_key(&client) && !self.begin(client, picker) {
            return;
        }
        let Some(session) = self.open.get(&client) else { return };
        session.last.note_traffic();
        // The runtime has not registered yet that a new socket is writable.
        let sent = send(session.socket.as_raw_fd(), datagram, MsgFlags::MSG_DONTWAIT);
        if let Err(error) = sent {
            tracing::debug!(
                backend = %session.backend,
                %error,
                "cannot send a datagram to an endpoint"
            );
            let number = session.number;
            // The next datagram gets another endpoint.
            self.end(client, number);
        }
    }

    /// Starts a session; false if that is not possible.
    fn begin(&mut self, client: SocketAddr, picker: &BackendPicker) -> bool {
        let Some(backend) = picker.pick(&self.shared, client.ip(), &[]) else {
            return self.refused("none");
        };
        if self.shared.listening.leads_back(Protocol::Udp, backend) {
            tracing::debug!(%backend, "an endpoint is a frontend of this proxy; the datagram is dropped");
            return self.refused("loop");
        }
        if self.open.len() >= self.shared.limits.sessions {
            self.end_oldest();
        }
        let Some(place) = self.shared.room.admit(client.ip()) else {
            return self.refused("bound");
        };
        let socket = match connected(backend) {
            Ok(socket) => Arc::new(socket),
            Err(error) => {
                tracing::debug!(%backend, %error, "cannot connect a UDP socket to an endpoint");
                self.shared.metrics.unanswered.inc();
                return self.refused("none");
            }
        };
        self.numbers += 1;
        let number = self.numbers;
        let last = LastWord::now(self.began);
        let answers = Answers {
            near: self.near.clone(),
            far: socket.clone(),
            client,
            shared: self.shared.clone(),
            last: last.clone(),
            _place: place,
        };
        let task = self.tasks.spawn(async move {
            answers.carry().await;
            (client, number)
        });
        self.shared.metrics.begun.with_label_values(&["udp"]).inc();
        self.shared.metrics.open.with_label_values(&["udp"]).inc();
        self.open.insert(client, UdpSession { backend, socket, last, task, number });
        true
    }

    fn refused(&self, reason: &str) -> bool {
        self.shared.metrics.refused.with_label_values(&[reason]).inc();
        false
    }

    /// Ends sessions whose endpoint was removed; the client's next datagram gets another one.
    fn end_removed(&mut self, picker: &BackendPicker) {
        let gone = self.open.iter().filter(|(_, session)| !picker.target.has(&session.backend));
        let gone: Vec<(SocketAddr, u64)> = gone.map(|(client, s)| (*client, s.number)).collect();
        for (client, number) in gone {
            self.end(client, number);
        }
    }

    fn end_oldest(&mut self) {
        let oldest = self.open.iter().min_by_key(|(_, session)| session.last.at());
        if let Some((client, number)) = oldest.map(|(client, s)| (*client, s.number)) {
            self.end(client, number);
        }
    }

    fn end(&mut self, client: SocketAddr, number: u64) {
        if let Some(session) = self.open.get(&client) {
            session.task.abort();
        }
        self.forget(client, number);
    }

    fn forget(&mut self, client: SocketAddr, number: u64) {
        if self.open.get(&client).is_some_and(|session| session.number == number) {
            self.open.remove(&client);
            self.shared.metrics.open.with_label_values(&["udp"]).dec();
        }
    }
}

impl Drop for Sessions {
    fn drop(&mut self) {
        let open = i64::try_from(self.open.len()).unwrap_or(i64::MAX);
        self.shared.metrics.open.with_label_values(&["udp"]).sub(open);
    }
}

fn connected(backend: SocketAddr) -> std::io::Result<UdpSocket> {
    let any: IpAddr = match backend {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = std::net::UdpSocket::bind((any, 0))?;
    socket.connect(backend)?;
    socket.set_nonblocking(true)?;
    UdpSocket::from_std(socket)
}

/// The reply direction of one session.
struct Answers {
    near: Arc<UdpSocket>,
    far: Arc<UdpSocket>,
    client: SocketAddr,
    shared: Arc<Shared>,
    last: LastWord,
    _place: ConnectionPermit,
}

impl Answers {
    /// Forwards replies until both directions are idle, or the endpoint refuses.
    async fn carry(self) {
        loop {
            let silence = self.last.silence();
            if silence >= self.shared.limits.idle {
                return;
            }
            let wait = self.shared.limits.idle.saturating_sub(silence);
            match timeout(wait, self.far.readable()).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) => return,
                Err(_) => continue,
            }
            if let Err(error) = self.carry_one() {
                tracing::debug!(client = %self.client, %error, "an endpoint refused a datagram");
                self.shared.metrics.unanswered.inc();
                return;
            }
        }
    }

    /// The buffer is on the stack, so that thousands of idle sessions hold none.
    fn carry_one(&self) -> std::io::Result<()> {
        let mut buffer = [0; DATAGRAM_LEN];
        let len = match self.far.try_recv(&mut buffer) {
            Ok(len) => len,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(error),
        };
        self.last.note_traffic();
        let answer = buffer.get(..len).unwrap_or_default();
        if let Err(error) = self.near.try_send_to(answer, self.client) {
            tracing::debug!(
                client = %self.client,
                %error,
                "cannot send a reply to the client; it is dropped"
            );
        }
        Ok(())
    }
}
