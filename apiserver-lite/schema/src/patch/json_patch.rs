//! JSON Patch (RFC 6902) with a bound on the work of one patch.

use super::{JSON_PATCH_COPY_MAX, JSON_PATCH_OPS_MAX, PatchError};
use crate::value::{Map, Value, write_json};

/// Applies the operations of `patch` in order. After an error `document` is partly patched; the caller drops it.
pub(crate) fn apply_json_patch(document: &mut Value, patch: &Value) -> Result<(), PatchError> {
    let operations = parse(patch)?;
    // The check of the patched object makes them texts again.
    document.parse_field_sets();
    let mut cost = PatchCost::default();
    for operation in operations {
        let (name, path) = (operation.name(), operation.path().text);
        apply(document, operation, &mut cost).map_err(|why| {
            PatchError::Inapplicable(format!("{name} operation does not apply: {path:?}: {why}"))
        })?;
    }
    Ok(())
}

/// Why an item of a patch is no operation: the client has to send another patch.
#[derive(Debug, thiserror::Error)]
enum ParseError {
    #[error("not an object")]
    NotAnObject,
    #[error("{0:?} is missing")]
    Missing(&'static str),
    #[error("unexpected kind: {0}")]
    UnknownKind(String),
    #[error("pointer {0:?} does not start with '/'")]
    Pointer(String),
}

/// Why an operation does not apply: to this document, or to none, because it would cost too much.
#[derive(Debug, thiserror::Error)]
enum ApplyError {
    #[error("{0:?} does not exist")]
    Missing(String),
    #[error("{0:?} is not an index")]
    NotAnIndex(String),
    #[error("index {0} is out of bounds")]
    OutOfBounds(String),
    #[error("cannot add to a {0}")]
    NotAContainer(&'static str),
    #[error("testing value failed")]
    TestFailed,
    #[error("a value cannot be moved into itself")]
    MovedIntoItself,
    #[error("the document would be nested more than {DEPTH_MAX} levels deep")]
    TooDeep,
    #[error("copies add up to more than {JSON_PATCH_COPY_MAX} bytes")]
    TooMuchCopied,
    #[error("the patch moves too many items")]
    TooMuchMoved,
}

enum Operation<'a> {
    Add { path: Pointer<'a>, value: &'a Value },
    Remove { path: Pointer<'a> },
    Replace { path: Pointer<'a>, value: &'a Value },
    Move { from: Pointer<'a>, path: Pointer<'a> },
    Copy { from: Pointer<'a>, path: Pointer<'a> },
    Test { path: Pointer<'a>, value: &'a Value },
}

impl<'a> Operation<'a> {
    fn name(&self) -> &'static str {
        match self {
            Operation::Add { .. } => "add",
            Operation::Remove { .. } => "remove",
            Operation::Replace { .. } => "replace",
            Operation::Move { .. } => "move",
            Operation::Copy { .. } => "copy",
            Operation::Test { .. } => "test",
        }
    }

    fn path(&self) -> &Pointer<'a> {
        match self {
            Operation::Add { path, .. }
            | Operation::Remove { path }
            | Operation::Replace { path, .. }
            | Operation::Move { path, .. }
            | Operation::Copy { path, .. }
            | Operation::Test { path, .. } => path,
        }
    }
}

fn parse(patch: &Value) -> Result<Vec<Operation<'_>>, PatchError> {
    let Some(items) = patch.as_list() else {
        return Err(PatchError::Malformed("a JSON patch is an array of operations".to_owned()));
    };
    if items.len() > JSON_PATCH_OPS_MAX {
        return Err(PatchError::TooManyOperations(items.len()));
    }
    (0..)
        .zip(items)
        .map(|(at, item)| {
            let operation = item.as_map().ok_or(ParseError::NotAnObject).and_then(parse_operation);
            operation.map_err(|why| PatchError::Malformed(format!("operation {at}: {why}")))
        })
        .collect()
}

fn parse_operation(item: &Map) -> Result<Operation<'_>, ParseError> {
    let pointer = |key: &'static str| {
        let text = item.get(key).and_then(Value::as_str);
        Pointer::parse(text.ok_or(ParseError::Missing(key))?)
    };
    let value = || item.get("value").ok_or(ParseError::Missing("value"));
    let path = pointer("path")?;
    match item.str("op") {
        "add" => Ok(Operation::Add { path, value: value()? }),
        "remove" => Ok(Operation::Remove { path }),
        "replace" => Ok(Operation::Replace { path, value: value()? }),
        "move" => Ok(Operation::Move { from: pointer("from")?, path }),
        "copy" => Ok(Operation::Copy { from: pointer("from")?, path }),
        "test" => Ok(Operation::Test { path, value: item.get("value").unwrap_or(&Value::Null) }),
        "" => Err(ParseError::Missing("op")),
        other => Err(ParseError::UnknownKind(other.to_owned())),
    }
}

/// Cost of the operations so far.
#[derive(Default)]
struct PatchCost {
    /// JSON bytes copied.
    copied_bytes: usize,
    /// Items and entries shifted by inserts and removals, or visited in moved values.
    shifted_items: usize,
}

impl PatchCost {
    /// Most items shifted: ten thousand operations on a list of a thousand.
    const SHIFTED_MAX: usize = 10_000_000;

    fn shift(&mut self, items: usize) -> Result<(), ApplyError> {
        self.shifted_items = self.shifted_items.saturating_add(items);
        if self.shifted_items > Self::SHIFTED_MAX {
            return Err(ApplyError::TooMuchMoved);
        }
        Ok(())
    }
}

fn apply(
    document: &mut Value,
    operation: Operation<'_>,
    cost: &mut PatchCost,
) -> Result<(), ApplyError> {
    match operation {
        Operation::Add { path, value } => add(document, &path, value.clone(), cost),
        Operation::Remove { path } => remove(document, &path, cost).map(drop),
        Operation::Replace { path, value } => {
            check_depth(&path, value)?;
            *find_mut(document, &path.tokens, cost)? = value.clone();
            Ok(())
        }
        Operation::Move { from, path } => {
            let inside = path.tokens.len() > from.tokens.len();
            if inside && path.tokens.starts_with(&from.tokens) {
                return Err(ApplyError::MovedIntoItself);
            }
            let value = remove(document, &from, cost)?;
            cost.shift(value.count_values())?;
            add(document, &path, value, cost)
        }
        Operation::Copy { from, path } => {
            let value = find_mut(document, &from.tokens, cost)?.clone();
            let mut text = Vec::new();
            write_json(&mut text, &value);
            cost.copied_bytes = cost.copied_bytes.saturating_add(text.len());
            if cost.copied_bytes > JSON_PATCH_COPY_MAX {
                return Err(ApplyError::TooMuchCopied);
            }
            add(document, &path, value, cost)
        }
        Operation::Test { path, value } => {
            let holds = match find_mut(document, &path.tokens, cost) {
                Ok(have) => have == value,
                Err(_) => *value == Value::Null,
            };
            if holds { Ok(()) } else { Err(ApplyError::TestFailed) }
        }
    }
}

/// A JSON pointer, RFC 6901.
struct Pointer<'a> {
    text: &'a str,
    tokens: Vec<String>,
}

impl<'a> Pointer<'a> {
    fn parse(text: &'a str) -> Result<Self, ParseError> {
        let tokens = match text.strip_prefix('/') {
            Some(rest) => rest.split('/').map(unescape).collect(),
            None if text.is_empty() => Vec::new(),
            None => return Err(ParseError::Pointer(text.to_owned())),
        };
        Ok(Pointer { text, tokens })
    }
}

fn unescape(token: &str) -> String {
    token.replace("~1", "/").replace("~0", "~")
}

/// Deepest document. Parsers refuse deeper ones; copies of a document into itself must not exceed it either.
const DEPTH_MAX: usize = 127; // the parser reads no more

fn add(
    document: &mut Value,
    path: &Pointer<'_>,
    value: Value,
    cost: &mut PatchCost,
) -> Result<(), ApplyError> {
    check_depth(path, &value)?;
    let Some((last, parents)) = path.tokens.split_last() else {
        *document = value;
        return Ok(());
    };
    match find_mut(document, parents, cost)? {
        Value::Map(map) => {
            cost.shift(map.entries_after(last))?;
            map.insert(last.clone(), value);
            Ok(())
        }
        Value::List(items) => {
            let at =
                if last == "-" { items.len() } else { index(last, items.len().saturating_add(1))? };
            cost.shift(items.len().saturating_sub(at))?;
            items.insert(at, value);
            Ok(())
        }
        other => Err(ApplyError::NotAContainer(other.shape())),
    }
}

fn check_depth(path: &Pointer<'_>, value: &Value) -> Result<(), ApplyError> {
    if path.tokens.len().saturating_add(depth(value)) > DEPTH_MAX {
        return Err(ApplyError::TooDeep);
    }
    Ok(())
}

/// Depth of `value`, at most [`DEPTH_MAX`], because deeper values are never added.
fn depth(value: &Value) -> usize {
    match value {
        Value::Map(map) => {
            map.iter().map(|(_, item)| depth(item)).max().unwrap_or(0).saturating_add(1)
        }
        Value::List(items) => items.iter().map(depth).max().unwrap_or(0).saturating_add(1),
        _ => 0,
    }
}

fn remove(
    document: &mut Value,
    path: &Pointer<'_>,
    cost: &mut PatchCost,
) -> Result<Value, ApplyError> {
    let Some((last, parents)) = path.tokens.split_last() else {
        return Ok(std::mem::take(document));
    };
    match find_mut(document, parents, cost)? {
        Value::Map(map) => {
            cost.shift(map.entries_after(last))?;
            map.remove(last).ok_or_else(|| missing(last))
        }
        Value::List(items) => {
            let at = index(last, items.len())?;
            cost.shift(items.len().saturating_sub(at))?;
            Ok(items.remove(at))
        }
        _ => Err(missing(last)),
    }
}

fn find_mut<'v>(
    document: &'v mut Value,
    tokens: &[String],
    cost: &mut PatchCost,
) -> Result<&'v mut Value, ApplyError> {
    tokens.iter().try_fold(document, |value, token| match value {
        Value::Map(map) => {
            cost.shift(map.lookup_cost())?;
            map.get_mut(token).ok_or_else(|| missing(token))
        }
        Value::List(items) => {
            let at = index(token, items.len())?;
            items.get_mut(at).ok_or_else(|| missing(token))
        }
        _ => Err(missing(token)),
    })
}

/// Parses an index below `len`; negative ones count from the end, a form older than the RFC that Kubernetes accepts.
fn index(token: &str, len: usize) -> Result<usize, ApplyError> {
    let digits = token.strip_prefix('-').unwrap_or(token);
    let canonical = digits == "0" || !digits.starts_with('0');
    let number: usize = match digits.parse() {
        Ok(number) if canonical && digits.bytes().all(|b| b.is_ascii_digit()) => number,
        _ => return Err(ApplyError::NotAnIndex(token.to_owned())),
    };
    let at = if token.starts_with('-') { len.checked_sub(number) } else { Some(number) };
    at.filter(|&at| at < len).ok_or_else(|| ApplyError::OutOfBounds(token.to_owned()))
}

fn missing(token: &str) -> ApplyError {
    ApplyError::Missing(token.to_owned())
}
