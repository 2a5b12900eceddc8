//! A proxy that passes on what it is asked for, and keeps the heads of the requests that it gets itself.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};

/// A running proxy, until the runtime of the test ends. Every name is this host for it.
#[derive(Debug)]
pub struct StubProxy {
    pub address: SocketAddr,
    heads: Arc<Mutex<Vec<String>>>,
}

impl StubProxy {
    /// Serves on loopback; with a refusal, as `407 Proxy Authentication Required`, it passes nothing on.
    ///
    /// # Panics
    /// No port is free.
    pub async fn start(refusal: Option<&'static str>) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a free port");
        let address = listener.local_addr().expect("bound");
        let heads = Arc::new(Mutex::new(Vec::new()));
        let kept = heads.clone();
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let kept = kept.clone();
                let keep = move |head| {
                    kept.lock().unwrap_or_else(PoisonError::into_inner).push(head);
                };
                tokio::spawn(serve(socket, refusal, keep));
            }
        });
        Self { address, heads }
    }

    /// The heads of the first requests of its connections, in their order.
    #[must_use]
    pub fn heads(&self) -> Vec<String> {
        self.heads.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

async fn serve(
    mut socket: TcpStream,
    refusal: Option<&str>,
    keep: impl FnOnce(String),
) -> std::io::Result<()> {
    let mut first = [0];
    socket.peek(&mut first).await?;
    if first == [5] {
        return serve_socks(socket, keep).await;
    }
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(socket.read_u8().await?);
    }
    let text = String::from_utf8_lossy(&head).into_owned();
    keep(text.clone());
    if let Some(refusal) = refusal {
        let answer = format!("HTTP/1.1 {refusal}\r\ncontent-length: 0\r\n\r\n");
        return socket.write_all(answer.as_bytes()).await;
    }
    let target = text.split(' ').nth(1).unwrap_or_default();
    let authority = target.strip_prefix("http://").unwrap_or(target).split('/').next();
    let port = authority.and_then(|authority| authority.rsplit(':').next()?.parse::<u16>().ok());
    let mut server = TcpStream::connect((Ipv4Addr::LOCALHOST, port.unwrap_or_default())).await?;
    match text.starts_with("CONNECT ") {
        true => socket.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await?,
        false => server.write_all(&head).await?,
    }
    copy_bidirectional(&mut socket, &mut server).await.map(drop)
}

/// Serves a connection of SOCKS 5 for a name of less than 256 bytes; wants a user if one may be sent. The head is `SOCKS NAME:PORT` and the user.
async fn serve_socks(mut socket: TcpStream, keep: impl FnOnce(String)) -> std::io::Result<()> {
    socket.read_u8().await?;
    let methods = read_text(&mut socket).await?;
    let mut user = String::new();
    if methods.contains(2 as char) {
        socket.write_all(&[5, 2]).await?;
        socket.read_u8().await?;
        let name = read_text(&mut socket).await?;
        user = format!(" {name}:{}", read_text(&mut socket).await?);
        socket.write_all(&[1, 0]).await?;
    } else {
        socket.write_all(&[5, 0]).await?;
    }
    socket.read_u32().await?; // version, command, reserved, type
    let name = read_text(&mut socket).await?;
    let port = socket.read_u16().await?;
    keep(format!("SOCKS {name}:{port}{user}"));
    let mut server = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
    socket.write_all(&[5, 0, 0, 1, 127, 0, 0, 1, 0, 0]).await?;
    copy_bidirectional(&mut socket, &mut server).await.map(drop)
}

/// A text after a byte with its length.
async fn read_text(socket: &mut TcpStream) -> std::io::Result<String> {
    let mut text = vec![0; usize::from(socket.read_u8().await?)];
    socket.read_exact(&mut text).await?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}
