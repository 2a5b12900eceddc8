//! Tests of encoding and decoding frames, and of logs cut at every byte.

use std::sync::atomic::{AtomicU64, Ordering};

use super::*;

fn put(key: &str, created: u64, modified: u64, value: &'static [u8]) -> Change {
    let stamp = Stamp { created: Revision(created), modified: Revision(modified) };
    Change { key: key.into(), stamp, value: Some(Bytes::from_static(value)) }
}

fn remove(key: &str, created: u64, modified: u64) -> Change {
    Change { value: None, ..put(key, created, modified, b"") }
}

/// The header of a segment without a seed.
const UNSEEDED: SegmentHeader = SegmentHeader { first: Revision(7), seed: 0, len: 16 };

/// Reads a segment to its end.
fn read(path: &Path, first: u64) -> (Vec<Vec<Change>>, u64) {
    let mut reader = SegmentReader::open(path, Revision(first)).unwrap();
    let mut frames = Vec::new();
    while let SegmentItem::Frame(frame) = reader.next_item().unwrap() {
        frames.push(frame);
    }
    (frames, reader.end())
}

#[test]
fn frame_layout() {
    let mut frame = Vec::new();
    encode_frame(&[put("a/b", 3, 5, b"xy"), remove("c", 4, 6)], UNSEEDED, &mut frame).unwrap();
    let mut payload = Vec::new();
    payload.extend_from_slice(&[3, 0, 0, 0, 0, 0, 0, 0]); // created
    payload.extend_from_slice(&[5, 0, 0, 0, 0, 0, 0, 0]); // modified
    payload.extend_from_slice(&[3, 0, 0, 0]); // key length
    payload.extend_from_slice(&[2, 0, 0, 0]); // value length
    payload.extend_from_slice(b"a/bxy");
    payload.extend_from_slice(&[4, 0, 0, 0, 0, 0, 0, 0]);
    payload.extend_from_slice(&[6, 0, 0, 0, 0, 0, 0, 0]);
    payload.extend_from_slice(&[1, 0, 0, 0]);
    payload.extend_from_slice(&[255, 255, 255, 255]); // removed
    payload.extend_from_slice(b"c");
    assert_eq!(frame[..4], u32::try_from(payload.len()).unwrap().to_le_bytes());
    assert_eq!(frame[4..8], crc32fast::hash(&payload).to_le_bytes());
    assert_eq!(frame[8..], payload);
    let seeded = SegmentHeader { seed: 1, ..UNSEEDED };
    encode_frame(&[put("a/b", 3, 5, b"xy"), remove("c", 4, 6)], seeded, &mut frame).unwrap();
    assert_eq!(frame[8..], payload);
    // CRC-32 that continues from 1, as zlib's crc32(1, payload) counts it.
    let mut crc = crc32fast::Hasher::new_with_initial(1);
    crc.update(&payload);
    assert_eq!(frame[4..8], crc.finalize().to_le_bytes());
    assert_ne!(frame[4..8], crc32fast::hash(&payload).to_le_bytes());
}

#[test]
fn header_layout() {
    let header = SegmentHeader { first: Revision(0x0102), seed: 0x0a0b_0c0d, len: 24 };
    let mut bytes = b"ORCH LOG\x02\x01\0\0\0\0\0\0\x0d\x0c\x0b\x0a".to_vec();
    bytes.extend_from_slice(&crc32fast::hash(&bytes).to_le_bytes());
    assert_eq!(header.encode()[..], bytes);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("segment");
    let read = |bytes: &[u8]| {
        std::fs::write(&path, bytes).unwrap();
        SegmentHeader::read(&File::open(&path).unwrap()).unwrap()
    };
    assert_eq!(read(&bytes), Some(header));
    assert_eq!(read(&[&bytes[..], &[0; 9]].concat()), Some(header));
    for at in 0..bytes.len() {
        assert_eq!(read(&bytes[..at]), None, "cut at {at}");
        for bit in 0..8 {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1 << bit;
            assert_eq!(read(&damaged), None, "bit {bit} of byte {at} flipped");
        }
    }
    let unseeded = b"orchlog1\x07\0\0\0\0\0\0\0";
    assert_eq!(read(unseeded), Some(UNSEEDED));
    assert_eq!(read(&unseeded[..15]), None);
    let seeds = [(); 8].map(|()| SegmentHeader::new(Revision(1)).seed);
    assert!(seeds.iter().any(|seed| *seed != seeds[0]), "{seeds:?}");
}

/// Stores of older programs go on in their last segment.
#[test]
fn a_segment_without_a_seed_is_continued() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(segment_name(Revision(7)));
    let frames = [vec![put("a", 7, 7, b"one")], vec![put("b", 8, 8, b"two")]];
    let mut bytes = b"orchlog1\x07\0\0\0\0\0\0\0".to_vec();
    let mut frame = Vec::new();
    encode_frame(&frames[0], UNSEEDED, &mut frame).unwrap();
    bytes.extend_from_slice(&frame);
    std::fs::write(&path, &bytes).unwrap();
    let mut segment = Segment::resume(path.clone(), bytes.len() as u64).unwrap();
    segment.append(&frames[1]).unwrap();
    assert_eq!(read(&path, 7), (frames.to_vec(), segment.len()));
    assert!(std::fs::read(&path).unwrap().starts_with(&bytes));
}

#[test]
fn segment_is_read_as_written() {
    let dir = tempfile::tempdir().unwrap();
    let mut segment = Segment::create(dir.path(), Revision(7)).unwrap();
    let frames = vec![
        vec![put("a", 7, 7, b"one"), put("b", 8, 8, b"")],
        vec![remove("a", 7, 9)],
        vec![put("b", 8, 10, &[1; 3_000_000])], // longer than the fill
        vec![put("ä", 11, 11, b"\0\xff")],
    ];
    for frame in &frames {
        segment.append(frame).unwrap();
    }
    assert_eq!(segments(dir.path()).unwrap(), [(Revision(7), segment.path.clone())]);
    assert_eq!(read(&segment.path, 7), (frames, segment.len()));
    assert_eq!(read(&segment.path, 8), (vec![], 0), "a segment under another name is not read");
}

/// Whatever part of the last frame reached the disk, the frames before it are read and the log continues.
/// A file that has `filled` bytes, on a disk that has room for some more.
struct Limited {
    file: File,
    filled: u64,
    room: Arc<AtomicU64>,
}

impl LogFile for Limited {
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let end = offset + bytes.len() as u64;
        let more = end.saturating_sub(offset.max(self.filled));
        let room = self.room.load(Ordering::Relaxed);
        let written = bytes.len() - more.saturating_sub(room) as usize;
        self.room.store(room.saturating_sub(more), Ordering::Relaxed);
        self.file.write_all_at(&bytes[..written], offset)?;
        if written < bytes.len() {
            return Err(io::ErrorKind::StorageFull.into());
        }
        Ok(())
    }

    fn truncate(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_frame_that_was_refused_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let first = [put("a", 7, 7, b"one")];
    let refused = [put("b", 8, 8, &[1; FILL_LEN as usize])];
    let second = [put("c", 8, 8, b"two")];
    let third = [put("b", 9, 9, b"three")];
    let filled = FILL_LEN + 40;
    // Either the zeros after the frame do not fit, or the end of the frame does not.
    for bytes in [0, 1, 30, FILL_LEN - 1, FILL_LEN, FILL_LEN + 10, FILL_LEN + 44] {
        let made = Segment::create(dir.path(), Revision(7)).unwrap();
        assert!(Segment::create(dir.path(), Revision(7)).is_err(), "frames would be lost");
        let file = OpenOptions::new().write(true).open(&made.path).unwrap();
        file.set_len(filled).unwrap();
        let room = Arc::new(AtomicU64::new(bytes));
        let limited = Box::new(Limited { file, filled, room: room.clone() });
        let zeros = made.len()..filled;
        let mut segment = Segment::from_parts(made.path.clone(), limited, made.header, zeros);
        segment.append(&first).unwrap();
        let before = std::fs::read(&made.path).unwrap();
        let error = segment.append(&refused).unwrap_err();
        assert!(matches!(error, AppendError::Refused(_)), "{bytes}: {error:?}");
        assert_eq!(std::fs::read(&made.path).unwrap(), before, "{bytes}");
        segment.append(&second).unwrap();
        room.store(u64::MAX, Ordering::Relaxed);
        segment.append(&third).unwrap();
        let (frames, end) = read(&made.path, 7);
        assert_eq!(frames, [&first, &second, &third]);
        assert_eq!(end, segment.len());
        std::fs::remove_file(&made.path).unwrap();
    }
}

/// The reader takes a frame over the limit for damage, or for an interrupted write, which is cut from the log.
#[test]
fn a_frame_that_would_not_be_read_is_not_written() {
    let dir = tempfile::tempdir().unwrap();
    let mut segment = Segment::create(dir.path(), Revision(1)).unwrap();
    let (first, second) = ([put("a", 1, 1, b"one")], [put("c", 2, 2, b"two")]);
    segment.append(&first).unwrap();
    let before = std::fs::read(&segment.path).unwrap();
    // The changes share one value, so that they take no memory.
    let value = Bytes::from(vec![1; 8 << 20]);
    let values = FRAME_LEN_MAX / value.len();
    let long: Vec<Change> = (2..)
        .map(|nth| Change { value: Some(value.clone()), ..put("b", nth, nth, b"") })
        .take(values)
        .collect();
    let error = segment.append(&long).unwrap_err();
    let AppendError::Refused(refused) = error else { panic!("{error:?}") };
    assert_eq!(refused.kind(), ErrorKind::FileTooLarge);
    assert_eq!(std::fs::read(&segment.path).unwrap(), before);
    segment.append(&second).unwrap();
    assert_eq!(read(&segment.path, 1), (vec![first.to_vec(), second.to_vec()], segment.len()));
}

#[test]
fn torn_frame_is_the_end() {
    let dir = tempfile::tempdir().unwrap();
    let whole = vec![put("a", 1, 1, b"one")];
    let torn = vec![put("b", 2, 2, b"two"), put("c", 3, 3, b"three")];
    let mut segment = Segment::create(dir.path(), Revision(1)).unwrap();
    segment.append(&whole).unwrap();
    let start = segment.len();
    segment.append(&torn).unwrap();
    let (path, bytes) = (segment.path.clone(), std::fs::read(&segment.path).unwrap());
    for lost in start..segment.len() {
        let mut damaged = bytes.clone();
        damaged[lost as usize] ^= 0x55;
        std::fs::write(&path, &damaged).unwrap();
        assert_eq!(read(&path, 1), (vec![whole.clone()], start), "byte {lost} flipped");
        std::fs::write(&path, &bytes[..lost as usize]).unwrap();
        assert_eq!(read(&path, 1), (vec![whole.clone()], start), "cut at {lost}");
    }
    let mut resumed = Segment::resume(path.clone(), start).unwrap();
    let after = vec![put("d", 2, 2, b"again")];
    resumed.append(&after).unwrap();
    assert_eq!(read(&path, 1).0, [whole, after]);
}

#[test]
fn header_that_is_not_whole_has_no_end() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(segment_name(Revision(1)));
    for bytes in
        [&b""[..], b"ORCH LOG\x01\0", b"orchlog1\x01\0", b"otherlog\x01\0\0\0\0\0\0\0", &[0; 64]]
    {
        std::fs::write(&path, bytes).unwrap();
        assert_eq!(read(&path, 1), (vec![], 0));
    }
}

/// Where the frames of a segment's interrupted last write go on, if its value holds frames that `forge` made.
fn forged_frames_found(modified: u64, forge: impl Fn(SegmentHeader) -> SegmentHeader) -> bool {
    let dir = tempfile::tempdir().unwrap();
    let mut segment = Segment::create(dir.path(), Revision(7)).unwrap();
    segment.append(&[put("a", 7, 7, b"one")]).unwrap();
    let end = segment.len();
    let mut forged = Vec::new();
    encode_frame(&[put("x", 1, modified, b"")], forge(segment.header), &mut forged).unwrap();
    let torn = Change { value: Some(Bytes::from(forged.repeat(10))), ..put("b", 8, 8, b"") };
    segment.append(&[torn]).unwrap();
    let file = OpenOptions::new().write(true).open(&segment.path).unwrap();
    // Of an interrupted write everything after its first bytes; no zeros follow, which could be frames too.
    file.write_all_at(&[0xff; 4], end).unwrap();
    file.set_len(segment.len()).unwrap();
    let found = find_frames_after(&segment.path, end, Revision(8)).unwrap();
    assert!(found.is_none_or(|found| found.last == Revision(modified)));
    found.is_some()
}

/// A value may hold a whole frame, and be a part of the write that was interrupted.
#[test]
fn a_frame_in_a_value_is_none_without_the_seed_or_with_a_revision_that_cannot_be_reached() {
    for (modified, reachable) in [(u64::MAX, false), (1 << 53, false), (1000, false), (9, true)] {
        assert_eq!(forged_frames_found(modified, |segment| segment), reachable, "{modified}");
        assert!(!forged_frames_found(modified, |_| UNSEEDED), "{modified}");
        let other = |segment: SegmentHeader| SegmentHeader { seed: !segment.seed, ..segment };
        assert!(!forged_frames_found(modified, other), "{modified}");
    }
}

/// Bytes that look like the beginnings of long frames are not taken for frames, however many they are.
#[test]
fn headers_of_frames_in_a_value_are_no_frames() {
    let dir = tempfile::tempdir().unwrap();
    let mut segment = Segment::create(dir.path(), Revision(7)).unwrap();
    segment.append(&[put("a", 7, 7, b"one")]).unwrap();
    let end = segment.len();
    let (mut header, value) = (Vec::new(), vec![0; 4000]);
    encode_frame(
        &[Change { value: Some(value.into()), ..put("", 1, 9, b"") }],
        UNSEEDED,
        &mut header,
    )
    .unwrap();
    header.truncate(FRAME_HEADER_LEN + CHANGE_HEADER_LEN);
    let value = Bytes::from(header.repeat(8000));
    segment.append(&[Change { value: Some(value), ..put("b", 8, 8, b"") }]).unwrap();
    let behind = segment.len();
    segment.append(&[put("c", 9, 9, b"three")]).unwrap();
    let file = OpenOptions::new().write(true).open(&segment.path).unwrap();
    file.write_all_at(&[0xff; 4], end).unwrap();
    let found = find_frames_after(&segment.path, end, Revision(8)).unwrap();
    assert_eq!(found, Some(LaterFrames { offset: behind, last: Revision(9) }));
    file.set_len(behind).unwrap();
    assert_eq!(find_frames_after(&segment.path, end, Revision(8)).unwrap(), None);
}
