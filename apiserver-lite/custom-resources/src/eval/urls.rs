//! URLs in rules: absolute ones, and absolute paths.

use std::collections::HashMap;
use std::rc::Rc;

use super::value::{Entries, Val};
use crate::formats;

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Url {
    pub(crate) text: String,
    scheme: String,
    host: String,
    path: String,
    query: String,
}

impl Url {
    /// Reads an URL as `url()` does.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        if !formats::fits("uri", text) {
            return None;
        }
        let whole = text.split_once('#').map_or(text, |(before, _)| before);
        let (scheme, rest) = match whole.starts_with('/') {
            true => ("", whole),
            false => whole.split_once(':')?,
        };
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let authority = rest.strip_prefix("//");
        let (host, path) = match authority {
            Some(authority) if !scheme.is_empty() || !authority.starts_with('/') => {
                authority.split_at(authority.find('/').unwrap_or(authority.len()))
            }
            _ if rest.starts_with('/') => ("", rest),
            // What follows a scheme without a slash has no parts.
            _ => ("", ""),
        };
        let host = host.rsplit_once('@').map_or(host, |(_, host)| host);
        Some(Url {
            text: text.to_owned(),
            scheme: scheme.to_ascii_lowercase(),
            host: host.to_owned(),
            path: escape_path(path),
            query: query.to_owned(),
        })
    }

    /// Host and port.
    fn split(&self) -> (&str, &str) {
        if let Some(end) = self.host.rfind(']') {
            let (host, port) = self.host.split_at(end.saturating_add(1));
            let host =
                host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
            return (host, port.strip_prefix(':').unwrap_or_default());
        }
        self.host.rsplit_once(':').unwrap_or((&self.host, ""))
    }

    fn port(&self) -> &str {
        self.split().1
    }

    /// A part of the URL, by the name of its function.
    pub(crate) fn part<'a>(&self, function: &str) -> Option<Val<'a>> {
        Some(match function {
            "getScheme" => Val::text(self.scheme.as_str()),
            "getHost" => Val::text(self.host.as_str()),
            "getHostname" => Val::text(self.split().0),
            "getPort" => Val::text(self.port()),
            "getEscapedPath" => Val::text(self.path.as_str()),
            "getQuery" => self.query_map(),
            _ => return None,
        })
    }

    fn query_map<'a>(&self) -> Val<'a> {
        let mut found: Vec<(String, Vec<Val<'a>>)> = Vec::new();
        let mut places: HashMap<String, usize> = HashMap::new();
        let is_whole = |part: &&str| !part.contains(';') && formats::has_whole_escapes(part);
        let parts = self.query.split('&').filter(is_whole);
        let parts = parts.flat_map(|part| form_urlencoded::parse(part.as_bytes()));
        for (key, value) in parts.take(1_000) {
            let value = Val::text(&*value);
            match places.get(&*key).and_then(|at| found.get_mut(*at)) {
                Some((_, values)) => values.push(value),
                None => {
                    places.insert(key.to_string(), found.len());
                    found.push((key.into_owned(), vec![value]));
                }
            }
        }
        let entries = found.into_iter().map(|(key, values)| (Val::text(key), Val::list(values)));
        Val::Map(Entries::Made(Rc::new(entries.collect())))
    }
}

/// The path as it is if it has only what a path may have, and escaped otherwise.
fn escape_path(path: &str) -> String {
    if path.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.~!$&'()*+,;=:@[]/%".contains(&b)) {
        return path.to_owned();
    }
    let mut out = String::with_capacity(path.len());
    let mut rest = path.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let escaped = (*first == b'%').then(|| after.split_at_checked(2)).flatten();
        let escaped = escaped.and_then(|(code, after)| {
            let code = std::str::from_utf8(code).ok()?;
            Some((u8::from_str_radix(code, 16).ok()?, after))
        });
        let (byte, after) = escaped.unwrap_or((*first, after));
        if byte.is_ascii_alphanumeric() || b"-_.~$&+,/:;=@".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
        rest = after;
    }
    out
}
