//! Where the requests to a Service go: the addresses behind one of its ports, from the store and without DNS.

use crate::server::Server;
use crate::status::{ApiError, StatusTarget};

/// The hosts and ports behind the port `port` of a Service, by its name or number; behind its first port if `port` is empty. There is at least one.
///
/// # Errors
/// 404 if the Service does not exist, 503 if it has no such port or no ready endpoint.
pub fn endpoints_of(
    server: &Server,
    namespace: &str,
    name: &str,
    port: &str,
) -> Result<Vec<(String, u16)>, ApiError> {
    let about = StatusTarget { group: "", kind: "services", name };
    let service = server.find_in("", "services", namespace, name);
    let service = service.ok_or_else(|| ApiError::not_found(about))?;
    let none = || ApiError::unavailable(format!("no endpoints available for service {name:?}"));
    let spec = service.object().spec().cloned().unwrap_or_default();
    let mut ports = spec.maps("ports");
    let chosen = ports.find(|row| {
        port.is_empty()
            || row.str("name") == port
            || row.int("port").is_some_and(|number| number.to_string() == port)
    });
    let chosen = chosen.ok_or_else(|| {
        ApiError::unavailable(format!("no service port {port:?} found for service {name:?}"))
    })?;
    let endpoints = server.find_in("", "endpoints", namespace, name).ok_or_else(none)?;
    let mut found = Vec::new();
    for subset in endpoints.object().fields.maps("subsets") {
        let port = subset.maps("ports").find(|row| row.str("name") == chosen.str("name"));
        let port = port.and_then(|row| row.int("port")).and_then(|port| u16::try_from(port).ok());
        let Some(port) = port else { continue };
        let addresses = subset.maps("addresses");
        found.extend(addresses.map(|address| (address.str("ip").to_owned(), port)));
    }
    if found.is_empty() { Err(none()) } else { Ok(found) }
}
