//! Authorization by ABAC and by a webhook, of users with static tokens and with ID tokens, compared with the answers of Kubernetes' own server
//! (`hack/record-authorizers` has recorded them).

mod fixture;

use std::time::Duration;

use apiserver_auth::{AuthorizationWebhookSettings, OidcSettings, ReviewVersion};
use orch_apiserver::Config;
use orch_apiserver::config::{Anonymous, AnonymousAccess, AuthorizationMode};

use crate::rbac::compare;
use crate::support::{TestServer, kubernetes};
use fixture::CLIENT;
pub use fixture::World;

/// The identity provider of a world.
pub fn oidc_settings(world: &World) -> OidcSettings {
    OidcSettings {
        issuer_url: world.issuer.clone(),
        client_id: CLIENT.to_owned(),
        username_claim: "sub".to_owned(),
        username_prefix: Some("oidc:".to_owned()),
        groups_claim: Some("groups".to_owned()),
        groups_prefix: "oidc:".to_owned(),
        required_claims: Vec::new(),
        ca_file: Some(world.file("oidc.crt")),
        signing_algs: vec!["RS256".to_owned()],
    }
}

async fn server(world: &World, mode: AuthorizationMode) -> TestServer {
    let webhook = AuthorizationWebhookSettings {
        config_file: world.file("webhook.conf"),
        version: ReviewVersion::V1,
        authorized_ttl: Duration::from_secs(300),
        unauthorized_ttl: Duration::from_secs(30),
    };
    let is = |wanted| mode == wanted;
    TestServer::with(Config {
        anonymous: Anonymous::Served(AnonymousAccess::Authorized),
        token_auth_file: Some(world.file("tokens.csv")),
        oidc: Some(oidc_settings(world)),
        policy_file: is(AuthorizationMode::Abac).then(|| world.file("policies.jsonl")),
        authorization_webhook: is(AuthorizationMode::Webhook).then_some(webhook),
        authorization: vec![mode],
        ..Config::for_tests(kubernetes())
    })
    .await
}

#[tokio::test]
async fn every_request_is_decided_by_policies_as_by_kubernetes() {
    let world = World::start().await;
    let server = server(&world, AuthorizationMode::Abac).await;
    compare(&server, include_str!("authorizers/abac.tsv"), |who| world.bearer(who)).await;
}

#[tokio::test]
async fn every_request_is_decided_by_a_webhook_as_by_kubernetes() {
    let world = World::start().await;
    let server = server(&world, AuthorizationMode::Webhook).await;
    compare(&server, include_str!("authorizers/webhook.tsv"), |who| world.bearer(who)).await;
}
