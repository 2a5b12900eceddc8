//! OpenID discovery: with it others verify service account tokens without asking this server for each.

use apiserver_core::auth::PublicKey;
use apiserver_core::config::advertised;
use apiserver_core::server::Server;
use bytes::Bytes;
use http::header::CACHE_CONTROL;
use http::{HeaderValue, Response, Uri};
use serde_json::{Value, json};

use crate::body::{ResponseBody, bytes_response};

/// How long others may keep the answers, as in Kubernetes: a new key is published for so long before it signs.
const KEPT: &str = "public, max-age=3600";

/// The answer to one of the two paths of discovery; none for other paths, and where the issuer is no URL to which discovery could lead.
pub fn answer(server: &Server, segments: &[&str]) -> Option<Response<ResponseBody>> {
    let (media_type, document) = match segments {
        [".well-known", "openid-configuration"] => ("application/json", configuration(server)),
        ["openid", "v1", "jwks"] => ("application/jwk-set+json", key_set(server)),
        _ => return None,
    };
    if !is_discoverable(server.authenticators.tokens.issuer()) {
        return None;
    }
    let mut response = bytes_response(200, media_type, Bytes::from(document.to_string()));
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static(KEPT));
    Some(response)
}

/// Whether an issuer is what OpenID Connect demands: an https URL without a query.
fn is_discoverable(issuer: &str) -> bool {
    let url: Option<Uri> = issuer.parse().ok();
    let is_https = url.as_ref().and_then(Uri::scheme_str) == Some("https");
    is_https && !issuer.contains(['?', '#'])
}

fn key_set(server: &Server) -> Value {
    let keys = server.authenticators.tokens.keys();
    json!({"keys": keys.verifying().iter().map(PublicKey::jwk).collect::<Vec<_>>()})
}

fn configuration(server: &Server) -> Value {
    let tokens = &server.authenticators.tokens;
    let own = || {
        let port = server.config.bind.port();
        let address = std::net::SocketAddr::new(advertised(&server.config), port);
        format!("https://{address}/openid/v1/jwks")
    };
    let keys = tokens.keys();
    let mut algorithms: Vec<&str> =
        keys.verifying().iter().map(|key| key.algorithm().name()).collect();
    algorithms.sort_unstable();
    algorithms.dedup();
    json!({
        "issuer": tokens.issuer(),
        "jwks_uri": server.config.service_accounts.jwks_uri.clone().unwrap_or_else(own),
        "response_types_supported": ["id_token"],
        "subject_types_supported": ["public"],
        "id_token_signing_alg_values_supported": algorithms,
    })
}

#[cfg(test)]
mod tests {
    use super::is_discoverable;

    #[test]
    fn only_a_plain_https_url_is_an_issuer_to_discover() {
        for (issuer, expected) in [
            ("https://kubernetes.default.svc.cluster.local", true),
            ("https://a.example/tenant/1", true),
            ("http://a.example", false),
            ("https://a.example?x=1", false),
            ("https://a.example#x", false),
            ("api", false),
            ("", false),
        ] {
            assert_eq!(is_discoverable(issuer), expected, "{issuer}");
        }
    }
}
