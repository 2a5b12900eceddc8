//! Paths of `--raw`.

use crate::CommandError;

/// Checks a path that a request is made of as it is.
///
/// # Errors
/// When it does not begin with a slash, or has a character that no URL has.
pub fn check_raw_path(path: &str) -> Result<(), CommandError> {
    if path.starts_with('/') && path.parse::<http::Uri>().is_ok() {
        return Ok(());
    }
    Err(CommandError::with_text(format!("--raw must be a valid URL path: {path:?}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_raw_path_is_a_path_of_a_url() {
        for path in ["/", "/api/v1/pods?limit=1", "/a%20b"] {
            check_raw_path(path).unwrap();
        }
        for path in ["", "api", "/a b", "/a\nb"] {
            assert!(check_raw_path(path).is_err(), "{path:?}");
        }
    }
}
