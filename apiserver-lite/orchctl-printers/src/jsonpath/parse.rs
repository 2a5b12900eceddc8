//! From the text of a template to its parts.

use serde_json::Value;

use super::{
    Comparison, DEPTH_MAX, Filter, JsonPathError, Operand, Part, Path, Slice, Step,
    TEMPLATE_LEN_MAX,
};

/// Reads a whole template.
pub(super) fn template(text: &str) -> Result<Vec<Part>, JsonPathError> {
    if text.len() > TEMPLATE_LEN_MAX {
        return Err(parse_error(0, format!("it is longer than {TEMPLATE_LEN_MAX} bytes")));
    }
    let mut reader = Reader { chars: text.chars().collect(), at: 0, depth: 0 };
    // The parts of the template and of the ranges that are open, the innermost last.
    let mut open: Vec<(Option<Path>, Vec<Part>)> = vec![(None, Vec::new())];
    while reader.at < reader.chars.len() {
        let part = match reader.piece()? {
            Piece::Part(part) => part,
            Piece::Range(_) if open.len() > DEPTH_MAX => {
                return Err(parse_error(reader.at, "ranges are nested too deep"));
            }
            Piece::Range(path) => {
                open.push((Some(path), Vec::new()));
                continue;
            }
            Piece::End => match open.pop() {
                Some((Some(path), inner)) => Part::Range(path, inner),
                _ => return Err(parse_error(reader.at, "not in range, nothing to end")),
            },
        };
        if let Some((_, parts)) = open.last_mut() {
            parts.push(part);
        }
    }
    // A range that is not ended reaches to the end of the template.
    loop {
        match (open.pop(), open.last_mut()) {
            (Some((Some(path), inner)), Some((_, outer))) => outer.push(Part::Range(path, inner)),
            (Some((_, parts)), _) => return Ok(parts),
            (None, _) => return Ok(Vec::new()),
        }
    }
}

enum Piece {
    Part(Part),
    Range(Path),
    End,
}

struct Reader {
    chars: Vec<char>,
    at: usize,
    depth: usize,
}

fn parse_error(at: usize, problem: impl Into<String>) -> JsonPathError {
    JsonPathError::Syntax { at, problem: problem.into() }
}

/// What ends the name of a field.
fn is_terminator(c: char) -> bool {
    c.is_whitespace() || matches!(c, '.' | ',' | '[' | ']' | '$' | '@' | '{' | '}')
}

impl Reader {
    fn peek(&self) -> Option<char> {
        self.chars.get(self.at).copied()
    }

    fn starts_with(&self, word: &str) -> bool {
        let rest = self.chars.get(self.at..).unwrap_or_default();
        word.chars().enumerate().all(|(at, c)| rest.get(at) == Some(&c))
    }

    fn skip_spaces(&mut self) {
        while self.peek().is_some_and(char::is_whitespace) {
            self.at += 1;
        }
    }

    /// The text up to the next expression, or one expression.
    fn piece(&mut self) -> Result<Piece, JsonPathError> {
        if self.peek() != Some('{') {
            let start = self.at;
            while self.peek().is_some_and(|c| c != '{') {
                self.at += 1;
            }
            let text = self.chars.get(start..self.at).unwrap_or_default().iter().collect();
            return Ok(Piece::Part(Part::Text(text)));
        }
        self.at += 1;
        self.skip_spaces();
        let piece = match self.peek() {
            Some('\'' | '"') => Piece::Part(Part::Text(self.quoted()?)),
            _ if self.starts_with("range") && self.is_word("range") => {
                self.at += "range".len();
                Piece::Range(self.path()?)
            }
            _ if self.starts_with("end") && self.is_word("end") => {
                self.at += "end".len();
                Piece::End
            }
            _ => Piece::Part(Part::Expression(self.path()?)),
        };
        self.skip_spaces();
        match self.peek() {
            Some('}') => {
                self.at += 1;
                Ok(piece)
            }
            Some(c) => Err(parse_error(self.at, format!("unexpected {c:?} in an expression"))),
            None => Err(parse_error(self.at, "unclosed action")),
        }
    }

    /// Whether a space or the end of the expression follows this keyword.
    fn is_word(&self, word: &str) -> bool {
        self.chars.get(self.at + word.len()).is_none_or(|c| c.is_whitespace() || *c == '}')
    }

    /// Steps up to the end of the expression.
    fn path(&mut self) -> Result<Path, JsonPathError> {
        let mut steps = Vec::new();
        loop {
            self.skip_spaces();
            match self.peek() {
                None | Some('}') => return Ok(Path { steps }),
                Some('$' | '@') => self.at += 1,
                Some('.') if self.starts_with("..") => {
                    self.at += 2;
                    steps.push(Step::Recursive);
                    if self.peek().is_some_and(|c| !is_terminator(c)) {
                        steps.push(self.field()?);
                    }
                }
                Some('.') => {
                    self.at += 1;
                    if self.peek().is_some_and(|c| !is_terminator(c)) {
                        steps.push(self.field()?);
                    }
                }
                Some('[') => self.bracket(&mut steps)?,
                Some(c) if !is_terminator(c) && steps.is_empty() => {
                    let start = self.at;
                    self.field()?;
                    let name: String =
                        self.chars.get(start..self.at).unwrap_or_default().iter().collect();
                    return Err(parse_error(start, format!("unrecognized identifier {name}")));
                }
                Some(c) => return Err(parse_error(self.at, format!("unexpected {c:?} in a path"))),
            }
        }
    }

    /// A name; a backslash takes the next character as it is.
    fn field(&mut self) -> Result<Step, JsonPathError> {
        let mut name = String::new();
        while let Some(c) = self.peek() {
            if c == '\\' {
                self.at += 1;
                name.extend(self.peek());
            } else if is_terminator(c) {
                break;
            } else {
                name.push(c);
            }
            self.at += 1;
        }
        Ok(if name == "*" { Step::Wildcard } else { Step::Field(name) })
    }

    /// A text in either quotes, with the usual escapes.
    fn quoted(&mut self) -> Result<String, JsonPathError> {
        let start = self.at;
        let quote = self.peek();
        self.at += 1;
        let mut text = String::new();
        while let Some(c) = self.peek() {
            self.at += 1;
            match c {
                c if Some(c) == quote => return Ok(text),
                '\\' => {
                    let escaped = self.peek();
                    self.at += 1;
                    text.extend(match escaped {
                        Some('n') => Some('\n'),
                        Some('t') => Some('\t'),
                        Some('r') => Some('\r'),
                        Some('a') => Some('\u{7}'),
                        Some('b') => Some('\u{8}'),
                        Some('f') => Some('\u{c}'),
                        Some('v') => Some('\u{b}'),
                        Some('u') => Some(self.code_point(4)?),
                        Some('x') => Some(self.code_point(2)?),
                        other => other,
                    });
                }
                c => text.push(c),
            }
        }
        Err(parse_error(start, "unterminated quoted string"))
    }

    fn code_point(&mut self, digits: usize) -> Result<char, JsonPathError> {
        let text: String =
            self.chars.get(self.at..self.at + digits).unwrap_or_default().iter().collect();
        let point = u32::from_str_radix(&text, 16).ok().and_then(char::from_u32);
        let point = point.filter(|_| text.len() == digits);
        self.at += digits;
        point.ok_or_else(|| parse_error(self.at, "invalid escape sequence in a string"))
    }

    /// What stands in brackets: index, slice, wildcard, quoted name, union or filter.
    fn bracket(&mut self, steps: &mut Vec<Step>) -> Result<(), JsonPathError> {
        let start = self.at;
        let text = self.bracket_text()?;
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return Err(parse_error(start, "brackets are nested too deep"));
        }
        if let Some(inner) = text.strip_prefix("?(").and_then(|text| text.strip_suffix(')')) {
            steps.push(Step::Filter(Box::new(self.filter(start, inner)?)));
        } else {
            let members = split(&text, ',');
            if members.len() > 1 {
                let paths = members
                    .iter()
                    .map(|member| self.inner_path(&format!("[{}]", member.trim())))
                    .collect::<Result<_, _>>()?;
                steps.push(Step::Union(paths));
            } else if let Some(name) = unquoted(text.trim()) {
                // Dots in quotes separate names too, unless they are escaped.
                steps.extend(self.inner_path(&format!(".{name}"))?.steps);
            } else if text.trim() == "*" {
                steps.push(Step::Wildcard);
            } else {
                let slice = slice(text.trim());
                let invalid = || parse_error(start, format!("invalid array index {text}"));
                steps.push(Step::Slice(slice.ok_or_else(invalid)?));
            }
        }
        self.depth -= 1;
        Ok(())
    }

    /// The text between a bracket and the one that closes it.
    fn bracket_text(&mut self) -> Result<String, JsonPathError> {
        let start = self.at;
        let mut quote = None;
        let mut depth = 0_usize;
        while let Some(c) = self.peek() {
            self.at += 1;
            match (quote, c) {
                (_, '\\') => self.at += 1,
                (Some(open), c) if open == c => quote = None,
                (Some(_), _) => {}
                (None, '\'' | '"') => quote = Some(c),
                (None, '[') => depth += 1,
                (None, ']') => {
                    depth = depth.saturating_sub(1);
                    if depth == 0 {
                        let text = self.chars.get(start + 1..self.at - 1).unwrap_or_default();
                        return Ok(text.iter().collect());
                    }
                }
                _ => {}
            }
        }
        Err(parse_error(start, "unterminated array"))
    }

    /// A path that stands within brackets.
    fn inner_path(&self, text: &str) -> Result<Path, JsonPathError> {
        let mut inner = Reader { chars: text.chars().collect(), at: 0, depth: self.depth };
        let path = inner.path()?;
        match inner.peek() {
            None => Ok(path),
            Some(c) => Err(parse_error(self.at, format!("unexpected {c:?} in brackets"))),
        }
    }

    fn filter(&self, start: usize, text: &str) -> Result<Filter, JsonPathError> {
        let operators = [
            ("==", Comparison::Equal),
            ("!=", Comparison::NotEqual),
            ("<=", Comparison::LessOrEqual),
            (">=", Comparison::GreaterOrEqual),
            ("<", Comparison::Less),
            (">", Comparison::Greater),
        ];
        let Some(at) = position_outside_quotes(text, |c| matches!(c, '=' | '!' | '<' | '>')) else {
            return Ok(Filter { left: self.operand(text)?, right: None });
        };
        let (left, rest) = text.split_at(at);
        let found = operators.into_iter().find(|(sign, _)| rest.starts_with(sign));
        let (sign, comparison) = found
            .ok_or_else(|| parse_error(start, format!("unrecognized filter operator in {text}")))?;
        let right = rest.get(sign.len()..).unwrap_or_default();
        let right = Some((comparison, self.operand(right)?));
        Ok(Filter { left: self.operand(left)?, right })
    }

    fn operand(&self, text: &str) -> Result<Operand, JsonPathError> {
        let text = text.trim();
        if text.starts_with(['\'', '"']) {
            let mut inner = Reader { chars: text.chars().collect(), at: 0, depth: self.depth };
            let literal = inner.quoted()?;
            return match inner.peek() {
                None => Ok(Operand::Literal(Value::String(literal))),
                Some(_) => Err(parse_error(self.at, format!("unexpected text after {literal:?}"))),
            };
        }
        match text {
            "" => return Err(parse_error(self.at, "a filter lacks an operand")),
            "true" => return Ok(Operand::Literal(Value::Bool(true))),
            "false" => return Ok(Operand::Literal(Value::Bool(false))),
            _ => {}
        }
        if text.starts_with(|c: char| c.is_ascii_digit() || c == '-' || c == '+') {
            let number = text.trim_start_matches('+');
            let whole = number.parse::<i64>().ok().map(Value::from);
            let number = whole.or_else(|| number.parse::<f64>().ok().map(Value::from));
            let number = number.filter(|number| !number.is_null());
            return number
                .map(Operand::Literal)
                .ok_or_else(|| parse_error(self.at, format!("cannot parse number {text}")));
        }
        self.inner_path(text).map(Operand::Path)
    }
}

/// Where the first such character is that stands in no quotes and no brackets.
fn position_outside_quotes(text: &str, is: impl Fn(char) -> bool) -> Option<usize> {
    let mut quote = None;
    let mut depth = 0_i32;
    let mut escaped = false;
    for (at, c) in text.char_indices() {
        if std::mem::take(&mut escaped) {
            continue;
        }
        match (quote, c) {
            (_, '\\') => escaped = true,
            (Some(open), c) if open == c => quote = None,
            (Some(_), _) => {}
            (None, '\'' | '"') => quote = Some(c),
            (None, '[' | '(') => depth = depth.saturating_add(1),
            (None, ']' | ')') => depth = depth.saturating_sub(1),
            (None, c) if depth == 0 && is(c) => return Some(at),
            _ => {}
        }
    }
    None
}

fn split(text: &str, separator: char) -> Vec<&str> {
    let mut members = Vec::new();
    let mut rest = text;
    while let Some(at) = position_outside_quotes(rest, |c| c == separator) {
        members.push(rest.get(..at).unwrap_or_default());
        rest = rest.get(at + separator.len_utf8()..).unwrap_or_default();
    }
    members.push(rest);
    members
}

fn unquoted(text: &str) -> Option<&str> {
    let inner = |quote| text.strip_prefix(quote)?.strip_suffix(quote);
    inner('\'').or_else(|| inner('"'))
}

fn slice(text: &str) -> Option<Slice> {
    let mut numbers = text.split(':').map(|number| match number.trim() {
        "" => Some(None),
        number => number.parse::<i64>().ok().map(Some),
    });
    let start = numbers.next()??;
    let Some(end) = numbers.next() else {
        let start = Some(start?);
        return Some(Slice { start, end: None, step: None, single: true });
    };
    let (end, step) = (end?, numbers.next().unwrap_or(Some(None))?);
    numbers.next().is_none().then_some(Slice { start, end, step, single: false })
}
