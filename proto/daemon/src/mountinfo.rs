//! The kernel's table of mounts (proc(5), `mountinfo`), as bytes: paths need not be UTF-8, and one mount with such a name must not hide the others. No
//! mounted file system is accessed, since that may hang.
//!
//! ```text
//! 36 35     98:0   /mnt1 /mnt\0402 rw,noatime master:1 shared:7 - ext3 /dev/root rw,errors=continue
//! id parent device root  point                optional fields     kind source    options of the file system
//! ```

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

/// A line of `/proc/self/mountinfo`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// Its number.
    pub id: u32,
    /// The number of the mount that it is on.
    pub parent: u32,
    /// Numbers of its device, as text.
    pub device: Vec<u8>,
    /// What of its file system is mounted.
    pub root: PathBuf,
    /// Its mount point, as this process sees it.
    pub point: PathBuf,
    /// Whether mounts on it propagate.
    pub is_shared: bool,
    /// Type of its file system.
    pub kind: Vec<u8>,
    /// Options of its file system, separated by commas.
    options: Vec<u8>,
}

impl Mount {
    /// Whether its file system has an option, with a value or without.
    #[must_use]
    pub fn has_option(&self, name: &str) -> bool {
        let mut names = self
            .options
            .split(|byte| *byte == b',')
            .map(|option| option.split(|byte| *byte == b'=').next().unwrap_or_default());
        names.any(|option| option == name.as_bytes())
    }
}

/// The mounts of this process, in the kernel's order: of several at one mount point the last is visible.
///
/// # Errors
/// The table cannot be read.
pub fn read() -> io::Result<Vec<Mount>> {
    read_of(Path::new("/proc/self"))
}

/// The mounts of the process whose directory in `/proc` this is.
///
/// # Errors
/// As [`read`].
pub fn read_of(process: &Path) -> io::Result<Vec<Mount>> {
    std::fs::read(process.join("mountinfo")).map(|table| parse(&table))
}

/// The mounts in a table. Invalid lines are ignored.
#[must_use]
pub fn parse(table: &[u8]) -> Vec<Mount> {
    table.split(|byte| *byte == b'\n').filter_map(line).collect()
}

fn line(line: &[u8]) -> Option<Mount> {
    let mut fields = line.split(|byte| *byte == b' ');
    let id = number(fields.next()?)?;
    let parent = number(fields.next()?)?;
    let device = fields.next()?.to_vec();
    let root = OsString::from_vec(unescaped(fields.next()?)).into();
    let point = fields.next().filter(|point| point.starts_with(b"/"))?;
    // The mount's own options come before the optional fields, which a lone hyphen ends.
    fields.next()?;
    let mut is_shared = false;
    loop {
        match fields.next()? {
            b"-" => break,
            field => is_shared |= field.starts_with(b"shared:"),
        }
    }
    let kind = fields.next()?;
    Some(Mount {
        id,
        parent,
        device,
        root,
        point: OsString::from_vec(unescaped(point)).into(),
        is_shared,
        kind: unescaped(kind),
        options: fields.nth(1).unwrap_or_default().to_vec(),
    })
}

fn number(text: &[u8]) -> Option<u32> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// A field with its `\ooo` escapes decoded.
fn unescaped(text: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((first, after)) = rest.split_first() {
        let octal = |digits: &[u8]| {
            digits.iter().try_fold(0_u32, |value, digit| match digit {
                b'0'..=b'7' => Some(value * 8 + u32::from(digit - b'0')),
                _ => None,
            })
        };
        let escaped = (*first == b'\\').then(|| after.get(..3).and_then(octal)).flatten();
        match escaped.and_then(|value| u8::try_from(value).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = after.get(3..).unwrap_or_default();
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn points(table: &[u8]) -> Vec<PathBuf> {
        parse(table).into_iter().map(|mount| mount.point).collect()
    }

    #[test]
    fn names_are_bytes() {
        let table = b"22 1 0:21 / / rw - ext4 /dev/x rw\n\
            30 22 0:5 /a /with\\040space\\134\\011\\012 rw shared:1 - tmpfs t rw\n\
            31 22 0:6 / /not\xff\xfetext rw - tmpfs \xff rw\n\
            32 22 0:7 / /after rw master:2 propagate_from:3 - tmpfs t rw,size=1k\n";
        let not_text = OsString::from_vec(b"/not\xff\xfetext".to_vec());
        let expect: [PathBuf; 4] =
            ["/".into(), "/with space\\\t\n".into(), not_text.into(), "/after".into()];
        assert_eq!(points(table), expect);
        let all = parse(table);
        assert_eq!(
            all.iter().map(|m| m.is_shared).collect::<Vec<_>>(),
            [false, true, false, false]
        );
        assert!(all[3].has_option("size") && all[3].has_option("rw") && !all[3].has_option("siz"));
        assert_eq!(all[0].kind, b"ext4");
        assert_eq!((all[1].id, all[1].parent, all[1].device.as_slice()), (30, 22, &b"0:5"[..]));
        assert_eq!(all[1].root, Path::new("/a"));
    }

    #[test]
    fn malformed_mountinfo_lines_are_left_out() {
        for table in [
            &b""[..],
            b"\n\n",
            b"1 2 3",
            b"1 2 0:3 / relative rw - ext4 x rw",
            b"1 2 0:3 / /x rw",
            b"1 2 0:3 / /x rw -",
            b"1 2 0:3 / /x rw shared:1",
            b"\xff \xff \xff \xff \xff",
        ] {
            assert_eq!(points(table), [] as [PathBuf; 0], "{table:?}");
        }
        assert_eq!(unescaped(b"\\"), b"\\");
        assert_eq!(unescaped(b"\\777\\08\\04"), b"\\777\\08\\04", "no bytes");
        let cut = b"1 2 0:3 / /x rw - ext4";
        assert_eq!(points(cut), [PathBuf::from("/x")]);
        assert!(!parse(cut)[0].has_option("rw"), "it has none");
    }

    #[test]
    fn the_kernels_table_is_read() {
        assert!(read().unwrap().iter().any(|mount| mount.point == Path::new("/proc")));
    }
}
