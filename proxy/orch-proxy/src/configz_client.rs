//! Reads the configuration of the running proxy from its `/configz`, for `trace` and `diff`.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

/// Timeout of connecting, and of each read and write.
const PATIENCE: Duration = Duration::from_secs(5);
/// Maximum length of a response.
const ANSWER_LEN_MAX: u64 = 1 << 20;

/// The configuration was not read.
#[derive(Debug, thiserror::Error)]
pub enum ConfigzError {
    /// The connection failed.
    #[error("cannot get /configz from the proxy at {0}")]
    Ask(SocketAddr, #[source] std::io::Error),
    /// The response is not that of a proxy's `/configz`.
    #[error("expected a configuration object at http://{0}/configz")]
    Answer(SocketAddr),
}

/// The configuration of the proxy with this metrics address, without the outer object.
pub fn fetch_config(metrics: SocketAddr) -> Result<String, ConfigzError> {
    let at = reachable(metrics);
    let text = get(at, "/configz").map_err(|error| ConfigzError::Ask(at, error))?;
    let (head, body) = text.split_once("\r\n\r\n").ok_or(ConfigzError::Answer(at))?;
    let is_found = head.split(' ').nth(1) == Some("200");
    let document = serde_json::from_str::<Value>(body).ok().filter(|_| is_found);
    let inner = document.and_then(|document| document.as_object()?.values().next().cloned());
    inner.filter(Value::is_object).map(|inner| inner.to_string()).ok_or(ConfigzError::Answer(at))
}

/// An unspecified address is reached at loopback.
fn reachable(address: SocketAddr) -> SocketAddr {
    let ip: IpAddr = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}

fn get(at: SocketAddr, path: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&at, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let request = format!("GET {path} HTTP/1.1\r\nhost: {at}\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes())?;
    let mut text = String::new();
    stream.take(ANSWER_LEN_MAX).read_to_string(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    fn answered(text: &'static str) -> Result<String, ConfigzError> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                stream.read_exact(&mut byte).unwrap();
                request.extend(byte);
            }
            stream.write_all(text.as_bytes()).unwrap();
            String::from_utf8_lossy(&request).into_owned()
        });
        let answer = fetch_config(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port));
        assert!(server.join().unwrap().starts_with("GET /configz HTTP/1.1\r\n"));
        answer
    }

    #[test]
    fn a_document_is_taken_and_nothing_else() {
        let body = answered("HTTP/1.1 200 OK\r\n\r\n{\"group\": {\"kind\": \"K\"}}");
        assert_eq!(body.unwrap(), "{\"kind\":\"K\"}");
        for text in [
            "HTTP/1.1 404 Not Found\r\n\r\n{\"group\": {}}",
            "HTTP/1.1 200 OK\r\n\r\n{\"group\": 1}",
            "HTTP/1.1 200 OK\r\n\r\nhello",
            "HTTP/1.1 200 OK\r\n\r\n{}",
            "",
        ] {
            assert!(matches!(answered(text), Err(ConfigzError::Answer(_))), "{text}");
        }
    }
}
