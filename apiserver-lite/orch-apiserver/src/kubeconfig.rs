//! The administrator's kubeconfig.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use proto_api::names::Names;

use crate::pki::Pki;

/// Where a server that is bound to `address` is reached: one that is bound to all addresses at loopback.
#[must_use]
pub fn reached_at(address: SocketAddr) -> SocketAddr {
    let ip =
        if address.ip().is_unspecified() { IpAddr::V4(Ipv4Addr::LOCALHOST) } else { address.ip() };
    SocketAddr::new(ip, address.port())
}

/// A kubeconfig with embedded certificates for the administrator.
#[must_use]
pub fn write(names: &Names, address: SocketAddr, pki: &Pki) -> String {
    let server = reached_at(address);
    let cluster = names.api_service_name();
    let user = format!("{cluster}-admin");
    let context = format!("{user}@{cluster}");
    let ca = STANDARD.encode(&pki.ca);
    let certificate = STANDARD.encode(&pki.admin.certificate);
    let key = STANDARD.encode(&pki.admin.key);
    format!(
        "apiVersion: v1\n\
         kind: Config\n\
         clusters:\n\
         - name: {cluster}\n\
         \x20 cluster:\n\
         \x20   certificate-authority-data: {ca}\n\
         \x20   server: https://{server}\n\
         users:\n\
         - name: {user}\n\
         \x20 user:\n\
         \x20   client-certificate-data: {certificate}\n\
         \x20   client-key-data: {key}\n\
         contexts:\n\
         - name: {context}\n\
         \x20 context:\n\
         \x20   cluster: {cluster}\n\
         \x20   user: {user}\n\
         current-context: {context}\n"
    )
}
