//! What is known of a driver's volume after a restart: a file beside its mount, in the ecosystem's form and place.

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::path::Path;

use agent_volume::private;
use serde::{Deserialize, Serialize};

/// Name of the file.
pub const FILE: &str = "vol_data.json";
/// Its name while it is written.
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
        let file = match File::open(directory.join(FILE)) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let mut text = Vec::new();
        file.take(LEN_MAX).read_to_end(&mut text)?;
        let record = serde_json::from_slice(&text);
        record.map(Some).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
    }

    /// Writes the record into a directory, made if need be: whole and on disk, or not at all.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write(&self, directory: &Path) -> io::Result<()> {
        private::make(directory)?;
        let text = serde_json::to_vec(self)?;
        let unfinished = directory.join(UNFINISHED);
        let mut file = File::create(&unfinished)?;
        file.write_all(&text)?;
        file.sync_all()?;
        fs::rename(&unfinished, directory.join(FILE))?;
        File::open(directory)?.sync_all()
    }

    /// Removes the record of a directory, and the directory if nothing else is in it. Nothing there is fine.
    ///
    /// # Errors
    /// When something is left in the directory, or the kernel refuses.
    pub fn remove(directory: &Path) -> io::Result<()> {
        for name in [UNFINISHED, FILE] {
            gone(fs::remove_file(directory.join(name)))?;
        }
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
}
