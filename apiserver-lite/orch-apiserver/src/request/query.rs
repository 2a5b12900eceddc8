//! The query string of a request: decoded once, asked by name.

use crate::status::ApiError;

/// Decoded pairs in the order given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Query(Vec<(String, String)>);

/// Pairs that are looked at; more is an attack or a mistake.
const PAIRS_MAX: usize = 256;

impl Query {
    /// Decodes `a=b&c=d` with `+` as a space. Broken escapes are kept as they stand.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let pair = |part: &str| {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            (decode(&name.replace('+', " ")), decode(&value.replace('+', " ")))
        };
        Self(text.split('&').filter(|part| !part.is_empty()).take(PAIRS_MAX).map(pair).collect())
    }

    /// The first value of `name`; present but empty is `Some("")`.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// The first value of `name`, empty counting as absent.
    #[must_use]
    pub fn text(&self, name: &str) -> Option<&str> {
        self.get(name).filter(|value| !value.is_empty())
    }

    /// All values of `name`.
    pub fn all(&self, name: &str) -> impl Iterator<Item = &str> {
        self.0.iter().filter(move |(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// Whether `name` is set: `1`, `true` or present without a value, as Kubernetes reads booleans.
    #[must_use]
    pub fn flag(&self, name: &str) -> bool {
        self.get(name)
            .is_some_and(|value| !matches!(value, "0" | "false" | "False" | "FALSE" | "f" | "F"))
    }

    /// A number.
    ///
    /// # Errors
    /// 400 naming the parameter when it is there and no number of at least 0.
    pub fn number(&self, name: &str) -> Result<Option<u64>, ApiError> {
        self.text(name)
            .map(|value| {
                value.parse().map_err(|_| {
                    ApiError::bad_request(format!("invalid value {value:?} for {name}"))
                })
            })
            .transpose()
    }
}

/// Percent-decoding; a broken escape stays as it is, bytes that are no UTF-8 become U+FFFD.
#[must_use]
pub fn decode(text: &str) -> String {
    if !text.contains('%') {
        return text.to_owned();
    }
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        let escape = || {
            let mut ahead = bytes.clone();
            let high = (ahead.next()? as char).to_digit(16)?;
            let low = (ahead.next()? as char).to_digit(16)?;
            u8::try_from(high * 16 + low).ok()
        };
        match (byte == b'%').then(escape).flatten() {
            Some(decoded) => {
                out.push(decoded);
                bytes.nth(1);
            }
            None => out.push(byte),
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decodes_names_and_values() {
        let query = Query::parse(
            "labelSelector=a%3Db%2Cc+in+%28d%29&watch&limit=5&container=a&container=b",
        );
        assert_eq!(query.get("labelSelector"), Some("a=b,c in (d)"));
        assert!(query.flag("watch"));
        assert_eq!(query.number("limit").unwrap(), Some(5));
        assert_eq!(query.all("container").collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(query.text("watch"), None);
    }

    #[test]
    fn broken_escapes_stay() {
        assert_eq!(decode("a%2"), "a%2");
        assert_eq!(decode("%zz%41"), "%zzA");
        assert!(Query::parse("limit=x").number("limit").is_err());
        assert!(!Query::parse("watch=false").flag("watch"));
    }
}
