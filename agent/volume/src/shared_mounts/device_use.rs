//! Who uses a block device, before it is formatted or mounted.

use std::path::Path;

use proto_daemon::mountinfo::{self, Mount};
use rustix::io::Errno;

use super::SharedMounts;
use crate::{beneath, devices, host_path};

/// The exclusive use of a block device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceUse {
    /// There is none.
    Free,
    /// It is mounted below the agent's directory only.
    Mounted,
    /// A mount elsewhere, of it or a partition, a mapping, an array, swap or a program.
    Foreign,
}

impl SharedMounts {
    /// Who uses a block device. A mount in another mount namespace only, or of a file system with a device number of its own (btrfs), is foreign.
    ///
    /// # Errors
    /// Errors of the kernel; the mount table cannot be read.
    pub fn device_use(&self, device: &Path) -> rustix::io::Result<DeviceUse> {
        if !devices::is_in_use(device) {
            return Ok(DeviceUse::Free);
        }
        let root = host_path::opened_path(&beneath::open_directory(&self.root)?)?;
        let number = rustix::fs::stat(device)?.st_rdev;
        let number = format!("{}:{}", rustix::fs::major(number), rustix::fs::minor(number));
        let table = mountinfo::read();
        let table = table.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
        Ok(use_in(&table, number.as_bytes(), &root))
    }
}

/// The use of a device that is in use.
fn use_in(table: &[Mount], number: &[u8], root: &Path) -> DeviceUse {
    let mut of_device = table.iter().filter(|mount| mount.device == number).peekable();
    let is_mounted = of_device.peek().is_some();
    if is_mounted && of_device.all(|mount| mount.point.starts_with(root)) {
        DeviceUse::Mounted
    } else {
        DeviceUse::Foreign
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_mounts_below_the_agents_directory_are_its_own() {
        let row = |device: &str, point: &str| format!("1 2 {device} / {point} rw - ext4 x rw\n");
        let cases = [
            (row("8:1", "/r/plugins/x"), DeviceUse::Mounted),
            (row("8:1", "/r/plugins/x") + &row("8:1", "/r/pods/y"), DeviceUse::Mounted),
            (row("8:1", "/r/plugins/x") + &row("8:1", "/mnt"), DeviceUse::Foreign),
            (row("8:1", "/rest"), DeviceUse::Foreign),
            (row("8:17", "/r/plugins/x"), DeviceUse::Foreign),
            (String::new(), DeviceUse::Foreign),
        ];
        for (table, expect) in cases {
            let found = use_in(&mountinfo::parse(table.as_bytes()), b"8:1", Path::new("/r"));
            assert_eq!(found, expect, "{table}");
        }
    }
}
