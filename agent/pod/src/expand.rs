//! `$(NAME)` in commands, arguments and environment values.

/// Replaces each `$(NAME)` by what `lookup` gives. `$$` is a literal `$`, so `$$(NAME)` stays `$(NAME)`; a name that `lookup`
/// does not know, and every other `$`, stays as written.
pub fn expand<'a>(text: &str, lookup: impl Fn(&str) -> Option<&'a str>) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        let (before, from) = rest.split_at(at);
        out.push_str(before);
        let after = &from[1..];
        if let Some(tail) = after.strip_prefix('$') {
            out.push('$');
            rest = tail;
        } else if let Some((name, tail)) = reference(after) {
            match lookup(name) {
                Some(value) => out.push_str(value),
                None => out.push_str(&from[..from.len() - tail.len()]),
            }
            rest = tail;
        } else {
            out.push('$');
            rest = after;
        }
    }
    out.push_str(rest);
    out
}

/// `(NAME)` at the start of `text`: the name and what follows.
fn reference(text: &str) -> Option<(&str, &str)> {
    text.strip_prefix('(')?.split_once(')')
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
            assert_eq!(expand(text, lookup), expect, "{text}");
        }
    }
}
