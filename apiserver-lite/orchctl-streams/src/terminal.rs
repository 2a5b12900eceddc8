//! The user's own terminal: raw while a command of a container has it, and its size.

use std::io::{self, IsTerminal as _};

use rustix::termios::{self, OptionalActions, Termios};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use crate::exec::Size;

/// Whether standard input is a terminal.
pub fn is_terminal() -> bool {
    io::stdin().is_terminal()
}

/// A terminal that passes every key on. Its former settings return when this is dropped.
pub struct RawMode(Termios);

impl RawMode {
    /// Changes standard input.
    ///
    /// # Errors
    /// When it is no terminal.
    pub fn enter() -> io::Result<Self> {
        let stdin = io::stdin();
        let former = termios::tcgetattr(&stdin)?;
        let mut raw = former.clone();
        raw.make_raw();
        termios::tcsetattr(&stdin, OptionalActions::Now, &raw)?;
        Ok(Self(former))
    }
}

impl Drop for RawMode {
    fn drop(&mut self) {
        // The error cannot be reported, and nothing else can be done.
        let _ = termios::tcsetattr(io::stdin(), OptionalActions::Now, &self.0);
    }
}

/// The size of the terminal, now and after each change. Ends when the receiver is dropped.
pub fn sizes() -> mpsc::Receiver<Size> {
    let (sender, receiver) = mpsc::channel(1);
    tokio::spawn(async move {
        let Ok(mut changes) = signal(SignalKind::window_change()) else { return };
        loop {
            if let Ok(size) = termios::tcgetwinsize(io::stdin()) {
                let size = Size { width: size.ws_col, height: size.ws_row };
                if sender.send(size).await.is_err() {
                    return;
                }
            }
            tokio::select! {
                changed = changes.recv() => if changed.is_none() { return },
                () = sender.closed() => return,
            }
        }
    });
    receiver
}
