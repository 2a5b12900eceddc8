//! Upstream servers of resolv.conf(5).

use std::net::{IpAddr, SocketAddr};

const PORT: u16 = 53;
/// Maximum of servers; the C library uses three.
const SERVERS_MAX: usize = 8;

/// The servers of a resolv.conf, without the addresses in `not`, which are this server's own.
pub fn servers(text: &str, not: &[IpAddr]) -> Vec<SocketAddr> {
    let mut found = Vec::new();
    for line in text.lines() {
        let mut words = line.split(['#', ';']).next().unwrap_or_default().split_whitespace();
        if words.next() != Some("nameserver") {
            continue;
        }
        // Scoped addresses (`fe80::1%eth0`) need an interface; such servers are left out.
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
