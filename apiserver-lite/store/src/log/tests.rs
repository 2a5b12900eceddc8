//! Frames as bytes, both ways, and ends torn at every byte.

use super::*;

fn put(key: &str, created: u64, modified: u64, value: &'static [u8]) -> Change {
    let stamp = Stamp { created: Revision(created), modified: Revision(modified) };
    Change { key: key.into(), stamp, value: Some(Bytes::from_static(value)) }
}

fn remove(key: &str, created: u64, modified: u64) -> Change {
    Change { value: None, ..put(key, created, modified, b"") }
}

/// Reads a segment to its end.
fn read(path: &Path, first: u64) -> (Vec<Vec<Change>>, u64) {
    let mut reader = SegmentReader::open(path, Revision(first)).unwrap();
    let mut frames = Vec::new();
    while let Some(frame) = reader.next_frame().unwrap() {
        frames.push(frame);
    }
    (frames, reader.end())
}

#[test]
fn frame_layout() {
    let mut frame = Vec::new();
    encode_frame(&[put("a/b", 3, 5, b"xy"), remove("c", 4, 6)], &mut frame).unwrap();
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

/// Whatever part of the last frame reached the disk, the frames before it are read and the log goes on.
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
    for bytes in [&b""[..], b"orchlog1\x01\0", b"otherlog\x01\0\0\0\0\0\0\0", &[0; 64]] {
        std::fs::write(&path, bytes).unwrap();
        assert_eq!(read(&path, 1), (vec![], 0));
    }
}
