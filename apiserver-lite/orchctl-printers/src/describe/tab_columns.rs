//! Columns of text with tabs: cells that end with a tab and stand below each other in lines that follow each other are one column.

use crate::terminal::visible;

/// Spaces after the widest cell of a column.
const PADDING: usize = 2;

/// Replaces tabs by spaces.
pub(super) fn align(text: &str) -> String {
    let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split('\t').collect()).collect();
    let mut out = String::with_capacity(text.len());
    // Width of each column at each line, where the line has the column.
    let mut widths: Vec<Vec<usize>> = lines.iter().map(|_| Vec::new()).collect();
    // Lines that have the column; each cell is visited once.
    let mut having: Vec<usize> = (0..lines.len()).collect();
    for column in 0.. {
        let cells = |line: usize| lines.get(line).map_or(&[][..], Vec::as_slice);
        having.retain(|line| cells(*line).len() > column + 1);
        if having.is_empty() {
            break;
        }
        for block in having.chunk_by(|line, next| line + 1 == *next) {
            let found = block.iter().filter_map(|line| cells(*line).get(column));
            let longest = found.map(|cell| len(cell)).max().unwrap_or_default();
            for line in block {
                if let Some(widths) = widths.get_mut(*line) {
                    widths.push(longest + PADDING);
                }
            }
        }
    }
    for (cells, widths) in lines.iter().zip(&widths) {
        for (at, cell) in cells.iter().enumerate() {
            let shown = visible(cell);
            out.push_str(&shown);
            if let Some(width) = widths.get(at) {
                out.extend(std::iter::repeat_n(' ', width.saturating_sub(len(cell))));
            }
        }
        out.push('\n');
    }
    out
}

fn len(cell: &str) -> usize {
    visible(cell).chars().count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_end_where_a_line_lacks_them() {
        let text = "Name:\ta\nLonger:\tb\nno cell\nX:\t1\t2\nYY:\t333\t4\n";
        let wanted = "Name:    a\nLonger:  b\nno cell\nX:   1    2\nYY:  333  4\n";
        assert_eq!(align(text), wanted);
    }

    #[test]
    fn empty_cells_have_a_width() {
        assert_eq!(align("a:\tx\n\ty\n"), "a:  x\n    y\n");
        assert_eq!(align("a\u{1b}[1m:\tx\n"), "a^[[1m:  x\n");
    }
}
