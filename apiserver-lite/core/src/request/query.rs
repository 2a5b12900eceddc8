//! The query string of a request: parsed once, read by parameter name.

use crate::status::ApiError;

/// The decoded name-value pairs in their order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Query(Vec<(String, String)>);

/// Most pairs of a query: a command of exec is one pair a word.
const PAIRS_MAX: usize = 4096;

impl Query {
    /// Decodes `a=b&c=d`, `+` as a space. Invalid escapes are left as they are. A query that is too long is not decoded to its end, see
    /// [`Query::check_len`].
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let pairs = form_urlencoded::parse(text.as_bytes()).take(PAIRS_MAX.saturating_add(1));
        Self(pairs.map(|(name, value)| (name.into_owned(), value.into_owned())).collect())
    }

    /// Checks the number of pairs.
    ///
    /// # Errors
    /// 400 if there are more than 4,096: a part of a query would mean something else than all of it.
    pub fn check_len(&self) -> Result<(), ApiError> {
        let too_long = || format!("the query has more than {PAIRS_MAX} parameters");
        if self.0.len() > PAIRS_MAX { Err(ApiError::bad_request(too_long())) } else { Ok(()) }
    }

    /// The first value of `name`; `Some("")` for a parameter without a value.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// The first value of `name` if it is not empty.
    #[must_use]
    pub fn text(&self, name: &str) -> Option<&str> {
        self.get(name).filter(|value| !value.is_empty())
    }

    /// All values of `name`, in their order.
    pub fn all(&self, name: &str) -> impl Iterator<Item = &str> {
        self.0.iter().filter(move |(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// Whether `name` is true: present and not `0` or `false` in any case, as Kubernetes' servers take flags of a query. Other API servers get the query
    /// as it is: a flag that is false here and true there would be authorized as something else.
    #[must_use]
    pub fn flag(&self, name: &str) -> bool {
        self.get(name).is_some_and(|value| value != "0" && !value.eq_ignore_ascii_case("false"))
    }

    /// The value of `name` as a number.
    ///
    /// # Errors
    /// 400 if the value is not a number of at least 0.
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
    fn a_query_that_is_too_long_is_refused_and_never_cut() {
        let words = |count: usize| Query::parse(&"command=x&".repeat(count));
        assert_eq!(words(PAIRS_MAX).all("command").count(), PAIRS_MAX);
        assert!(words(PAIRS_MAX).check_len().is_ok());
        assert_eq!(words(PAIRS_MAX + 1).check_len().unwrap_err().code(), 400);
    }

    #[test]
    fn broken_escapes_stay() {
        assert_eq!(Query::parse("x=a%2&&=b").get("x"), Some("a%2"));
        assert_eq!(Query::parse("%zz%41").get("%zzA"), Some(""));
        assert!(Query::parse("limit=x").number("limit").is_err());
        for (value, expected) in
            [("", true), ("1", true), ("f", true), ("no", true), ("0", false), ("fAlse", false)]
        {
            assert_eq!(Query::parse(&format!("watch={value}")).flag("watch"), expected, "{value}");
        }
    }
}
