//! The driver's directory: volumes, and the recorded calls.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::faults::{self, Fault};

/// The directory.
#[derive(Debug)]
pub struct Store {
    dir: PathBuf,
}

impl Store {
    /// Over a directory.
    pub fn new(dir: &Path) -> Self {
        Self { dir: dir.to_owned() }
    }

    /// Notes a call.
    pub fn note(&self, call: &str, what: &Value) {
        let line = json!({"call": call, "what": what});
        let file = OpenOptions::new().create(true).append(true).open(self.dir.join("calls"));
        if let Err(error) = file.and_then(|mut file| file.write_all(format!("{line}\n").as_bytes()))
        {
            eprintln!("note {call}: {error}");
        }
    }

    /// The fault that a call has now.
    pub fn fault(&self, call: &str) -> Option<Fault> {
        let lines = fs::read_to_string(self.dir.join("faults")).unwrap_or_default();
        faults::of(&lines, call)
    }

    /// The directory of a volume, made if need be. Ids are hexadecimal or words; nothing else is one.
    pub fn volume(&self, id: &str) -> io::Result<PathBuf> {
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '-';
        if id.is_empty() || !id.chars().all(plain) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let path = self.dir.join("volumes").join(id);
        fs::create_dir_all(&path)?;
        Ok(path)
    }

    /// Removes a volume and its size.
    pub fn remove(&self, id: &str) -> io::Result<()> {
        let path = self.volume(id)?;
        match fs::remove_file(path.with_extension("size")) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        fs::remove_dir_all(path)
    }

    /// Notes the size of a volume.
    pub fn resize(&self, id: &str, bytes: i64) -> io::Result<()> {
        fs::write(self.volume(id)?.with_extension("size"), bytes.to_string())
    }

    /// The size of a volume, 1 MiB when nothing is noted; and what is in it.
    pub fn size(&self, id: &str) -> io::Result<(i64, i64)> {
        let path = self.volume(id)?;
        let noted = fs::read_to_string(path.with_extension("size")).unwrap_or_default();
        let mut used = 0;
        for entry in fs::read_dir(&path)? {
            used += i64::try_from(entry?.metadata()?.len()).unwrap_or(i64::MAX);
        }
        Ok((noted.parse().unwrap_or(1 << 20), used))
    }
}
