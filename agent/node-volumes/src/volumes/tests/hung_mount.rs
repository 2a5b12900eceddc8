//! A FUSE file system whose server answers the handshake and nothing else. Like on an NFS mount whose server is unavailable, every access
//! blocks, and not even SIGKILL ends it.

use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use rustix::mount::{MountFlags, UnmountFlags};

/// Size of the buffer for one request; the kernel refuses less than a write of the largest size needs.
const REQUEST_LEN_MAX: usize = 1 << 20;
/// Length of the header of an answer, and of the answer to `FUSE_INIT` (linux/fuse.h).
const INIT_ANSWER_LEN: u32 = 16 + 64;
/// Offset of the number of a request that its answer repeats.
const UNIQUE: std::ops::Range<usize> = 8..16;

/// A mount that does not answer until it is dropped.
pub struct HungMount {
    point: PathBuf,
    stop: Arc<AtomicBool>,
    server: Option<JoinHandle<()>>,
}

impl HungMount {
    /// Mounts it on a directory.
    ///
    /// # Errors
    /// This machine has no FUSE, or this process may not mount.
    pub fn new(point: &Path) -> io::Result<Self> {
        let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let mut device = File::from(rustix::fs::open("/dev/fuse", flags, Mode::empty())?);
        let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", device.as_raw_fd());
        let options = CString::new(options)?;
        let flags = MountFlags::NODEV | MountFlags::NOSUID;
        rustix::mount::mount("hung", point, "fuse", flags, Some(options.as_c_str()))?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let server = std::thread::spawn(move || serve(&mut device, &stopped));
        Ok(Self { point: point.to_owned(), stop, server: Some(server) })
    }

    /// Whether it is still mounted.
    pub fn is_mounted(&self) -> bool {
        let table = proto_daemon::mountinfo::read().expect("mountinfo");
        table.iter().any(|mount| mount.point == self.point)
    }
}

impl Drop for HungMount {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // Closing the device fails all requests, which ends those who wait.
        let _ = self.server.take().map(JoinHandle::join);
        let _ = rustix::mount::unmount(&self.point, UnmountFlags::DETACH);
    }
}

/// Answers `FUSE_INIT`, then only reads: a request that was read cannot be interrupted any more.
fn serve(device: &mut File, stop: &AtomicBool) {
    let mut request = vec![0; REQUEST_LEN_MAX];
    let mut is_first = true;
    while !stop.load(Ordering::Relaxed) {
        match device.read(&mut request) {
            Ok(_) if is_first => {
                is_first = false;
                let answer = init_answer(&request[UNIQUE]);
                device.write_all(&answer).expect("handshake");
            }
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => return,
            _ => std::thread::sleep(Duration::from_millis(2)),
        }
    }
}

fn init_answer(unique: &[u8]) -> Vec<u8> {
    let mut answer = INIT_ANSWER_LEN.to_ne_bytes().to_vec();
    answer.extend([0; 4]);
    answer.extend(unique);
    // Protocol 7.31, no read-ahead, no flags, two numbers of 16 bits that are left at their default, and the largest write.
    for field in [7_u32, 31, 0, 0, 0, 65_536] {
        answer.extend(field.to_ne_bytes());
    }
    answer.resize(INIT_ANSWER_LEN as usize, 0);
    answer
}
