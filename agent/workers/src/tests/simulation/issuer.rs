//! The API server's tokens: issued by its own clock, which nobody sets.

use std::time::Duration;

use agent_clock as clock;
use agent_node_volumes::volumes::Issuer;
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use proto_api::Time;
use proto_api::authentication::v1::TokenRequest;
use proto_client::ClientError;

use super::world::{SECRET, Shared, lock, passes_in};

/// Asked by one process of the agent.
pub struct SimIssuer {
    pub world: Shared,
    pub incarnation: u64,
}

impl Issuer for SimIssuer {
    fn issue<'a>(
        &'a self,
        _: &'a str,
        _: &'a str,
        request: &'a TokenRequest,
    ) -> BoxFuture<'a, Result<TokenRequest, ClientError>> {
        async move {
            let (pause, fails, lost) = {
                let mut world = lock(&self.world);
                let away = world.api.away;
                (world.chance.pause(), world.fault(15) || away, world.fault(30))
            };
            passes_in(&self.world, self.incarnation, pause).await;
            if fails {
                return Err(lost_request());
            }
            let issued = issued(request);
            let pause = Duration::from_millis(lock(&self.world).chance.below(10));
            passes_in(&self.world, self.incarnation, pause).await;
            match lost {
                true => Err(lost_request()),
                false => Ok(issued),
            }
        }
        .boxed()
    }
}

fn lost_request() -> ClientError {
    ClientError::Deadline { request: "POST token".to_owned(), deadline: Duration::ZERO }
}

/// The token says whom it is for and how long; its signature is what nobody may find anywhere else.
fn issued(request: &TokenRequest) -> TokenRequest {
    let issued_at = clock::server_unix();
    let expires_at = issued_at + request.spec.expiration_seconds.unwrap_or(3600);
    let uid = request.spec.bound_object_ref.as_ref().map(|bound| bound.uid.clone());
    let claims = serde_json::json!({ "iat": issued_at, "exp": expires_at, "uid": uid });
    let claims = BASE64_URL_SAFE_NO_PAD.encode(claims.to_string());
    let mut answer = request.clone();
    answer.status.token = format!("e30.{claims}.{SECRET}");
    answer.status.expiration_timestamp = Time::from_unix(expires_at);
    answer
}
