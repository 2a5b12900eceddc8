//! Rows in aligned columns: every cell but the last of a row is padded to its column's width and three spaces.

use crate::terminal::visible;
use crate::tone::{PLAIN, Tone};

/// Cells of a row.
pub type Row = Vec<String>;

/// Narrowest column with its padding.
const WIDTH_MIN: usize = 6;
/// Spaces after the widest cell of a column.
const PADDING: usize = 3;

/// Widths of columns. They are remembered, so that rows that come later stand below the earlier ones.
#[derive(Clone, Debug, Default)]
pub struct ColumnWidths {
    widths: Vec<usize>,
    padding: Option<usize>,
    width_min: Option<usize>,
}

impl ColumnWidths {
    /// With this many spaces after the widest cell and this least width.
    pub fn spaced(width_min: usize, padding: usize) -> Self {
        Self { widths: Vec::new(), padding: Some(padding), width_min: Some(width_min) }
    }

    /// The rows as lines.
    pub fn render(&mut self, rows: &[Row]) -> String {
        self.render_coloured(rows, None)
    }

    /// The rows as lines, with the states of a column in their colours.
    pub fn render_coloured(&mut self, rows: &[Row], states: Option<usize>) -> String {
        let rows: Vec<Row> = rows
            .iter()
            .map(|row| row.iter().map(|cell| visible(cell).into_owned()).collect())
            .collect();
        let padding = self.padding.unwrap_or(PADDING);
        let width_min = self.width_min.unwrap_or(WIDTH_MIN);
        for row in &rows {
            let padded = row.len().saturating_sub(1);
            for (at, cell) in row.iter().take(padded).enumerate() {
                let width = (cell.chars().count() + padding).max(width_min);
                match self.widths.get_mut(at) {
                    Some(known) => *known = width.max(*known),
                    None => self.widths.push(width),
                }
            }
        }
        let mut out = String::new();
        for row in &rows {
            for (at, cell) in row.iter().enumerate() {
                match Tone::of_status(cell).filter(|_| states == Some(at)) {
                    Some(tone) => out.extend([tone.colour(), cell, PLAIN]),
                    None => out.push_str(cell),
                }
                if at + 1 < row.len() {
                    let width = self.widths.get(at).copied().unwrap_or_default();
                    let spaces = width.saturating_sub(cell.chars().count());
                    out.extend(std::iter::repeat_n(' ', spaces));
                }
            }
            out.push('\n');
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(cells: &[&str]) -> Row {
        cells.iter().map(|cell| (*cell).to_owned()).collect()
    }

    #[test]
    fn the_last_cell_is_not_padded() {
        let rows = [row(&["A", "NAME", "X"]), row(&["1", "é-long", "last"])];
        assert_eq!(
            ColumnWidths::default().render(&rows),
            "A     NAME     X\n1     é-long   last\n"
        );
    }

    #[test]
    fn colours_are_those_of_states_alone_and_take_no_width() {
        let rows = [row(&["STATUS", "X"]), row(&["Running", "Running"]), row(&["\u{1b}[1m", "x"])];
        assert_eq!(
            ColumnWidths::default().render_coloured(&rows, Some(0)),
            "STATUS    X\n\u{1b}[32mRunning\u{1b}[0m   Running\n^[[1m     x\n"
        );
    }

    #[test]
    fn objects_cannot_speak_to_the_terminal() {
        let rows = [row(&["\u{1b}[31mred\r", "x"])];
        assert_eq!(ColumnWidths::default().render(&rows), "^[[31mred\\r   x\n");
    }

    #[test]
    fn later_rows_stand_below_earlier_ones() {
        let mut layout = ColumnWidths::default();
        layout.render(&[row(&["a-long-name", "x"])]);
        assert_eq!(layout.render(&[row(&["b", "y"])]), "b             y\n");
    }
}
