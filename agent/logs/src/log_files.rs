//! Opens container log files safely. Users of pods may write next to them (a `hostPath` volume of
//! the log directory): below the pod logs directory no link is followed, only regular files are
//! opened, and opening never blocks.
//!
//! ```text
//!   /var/log/pods                    the node's own configuration: links are followed up to here
//!     <namespace>_<name>_<uid>       step by step from here on, each a plain name, each without following a link
//!       <container>
//!         <attempt>.log  <attempt>.log.<time>  <attempt>.log.<time>.gz
//! ```

use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::path::{Component, Path};

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat, fstat, openat, statat};

/// Most names read from a directory; more than the files that an instance may keep.
const NAMES_MAX: usize = 10_000;
/// Path components below the pod logs directory: pod and container.
const BELOW: usize = 2;

/// The log directory of one container.
#[derive(Debug)]
pub struct LogDirectory {
    opened: OwnedFd,
}

/// An entry of such a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Name in the directory.
    pub name: String,
    /// Bytes it occupies on the disk.
    pub taken: u64,
    /// Its length if it is a regular file.
    pub len: Option<u64>,
}

impl LogDirectory {
    /// Opens `<logs of pods>/<pod>/<container>`.
    ///
    /// # Errors
    /// `ELOOP` or `ENOTDIR` for a link, `InvalidInput` for a path of another form.
    pub fn open(path: &Path) -> io::Result<Self> {
        let invalid = || {
            io::Error::new(
                ErrorKind::InvalidInput,
                "expected a path <pod logs dir>/<pod>/<container>",
            )
        };
        let mut names = Vec::new();
        let mut root = path;
        while names.len() < BELOW
            && let (Some(above), Some(name)) = (root.parent(), root.file_name())
        {
            names.push(name);
            root = above;
        }
        if names.is_empty() || root.components().any(|part| part == Component::ParentDir) {
            return Err(invalid());
        }
        let root = if root.as_os_str().is_empty() { Path::new(".") } else { root };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let mut opened = openat(CWD, root, flags, Mode::empty())?;
        let inner = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        for name in names.into_iter().rev() {
            opened = openat(&opened, name, inner, Mode::empty())?;
        }
        Ok(Self { opened })
    }

    /// Opens a file for reading.
    ///
    /// # Errors
    /// `InvalidData` if it is not a regular file, also for a link.
    pub fn read(&self, name: &str) -> io::Result<File> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = match openat(&self.opened, plain(name)?, flags, Mode::empty()) {
            Err(rustix::io::Errno::LOOP | rustix::io::Errno::NXIO) => return Err(irregular(name)),
            opened => opened?,
        };
        if !is_regular(&fstat(&opened)?) {
            return Err(irregular(name));
        }
        Ok(File::from(opened))
    }

    /// Creates a file for writing that only its owner may read.
    ///
    /// # Errors
    /// `AlreadyExists` if the name is taken.
    pub fn create(&self, name: &str) -> io::Result<File> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(openat(&self.opened, plain(name)?, flags, Mode::from_raw_mode(0o600))?.into())
    }

    /// Removes a name; does not follow links.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn remove(&self, name: &str) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(&self.opened, plain(name)?, AtFlags::empty())?)
    }

    /// Renames a regular file to a free name.
    ///
    /// # Errors
    /// `InvalidData` if it is not a regular file.
    pub fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let stat = statat(&self.opened, plain(from)?, AtFlags::SYMLINK_NOFOLLOW)?;
        if !is_regular(&stat) {
            return Err(irregular(from));
        }
        let flags = rustix::fs::RenameFlags::NOREPLACE;
        Ok(rustix::fs::renameat_with(&self.opened, from, &self.opened, plain(to)?, flags)?)
    }

    /// Renames a file over another one.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn replace(&self, from: &str, to: &str) -> io::Result<()> {
        Ok(rustix::fs::renameat(&self.opened, plain(from)?, &self.opened, plain(to)?)?)
    }

    /// The names in no particular order, including those of directories.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn names(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in Dir::read_from(&self.opened)?.take(NAMES_MAX) {
            names.extend(entry?.file_name().to_str().map(str::to_owned).ok());
        }
        Ok(names)
    }

    /// The entries in no particular order. Entries removed meanwhile are left out.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn entries(&self) -> io::Result<Vec<Entry>> {
        let mut entries = Vec::new();
        for entry in Dir::read_from(&self.opened)?.take(NAMES_MAX) {
            let entry = entry?;
            let Ok(name) = entry.file_name().to_str() else { continue };
            let Ok(stat) = statat(&self.opened, name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
            if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
                continue;
            }
            let taken = u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(512);
            let len = is_regular(&stat).then(|| u64::try_from(stat.st_size).unwrap_or(0));
            entries.push(Entry { name: name.to_owned(), taken, len });
        }
        Ok(entries)
    }
}

/// Opens a log file by its path, as [`LogDirectory::open`] and [`LogDirectory::read`] do.
///
/// # Errors
/// Those of the two.
pub fn read(path: &Path) -> io::Result<File> {
    let (directory, name) = split(path)?;
    LogDirectory::open(directory)?.read(name)
}

/// Splits the path of a log file into directory and name.
///
/// # Errors
/// `InvalidInput` for a path without either.
pub fn split(path: &Path) -> io::Result<(&Path, &str)> {
    let name = path.file_name().and_then(|name| name.to_str());
    path.parent()
        .zip(name)
        .ok_or_else(|| io::Error::new(ErrorKind::InvalidInput, "expected the path of a log file"))
}

fn plain(name: &str) -> io::Result<&str> {
    if name.is_empty() || name == "." || name == ".." || name.contains('/') {
        return Err(io::Error::new(
            ErrorKind::InvalidInput,
            format!("{name:?} is not a plain file name"),
        ));
    }
    Ok(name)
}

fn is_regular(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
}

fn irregular(name: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, format!("{name} is not a regular file"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn only_regular_files_are_opened_and_no_link_is_followed() {
        let root = tempfile::tempdir().expect("tempdir");
        let secret = root.path().join("secret");
        std::fs::write(&secret, "secret").expect("written");
        let at = root.path().join("logs/a_web_u/c");
        std::fs::create_dir_all(&at).expect("made");
        std::fs::write(at.join("0.log"), "log").expect("written");
        symlink(&secret, at.join("1.log")).expect("linked");
        rustix::fs::mknodat(CWD, at.join("2.log"), FileType::Fifo, Mode::from_raw_mode(0o600), 0)
            .expect("a FIFO");
        std::fs::create_dir(at.join("3.log")).expect("made");
        let text = |path: &Path| read(path).and_then(io::read_to_string);
        assert_eq!(text(&at.join("0.log")).expect("read"), "log");
        for name in ["1.log", "2.log", "3.log"] {
            let refused = text(&at.join(name)).expect_err(name);
            assert_eq!(refused.kind(), ErrorKind::InvalidData, "{name}: {refused}");
        }
        // A directory of the way that is a link, of the pod or of the container.
        symlink(&at, root.path().join("logs/a_web_u/d")).expect("linked");
        symlink(root.path().join("logs/a_web_u"), root.path().join("logs/a_web_v"))
            .expect("linked");
        for way in ["logs/a_web_u/d/0.log", "logs/a_web_v/c/0.log"] {
            assert!(text(&root.path().join(way)).is_err(), "{way}");
        }
        // Above the directory of the pods' logs it is the node's own.
        symlink(root.path().join("logs"), root.path().join("elsewhere")).expect("linked");
        assert_eq!(text(&root.path().join("elsewhere/a_web_u/c/0.log")).expect("read"), "log");
        let directory = LogDirectory::open(&at).expect("opened");
        for name in ["../d", "..", ".", "", "a/b"] {
            assert!(directory.read(name).is_err(), "{name:?}");
        }
        assert!(directory.rename("1.log", "9.log").is_err());
        assert_eq!(directory.create("1.log").expect_err("taken").kind(), ErrorKind::AlreadyExists);
        directory.remove("1.log").expect("the link itself");
        assert!(secret.exists());
    }
}
