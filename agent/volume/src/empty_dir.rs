//! `emptyDir` volumes: directories with the lifetime of their pod, on disk or in memory.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{Gid, Mode};

use crate::beneath;
use crate::mount::{self, Swap, Tmpfs};
use crate::sources::Medium;

/// Usable by every user of every container, as in Kubernetes.
const MODE: u32 = 0o777;

/// Creates the directory `name` in `parent`, or keeps an existing one unchanged, including what containers wrote or changed. It
/// appears with its owner and mode or not at all, so a crash leaves nothing to repair.
///
/// # Errors
/// Errors of the kernel.
pub fn set_up(
    parent: impl AsFd,
    name: &str,
    medium: &Medium,
    gid: Option<u32>,
) -> rustix::io::Result<OwnedFd> {
    match medium {
        Medium::Disk => on_disk(parent.as_fd(), name, gid),
        Medium::Memory { size_bytes } => {
            let tmpfs =
                Tmpfs { size_bytes: *size_bytes, mode: MODE, swap: Swap::Allowed, exec: true };
            mount::tmpfs_on(parent.as_fd(), name, tmpfs, |top| give_to(top, gid))
        }
        Medium::HugePages { page_bytes } => {
            let give = |top: &OwnedFd| give_to(top, gid);
            mount::huge_pages_on(parent.as_fd(), name, *page_bytes, MODE, give)
        }
    }
}

fn on_disk(parent: BorrowedFd<'_>, name: &str, gid: Option<u32>) -> rustix::io::Result<OwnedFd> {
    if let Some(there) = beneath::open_existing(parent, name)? {
        return Ok(there);
    }
    // Volume names do not begin with a dot.
    let unfinished = format!(".{name}.new");
    beneath::remove(parent, &unfinished)?;
    let directory = beneath::make_directory(parent, &unfinished, MODE)?;
    give_to(&directory, gid)?;
    rustix::fs::renameat(parent, unfinished.as_str(), parent, name)?;
    Ok(directory)
}

/// Sets the mode of a new directory regardless of the umask. The set-group-id bit makes new files belong to the group.
fn give_to(directory: &OwnedFd, gid: Option<u32>) -> rustix::io::Result<()> {
    let mode = match gid {
        None => MODE,
        Some(gid) => {
            rustix::fs::fchown(directory, None, Some(Gid::from_raw(gid)))?;
            MODE | 0o2000
        }
    };
    rustix::fs::fchmod(directory, Mode::from_raw_mode(mode))
}
