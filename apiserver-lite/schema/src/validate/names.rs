//! Grammars of names, label values and keys. Each function returns the violated rules.

use std::net::IpAddr;

use proto_api::dns_names::{LABEL_MAX, NAME_MAX, has_label_form};

/// Checks an RFC 1123 label: `web-1`.
pub fn dns_label(text: &str) -> Vec<String> {
    let mut wrong = no_longer_than(text, LABEL_MAX);
    if !has_label_form(text) {
        wrong.push(
            "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start \
             and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is \
             '[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
                .to_owned(),
        );
    }
    wrong
}

/// Checks an RFC 1123 subdomain: labels joined by dots.
pub fn dns_subdomain(text: &str) -> Vec<String> {
    let mut wrong = no_longer_than(text, NAME_MAX);
    if !text.split('.').all(has_label_form) {
        wrong.push(
            "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must \
             start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is \
             '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
                .to_owned(),
        );
    }
    wrong
}

/// Checks an RFC 1035 label: like [`dns_label`], starting with a letter.
pub fn dns_1035_label(text: &str) -> Vec<String> {
    let mut wrong = no_longer_than(text, LABEL_MAX);
    if !has_label_form(text) || !text.starts_with(|c: char| c.is_ascii_lowercase()) {
        wrong.push(
            "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic \
             character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for \
             validation is '[a-z]([-a-z0-9]*[a-z0-9])?')"
                .to_owned(),
        );
    }
    wrong
}

/// Checks a path segment: role names, which may contain colons.
pub fn path_segment(text: &str) -> Vec<String> {
    if text == "." || text == ".." {
        return vec![format!("may not be '{text}'")];
    }
    let bad = ['/', '%'].into_iter().filter(|&c| text.contains(c));
    bad.map(|c| format!("may not contain '{c}'")).collect()
}

/// Checks a label or annotation key: a name, or a subdomain, a slash and a name.
pub fn qualified_name(text: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    let name = match text.split_once('/') {
        None => text,
        Some((_, name)) if name.contains('/') => {
            return vec![format!(
                "a qualified name {NAME_RULE} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
            )];
        }
        Some(("", name)) => {
            wrong.push("prefix part must be non-empty".to_owned());
            name
        }
        Some((prefix, name)) => {
            wrong.extend(dns_subdomain(prefix).into_iter().map(|why| format!("prefix part {why}")));
            name
        }
    };
    if name.is_empty() {
        wrong.push("name part must be non-empty".to_owned());
    }
    wrong.extend(no_longer_than(name, LABEL_MAX).into_iter().map(|why| format!("name part {why}")));
    if !is_token(name) {
        wrong.push(format!("name part {NAME_RULE}"));
    }
    wrong
}

const NAME_RULE: &str = "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an \
     alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is \
     '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";

/// Checks a label value, which may be empty.
pub fn label_value(text: &str) -> Vec<String> {
    let mut wrong = no_longer_than(text, LABEL_MAX);
    if !text.is_empty() && !is_token(text) {
        wrong.push(
            "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must \
             start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used \
             for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
                .to_owned(),
        );
    }
    wrong
}

/// Checks a key of a ConfigMap or Secret, which becomes a file name.
pub fn config_key(text: &str) -> Vec<String> {
    let mut wrong = no_longer_than(text, NAME_MAX);
    if text.is_empty() || !text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b)) {
        wrong.push(
            "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or \
             'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')"
                .to_owned(),
        );
    }
    wrong.extend(not_of_directories(text));
    wrong
}

/// What is wrong with a text that is, or begins as, the name of this directory or of the one above.
fn not_of_directories(text: &str) -> Option<String> {
    match text {
        "." => Some("must not be '.'".to_owned()),
        ".." => Some("must not be '..'".to_owned()),
        _ if text.starts_with("..") => Some("must not start with '..'".to_owned()),
        _ => None,
    }
}

/// Checks the name of an environment variable.
pub fn env_name(text: &str) -> Vec<String> {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-._".contains(&b);
    let mut wrong = Vec::new();
    if text.is_empty() || !text.bytes().all(plain) || text.starts_with(|c: char| c.is_ascii_digit())
    {
        wrong.push(
            "a valid environment variable name must consist of alphabetic characters, digits, '_', '-', or '.', and must \
             not start with a digit (e.g. 'my.env-name',  or 'MY_ENV.NAME',  or 'MyEnvName1', regex used for validation \
             is '[-._a-zA-Z][-._a-zA-Z0-9]*')"
                .to_owned(),
        );
    }
    wrong.extend(not_of_directories(text));
    wrong
}

/// Checks a path after a domain, as `example.com/controller`.
pub fn domain_path(text: &str) -> Vec<String> {
    let (domain, path) = text.split_once('/').unwrap_or((text, ""));
    if domain.is_empty() || path.is_empty() {
        return vec!["must be a domain-prefixed path (such as \"acme.io/foo\")".to_owned()];
    }
    let mut wrong = dns_subdomain(domain);
    let allowed = |b: u8| b.is_ascii_alphanumeric() || b"/-._~%!$&'()*+,;=:".contains(&b);
    if !path.bytes().all(allowed) {
        wrong.push("a valid path has letters, digits and /-._~%!$&'()*+,;=: only".to_owned());
    }
    wrong
}

/// Checks a port name (IANA service name).
pub fn port_name(text: &str) -> Vec<String> {
    let mut wrong = no_longer_than(text, 15);
    if !text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-') {
        wrong.push(
            "must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)".to_owned(),
        );
    }
    if !text.bytes().any(|b| b.is_ascii_lowercase()) {
        wrong.push("must contain at least one letter (a-z)".to_owned());
    }
    if text.contains("--") {
        wrong.push("must not contain consecutive hyphens".to_owned());
    }
    if text.starts_with('-') || text.ends_with('-') {
        wrong.push("must not begin or end with a hyphen".to_owned());
    }
    wrong
}

/// Checks a port number.
pub fn port_number(port: i64) -> Vec<String> {
    if (1..=65535).contains(&port) {
        return Vec::new();
    }
    vec!["must be between 1 and 65535, inclusive".to_owned()]
}

/// Checks an IPv4 or IPv6 address.
pub fn ip_address(text: &str) -> Vec<String> {
    if text.parse::<IpAddr>().is_ok() {
        return Vec::new();
    }
    vec!["must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)".to_owned()]
}

/// Checks a CIDR: address and prefix length.
pub fn cidr(text: &str) -> Vec<String> {
    let fits = |(address, length): (&str, &str)| {
        let address: IpAddr = address.parse().ok()?;
        let length: u8 = length.parse().ok()?;
        Some(length <= if address.is_ipv4() { 32 } else { 128 })
    };
    if text.split_once('/').and_then(fits) == Some(true) {
        return Vec::new();
    }
    vec!["must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)".to_owned()]
}

/// Whether the text is alphanumeric at both ends with `-`, `_` and `.` in between.
fn is_token(text: &str) -> bool {
    let end = |b: Option<&u8>| b.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = text.as_bytes();
    let inner = |b: &u8| b.is_ascii_alphanumeric() || b"-_.".contains(b);
    end(bytes.first()) && end(bytes.last()) && bytes.iter().all(inner)
}

fn no_longer_than(text: &str, limit: usize) -> Vec<String> {
    if text.len() <= limit {
        return Vec::new();
    }
    vec![format!("must be no more than {limit} characters")]
}
