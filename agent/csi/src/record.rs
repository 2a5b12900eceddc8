//! What is known of a driver's volume after a restart: a file beside its mount, in the ecosystem's form and place.

use std::fs::{self, OpenOptions};
use std::io::{self, Read as _};
use std::path::Path;

use agent_volume::private;
use proto_daemon::private_files;
use serde::{Deserialize, Serialize};

/// Name of the file.
pub const FILE: &str = "vol_data.json";
/// Its name while older versions wrote it.
const UNFINISHED: &str = ".vol_data.json.new";
/// Longest record, in bytes.
const LEN_MAX: u64 = 64 << 10;

/// A record.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Record {
    /// Name of the persistent volume, or of the pod's.
    #[serde(rename = "specVolID")]
    pub spec_name: String,
    /// The driver's name of the volume.
    #[serde(rename = "volumeHandle")]
    pub handle: String,
    /// Name of the driver.
    #[serde(rename = "driverName")]
    pub driver: String,
    /// Name of the node.
    #[serde(rename = "nodeName")]
    pub node: String,
    /// Name of the attachment; empty without one.
    #[serde(rename = "attachmentID")]
    pub attachment: String,
    /// `Persistent` or `Ephemeral`.
    #[serde(rename = "volumeLifecycleMode")]
    pub lifecycle: String,
    /// Whether it is a block device.
    #[serde(rename = "block", skip_serializing_if = "std::ops::Not::not")]
    pub block: bool,
    /// Whether it has been given to the pod's group since it was published.
    #[serde(rename = "groupGiven", skip_serializing_if = "std::ops::Not::not")]
    pub group_given: bool,
}

impl Record {
    /// Reads the record in a directory; `None` if there is none.
    ///
    /// # Errors
    /// When it cannot be read; `InvalidData` when it is none.
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

    /// Writes the record into a directory, made if need be: whole and on disk, or not at all.
    ///
    /// # Errors
    /// When it cannot be written; `InvalidInput` for one that is too long.
    pub fn write(&self, directory: &Path) -> io::Result<()> {
        let text = serde_json::to_vec(self)?;
        // One that cannot be read back would hold its pod for ever.
        if text.len() as u64 > LEN_MAX {
            let why = format!("the record would have {} bytes, more than {LEN_MAX}", text.len());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        private::make(directory)?;
        private_files::write_private_atomically(&directory.join(FILE), &text)
    }

    /// Removes the record of a directory, and the directory if nothing else is in it. Nothing there is fine.
    ///
    /// # Errors
    /// When something is left in the directory, or the kernel refuses.
    pub fn remove(directory: &Path) -> io::Result<()> {
        gone(fs::remove_file(directory.join(UNFINISHED)))?;
        private_files::remove_private(&directory.join(FILE))?;
        gone(fs::remove_dir(directory))
    }
}

/// What should be gone and is not there is gone.
pub(crate) fn gone(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_kept_in_the_ecosystems_form() {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().join("a/b");
        assert_eq!(Record::read(&at).unwrap(), None);
        let record = Record {
            spec_name: "pv".into(),
            handle: "h".into(),
            driver: "d".into(),
            node: "n".into(),
            lifecycle: "Persistent".into(),
            ..Record::default()
        };
        record.write(&at).unwrap();
        assert_eq!(Record::read(&at).unwrap(), Some(record.clone()));
        let text = fs::read_to_string(at.join(FILE)).unwrap();
        assert_eq!(
            text,
            r#"{"specVolID":"pv","volumeHandle":"h","driverName":"d","nodeName":"n","attachmentID":"","volumeLifecycleMode":"Persistent"}"#
        );
        // one that another agent wrote
        fs::write(
            at.join(FILE),
            r#"{"driverName":"x","volumeHandle":"y","seLinuxMountContext":""}"#,
        )
        .unwrap();
        assert_eq!(Record::read(&at).unwrap().unwrap().driver, "x");
        fs::write(at.join("data"), "").unwrap();
        assert!(Record::remove(&at).is_err(), "what is not ours stays");
        fs::remove_file(at.join("data")).unwrap();
        Record::remove(&at).unwrap();
        Record::remove(&at).unwrap();
        assert!(!at.exists());
    }

    #[test]
    fn records_are_private_and_read_back_whatever_they_hold() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().join("a");
        let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
        let of = |len| Record { handle: "h".repeat(len), driver: "d".into(), ..Record::default() };
        let overhead = serde_json::to_vec(&of(0)).unwrap().len();
        let longest = of(usize::try_from(LEN_MAX).unwrap() - overhead);
        longest.write(&at).unwrap();
        assert_eq!((mode(&at), mode(&at.join(FILE))), (0o700, 0o600));
        let too_long = of(longest.handle.len() + 1).write(&at).unwrap_err();
        assert_eq!(too_long.kind(), io::ErrorKind::InvalidInput);
        assert_eq!(Record::read(&at).unwrap(), Some(longest));
        // As another agent leaves them, and what writing leaves that broke off.
        fs::set_permissions(at.join(FILE), fs::Permissions::from_mode(0o644)).unwrap();
        Record::read(&at).unwrap();
        assert_eq!(mode(&at.join(FILE)), 0o600);
        fs::write(private_files::unfinished_path(&at.join(FILE)), "half").unwrap();
        fs::write(at.join(UNFINISHED), "half").unwrap();
        Record::remove(&at).unwrap();
        assert!(!at.exists());
    }
}
