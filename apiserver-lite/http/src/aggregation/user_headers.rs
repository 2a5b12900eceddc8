//! The headers by which this server, as an authenticating proxy, names the user of a request to another API server.

use std::fmt::Write as _;

use apiserver_auth::{MASTERS, User};
use http::{HeaderMap, HeaderName, HeaderValue};
use proto_api::names::Names;

const USER: HeaderName = HeaderName::from_static("x-remote-user");
const GROUP: HeaderName = HeaderName::from_static("x-remote-group");
const UID: HeaderName = HeaderName::from_static("x-remote-uid");
const EXTRA: &str = "x-remote-extra-";

/// Removes what a client has sent under these names.
pub fn remove(headers: &mut HeaderMap) {
    let is_of_user =
        |name: &&HeaderName| [USER, GROUP, UID].contains(name) || name.as_str().starts_with(EXTRA);
    let found: Vec<HeaderName> = headers.keys().filter(is_of_user).cloned().collect();
    found.iter().for_each(|name| drop(headers.remove(name)));
}

/// The headers of a user; `None` if a text of it cannot stand in a header.
pub fn user_headers(user: &User) -> Option<HeaderMap> {
    let value = |text: &str| HeaderValue::from_bytes(text.as_bytes()).ok();
    let mut headers = HeaderMap::new();
    headers.insert(USER, value(&user.name)?);
    for group in &user.groups {
        headers.append(GROUP, value(group)?);
    }
    for (key, texts) in &user.extra {
        let name = format!("{EXTRA}{}", escape(key));
        let name = HeaderName::from_bytes(name.as_bytes()).ok()?;
        for text in texts {
            headers.append(name.clone(), value(text)?);
        }
    }
    Some(headers)
}

/// The headers of this server itself, which reads what other servers say of themselves.
pub fn of_this_server(names: &Names) -> HeaderMap {
    let groups = vec![MASTERS.to_owned()];
    user_headers(&User { name: names.user("aggregator"), groups, ..User::default() })
        .unwrap_or_default()
}

/// A key as the end of a header's name: what cannot stand there is escaped, and `%` itself.
fn escape(key: &str) -> String {
    let mut escaped = String::with_capacity(key.len());
    for byte in key.bytes() {
        if byte.is_ascii_alphanumeric() || b"!#$&'*+-.^_`|~".contains(&byte) {
            escaped.push(char::from(byte));
        } else {
            let _ = write!(escaped, "%{byte:02X}");
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_named_by_headers_of_this_server_only() {
        let user = User {
            name: "jäne".to_owned(),
            uid: "7".to_owned(),
            groups: vec!["a".to_owned(), "system:authenticated".to_owned()],
            extra: [("example.com/Team %".to_owned(), vec!["x".to_owned(), "y".to_owned()])].into(),
        };
        let mut headers = HeaderMap::new();
        for name in
            ["x-remote-user", "x-remote-group", "x-remote-uid", "x-remote-extra-scopes", "x-other"]
        {
            headers.append(name, HeaderValue::from_static("root"));
        }
        remove(&mut headers);
        assert_eq!(headers.len(), 1);
        let made = user_headers(&user).unwrap();
        let all = |name: &str| {
            let text = |value: &HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
            made.get_all(name).iter().map(text).collect::<Vec<_>>()
        };
        assert_eq!(all("x-remote-user"), ["jäne"]);
        assert_eq!(all("x-remote-group"), ["a", "system:authenticated"]);
        assert_eq!(all("x-remote-extra-example.com%2fteam%20%25"), ["x", "y"]);
        assert_eq!(made.len(), 5);
    }

    #[test]
    fn user_names_with_line_breaks_are_not_forwarded() {
        let name = "a\r\nx-remote-group: system:masters".to_owned();
        assert!(user_headers(&User { name, ..User::default() }).is_none());
    }
}
