//! Rewrites links of pages behind a proxy path: a path that starts at the target's root must start at the proxy path for the
//! browser. Only values of attributes with URLs are changed.

#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

/// Attributes with URLs (HTML, section "Attributes", including obsolete ones).
const ATTRIBUTES: [&str; 16] = [
    "action",
    "background",
    "cite",
    "classid",
    "codebase",
    "data",
    "formaction",
    "href",
    "icon",
    "longdesc",
    "manifest",
    "poster",
    "profile",
    "src",
    "usemap",
    "xlink:href",
];
/// Elements whose content is not markup.
const RAW: [&str; 4] = ["script", "style", "textarea", "title"];

/// `reference` behind `prefix` if it is a path from the root; `None` for every other reference.
#[must_use]
pub fn under_prefix(reference: &str, prefix: &str) -> Option<String> {
    // `//host/…` names another host.
    let at_root = reference.starts_with('/') && !reference.starts_with("//");
    at_root.then(|| format!("{}{reference}", prefix.trim_end_matches('/')))
}

/// The page with its links rewritten below `prefix`.
#[must_use]
pub fn rewrite(page: &str, prefix: &str) -> String {
    let mut out = String::with_capacity(page.len().saturating_add(page.len() / 16));
    let mut rest = page;
    while let Some(at) = rest.find('<') {
        let (text, tagged) = rest.split_at(at);
        out.push_str(text);
        let end = markup_len(tagged);
        let (markup, after) = tagged.split_at(end);
        rest = after;
        match name_of(markup) {
            None => out.push_str(markup),
            Some(name) => {
                rewrite_tag(markup, prefix, &mut out);
                if RAW.iter().any(|raw| raw.eq_ignore_ascii_case(name)) {
                    let raw_end = raw_len(rest, name);
                    let (raw, after) = rest.split_at(raw_end);
                    out.push_str(raw);
                    rest = after;
                }
            }
        }
    }
    out.push_str(rest);
    out
}

/// The name of a start tag; `None` for end tags, comments and a lone `<`.
fn name_of(markup: &str) -> Option<&str> {
    let inside = markup.strip_prefix('<')?;
    // Checked first, so that many lone `<` do not cause a scan each.
    if !inside.starts_with(|c: char| c.is_ascii_alphabetic()) {
        return None;
    }
    let end = inside.find(|c: char| c.is_ascii_whitespace() || c == '>' || c == '/');
    count_steps(end.unwrap_or(inside.len()));
    Some(end.map_or(inside, |end| inside.get(..end).unwrap_or_default()))
}

/// Counts scanned bytes; a test checks that their number is proportional to the page.
#[cfg(not(test))]
fn count_steps(_: usize) {}

/// Length of the comment or tag at the start of `text`; quoted values may contain `>`.
fn markup_len(text: &str) -> usize {
    if text.starts_with("<!--") {
        let len = text.find("-->").map_or(text.len(), |at| at.saturating_add(3));
        count_steps(len);
        return len;
    }
    if name_of(text).is_none() && !text.starts_with("</") && !text.starts_with("<!") {
        return 1;
    }
    let mut quote = None;
    for (at, c) in text.char_indices() {
        count_steps(1);
        match (quote, c) {
            (None, '>') => return at.saturating_add(1),
            // A quote is significant only at the start of a value.
            (None, '"' | '\'') if text.get(..at).is_some_and(opens_value) => quote = Some(c),
            (Some(open), c) if open == c => quote = None,
            _ => {}
        }
    }
    text.len()
}

fn opens_value(before: &str) -> bool {
    before.trim_end().ends_with('=')
}

/// Length of raw content up to its end tag.
fn raw_len(text: &str, name: &str) -> usize {
    let ends = text.match_indices("</").find(|(at, end)| {
        let named =
            text.get(at.saturating_add(end.len())..).and_then(|rest| rest.get(..name.len()));
        named.is_some_and(|named| named.eq_ignore_ascii_case(name))
    });
    let len = ends.map_or(text.len(), |(at, _)| at);
    count_steps(len);
    len
}

/// Copies a start tag with its links rewritten.
fn rewrite_tag(tag: &str, prefix: &str, out: &mut String) {
    let mut rest = tag;
    while let Some(equals) = rest.find('=') {
        let (head, value) = rest.split_at(equals.saturating_add(1));
        out.push_str(head);
        let blank = value.len().saturating_sub(value.trim_start().len());
        let (blank, value) = value.split_at(blank);
        out.push_str(blank);
        let (value, after) = value.split_at(value_len(value));
        let name = head.trim_end_matches('=').trim_end();
        let name = name.rsplit(|c: char| c.is_ascii_whitespace() || c == '/').next();
        let holds_address =
            ATTRIBUTES.iter().any(|a| name.is_some_and(|name| a.eq_ignore_ascii_case(name)));
        let quote = value.chars().next().filter(|c| matches!(c, '"' | '\''));
        let bare = match quote {
            Some(quote) => value.strip_prefix(quote).and_then(|rest| rest.strip_suffix(quote)),
            None => Some(value),
        };
        match bare.and_then(|bare| under_prefix(bare, prefix)).filter(|_| holds_address) {
            Some(moved) => {
                let quote = quote.map(String::from).unwrap_or_default();
                out.push_str(&format!("{quote}{moved}{quote}"));
            }
            None => out.push_str(value),
        }
        rest = after;
    }
    out.push_str(rest);
}

/// Length of an attribute value, quotes included.
fn value_len(value: &str) -> usize {
    let len = match value.chars().next() {
        Some(quote @ ('"' | '\'')) => {
            let end = value.get(1..).and_then(|inside| inside.find(quote));
            end.map_or(value.len(), |end| end.saturating_add(2))
        }
        _ => value.find(|c: char| c.is_ascii_whitespace() || c == '>').unwrap_or(value.len()),
    };
    count_steps(len);
    len
}

#[cfg(test)]
use tests::count_steps;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    thread_local! {
        static STEPS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
    }

    pub(super) fn count_steps(steps: usize) {
        STEPS.set(STEPS.get() + steps);
    }

    #[test]
    fn work_grows_with_the_page() {
        let steps = |piece: &str, len: usize| {
            STEPS.set(0);
            let page = piece.repeat(len / piece.len());
            assert_eq!(rewrite(&page, ""), page);
            STEPS.get()
        };
        for piece in [
            "<",
            "<a",
            "<a>",
            "</",
            "<!",
            "<!--",
            "<a \"",
            "<a = ",
            "<a =\"",
            "<script>",
            "<a b='",
            "<a>=",
            "< \"",
            "<script></",
            "=",
            "<a   '  '",
        ] {
            let counts = [1 << 12, 1 << 13, 1 << 14, 1 << 15].map(|len| (len, steps(piece, len)));
            for (len, steps) in counts {
                assert!(steps <= 4 * len, "{piece:?}: {steps} steps for {len} bytes");
            }
        }
    }

    #[test]
    fn only_addresses_at_the_root_move() {
        for (page, expect) in [
            (r#"<a href="/x">y</a>"#, r#"<a href="/p/x">y</a>"#),
            (r#"<a href='/x'>"#, r#"<a href='/p/x'>"#),
            ("<a href=/x>", "<a href=/p/x>"),
            ("<a class=big HREF = '/x' id=1>", "<a class=big HREF = '/p/x' id=1>"),
            (r#"<a href="x">"#, r#"<a href="x">"#),
            (r#"<a href="//host/x">"#, r#"<a href="//host/x">"#),
            (r#"<a href="http://host/x">"#, r#"<a href="http://host/x">"#),
            (r#"<a title="/x">"#, r#"<a title="/x">"#),
            (r#"<a title="a>b" href="/x">"#, r#"<a title="a>b" href="/p/x">"#),
            (r#"<img src="/a.png"/>"#, r#"<img src="/p/a.png"/>"#),
            (r#"<!-- <a href="/x"> -->"#, r#"<!-- <a href="/x"> -->"#),
            (
                r#"<script src="/s.js">if (a < b) '<a href="/x">'</script><p>"#,
                r#"<script src="/p/s.js">if (a < b) '<a href="/x">'</script><p>"#,
            ),
            ("1 < 2 <b>3</b>", "1 < 2 <b>3</b>"),
            (r#"<a href="/x"#, r#"<a href="/x"#),
        ] {
            assert_eq!(rewrite(page, "/p/"), expect);
        }
    }

    proptest! {
        #[test]
        fn without_a_prefix_nothing_changes(page in "(<a href=\"/x\">|<!--|-->|<script>|</script>|['\"<>=/ a-c]|ä){0,40}") {
            prop_assert_eq!(rewrite(&page, ""), page);
        }
    }
}
