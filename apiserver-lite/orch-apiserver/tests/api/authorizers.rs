//! Authorization by each module and by several in order, of users with static tokens and with ID tokens, compared with the answers of Kubernetes' own server
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

async fn server(world: &World, modes: &[AuthorizationMode]) -> TestServer {
    let webhook = AuthorizationWebhookSettings {
        config_file: world.file("webhook.conf"),
        version: ReviewVersion::V1,
        authorized_ttl: Duration::from_secs(300),
        unauthorized_ttl: Duration::from_secs(30),
    };
    let has = |wanted| modes.contains(&wanted);
    // Where everything is allowed, the flags of both servers let anonymous clients see health only.
    let anonymous = match has(AuthorizationMode::AlwaysAllow) {
        true => Anonymous::HealthOnly,
        false => Anonymous::Served(AnonymousAccess::Authorized),
    };
    TestServer::with(Config {
        anonymous,
        token_auth_file: Some(world.file("tokens.csv")),
        oidc: Some(oidc_settings(world)),
        policy_file: has(AuthorizationMode::Abac).then(|| world.file("policies.jsonl")),
        authorization_webhook: has(AuthorizationMode::Webhook).then_some(webhook),
        authorization: modes.to_vec(),
        ..Config::for_tests(kubernetes())
    })
    .await
}

/// Compares the answers of a server with these modules to the rows of a table.
async fn compare_with(modes: &[AuthorizationMode], table: &str) {
    let world = World::start().await;
    let server = server(&world, modes).await;
    compare(&server, &with_own_answers(table), |who| world.bearer(who)).await;
}

/// A table with this server's answers in the place of the recorded ones where both are written down, with the reason: code, message, why.
fn with_own_answers(table: &str) -> String {
    let own = |row: &str| match row.split('\t').collect::<Vec<_>>()[..] {
        [who, method, path, body, code, answer, own_code, own_answer, why] => {
            assert!((code, answer) != (own_code, own_answer) && !why.is_empty(), "{row}");
            format!("{who}\t{method}\t{path}\t{body}\t{own_code}\t{own_answer}\n")
        }
        _ => format!("{row}\n"),
    };
    table.lines().map(own).collect()
}

#[tokio::test]
async fn every_request_is_decided_by_policies_as_by_kubernetes() {
    compare_with(&[AuthorizationMode::Abac], include_str!("authorizers/abac.tsv")).await;
}

#[tokio::test]
async fn every_request_is_decided_by_a_webhook_as_by_kubernetes() {
    compare_with(&[AuthorizationMode::Webhook], include_str!("authorizers/webhook.tsv")).await;
}

#[tokio::test]
async fn every_request_is_allowed_or_denied_as_by_kubernetes() {
    let (allow, deny) = (AuthorizationMode::AlwaysAllow, AuthorizationMode::AlwaysDeny);
    compare_with(&[allow], include_str!("authorizers/always-allow.tsv")).await;
    compare_with(&[deny], include_str!("authorizers/always-deny.tsv")).await;
}

/// Kubelets, one without a Node, one that is an administrator too, and users that have a kubelet's name or its group only; by the modules for nodes and without
/// them. What a kubelet may write is decided by admission as well, whatever the modules say.
#[tokio::test]
async fn every_request_of_a_kubelet_or_half_a_kubelet_is_decided_as_by_kubernetes() {
    let (node, rbac) = (AuthorizationMode::Node, AuthorizationMode::Rbac);
    compare_with(&[node, rbac], include_str!("authorizers/node-rbac.tsv")).await;
    compare_with(&[rbac, node], include_str!("authorizers/rbac-node.tsv")).await;
    compare_with(&[rbac], include_str!("authorizers/node-as-roles.tsv")).await;
    let allow = AuthorizationMode::AlwaysAllow;
    compare_with(&[allow], include_str!("authorizers/node-always-allow.tsv")).await;
}

/// Where the first module has no opinion, the second decides; a denial is final; the message has the reasons of both.
#[tokio::test]
async fn every_request_is_decided_by_modules_in_their_order_as_by_kubernetes() {
    let rbac = AuthorizationMode::Rbac;
    let policies = [AuthorizationMode::Abac, rbac];
    compare_with(&policies, include_str!("authorizers/abac-rbac.tsv")).await;
    let webhook = [AuthorizationMode::Webhook, rbac];
    compare_with(&webhook, include_str!("authorizers/webhook-rbac.tsv")).await;
}
