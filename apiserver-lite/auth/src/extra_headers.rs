//! Extra attributes of a user in headers, as authenticating proxies and impersonation name them: a prefix, and behind it the key, percent-encoded.

use std::collections::BTreeMap;

use http::HeaderMap;
use proto_api::uri::decode as decode_percent;

/// The attributes in the headers that begin with one of these prefixes, which are in lower case. Values that are not text are left out.
#[must_use]
pub fn read_extra<P: AsRef<str>>(
    headers: &HeaderMap,
    prefixes: &[P],
) -> BTreeMap<String, Vec<String>> {
    let mut extra: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (header, value) in headers {
        let key = prefixes.iter().find_map(|p| header.as_str().strip_prefix(p.as_ref()));
        if let (Some(key), Ok(value)) = (key, std::str::from_utf8(value.as_bytes())) {
            extra.entry(decode_percent(key)).or_default().push(value.to_owned());
        }
    }
    extra
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn keys_are_decoded_and_values_kept_in_order() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("x-remote-extra-acme.com%2fproject", "p1"),
            ("x-remote-extra-acme.com%2fproject", "p2"),
            ("x-remote-extra-scopes", "äöü"),
            ("x-other-scopes", "not ours"),
        ] {
            headers.append(name, HeaderValue::from_bytes(value.as_bytes()).unwrap());
        }
        headers.append("x-remote-extra-odd", HeaderValue::from_bytes(b"\xff").unwrap());
        let extra = read_extra(&headers, &["x-none-", "x-remote-extra-"]);
        let pairs: Vec<_> =
            extra.iter().map(|(key, values)| (key.as_str(), values.len())).collect();
        assert_eq!(pairs, [("acme.com/project", 2), ("scopes", 1)]);
        assert_eq!(extra["acme.com/project"], ["p1", "p2"]);
        assert_eq!(extra["scopes"], ["äöü"]);
        assert!(read_extra::<&str>(&headers, &[]).is_empty());
    }
}
