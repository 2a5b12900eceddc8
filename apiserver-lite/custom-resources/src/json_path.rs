//! JSON paths of columns, as kubectl's templates have them: fields, indices, `*` and filters such as `[?(@.type=="Ready")]`.

use apiserver_schema::Value;

use crate::read::DefinitionReadError;

/// Longest path, in bytes.
const LENGTH_MAX: usize = 4096;
/// Most values that a path is followed to.
const MATCHES_MAX: usize = 10_000;

/// A path of fields.
#[derive(Clone, Debug, PartialEq)]
pub struct JsonPath {
    text: String,
    steps: Vec<Step>,
}

#[derive(Clone, Debug, PartialEq)]
enum Step {
    Field(String),
    Index(i64),
    All,
    Filter { fields: Vec<String>, compare: Compare },
}

#[derive(Clone, Debug, PartialEq)]
enum Compare {
    Exists,
    Is(Operator, Value),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operator {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

impl JsonPath {
    /// Parses a path that starts with a dot.
    pub fn parse(text: &str) -> Result<Self, DefinitionReadError> {
        let unreadable = || DefinitionReadError::JsonPath(text.to_owned());
        if text.len() > LENGTH_MAX || !text.starts_with(['.', '[']) {
            return Err(unreadable());
        }
        let mut parser = Parser { rest: text };
        let steps = parser.steps().ok_or_else(unreadable)?;
        Ok(JsonPath { text: text.to_owned(), steps })
    }

    /// The path as it was written.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The first value at the path.
    pub fn first<'a>(&self, object: &'a Value) -> Option<&'a Value> {
        let mut found = vec![object];
        for step in &self.steps {
            let mut next = Vec::new();
            for value in found {
                step.follow(value, &mut next);
            }
            next.truncate(MATCHES_MAX);
            found = next;
        }
        found.first().copied()
    }
}

impl Step {
    fn follow<'a>(&self, value: &'a Value, out: &mut Vec<&'a Value>) {
        match (self, value) {
            (Step::Field(name), Value::Map(map)) => out.extend(map.get(name)),
            (Step::Index(at), Value::List(items)) => {
                let at = if *at < 0 {
                    usize::try_from(at.unsigned_abs())
                        .ok()
                        .and_then(|back| items.len().checked_sub(back))
                } else {
                    usize::try_from(*at).ok()
                };
                out.extend(at.and_then(|at| items.get(at)));
            }
            (Step::All, Value::List(items)) => out.extend(items),
            (Step::All, Value::Map(map)) => out.extend(map.iter_sorted().map(|(_, value)| value)),
            (Step::Filter { fields, compare }, Value::List(items)) => {
                out.extend(items.iter().filter(|item| compare.holds(at_fields(item, fields))));
            }
            _ => {}
        }
    }
}

fn at_fields<'a>(value: &'a Value, fields: &[String]) -> Option<&'a Value> {
    fields.iter().try_fold(value, |value, field| value.as_map()?.get(field))
}

impl Compare {
    fn holds(&self, value: Option<&Value>) -> bool {
        let (operator, right) = match self {
            Compare::Exists => return value.is_some(),
            Compare::Is(operator, right) => (*operator, right),
        };
        let Some(order) = value.and_then(|left| compare(left, right)) else {
            return false;
        };
        match operator {
            Operator::Equal => order.is_eq(),
            Operator::NotEqual => order.is_ne(),
            Operator::Less => order.is_lt(),
            Operator::LessOrEqual => order.is_le(),
            Operator::Greater => order.is_gt(),
            Operator::GreaterOrEqual => order.is_ge(),
        }
    }
}

fn compare(left: &Value, right: &Value) -> Option<std::cmp::Ordering> {
    let number = |value: &Value| match value {
        Value::Int(number) => Some(*number as f64),
        Value::Float(number) => Some(*number),
        _ => None,
    };
    match (left, right) {
        (Value::String(left), Value::String(right)) => Some(left.cmp(right)),
        (Value::Bool(left), Value::Bool(right)) => Some(left.cmp(right)),
        (left, right) => number(left)?.partial_cmp(&number(right)?),
    }
}

struct Parser<'a> {
    rest: &'a str,
}

impl<'a> Parser<'a> {
    fn steps(&mut self) -> Option<Vec<Step>> {
        let mut steps = Vec::new();
        if self.rest == "." {
            return Some(steps);
        }
        while !self.rest.is_empty() {
            if let Some(after) = self.rest.strip_prefix('[') {
                self.rest = after;
                steps.push(self.bracket()?);
            } else {
                self.rest = self.rest.strip_prefix('.')?;
                if self.rest.starts_with('[') {
                    continue;
                }
                match self.name().as_str() {
                    "" => return None,
                    "*" => steps.push(Step::All),
                    name => steps.push(Step::Field(name.to_owned())),
                }
            }
        }
        Some(steps)
    }

    /// A name up to the next step; a backslash takes the next character as it is.
    fn name(&mut self) -> String {
        let mut name = String::new();
        let mut chars = self.rest.char_indices();
        let mut end = self.rest.len();
        while let Some((at, c)) = chars.next() {
            match c {
                '\\' => name.extend(chars.next().map(|(_, next)| next)),
                '.' | '[' => {
                    end = at;
                    break;
                }
                c => name.push(c),
            }
        }
        self.rest = self.rest.get(end..).unwrap_or_default();
        name
    }

    fn bracket(&mut self) -> Option<Step> {
        if let Some(filter) = self.rest.strip_prefix("?(") {
            let (inside, after) = filter.split_once(")]")?;
            self.rest = after;
            return read_filter(inside);
        }
        let (inside, after) = self.rest.split_once(']')?;
        self.rest = after;
        let inside = inside.trim();
        if inside == "*" {
            return Some(Step::All);
        }
        if let Some(name) = unquote(inside) {
            return Some(Step::Field(name.to_owned()));
        }
        inside.parse().ok().map(Step::Index)
    }
}

fn unquote(text: &str) -> Option<&str> {
    ['\'', '"'].iter().find_map(|&quote| text.strip_prefix(quote)?.strip_suffix(quote))
}

fn read_filter(text: &str) -> Option<Step> {
    const OPERATORS: [(&str, Operator); 6] = [
        ("==", Operator::Equal),
        ("!=", Operator::NotEqual),
        ("<=", Operator::LessOrEqual),
        (">=", Operator::GreaterOrEqual),
        ("<", Operator::Less),
        (">", Operator::Greater),
    ];
    let found = OPERATORS.iter().find_map(|(name, operator)| {
        text.split_once(name).map(|(left, right)| (left, *operator, right))
    });
    let Some((left, operator, right)) = found else {
        return Some(Step::Filter { fields: filter_fields(text)?, compare: Compare::Exists });
    };
    let right = right.trim();
    let value = match unquote(right) {
        Some(text) => Value::from(text),
        None => match right {
            "true" => Value::Bool(true),
            "false" => Value::Bool(false),
            number => match number.parse::<i64>() {
                Ok(number) => Value::Int(number),
                Err(_) => Value::Float(number.parse().ok()?),
            },
        },
    };
    Some(Step::Filter { fields: filter_fields(left)?, compare: Compare::Is(operator, value) })
}

fn filter_fields(text: &str) -> Option<Vec<String>> {
    let path = text.trim().strip_prefix('@')?;
    let steps = Parser { rest: path }.steps()?;
    steps
        .into_iter()
        .map(|step| match step {
            Step::Field(name) => Some(name),
            _ => None,
        })
        .collect()
}
