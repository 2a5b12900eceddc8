//! Image references: validity, registry and repository.

/// A parsed image reference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageName {
    /// Registry and repository in full: `docker.io/library/busybox`.
    pub repository: String,
    /// Tag; `latest` if the reference has neither tag nor digest, empty if it has only a digest.
    pub tag: String,
    /// Digest; may be empty.
    pub digest: String,
}

impl ImageName {
    /// Host part of the repository.
    pub fn registry(&self) -> &str {
        self.repository.split('/').next().unwrap_or_default()
    }
}

/// Registry of references that name none.
const DEFAULT_REGISTRY: &str = "docker.io";
/// Longest repository including the registry.
const REPOSITORY_LEN_MAX: usize = 255;
/// Longest tag.
const TAG_LEN_MAX: usize = 128;

/// Why a reference is invalid. The texts are those of the reference grammar's common parsers.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ImageNameError {
    /// It does not match the grammar.
    #[error("invalid reference format")]
    Format,
    /// It contains capital letters.
    #[error("invalid reference format: repository name must be lowercase")]
    Uppercase,
    /// It looks like an image id.
    #[error("invalid repository name ({0}), cannot specify 64-byte hexadecimal strings")]
    LooksLikeId(String),
    /// The repository is too long.
    #[error("repository name must not be more than 255 characters")]
    TooLong,
}

impl ImageName {
    /// Parses `[registry/]repository[:tag][@digest]`.
    ///
    /// # Errors
    /// The reference is invalid.
    pub fn parse(text: &str) -> Result<Self, ImageNameError> {
        let is_id = text.len() == 64 && text.bytes().all(is_lower_hex);
        if is_id {
            return Err(ImageNameError::LooksLikeId(text.to_owned()));
        }
        let (rest, digest) = text.split_once('@').unwrap_or((text, ""));
        if text.contains('@') && !is_digest(digest) {
            return Err(ImageNameError::Format);
        }
        let last = rest.rsplit('/').next().unwrap_or(rest);
        let (named, tag) = match last.split_once(':') {
            Some((_, tag)) => {
                let named = rest.strip_suffix(tag).and_then(|rest| rest.strip_suffix(':'));
                (named.unwrap_or(rest), Some(tag))
            }
            None => (rest, None),
        };
        if tag.is_some_and(|tag| !is_tag(tag)) {
            return Err(ImageNameError::Format);
        }
        let repository = complete(named);
        let (registry, path) = repository.split_once('/').unwrap_or(("", &repository));
        if path.bytes().any(|b| b.is_ascii_uppercase()) {
            return Err(ImageNameError::Uppercase);
        }
        if !is_registry(registry) || !path.split('/').all(is_component) {
            return Err(ImageNameError::Format);
        }
        if repository.len() > REPOSITORY_LEN_MAX {
            return Err(ImageNameError::TooLong);
        }
        let tag = match tag {
            Some(tag) => tag,
            None if digest.is_empty() => "latest",
            None => "",
        };
        Ok(Self { tag: tag.to_owned(), digest: digest.to_owned(), repository })
    }

    /// The full reference for the runtime: repository, tag, digest.
    pub fn full(&self) -> String {
        let mut full = self.repository.clone();
        for (mark, part) in [(':', &self.tag), ('@', &self.digest)] {
            if !part.is_empty() {
                full.push(mark);
                full.push_str(part);
            }
        }
        full
    }
}

/// Adds the default registry and `library` where absent. The first component is a registry if it looks like a host.
fn complete(named: &str) -> String {
    match named.split_once('/') {
        Some((first, path)) if looks_like_host(first) => {
            let first = if first == "index.docker.io" { DEFAULT_REGISTRY } else { first };
            match (first, path.contains('/')) {
                (DEFAULT_REGISTRY, false) => format!("{first}/library/{path}"),
                _ => format!("{first}/{path}"),
            }
        }
        Some(_) => format!("{DEFAULT_REGISTRY}/{named}"),
        None => format!("{DEFAULT_REGISTRY}/library/{named}"),
    }
}

fn looks_like_host(first: &str) -> bool {
    first == "localhost"
        || first.contains(['.', ':'])
        || first.bytes().any(|b| b.is_ascii_uppercase())
}

fn is_lower_hex(byte: u8) -> bool {
    byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte)
}

/// Whether the text is `algorithm:hex` with at least 32 digits.
fn is_digest(text: &str) -> bool {
    text.split_once(':').is_some_and(|(algorithm, hex)| {
        algorithm.starts_with(|c: char| c.is_ascii_alphabetic())
            && algorithm.bytes().all(|b| b.is_ascii_alphanumeric() || b"+._-".contains(&b))
            && hex.len() >= 32
            && hex.bytes().all(|b| b.is_ascii_hexdigit())
    })
}

fn is_tag(text: &str) -> bool {
    text.len() <= TAG_LEN_MAX
        && text.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_')
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
}

/// Whether the text is a host with an optional port.
fn is_registry(text: &str) -> bool {
    let (host, port) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, rest)) => {
            let hex = address.bytes().all(|b| b.is_ascii_hexdigit() || b == b':');
            if address.is_empty() || !hex {
                return false;
            }
            ("v6", rest.strip_prefix(':'))
        }
        None => match text.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    let label = |label: &str| {
        !label.is_empty()
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
    };
    let digits = |port: &str| !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit());
    host.split('.').all(label) && port.is_none_or(digits)
}

/// Whether the text is a path component: lower-case letters and digits, separated by a dot, one or two underscores, or hyphens.
fn is_component(text: &str) -> bool {
    let plain = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let bytes = text.as_bytes();
    let ends = bytes.first().is_some_and(plain) && bytes.last().is_some_and(plain);
    let mut separators = text.split(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit());
    ends && separators
        .all(|s| matches!(s, "" | "." | "_" | "__") || s.bytes().all(|byte| byte == b'-'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_are_completed() {
        let digest = format!("sha256:{}", "a".repeat(64));
        let with_digest = format!("reg.io:5000/a/b:1@{digest}");
        let cases = [
            ("busybox", "docker.io/library/busybox:latest"),
            ("busybox:1.36", "docker.io/library/busybox:1.36"),
            ("user/app", "docker.io/user/app:latest"),
            ("index.docker.io/app", "docker.io/library/app:latest"),
            ("localhost/app", "localhost/app:latest"),
            ("host:5000/app", "host:5000/app:latest"),
            ("host:5000/a/b_c/d--e:v1", "host:5000/a/b_c/d--e:v1"),
            ("[::1]:5000/app:1", "[::1]:5000/app:1"),
            (with_digest.as_str(), with_digest.as_str()),
        ];
        for (text, full) in cases {
            assert_eq!(ImageName::parse(text).expect(text).full(), full);
        }
    }

    #[test]
    fn invalid_image_references_are_errors() {
        let id = "a".repeat(64);
        let long = format!("h.io/{}", "a".repeat(255));
        let cases = [
            ("", ImageNameError::Format),
            ("a b", ImageNameError::Format),
            ("a:", ImageNameError::Format),
            ("a@sha256:12", ImageNameError::Format),
            ("user/App", ImageNameError::Uppercase),
            ("a..b", ImageNameError::Format),
            ("a___b", ImageNameError::Format),
            ("-a", ImageNameError::Format),
            ("host:x/app", ImageNameError::Format),
            ("a//b", ImageNameError::Format),
            (id.as_str(), ImageNameError::LooksLikeId(id.clone())),
            (long.as_str(), ImageNameError::TooLong),
        ];
        for (text, error) in cases {
            assert_eq!(ImageName::parse(text), Err(error), "{text}");
        }
    }
}
