//! `hostPath` volumes: files and directories of the node.
//!
//! The type is checked on the opened object, not on its path.

use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode, OFlags};
use rustix::io::Errno;

use crate::sources::HostPathKind;

/// Why a `hostPath` cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum HostPathError {
    /// It has another type than the pod specifies.
    #[error("hostPath type check failed: {path} is not a {wanted}")]
    WrongType {
        path: String,
        /// The expected type.
        wanted: &'static str,
    },
    /// It is not absolute or contains `..`.
    #[error("hostPath {path} must be absolute and without '..'")]
    NotAbsolute { path: String },
    /// It cannot be opened or created.
    #[error("cannot open hostPath {path}")]
    Open {
        path: String,
        /// Cause.
        #[source]
        source: Errno,
    },
}

/// Opens `path` for mounting and checks that the opened object matches `kind`. Missing objects are created if the kind allows it:
/// directories with mode 0755, files with 0644.
///
/// # Errors
/// It has another type or cannot be opened or created.
pub fn open(path: &str, kind: HostPathKind) -> Result<OwnedFd, HostPathError> {
    let upwards = Path::new(path).components().any(|part| part == std::path::Component::ParentDir);
    if !path.starts_with('/') || upwards {
        return Err(HostPathError::NotAbsolute { path: path.into() });
    }
    let failed = |source| HostPathError::Open { path: path.into(), source };
    let opened = match open_by_name(path) {
        Err(Errno::NOENT) => {
            match kind {
                HostPathKind::DirectoryOrCreate => make_directories(path).map_err(failed)?,
                HostPathKind::FileOrCreate => make_file(path).map_err(failed)?,
                _ => {}
            }
            open_by_name(path)
        }
        opened => opened,
    };
    let Some((wanted, file_type)) = expected(kind) else { return opened.map_err(failed) };
    let wrong = || HostPathError::WrongType { path: path.into(), wanted };
    match opened {
        Ok(opened) => {
            let mode = rustix::fs::fstat(&opened).map_err(failed)?.st_mode;
            if FileType::from_raw_mode(mode) == file_type { Ok(opened) } else { Err(wrong()) }
        }
        Err(Errno::NOENT) => Err(wrong()),
        Err(source) => Err(failed(source)),
    }
}

/// Checks that `path` matches `kind`, as [`open`] does; a path with `kind` unset need not exist.
///
/// # Errors
/// It has another type or cannot be opened or created.
pub fn check(path: &str, kind: HostPathKind) -> Result<(), HostPathError> {
    match open(path, kind) {
        Err(HostPathError::Open { .. }) if kind == HostPathKind::Unset => Ok(()),
        result => result.map(drop),
    }
}

fn expected(kind: HostPathKind) -> Option<(&'static str, FileType)> {
    match kind {
        HostPathKind::Unset => None,
        HostPathKind::Directory | HostPathKind::DirectoryOrCreate => {
            Some(("directory", FileType::Directory))
        }
        HostPathKind::File | HostPathKind::FileOrCreate => Some(("file", FileType::RegularFile)),
        HostPathKind::Socket => Some(("socket file", FileType::Socket)),
        HostPathKind::CharDevice => Some(("character device", FileType::CharacterDevice)),
        HostPathKind::BlockDevice => Some(("block device", FileType::BlockDevice)),
    }
}

/// Opens a path of the node and follows links, as the container runtime does.
fn open_by_name(path: &str) -> rustix::io::Result<OwnedFd> {
    rustix::fs::openat(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
}

/// The path with all links resolved.
///
/// # Errors
/// Errors of the kernel.
pub(crate) fn resolve_path(path: &str) -> rustix::io::Result<std::path::PathBuf> {
    opened_path(&open_by_name(path)?)
}

/// Path of an open file.
///
/// # Errors
/// Errors of the kernel.
pub(crate) fn opened_path(opened: &OwnedFd) -> rustix::io::Result<std::path::PathBuf> {
    use std::os::fd::AsRawFd as _;
    use std::os::unix::ffi::OsStringExt as _;
    let link = format!("/proc/self/fd/{}", opened.as_raw_fd());
    let target = rustix::fs::readlink(link, Vec::new())?;
    Ok(std::ffi::OsString::from_vec(target.into_bytes()).into())
}

fn make_directories(path: &str) -> rustix::io::Result<()> {
    for (slash, _) in path.match_indices('/').skip(1).chain([(path.len(), "")]) {
        match rustix::fs::mkdirat(CWD, &path[..slash], Mode::from_raw_mode(0o755)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn make_file(path: &str) -> rustix::io::Result<()> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    match rustix::fs::openat(CWD, path, flags, Mode::from_raw_mode(0o644)) {
        Ok(_) | Err(Errno::EXIST) => Ok(()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_hold() {
        use HostPathKind as Kind;
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
        std::fs::write(at("file"), "").unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
        std::os::unix::fs::symlink("file", at("link")).unwrap();
        let kinds =
            [Kind::Directory, Kind::File, Kind::Socket, Kind::CharDevice, Kind::BlockDevice];
        let cases = [
            (at(""), Some(Kind::Directory)),
            (at("file"), Some(Kind::File)),
            (at("link"), Some(Kind::File)),
            (at("socket"), Some(Kind::Socket)),
            ("/dev/null".into(), Some(Kind::CharDevice)),
            (at("nothing"), None),
        ];
        for (path, is) in cases {
            for kind in kinds {
                assert_eq!(check(&path, kind).is_ok(), Some(kind) == is, "{path} {kind:?}");
            }
            check(&path, Kind::Unset).unwrap();
        }
    }

    #[test]
    fn missing_paths_are_created_by_the_create_types() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
        check(&at("a/b/c"), HostPathKind::DirectoryOrCreate).unwrap();
        check(&at("a/b/f"), HostPathKind::FileOrCreate).unwrap();
        check(&at("a/b/f"), HostPathKind::FileOrCreate).unwrap();
        assert!(Path::new(&at("a/b/c")).is_dir() && Path::new(&at("a/b/f")).is_file());
        // The parent directory of a file is not created, so that a typing error leaves no tree behind.
        assert!(check(&at("x/f"), HostPathKind::FileOrCreate).is_err());
        let error = check(&at("a/b/f"), HostPathKind::DirectoryOrCreate).unwrap_err();
        assert!(matches!(error, HostPathError::WrongType { .. }), "{error}");
    }

    #[test]
    fn paths_are_absolute() {
        for path in ["", "a", "a/b", "/a/../etc"] {
            let error = check(path, HostPathKind::Unset).unwrap_err();
            assert!(matches!(error, HostPathError::NotAbsolute { .. }), "{path}");
        }
    }
}
