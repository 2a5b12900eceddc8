//! Functions of texts. Places are counted in characters.

use std::sync::Arc;

use super::functions::index;
use super::run::Run;
use super::value::{Fail, Items, Val};
use crate::cel::cost;
use crate::pattern::{self, Pattern};

/// Bytes of a regular expression that a run compiles in one step.
const COMPILED_PER_STEP: u64 = 16;

/// Calls a method of a text.
pub(crate) fn call<'a>(
    run: &mut Run<'a>,
    name: &str,
    text: &str,
    args: &[Val<'a>],
) -> Result<Val<'a>, Fail> {
    let made = match (name, args) {
        ("matches", [Val::Text(pattern)]) => Val::Bool(matches(run, text, pattern)?),
        ("find", [Val::Text(pattern)]) => {
            Val::text(compiled(run, pattern)?.find(text).unwrap_or_default())
        }
        ("findAll", [Val::Text(pattern)]) => find_all(run, text, pattern, -1)?,
        ("findAll", [Val::Text(pattern), Val::Int(limit)]) => find_all(run, text, pattern, *limit)?,
        ("contains", [Val::Text(part)]) => Val::Bool(text.contains(&**part)),
        ("startsWith", [Val::Text(part)]) => Val::Bool(text.starts_with(&**part)),
        ("endsWith", [Val::Text(part)]) => Val::Bool(text.ends_with(&**part)),
        ("lowerAscii", []) => Val::text(text.to_ascii_lowercase()),
        ("upperAscii", []) => Val::text(text.to_ascii_uppercase()),
        ("trim", []) => Val::text(text.trim()),
        ("charAt", [Val::Int(at)]) => char_at(text, *at)?,
        ("indexOf", [Val::Text(part)]) => index_of(text, part, 0)?,
        ("indexOf", [Val::Text(part), Val::Int(from)]) => index_of(text, part, *from)?,
        ("lastIndexOf", [Val::Text(part)]) => {
            index(text.rfind(&**part).map(|at| chars_before(text, at)))
        }
        ("lastIndexOf", [Val::Text(part), Val::Int(to)]) => last_index_of(text, part, *to)?,
        ("substring", [Val::Int(from)]) => {
            let length = i64::try_from(text.chars().count()).unwrap_or(i64::MAX);
            substring(text, *from, length)?
        }
        ("substring", [Val::Int(from), Val::Int(to)]) => substring(text, *from, *to)?,
        ("replace", [Val::Text(from), Val::Text(to)]) => replace(run, text, from, to, -1)?,
        ("replace", [Val::Text(from), Val::Text(to), Val::Int(limit)]) => {
            replace(run, text, from, to, *limit)?
        }
        ("split", [Val::Text(separator)]) => split(run, text, separator, -1)?,
        ("split", [Val::Text(separator), Val::Int(limit)]) => split(run, text, separator, *limit)?,
        _ => return Err(Fail::no_overload()),
    };
    Ok(made)
}

/// Whether a text has a match of a regular expression.
pub(crate) fn matches(run: &mut Run<'_>, text: &str, pattern: &str) -> Result<bool, Fail> {
    Ok(compiled(run, pattern)?.is_match(text))
}

/// A regular expression: one of the program, or one that the run makes, which costs more.
fn compiled(run: &mut Run<'_>, pattern: &str) -> Result<Arc<Pattern>, Fail> {
    if let Some(known) = run.program.patterns.get(pattern) {
        return Ok(Arc::clone(known));
    }
    run.charge((pattern.len() as u64).saturating_mul(10).saturating_add(1_000))?;
    let made = pattern::compile(pattern);
    let size = made.as_ref().map_or(pattern::COMPILE_FAILED, Pattern::size);
    run.charge(size as u64 / COMPILED_PER_STEP)?;
    made.map(Arc::new).map_err(|error| Fail::error(format!("Illegal regex: {error}")))
}

fn find_all<'a>(run: &mut Run<'a>, text: &str, pattern: &str, limit: i64) -> Result<Val<'a>, Fail> {
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let regex = compiled(run, pattern)?;
    let mut parts = Vec::new();
    for found in regex.find_all(text).take(limit) {
        let rest = text.len().saturating_sub(found.start) as u64;
        run.charge(cost::search_on(rest, pattern.len() as u64))?;
        parts.push(Val::text(text.get(found).unwrap_or_default()));
    }
    Ok(Val::list(parts))
}

fn chars_before(text: &str, at: usize) -> usize {
    text.get(..at).unwrap_or_default().chars().count()
}

/// The place in bytes of a character, also of the end; `None` beyond it.
fn byte_at(text: &str, at: i64) -> Option<usize> {
    let at = usize::try_from(at).ok()?;
    text.char_indices().map(|(byte, _)| byte).chain([text.len()]).nth(at)
}

fn out_of_range(at: i64) -> Fail {
    Fail::error(format!("index out of range: {at}"))
}

fn char_at<'a>(text: &str, at: i64) -> Result<Val<'a>, Fail> {
    let byte = byte_at(text, at).ok_or_else(|| out_of_range(at))?;
    let rest = text.get(byte..).unwrap_or_default();
    Ok(Val::text(rest.chars().take(1).collect::<String>()))
}

fn index_of<'a>(text: &str, part: &str, from: i64) -> Result<Val<'a>, Fail> {
    let start = byte_at(text, from).ok_or_else(|| out_of_range(from))?;
    let found = text.get(start..).and_then(|rest| rest.find(part));
    Ok(index(found.map(|at| chars_before(text, at.saturating_add(start)))))
}

fn last_index_of<'a>(text: &str, part: &str, to: i64) -> Result<Val<'a>, Fail> {
    let end = byte_at(text, to).ok_or_else(|| out_of_range(to))?;
    let end = end.saturating_add(part.len()).min(text.len());
    let before = (end..=text.len()).find_map(|end| text.get(..end)).unwrap_or(text);
    let found = before.rfind(part).map(|at| chars_before(text, at));
    let to = usize::try_from(to).unwrap_or_default();
    Ok(index(found.filter(|at| *at <= to)))
}

fn substring<'a>(text: &str, from: i64, to: i64) -> Result<Val<'a>, Fail> {
    if from > to {
        return Err(Fail::error(format!("invalid substring range. start: {from}, end: {to}")));
    }
    let start = byte_at(text, from).ok_or_else(|| out_of_range(from))?;
    let end = byte_at(text, to).ok_or_else(|| out_of_range(to))?;
    Ok(Val::text(text.get(start..end).unwrap_or_default()))
}

fn replace<'a>(
    run: &mut Run<'a>,
    text: &str,
    from: &str,
    to: &str,
    limit: i64,
) -> Result<Val<'a>, Fail> {
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let places = if from.is_empty() {
        text.chars().count().saturating_add(1)
    } else {
        text.matches(from).count()
    };
    let longer = (places.min(limit) as u64).saturating_mul(to.len() as u64);
    run.charge(cost::walk(longer.saturating_add(text.len() as u64)))?;
    Ok(Val::text(text.replacen(from, to, limit)))
}

fn split<'a>(run: &mut Run<'a>, text: &str, separator: &str, limit: i64) -> Result<Val<'a>, Fail> {
    run.charge(text.matches(separator).count() as u64)?;
    let parts: Vec<&str> = match (limit, separator) {
        (0, _) => Vec::new(),
        (limit, "") => {
            let limit = usize::try_from(limit).unwrap_or(usize::MAX);
            let mut rest = text;
            let mut parts = Vec::new();
            while let Some(c) = rest.chars().next() {
                let last = parts.len().saturating_add(1) >= limit;
                let (part, after) = rest.split_at(if last { rest.len() } else { c.len_utf8() });
                parts.push(part);
                rest = after;
            }
            parts
        }
        (limit, separator) => match usize::try_from(limit) {
            Ok(limit) => text.splitn(limit, separator).collect(),
            Err(_) => text.split(separator).collect(),
        },
    };
    Ok(Val::list(parts.into_iter().map(Val::text).collect()))
}

/// The texts of a list, joined.
pub(crate) fn join<'a>(
    run: &mut Run<'a>,
    items: &Items<'a>,
    separator: &str,
) -> Result<Val<'a>, Fail> {
    let mut out = String::new();
    for at in 0..items.len() {
        let Some(Val::Text(text)) = run.item(items, at)? else { return Err(Fail::no_overload()) };
        if at > 0 {
            out.push_str(separator);
        }
        run.charge(cost::walk((text.len() as u64).saturating_add(separator.len() as u64)))?;
        out.push_str(&text);
    }
    Ok(Val::text(out))
}
