//! Where a request comes from: what proxies say, and the peer of the connection.

use std::net::IpAddr;

/// The addresses in `X-Forwarded-For`, the one in `X-Real-Ip` if it is not among them, and the peer last; what is no address is left out.
#[must_use]
pub fn source_ips(
    forwarded_for: Option<&str>,
    real_ip: Option<&str>,
    peer: Option<IpAddr>,
) -> Vec<String> {
    let address = |text: &str| text.trim().parse::<IpAddr>().ok().map(|ip| ip.to_canonical());
    let chain = forwarded_for.unwrap_or_default().split(',').filter_map(address);
    let mut found: Vec<IpAddr> = chain.collect();
    found.extend(real_ip.and_then(address).filter(|ip| !found.contains(ip)));
    let peer = peer.map(|ip| ip.to_canonical());
    found.extend(peer.filter(|ip| found.last() != Some(ip)));
    found.iter().map(IpAddr::to_string).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proxies_come_first_and_the_peer_last() {
        for (forwarded, real, peer, expected) in [
            (None, None, Some("10.0.0.9"), &["10.0.0.9"][..]),
            (
                Some("10.0.0.1, fd00::1"),
                None,
                Some("10.0.0.9"),
                &["10.0.0.1", "fd00::1", "10.0.0.9"],
            ),
            (Some("nonsense,10.0.0.1"), None, Some("10.0.0.1"), &["10.0.0.1"]),
            (Some("10.0.0.1,10.0.0.2"), Some("10.0.0.1"), None, &["10.0.0.1", "10.0.0.2"]),
            (None, Some("10.0.0.3"), Some("::ffff:10.0.0.9"), &["10.0.0.3", "10.0.0.9"]),
            (None, Some("x"), None, &[]),
        ] {
            let peer = peer.map(|text| text.parse().unwrap());
            assert_eq!(source_ips(forwarded, real, peer), expected, "{forwarded:?} {real:?}");
        }
    }
}
