//! What the log says, and what is wrong with it. Only reads: a log that is damaged is as it was afterwards.

use std::path::{Path, PathBuf};

use crate::{
    OpenError, Revision,
    damage::Damage,
    log::{self, Change, SegmentItem, SegmentReader},
};

/// A log that was read to its end.
#[derive(Debug)]
pub struct LogRead {
    /// What was written after the checkpoint, without a gap.
    pub changes: Vec<Change>,
    /// Where the last segment's frames end; `None` when there is no segment.
    pub end: Option<u64>,
    /// Why what follows the end is none of the log: a write that broke off.
    pub torn: Option<&'static str>,
}

/// Why a log was not read to its end.
#[derive(Debug)]
pub enum ReadError {
    /// The system refuses.
    System(OpenError),
    /// Something is missing.
    Damaged {
        damage: Damage,
        /// What is readable before the damage, behind the checkpoint.
        changes: Vec<Change>,
    },
}

/// What is known beside the log.
#[derive(Clone, Copy, Debug)]
pub struct KnownRevisions {
    /// Up to where the checkpoint is complete.
    pub checkpoint: Revision,
    /// The last revision known to have been answered.
    pub acknowledged: Option<Revision>,
}

impl KnownRevisions {
    fn was_acknowledged(self, revision: Revision) -> bool {
        self.acknowledged.is_some_and(|acknowledged| acknowledged >= revision)
    }
}

/// Reads the segments, oldest first. Those that the checkpoint contains whole are not looked at.
pub fn read_log(
    directory: &Path,
    known: KnownRevisions,
    segments: &[(Revision, PathBuf)],
) -> Result<LogRead, ReadError> {
    let mut read = LogRead { changes: Vec::new(), end: None, torn: None };
    match check_start(directory, known, segments) {
        Some(damage) => return Err(ReadError::Damaged { damage, changes: read.changes }),
        None if segments.is_empty() => return Ok(read),
        None => {}
    }
    for (nth, (first, path)) in segments.iter().enumerate() {
        let next = segments.get(nth + 1).map(|(next, _)| *next);
        if next.is_some_and(|next| next <= known.checkpoint.next()) {
            continue;
        }
        let segment = read_segment(path, *first, known.checkpoint, &mut read.changes);
        let segment = segment.and_then(|segment| {
            let damage = match next {
                Some(next) => check_closed_segment(path, &segment, next),
                None => check_last_segment(path, &segment, known)
                    .map_err(|source| directory_error(path, source))?,
            };
            Ok((segment, damage))
        });
        let (segment, damage) = match segment {
            Ok(read) => read,
            Err(error) => return Err(ReadError::System(error)),
        };
        if let Some(damage) = damage {
            return Err(ReadError::Damaged { damage, changes: read.changes });
        }
        (read.end, read.torn) = (Some(segment.end), segment.bad);
    }
    Ok(read)
}

/// The log has to begin where the checkpoint ends, or before.
fn check_start(
    directory: &Path,
    known: KnownRevisions,
    segments: &[(Revision, PathBuf)],
) -> Option<Damage> {
    let follows = known.checkpoint.next();
    match segments.first() {
        Some((first, _)) if *first <= follows => None,
        Some((first, path)) => Some(Damage {
            path: path.clone(),
            offset: 0,
            found: format!(
                "the log begins with revision {first}, the checkpoint ends before {follows}"
            ),
            first: follows,
            last: Some(Revision(first.0.saturating_sub(1))),
        }),
        // The first segment is made right after the checkpoint.
        None if known.checkpoint == Revision(0) && !known.was_acknowledged(follows) => None,
        None => Some(Damage {
            path: directory.to_owned(),
            offset: 0,
            found: "there is a checkpoint and no log".to_owned(),
            first: follows,
            last: known.acknowledged.filter(|last| *last >= follows),
        }),
    }
}

/// A segment as far as it is readable.
struct SegmentRead {
    /// The revision that would come next.
    follows: Revision,
    /// End of the last frame.
    end: u64,
    /// What is wrong behind it; nothing for zeros up to the file's end.
    bad: Option<&'static str>,
    /// Frames are whole and their revisions do not rise by one.
    disordered: bool,
}

fn read_segment(
    path: &Path,
    first: Revision,
    checkpoint: Revision,
    changes: &mut Vec<Change>,
) -> Result<SegmentRead, OpenError> {
    let failed = |source| directory_error(path, source);
    let mut reader = SegmentReader::open(path, first).map_err(failed)?;
    let mut segment = SegmentRead { follows: first, end: 0, bad: None, disordered: false };
    loop {
        segment.end = reader.end();
        let frame = match reader.next_item().map_err(failed)? {
            SegmentItem::Frame(frame) => frame,
            SegmentItem::End => return Ok(segment),
            SegmentItem::Bad(what) => {
                segment.bad = Some(what);
                return Ok(segment);
            }
        };
        if !is_contiguous(&frame, segment.follows) {
            (segment.bad, segment.disordered) = (Some("a frame of another revision"), true);
            return Ok(segment);
        }
        for change in frame {
            segment.follows = change.stamp.modified.next();
            if change.stamp.modified > checkpoint {
                changes.push(change);
            }
        }
    }
}

/// Whether a frame's revisions rise by one from `follows`.
fn is_contiguous(frame: &[Change], mut follows: Revision) -> bool {
    frame.iter().all(|change| {
        let fits = change.stamp.modified == follows;
        follows = follows.next();
        fits
    })
}

/// A segment that was closed ends where the next one starts.
fn check_closed_segment(path: &Path, segment: &SegmentRead, next: Revision) -> Option<Damage> {
    if segment.bad.is_none() && segment.follows == next {
        return None;
    }
    let found = match segment.bad {
        Some(bad) => bad.to_owned(),
        None => format!("the segment ends, and the next one starts with revision {next}"),
    };
    let last = Some(Revision(next.0.saturating_sub(1))).filter(|last| *last >= segment.follows);
    Some(Damage { path: path.to_owned(), offset: segment.end, found, first: segment.follows, last })
}

/// The last segment ends anywhere: with a frame that was not answered and behind which there is none, or with zeros.
fn check_last_segment(
    path: &Path,
    segment: &SegmentRead,
    known: KnownRevisions,
) -> std::io::Result<Option<Damage>> {
    let SegmentRead { follows, end, bad, disordered } = *segment;
    let damage = |found: String, last: Option<Revision>| {
        Ok(Some(Damage { path: path.to_owned(), offset: end, found, first: follows, last }))
    };
    // Only segments with others behind them are folded into the checkpoint.
    if follows <= known.checkpoint {
        let found = format!(
            "the log ends before revision {follows}, and the checkpoint goes up to {checkpoint}",
            checkpoint = known.checkpoint
        );
        return damage(found, None);
    }
    let answered = known.acknowledged.filter(|last| *last >= follows);
    match (bad, answered) {
        (None, None) => Ok(None),
        (None, Some(last)) => {
            damage(format!("the log ends here, and revision {last} was answered"), Some(last))
        }
        (Some(bad), answered) => {
            let behind = log::find_frames_after(path, end, follows)?;
            let last = answered.into_iter().chain(behind.map(|behind| behind.last)).max();
            match (behind, answered) {
                (Some(behind), _) => damage(
                    format!("{bad}, with whole frames behind it (offset {})", behind.offset),
                    last,
                ),
                (None, Some(answered)) => {
                    damage(format!("{bad}, and revision {answered} was answered"), last)
                }
                (None, None) if disordered || end == 0 => damage(bad.to_owned(), last),
                (None, None) => Ok(None),
            }
        }
    }
}

fn directory_error(path: &Path, source: std::io::Error) -> OpenError {
    OpenError::Directory { path: path.to_owned(), source }
}
