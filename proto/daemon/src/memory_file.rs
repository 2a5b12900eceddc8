//! A file in memory: it has a path for other programs of the same user, and goes with the process, however that ends.

use std::ffi::CString;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::AsRawFd as _;
use std::path::PathBuf;

use nix::sys::memfd::{MFdFlags, memfd_create};

/// A file in memory; it goes when this is dropped.
#[derive(Debug)]
pub struct MemoryFile(File);

impl MemoryFile {
    /// A file of this content. `name` is what lists of open files show.
    ///
    /// # Errors
    /// The system refuses it.
    pub fn new(name: &str, content: &[u8]) -> io::Result<Self> {
        let name = CString::new(name)?;
        let mut file = File::from(memfd_create(name.as_c_str(), MFdFlags::MFD_CLOEXEC)?);
        file.write_all(content)?;
        Ok(Self(file))
    }

    /// Where other processes of the same user read it, while this process lives.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd()))
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_memory_file_is_readable_by_path_until_it_is_dropped() {
        let file = MemoryFile::new("a", b"content").unwrap();
        let path = file.path();
        for _ in 0..2 {
            let read = Command::new("cat").arg(&path).output().unwrap();
            assert_eq!(read.stdout, b"content");
        }
        drop(file);
        // The number may be another file's by now, of another test.
        assert_ne!(std::fs::read(path).ok(), Some(b"content".to_vec()));
    }
}
