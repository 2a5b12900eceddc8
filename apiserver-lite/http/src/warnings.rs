//! `Warning` headers.

use http::header::WARNING;
use http::{HeaderValue, Response};

use crate::body::ResponseBody;

/// Adds a `Warning` header.
pub fn add_warning(response: &mut Response<ResponseBody>, text: &str) {
    if let Ok(value) = HeaderValue::from_str(&warning_text(text)) {
        response.headers_mut().append(WARNING, value);
    }
}

/// A `Warning` header value (RFC 7234 section 5.5): code 299, agent `-`.
fn warning_text(text: &str) -> String {
    let clean: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    format!("299 - \"{}\"", clean.replace('\\', "\\\\").replace('"', "\\\""))
}
