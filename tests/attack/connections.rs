//! Connections that send nothing, too little or garbage, to the API server and to the node's endpoint.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use nix::sched::{CloneFlags, setns};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::{Instant, sleep, timeout};

use crate::{Target, generate, node_checks};

/// Silent connections that are held to each server.
const SILENT: usize = 1000;
/// Of these, opened between two looks at those that are held.
const BATCH: usize = 100;
/// Port of the node's endpoint.
const KUBELET_PORT: u16 = 10250;
/// The beginning of a TLS handshake that never goes on: a record of 512 bytes of which five are sent.
const HALF_HELLO: [u8; 6] = [0x16, 0x03, 0x01, 0x02, 0x00, 0x01];

fn servers(target: &Target) -> Vec<SocketAddr> {
    let api = SocketAddr::from((target.spec.api_address(), cluster::spec::Spec::API_PORT));
    let nodes = target.spec.node_list().into_iter();
    let nodes = nodes.map(|node| SocketAddr::from((node.address, KUBELET_PORT)));
    std::iter::once(api).chain(nodes).collect()
}

/// Where connections come from.
enum Origin {
    /// The machine of the test.
    Host,
    /// The network namespace of a pod.
    Pod(File),
}

impl Origin {
    /// Sockets that are not connected yet. A socket belongs to the namespace in which it was made, so a thread enters the pod's and ends.
    fn sockets(&self, count: usize) -> io::Result<Vec<TcpSocket>> {
        let make = || (0..count).map(|_| TcpSocket::new_v4()).collect();
        match self {
            Self::Host => make(),
            Self::Pod(namespace) => std::thread::scope(|scope| {
                let within = scope.spawn(|| {
                    setns(namespace, CloneFlags::CLONE_NEWNET)?;
                    make()
                });
                within.join().unwrap_or_else(|_| Err(io::Error::other("the thread panicked")))
            }),
        }
    }
}

/// Holds silent connections from the test's machine.
pub async fn silent(target: Target) {
    hold(target, "silent connection", Origin::Host).await;
}

/// Holds as many from a pod of the first node.
pub async fn silent_from_pod(target: Target) {
    match node_checks::canary(&target).await.and_then(|pod| node_checks::network_of(&pod)) {
        Ok(namespace) => {
            hold(target, "silent connection from a pod", Origin::Pod(namespace)).await;
        }
        Err(error) => target.judge.find(format!("no pod to connect from: {error:#}")),
    }
}

/// Holds silent and half-open connections to each server until the end; those that are closed are opened again, a few at a time. That none could be
/// opened to a server is a finding: nothing was attacked.
async fn hold(target: Target, attack: &'static str, origin: Origin) {
    let servers = servers(&target);
    let mut held: Vec<(SocketAddr, TcpStream)> = Vec::new();
    let mut reached: BTreeSet<SocketAddr> = BTreeSet::new();
    while Instant::now() < target.until {
        for server in &servers {
            let open = held.iter().filter(|(at, _)| at == server).count();
            let sockets = match origin.sockets(BATCH.min(SILENT.saturating_sub(open))) {
                Ok(sockets) => sockets,
                Err(error) => return target.judge.find(format!("{attack}: no socket: {error}")),
            };
            for (number, socket) in sockets.into_iter().enumerate() {
                let opened = timeout(Duration::from_secs(1), socket.connect(*server)).await;
                let Ok(Ok(mut socket)) = opened else {
                    target.judge.count(attack, "refused");
                    break;
                };
                if number % 2 == 1 {
                    let _ = socket.write_all(&HALF_HELLO).await;
                }
                target.judge.count(attack, "open");
                reached.insert(*server);
                held.push((*server, socket));
            }
        }
        held.retain(|(_, socket)| is_open(socket));
        sleep(Duration::from_millis(500)).await;
    }
    for server in servers.iter().filter(|server| !reached.contains(server)) {
        target.judge.find(format!("{attack}: none could be opened to {server}"));
    }
}

/// Whether the server has not closed the connection.
fn is_open(socket: &TcpStream) -> bool {
    let mut bytes = [0; 64];
    match socket.try_read(&mut bytes) {
        Ok(len) => len > 0,
        Err(error) => error.kind() == std::io::ErrorKind::WouldBlock,
    }
}

/// Sends random bytes, plain HTTP and broken TLS to each server until the end.
pub async fn junk(target: Target, seed: u64) {
    let mut random = StdRng::seed_from_u64(seed ^ 0x6a75_6e6b);
    let servers = servers(&target);
    while Instant::now() < target.until {
        for server in &servers {
            let len = random.random_range(0..4000);
            let mut bytes = generate::junk(&mut random, len);
            match random.random_range(0..3) {
                0 => bytes.splice(0..0, HALF_HELLO).for_each(drop),
                1 => bytes.splice(0..0, *b"GET / HTTP/1.1\r\nHost: x\r\n").for_each(drop),
                _ => {}
            }
            let sent = async {
                let mut socket = TcpStream::connect(server).await?;
                socket.write_all(&bytes).await?;
                let mut answer = [0; 512];
                timeout(Duration::from_millis(100), socket.read(&mut answer)).await.unwrap_or(Ok(0))
            };
            let answer = timeout(Duration::from_secs(2), sent).await;
            let answer = match answer {
                Ok(Ok(0)) => "nothing",
                Ok(Ok(_)) => "bytes",
                Ok(Err(_)) => "closed",
                Err(_) => "no answer",
            };
            target.judge.count("junk connection", answer);
        }
        sleep(Duration::from_millis(20)).await;
    }
}
