//! The static token file: CSV with token, user name, user uid and optionally a quoted list of groups.

use std::collections::BTreeMap;

use crate::expiring_cache::{CacheKey, key};
use crate::user::User;

/// An invalid line of the token file.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("token file line {line}: {problem}")]
pub struct TokenFileError {
    /// Line number, from 1.
    pub line: usize,
    /// What is wrong with the line.
    pub problem: &'static str,
}

/// Users by the SHA-256 of their token, so that the time of a lookup reveals nothing about tokens. Tokens do not expire; a
/// changed file needs a restart.
#[derive(Clone, Debug, Default)]
pub struct StaticTokens(BTreeMap<CacheKey, User>);

impl StaticTokens {
    /// Parses the content of a token file; empty lines are skipped.
    ///
    /// # Errors
    /// [`TokenFileError`] for the first line with fewer than three columns, an empty token or an unclosed quote.
    pub fn parse(text: &str) -> Result<Self, TokenFileError> {
        let mut users = BTreeMap::new();
        for (index, line) in text.lines().enumerate() {
            if line.trim().is_empty() {
                continue;
            }
            let fail = |problem| TokenFileError { line: index.saturating_add(1), problem };
            let columns = columns(line).ok_or_else(|| fail("a quote is not closed"))?;
            let [token, name, uid, rest @ ..] = columns.as_slice() else {
                return Err(fail("expected at least token, user name and user uid"));
            };
            if token.is_empty() {
                return Err(fail("the token is empty"));
            }
            let groups = rest.first().map(String::as_str).unwrap_or_default();
            let groups = groups
                .split(',')
                .map(str::trim)
                .filter(|group| !group.is_empty())
                .map(str::to_owned);
            let user = User {
                name: name.clone(),
                uid: uid.clone(),
                groups: groups.collect(),
                ..User::default()
            };
            users.insert(key(token.as_bytes()), user.authenticated());
        }
        Ok(Self(users))
    }

    /// The user of `token`.
    #[must_use]
    pub fn user_of(&self, token: &str) -> Option<&User> {
        self.0.get(&key(token.as_bytes()))
    }
}

/// Splits a CSV line; `None` when a quoted column does not end.
fn columns(line: &str) -> Option<Vec<String>> {
    let mut out = Vec::new();
    let mut column = String::new();
    let mut chars = line.trim_end_matches('\r').chars().peekable();
    let mut quoted = false;
    while let Some(c) = chars.next() {
        match c {
            '"' if quoted && chars.peek() == Some(&'"') => {
                chars.next();
                column.push('"');
            }
            '"' => quoted = !quoted,
            ',' if !quoted => out.push(std::mem::take(&mut column).trim().to_owned()),
            other => column.push(other),
        }
    }
    out.push(column.trim().to_owned());
    (!quoted).then_some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_users_and_quoted_groups() {
        let tokens = StaticTokens::parse("t1,alice,u1,\"dev,ops\"\n\nt2,bob,u2\n").unwrap();
        assert_eq!(tokens.user_of("t1").unwrap().groups, ["dev", "ops", "system:authenticated"]);
        assert_eq!(tokens.user_of("t2").unwrap().name, "bob");
        assert_eq!(tokens.user_of("t3"), None);
        assert!(!format!("{tokens:?}").contains("t1"), "tokens themselves are not kept");
    }

    #[test]
    fn names_the_bad_line() {
        assert_eq!(StaticTokens::parse("t1,alice,u1\nt2,bob").unwrap_err().line, 2);
        assert_eq!(
            StaticTokens::parse("t1,\"alice,u1").unwrap_err().problem,
            "a quote is not closed"
        );
        assert_eq!(StaticTokens::parse(",a,b").unwrap_err().problem, "the token is empty");
    }
}
