//! A real terminal: tmux, which keys are sent to and whose picture is read.

use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// How long the terminal may take to show something, on a busy machine.
const SHOWN_WITHIN: Duration = Duration::from_secs(60);

/// A terminal with a shell. It ends when this is dropped.
pub(crate) struct Terminal {
    socket: String,
}

/// Whether there is such a terminal here.
pub(crate) fn is_here() -> bool {
    Command::new("tmux").arg("-V").output().is_ok_and(|output| output.status.success())
}

impl Terminal {
    /// With a shell that runs this line, and then stays.
    pub(crate) fn start(directory: &Path, width: u16, height: u16, line: &str) -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let socket = directory.join(format!("tmux-{count}")).display().to_string();
        let terminal = Self { socket };
        let (width, height) = (width.to_string(), height.to_string());
        let line = format!("{line}; sleep 600");
        terminal.tmux(&[
            "-f",
            "/dev/null",
            "new-session",
            "-d",
            "-x",
            &width,
            "-y",
            &height,
            "sh",
            "-c",
            &line,
        ]);
        terminal
    }

    fn tmux(&self, arguments: &[&str]) -> String {
        let output = Command::new("tmux")
            .args(["-u", "-S", &self.socket])
            .args(arguments)
            .env_remove("TMUX")
            .env("LC_ALL", "C.UTF-8")
            .output()
            .expect("tmux");
        let err = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "tmux {arguments:?}: {err}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Types keys, by tmux's names.
    pub(crate) fn press(&self, keys: &[&str]) {
        self.tmux(&[&["send-keys"], keys].concat());
    }

    /// What it shows.
    pub(crate) fn text(&self) -> String {
        self.tmux(&["capture-pane", "-p"])
    }

    /// What it shows, with the sequences of its colours.
    pub(crate) fn coloured(&self) -> String {
        self.tmux(&["capture-pane", "-p", "-e"])
    }

    /// Waits until it shows this.
    pub(crate) fn wait_for(&self, wanted: &str) -> String {
        self.wait_until(&format!("{wanted:?}"), |text| text.contains(wanted))
    }

    /// Waits until what it shows is so.
    pub(crate) fn wait_until(&self, what: &str, is_so: impl Fn(&str) -> bool) -> String {
        let begun = Instant::now();
        loop {
            let text = self.text();
            if is_so(&text) {
                return text;
            }
            assert!(begun.elapsed() < SHOWN_WITHIN, "{what} is not shown, but:\n{text}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    pub(crate) fn resize(&self, width: u16, height: u16) {
        let (width, height) = (width.to_string(), height.to_string());
        self.tmux(&["resize-window", "-x", &width, "-y", &height]);
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = Command::new("tmux").args(["-S", &self.socket, "kill-server"]).output();
    }
}
