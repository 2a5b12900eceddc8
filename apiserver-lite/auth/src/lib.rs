//! io: who sends a request and what they may do, as far as that needs no stored object: users, authenticators, authorization modules. What is decided from the
//! store (service account and bootstrap tokens, the modules `Node` and `RBAC`) is in `apiserver-core`.
//!
//! - [`User`]; [`ClientCertificate`], [`StaticTokens`], [`RequestHeaders`], [`Oidc`] and [`TokenWebhook`] find one.
//! - [`Attributes`] of a request, [`Authorizer`] and the [`Chain`] of modules; [`Abac`] and [`AuthorizationWebhook`] are two of them.

#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

mod abac;
mod authorization;
mod authorization_webhook;
mod certificate;
mod chain;
mod expiring_cache;
mod extra_headers;
mod fair_queue;
mod limits;
mod oidc;
mod request_headers;
mod single_flight;
mod static_tokens;
mod token_keys;
mod token_webhook;
mod user;
mod webhook;

pub use abac::{Abac, AbacError};
pub use authorization::{
    AccessTarget, AlwaysAllow, AlwaysDeny, Attributes, Authorization, Authorizer, Decision,
    Masters, UserRules,
};
pub use authorization_webhook::{
    AuthorizationWebhook, AuthorizationWebhookSettings, read_access_review,
};
pub use certificate::{CertificateError, ClientCertificate};
pub use chain::{Chain, Module};
pub use extra_headers::read_extra;
pub use fair_queue::{FairQueue, Full};
pub use limits::{AnonymousLimit, NODE_USER_PREFIX, NodeLimit, is_health, is_node};
pub use oidc::{Oidc, OidcError, OidcSettings, unverified_issuer, user_of_claims};
pub use request_headers::{RequestHeaderSettings, RequestHeaders};
pub use static_tokens::{StaticTokens, TokenFileError};
pub use token_keys::{
    KeySet, SigningKeyFile, TokenKeyFiles, TokenKeys, TokenKeysError, VerifyingKeyFiles,
    load_token_keys,
};
pub use token_webhook::{TokenUser, TokenWebhook, TokenWebhookSettings, read_token_review};
pub use user::{AUTHENTICATED, MASTERS, UNAUTHENTICATED, User, share_name};
pub use webhook::{ReviewError, ReviewVersion, USER_AGENT, WebhookError, server_and_path};
