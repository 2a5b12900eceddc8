//! Names of images on command lines, as kubectl checks them: the grammar of references of the distribution project.

use std::sync::LazyLock;

use regex::Regex;

use crate::ArgumentError;

/// `[HOST[:PORT]/]PATH[:TAG][@DIGEST]`.
static NAME: LazyLock<Option<Regex>> = LazyLock::new(|| {
    let label = "[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?";
    let host = format!(r"(?:{label}(?:\.{label})*|\[[a-fA-F0-9:]+\])(?::[0-9]+)?");
    let part = "[a-z0-9]+(?:(?:[_.]|__|-*)[a-z0-9]+)*";
    let tag = "[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}";
    let digest = "[A-Za-z][A-Za-z0-9]*(?:[-_+.][A-Za-z][A-Za-z0-9]*)*:[a-fA-F0-9]{32,}";
    Regex::new(&format!("^(?:{host}/)?{part}(?:/{part})*(?::{tag})?(?:@{digest})?$")).ok()
});

/// Refuses a text that is no name of an image. Servers take any text: the pod would wait for an image that no runtime can pull.
///
/// # Errors
/// It is no name. The words are kubectl's.
pub fn check(image: &str) -> Result<(), ArgumentError> {
    if NAME.as_ref().is_some_and(|name| name.is_match(image)) {
        return Ok(());
    }
    Err(ArgumentError::new(format!("Invalid image name {image:?}: invalid reference format")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_a_host_a_path_a_tag_and_a_digest() {
        let digest = format!("sha256:{}", "0f".repeat(32));
        for name in [
            "nginx",
            "i",
            "nginx:1.25",
            "library/nginx",
            "registry:5000/a/b:1.2",
            "Registry.Example.com/a/b_c/d__e/f-g/h---i.j",
            "[fd00::1]:5000/a",
            "localhost/a:V_1.x-y",
            &format!("a/b@{digest}"),
            &format!("a/b:1@{digest}"),
        ] {
            assert_eq!(check(name), Ok(()), "{name}");
        }
        let long = format!("a:{}", "x".repeat(129));
        for name in [
            "",
            "X Y",
            "X",
            "a b",
            "a/",
            "/a",
            "a//b",
            "a:",
            "a:b:c",
            "-a",
            "a-",
            "a._b",
            "a@b",
            "a:.b",
            "a\n",
            "http://a/b",
            "a@sha256:00",
            "a/B",
            &long,
        ] {
            let error = check(name).expect_err(name).to_string();
            assert_eq!(error, format!("Invalid image name {name:?}: invalid reference format"));
        }
    }
}
