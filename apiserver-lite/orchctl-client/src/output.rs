//! Where a command reads and writes: the program's streams, or buffers in tests.

use std::io::{self, IsTerminal as _, Read, Write};

use orchctl_printers::terminal::visible;

/// Streams of a command.
pub struct Output {
    /// Results.
    pub out: Box<dyn Write + Send>,
    /// What goes to people: errors, warnings, progress.
    pub err: Box<dyn Write + Send>,
    /// What the user types or pipes.
    pub input: Box<dyn Read + Send>,
    /// Whether results may have colours: only on a terminal, and not if the user wants none.
    pub colours: bool,
}

impl Output {
    /// The streams of the process; its environment says whether the user wants colours.
    pub fn standard(environment: impl Fn(&str) -> Option<String>) -> Self {
        let unwanted = environment("NO_COLOR").is_some_and(|value| !value.is_empty())
            || environment("TERM").is_none_or(|terminal| terminal == "dumb");
        Self {
            out: Box::new(io::BufWriter::new(io::stdout())),
            err: Box::new(VisibleText(io::stderr())),
            input: Box::new(io::stdin()),
            colours: !unwanted && io::stdout().is_terminal(),
        }
    }
}

/// Writes text for people: what would act on their terminal is shown instead, from any source: a server, a container, a file.
pub struct VisibleText<W>(pub W);

impl<W: Write> Write for VisibleText<W> {
    fn write(&mut self, piece: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(piece);
        self.0.write_all(visible(&text).as_bytes())?;
        Ok(piece.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_in_messages_are_escaped() {
        let mut shown = Vec::new();
        let name = "\u{1b}]0;title\u{7}.txt\r";
        writeln!(VisibleText(&mut shown), "warning: skipping {name}: ü").expect("written");
        assert_eq!(
            String::from_utf8_lossy(&shown),
            "warning: skipping ^[]0;title\\u{7}.txt\\r: ü\n"
        );
    }
}
