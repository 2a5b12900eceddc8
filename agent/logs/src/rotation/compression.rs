//! Compresses rotated log files, within a length and a time.

use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use flate2::Compression;
use flate2::write::GzEncoder;
use futures_util::StreamExt as _;
use proto_daemon::exit::chain;

use super::{KeepError, Limits, Log, PARALLEL_MAX, RotationStep, off_thread};
use crate::log_files::LogDirectory;
use crate::rotated_files::BLOCK;

/// Longest file that is compressed, in multiples of the size at which a log is rotated: what a
/// container can write between two passes. A longer one stays as it is until its removal.
const SIZES_MAX: u64 = 100;
/// Permission bits that a compressed log takes from its source, so that log collectors can read it.
const RIGHTS: u32 = 0o644;

/// A rotated file that is not compressed yet.
#[derive(Debug)]
pub struct RotatedFile {
    /// Path of the directory, for messages.
    path: PathBuf,
    directory: Arc<LogDirectory>,
    name: String,
    len: u64,
}

impl RotatedFile {
    /// A file of a log's directory.
    pub fn new(log: &Log, name: String) -> Self {
        let entry = log.entries.iter().find(|entry| entry.name == name);
        let len = entry.and_then(|entry| entry.len).unwrap_or(0);
        Self { path: log.path.clone(), directory: log.directory.clone(), name, len }
    }
}

/// Compresses files, short ones first, until a moment. A file that is too long, cannot be compressed
/// or for which no time is left stays uncompressed at least until its log is rotated again.
pub async fn compress_all(mut files: Vec<RotatedFile>, limits: Limits, until: Instant) {
    let len_max = limits.size.saturating_mul(SIZES_MAX);
    files.sort_by_key(|file| file.len);
    let all = files.len();
    let compressions = files.into_iter().map(|file| async move {
        if Instant::now() >= until {
            return false;
        }
        let (directory, name) = (file.directory.clone(), file.name.clone());
        let done = off_thread(move || compress(&directory, &name, len_max, until)).await;
        if let Err(error) = done {
            // A full disk does not prevent rotation.
            let step = RotationStep::Compress(file.name);
            let failed = KeepError::Step { directory: file.path, step, error };
            tracing::warn!(
                error = chain(&failed),
                "cannot compress a rotated log; it stays uncompressed until the next rotation"
            );
        }
        true
    });
    let begun = futures_util::stream::iter(compressions)
        .buffer_unordered(PARALLEL_MAX)
        .filter(|is_begun| std::future::ready(*is_begun))
        .count()
        .await;
    if begun < all {
        tracing::warn!(
            count = all.saturating_sub(begun),
            "no time was left to compress rotated logs; they stay uncompressed until the next rotation"
        );
    }
}

/// Creates `<name>.gz` atomically and removes `name`.
fn compress(directory: &LogDirectory, name: &str, len_max: u64, until: Instant) -> io::Result<()> {
    let (cut, whole) = (format!("{name}.tmp"), format!("{name}.gz"));
    let mut plain = directory.read(name)?;
    let metadata = plain.metadata()?;
    if metadata.len() > len_max {
        let why = format!("its length of {} bytes exceeds {len_max}", metadata.len());
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, why));
    }
    let rights = metadata.permissions().mode() & RIGHTS;
    let made = directory.create(&cut)?;
    let packed = (|| {
        let mut packed = GzEncoder::new(io::BufWriter::new(made), Compression::default());
        let mut block = vec![0; BLOCK];
        // It may grow meanwhile.
        let mut left = len_max;
        loop {
            let len = plain.read(&mut block)?;
            if len == 0 {
                break;
            }
            left = left.checked_sub(len as u64).ok_or(io::ErrorKind::FileTooLarge)?;
            if Instant::now() >= until {
                return Err(io::ErrorKind::TimedOut.into());
            }
            packed.write_all(block.get(..len).unwrap_or_default())?;
        }
        let file = packed.finish()?.into_inner().map_err(io::IntoInnerError::into_error)?;
        file.set_permissions(std::fs::Permissions::from_mode(rights))?;
        file.sync_all()?;
        directory.replace(&cut, &whole)
    })();
    if packed.is_err() {
        // If this fails, the next pass removes it.
        let _ = directory.remove(&cut);
        return packed;
    }
    directory.remove(name)
}
