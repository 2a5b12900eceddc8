//! The log, which makes writes durable: one append and one sync per batch.
//!
//! A log is a sequence of segment files named by the revision of their first write. A segment is a header and frames; a frame is
//! one commit, whole or not at all:
//!
//! ```text
//!   segment  header  frame*  zeros
//!   header   "ORCH LOG"  first revision u64  seed u32  crc32 u32      crc over what is before it
//!            "orchlog1"  first revision u64                           of older formats; the seed is 0
//!   frame    length u32  crc32 u32  payload              length of the payload; crc over it, starting with the seed
//!   payload  change*                                     revisions rise by one, across frames too
//!   change   created u64  modified u64  key length u32  value length u32  key  value
//! ```
//!
//! All numbers are little-endian; a value length of `u32::MAX` marks a deleted key. Space is filled with zeros ahead of the writes:
//! syncing a write into allocated blocks takes about half as long as one that also allocates blocks and extends the file
//! (measured on ext4, 140 us to 260 us). An incomplete frame at the end of the log is an interrupted, unacknowledged write.
//!
//! A segment is created under another name and renamed when its header and zeros are durable.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, BufReader, ErrorKind, Read, Seek, SeekFrom},
    ops::{Range, RangeInclusive},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use bytes::Bytes;
use proto_daemon::private_files;

use crate::{Revision, Stamp};

pub use header::SegmentHeader;
use range_checksums::RangeChecksums;

mod header;
mod range_checksums;

const FRAME_HEADER_LEN: usize = 8;
pub const CHANGE_HEADER_LEN: usize = 24;
const REMOVED: u32 = u32::MAX;

/// Name of a segment that is being created.
const UNFINISHED: &str = "log.new";

/// How far ahead of the writes a segment is filled with zeros.
const FILL_LEN: u64 = 256 << 10;

/// Longest payload of a frame. The reader takes a longer one for damage, so none is written.
pub const FRAME_LEN_MAX: usize = 1 << 30;

// Lengths are u32 on disk, and the largest one is no length.
const _: () = assert!(FRAME_LEN_MAX < REMOVED as usize);

/// A written or deleted record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    pub key: Arc<str>,
    /// Revisions of the version, or of the deletion.
    pub stamp: Stamp,
    /// `None` deletes the key.
    pub value: Option<Bytes>,
}

impl Change {
    /// Its bytes in the payload of a frame.
    pub(crate) fn len_in_frame(&self) -> usize {
        let value = self.value.as_ref().map_or(0, Bytes::len);
        CHANGE_HEADER_LEN.saturating_add(self.key.len()).saturating_add(value)
    }
}

// === Writing ===

/// The file of a segment; tests replace it to inject failures.
pub trait LogFile: Send {
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;
    fn truncate(&self, len: u64) -> io::Result<()>;
    fn sync(&self) -> io::Result<()>;
}

impl LogFile for File {
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.write_all_at(bytes, offset)
    }

    fn truncate(&self, len: u64) -> io::Result<()> {
        self.set_len(len)
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_data()
    }
}

/// The log segment to which commits are appended.
pub struct Segment {
    pub path: PathBuf,
    file: Box<dyn LogFile>,
    header: SegmentHeader,
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
        if path.symlink_metadata().is_ok() {
            return Err(ErrorKind::AlreadyExists.into());
        }
        let unfinished = directory.join(UNFINISHED);
        let header = SegmentHeader::new(first);
        let made = make_segment(&unfinished, header).and_then(|file| {
            fs::rename(&unfinished, &path)?;
            Ok(file)
        });
        let file = made.inspect_err(|_| drop(fs::remove_file(&unfinished)))?;
        // The empty segment is removed, so that the next attempt finds its name free.
        let synced = File::open(directory).and_then(|directory| directory.sync_all());
        synced.inspect_err(|_| drop(fs::remove_file(&path)))?;
        Ok(Self::from_parts(path, Box::new(file), header, header.len..FILL_LEN))
    }

    /// Continues a segment after its last complete frame, which ends at `end`.
    pub fn resume(path: PathBuf, end: u64) -> io::Result<Self> {
        let file = private_files::open_private(&path, OpenOptions::new().read(true).write(true))?;
        let header = SegmentHeader::read(&file)?.ok_or(ErrorKind::InvalidData)?;
        file.set_len(end)?;
        file.sync_all()?;
        Ok(Self::from_parts(path, Box::new(file), header, end..end))
    }

    /// A segment whose zeros ahead of the next frame are in `zeros`.
    pub fn from_parts(
        path: PathBuf,
        file: Box<dyn LogFile>,
        header: SegmentHeader,
        zeros: Range<u64>,
    ) -> Self {
        Self { path, file, header, end: zeros.start, filled: zeros.end, frame: Vec::new() }
    }

    /// Bytes of frames and header.
    pub fn len(&self) -> u64 {
        self.end
    }

    /// Makes `changes` durable as one frame.
    pub fn append(&mut self, changes: &[Change]) -> Result<(), AppendError> {
        encode_frame(changes, self.header, &mut self.frame).map_err(AppendError::Refused)?;
        let end = self.end.saturating_add(self.frame.len() as u64);
        let filled = self.write_frame(end).map_err(|refused| match self.undo_write(end) {
            Ok(()) => AppendError::Refused(refused),
            Err(_) => AppendError::Unknown(refused),
        })?;
        self.file.sync().map_err(AppendError::Unknown)?;
        (self.end, self.filled) = (end, filled);
        // The buffer of a rare large batch is released.
        self.frame.shrink_to(FILL_LEN as usize);
        Ok(())
    }

    /// Writes the frame, which ends at `end`, and extends the zeros if needed; returns their end.
    fn write_frame(&self, end: u64) -> io::Result<u64> {
        let filled = if end > self.filled { end.saturating_add(FILL_LEN) } else { self.filled };
        if filled > self.filled {
            self.file.write_at(&vec![0; FILL_LEN as usize], end)?;
        }
        self.file.write_at(&self.frame, self.end)?;
        Ok(filled)
    }

    /// Overwrites a partial frame up to `end` with zeros and truncates the file to its previous length.
    fn undo_write(&self, end: u64) -> io::Result<()> {
        self.file.truncate(self.filled)?;
        let len = end.min(self.filled).saturating_sub(self.end);
        self.file.write_at(&vec![0; len as usize], self.end)
    }
}

/// Why an append failed.
#[derive(Debug)]
pub enum AppendError {
    /// The frame was not written completely (disk full, frame too long), and nothing of it is left. The next append may succeed.
    Refused(io::Error),
    /// Whether the frame is on disk is unknown until the log is read again; nothing more may be written before that.
    Unknown(io::Error),
}

fn make_segment(path: &Path, header: SegmentHeader) -> io::Result<File> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let file = private_files::create_private(path)?;
    let mut content = header.encode().to_vec();
    content.resize(FILL_LEN as usize, 0);
    file.write_all_at(&content, 0)?;
    file.sync_all()?;
    Ok(file)
}

fn segment_name(first: Revision) -> String {
    format!("log.{first:020}", first = first.0)
}

fn encode_frame(changes: &[Change], segment: SegmentHeader, frame: &mut Vec<u8>) -> io::Result<()> {
    let too_long = |_| io::Error::new(ErrorKind::FileTooLarge, "frame too long");
    let len = changes.iter().map(Change::len_in_frame).fold(0, usize::saturating_add);
    if len > FRAME_LEN_MAX {
        let why = format!("the changes have {len} bytes, a frame has at most {FRAME_LEN_MAX}");
        return Err(io::Error::new(ErrorKind::FileTooLarge, why));
    }
    frame.clear();
    frame.reserve(FRAME_HEADER_LEN.saturating_add(len));
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
    crc_field.copy_from_slice(&segment.checksum(payload).to_le_bytes());
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
        let first = first.map(Revision).filter(|first| *segment_name(*first) == *name);
        if let Some(first) = first {
            segments.push((first, entry.path()));
        }
    }
    segments.sort_unstable();
    Ok(segments)
}

/// The next item of a segment.
#[derive(Debug, PartialEq, Eq)]
pub enum SegmentItem {
    /// The changes of a frame.
    Frame(Vec<Change>),
    /// The end: only zeros or nothing follows.
    End,
    /// Something that is not a valid frame, and what it looks like.
    Bad(&'static str),
}

/// Reads the frames of a segment in order.
pub struct SegmentReader {
    file: BufReader<File>,
    /// `None` if it is not whole or of another revision.
    header: Option<SegmentHeader>,
    /// End of the last complete frame read; 0 without a header.
    end: u64,
    file_len: u64,
}

impl SegmentReader {
    /// Opens the segment whose first write is `first`.
    pub fn open(path: &Path, first: Revision) -> io::Result<Self> {
        let file = private_files::open_private(path, &mut OpenOptions::new())?;
        let file_len = file.metadata()?.len();
        let header = SegmentHeader::read(&file)?.filter(|header| header.first == first);
        let end = header.map_or(0, |header| header.len);
        let mut file = BufReader::with_capacity(64 << 10, file);
        file.seek(SeekFrom::Start(end))?;
        Ok(Self { file, header, end, file_len })
    }

    /// The next item. Nothing follows an item that is not a frame.
    pub fn next_item(&mut self) -> io::Result<SegmentItem> {
        let Some(segment) = self.header else {
            return Ok(SegmentItem::Bad("no segment header with the revision of the file name"));
        };
        let rest = self.file_len.saturating_sub(self.end);
        let mut header = [0; FRAME_HEADER_LEN];
        if rest < FRAME_HEADER_LEN as u64 || !read_whole(&mut self.file, &mut header)? {
            return self.end_or("an incomplete frame header");
        }
        let [l0, l1, l2, l3, c0, c1, c2, c3] = header;
        let len = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
        let crc = u32::from_le_bytes([c0, c1, c2, c3]);
        if len == 0 {
            return self.end_or("bytes that are neither a frame nor zeros");
        }
        if len > FRAME_LEN_MAX || len as u64 > rest.saturating_sub(FRAME_HEADER_LEN as u64) {
            return Ok(SegmentItem::Bad("a frame longer than the rest of the file"));
        }
        let mut payload = vec![0; len];
        if !read_whole(&mut self.file, &mut payload)? {
            return Ok(SegmentItem::Bad("a frame longer than the rest of the file"));
        }
        if segment.checksum(&payload) != crc {
            return Ok(SegmentItem::Bad("a frame with a wrong checksum"));
        }
        let Some(changes) = decode_payload(&Bytes::from(payload)) else {
            return Ok(SegmentItem::Bad("a frame whose content is not a list of changes"));
        };
        self.end = self.end.saturating_add(FRAME_HEADER_LEN.saturating_add(len) as u64);
        Ok(SegmentItem::Frame(changes))
    }

    /// [`SegmentItem::End`] if only zeros follow the last frame.
    fn end_or(&self, otherwise: &'static str) -> io::Result<SegmentItem> {
        let content = end_of_content(self.file.get_ref(), self.end)?;
        Ok(if content == self.end { SegmentItem::End } else { SegmentItem::Bad(otherwise) })
    }

    /// End of the last complete frame read; 0 without a header.
    pub fn end(&self) -> u64 {
        self.end
    }
}

/// The end of the last nonzero byte at or after `from`; `from` if there is none.
pub fn end_of_content(file: &File, from: u64) -> io::Result<u64> {
    let mut block = vec![0; 64 << 10];
    let (mut at, mut end) = (from, from);
    loop {
        let read = file.read_at(&mut block, at)?;
        if read == 0 {
            return Ok(end);
        }
        let last = block.get(..read).and_then(|read| read.iter().rposition(|byte| *byte != 0));
        if let Some(last) = last {
            end = at.saturating_add(last as u64).saturating_add(1);
        }
        at = at.saturating_add(read as u64);
    }
}

/// Complete frames after damage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaterFrames {
    /// Offset of the first one.
    pub offset: u64,
    /// The highest revision in any of them.
    pub last: Revision,
}

/// Searches every offset after `from`, at which the change of revision `follows` begins, for complete frames with revisions from it on. Values may hold bytes
/// that look like frames: revisions that this many bytes cannot reach are none of a frame's. Without a whole header, and so without a seed, checksums are not
/// compared: what looks like a frame counts as one.
pub fn find_frames_after(
    path: &Path,
    from: u64,
    follows: Revision,
) -> io::Result<Option<LaterFrames>> {
    let file = private_files::open_private(path, &mut OpenOptions::new())?;
    let header = SegmentHeader::read(&file)?;
    let len = end_of_content(&file, from)?.saturating_sub(from);
    // A frame may end with zeros.
    let len =
        len.saturating_add(FRAME_LEN_MAX as u64).min(file.metadata()?.len().saturating_sub(from));
    let mut bytes = Vec::new();
    let mut file = file;
    file.seek(SeekFrom::Start(from))?;
    file.take(len).read_to_end(&mut bytes)?;
    let changes_max = (bytes.len() / CHANGE_HEADER_LEN) as u64;
    let revisions = follows..=Revision(follows.0.saturating_add(changes_max));
    // Values that look like frames may be many, each as long as the rest.
    let checksums = RangeChecksums::new(&bytes);
    let mut found: Option<LaterFrames> = None;
    let mut at: usize = 0;
    while let Some(rest) = bytes.get(at..).filter(|rest| !rest.is_empty()) {
        let Some(candidate) = read_candidate(rest, &revisions) else {
            at = at.saturating_add(1);
            continue;
        };
        let payload = at.saturating_add(FRAME_HEADER_LEN);
        let end = payload.saturating_add(candidate.payload.len());
        let crc = |segment: SegmentHeader| checksums.checksum(payload..end, segment.seed);
        if header.is_some_and(|segment| crc(segment) != candidate.crc) {
            at = at.saturating_add(1);
            continue;
        }
        let offset = from.saturating_add(at as u64);
        let last = last_revision(candidate.payload).unwrap_or(follows).min(*revisions.end());
        let before = found.get_or_insert(LaterFrames { offset, last });
        before.last = before.last.max(last);
        at = end;
    }
    Ok(found)
}

/// Bytes with the lengths and revision of a frame.
struct Candidate<'a> {
    crc: u32,
    payload: &'a [u8],
}

fn read_candidate<'a>(
    bytes: &'a [u8],
    revisions: &RangeInclusive<Revision>,
) -> Option<Candidate<'a>> {
    let number = |at: usize| Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?));
    let len = number(0)? as usize;
    let payload = bytes.get(FRAME_HEADER_LEN..FRAME_HEADER_LEN.checked_add(len)?)?;
    let change = payload.get(..CHANGE_HEADER_LEN)?;
    let revision = u64::from_le_bytes(change.get(8..16)?.try_into().ok()?);
    let (key, value) = (number(FRAME_HEADER_LEN + 16)?, number(FRAME_HEADER_LEN + 20)?);
    let value = if value == REMOVED { 0 } else { value };
    let texts = u64::from(key).saturating_add(u64::from(value));
    let fits = texts.saturating_add(CHANGE_HEADER_LEN as u64) <= len as u64;
    (fits && revision > 0 && revisions.contains(&Revision(revision)))
        .then_some(Candidate { crc: number(4)?, payload })
}

fn last_revision(payload: &[u8]) -> Option<Revision> {
    let changes = decode_payload(&Bytes::copy_from_slice(payload))?;
    changes.last().map(|change| change.stamp.modified)
}

/// Fills `bytes`; false if the file ends before.
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
        let number = |at: usize| Some(u64::from_le_bytes(*header.get(at..)?.first_chunk()?));
        let len = |at: usize| Some(u32::from_le_bytes(*header.get(at..)?.first_chunk()?));
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

/// Decodes and encodes a frame's payload, for the fuzz target; `None` for an invalid payload.
#[doc(hidden)]
pub fn reencode_payload(payload: &[u8]) -> Option<Vec<u8>> {
    let changes = decode_payload(&Bytes::copy_from_slice(payload))?;
    let mut frame = Vec::new();
    encode_frame(&changes, SegmentHeader::new(Revision(1)), &mut frame).ok()?;
    Some(frame.split_off(FRAME_HEADER_LEN))
}

/// Splits bytes off the front without a panic.
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
