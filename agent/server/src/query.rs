//! The query of a URL, decoded. Pure.

/// Parameters in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Query(Vec<(String, String)>);

impl Query {
    /// Parses `a=1&b=%20`; invalid escapes are kept as they are.
    pub(super) fn parse(text: &str) -> Self {
        let pairs = form_urlencoded::parse(text.as_bytes());
        Self(pairs.map(|(key, value)| (key.into_owned(), value.into_owned())).collect())
    }

    /// The first value of a parameter.
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.pairs().find(|(key, _)| *key == name).map(|(_, value)| value)
    }

    /// Every value of a parameter.
    pub(super) fn all(&self, name: &str) -> Vec<String> {
        self.pairs().filter(|(key, _)| *key == name).map(|(_, value)| value.to_owned()).collect()
    }

    pub(super) fn pairs(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(key, value)| (key.as_str(), value.as_str()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_decoded_in_order() {
        let query = Query::parse("command=sh&command=-c&command=echo%20a%26b+c&tty&x=%zz%4&=1");
        assert_eq!(query.all("command"), ["sh", "-c", "echo a&b c"]);
        assert_eq!(
            (query.get("tty"), query.get("x"), query.get("none")),
            (Some(""), Some("%zz%4"), None)
        );
    }
}
