//! Bearer tokens of WebSocket clients: a page can set no header of such a request but the names of subprotocols, and so one of these is the token.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::header::SEC_WEBSOCKET_PROTOCOL;
use http::{HeaderMap, HeaderValue};

/// Begins the name of such a subprotocol: the domain of the naming profile, a dot, and the token in base64 follow.
const PREFIX: &str = "base64url.bearer.authorization.";

/// Whether the client names a token: then it is the user of the token, whatever certificate its browser has added.
#[must_use]
pub fn has_websocket_token(headers: &HeaderMap) -> bool {
    named(headers).next().is_some()
}

/// The token that the client names; `None` if it names several, or one that is not encoded so.
pub(super) fn websocket_token(headers: &HeaderMap) -> Option<String> {
    let mut named = named(headers);
    let (Some(of_domain), None) = (named.next(), named.next()) else { return None };
    let (_, encoded) = of_domain.rsplit_once('.')?;
    let token = String::from_utf8(URL_SAFE_NO_PAD.decode(encoded).ok()?).ok()?;
    (!token.is_empty()).then_some(token)
}

/// Removes the tokens from the subprotocols that are passed on: they are meant for this server only.
pub fn remove_websocket_tokens(headers: &mut HeaderMap) {
    if !has_websocket_token(headers) {
        return;
    }
    let others = protocols(headers).filter(|protocol| !protocol.starts_with(PREFIX));
    let others = others.collect::<Vec<_>>().join(", ");
    headers.remove(SEC_WEBSOCKET_PROTOCOL);
    if let (false, Ok(others)) = (others.is_empty(), HeaderValue::from_str(&others)) {
        headers.insert(SEC_WEBSOCKET_PROTOCOL, others);
    }
}

fn named(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    protocols(headers).filter_map(|protocol| protocol.strip_prefix(PREFIX))
}

fn protocols(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let lines = headers.get_all(SEC_WEBSOCKET_PROTOCOL).iter();
    lines.filter_map(|line| line.to_str().ok()).flat_map(|line| line.split(',')).map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offering(lines: &[&'static str]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append(SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(line));
        }
        headers
    }

    #[test]
    fn one_token_is_named_in_base64() {
        let token = |lines: &[&'static str]| websocket_token(&offering(lines));
        // `a.b`, and nothing.
        let (own, none) = (
            "base64url.bearer.authorization.k8s.io.YS5i",
            "base64url.bearer.authorization.k8s.io.",
        );
        assert_eq!(token(&[own]).as_deref(), Some("a.b"));
        assert_eq!(token(&["v4.channel.k8s.io", own]).as_deref(), Some("a.b"));
        assert_eq!(token(&["v4.channel.k8s.io"]), None);
        for wrong in [
            &[own, own][..],
            &[none],
            &["base64url.bearer.authorization.k8s.io.YS5i="],
            &["base64url.bearer.authorization.k8s.io._w"],
            &["base64url.bearer.authorization.YS5i"],
        ] {
            assert_eq!(token(wrong), None, "{wrong:?}");
            assert!(has_websocket_token(&offering(wrong)), "the certificate does not count");
        }
        assert!(!has_websocket_token(&offering(&["v4.channel.k8s.io"])));
    }

    #[test]
    fn tokens_are_not_passed_on() {
        let left = |lines: &[&'static str]| {
            let mut headers = offering(lines);
            remove_websocket_tokens(&mut headers);
            let lines = headers.get_all(SEC_WEBSOCKET_PROTOCOL).iter();
            lines.map(|line| line.to_str().unwrap().to_owned()).collect::<Vec<_>>()
        };
        let token = "base64url.bearer.authorization.k8s.io.YS5i";
        assert_eq!(left(&["a, b", "c"]), ["a, b", "c"]);
        assert_eq!(left(&["a, base64url.bearer.authorization.k8s.io.YS5i", "b"]), ["a, b"]);
        assert!(left(&[token, token]).is_empty());
    }
}
