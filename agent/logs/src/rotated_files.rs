//! The files of one rotated log, oldest first: `0.log.20240102-150405.gz`, `0.log.20240102-160405`,
//! and `0.log`, the current one. A reader goes through them without gaps.

use std::collections::BTreeSet;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use flate2::read::MultiGzDecoder;
use proto_daemon::panics;
use tokio::fs::File;
use tokio::io::AsyncReadExt;
use tokio::sync::mpsc;

use crate::log_files::{self, LogDirectory};

/// Bytes read at a time.
pub const BLOCK: usize = 64 << 10;
/// Decompressed blocks that may wait for a slow reader.
const PIECES_MAX: usize = 2;

/// The time of a rotation, from the file name; sorts by time.
pub type Stamp = String;

/// The stamp in the name of a rotated file of `log`, compressed or not; `None` for every other name.
pub fn stamp_of(log: &str, name: &str) -> Option<Stamp> {
    let rest = name.strip_prefix(log)?.strip_prefix('.')?;
    let stamp = rest.strip_suffix(".gz").unwrap_or(rest);
    let digits =
        |text: &str, len| text.len() == len && text.bytes().all(|byte| byte.is_ascii_digit());
    let (day, time) = stamp.split_once('-')?;
    (digits(day, 8) && digits(time, 6)).then(|| stamp.to_owned())
}

/// Whether the current file exists, and the timestamps of the rotated ones.
fn list_directory(path: &Path) -> io::Result<(bool, BTreeSet<Stamp>)> {
    let (directory, log) = log_files::split(path)?;
    let names = match LogDirectory::open(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        opened => opened?.names()?,
    };
    let there = names.iter().any(|name| name == log);
    Ok((there, names.iter().filter_map(|name| stamp_of(log, name)).collect()))
}

/// Opens a file of a log; does not block and follows no link.
async fn open(path: PathBuf) -> io::Result<std::fs::File> {
    let opened = panics::spawn_blocking(move || log_files::read(&path)).await;
    opened.map_err(io::Error::other)?
}

/// One file of a log, open for reading.
pub struct Part {
    content: Content,
    path: PathBuf,
    /// The newest file older than this one, by which this one is found after its rotation.
    after: Option<Stamp>,
}

enum Content {
    Plain(File),
    Compressed(mpsc::Receiver<io::Result<Vec<u8>>>),
}

impl Part {
    /// The current file; between its rotation and the creation of its successor, the rotated one.
    pub async fn current(path: PathBuf) -> io::Result<Self> {
        let (there, known) = list_directory_async(path.clone()).await?;
        let mut newest_first = known.into_iter().rev();
        let after = if there { newest_first.next() } else { newest_first.nth(1) };
        Self::after(path, after).await
    }

    /// The oldest file newer than `after`.
    async fn after(path: PathBuf, after: Option<Stamp>) -> io::Result<Self> {
        loop {
            match later(&path, after.as_ref()).await?.into_iter().next() {
                Some(stamp) => {
                    // It may be compressed or removed before it is opened: list again.
                    if let Some(content) = rotated(&path, &stamp).await? {
                        return Ok(Self { content, path, after });
                    }
                }
                None => {
                    let file = File::from_std(open(path.clone()).await?);
                    if later(&path, after.as_ref()).await?.is_empty() {
                        return Ok(Self { content: Content::Plain(file), path, after });
                    }
                }
            }
        }
    }

    /// The file before this one if it is not compressed; the newest rotated file never is.
    pub async fn predecessor(&self) -> io::Result<Option<Self>> {
        let Some(stamp) = &self.after else { return Ok(None) };
        let (_, known) = list_directory_async(self.path.clone()).await?;
        let after = known.range(..stamp.clone()).next_back().cloned();
        let content = rotated(&self.path, stamp).await?;
        let plain = content.filter(|content| matches!(content, Content::Plain(_)));
        Ok(plain.map(|content| Self { content, path: self.path.clone(), after }))
    }

    /// Reads the next block; 0 at the present end.
    pub async fn read(&mut self, block: &mut Vec<u8>) -> io::Result<usize> {
        match &mut self.content {
            Content::Plain(file) => {
                block.resize(BLOCK, 0);
                file.read(block).await
            }
            Content::Compressed(pieces) => match pieces.recv().await {
                None => Ok(0),
                Some(piece) => {
                    *block = piece?;
                    Ok(block.len())
                }
            },
        }
    }

    /// The uncompressed file, for seeking.
    pub fn plain(&mut self) -> Option<&mut File> {
        match &mut self.content {
            Content::Plain(file) => Some(file),
            Content::Compressed(_) => None,
        }
    }

    /// Whether a newer file exists, so that this one is no longer written, or will not be shortly.
    pub async fn has_successor(&self) -> bool {
        let Ok((there, known)) = list_directory_async(self.path.clone()).await else {
            return false;
        };
        let newer =
            known.into_iter().filter(|stamp| self.after.as_ref().is_none_or(|after| stamp > after));
        match newer.count() {
            0 => false,
            1 => there,
            _ => true,
        }
    }

    /// The file after this one, once [`Part::has_successor`].
    pub async fn successor(&self) -> io::Result<Self> {
        let this = later(&self.path, self.after.as_ref()).await?.into_iter().next();
        Self::after(self.path.clone(), this.or(self.after.clone())).await
    }
}

async fn list_directory_async(path: PathBuf) -> io::Result<(bool, BTreeSet<Stamp>)> {
    panics::spawn_blocking(move || list_directory(&path)).await.map_err(io::Error::other)?
}

async fn later(path: &Path, after: Option<&Stamp>) -> io::Result<BTreeSet<Stamp>> {
    let (_, mut known) = list_directory_async(path.to_owned()).await?;
    known.retain(|stamp| after.is_none_or(|after| stamp > after));
    Ok(known)
}

/// A rotated file, compressed or not; `None` if it does not exist.
async fn rotated(path: &Path, stamp: &str) -> io::Result<Option<Content>> {
    let named = |end: &str| PathBuf::from(format!("{}.{stamp}{end}", path.display()));
    match open(named("")).await {
        Ok(file) => return Ok(Some(Content::Plain(File::from_std(file)))),
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Err(_) => {}
    }
    match open(named(".gz")).await {
        Ok(file) => Ok(Some(Content::Compressed(unpack(file)))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Decompresses on a separate thread, no further ahead than the bound.
fn unpack(file: std::fs::File) -> mpsc::Receiver<io::Result<Vec<u8>>> {
    let (to, pieces) = mpsc::channel(PIECES_MAX);
    panics::spawn_blocking(move || unpack_to(file, &to));
    pieces
}

fn unpack_to(file: impl Read, to: &mpsc::Sender<io::Result<Vec<u8>>>) {
    let mut content = MultiGzDecoder::new(io::BufReader::new(WhileWanted { file, to }));
    loop {
        let mut block = vec![0; BLOCK];
        let piece = match content.read(&mut block) {
            Ok(0) => return,
            Ok(len) => {
                block.truncate(len);
                Ok(block)
            }
            Err(error) => Err(error),
        };
        let failed = piece.is_err();
        if to.blocking_send(piece).is_err() || failed {
            return;
        }
    }
}

/// A file that can be read while its reader is there: a compressed file of gigabytes may have no
/// content.
struct WhileWanted<'a, R> {
    file: R,
    to: &'a mpsc::Sender<io::Result<Vec<u8>>>,
}

impl<R: Read> Read for WhileWanted<'_, R> {
    fn read(&mut self, block: &mut [u8]) -> io::Result<usize> {
        if self.to.is_closed() {
            return Err(io::Error::new(io::ErrorKind::BrokenPipe, "the reader has gone"));
        }
        self.file.read(block)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_rotated_files_of_the_log_have_stamps() {
        let stamp = |name| stamp_of("0.log", name);
        assert_eq!(stamp("0.log.20240102-150405").as_deref(), Some("20240102-150405"));
        assert_eq!(stamp("0.log.20240102-150405.gz").as_deref(), Some("20240102-150405"));
        for other in [
            "0.log",
            "0.log.20240102-150405.tmp",
            "0.log.1",
            "10.log.20240102-150405",
            "0.log.2024010a-150405",
        ] {
            assert_eq!(stamp(other), None, "{other}");
        }
    }

    /// Compressed files without content, one after another and without end.
    struct Empty<'a> {
        member: Vec<u8>,
        reads: &'a mut usize,
        gone_after: (usize, Option<mpsc::Receiver<io::Result<Vec<u8>>>>),
    }

    impl Read for Empty<'_> {
        fn read(&mut self, block: &mut [u8]) -> io::Result<usize> {
            *self.reads += 1;
            assert!(*self.reads <= self.gone_after.0, "read on after the reader has gone");
            if *self.reads == self.gone_after.0 {
                self.gone_after.1 = None;
            }
            let mut filled = 0;
            for part in block.chunks_exact_mut(self.member.len()) {
                part.copy_from_slice(&self.member);
                filled += self.member.len();
            }
            Ok(filled)
        }
    }

    #[test]
    fn a_compressed_file_without_content_is_read_while_its_reader_is_there() {
        let packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        let member = packed.finish().expect("packed");
        let (to, pieces) = mpsc::channel(1);
        let mut reads = 0;
        unpack_to(Empty { member, reads: &mut reads, gone_after: (9, Some(pieces)) }, &to);
        assert_eq!(reads, 9);
    }
}
