//! Upgraded connections: after both sides have switched protocols, bytes are copied in both directions.

use http::header::{CONNECTION, UPGRADE};
use http::{HeaderMap, HeaderName};
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;

/// Buffer size per direction.
const BUFFER_LEN: usize = 16 << 10;

/// Hop-by-hop headers (RFC 9110 section 7.6.1), which are not forwarded. The headers that `Connection` names are hop-by-hop
/// too.
const HOP_BY_HOP: [&str; 10] = [
    "connection",
    "http2-settings",
    "keep-alive",
    "proxy-connection",
    "proxy-authenticate",
    "proxy-authorization",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// Whether the request is an upgrade.
#[must_use]
pub fn is_requested(headers: &HeaderMap) -> bool {
    requested_protocol(headers).is_some()
}

/// The first protocol that the request asks for. `h2c` does not count: the server may ignore it (RFC 9113 section 3.1 removed it) and
/// answers over HTTP/1.1.
#[must_use]
pub fn requested_protocol(headers: &HeaderMap) -> Option<&str> {
    let tokens = headers.get_all(CONNECTION).iter().filter_map(|value| value.to_str().ok());
    let wanted = headers.get_all(UPGRADE).iter().filter_map(|value| value.to_str().ok());
    let mut wanted = wanted.flat_map(|value| value.split(',')).map(str::trim);
    let protocol =
        wanted.find(|protocol| !protocol.is_empty() && !protocol.eq_ignore_ascii_case("h2c"))?;
    let mut tokens = tokens.flat_map(|value| value.split(','));
    tokens.any(|token| token.trim().eq_ignore_ascii_case("upgrade")).then_some(protocol)
}

/// Copies the end-to-end headers.
#[must_use]
pub fn end_to_end(headers: &HeaderMap) -> HeaderMap {
    let named: Vec<String> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(|token| token.trim().to_ascii_lowercase())
        .collect();
    let stays = |name: &HeaderName| {
        HOP_BY_HOP.contains(&name.as_str()) || named.iter().any(|other| other == name.as_str())
    };
    let mut out = HeaderMap::with_capacity(headers.len());
    for (name, value) in headers.iter().filter(|(name, _)| !stays(name)) {
        out.append(name.clone(), value.clone());
    }
    out
}

/// Waits until both ends have switched protocols, then copies bytes until both directions have ended or one fails.
pub async fn splice(client: OnUpgrade, node: OnUpgrade) {
    let (client, node) = match tokio::try_join!(client, node) {
        Ok(both) => both,
        Err(error) => {
            tracing::debug!(%error, "one side did not complete the protocol upgrade; the connection is closed");
            return;
        }
    };
    match pass(client, node).await {
        Ok((up, down)) => {
            tracing::debug!(bytes_up = up, bytes_down = down, "an upgraded connection ended")
        }
        Err(error) => tracing::debug!(%error, "an upgraded connection ended with an error"),
    }
}

async fn pass(client: Upgraded, node: Upgraded) -> std::io::Result<(u64, u64)> {
    let (mut client, mut node) = (TokioIo::new(client), TokioIo::new(node));
    tokio::io::copy_bidirectional_with_sizes(&mut client, &mut node, BUFFER_LEN, BUFFER_LEN).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    #[test]
    fn connection_headers_stay_behind() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("connection", "Upgrade, X-Own"),
            ("upgrade", "SPDY/3.1"),
            ("x-own", "1"),
            ("x-other", "2"),
        ] {
            headers.append(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        assert!(is_requested(&headers));
        let passed = end_to_end(&headers);
        assert!(passed.contains_key("x-other"));
        assert!(
            !passed.contains_key("x-own")
                && !passed.contains_key("connection")
                && !passed.contains_key("upgrade")
        );
    }

    #[test]
    fn upgrade_needs_both_headers() {
        let mut headers = HeaderMap::new();
        headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
        assert!(!is_requested(&headers));
        headers.insert(CONNECTION, HeaderValue::from_static("keep-alive, upgrade"));
        assert!(is_requested(&headers));
        headers.insert(UPGRADE, HeaderValue::from_static("h2c"));
        assert!(!is_requested(&headers), "answered over HTTP/1.1");
        headers.append(UPGRADE, HeaderValue::from_static("SPDY/3.1, websocket"));
        assert_eq!(requested_protocol(&headers), Some("SPDY/3.1"), "what is passed on");
    }
}
