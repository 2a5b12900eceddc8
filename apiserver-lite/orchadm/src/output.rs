//! What a command says: lines for people as kubeadm has them, or one JSON object a line. What the text of a server could do to the terminal is
//! shown instead of done.

use clap::ValueEnum;
use orchctl_printers::terminal::visible;
use serde_json::{Value, json};

/// Form of the output (`-o`, `--output`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum OutputFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// Where a command's lines go.
#[derive(Clone, Copy, Debug)]
pub struct LineOutput {
    /// Its form.
    pub format: OutputFormat,
}

impl LineOutput {
    /// Progress: what was done in a phase.
    pub fn log(&self, phase: &str, message: &str) {
        match self.format {
            OutputFormat::Text => println!("[{phase}] {}", visible(message)),
            OutputFormat::Json => println!("{}", json!({"phase": phase, "message": message})),
        }
    }

    /// Something to know that stops nothing.
    pub fn warn(&self, phase: &str, name: &str, message: &str) {
        match self.format {
            OutputFormat::Text => eprintln!("[{phase}] [WARNING {name}]: {}", visible(message)),
            OutputFormat::Json => {
                println!("{}", json!({"phase": phase, "warning": name, "message": message}));
            }
        }
    }

    /// The same for several of one name.
    pub fn warn_all(&self, phase: &str, name: &str, messages: &[String]) {
        messages.iter().for_each(|message| self.warn(phase, name, message));
    }

    /// The result of a command: a text, or its value as JSON.
    pub fn result(&self, text: &str, value: &Value) {
        match self.format {
            OutputFormat::Text => println!("{}", visible(text.trim_end())),
            OutputFormat::Json => println!("{value}"),
        }
    }
}

/// Rows of texts in columns.
pub fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or_default();
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|text| text.chars().count()).max()
    };
    let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or_default()).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).map(|(text, width)| format!("{text:<width$}"));
        cells.collect::<Vec<_>>().join("   ").trim_end().to_owned()
    };
    rows.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// A time that is left, in its largest unit, as kubectl shows ages.
pub fn residual(seconds: i64) -> String {
    match seconds {
        ..=0 => "<invalid>".to_owned(),
        1..120 => format!("{seconds}s"),
        120..10_800 => format!("{}m", seconds / 60),
        10_800..172_800 => format!("{}h", seconds / 3600),
        172_800..63_072_000 => format!("{}d", seconds / 86_400),
        _ => format!("{}y", seconds / 31_536_000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_text() {
        let rows = [vec!["A".to_owned(), "B".to_owned()], vec!["long".to_owned(), "x".to_owned()]];
        assert_eq!(table(&rows), "A      B\nlong   x");
    }

    #[test]
    fn residual_time_is_shown_in_its_largest_unit() {
        for (seconds, text) in [
            (-1, "<invalid>"),
            (5, "5s"),
            (3600, "60m"),
            (86_400, "24h"),
            (86_400 * 364, "364d"),
            (31_536_000 * 10, "10y"),
        ] {
            assert_eq!(residual(seconds), text);
        }
    }
}
