//! Which addresses a proxied request may be sent to. Clients write the addresses of nodes, pods and endpoints: they must not
//! lead to addresses that only this server can reach.

use std::net::{IpAddr, SocketAddr};

use apiserver_core::config::Config;
use proto_api::Cidr;

/// Kubernetes' `ErrAddressNotAllowed`.
pub const NOT_ALLOWED: &str = "address not allowed";

/// Which addresses a target may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DialScope {
    /// Any address but this server's own: requests to kubelets, whose path this server chooses.
    Kubelet,
    /// Only routable addresses (`IsProxyableIP` in Kubernetes): requests whose path the client chooses.
    Routable,
}

/// This server's own addresses, which must not be dialed.
#[derive(Clone, Debug)]
pub struct DialPolicy {
    /// Port that this server listens on.
    port: u16,
    /// Addresses of this server.
    addresses: Vec<IpAddr>,
    /// Address ranges of Services, which include this server's own Service.
    services: Vec<Cidr>,
}

impl DialPolicy {
    /// The policy of this server; includes all addresses of the host if it listens on all of them.
    #[must_use]
    pub fn new(config: &Config) -> Self {
        let mut addresses = vec![apiserver_core::config::advertised(config)];
        if config.bind.ip().is_unspecified() {
            addresses.extend(host_addresses());
        } else {
            addresses.push(config.bind.ip());
        }
        Self { port: config.bind.port(), addresses, services: config.service_ranges.clone() }
    }

    /// Whether `to` may be dialed for a target of this scope.
    #[must_use]
    pub fn allows(&self, to: SocketAddr, scope: DialScope) -> bool {
        let ip = to.ip().to_canonical();
        let is_self = to.port() == self.port && (is_local(ip) || self.addresses.contains(&ip));
        let is_service = self.services.iter().any(|range| range.contains(ip));
        !is_self && !is_service && (scope == DialScope::Kubelet || is_routable(ip))
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
            services: "10.96.0.0/12".parse().into_iter().collect(),
        }
    }

    #[test]
    fn only_routed_addresses_are_proxied_to() {
        for (address, agent, proxy) in [
            ("10.0.0.2:10250", true, true),
            ("[2001:db8::1]:80", true, true),
            ("10.0.0.1:10250", true, true),
            ("127.0.0.1:10250", true, false),
            ("[::1]:80", true, false),
            ("[::ffff:127.0.0.1]:80", true, false),
            ("169.254.169.254:80", true, false),
            ("[fe80::1]:80", true, false),
            ("224.0.0.1:80", true, false),
            ("[ff02::1]:80", true, false),
            ("255.255.255.255:80", true, false),
            ("0.0.0.0:80", true, false),
            ("[::]:80", true, false),
            // This server, under each of its names.
            ("10.0.0.1:6443", false, false),
            ("[::ffff:10.0.0.1]:6443", false, false),
            ("127.0.0.1:6443", false, false),
            ("0.0.0.0:6443", false, false),
            ("10.96.0.1:443", false, false),
        ] {
            let to: SocketAddr = address.parse().unwrap();
            let allowed =
                (policy().allows(to, DialScope::Kubelet), policy().allows(to, DialScope::Routable));
            assert_eq!(allowed, (agent, proxy), "{address}");
        }
    }
}
