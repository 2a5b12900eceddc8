//! Records of the kernel log from now on.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use rustix::fs::OFlags;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::sys;

/// Path of the log.
pub const KERNEL_LOG: &str = "/dev/kmsg";
/// Longest record of the kernel.
const RECORD_LEN: usize = 8192;

/// The log, positioned after its last record.
#[derive(Debug)]
pub struct KernelLog {
    file: AsyncFd<File>,
    buffer: Vec<u8>,
}

impl KernelLog {
    /// Opens the log and skips its existing records.
    ///
    /// # Errors
    /// It cannot be opened, as in a container without it.
    pub fn open(path: &Path) -> io::Result<Self> {
        let flags = i32::try_from((OFlags::NONBLOCK | OFlags::CLOEXEC).bits()).unwrap_or(0);
        let mut file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
        file.seek(SeekFrom::End(0))?;
        let file = sys::async_fd(file, Interest::READABLE)?;
        Ok(Self { file, buffer: vec![0; RECORD_LEN] })
    }

    /// The next record: `priority,number,microseconds,flags;text`. Records that the kernel overwrote meanwhile are skipped.
    /// Cancel safe.
    ///
    /// # Errors
    /// The log cannot be read.
    pub async fn next(&mut self) -> io::Result<String> {
        loop {
            let mut ready = self.file.readable_mut().await?;
            let buffer = &mut self.buffer;
            match ready.try_io(|file| file.get_mut().read(buffer)) {
                Ok(Ok(0)) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(Ok(read)) => {
                    let record = self.buffer.get(..read).unwrap_or_default();
                    return Ok(String::from_utf8_lossy(record).into_owned());
                }
                // Overwritten before it was read.
                Ok(Err(error)) if error.kind() == ErrorKind::BrokenPipe => {}
                Ok(Err(error)) if error.kind() == ErrorKind::Interrupted => {}
                Ok(Err(error)) => return Err(error),
                Err(_would_block) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn new_kernel_log_records_are_read() {
        let log = KernelLog::open(Path::new(KERNEL_LOG));
        let writer = OpenOptions::new().write(true).open(KERNEL_LOG);
        let (Ok(mut log), Ok(mut writer)) = (log, writer) else {
            println!("SKIPPED new_kernel_log_records_are_read: no access to {KERNEL_LOG}");
            return;
        };
        let text = format!("orchlet test {}", std::process::id());
        // Without a newline the record is not visible yet (printk_ringbuffer).
        writer.write_all(format!("{text}\n").as_bytes()).expect("written");
        let found = async {
            loop {
                let record = log.next().await.expect("a record");
                if record.contains(&text) {
                    return record;
                }
            }
        };
        let record = tokio::time::timeout(Duration::from_secs(60), found).await.expect("in time");
        let (head, _) = record.split_once(';').expect("a head");
        let priority: u32 = head.split(',').next().expect("first").parse().expect("a number");
        assert!(priority >> 3 > 0, "users are no kernel: {head}");
    }
}
