//! The user and the password of a URL, as in `http://user:password@host/`: they are sent in a header, never in a request line or in `Host`. Pure.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderValue, Uri};
use proto_api::uri;

use crate::shared_token::sensitive_header;

/// The user of a URL, decoded.
#[derive(Clone, PartialEq, Eq)]
pub struct UrlUser {
    /// The part before the first colon.
    pub username: String,
    /// The rest; empty if there is none.
    pub password: String,
}

/// The URL without its user, and the user, if it has one.
pub fn split(url: &Uri) -> (Uri, Option<UrlUser>) {
    let separate = || {
        let mut parts = url.clone().into_parts();
        let authority = parts.authority.take()?;
        let (user, place) = authority.as_str().rsplit_once('@')?;
        parts.authority = Some(place.parse().ok()?);
        let (username, password) = user.split_once(':').unwrap_or((user, ""));
        let user = UrlUser { username: uri::decode(username), password: uri::decode(password) };
        Some((Uri::from_parts(parts).ok()?, Some(user)))
    };
    separate().unwrap_or_else(|| (url.clone(), None))
}

/// The header of basic authentication; `None` for what no header can have.
pub(crate) fn basic_header(username: &str, password: &str) -> Option<HeaderValue> {
    sensitive_header(&format!("Basic {}", STANDARD.encode(format!("{username}:{password}"))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_taken_out_of_a_url() {
        for (url, place, user) in [
            ("http://h/x?q=a@b", "http://h/x?q=a@b", None),
            ("http://u:p@h/x?q", "http://h/x?q", Some(("u", "p"))),
            ("https://u@h:1/", "https://h:1/", Some(("u", ""))),
            ("http://u%40x:p:%2f@[fd00::1]:1/", "http://[fd00::1]:1/", Some(("u@x", "p:/"))),
            ("http://@h/", "http://h/", Some(("", ""))),
        ] {
            let (left, found) = split(&url.parse().expect("a URL"));
            assert_eq!(left.to_string(), place, "{url}");
            let found = found.as_ref().map(|user| (&*user.username, &*user.password));
            assert_eq!(found, user, "{url}");
        }
    }
}
