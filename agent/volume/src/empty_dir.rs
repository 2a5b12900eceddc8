//! An empty directory that lives as long as its pod: on the node's disk or in memory.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{Gid, Mode};

use crate::beneath;
use crate::mount::{self, Swap, Tmpfs};
use crate::sources::Medium;

/// Any user of any container may use the directory.
const MODE: u32 = 0o777;

/// Makes the directory `name` of `parent`, or finds it as it is: what a container wrote or changed stays. It appears with its
/// owner and mode or not at all, so that a crash in between leaves nothing to put right.
///
/// # Errors
/// What the kernel says.
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
    if let Some(there) = beneath::directory(parent, name)? {
        return Ok(there);
    }
    // no volume is called so: their names do not begin with a dot
    let unfinished = format!(".{name}.new");
    beneath::remove(parent, &unfinished)?;
    let directory = beneath::make_directory(parent, &unfinished, MODE)?;
    give_to(&directory, gid)?;
    rustix::fs::renameat(parent, unfinished.as_str(), parent, name)?;
    Ok(directory)
}

/// Opens a new directory to all, whatever the umask. The group's bit makes what is written later the group's too.
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
