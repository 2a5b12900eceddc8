//! A file that is renamed when it has reached its size, with kube-apiserver's names: `audit-2022-09-01T10-20-30.400.log` next to `audit.log`. The file is 0600
//! from its creation on.

use std::fs::{self, File};
use std::io::{self, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use proto_daemon::private_files::{FILE_MODE, create_missing_dir, open_shared};
use time::{Duration, OffsetDateTime};

/// Size at which a file is rotated where the flag is 0, in MiB.
const SIZE_MIB: u32 = 100;

/// When files are rotated and removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rotation {
    /// Size above which a file is rotated, in bytes.
    pub max_len: u64,
    /// Most rotated files; 0 keeps all.
    pub max_backups: usize,
    /// Days after which a rotated file is removed; 0 keeps it.
    pub max_age_days: u32,
}

impl Rotation {
    /// The rotation of these flags.
    pub fn new(max_size_mib: u32, max_backups: u32, max_age_days: u32) -> Self {
        let mib = if max_size_mib == 0 { SIZE_MIB } else { max_size_mib };
        let max_backups = usize::try_from(max_backups).unwrap_or(usize::MAX);
        Self { max_len: u64::from(mib) << 20, max_backups, max_age_days }
    }
}

/// The audit log file; rotated by size, with old files removed by age and number.
pub struct RotatingFile {
    path: PathBuf,
    rotation: Rotation,
    file: File,
    /// Length above which the next rotation is tried.
    rotate_above: u64,
}

impl RotatingFile {
    /// Opens the file to append to it; makes it and its directory if they are missing.
    ///
    /// # Errors
    /// Errors of system calls; anything but a regular file.
    pub fn open(path: &Path, rotation: Rotation) -> io::Result<Self> {
        if let Some(directory) = path.parent().filter(|path| !path.as_os_str().is_empty()) {
            create_missing_dir(directory)?;
        }
        let file = open_shared(path, FILE_MODE)?;
        Ok(Self { path: path.to_owned(), rotation, file, rotate_above: rotation.max_len })
    }

    /// Appends whole lines, after a rotation if they would make the file too long. A failed write leaves no part of them.
    ///
    /// # Errors
    /// The error of the write.
    pub fn append(&mut self, lines: &[u8], now: OffsetDateTime) -> io::Result<()> {
        // Not the offset after the last write: others may cut the file.
        let mut start = self.file.seek(SeekFrom::End(0))?;
        if start > 0 && start.saturating_add(lines.len() as u64) > self.rotate_above {
            match self.rotate(now) {
                Ok(()) => start = 0,
                Err(error) => {
                    let path = self.path.display();
                    tracing::warn!(%path, %error, "cannot rotate the audit log; it keeps growing");
                    self.rotate_above = start.saturating_add(self.rotation.max_len);
                }
            }
        }
        let written = self.file.write_all(lines);
        if written.is_err() {
            // A line that was begun would spoil the next one. Where cutting fails too, the first error says enough.
            let _ = self.file.set_len(start);
        }
        written
    }

    fn rotate(&mut self, now: OffsetDateTime) -> io::Result<()> {
        let mut at = now;
        let mut backup = self.backup(at);
        while backup.exists() {
            at += Duration::milliseconds(1);
            backup = self.backup(at);
        }
        // Another program has moved the file: a new one is created.
        match fs::rename(&self.path, &backup) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        self.file = open_shared(&self.path, FILE_MODE)?;
        self.rotate_above = self.rotation.max_len;
        self.remove_old(now);
        Ok(())
    }

    fn backup(&self, at: OffsetDateTime) -> PathBuf {
        let (prefix, suffix) = self.name_parts();
        self.path.with_file_name(format!("{prefix}{}{suffix}", timestamp(at)))
    }

    /// What stands before and behind the time in the name of a rotated file.
    fn name_parts(&self) -> (String, String) {
        let part = |part: Option<&std::ffi::OsStr>| {
            part.map(|part| part.to_string_lossy().into_owned()).unwrap_or_default()
        };
        let extension = part(self.path.extension());
        let suffix = if extension.is_empty() { extension } else { format!(".{extension}") };
        (format!("{}-", part(self.path.file_stem())), suffix)
    }

    /// Removes rotated files beyond the number and age that are kept. Best effort: the next rotation tries again.
    fn remove_old(&self, now: OffsetDateTime) {
        let (prefix, suffix) = self.name_parts();
        let directory = self.path.parent().filter(|path| !path.as_os_str().is_empty());
        let entries = fs::read_dir(directory.unwrap_or(Path::new("."))).into_iter().flatten();
        let mut times: Vec<String> = entries
            .flatten()
            .filter_map(|entry| {
                let name = entry.file_name().into_string().ok()?;
                let time = name.strip_prefix(&prefix)?.strip_suffix(&suffix)?;
                is_timestamp(time).then(|| time.to_owned())
            })
            .collect();
        times.sort_unstable();
        for time in to_remove(&times, self.rotation, now) {
            let path = self.path.with_file_name(format!("{prefix}{time}{suffix}"));
            if let Err(error) = fs::remove_file(&path) {
                let path = path.display();
                tracing::warn!(%path, %error, "cannot remove an old audit log file; retried at the next rotation");
            }
        }
    }
}

/// The times, of those sorted by age, whose files are removed.
fn to_remove(times: &[String], rotation: Rotation, now: OffsetDateTime) -> &[String] {
    let too_many = match rotation.max_backups {
        0 => 0,
        max => times.len().saturating_sub(max),
    };
    let too_old = match rotation.max_age_days {
        0 => 0,
        days => {
            let oldest = now.checked_sub(Duration::days(days.into())).map(timestamp);
            times.partition_point(|time| oldest.as_ref().is_some_and(|oldest| time < oldest))
        }
    };
    times.get(..too_many.max(too_old)).unwrap_or_default()
}

/// As `2022-09-01T10-20-30.400`; as texts they are in the order of their times.
fn timestamp(at: OffsetDateTime) -> String {
    let at = at.to_offset(time::UtcOffset::UTC);
    let (year, month, day) = (at.year(), u8::from(at.month()), at.day());
    let (hour, minute, second, milli) = (at.hour(), at.minute(), at.second(), at.millisecond());
    format!("{year:04}-{month:02}-{day:02}T{hour:02}-{minute:02}-{second:02}.{milli:03}")
}

fn is_timestamp(text: &str) -> bool {
    const SHAPE: &[u8] = b"0000-00-00T00-00-00.000";
    text.len() == SHAPE.len()
        && text.bytes().zip(SHAPE).all(|(byte, shape)| match shape {
            b'0' => byte.is_ascii_digit(),
            other => byte == *other,
        })
}

/// A file that cannot be written to.
#[cfg(test)]
pub fn on_full_disk() -> RotatingFile {
    let path = PathBuf::from("/dev/full");
    let file = File::options().write(true).open(&path).unwrap();
    RotatingFile { path, rotation: Rotation::new(0, 0, 0), file, rotate_above: u64::MAX }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use time::macros::datetime;

    use super::*;

    const NOW: OffsetDateTime = datetime!(2022-09-10 10:20:30.4 UTC);

    fn names(directory: &Path) -> Vec<String> {
        let entries = fs::read_dir(directory).unwrap().flatten();
        let mut names: Vec<String> =
            entries.map(|entry| entry.file_name().into_string().unwrap()).collect();
        names.sort_unstable();
        names
    }

    #[test]
    fn a_full_file_is_renamed_and_old_ones_go() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("logs/audit.log");
        let rotation = Rotation { max_len: 10, max_backups: 2, max_age_days: 0 };
        let mut file = RotatingFile::open(&path, rotation).unwrap();
        for nth in 0..6 {
            file.append(format!("line{nth}\n").as_bytes(), NOW + Duration::days(nth)).unwrap();
        }
        let logs = dir.path().join("logs");
        let expected =
            ["audit-2022-09-14T10-20-30.400.log", "audit-2022-09-15T10-20-30.400.log", "audit.log"];
        assert_eq!(names(&logs), expected);
        assert_eq!(fs::read_to_string(&path).unwrap(), "line5\n");
        assert_eq!(fs::read_to_string(logs.join(expected[1])).unwrap(), "line4\n");
        for name in expected {
            assert_eq!(fs::metadata(logs.join(name)).unwrap().mode() & 0o777, 0o600, "{name}");
        }
        // Twice within a millisecond, and a line that is longer than a file may be.
        let now = NOW + Duration::days(5);
        file.append(b"a line that is too long\n", now).unwrap();
        assert!(names(&logs).contains(&"audit-2022-09-15T10-20-30.401.log".to_owned()));
    }

    #[test]
    fn an_existing_file_is_continued_and_closed_to_others() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit");
        fs::write(&path, "old\n").unwrap();
        let mut file = RotatingFile::open(&path, Rotation::new(0, 0, 0)).unwrap();
        file.append(b"new\n", NOW).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "old\nnew\n");
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        // Truncated by another program: no hole is left.
        fs::write(&path, "").unwrap();
        file.append(b"next\n", NOW).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "next\n");
        assert!(RotatingFile::open(dir.path(), Rotation::new(0, 0, 0)).is_err());
    }

    #[test]
    fn old_log_files_are_removed_by_number_and_age() {
        let times =
            ["2022-09-01T00-00-00.000", "2022-09-05T00-00-00.000", "2022-09-09T00-00-00.000"];
        let times = times.map(str::to_owned);
        for (max_backups, max_age_days, removed) in
            [(0, 0, 0), (1, 0, 2), (5, 0, 0), (0, 2, 2), (0, 30, 0), (2, 2, 2), (1, 30, 2)]
        {
            let rotation = Rotation { max_len: 1, max_backups, max_age_days };
            let found = to_remove(&times, rotation, NOW);
            assert_eq!(found.len(), removed, "{rotation:?}");
        }
        assert!(is_timestamp(&timestamp(NOW)) && !is_timestamp("2022-09-10T10-20-30"));
        assert_eq!(Rotation::new(0, 1, 2).max_len, 100 << 20);
    }
}
