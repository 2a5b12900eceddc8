//! Continue tokens of paged lists: opaque to clients, they carry the revision of the first page and the key to continue after.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};

use crate::status::ApiError;

/// Start of the next page.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContinueToken {
    /// Format version.
    v: u8,
    /// Revision of all pages.
    pub rv: u64,
    /// Last key of the previous page, relative to the collection's prefix.
    pub start: String,
}

/// Longest token that is decoded.
const TOKEN_LEN_MAX: usize = 4096;

impl ContinueToken {
    /// The token of the page after the key `start` at revision `rv`.
    #[must_use]
    pub fn new(rv: u64, start: &str) -> Self {
        Self { v: 1, rv, start: start.to_owned() }
    }

    /// The token as text.
    #[must_use]
    pub fn encode(&self) -> String {
        // Serializing numbers and strings does not fail.
        URL_SAFE_NO_PAD.encode(serde_json::to_vec(self).unwrap_or_default())
    }

    /// Parses a token.
    ///
    /// # Errors
    /// 400 if it is not a token of this server.
    pub fn decode(token: &str) -> Result<Self, ApiError> {
        let read = || {
            let bytes =
                URL_SAFE_NO_PAD.decode(token.get(..token.len().min(TOKEN_LEN_MAX))?).ok()?;
            serde_json::from_slice::<Self>(&bytes).ok().filter(|page| page.v == 1 && page.rv > 0)
        };
        read().ok_or_else(|| {
            ApiError::bad_request(
                "continue key is not valid: the token was not made by this server",
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip_and_garbage() {
        let page = ContinueToken::new(42, "default/a");
        assert_eq!(ContinueToken::decode(&page.encode()).unwrap(), page);
        for token in ["", "x", "e30", "eyJ2IjoyfQ"] {
            assert_eq!(ContinueToken::decode(token).unwrap_err().code(), 400, "{token}");
        }
    }
}
