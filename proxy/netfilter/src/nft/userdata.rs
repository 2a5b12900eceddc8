//! Userdata, which the kernel keeps for `nft list`: byte orders of sets, comments of rules.
//!
//! A sequence of type byte, length byte, value (`libnftnl/udata.h`). Without the byte orders `nft list` cannot print
//! keys.

/// Set: byte order of the key.
const SET_KEY_BYTEORDER: u8 = 0;
/// Set: byte order of the data.
const SET_DATA_BYTEORDER: u8 = 1;
const RULE_COMMENT: u8 = 0;
/// Maximum length of a comment with its zero byte (`NFT_USERDATA_MAXLEN` minus two header bytes, 8-bit length).
const COMMENT_LEN_MAX: usize = 128;

/// Byte order of a key or of data (`enum byteorder` of nft).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ByteOrder {
    /// Concatenation: each field has its own.
    Mixed,
    Host,
    Network,
}

impl ByteOrder {
    fn number(self) -> u32 {
        match self {
            Self::Mixed => 0,
            Self::Host => 1,
            Self::Network => 2,
        }
    }
}

/// Userdata of a set, with byte orders of the key and, for a map, of the data.
pub fn set(key: ByteOrder, data: Option<ByteOrder>) -> Vec<u8> {
    let mut bytes = Vec::new();
    push(&mut bytes, SET_KEY_BYTEORDER, &key.number().to_ne_bytes());
    if let Some(data) = data {
        push(&mut bytes, SET_DATA_BYTEORDER, &data.number().to_ne_bytes());
    }
    bytes
}

/// Userdata of a rule with a comment, truncated if it is too long.
pub fn rule_comment(comment: &str) -> Vec<u8> {
    let mut end = comment.len().min(COMMENT_LEN_MAX - 1);
    while !comment.is_char_boundary(end) {
        end = end.saturating_sub(1);
    }
    let mut text = comment.as_bytes().get(..end).unwrap_or_default().to_vec();
    text.push(0);
    let mut bytes = Vec::new();
    push(&mut bytes, RULE_COMMENT, &text);
    bytes
}

fn push(bytes: &mut Vec<u8>, kind: u8, value: &[u8]) {
    if let Ok(len) = u8::try_from(value.len()) {
        bytes.extend_from_slice(&[kind, len]);
        bytes.extend_from_slice(value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_are_type_length_value() {
        assert_eq!(set(ByteOrder::Network, None), [0, 4, 2, 0, 0, 0]);
        assert_eq!(rule_comment("hi"), [0, 3, b'h', b'i', 0]);
        assert_eq!(rule_comment(&"ä".repeat(100)).len(), 2 + 126 + 1);
    }
}
