//! The query of a URL, decoded. Pure.

/// Parameters in their order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Query(Vec<(String, String)>);

impl Query {
    /// Reads `a=1&b=%20`; what is wrongly escaped stays as it is.
    pub(super) fn parse(text: &str) -> Self {
        let pairs = text.split('&').filter(|pair| !pair.is_empty());
        let decode = |pair: &str| {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            (unescape(key), unescape(value))
        };
        Self(pairs.map(decode).collect())
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

fn unescape(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let escaped =
            after.first_chunk::<2>().filter(|_| *first == b'%').and_then(|digits| hex(*digits));
        match (first, escaped) {
            (_, Some(byte)) => {
                bytes.push(byte);
                rest = after.get(2..).unwrap_or_default();
                continue;
            }
            (b'+', None) => bytes.push(b' '),
            (byte, None) => bytes.push(*byte),
        }
        rest = after;
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn hex(digits: [u8; 2]) -> Option<u8> {
    let [high, low] = digits.map(|digit| char::from(digit).to_digit(16));
    u8::try_from(high?.checked_mul(16)?.checked_add(low?)?).ok()
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
