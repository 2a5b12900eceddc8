//! Builds the endpoint from settings: access rules, certificates, listener.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use agent_config::{FileConfig, Mode};
use agent_telemetry::metrics::AgentMetrics;
use futures_util::future::BoxFuture;
use proto_api::authentication::v1::TokenReviewStatus;
use proto_api::authorization::v1::{SubjectAccessReviewSpec, SubjectAccessReviewStatus};
use proto_api::names::Names;
use proto_client::{Client, ClientError};
use proto_daemon::admin::AdminPages;

use super::access::{Access, AccessRules, Anonymous, Authorization, Reviews, Tokens};
use super::endpoint::Server;
use super::request_permits::RequestPermits;
use super::service::{Service, Switches};
use super::tls::{ServerTls, ServingTlsError, TlsFiles};
use super::view::NodeView;

/// The access rules of the configuration.
pub fn rules(file: &FileConfig, node: &str) -> AccessRules {
    let (authentication, access) = (&file.authentication, &file.authorization);
    AccessRules {
        node: node.to_owned(),
        anonymous: if authentication.anonymous.enabled {
            Anonymous::Allowed
        } else {
            Anonymous::Refused
        },
        tokens: if authentication.webhook.enabled {
            Tokens::Reviewed(authentication.webhook.cache_ttl)
        } else {
            Tokens::Ignored
        },
        authorization: match access.mode {
            Mode::AlwaysAllow => Authorization::AlwaysAllow,
            Mode::Webhook => Authorization::Webhook {
                allowed_for: access.webhook.cache_authorized_ttl,
                denied_for: access.webhook.cache_unauthorized_ttl,
            },
        },
    }
}

/// What the HTTPS endpoint needs: address, certificates, authentication and the agent's state.
pub struct EndpointParts {
    /// The address to bind; port 0 selects a free port.
    pub address: SocketAddr,
    /// Certificate files.
    pub files: TlsFiles,
    /// Names and addresses of the node for a self-signed certificate.
    pub hosts: Vec<String>,
    /// Authentication and authorization.
    pub rules: AccessRules,
    /// The API server for reviews; without it no token is accepted.
    pub client: Option<Client>,
    /// The agent.
    pub view: Arc<dyn NodeView>,
    /// Health, metrics and debugging pages.
    pub pages: AdminPages,
    /// Names of the naming profile.
    pub names: &'static Names,
    /// Which pages are enabled.
    pub switches: Switches,
    /// Directory shown at `/logs/`.
    pub system_logs_dir: PathBuf,
    /// Metrics of probes, as text.
    pub probes: Box<dyn Fn() -> String + Send + Sync>,
    /// Metrics of requests.
    pub metrics: AgentMetrics,
}

/// Why the endpoint could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The certificates are not usable.
    #[error("cannot set up TLS of the HTTPS endpoint")]
    Tls(#[source] ServingTlsError),
    /// The address cannot be bound.
    #[error("cannot listen at {address}")]
    Listen {
        address: SocketAddr,
        #[source]
        cause: std::io::Error,
    },
}

impl EndpointParts {
    /// Reads the certificates and binds the address.
    pub async fn open(self) -> Result<Server, OpenError> {
        let tls = ServerTls::new(&self.files, &self.hosts).map_err(OpenError::Tls)?;
        let reviews: Box<dyn Reviews> = match self.client {
            Some(client) => Box::new(client),
            None => Box::new(NoReviewer),
        };
        let access = Access::new(self.rules, reviews);
        let service = Service {
            access,
            view: self.view,
            pages: self.pages,
            names: self.names,
            switches: self.switches,
            system_logs_dir: self.system_logs_dir,
            probes: self.probes,
            metrics: self.metrics,
            permits: Arc::<RequestPermits>::default(),
        };
        let address = self.address;
        Server::bind(address, tls, service)
            .await
            .map_err(|cause| OpenError::Listen { address, cause })
    }
}

/// Reviews without an API server: no token is valid and nothing is allowed.
struct NoReviewer;

impl Reviews for NoReviewer {
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
    use super::*;

    #[test]
    fn a_file_closes_what_flags_alone_leave_open() {
        let open = rules(&FileConfig::of_flags_alone(), "n1");
        assert_eq!((open.anonymous, open.tokens), (Anonymous::Allowed, Tokens::Ignored));
        assert_eq!(open.authorization, Authorization::AlwaysAllow);
        let closed = rules(&FileConfig::default(), "n1");
        assert_eq!((closed.anonymous, closed.tokens), (Anonymous::Refused, Tokens::REVIEWED));
        assert_eq!(closed.authorization, Authorization::WEBHOOK);
    }
}
