//! Where the last lines of a log start: searched from the end, in the current file and in the one before it.

use std::io::{self, SeekFrom};

use tokio::fs::File;
use tokio::io::{AsyncReadExt, AsyncSeekExt};

use super::cri_log::tail_start;
use super::rotated_files::{BLOCK, Part};
use super::search_budget::SearchBudget;

/// The file in which the requested lines start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Begun {
    /// The current file.
    Here,
    /// The previous one.
    Earlier,
}

/// Seeks to the last lines; they may start in the previous file if the log was just rotated.
pub(crate) async fn last_lines_of(
    mut current: Part,
    lines: u64,
    budget: &mut SearchBudget<'_>,
) -> io::Result<(Part, Begun)> {
    let Some(file) = current.plain() else { return Ok((current, Begun::Here)) };
    let start = last_lines(file, lines, budget).await?;
    let here = if start > 0 || lines == 0 { lines } else { count_lines(file, budget).await? };
    file.seek(SeekFrom::Start(start)).await?;
    if here >= lines {
        return Ok((current, Begun::Here));
    }
    let Some(mut before) = current.predecessor().await? else { return Ok((current, Begun::Here)) };
    let Some(file) = before.plain() else { return Ok((current, Begun::Here)) };
    let start = last_lines(file, lines.saturating_sub(here), budget).await?;
    file.seek(SeekFrom::Start(start)).await?;
    Ok((before, Begun::Earlier))
}

/// The number of lines in a file.
async fn count_lines(file: &mut File, budget: &mut SearchBudget<'_>) -> io::Result<u64> {
    file.seek(SeekFrom::Start(0)).await?;
    let mut block = vec![0; BLOCK];
    let mut lines: u64 = 0;
    loop {
        let len = file.read(&mut block).await?;
        if len == 0 {
            return Ok(lines);
        }
        let ends = line_ends(block.get(..len).unwrap_or_default());
        budget.search(len as u64, ends)?;
        lines = lines.saturating_add(ends);
    }
}

fn line_ends(bytes: &[u8]) -> u64 {
    bytes.iter().filter(|byte| **byte == b'\n').count() as u64
}

/// The offset of the last `lines` lines, searched from the end block by block.
async fn last_lines(file: &mut File, lines: u64, budget: &mut SearchBudget<'_>) -> io::Result<u64> {
    let len = file.metadata().await?.len();
    if lines == 0 {
        return Ok(len);
    }
    let mut begin = len;
    let mut found: u64 = 0;
    let mut block = Vec::new();
    while begin > 0 {
        let size = begin.min(BLOCK as u64);
        begin = begin.saturating_sub(size);
        file.seek(SeekFrom::Start(begin)).await?;
        block.resize(usize::try_from(size).unwrap_or(BLOCK), 0);
        file.read_exact(&mut block).await?;
        // A line feed at the end of the file belongs to the last line; one at the end of an earlier
        // block does not.
        let at_end = begin.saturating_add(size) == len;
        let own = u64::from(at_end && block.ends_with(b"\n"));
        let ends = line_ends(&block).saturating_sub(own);
        if ends >= lines.saturating_sub(found) {
            let wanted = lines.saturating_sub(found);
            let body = if at_end { block.as_slice() } else { block_with_end(&mut block) };
            return Ok(begin.saturating_add(tail_start(body, wanted).unwrap_or(0) as u64));
        }
        found = found.saturating_add(ends);
        budget.search(size, ends)?;
    }
    Ok(0)
}

/// Adds a byte after the block, so that a line feed at the end of a middle block counts.
fn block_with_end(block: &mut Vec<u8>) -> &[u8] {
    if block.ends_with(b"\n") {
        block.push(b'\n');
    }
    block
}
