//! Where a command reads and writes: the program's streams, or buffers in tests.

use std::io::{self, Read, Write};

/// Streams of a command.
pub struct Output {
    /// Results.
    pub out: Box<dyn Write + Send>,
    /// What goes to people: errors, warnings, progress.
    pub err: Box<dyn Write + Send>,
    /// What the user types or pipes.
    pub input: Box<dyn Read + Send>,
}

impl Output {
    /// The streams of the process.
    pub fn standard() -> Self {
        Self {
            out: Box::new(io::BufWriter::new(io::stdout())),
            err: Box::new(io::stderr()),
            input: Box::new(io::stdin()),
        }
    }
}
