//! Says what is being done and how long it took: a live line on a terminal, plain lines elsewhere.

use std::io::IsTerminal;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Result;
use indicatif::{ProgressBar, ProgressStyle};

/// Where the steps of one command are shown.
#[derive(Debug)]
pub struct Progress {
    live: bool,
    began: Instant,
    /// The live line of the step that is under way.
    spinner: Mutex<Option<ProgressBar>>,
}

impl Progress {
    /// Live when standard error is a terminal.
    pub fn new() -> Progress {
        let (live, spinner) = (std::io::stderr().is_terminal(), Mutex::default());
        Progress { live, began: Instant::now(), spinner }
    }

    /// Runs one step, showing it while it lasts and its duration when it is done.
    pub async fn step<T>(&self, what: &str, work: impl Future<Output = Result<T>>) -> Result<T> {
        let began = Instant::now();
        *self.spinner() = self.live.then(|| spinner(what));
        let outcome = work.await;
        if let Some(spinner) = self.spinner().take() {
            spinner.finish_and_clear();
        }
        let mark = if outcome.is_ok() { "ok  " } else { "FAIL" };
        eprintln!("{mark} {what:<44} {:>7}", format_duration(began.elapsed()));
        outcome
    }

    /// Shows one line of a step that is under way.
    pub fn show(&self, line: &str) {
        let line = format!("     {line}");
        match &*self.spinner() {
            Some(spinner) => spinner.println(line),
            None => eprintln!("{line}"),
        }
    }

    fn spinner(&self) -> MutexGuard<'_, Option<ProgressBar>> {
        self.spinner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Time since the command began.
    pub fn elapsed(&self) -> String {
        format_duration(self.began.elapsed())
    }
}

impl Default for Progress {
    fn default() -> Self {
        Self::new()
    }
}

fn spinner(what: &str) -> ProgressBar {
    let style = ProgressStyle::with_template("{spinner} {msg} {elapsed}")
        .unwrap_or_else(|_| ProgressStyle::default_spinner());
    let spinner = ProgressBar::new_spinner().with_style(style).with_message(what.to_owned());
    spinner.enable_steady_tick(Duration::from_millis(80));
    spinner
}

fn format_duration(duration: Duration) -> String {
    if duration < Duration::from_secs(1) {
        format!("{} ms", duration.as_millis())
    } else {
        format!("{:.1} s", duration.as_secs_f64())
    }
}
