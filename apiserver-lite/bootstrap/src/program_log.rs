//! The last lines of a program's log, for errors.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::Path;

/// Most bytes that are read.
const BYTES_MAX: u64 = 16 << 10;
/// Most characters of a line that are shown.
const LINE_MAX: usize = 400;

/// The last lines of a file; none if it cannot be read.
pub fn last_lines(path: &Path, count: usize) -> Vec<String> {
    read_end(path).map(|text| last_of(&text, count)).unwrap_or_default()
}

fn read_end(path: &Path) -> std::io::Result<String> {
    let mut file = File::open(path)?;
    let begin = file.metadata()?.len().saturating_sub(BYTES_MAX);
    file.seek(SeekFrom::Start(begin))?;
    let mut bytes = Vec::new();
    file.take(BYTES_MAX).read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes).into_owned();
    // The first line is cut.
    Ok(if begin == 0 {
        text
    } else {
        text.split_once('\n').map_or(text.clone(), |(_, rest)| rest.to_owned())
    })
}

/// The last lines of a text that are not empty, without characters that a terminal would act on.
pub fn last_of(text: &str, count: usize) -> Vec<String> {
    let plain = |line: &str| {
        let shown: String = line.chars().filter(|c| !c.is_control()).take(LINE_MAX).collect();
        shown.trim_end().to_owned()
    };
    let mut lines: Vec<String> = text.lines().map(plain).filter(|line| !line.is_empty()).collect();
    lines.drain(..lines.len().saturating_sub(count));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_is_read_from_its_end() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        assert_eq!(last_lines(&path, 2), [] as [&str; 0]);
        std::fs::write(&path, "one\ntwo\n\n\u{1b}[2Jthree\n").unwrap();
        assert_eq!(last_lines(&path, 2), ["two", "[2Jthree"]);
        assert_eq!(last_lines(&path, 9).len(), 3);
        let long: String = (0..10_000).map(|number| format!("line {number}\n")).collect();
        std::fs::write(&path, long).unwrap();
        let all = last_lines(&path, 100_000);
        assert_eq!(all.last().unwrap(), "line 9999");
        assert!(all.len() < 2000 && all[0].starts_with("line "), "{}", all.len());
    }
}
