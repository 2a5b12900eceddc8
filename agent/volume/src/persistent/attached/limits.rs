//! Bounds on what a volume says of its disk. Each portal becomes programs, and all of it becomes part of a record and of the Node's
//! `volumesInUse`.

/// Most entries of a list of portals or world wide names.
const ENTRIES_MAX: usize = 64;
/// Longest text in bytes: more than a domain name with a port, or the name of a target.
const TEXT_LEN_MAX: usize = 320;

/// Why a disk is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DiskFieldError {
    /// A list is too long.
    #[error("{field} has {count} entries, at most {ENTRIES_MAX} are supported")]
    TooMany {
        /// Its path in the volume.
        field: &'static str,
        /// Its length.
        count: usize,
    },
    /// A text is too long.
    #[error("{field} has {len} bytes, at most {TEXT_LEN_MAX} are supported")]
    TooLong {
        /// Its path in the volume.
        field: &'static str,
        /// Its length.
        len: usize,
    },
}

/// Checks a list and its entries.
pub(super) fn check_list(field: &'static str, entries: &[String]) -> Result<(), DiskFieldError> {
    if entries.len() > ENTRIES_MAX {
        return Err(DiskFieldError::TooMany { field, count: entries.len() });
    }
    entries.iter().try_for_each(|entry| check_text(field, entry))
}

/// Refuses what is longer than a name of a portal or target can be.
pub(super) fn check_text(field: &'static str, text: &str) -> Result<(), DiskFieldError> {
    let len = text.len();
    if len > TEXT_LEN_MAX { Err(DiskFieldError::TooLong { field, len }) } else { Ok(()) }
}
