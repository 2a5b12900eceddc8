//! Label selectors.

use super::{SelectorError, label_key_fault, label_value_fault};
use crate::meta::v1::LabelSelector;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::iter::Peekable;
use std::str::{CharIndices, FromStr};

/// Requirements that must all hold; without any, all objects match.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selector {
    requirements: Vec<Requirement>,
}

/// One condition on one label.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Requirement {
    key: String,
    operator: Operator,
    values: BTreeSet<String>,
}

/// The operator of a requirement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operator {
    /// The label has one of the values.
    In,
    /// The label is missing or has none of the values.
    NotIn,
    /// The label exists.
    Exists,
    /// The label is missing.
    DoesNotExist,
    /// The label is an integer above the one value.
    GreaterThan,
    /// The label is an integer below the one value.
    LessThan,
}

impl Selector {
    /// Matches all objects.
    pub fn everything() -> Selector {
        Selector::default()
    }

    /// Labels with exactly these values, as the `selector` of a service or replication controller.
    pub fn from_map(labels: &BTreeMap<String, String>) -> Selector {
        let equal = |(key, value): (&String, &String)| Requirement {
            key: key.clone(),
            operator: Operator::In,
            values: BTreeSet::from([value.clone()]),
        };
        Selector { requirements: labels.iter().map(equal).collect() }
    }

    /// Reads a text such as `a=b,c!=d,e in (x,y),f notin (z),g,!h,i>3`.
    ///
    /// # Errors
    /// When the text is malformed, or a key or value is not valid for a label.
    pub fn parse(text: &str) -> Result<Selector, SelectorError> {
        let mut parser = Parser { text, chars: text.char_indices().peekable() };
        parser.selector()
    }

    /// The selector of a typed one; `at` is its path in the object, for errors.
    ///
    /// # Errors
    /// When an operator does not exist, or its values are invalid for it.
    pub fn from_label_selector(
        selector: &LabelSelector,
        at: &str,
    ) -> Result<Selector, SelectorError> {
        let mut requirements = Vec::new();
        for (key, value) in &selector.match_labels {
            let values = BTreeSet::from([value.clone()]);
            let field = format!("{at}.matchLabels");
            requirements.push(Requirement::new(key, Operator::In, values, &field)?);
        }
        for (n, expression) in selector.match_expressions.iter().enumerate() {
            let field = format!("{at}.matchExpressions[{n}]");
            let operator = match expression.operator.as_str() {
                "In" => Operator::In,
                "NotIn" => Operator::NotIn,
                "Exists" => Operator::Exists,
                "DoesNotExist" => Operator::DoesNotExist,
                other => {
                    let (field, operator) = (format!("{field}.operator"), other.to_owned());
                    return Err(SelectorError::Operator { field, operator });
                }
            };
            let values = expression.values.iter().cloned().collect();
            requirements.push(Requirement::new(&expression.key, operator, values, &field)?);
        }
        Ok(Selector::sorted(requirements))
    }

    /// Matches what both selectors match.
    #[must_use]
    pub fn and(mut self, other: &Selector) -> Selector {
        self.requirements.extend_from_slice(&other.requirements);
        Selector::sorted(self.requirements)
    }

    /// Whether the labels meet all requirements.
    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        self.matches_with(|key| labels.get(key).map(String::as_str))
    }

    /// Whether labels that `get` looks up meet all requirements.
    pub fn matches_with<'a>(&self, get: impl Fn(&str) -> Option<&'a str>) -> bool {
        self.requirements.iter().all(|requirement| requirement.matches(get(&requirement.key)))
    }

    /// Whether everything matches.
    pub fn is_everything(&self) -> bool {
        self.requirements.is_empty()
    }

    /// The requirements, sorted by key.
    pub fn requirements(&self) -> &[Requirement] {
        &self.requirements
    }

    fn sorted(mut requirements: Vec<Requirement>) -> Selector {
        requirements.sort_by(|a, b| a.key.cmp(&b.key));
        Selector { requirements }
    }
}

impl FromStr for Selector {
    type Err = SelectorError;

    fn from_str(text: &str) -> Result<Selector, SelectorError> {
        Selector::parse(text)
    }
}

/// The text that [`Selector::parse`] reads.
impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, requirement) in self.requirements.iter().enumerate() {
            write!(f, "{}{requirement}", if n > 0 { "," } else { "" })?;
        }
        Ok(())
    }
}

impl Requirement {
    /// Checks key, number of values and values; `field` is their path, for errors.
    fn new(
        key: &str,
        operator: Operator,
        values: BTreeSet<String>,
        field: &str,
    ) -> Result<Requirement, SelectorError> {
        if let Some(why) = label_key_fault(key) {
            return Err(SelectorError::Key { field: field.to_owned(), key: key.to_owned(), why });
        }
        let fault = match (operator, values.len()) {
            (Operator::In | Operator::NotIn, 0) => {
                Some("values must be given for the operators In and NotIn")
            }
            (Operator::Exists | Operator::DoesNotExist, 1..) => {
                Some("values must be empty for the operators Exists and DoesNotExist")
            }
            (Operator::GreaterThan | Operator::LessThan, n) if n != 1 => {
                Some("exactly one value must be given for the operators > and <")
            }
            _ => None,
        };
        if let Some(why) = fault {
            return Err(SelectorError::Count { field: field.to_owned(), why });
        }
        for value in &values {
            let is_comparison = matches!(operator, Operator::GreaterThan | Operator::LessThan);
            let not_a_number = is_comparison && value.parse::<i64>().is_err();
            let fault = label_value_fault(value);
            if let Some(why) = fault.or(not_a_number.then_some("must be an integer")) {
                let (field, value) = (field.to_owned(), value.clone());
                return Err(SelectorError::Value { field, value, why });
            }
        }
        Ok(Requirement { key: key.to_owned(), operator, values })
    }

    /// The label's key.
    pub fn key(&self) -> &str {
        &self.key
    }

    pub fn operator(&self) -> Operator {
        self.operator
    }

    /// The values, sorted.
    pub fn values(&self) -> impl Iterator<Item = &str> {
        self.values.iter().map(String::as_str)
    }

    fn matches(&self, label: Option<&str>) -> bool {
        let compare = |holds: fn(i64, i64) -> bool| {
            let label = label.and_then(|text| text.parse().ok());
            let bound = self.values.first().and_then(|text| text.parse().ok());
            label.zip(bound).is_some_and(|(label, bound)| holds(label, bound))
        };
        match self.operator {
            Operator::In => label.is_some_and(|value| self.values.contains(value)),
            Operator::NotIn => label.is_none_or(|value| !self.values.contains(value)),
            Operator::Exists => label.is_some(),
            Operator::DoesNotExist => label.is_none(),
            Operator::GreaterThan => compare(|label, bound| label > bound),
            Operator::LessThan => compare(|label, bound| label < bound),
        }
    }
}

impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Requirement { key, operator, values } = self;
        let first = values.first().map_or("", String::as_str);
        let list = || values.iter().map(String::as_str).collect::<Vec<_>>().join(",");
        match operator {
            Operator::In if values.len() == 1 => write!(f, "{key}={first}"),
            Operator::NotIn if values.len() == 1 => write!(f, "{key}!={first}"),
            Operator::In => write!(f, "{key} in ({})", list()),
            Operator::NotIn => write!(f, "{key} notin ({})", list()),
            Operator::Exists => write!(f, "{key}"),
            Operator::DoesNotExist => write!(f, "!{key}"),
            Operator::GreaterThan => write!(f, "{key}>{first}"),
            Operator::LessThan => write!(f, "{key}<{first}"),
        }
    }
}

/// Reads the text of a selector from left to right.
struct Parser<'a> {
    text: &'a str,
    chars: Peekable<CharIndices<'a>>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Token<'a> {
    Word(&'a str),
    Open,
    Close,
    Comma,
    Not,
    Equal,
    NotEqual,
    Greater,
    Less,
    End,
}

impl<'a> Parser<'a> {
    fn selector(&mut self) -> Result<Selector, SelectorError> {
        let mut requirements = Vec::new();
        if self.peek() == Token::End {
            return Ok(Selector::everything());
        }
        loop {
            requirements.push(self.requirement()?);
            match self.next() {
                Token::End => return Ok(Selector::sorted(requirements)),
                Token::Comma => {}
                other => return Err(unexpected(other, "',' or 'end of string'")),
            }
        }
    }

    fn requirement(&mut self) -> Result<Requirement, SelectorError> {
        let negated = self.peek() == Token::Not;
        if negated {
            self.next();
        }
        let key = match self.next() {
            Token::Word(key) => key,
            other => return Err(unexpected(other, "a label key")),
        };
        let new = |operator, values| Requirement::new(key, operator, values, "selector");
        if negated {
            return new(Operator::DoesNotExist, BTreeSet::new());
        }
        match self.peek() {
            Token::Comma | Token::End => return new(Operator::Exists, BTreeSet::new()),
            _ => {}
        }
        match self.next() {
            Token::Equal => new(Operator::In, self.value()),
            Token::NotEqual => new(Operator::NotIn, self.value()),
            Token::Greater => new(Operator::GreaterThan, self.value()),
            Token::Less => new(Operator::LessThan, self.value()),
            Token::Word("in") => new(Operator::In, self.values()?),
            Token::Word("notin") => new(Operator::NotIn, self.values()?),
            other => Err(unexpected(other, "'=', '!=', '==', '<', '>', 'in' or 'notin'")),
        }
    }

    /// One value; an absent one is the empty value.
    fn value(&mut self) -> BTreeSet<String> {
        match self.peek() {
            Token::Word(value) => {
                self.next();
                BTreeSet::from([value.to_owned()])
            }
            _ => BTreeSet::from([String::new()]),
        }
    }

    /// `(a,b)`; an absent value between commas or parentheses is the empty value.
    fn values(&mut self) -> Result<BTreeSet<String>, SelectorError> {
        let opening = self.next();
        if opening != Token::Open {
            return Err(unexpected(opening, "'('"));
        }
        let mut values = BTreeSet::new();
        loop {
            values.extend(self.value());
            match self.next() {
                Token::Comma => {}
                Token::Close => return Ok(values),
                other => return Err(unexpected(other, "',' or ')'")),
            }
        }
    }

    fn peek(&self) -> Token<'a> {
        Parser { text: self.text, chars: self.chars.clone() }.next()
    }

    fn next(&mut self) -> Token<'a> {
        while self.chars.next_if(|(_, c)| matches!(c, ' ' | '\t' | '\r' | '\n')).is_some() {}
        let Some((start, c)) = self.chars.next() else { return Token::End };
        let mut then = |wanted: char| self.chars.next_if(|(_, c)| *c == wanted).is_some();
        match c {
            '(' => Token::Open,
            ')' => Token::Close,
            ',' => Token::Comma,
            '>' => Token::Greater,
            '<' => Token::Less,
            '!' => {
                if then('=') {
                    Token::NotEqual
                } else {
                    Token::Not
                }
            }
            '=' => {
                then('=');
                Token::Equal
            }
            _ => {
                let ends = |c: char| c.is_whitespace() || "(),<>!=".contains(c);
                while self.chars.next_if(|(_, c)| !ends(*c)).is_some() {}
                let end = self.chars.peek().map_or(self.text.len(), |(end, _)| *end);
                Token::Word(self.text.get(start..end).unwrap_or_default())
            }
        }
    }
}

fn unexpected(token: Token, expected: &'static str) -> SelectorError {
    let found = match token {
        Token::Word(word) => word,
        Token::Open => "(",
        Token::Close => ")",
        Token::Comma => ",",
        Token::Not => "!",
        Token::Equal => "=",
        Token::NotEqual => "!=",
        Token::Greater => ">",
        Token::Less => "<",
        Token::End => "",
    };
    SelectorError::Syntax { found: found.to_owned(), expected }
}

#[cfg(test)]
mod tests;
