//! `ui`: nodes, pods, events and logs on the full screen, driven by keys. What keys do and what is shown is `orchctl-screen`'s; here is what it asks for.

mod feed;
mod full_screen;

use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Duration;

use feed::Feed;
use full_screen::FullScreen;
use orchctl_client::{CommandError, Output, Session};
use orchctl_screen::{KeyReader, Screen, ScreenEffect, Update};
use orchctl_streams::terminal;
use tokio::io::AsyncReadExt as _;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, oneshot};

use crate::time;

/// After this time the byte of escape alone is the key.
const KEY_PAUSE: Duration = Duration::from_millis(50);
/// Between two looks at the clock, for ages.
const TICK: Duration = Duration::from_secs(1);
/// Most updates between two pictures.
const UPDATES_MAX: usize = 256;
/// How long a terminal that takes nothing may hold the program after a signal.
const END_TIME: Duration = Duration::from_secs(2);
/// Warnings of the server that wait to be shown.
const WARNINGS_MAX: usize = 8;

/// Flags of the command.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Pods and events of all namespaces
    #[arg(long, short = 'A')]
    all_namespaces: bool,
}

/// Runs the command.
///
/// # Errors
/// There is no terminal, or it was lost; the server cannot be reached at the start.
pub async fn run(
    session: &Session,
    args: Args,
    _output: &mut Output,
) -> Result<ExitCode, CommandError> {
    if !terminal::is_terminal() || !io::IsTerminal::is_terminal(&io::stdout()) {
        return Err(CommandError::with_text(
            "ui needs a terminal: use get, events and logs without one",
        ));
    }
    // What is wrong with the configuration or the server is said before the screen is taken.
    session.names().await?;
    let namespace = session.namespace()?.to_owned();
    let signals = listen()?;
    let (warn, warnings) = mpsc::channel(WARNINGS_MAX);
    session.divert_notes(Box::new(Notes(warn)));
    let colours = session.variable("NO_COLOR").is_none_or(|value| value.is_empty());
    let screen = Screen::new(Some(namespace).filter(|_| !args.all_namespaces));
    let mut full_screen = FullScreen::enter(colours)?;
    let mut show = Show { session, screen, rows: None, answer: None };
    let ended = tokio::select! {
        ended = show.run(&mut full_screen, warnings) => ended.map(|()| ExitCode::SUCCESS),
        Ok(code) = signals => Ok(ExitCode::from(code)),
    };
    drop(full_screen);
    session.divert_notes(Box::new(io::stderr()));
    ended
}

/// Warnings of the server, each a line.
struct Notes(mpsc::Sender<Update>);

impl Write for Notes {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        let line = String::from_utf8_lossy(text).trim().to_owned();
        if !line.is_empty() {
            // With several at once the first ones are shown.
            let _ = self.0.try_send(Update::Notice(line));
        }
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Listens for signals that end the program; the exit code that says which came. A terminal that takes nothing cannot hold the program for long.
fn listen() -> io::Result<oneshot::Receiver<u8>> {
    let mut end = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut hang_up = signal(SignalKind::hangup())?;
    let (sender, receiver) = oneshot::channel();
    tokio::spawn(async move {
        let number: u8 = tokio::select! {
            _ = end.recv() => 15,
            _ = interrupt.recv() => 2,
            _ = hang_up.recv() => 1,
        };
        let code = 128 | number;
        // Without a receiver the program is at its end.
        let _ = sender.send(code);
        tokio::time::sleep(END_TIME).await;
        std::process::exit(code.into());
    });
    Ok(receiver)
}

/// The screen with what it is fed by.
struct Show<'a> {
    session: &'a Session,
    screen: Screen,
    /// The rows of the view, or its log.
    rows: Option<Feed<'a>>,
    /// The answer to a question.
    answer: Option<Feed<'a>>,
}

impl Show<'_> {
    /// Until the user ends it or the terminal is lost.
    async fn run(
        &mut self,
        full_screen: &mut FullScreen,
        mut warnings: mpsc::Receiver<Update>,
    ) -> Result<(), CommandError> {
        let mut input = tokio::io::stdin();
        let mut sizes = terminal::sizes();
        let mut reader = KeyReader::default();
        let mut bytes = [0_u8; 1024];
        let mut tick = tokio::time::interval(TICK);
        let start = self.screen.start();
        self.act(start);
        loop {
            full_screen.draw(&mut self.screen, time::now())?;
            let update = tokio::select! {
                count = input.read(&mut bytes) => {
                    let read = bytes.get(..count?).unwrap_or_default();
                    if read.is_empty() {
                        return Err(CommandError::with_text("the terminal is gone"));
                    }
                    if reader.read(read).into_iter().any(|key| self.press(key)) {
                        return Ok(());
                    }
                    continue;
                }
                () = tokio::time::sleep(KEY_PAUSE), if reader.is_waiting() => {
                    if reader.pause().is_some_and(|key| self.press(key)) {
                        return Ok(());
                    }
                    continue;
                }
                Some(_) = sizes.recv() => continue,
                _ = tick.tick() => continue,
                Some(update) = warnings.recv() => update,
                update = feed::next(&mut self.rows) => update,
                update = feed::next(&mut self.answer) => update,
            };
            self.apply(update);
            for _ in 0..UPDATES_MAX {
                let Some(update) = self.rows.as_mut().and_then(Feed::ready) else { break };
                self.apply(update);
            }
        }
    }

    /// Whether the key ends the program.
    fn press(&mut self, key: orchctl_screen::KeyPress) -> bool {
        match self.screen.press(key) {
            Some(ScreenEffect::Quit) => return true,
            Some(effect) => self.act(effect),
            None => {}
        }
        false
    }

    fn apply(&mut self, update: Update) {
        if let Some(effect) = self.screen.apply(update) {
            self.act(effect);
        }
    }

    /// Begins what the screen wants, and gives up what it wants no more.
    fn act(&mut self, effect: ScreenEffect) {
        match effect {
            ScreenEffect::Watch { view, namespace } => {
                self.answer = None;
                self.rows = Some(Feed::rows(self.session, view, namespace));
            }
            ScreenEffect::Follow { pod, container } => {
                self.answer = None;
                self.rows = Some(Feed::log(self.session, pod, container));
            }
            ScreenEffect::Ask(question, target) => {
                self.answer = Some(Feed::answer(self.session, question, target));
            }
            ScreenEffect::Forget => self.answer = None,
            ScreenEffect::Quit => {}
        }
    }
}
