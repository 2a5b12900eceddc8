//! The files of a projected volume: the old ones or the new ones, never a mix, never nothing.
//!
//! ```text
//! volume/                        what the container sees
//!   key      -> ..data/key       one link per first name of a path
//!   ..data   -> ..1732158300.000000001
//!   ..1732158300.000000001/      the generation in force
//!   ..1732158200.000000009/      the one before it, until nobody can still be on the way into it
//! ```
//!
//! A new generation is built beside the old, owned and with its modes, and then `..data` is replaced by one `rename`. Links of
//! new names follow the switch and links of gone names are removed after it, so no link ever leads to a file that is yet to come. A
//! failure before the switch (a full disk above all) leaves the old generation as it was; whatever a crash leaves is put right by the
//! next write. A reader that resolved `..data` a moment ago may still be on its way into the generation before, and would find
//! nothing there if it were removed: a generation stays for [`LINGER`] after its end, which its own time of change tells, then goes with
//! the next write or [`Tree::sweep`].
//!
//! Nothing is flushed to disk: after a power cut no container is left that reads the volume, and before one starts the content
//! is compared with the payload and written again if it differs.

use std::collections::HashSet;
use std::io::{Read as _, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Timespec, Timestamps, UTIME_NOW, Uid};
use rustix::io::Errno;

use crate::beneath;
use crate::payload::{Payload, PayloadFile};

const DATA: &str = "..data";
const DATA_NEW: &str = "..data_tmp";
/// Further names of files that containers were given alone. They outlast the generation that the file was in.
pub(crate) const PARTS: &str = "..parts";
const LINK_NEW: &str = "..link_tmp";

/// How long a generation stays after its end. A path is resolved in microseconds; a reader that is put aside in between gets
/// this much time to come back. With a hundred tasks waiting for each processor, or a container that has used up its share of one, that
/// takes more than a tenth of a second.
pub const LINGER: Duration = Duration::from_secs(1);
/// Ended generations that may linger. More come only from a storm of writes, each of which then waits until the oldest may go.
const LINGERING_MAX: usize = 256;

/// Who owns the files of a volume beside root.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ownership {
    /// User of the files; root when `None`.
    pub uid: Option<u32>,
    /// Group of files and directories, which may read them whatever their mode; root and no more rights when `None`.
    pub gid: Option<u32>,
}

/// What a write did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// The volume holds the payload already; nothing was written.
    Unchanged,
    /// The volume was switched to the payload; the generation before it waits for [`Tree::sweep`].
    Switched,
}

/// Why a volume was not written. Its content is as it was before.
#[derive(Debug, thiserror::Error)]
pub enum TreeError {
    /// The volume's directory cannot be looked at.
    #[error("look at the volume's present files")]
    Inspect(#[source] Errno),
    /// The new generation cannot be built.
    #[error("write {path}")]
    Write {
        /// The file.
        path: String,
        /// Why.
        #[source]
        source: Errno,
    },
    /// The switch failed.
    #[error("switch to the new files")]
    Switch(#[source] Errno),
    /// A link from the volume's top into the generation cannot be made; the next write tries again.
    #[error("link {name}")]
    Link {
        /// The link.
        name: String,
        /// Why.
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
    /// The volume whose directory is open as `root`.
    #[must_use]
    pub fn new(root: OwnedFd, ownership: Ownership) -> Self {
        Self { root, ownership, linger: LINGER }
    }

    /// The same, whose generations stay for another time than [`LINGER`] after their end.
    #[must_use]
    pub fn with_linger(self, linger: Duration) -> Self {
        Self { linger, ..self }
    }

    /// Makes the volume hold exactly `payload`.
    ///
    /// # Errors
    /// When something cannot be read or written; until the switch that leaves the volume as it was.
    pub fn write(&self, payload: &Payload) -> Result<Written, TreeError> {
        let current = self.current().map_err(TreeError::Inspect)?;
        self.clean(current.as_deref()).map_err(TreeError::Inspect)?;
        if let Some(current) = &current
            && self.holds(current, payload).map_err(TreeError::Inspect)?
        {
            self.link(payload)?;
            return Ok(Written::Unchanged);
        }
        let new = self.build_in_room(payload, current.as_deref())?;
        self.switch(current.as_deref(), &new).map_err(|source| {
            let _ = beneath::remove(&self.root, &new); // best effort: a later write removes it too
            TreeError::Switch(source)
        })?;
        self.link(payload)?;
        self.bound_lingering(&new);
        Ok(Written::Switched)
    }

    /// Opens the file of a path in the generation in force; `None` if there is none.
    ///
    /// # Errors
    /// When the volume cannot be read.
    pub fn open(&self, path: &str) -> rustix::io::Result<Option<std::fs::File>> {
        let Some(current) = self.current()? else { return Ok(None) };
        let path = format!("{current}/{path}");
        match beneath::open(&self.root, &path, OFlags::RDONLY, Mode::empty()) {
            Ok(file) => Ok(Some(file.into())),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Removes the generations before the one in force, unless they ended less than [`LINGER`] ago.
    ///
    /// # Errors
    /// When the volume cannot be read or something in it not removed.
    pub fn sweep(&self) -> Result<(), TreeError> {
        let current = self.current().map_err(TreeError::Inspect)?;
        self.clean(current.as_deref()).map_err(TreeError::Inspect)
    }

    /// How long readers of a generation that has ended still need it; `None` for one that is gone. One that ended in times to come,
    /// before the clock was set back, is given the whole time.
    fn needed(&self, generation: &str) -> rustix::io::Result<Option<Duration>> {
        let stat = match rustix::fs::statat(&self.root, generation, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            Err(Errno::NOENT) => return Ok(None),
            Err(error) => return Err(error),
        };
        let secs = u64::try_from(stat.st_mtime).unwrap_or(0);
        let ended =
            UNIX_EPOCH + Duration::new(secs, u32::try_from(stat.st_mtime_nsec).unwrap_or(0));
        let age = SystemTime::now().duration_since(ended).unwrap_or_default();
        Ok(Some(self.linger.saturating_sub(age)))
    }

    /// Generations other than the one in force, the oldest first.
    fn ended(&self, current: Option<&str>) -> rustix::io::Result<Vec<String>> {
        let names = beneath::entries(&self.root)?.into_iter().map(|(name, _)| name);
        let mut ended: Vec<String> =
            names.filter(|name| is_generation(name) && Some(name.as_str()) != current).collect();
        ended.sort_unstable();
        Ok(ended)
    }

    /// Keeps a storm of writes from piling up generations: the oldest that are too many go, after their readers' time.
    fn bound_lingering(&self, current: &str) {
        let bounded = self.ended(Some(current)).and_then(|ended| {
            let excess = ended.len().saturating_sub(LINGERING_MAX);
            for name in ended.iter().take(excess) {
                std::thread::sleep(self.needed(name)?.unwrap_or_default());
                beneath::remove(&self.root, name)?;
            }
            Ok(())
        });
        // The payload is in force; what cannot be removed now is removed by a later write.
        if let Err(error) = bounded {
            tracing::warn!(%error, "remove what earlier writes left in a volume");
        }
    }

    /// Name of the generation in force.
    fn current(&self) -> rustix::io::Result<Option<String>> {
        let target = match rustix::fs::readlinkat(&self.root, DATA, Vec::new()) {
            Ok(target) => target,
            Err(Errno::NOENT) => return Ok(None),
            Err(error) => return Err(error),
        };
        // Anything but a plain name beside it is not ours, and is replaced.
        let target = target.to_str().ok().filter(|name| is_generation(name));
        let Some(name) = target else { return Ok(None) };
        Ok(beneath::directory(&self.root, name)?.map(|_| name.to_owned()))
    }

    /// Whether a generation is exactly the payload, owners and modes included.
    fn holds(&self, generation: &str, payload: &Payload) -> rustix::io::Result<bool> {
        let Some(root) = beneath::directory(&self.root, generation)? else { return Ok(false) };
        let mut left = payload.len();
        let mut directories = vec![(String::new(), root)];
        while let Some((prefix, directory)) = directories.pop() {
            for (name, kind) in beneath::entries(&directory)? {
                let path = format!("{prefix}{name}");
                if kind == FileType::Directory {
                    let Some(inner) = beneath::directory(&directory, &name)? else {
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

    /// Builds a generation; when there is no room, without the ended ones in the way.
    fn build_in_room(&self, payload: &Payload, current: Option<&str>) -> Result<String, TreeError> {
        match self.build(payload) {
            Err(TreeError::Write { source: Errno::NOSPC | Errno::DQUOT, .. }) => {
                std::thread::sleep(self.linger);
                let ended = self.ended(current).map_err(TreeError::Inspect)?;
                let gone = ended.iter().try_for_each(|name| beneath::remove(&self.root, name));
                gone.map_err(TreeError::Inspect)?;
                self.build(payload)
            }
            built => built,
        }
    }

    fn build(&self, payload: &Payload) -> Result<String, TreeError> {
        let name = self.make_generation().map_err(|source| failed("..", source))?;
        let filled = self.fill(&name, payload);
        if filled.is_err() {
            let _ = beneath::remove(&self.root, &name); // best effort: the next write removes it too
        }
        filled.map(|()| name)
    }

    /// Makes an empty directory for a generation, named by the time as tools of the ecosystem expect.
    fn make_generation(&self) -> rustix::io::Result<String> {
        let mut now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        loop {
            let name = format!("..{}.{:09}", now.as_secs(), now.subsec_nanos());
            match rustix::fs::mkdirat(&self.root, name.as_str(), Mode::from_raw_mode(0o755)) {
                Ok(()) => return Ok(name),
                // the clock stood still or went back
                Err(Errno::EXIST) => now += Duration::from_nanos(1),
                Err(error) => return Err(error),
            }
        }
    }

    fn fill(&self, generation: &str, payload: &Payload) -> Result<(), TreeError> {
        let root = beneath::directory(&self.root, generation);
        let root = root.and_then(|fd| fd.ok_or(Errno::NOENT)).map_err(|e| failed("..", e))?;
        self.own_directory(&root).map_err(|source| failed("..", source))?;
        for (path, file) in payload.files() {
            self.write_file(&root, path, file).map_err(|source| failed(path, source))?;
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
        // Closed to all until it has its content and owner.
        let mut opened =
            std::fs::File::from(beneath::open(&inner, name, flags, Mode::from_raw_mode(0o600))?);
        opened.write_all(&file.data).map_err(errno)?;
        let Ownership { uid, gid } = self.ownership;
        if uid.is_some() || gid.is_some() {
            rustix::fs::fchown(&opened, uid.map(Uid::from_raw), gid.map(Gid::from_raw))?;
        }
        rustix::fs::fchmod(&opened, Mode::from_raw_mode(self.mode(file)))
    }

    /// Gives a directory to the group, so that files made in it later would be the group's too. The umask must not narrow it.
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

    /// The mode of a file: a group that the volume is given to may always read it.
    fn mode(&self, file: &PayloadFile) -> u32 {
        let group = if self.ownership.gid.is_some() { 0o440 } else { 0 };
        (file.mode & 0o777) | group
    }

    /// The switch: one rename over `..data`. The generation before it is marked with the time at which it ends: before that, for who dies
    /// in between, and after it, for who is put aside.
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

    /// Gives a generation the present as its time of change.
    fn mark(&self, generation: &str) -> rustix::io::Result<()> {
        let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
        let times = Timestamps { last_access: now, last_modification: now };
        rustix::fs::utimensat(&self.root, generation, &times, AtFlags::SYMLINK_NOFOLLOW)
    }

    /// Makes the links of the payload's names and removes those of others.
    fn link(&self, payload: &Payload) -> Result<(), TreeError> {
        for name in payload.top_names() {
            let failed = |source| TreeError::Link { name: name.into(), source };
            let target = format!("{DATA}/{name}");
            let there = rustix::fs::readlinkat(&self.root, name, Vec::new());
            if there.is_ok_and(|there| there.to_bytes() == target.as_bytes()) {
                continue;
            }
            if is_directory(&self.root, name).map_err(failed)? {
                beneath::remove(&self.root, name).map_err(failed)?; // nobody but a stranger made it
            }
            replace_link(&self.root, &target, LINK_NEW, name).map_err(failed)?;
        }
        let tops: HashSet<&str> = payload.top_names().collect();
        for (name, kind) in beneath::entries(&self.root).map_err(TreeError::Inspect)? {
            let wanted = tops.contains(name.as_str());
            if kind == FileType::Symlink && !name.starts_with("..") && !wanted {
                let removed = beneath::remove(&self.root, &name);
                removed.map_err(|source| TreeError::Link { name: name.clone(), source })?;
            }
        }
        Ok(())
    }

    /// Removes ended generations that no reader needs any more, and half-made links: what switches and crashes left.
    fn clean(&self, current: Option<&str>) -> rustix::io::Result<()> {
        for name in self.ended(current)? {
            if self.needed(&name)?.is_some_and(|left| !left.is_zero()) {
                // the others ended later
                break;
            }
            beneath::remove(&self.root, &name)?;
        }
        for (name, _) in beneath::entries(&self.root)? {
            let kept = name == DATA || name == PARTS || is_generation(&name);
            if name.starts_with("..") && !kept {
                beneath::remove(&self.root, &name)?;
            }
        }
        Ok(())
    }
}

/// A symbolic link put in place of whatever `name` is, in one step.
fn replace_link(
    directory: impl AsFd,
    target: &str,
    temporary: &str,
    name: &str,
) -> rustix::io::Result<()> {
    match rustix::fs::symlinkat(target, directory.as_fd(), temporary) {
        Ok(()) => {}
        Err(Errno::EXIST) => {
            // left by a crash between the two steps
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

fn failed(path: &str, source: Errno) -> TreeError {
    TreeError::Write { path: path.into(), source }
}

fn errno(error: std::io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}

#[cfg(test)]
mod tests;
