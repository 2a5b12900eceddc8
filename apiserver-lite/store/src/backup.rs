//! Backups: all records at one revision in one file, which [`restore`](crate::restore) makes a store of.
//!
//! ```text
//!   file     "orchback"  version u32  profile text  domain text  format u32  revision u64  record*  end  sha256 of all before it
//!   record   1 u8  created u64  modified u64  key text  value text      keys rise
//!   end      0 u8  number of records u64
//!   text     length u32  bytes
//! ```
//!
//! All numbers are little-endian. Values are as on disk, encrypted where the store encrypts. The file has mode 0600 from its creation on, and its name
//! once it is complete and durable.

use std::{
    fs::{self, File},
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
};

use bytes::Bytes;
use data_encoding::HEXLOWER;
use proto_daemon::private_files;
use ring::digest::{Context, SHA256};

use crate::{
    Entry, Form, Record, Revision, StoreIdentity, TransformError, format::StoreFormat,
    transform::StoredForms,
};

pub const MAGIC: &[u8; 8] = b"orchback";
/// Version of the file's layout.
pub const VERSION: u32 = 1;
pub const RECORD: u8 = 1;
pub const END: u8 = 0;

/// The stored form of a record for a backup.
pub enum BackupValue {
    /// The record's bytes; they are transformed as a write would be.
    Value(Bytes),
    /// The bytes as they were read from disk, of a record that is [unreadable](crate::Record::unreadable).
    AsOnDisk(Bytes),
}

/// A complete backup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackupSummary {
    /// The file.
    pub path: PathBuf,
    /// The revision of its records.
    pub revision: Revision,
    /// Their number.
    pub records: u64,
    /// How many of them are not in clear text.
    pub transformed: u64,
    /// SHA-256 of the file's content but for its last 32 bytes, which are the same sum; hexadecimal.
    pub sha256: String,
}

/// Why there is no backup, or why one is not restored.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    /// A file or directory cannot be read or written.
    #[error("cannot read or write {path}")]
    File {
        /// The file or directory.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// A value cannot be transformed.
    #[error("cannot back up {key}")]
    Transform {
        key: String,
        /// What the transform said.
        source: TransformError,
    },
    /// The file is no whole backup.
    #[error("{path} is not a complete backup: {found}. Nothing was restored; use another copy")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What does not fit.
        found: String,
    },
    /// The backup was made by a newer program.
    #[error(
        "backup {path} has version {found}, this program reads {known}: restore it with the version that wrote it, or a newer one"
    )]
    Version {
        /// The file.
        path: PathBuf,
        /// Its version, or the format of its store.
        found: u32,
        /// The newest known one.
        known: u32,
    },
    /// The backup is of a store of another naming profile or domain.
    #[error(
        "backup has {what} {found:?}, this server has {expected:?}: restore it with the {what} of the backup"
    )]
    Identity {
        /// `profile` or `domain`.
        what: &'static str,
        /// What the backup says.
        found: String,
        /// What the server is.
        expected: String,
    },
    /// A store or something else is there already.
    #[error(
        "{path} is not empty: a backup is restored into an empty directory only. Move the old store away first"
    )]
    NotEmpty {
        /// The directory.
        path: PathBuf,
    },
    /// The store cannot be made.
    #[error("cannot create the store")]
    Store(#[from] crate::OpenError),
}

/// Writes a backup of `entries`, which are in ascending order of key.
pub fn write<T: Record>(
    path: &Path,
    identity: &StoreIdentity,
    forms: &StoredForms,
    revision: Revision,
    entries: &[Entry<T>],
    value: impl Fn(&T) -> BackupValue,
) -> Result<BackupSummary, BackupError> {
    let failed = |source| BackupError::File { path: path.to_owned(), source };
    if path.symlink_metadata().is_ok() {
        return Err(failed(io::ErrorKind::AlreadyExists.into()));
    }
    let unfinished = private_files::unfinished_path(path);
    let file = private_files::create_private(&unfinished).map_err(failed)?;
    let written = write_file(file, identity, forms, revision, entries, value);
    let (transformed, sha256) = written
        .and_then(|done| {
            fs::rename(&unfinished, path).map_err(WriteFileError::Io)?;
            Ok(done)
        })
        .map_err(|error| {
            let _ = fs::remove_file(&unfinished);
            match error {
                WriteFileError::Io(source) => failed(source),
                WriteFileError::Transform(error) => error,
            }
        })?;
    let directory = path.parent().filter(|directory| !directory.as_os_str().is_empty());
    let directory = directory.unwrap_or(Path::new("."));
    File::open(directory).and_then(|directory| directory.sync_all()).map_err(failed)?;
    let records = entries.len() as u64;
    Ok(BackupSummary { path: path.to_owned(), revision, records, transformed, sha256 })
}

enum WriteFileError {
    Io(io::Error),
    Transform(BackupError),
}

impl From<io::Error> for WriteFileError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// Writes the whole content; returns the number of transformed values and the checksum.
fn write_file<T: Record>(
    file: File,
    identity: &StoreIdentity,
    forms: &StoredForms,
    revision: Revision,
    entries: &[Entry<T>],
    value: impl Fn(&T) -> BackupValue,
) -> Result<(u64, String), WriteFileError> {
    let mut out = Summed { out: BufWriter::new(file), sum: Context::new(&SHA256) };
    // Without a transform the store may have values that were transformed when there was one.
    let has_unreadable = entries.iter().any(|entry| !entry.record.is_readable());
    let format = StoreFormat::of_backup(forms.transform().is_some() || has_unreadable);
    out.write_all(MAGIC)?;
    out.write_all(&VERSION.to_le_bytes())?;
    write_text(&mut out, identity.profile.as_bytes())?;
    write_text(&mut out, identity.domain.as_bytes())?;
    out.write_all(&u32::from(format as u8).to_le_bytes())?;
    out.write_all(&revision.0.to_le_bytes())?;
    let mut transformed = 0;
    for Entry { key, stamp, record } in entries {
        let (bytes, form) =
            encode_stored(key, value(record), forms).map_err(WriteFileError::Transform)?;
        transformed = u64::saturating_add(transformed, u64::from(form != Form::AS_IS));
        out.write_all(&[RECORD])?;
        out.write_all(&stamp.created.0.to_le_bytes())?;
        out.write_all(&stamp.modified.0.to_le_bytes())?;
        write_text(&mut out, key.as_bytes())?;
        write_text(&mut out, &bytes)?;
    }
    out.write_all(&[END])?;
    out.write_all(&(entries.len() as u64).to_le_bytes())?;
    let Summed { mut out, sum } = out;
    let sum = sum.finish();
    out.write_all(sum.as_ref())?;
    out.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()?;
    Ok((transformed, HEXLOWER.encode(sum.as_ref())))
}

fn encode_stored(
    key: &str,
    value: BackupValue,
    forms: &StoredForms,
) -> Result<(Bytes, Form), BackupError> {
    match (value, forms.transform()) {
        (BackupValue::AsOnDisk(bytes), _) => Ok((bytes, Form::UNREADABLE)),
        (BackupValue::Value(bytes), None) => Ok((bytes, Form::AS_IS)),
        (BackupValue::Value(bytes), Some(transform)) => transform
            .encode_stored(key, bytes)
            .map_err(|source| BackupError::Transform { key: key.to_owned(), source }),
    }
}

fn write_text(out: &mut impl Write, text: &[u8]) -> io::Result<()> {
    let len = u32::try_from(text.len())
        .map_err(|_| io::Error::new(io::ErrorKind::FileTooLarge, "a value is too long"))?;
    out.write_all(&len.to_le_bytes())?;
    out.write_all(text)
}

/// Sums what is written.
struct Summed<W> {
    out: W,
    sum: Context,
}

impl<W: Write> Write for Summed<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let len = self.out.write(bytes)?;
        self.sum.update(bytes.get(..len).unwrap_or_default());
        Ok(len)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}
