//! Formats of strings that Kubernetes checks. Other formats are not checked.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::LazyLock;

use base64::Engine as _;
use base64::engine::{GeneralPurpose, GeneralPurposeConfig};
use regex::Regex;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::times;

/// Whether `text` has `format`, which is written without dashes; true for formats that are not known.
pub(crate) fn fits(format: &str, text: &str) -> bool {
    match format {
        "bsonobjectid" => text.len() == 24 && text.bytes().all(|b| b.is_ascii_hexdigit()),
        "uri" => is_request_uri(text),
        "email" => is_email(text),
        "hostname" => is_host_name(text),
        "ipv4" => text.parse::<Ipv4Addr>().is_ok(),
        "ipv6" => text.contains(':') && text.parse::<Ipv6Addr>().is_ok(),
        "cidr" => text.parse::<ipnet::IpNet>().is_ok(),
        "mac" => is_mac(text),
        "uuid" => is_uuid(text, None),
        "uuid3" => is_uuid(text, Some(b'3')),
        "uuid4" => is_uuid(text, Some(b'4')),
        "uuid5" => is_uuid(text, Some(b'5')),
        "isbn" => is_isbn10(text) || is_isbn13(text),
        "isbn10" => is_isbn10(text),
        "isbn13" => is_isbn13(text),
        "creditcard" => is_credit_card(text),
        "ssn" => matches(&SSN, text),
        "hexcolor" => matches(&HEX_COLOR, text),
        "rgbcolor" => matches(&RGB_COLOR, text),
        "byte" => !text.is_empty() && decode_bytes(text).is_some(),
        "date" => times::parse_date(text).is_some(),
        "duration" => times::parse_long_duration(text).is_some(),
        "datetime" => OffsetDateTime::parse(text, &Rfc3339).is_ok(),
        _ => true,
    }
}

/// Base64 of any text of the format `byte`: bits that belong to no byte may be set.
static BYTES: GeneralPurpose = GeneralPurpose::new(
    &base64::alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_allow_trailing_bits(true),
);

/// The bytes of a text of the format `byte`.
pub(crate) fn decode_bytes(text: &str) -> Option<Vec<u8>> {
    BYTES.decode(text).ok()
}

type Pattern = LazyLock<Option<Regex>>;

static SSN: Pattern = LazyLock::new(|| Regex::new(r"^[0-9]{3}[- ]?[0-9]{2}[- ]?[0-9]{4}$").ok());
static HEX_COLOR: Pattern =
    LazyLock::new(|| Regex::new(r"^#?([0-9a-fA-F]{3}|[0-9a-fA-F]{6})$").ok());
static RGB_COLOR: Pattern = LazyLock::new(|| {
    const PART: &str = r"\s*(0|[1-9][0-9]?|1[0-9][0-9]?|2[0-4][0-9]|25[0-5])\s*";
    Regex::new(&format!(r"^rgb\({PART},{PART},{PART}\)$")).ok()
});
static CREDIT_CARD: Pattern = LazyLock::new(|| {
    let visa = "4[0-9]{12}(?:[0-9]{3})?";
    let master = "5[1-5][0-9]{14}";
    let discover = "6(?:011|5[0-9][0-9])[0-9]{12}";
    let express = "3[47][0-9]{13}";
    let diners = "3(?:0[0-5]|[68][0-9])[0-9]{11}";
    let jcb = "(?:2131|1800|35[0-9]{3})[0-9]{11}";
    Regex::new(&format!("^(?:{visa}|{master}|{discover}|{express}|{diners}|{jcb})$")).ok()
});
fn matches(pattern: &Pattern, text: &str) -> bool {
    pattern.as_ref().is_some_and(|pattern| pattern.is_match(text))
}

/// An absolute URI, or an absolute path. Of what Go's `url.ParseRequestURI` checks: its escapes, its brackets and its port.
fn is_request_uri(text: &str) -> bool {
    if text.contains(|c: char| c.is_ascii_control()) {
        return false;
    }
    let (scheme, rest) = match text.strip_prefix('/') {
        Some(_) => ("", text),
        None => match text.split_once(':') {
            Some((scheme, rest)) if !scheme.is_empty() => (scheme, rest),
            _ => return false,
        },
    };
    let scheme_fits = scheme.is_empty()
        || scheme.starts_with(|c: char| c.is_ascii_alphabetic())
            && scheme.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c));
    if !scheme_fits {
        return false;
    }
    // What follows a scheme without a slash is opaque.
    if !rest.starts_with('/') {
        return true;
    }
    let rest = rest.split_once('?').map_or(rest, |(path, _)| path);
    let (authority, path) = match rest.strip_prefix("//").filter(|_| !scheme.is_empty()) {
        Some(rest) => rest.split_at(rest.find('/').unwrap_or(rest.len())),
        None => ("", rest),
    };
    has_whole_escapes(path) && is_authority(authority)
}

/// Whether two hexadecimal digits follow each `%`.
pub(crate) fn has_whole_escapes(text: &str) -> bool {
    text.split('%').skip(1).all(|after| {
        after.as_bytes().get(..2).is_some_and(|code| code.iter().all(u8::is_ascii_hexdigit))
    })
}

/// A user, a host or an address in brackets, and a port of digits, of which only the host cannot be left out.
fn is_authority(text: &str) -> bool {
    let (user, host) = text.rsplit_once('@').unwrap_or(("", text));
    let (host, port) = match host.strip_prefix('[') {
        Some(rest) => match rest.split_once(']') {
            Some((address, port)) => (address, port),
            None => return false,
        },
        None => host.split_at(host.rfind(':').unwrap_or(host.len())),
    };
    let port_fits = match port.strip_prefix(':') {
        Some(digits) => digits.bytes().all(|b| b.is_ascii_digit()),
        None => port.is_empty(),
    };
    !host.contains([' ', '#', '\\', '^', '`', '{', '|', '}'])
        && has_whole_escapes(user)
        && has_whole_escapes(host)
        && port_fits
}

/// An address such as `a@b.c`, also with a name before it: `A <a@b.c>`.
fn is_email(text: &str) -> bool {
    let address = match text.strip_suffix('>').and_then(|text| text.rsplit_once('<')) {
        Some((_, address)) => address,
        None => text,
    };
    let Some((local, domain)) = address.rsplit_once('@') else { return false };
    let atom = |c: char| c.is_alphanumeric() || "!#$%&'*+-/=?^_`{|}~.".contains(c) || !c.is_ascii();
    let dots = |part: &str| part.split('.').all(|piece| !piece.is_empty());
    dots(local) && local.chars().all(atom) && dots(domain) && domain.chars().all(atom)
}

/// Labels of letters, digits, `-` and `_`, joined by dots; at most 255 bytes.
fn is_host_name(text: &str) -> bool {
    let label = |label: &str| {
        let ends = |c: Option<char>| c.is_some_and(char::is_alphanumeric);
        let inner = |c: char| c.is_alphanumeric() || c == '-' || c == '_';
        label.len() <= 63
            && ends(label.chars().next())
            && ends(label.chars().last())
            && label.chars().all(inner)
    };
    text.len() <= 255 && text.strip_suffix('.').unwrap_or(text).split('.').all(label)
}

/// 6, 8 or 20 bytes in hexadecimal, joined by `:` or `-`, or two at a time by `.`.
fn is_mac(text: &str) -> bool {
    let groups = |separator: char, width: usize, counts: [usize; 3]| {
        let parts: Vec<&str> = text.split(separator).collect();
        counts.contains(&parts.len())
            && parts
                .iter()
                .all(|part| part.len() == width && part.bytes().all(|b| b.is_ascii_hexdigit()))
    };
    groups(':', 2, [6, 8, 20]) || groups('-', 2, [6, 8, 20]) || groups('.', 4, [3, 4, 10])
}

/// 32 hexadecimal digits in groups of 8, 4, 4, 4 and 12, with or without dashes between them.
fn is_uuid(text: &str, version: Option<u8>) -> bool {
    let mut rest = text;
    for (at, width) in [8, 4, 4, 4, 12].into_iter().enumerate() {
        if at > 0 {
            rest = rest.strip_prefix('-').unwrap_or(rest);
        }
        let Some((group, after)) = rest.split_at_checked(width) else { return false };
        let first = group.bytes().next();
        let fits = match (at, version) {
            (2, Some(version)) => first == Some(version),
            (3, Some(b'4' | b'5')) => first.is_some_and(|b| b"89abAB".contains(&b)),
            _ => true,
        };
        if !fits || !group.bytes().all(|b| b.is_ascii_hexdigit()) {
            return false;
        }
        rest = after;
    }
    rest.is_empty()
}

fn without_separators(text: &str) -> Vec<u8> {
    text.bytes().filter(|b| *b != b'-' && *b != b' ').collect()
}

fn digit(byte: u8) -> Option<u32> {
    byte.is_ascii_digit().then(|| u32::from(byte.saturating_sub(b'0')))
}

fn is_isbn10(text: &str) -> bool {
    let digits = without_separators(text);
    if digits.len() != 10 {
        return false;
    }
    let weighted = digits.iter().zip(1_u32..).map(|(&byte, weight)| {
        let value = if byte == b'X' && weight == 10 { Some(10) } else { digit(byte) };
        value.map(|value| value.saturating_mul(weight))
    });
    let sum: Option<u32> = weighted.sum();
    sum.is_some_and(|sum| sum % 11 == 0)
}

fn is_isbn13(text: &str) -> bool {
    let digits = without_separators(text);
    if digits.len() != 13 {
        return false;
    }
    let weighted = digits.iter().enumerate().map(|(at, &byte)| {
        digit(byte).map(|value| value.saturating_mul(if at % 2 == 0 { 1 } else { 3 }))
    });
    let sum: Option<u32> = weighted.sum();
    sum.is_some_and(|sum| sum % 10 == 0)
}

fn is_credit_card(text: &str) -> bool {
    let digits: String = text.chars().filter(char::is_ascii_digit).collect();
    if !matches(&CREDIT_CARD, &digits) {
        return false;
    }
    let doubled = digits.bytes().rev().enumerate().filter_map(|(at, byte)| {
        let value = digit(byte)?;
        if at % 2 == 0 {
            return Some(value);
        }
        let twice = value.saturating_mul(2);
        Some(if twice > 9 { twice.saturating_sub(9) } else { twice })
    });
    doubled.fold(0_u32, u32::saturating_add) % 10 == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_formats_are_checked() {
        let cases = [
            ("ipv4", "10.0.0.1", "10.0.0.256"),
            ("ipv6", "::1", "10.0.0.1"),
            ("cidr", "10.0.0.0/8", "10.0.0.0"),
            ("mac", "01:23:45:67:89:ab", "01:23:45:67:89"),
            ("uuid", "123e4567-e89b-12d3-a456-426614174000", "123e4567"),
            (
                "uuid4",
                "123e4567-e89b-42d3-a456-426614174000",
                "123e4567-e89b-12d3-a456-426614174000",
            ),
            ("email", "a@example.com", "a@"),
            ("hostname", "a.example.com", "-a.example.com"),
            ("uri", "https://example.com/a", "example"),
            ("uri", "/a%20b?c=%zz", "/a%zzb"),
            ("uri", "https://u@[::1]:8080/", "https://[::1/"),
            ("uri", "https://example.com:/", "https://example.com:http/"),
            ("uri", "mailto:a%zz", "1a:b"),
            ("uri", "/a b", "https://a b/"),
            ("byte", "aGk=", "a?"),
            ("byte", "aGl=", "aGk"),
            ("byte", "+/+/", ""),
            ("date", "2024-02-29", "2023-02-29"),
            ("datetime", "2024-02-29T10:00:00Z", "2024-02-29 10:00"),
            ("duration", "1h30m", "1x"),
            ("duration", "2 days", "days"),
            ("duration", "1 week and 3 HOURS", "3 hrs"),
            ("uri", "https://h/?a#b", "https://h#b"),
            ("isbn10", "0321751043", "0321751044"),
            ("isbn13", "978-0321751041", "978-0321751042"),
            ("creditcard", "4111-1111-1111-1111", "4111-1111-1111-1112"),
            ("ssn", "111-22-3333", "111-22-333"),
            ("hexcolor", "#fff", "#ff"),
            ("rgbcolor", "rgb(255, 0, 1)", "rgb(256,0,0)"),
            ("bsonobjectid", "507f1f77bcf86cd799439011", "507f"),
        ];
        for (format, good, bad) in cases {
            assert!(fits(format, good), "{format} {good}");
            assert!(!fits(format, bad), "{format} {bad}");
        }
        assert!(fits("int32", "anything") && fits("password", "anything"));
    }
}
