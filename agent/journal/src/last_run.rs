//! How the agent's last run ended: by itself, or killed by another. A pod is suspected of the former only.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::path::Path;

use proto_daemon::private_files;

/// Longest file that is read.
const LEN_MAX: u64 = 256;

/// The end of a run that was not orderly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LastEnd {
    /// It aborted, the kernel may have ended it for want of memory, or nothing is known of it.
    Crashed,
    /// Another process killed it, or the machine stopped.
    Killed,
}

/// What a run is known by.
#[derive(Clone, Copy, Debug)]
pub struct RunState<'a> {
    pub boot_id: &'a str,
    /// Processes that the kernel has ended for want of memory in this boot; `None` if it does not count them.
    pub oom_kills: Option<u64>,
}

impl RunState<'_> {
    /// The text of a run: `0` in the place of which an abort puts `1`, the count, the boot.
    fn write(&self) -> String {
        let kills = self.oom_kills.map_or_else(|| "-".to_owned(), |kills| kills.to_string());
        format!("0 {kills} {}\n", self.boot_id)
    }

    /// Judges the run that left `text`.
    fn classify_end(&self, text: &str) -> LastEnd {
        let [aborted, kills, boot_id] = text.split_ascii_whitespace().collect::<Vec<_>>()[..]
        else {
            return LastEnd::Crashed;
        };
        let has_stopped = boot_id != self.boot_id;
        let is_spared = self.oom_kills.is_some_and(|now| kills.parse() == Ok(now));
        match aborted {
            "0" if has_stopped || is_spared => LastEnd::Killed,
            _ => LastEnd::Crashed,
        }
    }
}

/// Judges the last run and begins this one. The file returned is the one whose first byte says whether this run aborted.
///
/// # Errors
/// The file cannot be read or written.
pub fn begin(path: &Path, now: &RunState<'_>) -> io::Result<(LastEnd, File)> {
    let mut text = String::new();
    match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
        Ok(file) => {
            // A damaged file says nothing.
            let _damaged = file.take(LEN_MAX).read_to_string(&mut text);
        }
    }
    let new = path.with_extension("new");
    match std::fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = private_files::create_private(&new)?;
    file.write_all(now.write().as_bytes())?;
    std::fs::rename(&new, path)?;
    Ok((now.classify_end(&text), file))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: RunState<'_> = RunState { boot_id: "b", oom_kills: Some(3) };

    #[test]
    fn the_last_run_was_killed_unless_it_shows_signs_of_a_crash() {
        for (text, wanted) in [
            ("0 3 b\n", LastEnd::Killed),
            ("1 3 b\n", LastEnd::Crashed),
            ("0 2 b\n", LastEnd::Crashed),
            ("0 - b\n", LastEnd::Crashed),
            ("0 7 a\n", LastEnd::Killed),
            ("1 7 a\n", LastEnd::Crashed),
            ("", LastEnd::Crashed),
            ("0 3\n", LastEnd::Crashed),
        ] {
            assert_eq!(NOW.classify_end(text), wanted, "{text:?}");
        }
        let unknown = RunState { oom_kills: None, ..NOW };
        assert_eq!(unknown.classify_end(&unknown.write()), LastEnd::Crashed);
        assert_eq!(
            unknown.classify_end(&RunState { boot_id: "a", ..unknown }.write()),
            LastEnd::Killed
        );
    }

    #[test]
    fn each_run_judges_the_one_before() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("last-run");
        let next = || begin(&path, &NOW).expect("begun");
        assert_eq!(next().0, LastEnd::Crashed, "nothing is known of it");
        let (end, file) = next();
        assert_eq!(end, LastEnd::Killed);
        std::os::unix::fs::FileExt::write_all_at(&file, b"1", 0).expect("marked");
        assert_eq!(next().0, LastEnd::Crashed);
        assert_eq!(next().0, LastEnd::Killed, "the mark is of one run");
    }
}
