//! Grammar of DNS labels and names as Kubernetes uses them (RFC 1123): lower case letters, digits and `-`, which is neither first nor last in a label.

/// Longest label, in bytes.
pub const LABEL_MAX: usize = 63;
/// Longest name, in bytes.
pub const NAME_MAX: usize = 253;

/// Whether the text is a label, however long.
pub fn has_label_form(text: &str) -> bool {
    let is_inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    !text.is_empty() && text.bytes().all(is_inner) && !text.starts_with('-') && !text.ends_with('-')
}

/// Whether the text is a label: `web-1`.
pub fn is_label(text: &str) -> bool {
    text.len() <= LABEL_MAX && has_label_form(text)
}

/// Whether the text is a name that DNS can serve: labels joined by dots, neither of them nor the name too long.
pub fn is_name(text: &str) -> bool {
    text.len() <= NAME_MAX && text.split('.').all(is_label)
}

/// Whether the text is a subdomain as names of objects are: Kubernetes bounds the whole only, not the labels.
pub fn is_subdomain(text: &str) -> bool {
    text.len() <= NAME_MAX && text.split('.').all(has_label_form)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_and_names_have_their_form_and_length() {
        let (label, long) = ("a".repeat(LABEL_MAX), "a".repeat(LABEL_MAX + 1));
        for (text, expected) in [
            ("", [false; 4]),
            ("a", [true; 4]),
            ("web-1", [true; 4]),
            (&label, [true; 4]),
            (&long, [true, false, false, true]),
            ("a.b-c.0", [false, false, true, true]),
            ("-a", [false; 4]),
            ("a-", [false; 4]),
            ("A", [false; 4]),
            ("a_b", [false; 4]),
            ("a..b", [false; 4]),
            (".a", [false; 4]),
            ("a.", [false; 4]),
            ("ä", [false; 4]),
            ("a.-b", [false; 4]),
            ("a/b", [false; 4]),
            ("a%2Fb", [false; 4]),
            ("..", [false; 4]),
            ("a\0", [false; 4]),
            (&format!("{label}.{label}.{label}.{}", &label[..61]), [false, false, true, true]),
            (&format!("{label}.{label}.{label}.{}", &label[..62]), [false; 4]),
        ] {
            let found = [has_label_form(text), is_label(text), is_name(text), is_subdomain(text)];
            assert_eq!(found, expected, "{text}");
        }
    }
}
