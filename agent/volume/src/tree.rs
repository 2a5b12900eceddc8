//! The files of a projected volume, updated atomically: readers see the old or the new ones, never a mix and never none.
//!
//! ```text
//! volume/                        what the container sees
//!   key      -> ..data/key       one link per first name of a path
//!   ..data   -> ..1732158300.000000001
//!   ..1732158300.000000001/      the current generation
//!   ..1732158200.000000009/      the previous one, kept until no reader can still be resolving a path in it
//! ```
//!
//! A new generation is built next to the old one with owners and modes, then `..data` is replaced by one `rename`. Links for new
//! names are created before use and links for removed names are deleted after the switch, so no link leads to a missing file. A
//! failure before the switch, such as a full disk, leaves the old generation in place; leftovers of a crash are removed by the
//! next write. A reader that resolved `..data` just before the switch may still open files of the previous generation. Therefore
//! it is kept for [`LINGER`] after the switch, measured by its modification time, and removed by the next write or [`Tree::sweep`].
//!
//! Nothing is flushed to disk: after a power failure no container is left that reads the volume, and before one starts the
//! content is compared with the payload and rewritten if it differs.

use std::collections::HashSet;
use std::io::{Read as _, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Timespec, Timestamps, Uid};
use rustix::io::Errno;

use crate::beneath;
use crate::payload::{Payload, PayloadFile};

const DATA: &str = "..data";
const DATA_NEW: &str = "..data_tmp";
/// Directory of hard links to files mounted by `subPath`. They outlast the generation of the file.
pub(crate) const PARTS: &str = "..parts";
const LINK_NEW: &str = "..link_tmp";

/// How long a previous generation is kept. Resolving a path takes microseconds, but a reader can be preempted in between. With a
/// hundred runnable tasks per CPU, or a container throttled by its quota, that can be more than a tenth of a second.
pub const LINGER: Duration = Duration::from_secs(1);
/// Most generations kept. More result only from a storm of writes; then each write waits until the oldest may be removed.
const LINGERING_MAX: usize = 256;

/// Owner of a volume's files other than root.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ownership {
    /// User of the files; root if `None`.
    pub uid: Option<u32>,
    /// Group of files and directories, which may read them whatever their mode; root without extra permissions if `None`.
    pub gid: Option<u32>,
}

/// Result of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TreeWrite {
    /// The volume already had the payload.
    Unchanged,
    /// The volume was switched to the payload; the previous generation is removed by [`Tree::sweep`].
    Switched,
}

/// Why a volume was not written. Its content is unchanged.
#[derive(Debug, thiserror::Error)]
pub enum TreeError {
    /// The volume's directory cannot be read.
    #[error("cannot read the current files of the volume")]
    Inspect(#[source] Errno),
    /// The new generation cannot be built.
    #[error("cannot write {path}")]
    Write {
        /// The file.
        path: String,
        /// Cause.
        #[source]
        source: Errno,
    },
    /// The switch failed.
    #[error("cannot switch to the new files")]
    Switch(#[source] Errno),
    /// A link in the volume's top directory cannot be created; the next write retries.
    #[error("cannot create link {name}")]
    Link {
        /// The link.
        name: String,
        /// Cause.
        #[source]
        source: Errno,
    },
}

/// The directory of a projected volume.
#[derive(Debug)]
pub struct Tree {
    root: OwnedFd,
    ownership: Ownership,
    linger: Duration,
}

impl Tree {
    /// The volume with the open directory `root`.
    #[must_use]
    pub fn new(root: OwnedFd, ownership: Ownership) -> Self {
        Self { root, ownership, linger: LINGER }
    }

    /// Keeps previous generations for another time than [`LINGER`].
    #[must_use]
    pub fn with_linger(self, linger: Duration) -> Self {
        Self { linger, ..self }
    }

    /// Makes the volume contain exactly `payload`.
    ///
    /// # Errors
    /// A read or write failed; before the switch the volume is unchanged.
    pub fn write(&self, payload: &Payload) -> Result<TreeWrite, TreeError> {
        let current = self.current().map_err(TreeError::Inspect)?;
        self.clean(current.as_deref()).map_err(TreeError::Inspect)?;
        if let Some(current) = &current
            && self.holds(current, payload).map_err(TreeError::Inspect)?
        {
            self.link(payload)?;
            return Ok(TreeWrite::Unchanged);
        }
        let new = self.build_in_room(payload, current.as_deref())?;
        self.switch(current.as_deref(), &new).map_err(|source| {
            let _ = beneath::remove(&self.root, &new); // best effort: a later write removes it too
            TreeError::Switch(source)
        })?;
        self.link(payload)?;
        self.bound_lingering(&new);
        Ok(TreeWrite::Switched)
    }

    /// Opens a file of the current generation by path; `None` if there is none.
    ///
    /// # Errors
    /// The volume cannot be read.
    pub fn open(&self, path: &str) -> rustix::io::Result<Option<std::fs::File>> {
        let Some(current) = self.current()? else { return Ok(None) };
        let path = format!("{current}/{path}");
        match beneath::open(&self.root, &path, OFlags::RDONLY, Mode::empty()) {
            Ok(file) => Ok(Some(file.into())),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Removes previous generations unless they ended less than [`LINGER`] ago.
    ///
    /// # Errors
    /// The volume cannot be read, or something cannot be removed.
    pub fn sweep(&self) -> Result<(), TreeError> {
        let current = self.current().map_err(TreeError::Inspect)?;
        self.clean(current.as_deref()).map_err(TreeError::Inspect)
    }

    /// How long a previous generation has to be kept for its readers; `None` if it does not exist. If its modification time is in the
    /// future because the clock was set back, it is kept for the whole time.
    fn remaining_linger(&self, generation: &str) -> rustix::io::Result<Option<Duration>> {
        let stat = match rustix::fs::statat(&self.root, generation, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            Err(Errno::NOENT) => return Ok(None),
            Err(error) => return Err(error),
        };
        let secs = u64::try_from(stat.st_mtime).unwrap_or(0);
        let ended = Duration::new(secs, u32::try_from(stat.st_mtime_nsec).unwrap_or(0));
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let age = now.saturating_sub(ended);
        Ok(Some(self.linger.saturating_sub(age)))
    }

    /// Generations other than the current one, oldest first.
    fn ended_generations(&self, current: Option<&str>) -> rustix::io::Result<Vec<String>> {
        let names = beneath::list_entries(&self.root)?.into_iter().map(|(name, _)| name);
        let mut ended: Vec<String> =
            names.filter(|name| is_generation(name) && Some(name.as_str()) != current).collect();
        ended.sort_unstable();
        Ok(ended)
    }

    /// Bounds the number of previous generations in a storm of writes: the oldest ones are removed after their time.
    fn bound_lingering(&self, current: &str) {
        let bounded = self.ended_generations(Some(current)).and_then(|ended| {
            let excess = ended.len().saturating_sub(LINGERING_MAX);
            for name in ended.iter().take(excess) {
                std::thread::sleep(self.remaining_linger(name)?.unwrap_or_default());
                beneath::remove(&self.root, name)?;
            }
            Ok(())
        });
        // The payload is current; a later write removes what cannot be removed now.
        if let Err(error) = bounded {
            tracing::warn!(%error, "cannot remove temporary files of earlier writes; the next write retries");
        }
    }

    /// Name of the current generation.
    fn current(&self) -> rustix::io::Result<Option<String>> {
        let target = match rustix::fs::readlinkat(&self.root, DATA, Vec::new()) {
            Ok(target) => target,
            Err(Errno::NOENT) => return Ok(None),
            Err(error) => return Err(error),
        };
        // A link to anything else was not created by this crate and is replaced.
        let target = target.to_str().ok().filter(|name| is_generation(name));
        let Some(name) = target else { return Ok(None) };
        Ok(beneath::open_existing(&self.root, name)?.map(|_| name.to_owned()))
    }

    /// Whether a generation equals the payload, including owners and modes.
    fn holds(&self, generation: &str, payload: &Payload) -> rustix::io::Result<bool> {
        let Some(root) = beneath::open_existing(&self.root, generation)? else { return Ok(false) };
        let mut left = payload.len();
        let mut directories = vec![(String::new(), root)];
        while let Some((prefix, directory)) = directories.pop() {
            for (name, kind) in beneath::list_entries(&directory)? {
                let path = format!("{prefix}{name}");
                if kind == FileType::Directory {
                    let Some(inner) = beneath::open_existing(&directory, &name)? else {
                        return Ok(false);
                    };
                    directories.push((format!("{path}/"), inner));
                } else {
                    let Some(file) = payload.file(&path) else { return Ok(false) };
                    if kind != FileType::RegularFile || !self.same_file(&directory, &name, file)? {
                        return Ok(false);
                    }
                    left -= 1;
                }
            }
        }
        Ok(left == 0)
    }

    fn same_file(
        &self,
        directory: &OwnedFd,
        name: &str,
        file: &PayloadFile,
    ) -> rustix::io::Result<bool> {
        let opened = beneath::open(directory, name, OFlags::RDONLY, Mode::empty())?;
        let stat = rustix::fs::fstat(&opened)?;
        let same = stat.st_mode & 0o7777 == self.mode(file)
            && u64::try_from(stat.st_size) == Ok(file.data.len() as u64)
            && stat.st_uid == self.ownership.uid.unwrap_or(0)
            && stat.st_gid == self.ownership.gid.unwrap_or(0);
        if !same {
            return Ok(false);
        }
        let mut data = Vec::with_capacity(file.data.len());
        let read =
            std::fs::File::from(opened).take(stat.st_size.unsigned_abs()).read_to_end(&mut data);
        Ok(read.is_ok() && data == file.data)
    }

    /// Builds a generation; if there is no space, after removing previous generations.
    fn build_in_room(&self, payload: &Payload, current: Option<&str>) -> Result<String, TreeError> {
        match self.build(payload) {
            Err(TreeError::Write { source: Errno::NOSPC | Errno::DQUOT, .. }) => {
                std::thread::sleep(self.linger);
                let ended = self.ended_generations(current).map_err(TreeError::Inspect)?;
                let gone = ended.iter().try_for_each(|name| beneath::remove(&self.root, name));
                gone.map_err(TreeError::Inspect)?;
                self.build(payload)
            }
            built => built,
        }
    }

    fn build(&self, payload: &Payload) -> Result<String, TreeError> {
        let name = self.make_generation().map_err(|source| write_error("..", source))?;
        let filled = self.write_files(&name, payload);
        if filled.is_err() {
            let _ = beneath::remove(&self.root, &name); // best effort: the next write removes it too
        }
        filled.map(|()| name)
    }

    /// Creates an empty directory for a generation, named after the time as in the kubelet.
    fn make_generation(&self) -> rustix::io::Result<String> {
        let mut now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        loop {
            let name = format!("..{}.{:09}", now.as_secs(), now.subsec_nanos());
            match rustix::fs::mkdirat(&self.root, name.as_str(), Mode::from_raw_mode(0o755)) {
                Ok(()) => return Ok(name),
                // The clock stood still or was set back.
                Err(Errno::EXIST) => now += Duration::from_nanos(1),
                Err(error) => return Err(error),
            }
        }
    }

    fn write_files(&self, generation: &str, payload: &Payload) -> Result<(), TreeError> {
        let root = beneath::open_existing(&self.root, generation);
        let root = root.and_then(|fd| fd.ok_or(Errno::NOENT)).map_err(|e| write_error("..", e))?;
        self.own_directory(&root).map_err(|source| write_error("..", source))?;
        for (path, file) in payload.files() {
            self.write_file(&root, path, file).map_err(|source| write_error(path, source))?;
        }
        Ok(())
    }

    fn write_file(&self, root: &OwnedFd, path: &str, file: &PayloadFile) -> rustix::io::Result<()> {
        let (directories, name) = path.rsplit_once('/').unwrap_or(("", path));
        let mut inner = root.try_clone().map_err(errno)?;
        for directory in directories.split('/').filter(|name| !name.is_empty()) {
            inner = beneath::make_directory(&inner, directory, 0o755)?;
            self.own_directory(&inner)?;
        }
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
        // Inaccessible until it has its content and owner.
        let mut opened =
            std::fs::File::from(beneath::open(&inner, name, flags, Mode::from_raw_mode(0o600))?);
        opened.write_all(&file.data).map_err(errno)?;
        let Ownership { uid, gid } = self.ownership;
        if uid.is_some() || gid.is_some() {
            rustix::fs::fchown(&opened, uid.map(Uid::from_raw), gid.map(Gid::from_raw))?;
        }
        rustix::fs::fchmod(&opened, Mode::from_raw_mode(self.mode(file)))
    }

    /// Sets the group of a directory with the set-group-id bit, regardless of the umask.
    fn own_directory(&self, directory: &OwnedFd) -> rustix::io::Result<()> {
        let mode = match self.ownership.gid {
            None => 0o755,
            Some(gid) => {
                rustix::fs::fchown(directory, None, Some(Gid::from_raw(gid)))?;
                0o2755
            }
        };
        rustix::fs::fchmod(directory, Mode::from_raw_mode(mode))
    }

    /// Mode of a file: always readable for the volume's group.
    fn mode(&self, file: &PayloadFile) -> u32 {
        let group = if self.ownership.gid.is_some() { 0o440 } else { 0 };
        (file.mode & 0o777) | group
    }

    /// The switch: one rename over `..data`. The previous generation gets its end time before the switch, in case of a crash in
    /// between, and again after it, for preempted readers.
    fn switch(&self, before: Option<&str>, generation: &str) -> rustix::io::Result<()> {
        if let Some(before) = before {
            self.mark(before)?;
        }
        replace_link(&self.root, generation, DATA_NEW, DATA)?;
        if let Some(before) = before {
            let _ = self.mark(before); // it bears a time already
        }
        Ok(())
    }

    /// Sets the modification time of a generation to now, by the clock that [`Self::remaining_linger`] reads: `UTIME_NOW` is the time of
    /// the kernel's last tick, up to 10 ms ago.
    fn mark(&self, generation: &str) -> rustix::io::Result<()> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let now = Timespec {
            tv_sec: i64::try_from(now.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: now.subsec_nanos().into(),
        };
        let times = Timestamps { last_access: now, last_modification: now };
        rustix::fs::utimensat(&self.root, generation, &times, AtFlags::SYMLINK_NOFOLLOW)
    }

    /// Creates the links for the payload's names and removes others.
    fn link(&self, payload: &Payload) -> Result<(), TreeError> {
        for name in payload.top_names() {
            let failed = |source| TreeError::Link { name: name.into(), source };
            let target = format!("{DATA}/{name}");
            let there = rustix::fs::readlinkat(&self.root, name, Vec::new());
            if there.is_ok_and(|there| there.to_bytes() == target.as_bytes()) {
                continue;
            }
            if is_directory(&self.root, name).map_err(failed)? {
                beneath::remove(&self.root, name).map_err(failed)?; // the agent creates no directory here
            }
            replace_link(&self.root, &target, LINK_NEW, name).map_err(failed)?;
        }
        let tops: HashSet<&str> = payload.top_names().collect();
        for (name, kind) in beneath::list_entries(&self.root).map_err(TreeError::Inspect)? {
            let wanted = tops.contains(name.as_str());
            if kind == FileType::Symlink && !name.starts_with("..") && !wanted {
                let removed = beneath::remove(&self.root, &name);
                removed.map_err(|source| TreeError::Link { name: name.clone(), source })?;
            }
        }
        Ok(())
    }

    /// Removes previous generations that no reader needs, and incomplete links: leftovers of switches and crashes.
    fn clean(&self, current: Option<&str>) -> rustix::io::Result<()> {
        for name in self.ended_generations(current)? {
            if self.remaining_linger(&name)?.is_some_and(|left| !left.is_zero()) {
                // The others ended later.
                break;
            }
            beneath::remove(&self.root, &name)?;
        }
        for (name, _) in beneath::list_entries(&self.root)? {
            let kept = name == DATA || name == PARTS || is_generation(&name);
            if name.starts_with("..") && !kept {
                beneath::remove(&self.root, &name)?;
            }
        }
        Ok(())
    }
}

/// Replaces `name`, whatever it is, by a symbolic link in one step.
fn replace_link(
    directory: impl AsFd,
    target: &str,
    temporary: &str,
    name: &str,
) -> rustix::io::Result<()> {
    match rustix::fs::symlinkat(target, directory.as_fd(), temporary) {
        Ok(()) => {}
        Err(Errno::EXIST) => {
            // Left by a crash between the two steps.
            beneath::remove(directory.as_fd(), temporary)?;
            rustix::fs::symlinkat(target, directory.as_fd(), temporary)?;
        }
        Err(error) => return Err(error),
    }
    rustix::fs::renameat(directory.as_fd(), temporary, directory.as_fd(), name)
}

fn is_directory(directory: impl AsFd, name: &str) -> rustix::io::Result<bool> {
    match rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(FileType::from_raw_mode(stat.st_mode) == FileType::Directory),
        Err(Errno::NOENT) => Ok(false),
        Err(error) => Err(error),
    }
}

fn is_generation(name: &str) -> bool {
    let digit = name.strip_prefix("..").and_then(|time| time.chars().next());
    digit.is_some_and(|c| c.is_ascii_digit()) && !name.contains('/')
}

fn write_error(path: &str, source: Errno) -> TreeError {
    TreeError::Write { path: path.into(), source }
}

fn errno(error: std::io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}

#[cfg(test)]
mod tests;
