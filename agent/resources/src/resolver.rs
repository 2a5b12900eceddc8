//! The node's resolver configuration, as pods inherit it. Pure.

use agent_pod::spec::DnsConfig;

/// Parses a resolv.conf (resolv.conf(5)): all name servers, the last search list, all options.
pub fn parse(text: &str) -> DnsConfig {
    let mut config = DnsConfig::default();
    for line in text.lines() {
        let line = line.split(['#', ';']).next().unwrap_or_default();
        let mut words = line.split_whitespace();
        match words.next() {
            Some("nameserver") => config.servers.extend(words.next().map(str::to_owned)),
            Some("search") => config.searches = words.map(str::to_owned).collect(),
            Some("options") => config.options.extend(words.map(str::to_owned)),
            _ => {}
        }
    }
    config
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_search_list_counts() {
        let text = "# local\nnameserver 192.0.2.1 # first\nnameserver 192.0.2.2\nsearch a\n\
                    search b c\noptions ndots:2 timeout:1\n";
        let config = parse(text);
        assert_eq!(config.servers, ["192.0.2.1", "192.0.2.2"]);
        assert_eq!(config.searches, ["b", "c"]);
        assert_eq!(config.options, ["ndots:2", "timeout:1"]);
    }
}
