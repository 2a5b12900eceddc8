//! Looks for secrets in everything that the agent leaves: its log, its journal, its files (invariant 22).

use std::fmt::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use agent_volume::mount::simulated;
use tracing::field::{Field, Visit};
use tracing::{Event, Metadata, Subscriber, span};

use super::world::{SECRET, World};

/// Reads the log of this thread for as long as it is the default.
#[derive(Clone, Default)]
pub struct Log(Arc<Mutex<Option<String>>>);

impl Log {
    /// The first line that told a secret.
    pub fn leak(&self) -> Option<String> {
        self.0.lock().expect("lock").clone()
    }

    fn read(&self, line: String) {
        if line.contains(SECRET) {
            self.0.lock().expect("lock").get_or_insert(line);
        }
    }
}

/// The fields of a line, one after the other.
#[derive(Default)]
struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        let _ = write!(self.0, " {}={value:?}", field.name());
    }
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        // The agent's own, in all detail.
        !metadata.target().starts_with("tokio")
    }

    fn new_span(&self, span: &span::Attributes<'_>) -> span::Id {
        let mut line = Line::default();
        span.record(&mut line);
        self.read(line.0);
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, values: &span::Record<'_>) {
        let mut line = Line::default();
        values.record(&mut line);
        self.read(line.0);
    }

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line::default();
        event.record(&mut line);
        self.read(line.0);
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

impl World {
    /// Secrets lie on what is in memory only, and below directories that nobody else may enter.
    pub fn judge_files(&mut self) {
        let pods = self.root.join("pods");
        let open = super::sim::entries(&pods).into_iter().find(|uid| {
            let mode = pods.join(uid).metadata().map(|meta| meta.permissions().mode());
            mode.is_ok_and(|mode| mode & 0o007 != 0)
        });
        if let Some(uid) = open {
            self.broken(format!("everybody may enter the directory of {uid}"));
        }
        let root = self.root.clone();
        if let Some(path) = leak_below(&root) {
            self.broken(format!("a secret lies on the disk in {}", path.display()));
        }
    }
}

/// A file with a secret in it, beside those in memory.
fn leak_below(directory: &Path) -> Option<PathBuf> {
    for name in super::sim::entries(directory) {
        let path = directory.join(name);
        let Ok(meta) = path.symlink_metadata() else { continue };
        if meta.is_dir() {
            if !simulated::is_mounted(&path)
                && let Some(found) = leak_below(&path)
            {
                return Some(found);
            }
        } else if meta.is_file()
            && std::fs::read(&path).is_ok_and(|bytes| holds(&bytes, SECRET.as_bytes()))
        {
            return Some(path);
        }
    }
    None
}

fn holds(bytes: &[u8], wanted: &[u8]) -> bool {
    bytes.windows(wanted.len()).any(|window| window == wanted)
}
