//! The proxies that the environment names, and the servers that are reached without them: `HTTPS_PROXY`, `HTTP_PROXY` and `NO_PROXY` as Go reads them. Pure.

use std::net::IpAddr;

use http::Uri;
use ipnet::IpNet;
use proto_client::transport::{ParseProxyError, ProxyServer};

/// Why the proxy that a variable of the environment names is not used.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProxyVariableError {
    /// It is no proxy.
    #[error("{variable}")]
    Proxy {
        /// The name of the variable.
        variable: &'static str,
        /// What is wrong with its value.
        #[source]
        cause: ParseProxyError,
    },
    /// A web server sets `HTTP_PROXY` to what a client sends as the header `Proxy`.
    #[error(
        "{0} is not used where REQUEST_METHOD is set: a client of a web server may have set it"
    )]
    WebServer(&'static str),
}

/// The proxy for connections to a server, if there is one.
///
/// # Errors
/// What is named is no proxy, or may come from a request to a web server (CGI).
pub fn of_environment(
    environment: impl Fn(&str) -> Option<String>,
    server: &Uri,
) -> Result<Option<ProxyServer>, ProxyVariableError> {
    let named = |names: [&'static str; 2]| {
        let set = |name| environment(name).filter(|value| !value.is_empty()).map(|url| (name, url));
        names.into_iter().find_map(set)
    };
    let is_https = server.scheme_str() != Some("http");
    let proxy = match is_https {
        true => named(["HTTPS_PROXY", "https_proxy"]),
        false => named(["HTTP_PROXY", "http_proxy"]),
    };
    let Some((variable, url)) = proxy else { return Ok(None) };
    let exceptions = named(["NO_PROXY", "no_proxy"]).map(|(_, list)| list).unwrap_or_default();
    let port = server.port_u16().unwrap_or(if is_https { 443 } else { 80 });
    let host = server.host().unwrap_or_default();
    if !is_https && named(["REQUEST_METHOD"; 2]).is_some() {
        return Err(ProxyVariableError::WebServer(variable));
    }
    if is_direct(host, port, &exceptions) {
        return Ok(None);
    }
    // The scheme may be missing.
    let whole = if url.contains("://") { url } else { format!("http://{url}") };
    let proxy = ProxyServer::parse(&whole);
    proxy.map(Some).map_err(|cause| ProxyVariableError::Proxy { variable, cause })
}

/// Whether a server is reached without a proxy: it is this host, or an entry of the list (`NO_PROXY`) has it.
fn is_direct(host: &str, port: u16, list: &str) -> bool {
    let host = host.trim_start_matches('[').trim_end_matches(']').to_ascii_lowercase();
    let address: Option<IpAddr> = host.parse().ok().map(|address: IpAddr| address.to_canonical());
    if host == "localhost" || address.is_some_and(|address| address.is_loopback()) {
        return true;
    }
    let entries = list.split(',').map(|entry| entry.trim().to_ascii_lowercase());
    entries.filter(|entry| !entry.is_empty()).any(|entry| match address {
        _ if entry == "*" => true,
        Some(address) => has_address(&entry, address, port),
        None => has_name(&entry, &host, port),
    })
}

/// The host and the port of an entry, which may be without one.
fn parts_of(entry: &str) -> (&str, Option<&str>) {
    match entry.rsplit_once(':') {
        Some((host, port)) if host.starts_with('[') && host.ends_with(']') => {
            (host.trim_start_matches('[').trim_end_matches(']'), Some(port))
        }
        Some((host, port)) if !host.contains(':') => (host, Some(port)),
        _ => (entry, None),
    }
}

fn is_port(wanted: Option<&str>, port: u16) -> bool {
    wanted.is_none_or(|wanted| wanted.is_empty() || wanted == port.to_string())
}

/// Whether an entry is the address, or a block that has it.
fn has_address(entry: &str, address: IpAddr, port: u16) -> bool {
    if let Ok(block) = entry.parse::<IpNet>() {
        return block.contains(&address);
    }
    let (host, wanted) = parts_of(entry);
    let own: Option<IpAddr> = host.parse().ok().map(|own: IpAddr| own.to_canonical());
    own == Some(address) && is_port(wanted, port)
}

/// Whether an entry is the name or a domain that it belongs to. One that begins with a dot has the domain's names only, not its own.
fn has_name(entry: &str, host: &str, port: u16) -> bool {
    let (domain, wanted) = parts_of(entry);
    let domain = domain.strip_prefix('*').filter(|rest| rest.starts_with('.')).unwrap_or(domain);
    let is_within = match domain.strip_prefix('.') {
        Some(_) => host.ends_with(domain),
        None => {
            let above = host.strip_suffix(domain).filter(|_| !domain.is_empty());
            above.is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
        }
    };
    is_within && is_port(wanted, port)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_of_the_list_are_reached_without_a_proxy() {
        for (server, list, wanted) in [
            ("https://a.example.com", "", false),
            ("https://localhost:6443", "", true),
            ("https://127.0.0.1:6443", "", true),
            ("https://127.8.0.1", "", true),
            ("https://[::1]:6443", "", true),
            ("https://[::ffff:127.0.0.1]", "", true),
            ("https://a.example.com", "*", true),
            ("https://10.0.0.1", "x, * ", true),
            ("https://a.example.com", "*.com", true),
            ("https://a.example.com", "example.com", true),
            ("https://example.com", "example.com", true),
            ("https://EXAMPLE.com", "Example.COM", true),
            ("https://a.example.com", ".example.com", true),
            ("https://example.com", ".example.com", false),
            ("https://example.com", "*.example.com", false),
            ("https://notexample.com", "example.com", false),
            ("https://a.example.com", "b, ,a.example.com", true),
            ("https://a.example.com", "example.com:443", true),
            ("https://a.example.com", "example.com:6443", false),
            ("http://a.example.com", "example.com:80", true),
            ("https://a.example.com", ":443", false),
            ("https://10.1.2.3:6443", "10.0.0.0/8", true),
            ("https://11.1.2.3:6443", "10.0.0.0/8", false),
            ("https://10.1.2.3:6443", "10.1.2.3", true),
            ("https://10.1.2.3:6443", "10.1.2.3:6443", true),
            ("https://10.1.2.3:6443", "10.1.2.3:443", false),
            ("https://10.1.2.3", "2.3", false),
            ("https://[fd00::1]:6443", "fd00::/8", true),
            ("https://[fd00::1]:6443", "fd00::1", true),
            ("https://[fd00::1]:6443", "[fd00::1]:6443", true),
            ("https://[fd00::1]:6443", "[fd00::1]:443", false),
            ("https://[fd00::1]:6443", "fd00::2", false),
        ] {
            let environment = |name: &str| match name {
                "HTTPS_PROXY" | "HTTP_PROXY" => Some("http://p:3128".to_owned()),
                "NO_PROXY" => Some(list.to_owned()),
                _ => None,
            };
            let server: Uri = server.parse().expect("a URL");
            let proxy = of_environment(environment, &server).expect("valid");
            assert_eq!(proxy.is_none(), wanted, "{server} {list:?}");
        }
    }

    #[test]
    fn each_scheme_has_a_proxy_of_its_own() {
        let proxy = |server: &str, variables: &[(&str, &str)]| {
            let environment = |name: &str| {
                let set = variables.iter().find(|(set, _)| *set == name);
                set.map(|(_, value)| (*value).to_owned())
            };
            let found = of_environment(environment, &server.parse().expect("a URL"));
            found
                .map(|found| found.map(|proxy| proxy.to_string()))
                .map_err(|error| proto_daemon::exit::chain(&error))
        };
        let some = |text: &str| Ok(Some(text.to_owned()));
        let (tls, plain) = ("https://a:6443", "http://a:8080");
        assert_eq!(proxy(tls, &[("HTTPS_PROXY", "http://p:1")]), some("p:1"));
        assert_eq!(proxy(tls, &[("https_proxy", "p:1")]), some("p:1"));
        assert_eq!(proxy(tls, &[("HTTPS_PROXY", ""), ("https_proxy", "p")]), some("p:80"));
        assert_eq!(proxy(tls, &[("HTTPS_PROXY", "a:1"), ("https_proxy", "b:1")]), some("a:1"));
        assert_eq!(proxy(tls, &[("HTTP_PROXY", "p:1"), ("ALL_PROXY", "p:1")]), Ok(None));
        assert_eq!(proxy(plain, &[("HTTP_PROXY", "p:1")]), some("p:1"));
        assert_eq!(proxy(plain, &[("HTTPS_PROXY", "p:1")]), Ok(None));
        assert_eq!(proxy(tls, &[("HTTPS_PROXY", "p:1"), ("no_proxy", "a")]), Ok(None));
        let cgi = ("REQUEST_METHOD", "GET");
        assert_eq!(proxy(tls, &[("HTTPS_PROXY", "p:1"), cgi]), some("p:1"));
        assert!(proxy(plain, &[("HTTP_PROXY", "p:1"), cgi]).is_err());
        assert_eq!(proxy(tls, &[("HTTPS_PROXY", "socks5://u:p@p")]), some("p:1080"));
        let error = proxy(tls, &[("HTTPS_PROXY", "socks4://user:secret@p:1")]);
        let wanted = "HTTPS_PROXY: unsupported scheme \"socks4\": must be http, https or socks5";
        assert_eq!(error, Err(wanted.to_owned()));
        let error = proxy(tls, &[("HTTPS_PROXY", "user:pa://ss@p")]);
        assert_eq!(error, Err("HTTPS_PROXY: it is not the URL of a proxy".to_owned()));
        let error = proxy(tls, &[("HTTPS_PROXY", "p:31280x")]);
        let wanted = "HTTPS_PROXY: its port is not a number from 1 to 65535";
        assert_eq!(error, Err(wanted.to_owned()));
    }
}
