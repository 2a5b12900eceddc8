//! Records of CSI volumes: files next to their mounts in the kubelet's format and place, read after a restart.

use std::fs::{self, OpenOptions};
use std::io::{self, Read as _};
use std::path::Path;

use agent_volume::private_dirs;
use proto_daemon::private_files;
use serde::{Deserialize, Serialize};

/// Name of the file.
pub const FILE: &str = "vol_data.json";
/// Temporary name; older versions wrote it.
const UNFINISHED: &str = ".vol_data.json.new";
/// Longest record, in bytes.
const LEN_MAX: u64 = 64 << 10;

/// What a teardown needs of a staged or published volume: kept in a file, because the pod and the claim may be deleted first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct VolumeRecord {
    /// Name of the persistent volume, or of the pod's volume.
    #[serde(rename = "specVolID")]
    pub spec_name: String,
    /// Volume handle.
    #[serde(rename = "volumeHandle")]
    pub handle: String,
    /// Name of the driver.
    #[serde(rename = "driverName")]
    pub driver: String,
    /// Name of the node.
    #[serde(rename = "nodeName")]
    pub node: String,
    /// Name of the VolumeAttachment; empty if there is none.
    #[serde(rename = "attachmentID")]
    pub attachment: String,
    /// `Persistent` or `Ephemeral`.
    #[serde(rename = "volumeLifecycleMode")]
    pub lifecycle: String,
    /// Whether it is a block device.
    #[serde(rename = "block", skip_serializing_if = "std::ops::Not::not")]
    pub block: bool,
    /// Whether `fsGroup` has been applied since it was published.
    #[serde(rename = "groupGiven", skip_serializing_if = "std::ops::Not::not")]
    pub group_given: bool,
}

impl VolumeRecord {
    /// Reads the record in a directory; `None` if there is none.
    ///
    /// # Errors
    /// It cannot be read; `InvalidData` if it is damaged.
    pub fn read(directory: &Path) -> io::Result<Option<Self>> {
        let file = match private_files::open_private(&directory.join(FILE), &mut OpenOptions::new())
        {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let mut text = Vec::new();
        file.take(LEN_MAX + 1).read_to_end(&mut text)?;
        let record = serde_json::from_slice(&text);
        record.map(Some).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
    }

    /// Writes the record to a directory, which is created if missing: complete and flushed to disk, or not at all.
    ///
    /// # Errors
    /// It cannot be written; `InvalidInput` if it is too long.
    pub fn write(&self, directory: &Path) -> io::Result<()> {
        let text = serde_json::to_vec(self)?;
        // A record that cannot be read back would block its pod forever.
        if text.len() as u64 > LEN_MAX {
            let why = format!("the record would have {} bytes, more than {LEN_MAX}", text.len());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        private_dirs::make(directory)?;
        private_files::write_private_atomically(&directory.join(FILE), &text)
    }

    /// Removes the record in a directory, and the directory if it is empty then. A missing record is not an error.
    ///
    /// # Errors
    /// The directory is not empty, or errors of the kernel.
    pub fn remove(directory: &Path) -> io::Result<()> {
        ignore_missing(fs::remove_file(directory.join(UNFINISHED)))?;
        private_files::remove_private(&directory.join(FILE))?;
        ignore_missing(fs::remove_dir(directory))
    }
}

/// Turns "not found" into success, for removals.
pub(crate) fn ignore_missing(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_kept_in_the_kubelets_format() {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().join("a/b");
        assert_eq!(VolumeRecord::read(&at).unwrap(), None);
        let record = VolumeRecord {
            spec_name: "pv".into(),
            handle: "h".into(),
            driver: "d".into(),
            node: "n".into(),
            lifecycle: "Persistent".into(),
            ..VolumeRecord::default()
        };
        record.write(&at).unwrap();
        assert_eq!(VolumeRecord::read(&at).unwrap(), Some(record.clone()));
        let text = fs::read_to_string(at.join(FILE)).unwrap();
        assert_eq!(
            text,
            r#"{"specVolID":"pv","volumeHandle":"h","driverName":"d","nodeName":"n","attachmentID":"","volumeLifecycleMode":"Persistent"}"#
        );
        // A record written by a kubelet.
        fs::write(
            at.join(FILE),
            r#"{"driverName":"x","volumeHandle":"y","seLinuxMountContext":""}"#,
        )
        .unwrap();
        assert_eq!(VolumeRecord::read(&at).unwrap().unwrap().driver, "x");
        fs::write(at.join("data"), "").unwrap();
        assert!(VolumeRecord::remove(&at).is_err(), "what is not ours stays");
        fs::remove_file(at.join("data")).unwrap();
        VolumeRecord::remove(&at).unwrap();
        VolumeRecord::remove(&at).unwrap();
        assert!(!at.exists());
    }

    #[test]
    fn records_are_private_and_read_back_whatever_they_hold() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().join("a");
        let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
        let of = |len| VolumeRecord {
            handle: "h".repeat(len),
            driver: "d".into(),
            ..VolumeRecord::default()
        };
        let overhead = serde_json::to_vec(&of(0)).unwrap().len();
        let longest = of(usize::try_from(LEN_MAX).unwrap() - overhead);
        longest.write(&at).unwrap();
        assert_eq!((mode(&at), mode(&at.join(FILE))), (0o700, 0o600));
        let too_long = of(longest.handle.len() + 1).write(&at).unwrap_err();
        assert_eq!(too_long.kind(), io::ErrorKind::InvalidInput);
        assert_eq!(VolumeRecord::read(&at).unwrap(), Some(longest));
        // As a kubelet leaves them, and the leftover of an interrupted write.
        fs::set_permissions(at.join(FILE), fs::Permissions::from_mode(0o644)).unwrap();
        VolumeRecord::read(&at).unwrap();
        assert_eq!(mode(&at.join(FILE)), 0o600);
        fs::write(private_files::unfinished_path(&at.join(FILE)), "half").unwrap();
        fs::write(at.join(UNFINISHED), "half").unwrap();
        VolumeRecord::remove(&at).unwrap();
        assert!(!at.exists());
    }
}
