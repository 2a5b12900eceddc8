//! URLs in rules: absolute ones, and absolute paths.

use std::collections::HashMap;
use std::rc::Rc;

use super::value::{Entries, Val};

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
        if text.is_empty() || text.chars().any(|c| c.is_control() || c == ' ') {
            return None;
        }
        let (scheme, rest) = if text.starts_with('/') {
            ("", text)
        } else {
            let (scheme, rest) = text.split_once(':')?;
            let starts = scheme.starts_with(|c: char| c.is_ascii_alphabetic());
            let fits = scheme.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c));
            if !starts || !fits || !rest.starts_with('/') {
                return None;
            }
            (scheme, rest)
        };
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (host, path) = match rest.strip_prefix("//").filter(|_| !scheme.is_empty()) {
            Some(authority) => match authority.find('/') {
                Some(at) => authority.split_at(at),
                None => (authority, ""),
            },
            None => ("", rest),
        };
        let host = host.rsplit_once('@').map_or(host, |(_, host)| host);
        let url = Url {
            text: text.to_owned(),
            scheme: scheme.to_ascii_lowercase(),
            host: host.to_owned(),
            path: path.to_owned(),
            query: query.to_owned(),
        };
        let port = url.port();
        let fits = port.bytes().all(|b| b.is_ascii_digit()) && valid_escapes(path);
        fits.then_some(url)
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
        for (key, value) in form_urlencoded::parse(self.query.as_bytes()).take(1_000) {
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

fn valid_escapes(path: &str) -> bool {
    path.split('%').skip(1).all(|after| {
        let mut digits = after.bytes().take(2);
        let mut hex = || digits.next().is_some_and(|b| b.is_ascii_hexdigit());
        hex() && hex()
    })
}
