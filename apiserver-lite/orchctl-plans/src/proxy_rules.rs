//! Which requests a local proxy passes on: patterns for hosts, paths and methods, as kubectl's.
//!
//! Paths are compared decoded, as they are and without empty and dotted parts: an escape or a detour does not lead around a pattern.

use regex::{RegexSet, RegexSetBuilder};

use crate::ArgumentError;

/// Largest compiled form of the patterns of one flag.
const PATTERNS_LEN_MAX: usize = 4 << 20;

/// Which requests are passed on.
#[derive(Clone, Debug)]
pub struct ProxyRules {
    hosts: RegexSet,
    paths: RegexSet,
    rejected_paths: RegexSet,
    rejected_methods: RegexSet,
    /// What requests begin with: a path that begins and ends with a slash.
    prefix: String,
}

/// The texts of the flags: patterns with commas between them.
#[derive(Clone, Copy, Debug)]
pub struct ProxyFlags<'a> {
    /// Hosts that requests may name.
    pub accept_hosts: &'a str,
    /// Paths that are passed on.
    pub accept_paths: &'a str,
    /// Paths that are not.
    pub reject_paths: &'a str,
    /// Methods that are not passed on.
    pub reject_methods: &'a str,
    /// The path below which the API is.
    pub api_prefix: &'a str,
}

/// What becomes of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProxyRoute {
    /// It is passed on with this path.
    Passed(String),
    /// The rules do not accept it.
    Forbidden,
    /// It is not below the prefix.
    NotFound,
}

impl ProxyRules {
    /// Reads the flags.
    ///
    /// # Errors
    /// When a pattern is none.
    pub fn parse(flags: ProxyFlags<'_>) -> Result<Self, ArgumentError> {
        let prefix = flags.api_prefix.trim_matches('/');
        Ok(Self {
            hosts: patterns("--accept-hosts", flags.accept_hosts)?,
            paths: patterns("--accept-paths", flags.accept_paths)?,
            rejected_paths: patterns("--reject-paths", flags.reject_paths)?,
            rejected_methods: patterns("--reject-methods", flags.reject_methods)?,
            prefix: if prefix.is_empty() { "/".to_owned() } else { format!("/{prefix}/") },
        })
    }

    /// Where a request leads; `path` is still encoded, `host` may have a port.
    pub fn route(&self, method: &str, host: &str, path: &str) -> ProxyRoute {
        let Some(rest) = path.strip_prefix(self.prefix.as_str()) else {
            return ProxyRoute::NotFound;
        };
        // A prefix that is one of the API's own is part of the path.
        let own = ["/api/", "/apis/"].iter().any(|own| self.prefix.starts_with(own));
        let path = if own { path.to_owned() } else { format!("/{rest}") };
        let decoded = proto_api::uri::decode(&path);
        let is_accepted = self.hosts.is_match(without_port(host))
            && !self.rejected_methods.is_match(method)
            && [direct(&decoded), decoded]
                .iter()
                .all(|path| self.paths.is_match(path) && !self.rejected_paths.is_match(path));
        if is_accepted { ProxyRoute::Passed(path) } else { ProxyRoute::Forbidden }
    }
}

/// The path without empty parts, `.` and `..`.
fn direct(path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    let end = if path.ends_with('/') && !parts.is_empty() { "/" } else { "" };
    format!("/{}{end}", parts.join("/"))
}

/// `[::1]` of `[::1]:8001`, `localhost` of `localhost:8001`.
fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) && !name.ends_with(':') => {
            // Colons of an address without brackets are no port's.
            if name.contains(':') && !name.ends_with(']') { host } else { name }
        }
        _ => host,
    }
}

fn patterns(flag: &str, text: &str) -> Result<RegexSet, ArgumentError> {
    if text.is_empty() {
        return Err(ArgumentError::new(format!(
            "{flag} is empty, which would match everything: .* does so, and ^$ matches nothing"
        )));
    }
    let set = RegexSetBuilder::new(text.split(',')).size_limit(PATTERNS_LEN_MAX).build();
    set.map_err(|error| ArgumentError::new(format!("{flag}: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEFAULTS: ProxyFlags<'_> = ProxyFlags {
        accept_hosts: r"^localhost$,^127\.0\.0\.1$,^\[::1\]$",
        accept_paths: "^.*",
        reject_paths: "^/api/.*/pods/.*/exec,^/api/.*/pods/.*/attach",
        reject_methods: "^$",
        api_prefix: "/",
    };

    fn routed(flags: ProxyFlags<'_>, method: &str, host: &str, path: &str) -> Option<String> {
        match ProxyRules::parse(flags).expect("valid").route(method, host, path) {
            ProxyRoute::Passed(path) => Some(path),
            ProxyRoute::Forbidden => Some("forbidden".to_owned()),
            ProxyRoute::NotFound => None,
        }
    }

    #[test]
    fn requests_are_judged_by_host_path_and_method() {
        let path = "/api/v1/pods";
        for (host, path, wanted) in [
            ("localhost:8001", path, path),
            ("127.0.0.1", path, path),
            ("[::1]:8001", path, path),
            ("[::1]", path, path),
            ("evil.example:8001", path, "forbidden"),
            ("localhost.evil.example", path, "forbidden"),
            ("::1", path, "forbidden"),
            ("", path, "forbidden"),
            ("localhost", "/", "/"),
            ("localhost", "/api/v1/namespaces/a/pods/b/exec", "forbidden"),
            ("localhost", "/api/v1/namespaces/a/pods/b/%65xec", "forbidden"),
            ("localhost", "/api/v1/namespaces/a/pods%2Fb%2Fattach", "forbidden"),
            ("localhost", "//api/v1/namespaces/a/pods/b/exec", "forbidden"),
            ("localhost", "/x/../api/v1/namespaces/a/pods/b/exec", "forbidden"),
            ("localhost", "/api/v1/namespaces/a/pods/b/log", "/api/v1/namespaces/a/pods/b/log"),
            (
                "localhost",
                "/api/v1/namespaces/a/services/b/proxy//c",
                "/api/v1/namespaces/a/services/b/proxy//c",
            ),
        ] {
            assert_eq!(
                routed(DEFAULTS, "GET", host, path).as_deref(),
                Some(wanted),
                "{host} {path}"
            );
        }
        let strict = ProxyFlags {
            accept_paths: "^/api/v1/pods$,^/version$",
            reject_methods: "POST,PUT",
            ..DEFAULTS
        };
        for (method, path, wanted) in [
            ("GET", "/version", "/version"),
            ("GET", "/version/", "forbidden"),
            ("GET", "/apis", "forbidden"),
            ("POST", "/version", "forbidden"),
            ("DELETE", "/version", "/version"),
        ] {
            assert_eq!(
                routed(strict, method, "localhost", path).as_deref(),
                Some(wanted),
                "{method} {path}"
            );
        }
    }

    #[test]
    fn the_api_is_below_its_prefix() {
        let below = |api_prefix, path| {
            routed(ProxyFlags { api_prefix, ..DEFAULTS }, "GET", "localhost", path)
        };
        assert_eq!(below("/k8s", "/k8s/api/v1").as_deref(), Some("/api/v1"));
        assert_eq!(below("k8s/", "/k8s/").as_deref(), Some("/"));
        assert_eq!(below("/k8s/", "/api/v1"), None);
        assert_eq!(below("/k8s/", "/k8s-other/api/v1"), None);
        assert_eq!(
            below("/k8s/", "/k8s/api/v1/namespaces/a/pods/b/exec").as_deref(),
            Some("forbidden")
        );
        assert_eq!(below("/api", "/api/v1").as_deref(), Some("/api/v1"));
        assert_eq!(below("/api", "/apis/apps"), None);
        assert_eq!(below("/api-of-mine", "/api-of-mine/api/v1").as_deref(), Some("/api/v1"));
        assert_eq!(below("/", ""), None);
    }

    #[test]
    fn patterns_that_are_none_are_refused() {
        for flags in [
            ProxyFlags { accept_hosts: "(", ..DEFAULTS },
            ProxyFlags { reject_paths: "", ..DEFAULTS },
            ProxyFlags { accept_paths: "(a{1000}){1000}", ..DEFAULTS },
        ] {
            assert!(ProxyRules::parse(flags).is_err(), "{flags:?}");
        }
    }
}
