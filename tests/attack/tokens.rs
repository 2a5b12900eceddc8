//! Bearer tokens that are damaged, forged or no tokens at all, from a client without a certificate: in the header, and as the subprotocol of a WebSocket.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use http::request::Builder;
use http::{HeaderValue, Request};
use proto_client::{Client, ClientError};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use tokio::time::{Instant, sleep, timeout};

use crate::{NAMESPACE, Target, generate, manifests, requests};

/// A request that takes longer is given up.
const PATIENCE: Duration = Duration::from_secs(10);
/// Between two requests.
const PAUSE: Duration = Duration::from_millis(5);
/// What a WebSocket's subprotocol with a token begins with.
const SUBPROTOCOL: &str = "base64url.bearer.authorization.k8s.io.";

/// Sends such tokens until the end. One that is accepted is a finding.
pub async fn forged(target: Target, seed: u64) {
    let known = match manifests::service_account_token(&target.client, "forged").await {
        Ok(token) => token,
        Err(error) => return target.judge.find(format!("no token to damage: {error:#}")),
    };
    let client = match target.client.anonymous() {
        Ok(client) => client,
        Err(error) => {
            return target.judge.find(format!("no client without a certificate: {error}"));
        }
    };
    let mut random = StdRng::seed_from_u64(seed ^ 0x746f_6b65);
    while Instant::now() < target.until {
        let (what, token) = generate::token(&mut random, &known);
        let answer = match random.random_range(0..5) {
            0 => open_websocket(&client, &token).await,
            _ => list(&client, &token).await,
        };
        if token != known && is_accepted(&answer) {
            target.judge.find(format!("{what}: answered {answer}: {token:.300}"));
        }
        target.judge.count(what, answer);
        sleep(PAUSE).await;
    }
}

/// The answer where the server knows the user and permits nothing.
const KNOWN: &str = "403 to a user";

fn is_accepted(answer: &str) -> bool {
    answer.starts_with('2') || answer == "101" || answer == KNOWN
}

async fn list(client: &Client, token: &str) -> String {
    let path = format!("/api/v1/namespaces/{NAMESPACE}/configmaps?limit=1");
    let Ok(header) = HeaderValue::from_bytes(format!("Bearer {token}").as_bytes()) else {
        return "not a header".to_owned();
    };
    let Ok(request) = Request::get(path).header("authorization", header).body(Bytes::new()) else {
        return "not a request".to_owned();
    };
    match timeout(PATIENCE, client.call(request)).await {
        Ok(Ok(answer)) => answer.status.to_string(),
        Ok(Err(error)) => describe(&error),
        Err(_) => "no answer".to_owned(),
    }
}

/// The handshake of a watch over WebSocket, whose subprotocols name the token.
fn handshake(token: &str) -> Builder {
    let path = format!("/api/v1/namespaces/{NAMESPACE}/configmaps?watch=1&timeoutSeconds=1");
    let token = URL_SAFE_NO_PAD.encode(token);
    requests::websocket(&path, &format!("{SUBPROTOCOL}{token}, v4.channel.k8s.io"))
}

async fn open_websocket(client: &Client, token: &str) -> String {
    let Ok(request) = handshake(token).body(Bytes::new()) else {
        return "not a request".to_owned();
    };
    match timeout(PATIENCE, client.upgrade(request)).await {
        Ok(Ok(_)) => "101".to_owned(),
        Ok(Err(error)) => describe(&error),
        Err(_) => "no answer".to_owned(),
    }
}

fn describe(error: &ClientError) -> String {
    match error.code() {
        // A text that is no token at all makes an anonymous request.
        Some(403) if !error.to_string().contains("system:anonymous") => KNOWN.to_owned(),
        Some(code) => code.to_string(),
        None => "broken".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_success_is_acceptance() {
        assert!(is_accepted("200") && is_accepted("101") && is_accepted(KNOWN));
        assert!(!is_accepted("401") && !is_accepted("403") && !is_accepted("broken"));
        let request = handshake("a.b").body(()).expect("a request");
        let named = request.headers()["sec-websocket-protocol"].to_str().expect("text");
        assert_eq!(named, "base64url.bearer.authorization.k8s.io.YS5i, v4.channel.k8s.io");
    }
}
