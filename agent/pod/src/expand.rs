//! Expansion of `$(NAME)` in commands, arguments and environment values.

use std::collections::BTreeMap;

/// A piece of the text.
enum Piece<'a> {
    /// Literal text.
    Text(&'a str),
    /// A reference: its name, and the text as written.
    Name(&'a str, &'a str),
}

/// Replaces each `$(NAME)` with the value that `lookup` returns. `$$` is a literal `$`, so `$$(NAME)` gives `$(NAME)`; an unknown
/// name and any other `$` stay as written. Returns `None` if the result has more than `limit` bytes; never allocates more.
pub fn expand<'a>(
    text: &str,
    limit: usize,
    lookup: impl Fn(&str) -> Option<&'a str>,
) -> Option<String> {
    let mut out = String::new();
    pieces(text, |piece| {
        let value = match piece {
            Piece::Text(text) => text,
            Piece::Name(name, written) => lookup(name).unwrap_or(written),
        };
        let fits = out.len().saturating_add(value.len()) <= limit;
        if fits {
            out.push_str(value);
        }
        fits
    })
    .then_some(out)
}

/// The variables by name for the expansion of `texts`; none if no text refers to any, as most containers' do not.
pub fn variables_of<'a>(
    mut texts: impl Iterator<Item = &'a String>,
    env: &'a [(String, String)],
) -> BTreeMap<&'a str, &'a str> {
    let used = if texts.any(|text| text.contains('$')) { env } else { &[] };
    used.iter().map(|(name, value)| (&**name, &**value)).collect()
}

/// Length in bytes of the result of [`expand`], given the length of each value.
pub fn expanded_len(text: &str, lookup: impl Fn(&str) -> Option<usize>) -> usize {
    let mut sum: usize = 0;
    pieces(text, |piece| {
        sum = sum.saturating_add(match piece {
            Piece::Text(text) => text.len(),
            Piece::Name(name, written) => lookup(name).unwrap_or(written.len()),
        });
        true
    });
    sum
}

/// Passes the pieces of a text to `take` until it returns false; returns whether all were taken.
fn pieces<'a>(text: &'a str, mut take: impl FnMut(Piece<'a>) -> bool) -> bool {
    let mut rest = text;
    // Bytes after the last `)`: no reference ends there, so the search for one is skipped.
    let behind = text.rfind(')').and_then(|at| text.len().checked_sub(at.checked_add(1)?));
    let behind = behind.unwrap_or(text.len());
    while let Some((before, after)) = rest.split_once('$') {
        if !take(Piece::Text(before)) {
            return false;
        }
        let ends = after.len() > behind;
        let (piece, tail) = if let Some(tail) = after.strip_prefix('$') {
            (Piece::Text("$"), tail)
        } else if let Some((name, tail)) = ends.then(|| reference(after)).flatten() {
            let from = rest.get(before.len()..).unwrap_or_default();
            let written = from.strip_suffix(tail).unwrap_or_default();
            (Piece::Name(name, written), tail)
        } else {
            (Piece::Text("$"), after)
        };
        if !take(piece) {
            return false;
        }
        rest = tail;
    }
    take(Piece::Text(rest))
}

/// Parses `(NAME)` at the start of `text`: the name and the rest.
fn reference(text: &str) -> Option<(&str, &str)> {
    let found = text.strip_prefix('(')?.split_once(')');
    proto_api::count_steps!(found.map_or(text.len(), |(name, _)| name.len()));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references() {
        let lookup = |name: &str| match name {
            "A" => Some("one"),
            "EMPTY" => Some(""),
            "NESTED" => Some("$(A)"),
            _ => None,
        };
        let cases = [
            ("", ""),
            ("plain", "plain"),
            ("$(A)", "one"),
            ("x$(A)y$(A)", "xoneyone"),
            ("$$(A)", "$(A)"),
            ("$$$(A)", "$one"),
            ("$(EMPTY)|", "|"),
            ("$(NESTED)", "$(A)"),
            ("$(B)", "$(B)"),
            ("$A", "$A"),
            ("$(A", "$(A"),
            ("ü$(A)ü$", "üoneü$"),
            ("$", "$"),
            ("$$", "$"),
            ("$()", "$()"),
        ];
        for (text, expect) in cases {
            assert_eq!(expand(text, 99, lookup).as_deref(), Some(expect), "{text}");
            let len = expanded_len(text, |name| lookup(name).map(str::len));
            assert_eq!(len, expect.len(), "{text}");
            assert_eq!(expand(text, expect.len(), lookup).as_deref(), Some(expect), "{text}");
            if let Some(less) = expect.len().checked_sub(1) {
                assert_eq!(expand(text, less, lookup), None, "{text}");
            }
        }
    }

    #[test]
    fn references_without_an_end_are_not_looked_for_again_and_again() {
        for (begin, end) in [("", ""), ("$(A)", ""), ("", "$")] {
            // Half a mebibyte of unterminated references once took minutes.
            let text = format!("{begin}{}{end}", "$(".repeat(1 << 19));
            let after = text.strip_prefix(begin).expect("begins so");
            let expect = format!("{}{after}", if begin.is_empty() { "" } else { "x" });
            // A step is a byte that is searched for an end.
            let steps = proto_api::steps::count_during(|| {
                let expanded = expand(&text, usize::MAX, |_| Some("x"));
                assert!(expanded.as_ref() == Some(&expect));
                assert_eq!(expanded_len(&text, |_| Some(1)), expect.len());
            });
            assert!(steps <= 2 * text.len() as u64, "{steps}");
        }
    }
}
