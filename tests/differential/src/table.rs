//! pure: the table of explained differences, `tests/results/differential.tsv`.

use std::cell::Cell;

use anyhow::{Result, bail, ensure};

/// What differs, of how many requests.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// The plural of the resource.
    pub resource: String,
    /// What was done.
    pub operation: String,
    /// The field that was changed, or what else was tried.
    pub field: String,
    /// What differs.
    pub what: String,
}

/// A line: patterns, in which `*` is any text and `|` parts what may stand in one column, and the reason.
struct Row {
    patterns: [String; 4],
    reason: String,
    line: usize,
    used: Cell<bool>,
}

/// The whole table.
pub struct Table {
    rows: Vec<Row>,
}

impl Table {
    /// Reads the table's text; lines that begin with `#` are comments.
    pub fn parse(text: &str) -> Result<Self> {
        let mut rows = Vec::new();
        for (at, line) in text.lines().enumerate() {
            if line.starts_with('#') || line.is_empty() {
                continue;
            }
            let columns: Vec<&str> = line.split('\t').collect();
            let [resource, operation, field, what, reason] = columns.as_slice() else {
                bail!("line {}: {} columns instead of 5", at + 1, columns.len());
            };
            ensure!(!reason.trim().is_empty(), "line {}: no reason is given", at + 1);
            rows.push(Row {
                patterns: [*resource, *operation, *field, *what].map(str::to_owned),
                reason: (*reason).to_owned(),
                line: at + 1,
                used: Cell::new(false),
            });
        }
        Ok(Self { rows })
    }

    /// The line and the reason of a difference: the first row that fits.
    pub fn explain(&self, key: &Key) -> Option<(usize, &str)> {
        let texts = [&key.resource, &key.operation, &key.field, &key.what];
        let fits = |row: &&Row| {
            row.patterns
                .iter()
                .zip(texts)
                .all(|(pattern, text)| pattern.split('|').any(|one| is_match(one, text)))
        };
        let row = self.rows.iter().find(fits)?;
        row.used.set(true);
        Some((row.line, &row.reason))
    }

    /// Lines that explained nothing.
    pub fn unused(&self) -> Vec<usize> {
        self.rows.iter().filter(|row| !row.used.get()).map(|row| row.line).collect()
    }
}

/// Whether a pattern, in which `*` is any text, fits the whole text.
fn is_match(pattern: &str, text: &str) -> bool {
    let parts: Vec<&str> = pattern.split('*').collect();
    let (Some(first), Some(last)) = (parts.first(), parts.last()) else { return false };
    if parts.len() == 1 {
        return pattern == text;
    }
    let Some(mut rest) = text.strip_prefix(first) else { return false };
    for part in &parts[1..parts.len() - 1] {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(resource: &str, what: &str) -> Key {
        Key {
            resource: resource.into(),
            operation: "create".into(),
            field: "spec.containers[*].name".into(),
            what: what.into(),
        }
    }

    #[test]
    fn patterns_match_whole_columns_and_unused_rows_are_reported() {
        let table = Table::parse(
            "# a\npods|jobs\tcreate\tspec.*.name\tcode 422 *\tnewer\nx\t*\t*\t*\tnever\n",
        );
        let table = table.unwrap();
        assert_eq!(table.explain(&key("jobs", "code 422 201")), Some((2, "newer")));
        assert_eq!(table.explain(&key("job", "code 422 201")), None);
        assert_eq!(table.explain(&key("pods", "code 201 422")), None);
        assert_eq!(table.unused(), [3]);
        assert!(Table::parse("a\tb\tc\td\t").is_err());
        assert!(Table::parse("a\tb\tc\td").is_err());
    }

    #[test]
    fn stars_are_any_text() {
        assert!(is_match("a*b*c", "a--b--c") && is_match("*", "") && is_match("a", "a"));
        assert!(!is_match("a*b", "a--c") && !is_match("ab*ba", "aba") && !is_match("a", "ab"));
    }
}
