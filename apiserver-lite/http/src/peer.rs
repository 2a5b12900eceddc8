//! The client of a connection.

use std::sync::Arc;

use apiserver_auth::ClientCertificate;
use proto_daemon::connections::OpenRequest;

/// The client of a request.
#[derive(Clone, Debug, Default)]
pub struct Peer {
    /// The client certificate, if the client presented one.
    pub certificate: Option<Arc<ClientCertificate>>,
    /// The certificate of an authenticating proxy, if the client is one.
    pub proxy: Option<Arc<ClientCertificate>>,
    /// The request under way, for what its connection counts; unset in tests.
    pub request: Option<OpenRequest>,
}
