//! A bearer token that its owner issues and renews while clients use it.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use http::HeaderValue;
use tokio::sync::Notify;

/// A bearer token that can be replaced; clones share it. Requests fail until it is first set.
#[derive(Clone, Default)]
pub struct SharedToken(Arc<Inner>);

#[derive(Default)]
struct Inner {
    header: Mutex<Option<HeaderValue>>,
    refused: Notify,
}

impl SharedToken {
    /// Uses `token` from the next request on. Gives whether a header can hold it; if not, the one before stays.
    pub fn set(&self, token: &str) -> bool {
        let Some(header) = sensitive_header(&format!("Bearer {token}")) else { return false };
        *self.0.header.lock().unwrap_or_else(PoisonError::into_inner) = Some(header);
        true
    }

    /// Returns when the server has answered 401 to the token since the last call; at once if it already has.
    pub async fn refused(&self) {
        self.0.refused.notified().await;
    }

    pub(crate) fn report_refusal(&self) {
        self.0.refused.notify_one();
    }

    pub(crate) fn header(&self) -> Option<HeaderValue> {
        self.0.header.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

// The token stays out of logs.
impl fmt::Debug for SharedToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SharedToken(..)")
    }
}

/// A header that is not shown in traces; `None` for text that a header cannot hold.
pub(crate) fn sensitive_header(text: &str) -> Option<HeaderValue> {
    let mut value = HeaderValue::from_str(text).ok()?;
    value.set_sensitive(true);
    Some(value)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::Client;
    use crate::config::{Identity, Pem};
    use crate::testing::{Authority, PATIENCE, Server, names};

    #[tokio::test]
    async fn requests_carry_the_latest_token_and_a_refusal_wakes_its_owner() {
        let mut server = Server::plain().await;
        let token = SharedToken::default();
        let client = server.client().anonymous().expect("a client").with_token(token.clone());
        let get = |client: &crate::Client| {
            let client = client.clone();
            tokio::spawn(async move { client.call(crate::request::get("/x".into())).await })
        };
        let unset = get(&client).await.expect("ran").expect_err("there is no token");
        assert!(proto_daemon::exit::chain(&unset).contains("no token"), "{unset}");
        for (text, status) in [("one", 200), ("two", 401)] {
            assert!(token.set(text));
            let answer = get(&client);
            let request = server.asked().await;
            assert_eq!(request.headers["authorization"], format!("Bearer {text}"));
            request.reply(status, &json!({}));
            assert_eq!(answer.await.expect("ran").is_ok(), status == 200);
        }
        let refused = tokio::time::timeout(PATIENCE, token.refused()).await;
        refused.expect("the owner is told of the refusal");
        assert!(!token.set("line\nbreak"));
        assert_eq!(token.header().expect("the one before"), "Bearer two");
        assert!(!format!("{token:?}").contains("two"));
    }

    /// A client certificate would take precedence over the token: the API server checks it first.
    #[tokio::test]
    async fn an_anonymous_client_shows_no_certificate() {
        let authority = Authority::new();
        let mut server = Server::start(Some(authority.server_config())).await;
        let mut config = authority.client_config(server.address);
        let own = authority.sign("own");
        let pem = |text: String| Pem::Data(text.into_bytes());
        config.tls.identity =
            Some(Identity { certificate: pem(own.certificate), key: pem(own.key) });
        let own = Client::new(&config, names(), "test/1").expect("valid");
        let token = SharedToken::default();
        assert!(token.set("one"));
        let anonymous = own.anonymous().expect("a client").with_token(token);
        for (client, shows) in [(own, true), (anonymous, false)] {
            let answer =
                tokio::spawn(async move { client.call(crate::request::get("/x".into())).await });
            let request = server.asked().await;
            assert_eq!(request.peer.is_some(), shows);
            assert_eq!(request.headers.contains_key("authorization"), !shows);
            request.reply(200, &json!({}));
            assert!(answer.await.expect("ran").is_ok());
        }
    }
}
