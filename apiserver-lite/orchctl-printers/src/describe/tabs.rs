//! Columns of text with tabs: cells that end with a tab and stand below each other in lines that follow each other are one column.

/// Spaces after the widest cell of a column.
const PADDING: usize = 2;

/// Replaces tabs by spaces.
pub(super) fn align(text: &str) -> String {
    let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split('\t').collect()).collect();
    let mut out = String::with_capacity(text.len());
    // Width of each column at each line, where the line has the column.
    let mut widths: Vec<Vec<usize>> = lines.iter().map(|_| Vec::new()).collect();
    let columns = lines.iter().map(Vec::len).max().unwrap_or_default();
    for column in 0..columns {
        let has = |line: usize| lines.get(line).is_some_and(|cells| cells.len() > column + 1);
        let mut start = 0;
        while start < lines.len() {
            if !has(start) {
                start += 1;
                continue;
            }
            let end = (start..lines.len()).find(|line| !has(*line)).unwrap_or(lines.len());
            let block = lines.get(start..end).unwrap_or_default().iter();
            let longest = block.filter_map(|cells| cells.get(column)).map(|cell| len(cell)).max();
            for line in widths.get_mut(start..end).unwrap_or_default() {
                line.push(longest.unwrap_or_default() + PADDING);
            }
            start = end;
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

/// What would move a terminal's cursor or change its colours is shown instead.
fn visible(cell: &str) -> String {
    cell.replace('\u{1b}', "^[").replace('\r', "\\r")
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
