//! The files of one rotated log, oldest first: `0.log.20240102-150405.gz`, `0.log.20240102-160405`,
//! and `0.log`, the current one. A reader goes through them without gaps.

use std::collections::BTreeSet;
use std::io::{self, BufReader, ErrorKind, Read};
use std::path::{Path, PathBuf};

use flate2::bufread::MultiGzDecoder;
use proto_daemon::blocking_shares::{self, WorkOwner};
use proto_daemon::panics;
use tokio::fs::File;
use tokio::io::AsyncReadExt;

use crate::log_files::{self, LogDirectory};

/// Bytes read at a time.
pub const BLOCK: usize = 64 << 10;
/// Bytes of a compressed file read at a time: gigabytes of it may have no content.
const PACKED_MAX: usize = 256 << 10;

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
    Compressed(CompressedFile),
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
            Content::Compressed(file) => {
                *block = file.read().await?;
                Ok(block.len())
            }
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
        Ok(file) => Ok(Some(Content::Compressed(CompressedFile::open(path, file).await?))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// A compressed file. Each piece is decompressed when the reader wants it, in the share of the pod's logs; between two pieces it has no
/// thread, however long its reader pauses.
struct CompressedFile {
    owner: WorkOwner,
    /// `None` while a piece is decompressed.
    unpacker: Option<Box<Unpacker<std::fs::File>>>,
}

impl CompressedFile {
    async fn open(log: &Path, file: std::fs::File) -> io::Result<Self> {
        let owner = share_of(log);
        let opened = move || Box::new(Unpacker::new(file));
        let unpacker = blocking_shares::run(owner.clone(), opened).await;
        Ok(Self { owner, unpacker: Some(unpacker.map_err(io::Error::other)?) })
    }

    /// The next piece; empty at the end.
    async fn read(&mut self) -> io::Result<Vec<u8>> {
        loop {
            let mut unpacker = self.unpacker.take().ok_or_else(|| {
                io::Error::new(ErrorKind::BrokenPipe, "an earlier read of the file was given up")
            })?;
            let unpacked = blocking_shares::run(self.owner.clone(), move || {
                let piece = unpacker.piece();
                (unpacker, piece)
            });
            let (unpacker, piece) = unpacked.await.map_err(io::Error::other)?;
            self.unpacker = Some(unpacker);
            if let Some(piece) = piece? {
                return Ok(piece);
            }
        }
    }
}

/// The owner of the logs of a pod, by its directory `<namespace>_<name>_<uid>`.
fn share_of(log: &Path) -> WorkOwner {
    let directory = log.parent().and_then(Path::parent).and_then(Path::file_name);
    let name = directory.unwrap_or_default().to_string_lossy().into_owned();
    let namespace = name.split('_').next().unwrap_or_default();
    WorkOwner { group: format!("{namespace} (logs)"), name }
}

/// Decompresses a file piece by piece.
struct Unpacker<R> {
    content: MultiGzDecoder<BufReader<Metered<R>>>,
    /// An error after the last piece.
    failed: Option<io::Error>,
}

impl<R: Read> Unpacker<R> {
    fn new(file: R) -> Self {
        let content = MultiGzDecoder::new(BufReader::new(Metered { file, left: PACKED_MAX }));
        Self { content, failed: None }
    }

    /// The next block of content, shorter or `None` if the next [`PACKED_MAX`] bytes of the file have less, and empty at the end.
    fn piece(&mut self) -> io::Result<Option<Vec<u8>>> {
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        self.content.get_mut().get_mut().left = PACKED_MAX;
        let mut block = vec![0; BLOCK];
        let (mut len, mut at_end) = (0, false);
        while let Some(rest) = block.get_mut(len..).filter(|rest| !rest.is_empty()) {
            match self.content.read(rest) {
                Ok(0) => {
                    at_end = true;
                    break;
                }
                Ok(more) => len = len.saturating_add(more),
                Err(error) if is_pause(&error) => break,
                Err(error) if len == 0 => return Err(error),
                Err(error) => {
                    self.failed = Some(error);
                    break;
                }
            }
        }
        block.truncate(len);
        Ok((len > 0 || at_end).then_some(block))
    }
}

/// A file of which a number of bytes may be read; then reading would block, and the decoder continues later.
struct Metered<R> {
    file: R,
    left: usize,
}

impl<R: Read> Read for Metered<R> {
    fn read(&mut self, block: &mut [u8]) -> io::Result<usize> {
        if self.left == 0 && !block.is_empty() {
            return Err(ErrorKind::WouldBlock.into());
        }
        let len = block.len().min(self.left);
        let read = self.file.read(block.get_mut(..len).unwrap_or_default())?;
        self.left = self.left.saturating_sub(read);
        Ok(read)
    }
}

/// Whether the decoder stopped at the bound of [`Metered`]; a regular file never blocks.
fn is_pause(error: &io::Error) -> bool {
    error.kind() == ErrorKind::WouldBlock
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

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

    fn packed(content: &[u8]) -> Vec<u8> {
        let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        packer.write_all(content).expect("packed");
        packer.finish().expect("packed")
    }

    /// Compressed files without content, one after another and without end.
    struct Empty {
        member: Vec<u8>,
        len_read: usize,
    }

    impl Read for Empty {
        fn read(&mut self, block: &mut [u8]) -> io::Result<usize> {
            for byte in block.iter_mut() {
                *byte = self.member[self.len_read % self.member.len()];
                self.len_read += 1;
            }
            assert!(self.len_read <= 4 * PACKED_MAX, "more than a few pieces need");
            Ok(block.len())
        }
    }

    #[test]
    fn a_compressed_file_without_content_is_read_while_its_reader_is_there() {
        let mut unpacker = Unpacker::new(Empty { member: packed(b""), len_read: 0 });
        for _ in 0..3 {
            assert!(unpacker.piece().expect("read").is_none());
        }
    }

    /// Content that compresses to more than a piece, in several members, some empty.
    fn content() -> Vec<u8> {
        let mut seed = 1_u32;
        let mut random = || {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (seed >> 24) as u8
        };
        (0..3 * PACKED_MAX + 17).map(|_| random()).collect()
    }

    fn file_of(content: &[u8]) -> Vec<u8> {
        let members = content.chunks(PACKED_MAX - 10);
        members.flat_map(|member| [packed(b""), packed(member)].concat()).collect()
    }

    #[test]
    fn pieces_give_the_whole_content_and_an_error_comes_after_what_precedes_it() {
        let content = content();
        let whole = file_of(&content);
        let all = |file: &[u8]| {
            let (mut unpacker, mut all) = (Unpacker::new(file), Vec::new());
            loop {
                match unpacker.piece() {
                    Ok(Some(piece)) if piece.is_empty() => return (all, None),
                    Ok(piece) => all.extend(piece.unwrap_or_default()),
                    Err(error) => return (all, Some(error.kind())),
                }
            }
        };
        assert!(all(&whole) == (content.clone(), None));
        let (part, failed) = all(&whole[..whole.len() - 9]);
        assert!(content.starts_with(&part) && part.len() > content.len() - BLOCK);
        assert_eq!(failed, Some(ErrorKind::UnexpectedEof));
    }

    /// As many readers as there are threads have read a piece and pause.
    #[test]
    fn readers_that_pause_hold_no_threads() {
        const THREADS: usize = 2;
        let root = tempfile::tempdir().expect("tempdir");
        let at = root.path().join("ns_web_u/c");
        std::fs::create_dir_all(&at).expect("made");
        let content = content();
        std::fs::write(at.join("0.log.20240102-150405.gz"), file_of(&content)).expect("written");
        std::fs::write(at.join("0.log"), "").expect("written");
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().max_blocking_threads(THREADS).build().expect("runtime");
        runtime.block_on(async {
            let (mut readers, mut block) = (Vec::new(), Vec::new());
            for _ in 0..THREADS {
                let mut part = Part::after(at.join("0.log"), None).await.expect("opened");
                assert!(part.plain().is_none(), "the oldest file is compressed");
                assert!(part.read(&mut block).await.expect("read") > 0);
                readers.push(part);
            }
            let other = tokio::task::spawn_blocking(|| 7);
            let other = tokio::time::timeout(std::time::Duration::from_secs(60), other).await;
            assert_eq!(other.expect("a thread is free").expect("joined"), 7);
            let mut read = block.clone();
            let mut last = readers.pop().expect("a reader");
            while last.read(&mut block).await.expect("read") > 0 {
                read.extend_from_slice(&block);
            }
            assert!(read == content, "it goes on where it paused");
        });
        // A thread that waits for a reader would keep the runtime from ending.
        runtime.shutdown_background();
    }
}
