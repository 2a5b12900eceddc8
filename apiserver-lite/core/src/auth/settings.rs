//! Settings of authentication.

use std::path::PathBuf;
use std::time::Duration;

/// Whether bootstrap tokens authenticate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BootstrapTokens {
    /// Tokens in Secrets of the system namespace authenticate.
    Accepted,
    /// No bootstrap token authenticates.
    #[default]
    Refused,
}

/// Treatment of requests without credentials.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Anonymous {
    /// They are authorized as `system:anonymous`, within this access.
    Served(AnonymousAccess),
    /// They get 401, except for health checks. The default where everything is allowed.
    HealthOnly,
    /// They get 401 (`--anonymous-auth=false`).
    Refused,
}

/// What the anonymous user may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnonymousAccess {
    /// Only `/healthz`, `/livez`, `/readyz` and `/version` where `AlwaysAllow` is among the authorization modules; else what they allow.
    Public,
    /// Whatever the authorization modules allow; with `AlwaysAllow` that is everything.
    Authorized,
}

/// Whether the objects that a service account token names are looked up (`--service-account-lookup`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenLookup {
    /// The service account, and the pod or Secret that the token is bound to, must exist with the uid in the token.
    Checked,
    /// Only the signature and the times are checked.
    Skipped,
}

/// Whether the tokens of pods' token volumes outlive the hour that they ask for (`--service-account-extend-token-expiration`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenExtension {
    /// They are valid for a year, as long as their pod exists, and say when they should have been renewed.
    Extended,
    /// They expire as every other token.
    AsAsked,
}

/// Issuing and verification of service account tokens.
#[derive(Clone, Debug)]
pub struct ServiceAccounts {
    /// PEM files of keys that verify tokens.
    pub key_files: Vec<PathBuf>,
    /// PEM file of the signing key; generated when unset.
    pub signing_key_file: Option<PathBuf>,
    /// Accepted issuers; the first is written into new tokens.
    pub issuers: Vec<String>,
    /// Audiences of this server; the issuers when empty.
    pub audiences: Vec<String>,
    /// Whether the objects that a token names are looked up.
    pub lookup: TokenLookup,
    /// Longest lifetime of a token.
    pub expiration_max: Option<Duration>,
    /// Whether tokens of token volumes live longer than they ask for.
    pub extension: TokenExtension,
    /// Where others find the public keys, in the discovery document; this server's own address when unset.
    pub jwks_uri: Option<String>,
}
