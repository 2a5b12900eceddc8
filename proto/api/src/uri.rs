//! Percent-encoding of the parts of a URI. Pure.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

/// What is encoded in a value of a query: everything but the unreserved characters of RFC 3986, section 2.3.
pub const COMPONENT: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Encodes the characters of `text` that are in `set`, and every character outside of ASCII.
pub fn encode(text: &str, set: &'static AsciiSet) -> String {
    utf8_percent_encode(text, set).to_string()
}

/// Decodes `text`. Invalid escapes are kept; bytes that are not UTF-8 become U+FFFD.
pub fn decode(text: &str) -> String {
    percent_decode_str(text).decode_utf8_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn components_are_encoded_and_decoded() {
        assert_eq!(encode("a b/c=ü-._~", COMPONENT), "a%20b%2Fc%3D%C3%BC-._~");
        assert_eq!(decode("a%20b%2Fc%3D%C3%BC+"), "a b/c=ü+");
        assert_eq!(decode("a%2"), "a%2");
        assert_eq!(decode("%zz%41%ff"), "%zzA\u{fffd}");
    }
}
