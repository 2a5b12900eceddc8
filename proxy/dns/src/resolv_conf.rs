//! Which other servers to ask, as resolv.conf(5) says it.

use std::net::{IpAddr, SocketAddr};

/// The port of name servers.
const PORT: u16 = 53;
/// Name servers that are used at most; the C library takes three.
const SERVERS_MAX: usize = 8;

/// The name servers of a resolv.conf; those in `not` are ourselves.
pub fn servers(text: &str, not: &[IpAddr]) -> Vec<SocketAddr> {
    let mut found = Vec::new();
    for line in text.lines() {
        let mut words = line.split(['#', ';']).next().unwrap_or_default().split_whitespace();
        if words.next() != Some("nameserver") {
            continue;
        }
        // A zone (`fe80::1%eth0`) needs an interface; such servers are left out.
        let address = words.next().and_then(|word| word.parse::<IpAddr>().ok());
        let server = address.filter(|ip| !not.contains(ip)).map(|ip| SocketAddr::new(ip, PORT));
        found.extend(server.filter(|server| !found.contains(server)));
    }
    found.truncate(SERVERS_MAX);
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_name_servers_that_are_not_ourselves() {
        let text = "# nameserver 1.1.1.1\nsearch example.com\nnameserver 10.0.0.2 # first\n\
                    nameserver 10.96.0.10\nnameserver fd00::2\nnameserver fe80::1%eth0\n\
                    nameserver 10.0.0.2\nnameserver\nnameserver x\n";
        let found = servers(text, &["10.96.0.10".parse().unwrap()]);
        assert_eq!(found, ["10.0.0.2:53".parse().unwrap(), "[fd00::2]:53".parse().unwrap()]);
        assert_eq!(servers("", &[]), []);
    }
}
