//! Connections that send nothing, too little or garbage, to the API server and to the node's endpoint.

use std::net::SocketAddr;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng as _};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout};

use crate::{Target, generate};

/// Silent connections that are held to each server.
const SILENT: usize = 1000;
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

/// Holds silent and half-open connections to each server until the end; those that are closed are opened again, a few at a time.
pub async fn silent(target: Target) {
    let servers = servers(&target);
    let mut held: Vec<(SocketAddr, TcpStream)> = Vec::new();
    while Instant::now() < target.until {
        for server in &servers {
            let open = held.iter().filter(|(at, _)| at == server).count();
            for number in open..SILENT.min(open + 100) {
                let Ok(Ok(mut socket)) =
                    timeout(Duration::from_secs(1), TcpStream::connect(server)).await
                else {
                    target.judge.count("silent connection", "refused");
                    break;
                };
                if number % 2 == 1 {
                    let _ = socket.write_all(&HALF_HELLO).await;
                }
                target.judge.count("silent connection", "open");
                held.push((*server, socket));
            }
        }
        held.retain(|(_, socket)| is_open(socket));
        sleep(Duration::from_millis(500)).await;
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
