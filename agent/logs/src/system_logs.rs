//! `/logs/`: files and directories below one directory. Neither paths nor links can lead out of it:
//! the kernel resolves them beneath it.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::Path;

use percent_encoding::AsciiSet;
use proto_api::uri;
use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};

/// Characters that are escaped in links: everything but unreserved ones and slashes.
const SEGMENTS: &AsciiSet = &uri::COMPONENT.remove(b'/');

/// Most names listed of a directory.
const NAMES_MAX: usize = 10_000;

/// The target of a path.
#[derive(Debug)]
pub enum LogEntry {
    /// A file, read to its present end.
    File(File),
    /// A directory as a page of links.
    Directory(String),
}

/// Opens `path` below `root`; the empty path is `root` itself. Does blocking IO.
///
/// # Errors
/// The path does not exist below `root`, or cannot be opened.
pub fn open(root: &Path, path: &str) -> std::io::Result<LogEntry> {
    let top = File::open(root)?;
    let path = if path.is_empty() { "." } else { path };
    // Without O_NONBLOCK a FIFO would block the thread.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    let opened: OwnedFd = openat2(&top, path, flags, Mode::empty(), resolve)?;
    let file = File::from(opened);
    let kind = file.metadata()?.file_type();
    if kind.is_dir() {
        return Ok(LogEntry::Directory(listing(&file)?));
    }
    if !kind.is_file() {
        return Err(std::io::ErrorKind::NotFound.into());
    }
    Ok(LogEntry::File(file))
}

fn listing(directory: &File) -> std::io::Result<String> {
    let mut names = Vec::new();
    for entry in rustix::fs::Dir::read_from(directory)?.take(NAMES_MAX) {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if name != "." && name != ".." {
            let slash = if entry.file_type().is_dir() { "/" } else { "" };
            names.push(format!("{name}{slash}"));
        }
    }
    names.sort();
    let links: String = names
        .iter()
        .map(|name| format!("<a href=\"{}\">{}</a>\n", link(name), text(name)))
        .collect();
    Ok(format!("<pre>\n{links}</pre>\n"))
}

fn text(name: &str) -> String {
    name.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&#34;")
}

/// The path `name` as a relative reference.
fn link(name: &str) -> String {
    uri::encode(name, SEGMENTS)
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn nothing_outside_is_shown() {
        let root = tempfile::tempdir().expect("tempdir");
        let at = |name: &str| root.path().join(name);
        std::fs::create_dir(at("pods")).expect("made");
        std::fs::write(at("pods/0.log"), "hello").expect("written");
        std::fs::write(at("a<b>.log"), "").expect("written");
        std::os::unix::fs::symlink("/etc/passwd", at("absolute")).expect("linked");
        std::os::unix::fs::symlink("../../etc/passwd", at("relative")).expect("linked");
        std::os::unix::fs::symlink("pods/0.log", at("within")).expect("linked");
        for path in ["pods/0.log", "within"] {
            let LogEntry::File(mut file) = open(root.path(), path).expect("there") else {
                panic!("{path} is a file")
            };
            let mut text = String::new();
            file.read_to_string(&mut text).expect("read");
            assert_eq!(text, "hello");
        }
        for path in ["absolute", "relative", "../x", "none", "/etc/passwd"] {
            assert!(open(root.path(), path).is_err(), "{path}");
        }
        let LogEntry::Directory(page) = open(root.path(), "").expect("there") else {
            panic!("a directory")
        };
        assert!(
            page.contains("<a href=\"pods/\">pods/</a>\n")
                && page.contains("<a href=\"a%3Cb%3E.log\">a&lt;b&gt;.log</a>"),
            "{page}"
        );
    }
}
