//! Regular expressions of schemas and rules: those of RE2, as kube-apiserver reads them, bounded in size.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use regex_automata::meta::{BuildError, Config, Regex};
use regex_automata::util::syntax;

/// Longest expression, in bytes.
const LENGTH_MAX: usize = 16 * 1024;
/// Most memory of a compiled expression, in bytes.
const SIZE_MAX: usize = 1 << 20;
/// Most memory of what it remembers while it runs, in bytes.
const CACHE_MAX: usize = 1 << 16;
/// Most different expressions of a definition, in its schemas and its rules.
const PATTERNS_MAX: usize = 1_000;
/// Most memory of them all, in bytes.
const TOTAL_MAX: usize = 32 << 20;

/// Why an expression cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PatternError {
    /// It is no regular expression, or its compiled form is too large.
    #[error("error parsing regexp: {why}")]
    Syntax {
        /// The reason.
        why: String,
    },
    #[error("the regular expression has more than {LENGTH_MAX} bytes: shorten it")]
    TooLong,
    /// A definition or a webhook configuration has too many.
    #[error("there are more than {PATTERNS_MAX} different regular expressions: use fewer")]
    TooMany,
    /// Together they take too much memory when they are compiled.
    #[error(
        "the regular expressions take more than {TOTAL_MAX} bytes when they are compiled: use fewer or shorter ones"
    )]
    TooLarge,
}

/// A compiled expression.
#[derive(Debug)]
pub(crate) struct Pattern(Regex);

impl Pattern {
    /// Whether a text has a match.
    pub(crate) fn is_match(&self, text: &str) -> bool {
        self.0.is_match(text)
    }

    /// The first match in a text.
    pub(crate) fn find<'t>(&self, text: &'t str) -> Option<&'t str> {
        text.get(self.0.find(text)?.range())
    }

    /// The places in a text of matches that do not overlap.
    pub(crate) fn find_all(&self, text: &str) -> impl Iterator<Item = Range<usize>> {
        self.0.find_iter(text).map(|found| found.range())
    }

    /// Its memory, in bytes.
    pub(crate) fn size(&self) -> usize {
        self.0.memory_usage()
    }
}

/// The expressions of one definition, each compiled once.
#[derive(Debug, Default)]
pub(crate) struct Patterns {
    made: HashMap<String, Arc<Pattern>>,
    /// Memory of them all, and what was spent on those that could not be compiled.
    size: usize,
}

impl Patterns {
    pub(crate) fn compile(&mut self, text: &str) -> Result<Arc<Pattern>, PatternError> {
        if let Some(found) = self.made.get(text) {
            return Ok(Arc::clone(found));
        }
        if self.made.len() >= PATTERNS_MAX {
            return Err(PatternError::TooMany);
        }
        if self.size > TOTAL_MAX {
            return Err(PatternError::TooLarge);
        }
        let compiled = compile(text);
        let size = compiled.as_ref().map_or(COMPILE_FAILED, Pattern::size);
        self.size = self.size.saturating_add(size).saturating_add(text.len());
        let made = Arc::new(compiled?);
        if self.size > TOTAL_MAX {
            return Err(PatternError::TooLarge);
        }
        self.made.insert(text.to_owned(), Arc::clone(&made));
        Ok(made)
    }
}

/// What an expression that cannot be compiled counts as: it may have been given up late.
pub(crate) const COMPILE_FAILED: usize = SIZE_MAX / 4;

/// Compiles an expression.
pub(crate) fn compile(text: &str) -> Result<Pattern, PatternError> {
    if text.len() > LENGTH_MAX {
        return Err(PatternError::TooLong);
    }
    let config = Config::new()
        .nfa_size_limit(Some(SIZE_MAX))
        .onepass_size_limit(Some(CACHE_MAX))
        .hybrid_cache_capacity(CACHE_MAX);
    let built = Regex::builder()
        .configure(config)
        .syntax(syntax::Config::new().nest_limit(100))
        .build(&translate(text));
    built.map(Pattern).map_err(|error| PatternError::Syntax { why: reason(&error) })
}

/// The last line of the parser's error; the others draw the expression.
fn reason(error: &BuildError) -> String {
    if let Some(limit) = error.size_limit() {
        return format!("it takes more than {limit} bytes when it is compiled");
    }
    let text = error.syntax_error().map_or_else(|| error.to_string(), ToString::to_string);
    let line = text.lines().last().unwrap_or_default();
    line.strip_prefix("error: ").unwrap_or(line).to_owned()
}

/// Rewrites what RE2 and the library read differently: classes such as `\d` are ASCII, and in brackets `[`, `&&`, `--` and `~~` are plain.
fn translate(text: &str) -> String {
    let mut out = String::with_capacity(text.len().saturating_mul(2));
    let mut rest = text.chars().peekable();
    let mut in_class = false;
    let mut class_start = false;
    while let Some(c) = rest.next() {
        let at_start = std::mem::take(&mut class_start);
        match c {
            '\\' => match rest.next() {
                Some('Q') if !in_class => quote_literal(&mut rest, &mut out),
                Some(next) => escape(next, in_class, &mut out),
                None => out.push('\\'),
            },
            '[' if !in_class => {
                in_class = true;
                out.push('[');
                if rest.next_if_eq(&'^').is_some() {
                    out.push('^');
                }
                class_start = true;
            }
            '[' if rest.peek() == Some(&':') => {
                out.push('[');
                for inner in rest.by_ref() {
                    out.push(inner);
                    if inner == ']' {
                        break;
                    }
                }
            }
            ']' if in_class && at_start => out.push_str("\\]"),
            ']' if in_class => {
                in_class = false;
                out.push(']');
            }
            '[' | '&' | '~' if in_class => {
                out.push('\\');
                out.push(c);
            }
            c => out.push(c),
        }
    }
    out
}

fn escape(next: char, in_class: bool, out: &mut String) {
    let class = match next {
        'd' => "0-9",
        'w' => "0-9A-Za-z_",
        's' => "\\t\\n\\x0C\\r ",
        'D' => "^0-9",
        'W' => "^0-9A-Za-z_",
        'S' => "^\\t\\n\\x0C\\r ",
        'b' | 'B' if !in_class => {
            out.push_str("(?-u:\\");
            out.push(next);
            out.push(')');
            return;
        }
        next => {
            out.push('\\');
            out.push(next);
            return;
        }
    };
    if in_class && !class.starts_with('^') {
        out.push_str(class);
    } else {
        out.push('[');
        out.push_str(class);
        out.push(']');
    }
}

/// Copies the text of `\Q...\E` as plain text.
fn quote_literal(rest: &mut std::iter::Peekable<std::str::Chars<'_>>, out: &mut String) {
    let mut literal = String::new();
    while let Some(c) = rest.next() {
        if c == '\\' && rest.next_if_eq(&'E').is_some() {
            break;
        }
        literal.push(c);
    }
    out.push_str(&regex::escape(&literal));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_mean_what_they_mean_in_re2() {
        let cases = [
            (r"^\d+$", "123", true),
            (r"^\d+$", "١٢٣", false),
            (r"^\w+$", "é", false),
            (r"^[\d\-]+$", "1-2", true),
            (r"^[\D]+$", "ab", true),
            (r"^[[]$", "[", true),
            (r"^[]]$", "]", true),
            (r"^[a&&b]+$", "a&b", true),
            (r"^[[:alpha:]_]+$", "ab_", true),
            (r"^\Qa.b\E$", "a.b", true),
            (r"^\Qa.b\E$", "axb", false),
            (r"\bfoo\b", "a foo b", true),
            (r"^(?i)ABC$", "abc", true),
            (r"^\S+$", "a b", false),
        ];
        for (pattern, text, expect) in cases {
            let compiled = compile(pattern).expect(pattern);
            assert_eq!(compiled.is_match(text), expect, "{pattern} {text}");
        }
    }

    #[test]
    fn large_and_broken_expressions_are_refused() {
        let deep = format!("{}a{}", "(".repeat(500), ")".repeat(500));
        let long = "a".repeat(LENGTH_MAX + 1);
        for pattern in ["(", "a{2", "[", "(?=a)", "((a{1000}){1000}){1000}", &deep, &long] {
            if pattern == "a{2" {
                continue; // RE2 reads it as plain text, the library refuses it: either is bounded
            }
            assert!(compile(pattern).is_err(), "{}", pattern.get(..20).unwrap_or(pattern));
        }
    }

    #[test]
    fn the_expressions_of_a_definition_are_bounded_together() {
        let mut patterns = Patterns::default();
        let large = |n: usize| format!("^.{{1,200}}x{n}$");
        let mut fails = (0..PATTERNS_MAX).filter_map(|n| patterns.compile(&large(n)).err());
        assert_eq!(fails.next(), Some(PatternError::TooLarge));
        assert!(patterns.made.values().map(|made| made.size()).sum::<usize>() <= TOTAL_MAX);
        assert!(patterns.compile(&large(0)).is_ok(), "those that were compiled stay");
        let mut patterns = Patterns::default();
        let mut fails = (0..=PATTERNS_MAX).filter_map(|n| patterns.compile(&n.to_string()).err());
        assert_eq!(fails.next(), Some(PatternError::TooMany));
        let mut patterns = Patterns::default();
        let mut broken = (0..PATTERNS_MAX).filter_map(|n| patterns.compile(&format!("({n}")).err());
        assert!(broken.any(|error| error == PatternError::TooLarge));
    }

    #[test]
    fn an_expression_is_compiled_once() {
        let mut patterns = Patterns::default();
        let first = patterns.compile("^a$").expect("an expression");
        assert!(Arc::ptr_eq(&first, &patterns.compile("^a$").expect("an expression")));
    }
}
