//! Which of a process's mapped files may be let go of: the code and constants that only the start needed. Pure.
//!
//! Around each page of code that runs for the first time the kernel maps its 15 neighbours, so that a start leaves nearly all of a
//! program resident, for good. What is unmapped here lies on in the page cache, where it can be reclaimed, and comes back with a minor
//! fault (16 pages each) when it runs again.

use std::ops::Range;

/// Parts of the address space that may be unmapped, from the text of `/proc/self/smaps`: code of files, and constants of the program
/// itself and of the C library, of which nothing was ever written. A page that was written has no copy in its file.
pub fn droppable(smaps: &str, program: &str) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    let mut candidate = None;
    for line in smaps.lines() {
        match line.split_once(':') {
            // Fields of the mapping above; they have one word before the colon.
            Some((field, value)) if !field.contains(' ') => {
                if field == "Anonymous"
                    && let Some(range) = candidate.take()
                    && value.trim() == "0 kB"
                {
                    found.push(range);
                }
            }
            _ => candidate = mapping(line, program),
        }
    }
    found
}

/// A mapping's first line: addresses, permissions, offset, device, inode, path.
fn mapping(line: &str, program: &str) -> Option<Range<usize>> {
    let mut words = line.split_ascii_whitespace();
    let (start, end) = words.next()?.split_once('-')?;
    let permissions = words.next()?;
    let path = words.nth(3)?;
    // Another library's constants may be in the middle of being mapped by another thread; the C library was there before the first.
    let may_go = match permissions {
        "r-xp" => path.starts_with('/'),
        "r--p" => path == program || path.ends_with("/libc.so.6"),
        _ => false,
    };
    let address = |text| usize::from_str_radix(text, 16).ok();
    may_go.then_some(address(start)?..address(end)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The form is proc_pid_smaps(5)'s.
    #[test]
    fn only_what_was_never_written_goes() {
        let smaps = "\
1000-3000 r--p 00000000 fe:00 11 /bin/p
Size:                  8 kB
Anonymous:             0 kB
3000-9000 r-xp 00002000 fe:00 11 /bin/p
Size:                 24 kB
Anonymous:             0 kB
VmFlags: rd ex mr mw me sd
9000-a000 r--p 00008000 fe:00 11 /bin/p
Anonymous:             4 kB
a000-b000 rw-p 00009000 fe:00 11 /bin/p
Anonymous:             0 kB
b000-c000 rw-p 00000000 00:00 0 [heap]
Anonymous:             0 kB
d000-e000 r--p 00000000 fe:00 12 /lib/l.so
Anonymous:             0 kB
e000-f000 r-xp 00001000 fe:00 12 /lib/l.so
Anonymous:             0 kB
f000-10000 r-xp 00001000 fe:00 12 /lib/patched.so
Anonymous:             4 kB
10000-11000 r-xp 00000000 00:00 0 [vdso]
Anonymous:             0 kB
11000-12000 rw-s 00000000 fe:00 13 /a file: with a colon
Anonymous:             0 kB
12000-13000 r--p 00000000 fe:00 14 /lib/libc.so.6
Anonymous:             0 kB
13000-14000 r--p 00001000 fe:00 14 /lib/libc.so.6
Anonymous:             4 kB
";
        assert_eq!(
            droppable(smaps, "/bin/p"),
            vec![0x1000..0x3000, 0x3000..0x9000, 0xe000..0xf000, 0x12000..0x13000]
        );
        assert!(droppable("", "/bin/p").is_empty());
        assert!(droppable("r-xp\nAnonymous: 0 kB\n", "/bin/p").is_empty());
    }
}
