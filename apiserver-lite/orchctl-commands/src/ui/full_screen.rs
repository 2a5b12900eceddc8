//! The terminal while the full screen has it. It is given back however the program ends: at the drop, and before the message of a panic.

use std::io::{self, Stdout, Write};
use std::sync::{Arc, Mutex, PoisonError};

use orchctl_screen::Screen;
use orchctl_streams::terminal::RawMode;
use ratatui::Terminal;
use ratatui::backend::TermionBackend;

/// To the other screen of the terminal, which has no history; no cursor.
const ENTER: &[u8] = b"\x1b[?1049h\x1b[?25l\x1b[2J";
/// Plain colours, the cursor, back to the user's screen.
const LEAVE: &[u8] = b"\x1b[0m\x1b[?25h\x1b[?1049l";

/// The settings of the terminal before; none once it is given back.
#[derive(Clone)]
struct SavedTerminal(Arc<Mutex<Option<RawMode>>>);

impl SavedTerminal {
    fn give_back(&self) {
        let former = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        if former.is_some() {
            // A terminal that is gone needs nothing back.
            let _ = write_all(LEAVE);
        }
    }
}

impl Drop for FullScreen {
    fn drop(&mut self) {
        self.taken.give_back();
    }
}

/// The terminal, taken.
pub(super) struct FullScreen {
    terminal: Terminal<TermionBackend<Stdout>>,
    taken: SavedTerminal,
    colours: bool,
}

impl FullScreen {
    /// Takes the terminal.
    pub(super) fn enter(colours: bool) -> io::Result<Self> {
        let taken = SavedTerminal(Arc::new(Mutex::new(Some(RawMode::enter()?))));
        let at_panic = taken.clone();
        let former = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            at_panic.give_back();
            former(panic);
        }));
        let begun = write_all(ENTER);
        let terminal = begun.and_then(|()| Terminal::new(TermionBackend::new(io::stdout())));
        match terminal {
            Ok(terminal) => Ok(Self { terminal, taken, colours }),
            Err(error) => {
                taken.give_back();
                Err(error)
            }
        }
    }

    /// Shows the screen as it is now.
    pub(super) fn draw(&mut self, screen: &mut Screen, now: i64) -> io::Result<()> {
        let colours = self.colours;
        self.terminal.draw(|frame| {
            screen.resize(frame.area().height);
            orchctl_screen::draw(screen, frame, now, colours);
        })?;
        Ok(())
    }
}

fn write_all(bytes: &[u8]) -> io::Result<()> {
    let mut out = io::stdout();
    out.write_all(bytes)?;
    out.flush()
}
