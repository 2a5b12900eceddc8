//! Reads the log and detects damage. Nothing is changed.

use std::path::{Path, PathBuf};

use crate::{
    OpenError, Revision,
    acknowledged::KnownRevisions,
    damage::Damage,
    log::{self, Change, SegmentItem, SegmentReader},
};

/// What reading all log segments returned.
#[derive(Debug)]
pub struct LogRead {
    /// The changes after the checkpoint, without a gap.
    pub changes: Vec<Change>,
    /// End of the last segment's frames; `None` without a segment.
    pub end: Option<u64>,
    /// What follows the end if it is an interrupted write.
    pub torn: Option<&'static str>,
}

/// Why a log cannot be read completely.
#[derive(Debug)]
pub enum LogReadError {
    /// The operating system returned an error.
    System(OpenError),
    /// Acknowledged writes cannot be read.
    Damaged {
        damage: Damage,
        /// The readable changes between checkpoint and damage.
        changes: Vec<Change>,
    },
}

/// Reads the segments, oldest first. Segments that the checkpoint contains completely are skipped.
pub fn read_log(
    directory: &Path,
    known: KnownRevisions,
    segments: &[(Revision, PathBuf)],
) -> Result<LogRead, LogReadError> {
    let mut read = LogRead { changes: Vec::new(), end: None, torn: None };
    match check_start(directory, known, segments) {
        Some(damage) => return Err(LogReadError::Damaged { damage, changes: read.changes }),
        None if segments.is_empty() => return Ok(read),
        None => {}
    }
    for (nth, (first, path)) in segments.iter().enumerate() {
        let next = segments.get(nth.saturating_add(1)).map(|(next, _)| *next);
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
            Err(error) => return Err(LogReadError::System(error)),
        };
        if let Some(damage) = damage {
            return Err(LogReadError::Damaged { damage, changes: read.changes });
        }
        (read.end, read.torn) = (Some(segment.end), segment.bad);
    }
    Ok(read)
}

/// Checks that the log begins at or before the end of the checkpoint.
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
        // A new store has a checkpoint before its first segment.
        None if known.checkpoint == Revision(0) && !known.was_acknowledged(follows) => None,
        None => Some(Damage {
            path: directory.to_owned(),
            offset: 0,
            found: "the checkpoint exists, but the log is missing".to_owned(),
            first: follows,
            last: known.acknowledged.filter(|last| *last >= follows),
        }),
    }
}

/// The readable part of a segment.
struct SegmentRead {
    /// The next expected revision.
    follows: Revision,
    /// End of the last frame.
    end: u64,
    /// What follows it, unless there are only zeros.
    bad: Option<&'static str>,
    /// Whether frames are complete but their revisions are not contiguous.
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

/// Whether the frame's revisions are contiguous from `follows` on.
fn is_contiguous(frame: &[Change], mut follows: Revision) -> bool {
    frame.iter().all(|change| {
        let fits = change.stamp.modified == follows;
        follows = follows.next();
        fits
    })
}

/// Checks that a closed segment ends where the next one starts.
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

/// Checks the end of the last segment: zeros, or an incomplete frame that was not acknowledged and has no frame after it.
fn check_last_segment(
    path: &Path,
    segment: &SegmentRead,
    known: KnownRevisions,
) -> std::io::Result<Option<Damage>> {
    let SegmentRead { follows, end, bad, disordered } = *segment;
    let damage = |found: String, last: Option<Revision>| {
        Ok(Some(Damage { path: path.to_owned(), offset: end, found, first: follows, last }))
    };
    // The last segment is never folded into the checkpoint.
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
            damage(format!("the log ends here, but revision {last} was acknowledged"), Some(last))
        }
        (Some(bad), answered) => {
            let behind = log::find_frames_after(path, end, follows)?;
            let last = answered.into_iter().chain(behind.map(|behind| behind.last)).max();
            match (behind, answered) {
                (Some(behind), _) => damage(
                    format!("{bad}, with complete frames after it (offset {})", behind.offset),
                    last,
                ),
                (None, Some(answered)) => {
                    damage(format!("{bad}, but revision {answered} was acknowledged"), last)
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
