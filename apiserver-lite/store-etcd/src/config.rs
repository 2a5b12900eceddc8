//! Where etcd is, and how this server vouches for itself there.

use std::{path::PathBuf, time::Duration};

/// The etcd that keeps the records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdConfig {
    /// URLs of its members, all `http` or all `https`.
    pub servers: Vec<String>,
    /// What the keys of all records start with.
    pub prefix: String,
    /// Certificates, for `https`.
    pub tls: TlsFiles,
    /// Name and password, if etcd asks for them. A client certificate vouches for its common name without.
    pub user: Option<EtcdUser>,
    /// Time between two compactions of etcd's history; zero leaves them to others.
    pub compaction_interval: Duration,
    /// How long opening waits for an etcd that does not answer yet.
    pub patience: Duration,
}

impl EtcdConfig {
    /// These members, without TLS, with Kubernetes' prefix and interval.
    #[must_use]
    pub fn new(servers: Vec<String>) -> Self {
        Self {
            servers,
            prefix: "/registry".to_owned(),
            tls: TlsFiles::default(),
            user: None,
            compaction_interval: Duration::from_secs(300),
            patience: Duration::from_secs(20),
        }
    }
}

/// PEM files of the connection to etcd. They are read again whenever the connection was lost.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsFiles {
    /// The authorities that etcd's certificate is verified with.
    pub authority: Option<PathBuf>,
    /// Certificate and key of this server.
    pub client: Option<(PathBuf, PathBuf)>,
}

/// The credentials for an etcd with authentication.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdUser {
    pub name: String,
    /// Read at each connection, so that it can be rotated.
    pub password_file: PathBuf,
}
