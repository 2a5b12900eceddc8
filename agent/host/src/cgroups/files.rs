//! Files and directories of a cgroup hierarchy.

use std::io::ErrorKind;
use std::path::Path;

use super::{CgroupError, Removal};

pub(super) fn make(directory: &Path) -> Result<(), CgroupError> {
    std::fs::create_dir_all(directory)
        .map_err(|source| CgroupError::Make { path: directory.into(), source })
}

/// Writes a value unless it is set already: setting a limit again has a cost and may be refused while it is exceeded.
pub(super) fn write(file: &Path, value: &str) -> Result<(), CgroupError> {
    if read_value(file).is_some_and(|there| there == value) {
        return Ok(());
    }
    std::fs::write(file, value).map_err(|source| CgroupError::Set {
        path: file.into(),
        value: value.into(),
        source,
    })
}

pub(super) fn read_value(file: &Path) -> Option<String> {
    std::fs::read_to_string(file).ok().map(|text| text.trim_end().to_owned())
}

pub(super) fn read_number(file: &Path) -> Option<u64> {
    read_value(file)?.parse().ok()
}

pub(super) fn exists(directory: &Path) -> bool {
    directory.is_dir()
}

/// Names of the directories in a directory.
pub(super) fn list(directory: &Path) -> std::io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_type()?.is_dir()
            && let Ok(name) = entry.file_name().into_string()
        {
            names.push(name);
        }
    }
    Ok(names)
}

/// Names of the files in a directory; empty if it cannot be read.
pub(super) fn names(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

/// Removes a cgroup directory; the kernel's files in it disappear with it.
pub(super) fn remove_directory(directory: &Path) -> std::io::Result<Removal> {
    match std::fs::remove_dir(directory) {
        Ok(()) => Ok(Removal::Gone),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Removal::Gone),
        Err(error) if error.kind() == ErrorKind::ResourceBusy => Ok(Removal::Busy),
        Err(error) => Err(error),
    }
}
