//! Which addresses a proxied request, and a call of a webhook, may be sent to. Clients write the addresses of nodes, pods and endpoints, and the URLs of
//! webhooks: they must not lead to addresses that only this server can reach.

use std::net::{IpAddr, SocketAddr};

use proto_api::Cidr;

use crate::config::{self, Config};

/// Kubernetes' `ErrAddressNotAllowed`.
pub const NOT_ALLOWED: &str = "address not allowed";

/// Which addresses a target may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DialScope {
    /// Any address but this server's own: requests to kubelets, whose path this server chooses.
    Kubelet,
    /// Only routable addresses (`IsProxyableIP` in Kubernetes): requests whose path the client chooses.
    Routable,
    /// Those, and loopback, as in Kubernetes: the URL of a webhook, which only who configures the cluster writes.
    WebhookUrl,
}

/// This server's own addresses, which must not be dialed.
#[derive(Clone, Debug)]
pub struct DialPolicy {
    /// Port that this server listens on.
    port: u16,
    /// Addresses of this server.
    addresses: Vec<IpAddr>,
    /// Whether it listens on all addresses of the host.
    listens_on_all: bool,
    /// Address ranges of Services, which include this server's own Service.
    services: Vec<Cidr>,
}

impl DialPolicy {
    /// The policy of the server with this configuration, whose port is the one that it listens on.
    #[must_use]
    pub fn new(config: &Config) -> Self {
        let bound = config.bind.ip();
        Self {
            port: config.bind.port(),
            addresses: vec![config::advertised(config), bound],
            listens_on_all: bound.is_unspecified(),
            services: config.service_ranges.clone(),
        }
    }

    /// Whether `to` may be dialed for a target of this scope.
    #[must_use]
    pub fn allows(&self, to: SocketAddr, scope: DialScope) -> bool {
        let ip = to.ip().to_canonical();
        let is_service = self.services.iter().any(|range| range.contains(ip));
        let is_in_scope = match scope {
            DialScope::Kubelet => true,
            DialScope::Routable => is_routable(ip),
            DialScope::WebhookUrl => is_routable(ip) || ip.is_loopback(),
        };
        is_in_scope && !is_service && !(to.port() == self.port && self.is_own(ip))
    }

    fn is_own(&self, ip: IpAddr) -> bool {
        is_local(ip)
            || self.addresses.contains(&ip)
            || (self.listens_on_all && host_addresses().contains(&ip))
    }
}

fn is_local(ip: IpAddr) -> bool {
    ip.is_loopback() || ip.is_unspecified()
}

/// `IsGlobalUnicast` of Go's `net` package.
fn is_routable(ip: IpAddr) -> bool {
    let is_link_local = match ip {
        IpAddr::V4(ip) => ip.is_link_local() || ip.is_broadcast(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    };
    !is_local(ip) && !ip.is_multicast() && !is_link_local
}

/// The addresses of this host's interfaces; empty if they cannot be listed.
fn host_addresses() -> Vec<IpAddr> {
    let Ok(interfaces) = nix::ifaddrs::getifaddrs() else { return Vec::new() };
    let address = |row: nix::ifaddrs::InterfaceAddress| {
        let address = row.address?;
        let v4 = address.as_sockaddr_in().map(|address| IpAddr::V4(address.ip()));
        v4.or_else(|| address.as_sockaddr_in6().map(|address| IpAddr::V6(address.ip())))
    };
    interfaces.filter_map(address).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy() -> DialPolicy {
        DialPolicy {
            port: 6443,
            addresses: vec!["10.0.0.1".parse().unwrap()],
            listens_on_all: false,
            services: "10.96.0.0/12".parse().into_iter().collect(),
        }
    }

    #[test]
    fn only_routed_addresses_are_proxied_to() {
        for (address, agent, proxy, webhook) in [
            ("10.0.0.2:10250", true, true, true),
            ("[2001:db8::1]:80", true, true, true),
            ("10.0.0.1:10250", true, true, true),
            ("127.0.0.1:10250", true, false, true),
            ("[::1]:80", true, false, true),
            ("[::ffff:127.0.0.1]:80", true, false, true),
            ("169.254.169.254:80", true, false, false),
            ("[fe80::1]:80", true, false, false),
            ("224.0.0.1:80", true, false, false),
            ("[ff02::1]:80", true, false, false),
            ("255.255.255.255:80", true, false, false),
            ("0.0.0.0:80", true, false, false),
            ("[::]:80", true, false, false),
            // This server, under each of its names.
            ("10.0.0.1:6443", false, false, false),
            ("[::ffff:10.0.0.1]:6443", false, false, false),
            ("127.0.0.1:6443", false, false, false),
            ("0.0.0.0:6443", false, false, false),
            ("10.96.0.1:443", false, false, false),
        ] {
            let to: SocketAddr = address.parse().unwrap();
            let scopes = [DialScope::Kubelet, DialScope::Routable, DialScope::WebhookUrl];
            let allowed = scopes.map(|scope| policy().allows(to, scope));
            assert_eq!(allowed, [agent, proxy, webhook], "{address}");
        }
    }

    #[test]
    fn a_server_on_all_addresses_is_none_of_them() {
        let all = DialPolicy { addresses: Vec::new(), listens_on_all: true, ..policy() };
        let own = host_addresses().into_iter().find(|ip| is_routable(*ip));
        let Some(own) = own else {
            println!("SKIPPED a_server_on_all_addresses_is_none_of_them: only loopback here");
            return;
        };
        let allowed = |port| all.allows(SocketAddr::new(own, port), DialScope::Routable);
        assert_eq!([allowed(6443), allowed(6444)], [false, true]);
    }
}
