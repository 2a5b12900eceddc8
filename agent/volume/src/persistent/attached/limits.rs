//! What a volume may say of its disk. Each portal becomes programs, all of it arguments of programs of root, and part of a record and of the
//! Node's `volumesInUse`; names of disks and targets become part of patterns.

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
    /// A text is no name of its kind.
    #[error("{field}: Invalid value: {value:?}: {expected}")]
    Invalid {
        /// Its path in the volume.
        field: &'static str,
        /// The text.
        value: String,
        /// What it has to be.
        expected: &'static str,
    },
}

impl DiskFieldError {
    pub(super) fn invalid(field: &'static str, value: &str, expected: &'static str) -> Self {
        Self::Invalid { field, value: value.to_owned(), expected }
    }
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

/// Checks a list of world wide names or identifiers.
pub(super) fn check_world_wide_names(
    field: &'static str,
    names: &[String],
) -> Result<(), DiskFieldError> {
    const EXPECTED: &str = "must consist of alphanumeric characters, '-', '_', '.', ':' or spaces";
    check_list(field, names)?;
    let is_allowed = |c: char| is_name_character(c) || c == ' ';
    let invalid = names.iter().find(|name| !name.chars().all(is_allowed));
    invalid.map_or(Ok(()), |name| Err(DiskFieldError::invalid(field, name, EXPECTED)))
}

/// Checks the name of a target or of an initiator. Targets may have names of letters of any language.
pub(super) fn check_target(field: &'static str, name: &str) -> Result<(), DiskFieldError> {
    const EXPECTED: &str = "must be an iSCSI name: no spaces, control characters or any of ',;*&$|/\\', and no '-' at its beginning";
    check_text(field, name)?;
    let is_allowed = |c: char| !c.is_whitespace() && !c.is_control() && !",;*&$|/\\".contains(c);
    let is_name = !name.starts_with('-') && name.chars().all(is_allowed);
    if is_name { Ok(()) } else { Err(DiskFieldError::invalid(field, name, EXPECTED)) }
}

/// Checks the name of an interface of iscsiadm. `reserved` is the prefix of those that the agent makes.
pub(super) fn check_interface(
    field: &'static str,
    name: &str,
    reserved: &str,
) -> Result<(), DiskFieldError> {
    const EXPECTED: &str = "must consist of alphanumeric characters, '-', '_', '.' or ':', and must begin with neither '-' nor 'volume-'";
    check_text(field, name)?;
    let is_reserved = name.starts_with('-') || name.starts_with(reserved);
    let is_name = !is_reserved && name.chars().all(is_name_character);
    if is_name { Ok(()) } else { Err(DiskFieldError::invalid(field, name, EXPECTED)) }
}

fn is_name_character(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | ':')
}
