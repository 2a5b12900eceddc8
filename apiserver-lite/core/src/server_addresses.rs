//! The addresses of the API servers of a cluster. Where several share a store each renews a lease in the system namespace; a server whose lease has run out
//! is gone, and its address with it.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use apiserver_schema::update::Subresource;
use apiserver_schema::{Format, Kind, Object, Strictness};
use serde_json::json;
use time::{Duration, OffsetDateTime};

use crate::config::advertised;
use crate::internal_requests::{agent, call, request};
use crate::options::{DeleteOptions, Effects};
use crate::request::{Query, Verb};
use crate::server::{Server, missing_kind};
use crate::status::ApiError;
use crate::times::{now, time_of, timestamp};
use crate::verbs::{commit_update, create_object, delete_object};

/// How long a server is taken to be there without a renewal; it renews every 10 s.
const LEASE_LEN: Duration = Duration::seconds(60);
/// Leases of servers that are gone for so long are deleted.
const KEPT: Duration = Duration::hours(1);
/// Most leases that are looked at.
const LEASES_MAX: usize = 1000;

/// Renews the lease of this server and returns the addresses of all servers that listen on the same port, in order; its own alone where no store is shared.
///
/// # Errors
/// The lease cannot be written.
pub async fn announce(server: &Server) -> Result<Vec<IpAddr>, ApiError> {
    let own = SocketAddr::new(advertised(&server.config), server.config.bind.port());
    if !server.store.is_shared() {
        return Ok(vec![own.ip()]);
    }
    let kind = server.kind("coordination", "leases").ok_or_else(|| missing_kind("Lease"))?.clone();
    let now = now();
    renew(server, &kind, own, now).await?;
    let mut there = BTreeSet::from([own.ip()]);
    for record in server.objects(&kind, server.names.system_namespace(), Some(LEASES_MAX)) {
        let Some((holder, renewed)) = holder(record.object()) else { continue };
        let age = now - renewed;
        // A lease with a time in the future is invalid: it would never expire.
        if (-LEASE_LEN..LEASE_LEN).contains(&age) && holder.port() == own.port() {
            there.insert(holder.ip());
        } else if !(-KEPT..=KEPT).contains(&age) {
            let (namespace, name) = (record.object().namespace(), record.object().name());
            let request = request(Verb::Delete, &kind, "", namespace, name);
            let (query, agent) = (Query::default(), agent(server));
            let call = call(server, &kind, &request, &query, &agent);
            // Another server may have deleted it; what is left is tried again.
            let _ = delete_object(&call, &DeleteOptions::default()).await;
        }
    }
    Ok(there.into_iter().collect())
}

/// The server that a lease is of, and when it was renewed; `None` for other leases.
fn holder(lease: &Object) -> Option<(SocketAddr, OffsetDateTime)> {
    let holder: SocketAddr = lease.str_at(&["spec", "holderIdentity"]).parse().ok()?;
    let renewed = time_of(lease.str_at(&["spec", "renewTime"]))?;
    (lease.name() == lease_name(holder)).then_some((holder, renewed))
}

fn lease_name(of: SocketAddr) -> String {
    let address: String = of
        .ip()
        .to_string()
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c } else { '-' })
        .collect();
    // No name ends or begins with a dash.
    format!("apiserver-{address}-{}", of.port())
}

async fn renew(
    server: &Server,
    kind: &Arc<Kind>,
    own: SocketAddr,
    now: OffsetDateTime,
) -> Result<(), ApiError> {
    let (name, namespace) = (lease_name(own), server.names.system_namespace());
    let renewed = timestamp(now).replace('Z', ".000000Z");
    let lease = json!({
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "holderIdentity": own.to_string(),
            "leaseDurationSeconds": LEASE_LEN.whole_seconds(),
            "renewTime": renewed,
        },
    });
    let text = lease.to_string();
    let decoded = server.engine.decode(kind, Format::Json, text.as_bytes(), Strictness::Strict);
    let wanted = decoded.map_err(ApiError::internal)?.object;
    let (query, agent) = (Query::default(), agent(server));
    let found = server.find(kind, namespace, &name);
    let verb = if found.is_some() { Verb::Update } else { Verb::Create };
    let request = request(verb, kind, "", namespace, if found.is_some() { &name } else { "" });
    let call = call(server, kind, &request, &query, &agent);
    let Some(found) = found else {
        return create_object(&call, wanted, Effects::Real).await.map(drop);
    };
    let mut next = found.object().clone();
    if let Some(spec) = wanted.spec() {
        next.fields.insert("spec", spec.clone());
    }
    // A conflict means that another client wrote it: the next renewal follows soon.
    commit_update(&call, &found, next, Subresource::Main, Effects::Real).await.map(drop)
}

#[cfg(test)]
mod tests {
    use proto_api::names::{Names, Profile};

    use super::*;

    #[test]
    fn api_server_leases_have_the_address_of_their_server() {
        let server = Server::for_tests(Names::new(Profile::Kubernetes));
        let kind = server.kind("coordination", "leases").unwrap();
        let lease = |name: &str, holder: &str, renewed: &str| {
            let body = json!({"metadata": {"name": name}, "spec": {"holderIdentity": holder, "renewTime": renewed}});
            let body = body.to_string();
            let decoded =
                server.engine.decode(kind, Format::Json, body.as_bytes(), Strictness::Strict);
            holder_of(&decoded.unwrap().object)
        };
        fn holder_of(lease: &Object) -> Option<String> {
            holder(lease).map(|(holder, _)| holder.to_string())
        }
        let time = "2026-01-02T03:04:05.000000Z";
        let found = lease("apiserver-10-0-0-1-6443", "10.0.0.1:6443", time);
        assert_eq!(found.as_deref(), Some("10.0.0.1:6443"));
        let six = lease("apiserver-fd00--1-6443", "[fd00::1]:6443", time);
        assert_eq!(six.as_deref(), Some("[fd00::1]:6443"));
        assert_eq!(lease("other", "10.0.0.1:6443", time), None);
        assert_eq!(lease("apiserver-10-0-0-1-6443", "somebody", time), None);
    }
}
