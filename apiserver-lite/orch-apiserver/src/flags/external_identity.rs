//! Flags of identities that others vouch for: an OpenID Connect provider, webhooks, authenticating proxies.

use std::path::PathBuf;
use std::time::Duration;

use apiserver_auth::{
    AuthorizationWebhookSettings, OidcSettings, RequestHeaderSettings, ReviewVersion,
    TokenWebhookSettings,
};
use apiserver_core::config::RequestHeaderConfig;
use clap::ValueEnum;
use http::HeaderName;
use proto_daemon::flags::FlagError;
use proto_daemon::go_duration;

/// The flags.
#[derive(clap::Args, Clone, Debug)]
pub struct ExternalIdentityFlags {
    /// URL of the OpenID Connect provider whose ID tokens authenticate, https, without the discovery path.
    #[arg(long, value_name = "URL", requires = "oidc_client_id")]
    oidc_issuer_url: Option<String>,
    /// Client that ID tokens must be issued for.
    #[arg(long, value_name = "ID", requires = "oidc_issuer_url")]
    oidc_client_id: Option<String>,
    /// Claim with the user's name.
    #[arg(long, value_name = "CLAIM", default_value = "sub")]
    oidc_username_claim: String,
    /// Prefix of user names; - for none [default: the issuer and #, and none for the claim email]
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    oidc_username_prefix: Option<String>,
    /// Claim with the user's groups: a text, or a list of texts.
    #[arg(long, value_name = "CLAIM")]
    oidc_groups_claim: Option<String>,
    /// Prefix of groups.
    #[arg(long, value_name = "TEXT", default_value = "")]
    oidc_groups_prefix: String,
    /// A claim that ID tokens must have, with its value; repeatable.
    #[arg(long, value_name = "KEY=VALUE", value_parser = parse_pair)]
    oidc_required_claim: Vec<(String, String)>,
    /// CA certificates of the provider [default: the host's]
    #[arg(long, value_name = "FILE")]
    oidc_ca_file: Option<PathBuf>,
    /// Accepted signature algorithms of ID tokens: RS256, RS384, RS512, PS256, PS384, PS512, ES256, ES384, ES512.
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "RS256")]
    oidc_signing_algs: Vec<String>,

    /// Client configuration file of a service that answers token reviews.
    #[arg(long, value_name = "FILE")]
    authentication_token_webhook_config_file: Option<PathBuf>,
    /// Version of TokenReview that the service understands.
    #[arg(long, value_enum, default_value = "v1beta1")]
    authentication_token_webhook_version: Version,
    /// How long its answers are kept.
    #[arg(long, value_name = "DURATION", default_value = "2m", value_parser = go_duration::parse)]
    authentication_token_webhook_cache_ttl: Duration,

    /// Client certificate for other API servers (APIServices), which know this one as an authenticating proxy by it.
    #[arg(long, value_name = "FILE", requires = "proxy_client_key_file")]
    pub proxy_client_cert_file: Option<PathBuf>,
    /// Its key.
    #[arg(long, value_name = "FILE", requires = "proxy_client_cert_file")]
    pub proxy_client_key_file: Option<PathBuf>,

    /// Client configuration file of the service that the module Webhook asks.
    #[arg(long, value_name = "FILE")]
    authorization_webhook_config_file: Option<PathBuf>,
    /// Version of SubjectAccessReview that the service understands.
    #[arg(long, value_enum, default_value = "v1beta1")]
    authorization_webhook_version: Version,
    /// How long its answers are kept that allow a request.
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = go_duration::parse)]
    authorization_webhook_cache_authorized_ttl: Duration,
    /// How long its other answers are kept.
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = go_duration::parse)]
    authorization_webhook_cache_unauthorized_ttl: Duration,

    /// CA certificates of authenticating proxies, which name users in headers.
    #[arg(long, value_name = "FILE", requires = "requestheader_username_headers")]
    requestheader_client_ca_file: Option<PathBuf>,
    /// Common names that the proxies' certificates may have [default: any]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    requestheader_allowed_names: Vec<String>,
    /// Headers with the user's name, in order; X-Remote-User is common.
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_header)]
    requestheader_username_headers: Vec<HeaderName>,
    /// Headers with groups; X-Remote-Group is common.
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_header)]
    requestheader_group_headers: Vec<HeaderName>,
    /// Prefixes of headers with extra attributes; X-Remote-Extra- is common.
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_header)]
    requestheader_extra_headers_prefix: Vec<HeaderName>,
}

/// Values of the flags of webhook versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Version {
    #[value(name = "v1beta1")]
    V1Beta1,
    #[value(name = "v1")]
    V1,
}

impl From<Version> for ReviewVersion {
    fn from(version: Version) -> Self {
        match version {
            Version::V1Beta1 => Self::V1Beta1,
            Version::V1 => Self::V1,
        }
    }
}

/// A header that names users: none by which requests authenticate or impersonate otherwise.
fn parse_header(text: &str) -> Result<HeaderName, FlagError> {
    let malformed = |_| FlagError::new(format!("{text:?} is not a header name"));
    let name: HeaderName = text.trim().parse().map_err(malformed)?;
    match name.as_str() {
        "authorization" => Err(FlagError::new("the header authorization has another use")),
        other if other.starts_with("impersonate-") || "impersonate-".starts_with(other) => {
            Err(FlagError::new(format!("the header {other} has another use")))
        }
        _ => Ok(name),
    }
}

fn parse_pair(text: &str) -> Result<(String, String), FlagError> {
    let pair = text.split_once('=').filter(|(key, _)| !key.is_empty());
    let malformed = || FlagError::new(format!("expected key=value, not {text:?}"));
    let (key, value) = pair.ok_or_else(malformed)?;
    Ok((key.to_owned(), value.to_owned()))
}

impl ExternalIdentityFlags {
    /// The identity provider, if there is one.
    pub fn oidc(&self) -> Option<OidcSettings> {
        Some(OidcSettings {
            issuer_url: self.oidc_issuer_url.clone()?,
            client_id: self.oidc_client_id.clone()?,
            username_claim: self.oidc_username_claim.clone(),
            username_prefix: self.oidc_username_prefix.clone(),
            groups_claim: self.oidc_groups_claim.clone().filter(|claim| !claim.is_empty()),
            groups_prefix: self.oidc_groups_prefix.clone(),
            required_claims: self.oidc_required_claim.clone(),
            ca_file: self.oidc_ca_file.clone(),
            signing_algs: self.oidc_signing_algs.clone(),
        })
    }

    /// The service that knows tokens, if there is one.
    pub fn token_webhook(&self) -> Option<TokenWebhookSettings> {
        Some(TokenWebhookSettings {
            config_file: self.authentication_token_webhook_config_file.clone()?,
            version: self.authentication_token_webhook_version.into(),
            cache_ttl: self.authentication_token_webhook_cache_ttl,
        })
    }

    /// The service that decides what users may do, if there is one.
    pub fn authorization_webhook(&self) -> Option<AuthorizationWebhookSettings> {
        Some(AuthorizationWebhookSettings {
            config_file: self.authorization_webhook_config_file.clone()?,
            version: self.authorization_webhook_version.into(),
            authorized_ttl: self.authorization_webhook_cache_authorized_ttl,
            unauthorized_ttl: self.authorization_webhook_cache_unauthorized_ttl,
        })
    }

    /// The authenticating proxies, if there are any.
    pub fn request_headers(&self) -> Option<RequestHeaderConfig> {
        let prefixes = self.requestheader_extra_headers_prefix.iter();
        let allowed = self.requestheader_allowed_names.iter().filter(|name| !name.is_empty());
        let headers = RequestHeaderSettings {
            allowed_names: allowed.cloned().collect(),
            username: self.requestheader_username_headers.clone(),
            group: self.requestheader_group_headers.clone(),
            extra_prefix: prefixes.map(|prefix| prefix.as_str().to_owned()).collect(),
        };
        Some(RequestHeaderConfig { ca_file: self.requestheader_client_ca_file.clone()?, headers })
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Alone {
        #[command(flatten)]
        flags: ExternalIdentityFlags,
    }

    fn parse(args: &[&str]) -> Result<ExternalIdentityFlags, clap::Error> {
        Alone::try_parse_from([&["program"], args].concat()).map(|alone| alone.flags)
    }

    #[test]
    fn without_flags_there_are_no_external_authenticators() {
        let flags = parse(&[]).unwrap();
        assert_eq!((flags.oidc(), flags.request_headers()), (None, None));
        assert_eq!((flags.token_webhook(), flags.authorization_webhook()), (None, None));
    }

    #[test]
    fn flags_are_those_of_kubernetes() {
        let flags = parse(&[
            "--oidc-issuer-url=https://a",
            "--oidc-client-id=c",
            "--oidc-username-prefix=-",
            "--oidc-required-claim=hd=example.org",
            "--oidc-required-claim=k=v=w",
            "--authentication-token-webhook-config-file=/t",
            "--authorization-webhook-config-file=/a",
            "--authorization-webhook-version=v1",
            "--requestheader-client-ca-file=/ca",
            "--requestheader-allowed-names=front,aggregator",
            "--requestheader-username-headers=X-Remote-User",
            "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        ])
        .unwrap();
        let oidc = flags.oidc().unwrap();
        assert_eq!(
            (oidc.username_claim.as_str(), oidc.username_prefix.as_deref()),
            ("sub", Some("-"))
        );
        assert_eq!(oidc.required_claims[1], ("k".to_owned(), "v=w".to_owned()));
        assert_eq!(oidc.signing_algs, ["RS256"]);
        let tokens = flags.token_webhook().unwrap();
        assert_eq!((tokens.version, tokens.cache_ttl.as_secs()), (ReviewVersion::V1Beta1, 120));
        let access = flags.authorization_webhook().unwrap();
        assert_eq!((access.version, access.authorized_ttl.as_secs()), (ReviewVersion::V1, 300));
        let proxies = flags.request_headers().unwrap().headers;
        assert_eq!(proxies.allowed_names, ["front", "aggregator"]);
        assert_eq!(proxies.extra_prefix, ["x-remote-extra-"]);
        assert_eq!(proxies.username[0].as_str(), "x-remote-user");
        for mistake in [
            &["--oidc-issuer-url=https://a"][..],
            &["--oidc-required-claim=x"],
            &["--authorization-webhook-version=v2"],
            &["--requestheader-username-headers=a b"],
            &["--requestheader-client-ca-file=/ca"],
            &["--requestheader-extra-headers-prefix="],
            &["--requestheader-extra-headers-prefix=Impersonate-"],
            &["--requestheader-group-headers=Authorization"],
        ] {
            assert!(parse(mistake).is_err(), "{mistake:?}");
        }
    }
}
