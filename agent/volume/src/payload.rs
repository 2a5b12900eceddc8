//! The content of a projected volume: files by path.

use std::collections::BTreeMap;

/// Longest path of a file in a volume, in bytes.
const PATH_LEN_MAX: usize = 4096;
/// Longest name of one directory or file, in bytes.
const NAME_LEN_MAX: usize = 255;

/// Files of a volume by relative path with plain names.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Payload {
    files: BTreeMap<String, PayloadFile>,
}

/// A file of a volume.
#[derive(Clone, PartialEq, Eq)]
pub struct PayloadFile {
    /// Content.
    pub data: Vec<u8>,
    /// Permission bits, at most 0o777.
    pub mode: u32,
}

/// Why a path is not allowed in a volume.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    /// Empty, or with an empty name or `.`.
    #[error("invalid path {0:?}: empty name")]
    Empty(String),
    #[error("invalid path {0:?}: must be relative")]
    Absolute(String),
    /// Contains `..`, or starts with the names that the volume reserves.
    #[error("invalid path {0:?}: must not contain or start with '..'")]
    Upwards(String),
    /// Too long for the kernel.
    #[error("invalid path {0:?}: too long")]
    TooLong(String),
    /// A file has the name of another file's directory.
    #[error("path {0:?} is both a file and a directory")]
    Nested(String),
}

impl Payload {
    /// Adds a file, replacing one with the same path.
    ///
    /// # Errors
    /// The path is not allowed, or a file would be inside another.
    pub fn insert(&mut self, path: &str, file: PayloadFile) -> Result<(), PathError> {
        check_path(path)?;
        let inside = self.is_below_a_file(path) || self.is_directory(path);
        if inside {
            return Err(PathError::Nested(path.into()));
        }
        self.files.insert(path.into(), file);
        Ok(())
    }

    /// Whether a file has the name of one of the parent directories of `path`.
    fn is_below_a_file(&self, path: &str) -> bool {
        let above = path.match_indices('/').filter_map(|(at, _)| path.get(..at));
        above.into_iter().any(|directory| self.files.contains_key(directory))
    }

    /// Whether a file is below `path`: the next one in order would be.
    fn is_directory(&self, path: &str) -> bool {
        let directory = format!("{path}/");
        let next = self.files.range(directory.clone()..).next();
        next.is_some_and(|(file, _)| file.starts_with(&directory))
    }

    /// Files ordered by path.
    pub fn files(&self) -> impl Iterator<Item = (&str, &PayloadFile)> {
        self.files.iter().map(|(path, file)| (path.as_str(), file))
    }

    /// Finds a file by path.
    #[must_use]
    pub fn file(&self, path: &str) -> Option<&PayloadFile> {
        self.files.get(path)
    }

    /// First components of all paths: the entries in the volume's top directory.
    pub fn top_names(&self) -> impl Iterator<Item = &str> {
        let mut last = None;
        let first = self.files.keys().map(|path| path.split('/').next().unwrap_or(path));
        first.filter(move |name| last.replace(*name) != Some(*name))
    }

    /// Number of files.
    #[must_use]
    pub fn len(&self) -> usize {
        self.files.len()
    }

    /// Whether it has no files.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }
}

/// Prints paths, modes and lengths only, because content may be secret.
impl std::fmt::Debug for Payload {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_map().entries(&self.files).finish()
    }
}

impl std::fmt::Debug for PayloadFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:#o}, {} bytes", self.mode, self.data.len())
    }
}

fn check_path(path: &str) -> Result<(), PathError> {
    if path.len() > PATH_LEN_MAX {
        return Err(PathError::TooLong(path.into()));
    }
    if path.starts_with('/') {
        return Err(PathError::Absolute(path.into()));
    }
    if path.starts_with("..") {
        return Err(PathError::Upwards(path.into()));
    }
    for name in path.split('/') {
        match name {
            "" | "." => return Err(PathError::Empty(path.into())),
            ".." => return Err(PathError::Upwards(path.into())),
            _ if name.contains('\0') => return Err(PathError::Empty(path.into())),
            _ if name.len() > NAME_LEN_MAX => return Err(PathError::TooLong(path.into())),
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file() -> PayloadFile {
        PayloadFile { data: Vec::new(), mode: 0o644 }
    }

    #[test]
    fn paths_are_relative_and_plain() {
        let long = "x".repeat(256);
        for (path, ok) in [
            ("a", true),
            ("a/b.c/d", true),
            (".hidden", true),
            ("a..b", true),
            ("a/..b", true),
            ("", false),
            ("/a", false),
            ("a/", false),
            ("a//b", false),
            ("./a", false),
            ("..", false),
            ("..data", false),
            ("a/../b", false),
            ("a/..", false),
            (&long, false),
        ] {
            assert_eq!(Payload::default().insert(path, file()).is_ok(), ok, "{path:?}");
        }
    }

    #[test]
    fn a_file_is_not_a_directory() {
        let mut payload = Payload::default();
        payload.insert("a/b", file()).unwrap();
        assert_eq!(payload.insert("a", file()), Err(PathError::Nested("a".into())));
        assert_eq!(payload.insert("a/b/c", file()), Err(PathError::Nested("a/b/c".into())));
        payload.insert("a/bc", file()).unwrap();
        payload.insert("a/b", file()).unwrap();
        payload.insert("ab", file()).unwrap();
        assert_eq!(payload.top_names().collect::<Vec<_>>(), ["a", "ab"]);
    }

    /// The number of keys in an object of 3 MiB with empty values: comparing all pairs would take minutes.
    #[test]
    fn keys_do_not_look_at_each_other() {
        let mut payload = Payload::default();
        for key in 0..200_000 {
            payload.insert(&format!("{key:06}"), file()).unwrap();
        }
        assert_eq!(payload.top_names().count(), 200_000);
        assert_eq!(payload.insert("000007/x", file()), Err(PathError::Nested("000007/x".into())));
        payload.insert("x/y", file()).unwrap();
        payload.insert("x-y", file()).unwrap();
        assert_eq!(payload.insert("x", file()), Err(PathError::Nested("x".into())));
    }

    #[test]
    fn content_is_not_shown() {
        let mut payload = Payload::default();
        payload.insert("token", PayloadFile { data: b"geheim".to_vec(), mode: 0o600 }).unwrap();
        assert_eq!(format!("{payload:?}"), r#"{"token": 0o600, 6 bytes}"#);
    }
}
