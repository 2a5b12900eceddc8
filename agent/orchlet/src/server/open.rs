//! From settings to a bound endpoint: the flags that are its own, and the one call that puts its
//! parts together.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, ValueEnum};
use futures_util::future::BoxFuture;
use proto_api::authentication::v1::TokenReviewStatus;
use proto_api::authorization::v1::{SubjectAccessReviewSpec, SubjectAccessReviewStatus};
use proto_api::names::Names;
use proto_client::{Client, ClientError};
use proto_daemon::admin::AdminPages;
use proto_daemon::go_duration;

use super::access::{Access, AccessRules, Anonymous, Authorization, Reviews, Tokens};
use super::tls::{ServerTls, TlsError, TlsFiles};
use super::view::NodeView;
use super::{Server, Service};

/// Who may use the endpoint, by flags; flatten this into the program's.
#[derive(Args, Clone, Debug)]
pub struct AccessFlags {
    /// Whether unknown clients of the HTTPS endpoint are let in as system:anonymous.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true,
          default_value_t = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub anonymous_auth: bool,
    /// Whether bearer tokens are looked at, by token reviews of the API server.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true,
          default_value_t = false, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub authentication_token_webhook: bool,
    /// How long an answer to a token review is good.
    #[arg(long, value_name = "DURATION", default_value = "2m", value_parser = go_duration::parse)]
    pub authentication_token_webhook_cache_ttl: Duration,
    /// Who says what clients of the HTTPS endpoint may do.
    #[arg(long, value_name = "MODE", value_enum, default_value_t = Mode::AlwaysAllow)]
    pub authorization_mode: Mode,
    /// How long a yes of the API server is good.
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = go_duration::parse)]
    pub authorization_webhook_cache_authorized_ttl: Duration,
    /// How long a no of the API server is good.
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = go_duration::parse)]
    pub authorization_webhook_cache_unauthorized_ttl: Duration,
}

/// `--authorization-mode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Mode {
    /// All is allowed.
    #[value(name = "AlwaysAllow")]
    AlwaysAllow,
    /// The API server says.
    #[value(name = "Webhook")]
    Webhook,
}

impl AccessFlags {
    /// The rules for a node.
    pub fn rules(&self, node: &str) -> AccessRules {
        AccessRules {
            node: node.to_owned(),
            anonymous: if self.anonymous_auth { Anonymous::Allowed } else { Anonymous::Refused },
            tokens: if self.authentication_token_webhook {
                Tokens::Reviewed(self.authentication_token_webhook_cache_ttl)
            } else {
                Tokens::Ignored
            },
            authorization: match self.authorization_mode {
                Mode::AlwaysAllow => Authorization::AlwaysAllow,
                Mode::Webhook => Authorization::Webhook {
                    allowed_for: self.authorization_webhook_cache_authorized_ttl,
                    denied_for: self.authorization_webhook_cache_unauthorized_ttl,
                },
            },
        }
    }
}

/// Everything that an endpoint is made of.
pub struct Opening {
    /// Where to listen; port 0 takes a free one.
    pub address: SocketAddr,
    /// Certificates.
    pub files: TlsFiles,
    /// Names and addresses of the node, for a certificate that is made when there is none.
    pub hosts: Vec<String>,
    /// Who may what.
    pub rules: AccessRules,
    /// The API server, for reviews; without it nobody is recognised by a token.
    pub client: Option<Client>,
    /// The agent.
    pub view: Arc<dyn NodeView>,
    /// Health, metrics, task status.
    pub pages: AdminPages,
    /// The naming profile.
    pub names: &'static Names,
}

/// Why there is no endpoint.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The certificates are no use.
    #[error("cannot set up TLS of the HTTPS endpoint")]
    Tls(#[source] TlsError),
    /// The address cannot be taken.
    #[error("cannot listen at {address}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// What the system said.
        #[source]
        cause: std::io::Error,
    },
}

impl Opening {
    /// Reads the certificates and takes the address.
    pub async fn open(self) -> Result<Server, OpenError> {
        let tls = ServerTls::new(&self.files, &self.hosts).map_err(OpenError::Tls)?;
        let reviews: Box<dyn Reviews> = match self.client {
            Some(client) => Box::new(client),
            None => Box::new(NobodyToAsk),
        };
        let access = Access::new(self.rules, reviews);
        let service = Service::new(access, self.view, self.pages, self.names);
        let address = self.address;
        Server::bind(address, tls, service)
            .await
            .map_err(|cause| OpenError::Listen { address, cause })
    }
}

/// Without an API server no token is anybody's and nothing that would be asked is allowed.
struct NobodyToAsk;

impl Reviews for NobodyToAsk {
    fn token<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<TokenReviewStatus, ClientError>> {
        Box::pin(async { Ok(TokenReviewStatus::default()) })
    }

    fn access<'a>(
        &'a self,
        _: SubjectAccessReviewSpec,
    ) -> BoxFuture<'a, Result<SubjectAccessReviewStatus, ClientError>> {
        Box::pin(async { Ok(SubjectAccessReviewStatus::default()) })
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Flags {
        #[command(flatten)]
        access: AccessFlags,
    }

    fn rules(args: &[&str]) -> AccessRules {
        let flags = Flags::try_parse_from([&["orchlet"], args].concat()).expect("valid");
        flags.access.rules("n1")
    }

    #[test]
    fn flags_are_those_of_the_ecosystem() {
        let open = rules(&[]);
        assert_eq!((open.anonymous, open.tokens), (Anonymous::Allowed, Tokens::Ignored));
        assert_eq!(open.authorization, Authorization::AlwaysAllow);
        let args = [
            "--anonymous-auth=false",
            "--authentication-token-webhook",
            "--authorization-mode=Webhook",
        ];
        let closed = rules(&args);
        assert_eq!((closed.anonymous, closed.tokens), (Anonymous::Refused, Tokens::REVIEWED));
        assert_eq!(closed.authorization, Authorization::WEBHOOK);
    }
}
