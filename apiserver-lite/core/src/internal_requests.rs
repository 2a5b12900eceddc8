//! Requests that the server makes of itself: writes of what it keeps up to date without a client.

use std::sync::Arc;

use apiserver_auth::User;
use apiserver_schema::Kind;

use crate::context::RequestContext;
use crate::request::{Accepted, Encoding, Query, Representation, RequestInfo, Verb};
use crate::server::Server;

/// A request for an object of `kind`.
pub fn request(
    verb: Verb,
    kind: &Kind,
    subresource: &str,
    namespace: &str,
    name: &str,
) -> RequestInfo {
    RequestInfo {
        verb,
        group: kind.group.clone(),
        version: kind.version().to_owned(),
        namespace: namespace.to_owned(),
        resource: kind.plural().to_owned(),
        subresource: subresource.to_owned(),
        name: name.to_owned(),
        rest: String::new(),
    }
}

/// The manager of the fields that the server writes by itself.
pub fn agent(server: &Server) -> String {
    server.names.component("apiserver")
}

/// The context of a request of the server's own user.
pub fn call<'a>(
    server: &'a Server,
    kind: &Arc<Kind>,
    request: &'a RequestInfo,
    query: &'a Query,
    user_agent: &'a str,
) -> RequestContext<'a> {
    static USER: std::sync::OnceLock<User> = std::sync::OnceLock::new();
    RequestContext {
        server,
        request,
        kind: kind.clone(),
        requested_version: kind.clone(),
        user: USER.get_or_init(User::server),
        user_agent,
        query,
        accepted: Accepted { encoding: Encoding::Json, representation: Representation::Object },
        notes: None,
        audit: &apiserver_audit::OFF,
    }
}
