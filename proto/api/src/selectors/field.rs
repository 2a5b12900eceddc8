//! Field selectors: `metadata.name=web,status.phase!=Running`.

#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

use super::SelectorError;
use std::fmt;
use std::str::FromStr;

/// Requirements on fields that must all hold; without any, all objects match.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldSelector {
    requirements: Vec<FieldRequirement>,
}

/// One condition on one field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldRequirement {
    /// The path of the field, for example `spec.nodeName`.
    pub field: String,
    /// Whether the field must have the value, or must not.
    pub equal: bool,
    /// The value; a field that is absent has the empty value.
    pub value: String,
}

impl FieldSelector {
    /// Matches all objects.
    pub fn everything() -> FieldSelector {
        FieldSelector::default()
    }

    /// Matches objects whose field has this value.
    pub fn equals(field: &str, value: &str) -> FieldSelector {
        let (field, value) = (field.to_owned(), value.to_owned());
        FieldSelector { requirements: vec![FieldRequirement { field, equal: true, value }] }
    }

    /// Reads `field=value`, `field==value` and `field!=value`, joined by commas. In values, `\` escapes a comma, an equals sign or a `\`.
    ///
    /// # Errors
    /// When a part has no operator or no field, or a `\` precedes another character.
    pub fn parse(text: &str) -> Result<FieldSelector, SelectorError> {
        let mut requirements = Vec::new();
        for part in split_unescaped(text) {
            if !part.is_empty() {
                requirements.push(FieldRequirement::parse(part)?);
            }
        }
        Ok(FieldSelector { requirements })
    }

    /// Whether fields that `get` looks up meet all requirements.
    pub fn matches<'a>(&self, get: impl Fn(&str) -> Option<&'a str>) -> bool {
        let holds = |r: &FieldRequirement| (get(&r.field).unwrap_or("") == r.value) == r.equal;
        self.requirements.iter().all(holds)
    }

    /// Whether everything matches.
    pub fn is_everything(&self) -> bool {
        self.requirements.is_empty()
    }

    /// The requirements, as written.
    pub fn requirements(&self) -> &[FieldRequirement] {
        &self.requirements
    }

    /// The value that `field` must have, if there is such a requirement; for lookups by name.
    pub fn exact(&self, field: &str) -> Option<&str> {
        let exact = |r: &&FieldRequirement| r.equal && r.field == field;
        self.requirements.iter().find(exact).map(|r| r.value.as_str())
    }
}

impl FromStr for FieldSelector {
    type Err = SelectorError;

    fn from_str(text: &str) -> Result<FieldSelector, SelectorError> {
        FieldSelector::parse(text)
    }
}

/// The text that [`FieldSelector::parse`] reads.
impl fmt::Display for FieldSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, r) in self.requirements.iter().enumerate() {
            let comma = if n > 0 { "," } else { "" };
            let operator = if r.equal { "=" } else { "!=" };
            write!(f, "{comma}{}{operator}{}", r.field, escape(&r.value))?;
        }
        Ok(())
    }
}

impl FieldRequirement {
    fn parse(part: &str) -> Result<FieldRequirement, SelectorError> {
        let syntax = |expected| SelectorError::Syntax { found: part.to_owned(), expected };
        let at = part.find(['=', '!']).ok_or_else(|| syntax("'=', '==' or '!='"))?;
        let (field, rest) = part.split_at(at);
        let (equal, value) = if let Some(value) = rest.strip_prefix("!=") {
            (false, value)
        } else if let Some(value) = rest.strip_prefix("==").or(rest.strip_prefix('=')) {
            (true, value)
        } else {
            return Err(syntax("'=', '==' or '!='"));
        };
        let field = field.trim();
        if field.is_empty() {
            return Err(syntax("a field"));
        }
        let value = unescape(value).ok_or_else(|| syntax("a value"))?;
        Ok(FieldRequirement { field: field.to_owned(), equal, value })
    }
}

/// The parts between commas that no `\` precedes.
fn split_unescaped(text: &str) -> Vec<&str> {
    let (mut parts, mut start, mut escaped) = (Vec::new(), 0, false);
    for (at, c) in text.char_indices() {
        if c == ',' && !escaped {
            parts.extend(text.get(start..at));
            start = at.saturating_add(1);
        }
        escaped = c == '\\' && !escaped;
    }
    parts.extend(text.get(start..));
    parts
}

fn escape(value: &str) -> String {
    value.replace('\\', "\\\\").replace(',', "\\,").replace('=', "\\=")
}

/// `None` if the value has an unescaped comma or equals sign, or a `\` before another character.
fn unescape(value: &str) -> Option<String> {
    let mut out = String::with_capacity(value.len());
    let mut chars = value.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => out.push(chars.next().filter(|c| matches!(c, '\\' | ',' | '='))?),
            ',' | '=' => return None,
            c => out.push(c),
        }
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn fields_are_compared_and_absent_is_empty() {
        let get = |field: &str| match field {
            "metadata.name" => Some("web"),
            "status.phase" => Some("Running"),
            _ => None,
        };
        let cases = [
            ("", true),
            ("metadata.name=web", true),
            ("metadata.name==web,status.phase!=Pending", true),
            ("metadata.name!=web", false),
            ("spec.nodeName=", true),
            ("spec.nodeName!=", false),
            ("metadata.name=db", false),
        ];
        for (text, matches) in cases {
            assert_eq!(FieldSelector::parse(text).unwrap().matches(get), matches, "{text}");
        }
    }

    #[test]
    fn malformed_texts_are_refused() {
        for text in ["metadata.name", "=web", "a!b", "a=b=c", r"a=b\c"] {
            assert!(FieldSelector::parse(text).is_err(), "{text}");
        }
        let selector = FieldSelector::parse(r"a=x\,y\=z\\").unwrap();
        assert_eq!(selector.exact("a"), Some(r"x,y=z\"));
        assert_eq!(selector.exact("b"), None);
    }

    proptest! {
        #[test]
        fn formatted_field_selectors_parse_back(
            parts in prop::collection::vec(("[a-z.]{1,8}", any::<bool>(), "[a-z,=\\\\!]{0,6}"), 0..4)
        ) {
            let requirements = parts
                .into_iter()
                .map(|(field, equal, value)| FieldRequirement { field, equal, value })
                .collect();
            let selector = FieldSelector { requirements };
            prop_assert_eq!(FieldSelector::parse(&selector.to_string()).unwrap(), selector);
        }

        #[test]
        fn any_text_is_read_or_refused(text in "[a=!,\\\\ .]{0,12}") {
            let _ = FieldSelector::parse(&text);
        }
    }
}
