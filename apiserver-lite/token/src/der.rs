//! Writes DER (X.690).

/// One element: its tag, its length, and the parts of its content one behind the other.
#[must_use]
pub fn element(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
    let length: usize = parts.iter().map(|part| part.len()).sum();
    let mut out = vec![tag];
    let bytes = length.to_be_bytes();
    let significant =
        bytes.iter().position(|&byte| byte != 0).unwrap_or(bytes.len().saturating_sub(1));
    let tail = bytes.get(significant..).unwrap_or_default();
    match tail {
        [short] if *short < 0x80 => out.push(*short),
        long => {
            out.push(0x80 | u8::try_from(long.len()).unwrap_or(8));
            out.extend_from_slice(long);
        }
    }
    parts.iter().for_each(|part| out.extend_from_slice(part));
    out
}
