//! The log: what makes a write durable. An append and one sync per batch, nothing else on the way.
//!
//! A log is a sequence of segment files named by the revision of their first write. A segment is a header
//! and frames; a frame is what one commit wrote, whole or not at all:
//!
//! ```text
//!   segment  "orchlog1"  first revision u64   frame*   zeros
//!   frame    length u32  crc32 u32  payload              length of the payload; crc over it
//!   payload  change*                                     revisions rise by one, across frames too
//!   change   created u64  modified u64  key length u32  value length u32  key  value
//! ```
//!
//! All numbers are little-endian; a value length of `u32::MAX` says that the key was removed. Space is
//! filled with zeros ahead of the writes: syncing a write into blocks that exist takes about half as long
//! as one that also has to make the blocks and the file length durable (measured on ext4, 140 us to 260 us).
//! A frame that is not whole is the end of the log: it was never acknowledged.

use std::{
    fs::{File, OpenOptions},
    io::{self, BufReader, Read, Seek, SeekFrom},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use bytes::Bytes;

use crate::{Revision, Stamp};

const MAGIC: &[u8; 8] = b"orchlog1";
const SEGMENT_HEADER_LEN: u64 = 16;
const FRAME_HEADER_LEN: usize = 8;
const CHANGE_HEADER_LEN: usize = 24;
const REMOVED: u32 = u32::MAX;

/// How far ahead of the writes a segment is filled with zeros.
const FILL_LEN: u64 = 256 << 10;

/// A longer frame cannot have been written: batches are bounded in count, and keys and values in length.
const FRAME_LEN_MAX: usize = 1 << 30;

/// One record written or removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    pub key: Arc<str>,
    pub stamp: Stamp,
    /// `None` removes the key.
    pub value: Option<Bytes>,
}

// === Writing ===

/// Where frames go. The seam at which tests let a write or a sync fail.
pub trait LogFile: Send {
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;
    fn cut(&self, len: u64) -> io::Result<()>;
    fn sync(&self) -> io::Result<()>;
}

impl LogFile for File {
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.write_all_at(bytes, offset)
    }

    fn cut(&self, len: u64) -> io::Result<()> {
        self.set_len(len)
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_data()
    }
}

/// The segment that is being written.
pub struct Segment {
    pub path: PathBuf,
    file: Box<dyn LogFile>,
    /// End of the last frame.
    end: u64,
    /// End of the zeros ahead of it.
    filled: u64,
    frame: Vec<u8>,
}

impl Segment {
    /// Creates the segment whose first write will be `first`, and makes its existence durable.
    pub fn create(directory: &Path, first: Revision) -> io::Result<Self> {
        let path = directory.join(segment_name(first));
        let file = File::create(&path)?;
        let mut header = Vec::with_capacity(FILL_LEN as usize);
        header.extend_from_slice(MAGIC);
        header.extend_from_slice(&first.0.to_le_bytes());
        header.resize(FILL_LEN as usize, 0);
        file.write_all_at(&header, 0)?;
        file.sync_all()?;
        File::open(directory)?.sync_all()?;
        Ok(Self::over(path, Box::new(file), SEGMENT_HEADER_LEN, FILL_LEN))
    }

    /// Continues a segment behind its last whole frame, which ends at `end`.
    pub fn resume(path: PathBuf, end: u64) -> io::Result<Self> {
        let file = OpenOptions::new().write(true).open(&path)?;
        file.set_len(end)?;
        file.sync_all()?;
        Ok(Self::over(path, Box::new(file), end, end))
    }

    pub fn over(path: PathBuf, file: Box<dyn LogFile>, end: u64, filled: u64) -> Self {
        Self { path, file, end, filled, frame: Vec::new() }
    }

    /// Bytes of frames and header.
    pub fn len(&self) -> u64 {
        self.end
    }

    /// Makes `changes` durable as one frame.
    pub fn append(&mut self, changes: &[Change]) -> Result<(), AppendError> {
        encode_frame(changes, &mut self.frame).map_err(AppendError::Refused)?;
        let end = self.end + self.frame.len() as u64;
        let filled = self.write_frame(end).map_err(|refused| match self.take_back(end) {
            Ok(()) => AppendError::Refused(refused),
            Err(_) => AppendError::Unknown(refused),
        })?;
        self.file.sync().map_err(AppendError::Unknown)?;
        (self.end, self.filled) = (end, filled);
        // A rare big batch does not keep its buffer.
        self.frame.shrink_to(FILL_LEN as usize);
        Ok(())
    }

    /// Writes the frame, which ends at `end`, and zeros behind it where there are none; where the zeros end.
    fn write_frame(&self, end: u64) -> io::Result<u64> {
        let filled = if end > self.filled { end + FILL_LEN } else { self.filled };
        if filled > self.filled {
            self.file.write_at(&vec![0; FILL_LEN as usize], end)?;
        }
        self.file.write_at(&self.frame, self.end)?;
        Ok(filled)
    }

    /// Puts zeros back where a frame up to `end` was not written to its end. What there was room for before the frame has it still.
    fn take_back(&self, end: u64) -> io::Result<()> {
        self.file.cut(self.filled)?;
        let len = end.min(self.filled).saturating_sub(self.end);
        self.file.write_at(&vec![0; len as usize], self.end)
    }
}

/// Why a frame is not in the log.
#[derive(Debug)]
pub enum AppendError {
    /// It was not written to its end (no room), and nothing of it is left. The next one may be.
    Refused(io::Error),
    /// Whether the medium has it is not known before the log has been read again: nothing more may be written until then.
    Unknown(io::Error),
}

fn segment_name(first: Revision) -> String {
    format!("log.{first:020}", first = first.0)
}

fn encode_frame(changes: &[Change], frame: &mut Vec<u8>) -> io::Result<()> {
    let too_long = |_| io::Error::new(io::ErrorKind::FileTooLarge, "frame too long");
    frame.clear();
    frame.resize(FRAME_HEADER_LEN, 0);
    for Change { key, stamp, value } in changes {
        let key_len = u32::try_from(key.len()).map_err(too_long)?;
        let value_len = match value {
            Some(value) => u32::try_from(value.len()).map_err(too_long)?,
            None => REMOVED,
        };
        frame.extend_from_slice(&stamp.created.0.to_le_bytes());
        frame.extend_from_slice(&stamp.modified.0.to_le_bytes());
        frame.extend_from_slice(&key_len.to_le_bytes());
        frame.extend_from_slice(&value_len.to_le_bytes());
        frame.extend_from_slice(key.as_bytes());
        frame.extend_from_slice(value.as_deref().unwrap_or_default());
    }
    let (header, payload) = frame.split_at_mut(FRAME_HEADER_LEN);
    let len = u32::try_from(payload.len()).map_err(too_long)?;
    let (len_field, crc_field) = header.split_at_mut(4);
    len_field.copy_from_slice(&len.to_le_bytes());
    crc_field.copy_from_slice(&crc32fast::hash(payload).to_le_bytes());
    Ok(())
}

// === Reading ===

/// The segments under `directory`, oldest first.
pub fn segments(directory: &Path) -> io::Result<Vec<(Revision, PathBuf)>> {
    let mut segments = Vec::new();
    for entry in directory.read_dir()? {
        let entry = entry?;
        let name = entry.file_name();
        let first = name.to_str().and_then(|name| name.strip_prefix("log.")?.parse().ok());
        if let Some(first) = first {
            segments.push((Revision(first), entry.path()));
        }
    }
    segments.sort_unstable();
    Ok(segments)
}

/// Reads the frames of a segment in order.
pub struct SegmentReader {
    file: BufReader<File>,
    /// End of the last whole frame read; 0 when not even the header is whole.
    end: u64,
    file_len: u64,
}

impl SegmentReader {
    /// Opens the segment whose first write is `first`.
    pub fn open(path: &Path, first: Revision) -> io::Result<Self> {
        let file = File::open(path)?;
        let file_len = file.metadata()?.len();
        let mut file = BufReader::with_capacity(64 << 10, file);
        let mut header = [0; SEGMENT_HEADER_LEN as usize];
        let mut expected = MAGIC.to_vec();
        expected.extend_from_slice(&first.0.to_le_bytes());
        let whole = read_whole(&mut file, &mut header)? && header.as_slice() == expected;
        let end = if whole { SEGMENT_HEADER_LEN } else { 0 };
        file.seek(SeekFrom::Start(end))?;
        Ok(Self { file, end, file_len })
    }

    /// The changes of the next frame; `None` at the end of what is whole.
    pub fn next_frame(&mut self) -> io::Result<Option<Vec<Change>>> {
        let mut header = [0; FRAME_HEADER_LEN];
        if self.end == 0 || !read_whole(&mut self.file, &mut header)? {
            return Ok(None);
        }
        let [l0, l1, l2, l3, c0, c1, c2, c3] = header;
        let len = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
        let crc = u32::from_le_bytes([c0, c1, c2, c3]);
        let rest = self.file_len.saturating_sub(self.end + FRAME_HEADER_LEN as u64);
        if len == 0 || len > FRAME_LEN_MAX || len as u64 > rest {
            return Ok(None);
        }
        let mut payload = vec![0; len];
        if !read_whole(&mut self.file, &mut payload)? || crc32fast::hash(&payload) != crc {
            return Ok(None);
        }
        let Some(changes) = decode_payload(&Bytes::from(payload)) else { return Ok(None) };
        self.end += (FRAME_HEADER_LEN + len) as u64;
        Ok(Some(changes))
    }

    /// End of the last whole frame read; 0 when the header is not whole.
    pub fn end(&self) -> u64 {
        self.end
    }
}

/// Fills `bytes`, or says that the file ends before.
fn read_whole(file: &mut impl Read, bytes: &mut [u8]) -> io::Result<bool> {
    match file.read_exact(bytes) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}

fn decode_payload(payload: &Bytes) -> Option<Vec<Change>> {
    let mut changes = Vec::new();
    let mut rest = payload.clone();
    while !rest.is_empty() {
        let header = rest.split_off_checked(CHANGE_HEADER_LEN)?;
        let number = |at: usize| Some(u64::from_le_bytes(header.get(at..at + 8)?.try_into().ok()?));
        let len = |at: usize| Some(u32::from_le_bytes(header.get(at..at + 4)?.try_into().ok()?));
        let stamp = Stamp { created: Revision(number(0)?), modified: Revision(number(8)?) };
        let key = rest.split_off_checked(len(16)? as usize)?;
        let key = std::str::from_utf8(&key).ok()?.into();
        let value = match len(20)? {
            REMOVED => None,
            len => Some(rest.split_off_checked(len as usize)?),
        };
        changes.push(Change { key, stamp, value });
    }
    Some(changes)
}

/// A frame's payload read and written again, for the fuzzing of what reads it; `None` for what is none.
#[doc(hidden)]
pub fn rewritten(payload: &[u8]) -> Option<Vec<u8>> {
    let changes = decode_payload(&Bytes::copy_from_slice(payload))?;
    let mut frame = Vec::new();
    encode_frame(&changes, &mut frame).ok()?;
    Some(frame.split_off(FRAME_HEADER_LEN))
}

/// Taking bytes from the front without the risk of a panic.
trait SplitChecked: Sized {
    fn split_off_checked(&mut self, len: usize) -> Option<Self>;
}

impl SplitChecked for Bytes {
    fn split_off_checked(&mut self, len: usize) -> Option<Self> {
        (len <= self.len()).then(|| self.split_to(len))
    }
}

#[cfg(test)]
mod tests;
