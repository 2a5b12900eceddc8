//! `proxy`: requests of programs without credentials reach the API server, and those that the rules reject do not.

use std::process::Stdio;
use std::time::Duration;

use tokio::io::{
    AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, BufReader,
};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::process::Child;

use crate::server::Server;

/// A running proxy.
struct Proxy {
    address: String,
    child: Child,
}

impl Proxy {
    async fn start(server: &Server, arguments: &[&str]) -> Self {
        let mut child = server
            .command()
            .arg("proxy")
            .args(arguments)
            .stdout(Stdio::piped())
            .spawn()
            .expect("started");
        let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let line = lines.next_line().await.expect("readable").expect("a line");
        let address = line.strip_prefix("Starting to serve on ").expect(&line).to_owned();
        Self { address, child }
    }

    /// Kills it; it has ended then.
    async fn end(mut self) {
        self.child.kill().await.expect("killed");
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect(&self.address).await.expect("connected")
    }

    /// Sends a request of its own connection and returns the whole answer.
    async fn ask(&self, head: &str, body: &str) -> String {
        exchange(self.connect().await, head, body).await
    }

    async fn status(&self, head: &str) -> String {
        let answer = self.ask(head, "").await;
        answer.lines().next().unwrap_or_default().to_owned()
    }
}

async fn exchange(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    head: &str,
    body: &str,
) -> String {
    let host = if head.contains("Host: ") { "" } else { "Host: localhost\r\n" };
    let len = body.len();
    let request =
        format!("{head}\r\n{host}Connection: close\r\nContent-Length: {len}\r\n\r\n{body}");
    stream.write_all(request.as_bytes()).await.expect("sent");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.expect("answered");
    String::from_utf8_lossy(&answer).into_owned()
}

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

fn map(name: &str) -> String {
    format!(
        "{{\"apiVersion\": \"v1\", \"kind\": \"ConfigMap\", \"metadata\": {{\"name\": \"{name}\"}}}}"
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_are_passed_on_as_the_user() {
    let server = Server::start().await;
    let proxy = Proxy::start(&server, &["--port=0"]).await;
    assert!(proxy.address.starts_with("127.0.0.1:"), "{}", proxy.address);
    let post = format!("POST {MAPS} HTTP/1.1\r\nContent-Type: application/json");
    let answer = proxy.ask(&post, &map("a")).await;
    assert!(answer.starts_with("HTTP/1.1 201 Created\r\n"), "{answer}");
    // Credentials of the caller do not count, and an error is the server's own.
    let asked = format!("GET {MAPS}/b HTTP/1.1\r\nAuthorization: Bearer nonsense");
    let answer = proxy.ask(&asked, "").await;
    assert!(answer.starts_with("HTTP/1.1 404 Not Found\r\n"), "{answer}");
    assert!(answer.contains("configmaps \\\"b\\\" not found"), "{answer}");
    let answer = proxy.ask(&format!("GET {MAPS}?labelSelector=none HTTP/1.1"), "").await;
    assert!(answer.contains("\"items\":[]"), "the query counts: {answer}");

    // An answer that does not end arrives as it comes.
    let mut watch = proxy.connect().await;
    let request = format!("GET {MAPS}?watch=1 HTTP/1.1\r\nHost: localhost\r\n\r\n");
    watch.write_all(request.as_bytes()).await.expect("sent");
    let mut watched = BufReader::new(watch).lines();
    proxy.ask(&post, &map("late")).await;
    while let Some(line) = watched.next_line().await.expect("readable") {
        if line.contains("\"ADDED\"") && line.contains("\"late\"") {
            return;
        }
    }
    panic!("the watch has ended");
}

#[tokio::test(flavor = "multi_thread")]
async fn rules_are_kept() {
    let server = Server::start().await;
    let proxy =
        Proxy::start(&server, &["-p", "0", "--reject-methods=DELETE", "--api-prefix=/k8s/"]).await;
    for (head, wanted) in [
        ("GET /k8s/version HTTP/1.1", "200 OK"),
        ("GET /version HTTP/1.1", "404 Not Found"),
        ("GET /k8s/version HTTP/1.1\r\nHost: evil.example", "403 Forbidden"),
        ("GET http://evil.example/k8s/version HTTP/1.1\r\nHost: localhost", "403 Forbidden"),
        ("DELETE /k8s/api/v1/namespaces/default/configmaps HTTP/1.1", "403 Forbidden"),
        ("POST /k8s/api/v1/namespaces/a/pods/b/exec HTTP/1.1", "403 Forbidden"),
        ("POST /k8s/api/v1/namespaces/a/pods/b/%65xec HTTP/1.1", "403 Forbidden"),
    ] {
        assert_eq!(proxy.status(head).await, format!("HTTP/1.1 {wanted}"), "{head}");
    }
    for (arguments, reason) in [
        (&["--www=/tmp"][..], "--www is refused: "),
        (&["--address=0.0.0.0"], "--address 0.0.0.0 is refused: "),
        (&["--accept-hosts=("], "--accept-hosts: "),
    ] {
        let answer = server.ask(&[&["proxy"], arguments].concat()).await;
        assert_eq!(answer.code, Some(1), "{arguments:?}: {}", answer.out);
        assert!(answer.err.contains(reason), "{arguments:?}: {}", answer.err);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sockets_are_the_users_own() {
    use std::os::unix::fs::PermissionsExt as _;
    let server = Server::start().await;
    let path = server.path().join("proxy.sock");
    let flag = format!("--unix-socket={}", path.display());
    for _ in 0..2 {
        // The second replaces what the first left behind.
        let proxy = Proxy::start(&server, &[&flag]).await;
        assert_eq!(proxy.address, path.display().to_string());
        let mode = std::fs::metadata(&path).expect("a socket").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let stream = UnixStream::connect(&path).await.expect("connected");
        let answer = exchange(stream, "GET /version HTTP/1.1", "").await;
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        proxy.end().await;
    }
    let file = server.path().join("config");
    let answer = server.ask(&["proxy", &format!("-u={}", file.display())]).await;
    assert_eq!(answer.code, Some(1), "{}", answer.out);
    assert!(file.is_file(), "what is no socket stays");
}

/// A server that switches to any protocol, and returns what it is sent then.
async fn echo(listener: TcpListener) {
    let (mut stream, _) = listener.accept().await.expect("a connection");
    let head = read_until(&mut stream, b"\r\n\r\n").await.to_lowercase();
    let switches =
        head.contains("\r\nupgrade: mine/1\r\n") && head.contains("\r\nconnection: upgrade\r\n");
    let status = if switches { "101 Switching Protocols" } else { "400 Bad Request" };
    let answer = format!("HTTP/1.1 {status}\r\nConnection: Upgrade\r\nUpgrade: mine/1\r\n\r\n");
    stream.write_all(answer.as_bytes()).await.expect("sent");
    let (mut read, mut write) = stream.split();
    tokio::io::copy(&mut read, &mut write).await.expect("copied");
    write.shutdown().await.expect("closed");
}

#[tokio::test(flavor = "multi_thread")]
async fn switches_of_protocols_are_passed_on() {
    let server = Server::start().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("--server=http://{}", listener.local_addr().expect("bound"));
    let echoing = tokio::spawn(echo(listener));
    let proxy = Proxy::start(&server, &["--port=0", &url]).await;
    let mut stream = proxy.connect().await;
    let head =
        "GET /x HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: mine/1\r\n\r\n";
    stream.write_all(head.as_bytes()).await.expect("sent");
    let answer = read_until(&mut stream, b"\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 101 Switching Protocols\r\n"), "{answer}");
    assert!(answer.to_lowercase().contains("\r\nupgrade: mine/1\r\n"), "{answer}");
    stream.write_all(b"to and fro").await.expect("sent");
    stream.shutdown().await.expect("closed");
    let mut back = String::new();
    stream.read_to_string(&mut back).await.expect("returned");
    assert_eq!(back, "to and fro");
    echoing.await.expect("ended");
}

/// How long a piece may take that has to come.
const PATIENCE: Duration = Duration::from_secs(60);

/// Reads until what was read ends so.
async fn read_until(stream: &mut TcpStream, end: &[u8]) -> String {
    let mut text = Vec::new();
    while !text.ends_with(end) {
        let byte = tokio::time::timeout(PATIENCE, stream.read_u8()).await;
        text.push(byte.expect("a piece comes").expect("more"));
    }
    String::from_utf8_lossy(&text).into_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_are_passed_on_as_they_come() {
    let server = Server::start().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("--server=http://{}", listener.local_addr().expect("bound"));
    let proxy = Proxy::start(&server, &["--port=0", &url]).await;
    let mut client = proxy.connect().await;
    let head = "POST /x HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n";
    client.write_all(format!("{head}3\r\none\r\n").as_bytes()).await.expect("sent");
    let (mut upstream, _) = listener.accept().await.expect("a connection");
    // The first piece is there before the second is sent, in both directions.
    read_until(&mut upstream, b"3\r\none\r\n").await;
    let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    upstream.write_all(format!("{head}3\r\ntwo\r\n").as_bytes()).await.expect("sent");
    let answer = read_until(&mut client, b"3\r\ntwo\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    client.write_all(b"5\r\nthree\r\n0\r\n\r\n").await.expect("sent");
    read_until(&mut upstream, b"5\r\nthree\r\n0\r\n\r\n").await;
    upstream.write_all(b"4\r\nfour\r\n0\r\n\r\n").await.expect("sent");
    read_until(&mut client, b"4\r\nfour\r\n0\r\n\r\n").await;
}
