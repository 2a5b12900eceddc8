//! Why a server cannot be built: in most cases a flag or a file that it names.

use std::net::SocketAddr;
use std::path::PathBuf;

use apiserver_audit_log::AuditLogError;
use apiserver_auth::{AbacError, OidcError, TokenFileError, TokenKeysError, WebhookError};
use apiserver_core::auth::{IndexError, NodeAuthorizerError};
use apiserver_core::config::{AdmissionPlugin, AuthorizationMode};
use apiserver_http::NodeProxyError;
use apiserver_store::{BackupError, OpenError, WatchError};
use apiserver_store_etcd::OpenEtcdError;
use proto_daemon::config::ConfigError;

use crate::bootstrap::EnsureError;
use crate::pki::PkiError;
use crate::tls::TlsError;

/// Error of [`crate::build`].
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// A file named by the configuration cannot be read.
    #[error("cannot read {path}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        #[source]
        source: std::io::Error,
    },
    /// A key of service account tokens is unusable.
    #[error(transparent)]
    Key(#[from] TokenKeysError),
    /// An issuer is named twice.
    #[error("--service-account-issuer {0:?} is already specified")]
    RepeatedIssuer(String),
    /// An authorization module lacks its file.
    #[error("--authorization-mode={0} needs {1}")]
    Module(&'static str, &'static str),
    /// A file is given for a module that is not among the modes.
    #[error("{0} is given, but its module is not in --authorization-mode")]
    Unused(&'static str),
    /// A module is named twice.
    #[error("--authorization-mode names {0:?} twice")]
    Repeated(AuthorizationMode),
    /// The configuration of admission plugins is unusable.
    #[error(transparent)]
    Admission(#[from] ConfigError),
    /// The file of --encryption-provider-config is unusable.
    #[error(transparent)]
    Encryption(ConfigError),
    /// There is nowhere to restore to.
    #[error("--restore needs --data-dir")]
    NoDataDir,
    /// A backup cannot be restored.
    #[error("cannot restore the store from the backup")]
    Restore(#[from] BackupError),
    /// A plugin is named as enabled and as disabled.
    #[error("--enable-admission-plugins and --disable-admission-plugins both name {0:?}")]
    Contradiction(AdmissionPlugin),
    /// The audit policy is unusable.
    #[error("--audit-policy-file")]
    AuditPolicy(#[source] ConfigError),
    /// The audit log cannot be kept.
    #[error(transparent)]
    Audit(#[from] AuditLogError),
    /// The policy file of the module `ABAC` is unusable.
    #[error("cannot use the policy file {path}")]
    PolicyFile {
        /// The file.
        path: PathBuf,
        /// The line.
        #[source]
        source: AbacError,
    },
    /// The identity provider's settings are unusable.
    #[error(transparent)]
    Oidc(#[from] OidcError),
    /// The client configuration of a webhook is unusable.
    #[error(transparent)]
    Webhook(#[from] WebhookError),
    /// The static token file is unusable.
    #[error("cannot use the static tokens")]
    Tokens(#[source] TokenFileError),
    /// A certificate of the server's own CA cannot be created or read.
    #[error("cannot prepare certificates")]
    Pki(#[from] PkiError),
    /// The configured certificates cannot be used.
    #[error("cannot set up TLS")]
    Tls(#[from] TlsError),
    /// The client certificate for connections to kubelets cannot be used.
    #[error("cannot set up connections to kubelets")]
    Nodes(#[from] NodeProxyError),
    /// The data directory cannot be created.
    #[error("cannot create {path}")]
    Directory {
        /// The directory.
        path: PathBuf,
        /// The error of the operating system.
        #[source]
        source: std::io::Error,
    },
    /// The store cannot be opened.
    #[error("cannot open the store")]
    Store(#[from] OpenError),
    /// The store in etcd cannot be opened.
    #[error("cannot open the store in etcd")]
    Etcd(#[from] OpenEtcdError),
    /// The Services of other servers cannot be followed.
    #[error("cannot watch the Services in the store")]
    Services(#[from] WatchError),
    /// Roles and bindings cannot be followed.
    #[error(transparent)]
    Policy(#[from] IndexError),
    /// The authorization module of kubelets cannot be made.
    #[error(transparent)]
    NodeAuthorizer(#[from] NodeAuthorizerError),
    /// Metrics cannot be registered.
    #[error("cannot register metrics")]
    Metrics(#[from] prometheus::Error),
    /// The configured address cannot be bound.
    #[error("cannot listen on {address}")]
    Listen {
        address: SocketAddr,
        /// The error of the operating system.
        #[source]
        source: std::io::Error,
    },
    /// A bootstrap object (namespace, priority class, the server's own Service) cannot be written.
    #[error(transparent)]
    Bootstrap(#[from] EnsureError),
}

impl BuildError {
    /// Whether the error is in the configuration, so that the process exits with the usage code.
    #[must_use]
    pub fn is_usage(&self) -> bool {
        matches!(
            self,
            Self::Read { .. }
                | Self::Key(_)
                | Self::Admission(_)
                | Self::Encryption(_)
                | Self::NoDataDir
                | Self::Contradiction(_)
                | Self::RepeatedIssuer(_)
                | Self::Tokens(_)
                | Self::Tls(_)
                | Self::Nodes(_)
                | Self::Module(..)
                | Self::Unused(_)
                | Self::Repeated(_)
                | Self::PolicyFile { .. }
                | Self::Oidc(_)
                | Self::Webhook(_)
                | Self::AuditPolicy(_)
                | Self::Audit(_)
        )
    }
}
