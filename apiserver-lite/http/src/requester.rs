//! Who makes a request: the user of its credentials, and the one in whose name that user acts.

use apiserver_audit::Trail;
use apiserver_auth::User;
use apiserver_core::auth::{ClientConnection, effective_user};
use apiserver_core::status::ApiError;
use apiserver_core::times::now;
use http::Request;
use hyper::body::Incoming;
use tokio::sync::Semaphore;

use crate::audit::user_info;
use crate::browsers;
use crate::peer::Peer;
use crate::server::HttpServer;

/// Turns of requests whose token is looked at again, as etcd has it now.
static SECOND_LOOKS: Semaphore = Semaphore::const_new(32);

/// The user whose credentials the request has.
///
/// # Errors
/// 401.
pub async fn authenticate(
    server: &HttpServer,
    peer: &Peer,
    request: &Request<Incoming>,
) -> Result<User, ApiError> {
    let proxy = peer.proxy.as_deref();
    let (core, headers) = (&server.core, request.headers());
    let client = || ClientConnection {
        certificate: peer.certificate.as_deref(),
        is_proxy: proxy.is_some_and(|proxy| proxy.user(now()).is_ok()),
        address: peer.request.as_ref().map(|request| request.address().ip()),
    };
    let refusal = match core.authenticators.authenticate(&**core, client(), headers).await {
        Err(refusal) if core.store.is_shared() && browsers::has_token(headers) => refusal,
        outcome => return outcome,
    };
    // The token may belong to an account that another server has just created. Invalid tokens delay no other request: few are checked again at a time.
    let Ok(_turn) = SECOND_LOOKS.try_acquire() else { return Err(refusal) };
    match core.store.sync().await {
        Ok(()) => core.authenticators.authenticate(&**core, client(), headers).await,
        Err(_) => Err(refusal),
    }
}

/// The user in whose name the request acts.
///
/// # Errors
/// 403 if the requester may not act in that name.
pub async fn acting_user(
    server: &HttpServer,
    requester: User,
    request: &Request<Incoming>,
    trail: &Trail,
) -> Result<User, ApiError> {
    let group = server.core.names.group("authentication");
    let is_impersonated = request.headers().contains_key("impersonate-user");
    let user =
        effective_user(&server.core.authorizer, requester, request.headers(), &group).await?;
    if is_impersonated && trail.is_on() {
        trail.impersonate(user_info(&user));
    }
    Ok(user)
}
