//! Users named by an authenticating proxy: it shows a client certificate of its own authority and names the user in headers.

use http::{HeaderMap, HeaderName, HeaderValue};

use crate::extra_headers::read_extra;
use crate::user::User;

/// The flags `--requestheader-*`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestHeaderSettings {
    /// Common names that a proxy's certificate may have; any when empty.
    pub allowed_names: Vec<String>,
    /// Headers with the user's name; the first one that is set counts.
    pub username: Vec<HeaderName>,
    /// Headers with groups.
    pub group: Vec<HeaderName>,
    /// Prefixes of headers with extra attributes, in lower case.
    pub extra_prefix: Vec<String>,
}

/// Reads the user from the headers of a proxy.
#[derive(Clone, Debug)]
pub struct RequestHeaders(pub RequestHeaderSettings);

impl RequestHeaders {
    /// Whether a proxy whose certificate has this common name may name users.
    #[must_use]
    pub fn allows(&self, common_name: &str) -> bool {
        self.0.allowed_names.is_empty() || self.0.allowed_names.iter().any(|n| n == common_name)
    }

    /// The user in the headers of a request that came from an allowed proxy; `None` when they name none.
    #[must_use]
    pub fn user(&self, headers: &HeaderMap) -> Option<User> {
        let text = |value: &HeaderValue| {
            let text = std::str::from_utf8(value.as_bytes()).ok()?;
            (!text.is_empty()).then(|| text.to_owned())
        };
        let name = self.0.username.iter().find_map(|header| text(headers.get(header)?))?;
        let groups = self.0.group.iter().flat_map(|header| headers.get_all(header));
        let groups = groups.filter_map(text);
        let extra = read_extra(headers, &self.0.extra_prefix);
        let user = User { name, groups: groups.collect(), extra, ..User::default() };
        Some(user.authenticated())
    }

    /// Removes what named the user, so that nothing behind the authentication takes it for the client's.
    pub fn strip(&self, headers: &mut HeaderMap) {
        for name in self.0.username.iter().chain(&self.0.group) {
            headers.remove(name);
        }
        let extra: Vec<HeaderName> = headers
            .keys()
            .filter(|name| self.0.extra_prefix.iter().any(|p| name.as_str().starts_with(p)))
            .cloned()
            .collect();
        extra.iter().for_each(|name| drop(headers.remove(name)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reader(allowed: &[&str]) -> RequestHeaders {
        RequestHeaders(RequestHeaderSettings {
            allowed_names: allowed.iter().map(|name| (*name).to_owned()).collect(),
            username: vec![
                HeaderName::from_static("x-remote-user"),
                HeaderName::from_static("x-other-user"),
            ],
            group: vec![HeaderName::from_static("x-remote-group")],
            extra_prefix: vec!["x-remote-extra-".to_owned()],
        })
    }

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in pairs {
            map.append(*name, value.parse().unwrap());
        }
        map
    }

    #[test]
    fn headers_name_user_groups_and_extra() {
        let given = [
            ("x-remote-user", ""),
            ("x-other-user", "alice"),
            ("x-remote-group", "dev"),
            ("x-remote-group", ""),
            ("x-remote-group", "ops"),
            ("x-remote-extra-acme.com%2Fproject", "p1"),
            ("x-remote-extra-acme.com%2Fproject", "p2"),
        ];
        let user = reader(&[]).user(&headers(&given)).unwrap();
        assert_eq!(user.name, "alice");
        assert_eq!(user.groups, ["dev", "ops", "system:authenticated"]);
        assert_eq!(user.extra["acme.com/project"], ["p1", "p2"]);
        assert_eq!(reader(&[]).user(&headers(&given[2..])), None, "no user is named");
    }

    #[test]
    fn only_allowed_names_are_proxies_and_headers_do_not_pass() {
        assert!(reader(&[]).allows("any") && reader(&["front"]).allows("front"));
        assert!(!reader(&["front"]).allows("any"));
        let mut map =
            headers(&[("x-remote-user", "a"), ("x-remote-extra-k", "v"), ("accept", "x")]);
        reader(&[]).strip(&mut map);
        assert_eq!(map.keys().map(HeaderName::as_str).collect::<Vec<_>>(), ["accept"]);
    }
}
