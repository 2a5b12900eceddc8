//! Damages a small store at one position after another and opens it: what opening returns, and whether acknowledged writes are
//! missing silently.

#[path = "../transform/support.rs"]
mod support;

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs::{self, File},
    os::unix::fs::FileExt as _,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    sync::Arc,
};

use apiserver_store::{
    Medium, OnDamage, OpenError, Range, Revision, Store, StoreConfig, StoreIdentity, Transform,
    Write, WriteCondition,
};
use bytes::Bytes;

use support::Shift;

/// Length of a segment's header.
const HEADER_LEN: u64 = 24;

/// How many of the possible positions are tried: one in this many.
#[derive(Clone, Copy)]
pub struct Effort {
    /// Of the bytes of the log and of the acknowledged revision.
    pub log_step: usize,
    /// Of the nonzero bytes of the checkpoint.
    pub checkpoint_step: usize,
    /// Whether single bits are flipped as well as whole bytes.
    pub bits: bool,
    /// How values lie on disk.
    pub values: Values,
}

/// How values lie on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Values {
    /// As they are.
    Plain,
    /// Transformed, those of every second key.
    Transformed,
}

/// Result of opening the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum OpenOutcome {
    /// Everything is there.
    Whole,
    /// Refused, with file, offset and revisions.
    Damaged,
    /// Refused: the checkpoint.
    Checkpoint,
    /// Refused because of a panic in redb.
    Panicked,
    /// Opened without the last writes, which were set aside and logged.
    SetAside,
    /// Opened with missing or different content.
    LostInSilence,
}

const OUTCOMES: [(OpenOutcome, &str); 6] = [
    (OpenOutcome::Whole, "opened, all there"),
    (OpenOutcome::Damaged, "refused: log"),
    (OpenOutcome::Checkpoint, "refused: checkpoint"),
    (OpenOutcome::Panicked, "refused: panic in redb"),
    (OpenOutcome::SetAside, "opened, tail set aside and logged"),
    (OpenOutcome::LostInSilence, "lost in silence"),
];

/// Damage of a file.
#[derive(Clone, Copy, Debug)]
enum Damage {
    Cut(u64),
    Flip { offset: u64, with: u8 },
    Remove,
}

type Row = (String, BTreeMap<OpenOutcome, usize>);

/// The results by row.
pub struct Table {
    rows: Vec<Row>,
    /// The first loss, for a failing test.
    pub first_loss: Option<String>,
}

impl Table {
    /// Number of results `answer` in rows whose name contains `row`.
    pub fn count(&self, row: &str, answer: OpenOutcome) -> usize {
        let rows = self.rows.iter().filter(|(name, _)| name.contains(row));
        rows.filter_map(|(_, counts)| counts.get(&answer)).sum()
    }

    /// As Markdown.
    pub fn text(&self) -> String {
        let mut text = String::from("| harm | tried |");
        OUTCOMES.iter().for_each(|(_, name)| write!(text, " {name} |").unwrap());
        text.push_str("\n|---|---|");
        OUTCOMES.iter().for_each(|_| text.push_str("---|"));
        for (name, counts) in &self.rows {
            write!(text, "\n| {name} | {} |", counts.values().sum::<usize>()).unwrap();
            for (answer, _) in OUTCOMES {
                write!(text, " {} |", counts.get(&answer).copied().unwrap_or_default()).unwrap();
            }
        }
        text.push('\n');
        text
    }
}

fn config(path: &Path, values: Values) -> StoreConfig {
    let identity = StoreIdentity { profile: "orch".into(), domain: "example.org".into() };
    let config = StoreConfig::new(Medium::Directory(path.to_owned()), identity);
    let shift = (values == Values::Transformed).then(|| Shift::new(&[3]));
    let transform = shift.map(|shift| Arc::new(shift) as Arc<dyn Transform>);
    StoreConfig { segment_len_max: 168, transform, ..config }
}

type Content = BTreeMap<String, (u64, Bytes)>;

fn content(store: &Store<Bytes>) -> (Revision, Content) {
    let page = store.snapshot().range(Range::default()).unwrap();
    let entries = page.entries.into_iter();
    let records = entries.map(|entry| {
        (entry.key.to_string(), (entry.stamp.modified.0, Bytes::clone(&entry.record)))
    });
    (store.revision(), records.collect())
}

/// A store whose checkpoint is several segments behind.
pub struct Sample {
    directory: tempfile::TempDir,
    /// Acknowledged revision of the second to last write.
    lagging: Vec<u8>,
    /// Where the last frame starts.
    last_frame: u64,
    revision: Revision,
    content: Content,
    values: Values,
}

/// A directory in a memory file system if there is one, because there are thousands of openings with syncs.
fn directory() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

fn files(directory: &Path, prefix: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let starts = |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().starts_with(prefix);
    let mut files: Vec<PathBuf> = entries.filter(starts).collect();
    files.sort();
    files
}

fn content_len(path: &Path) -> u64 {
    let bytes = fs::read(path).unwrap();
    bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last as u64 + 1)
}

impl Sample {
    pub async fn make(values: Values) -> Self {
        let live = directory();
        let kept = directory();
        let path = live.path();
        let store = Store::<Bytes>::open(config(path, values)).unwrap();
        for nth in 0..12 {
            write(&store, nth).await;
        }
        store.close().await;
        // The current checkpoint, and every segment from here on.
        fs::copy(path.join("records.redb"), kept.path().join("records.redb")).unwrap();
        let store = Store::<Bytes>::open(config(path, values)).unwrap();
        let (mut lagging, mut last_frame) = (Vec::new(), 0);
        for nth in 12..60 {
            lagging = fs::read(path.join("acknowledged")).unwrap();
            last_frame = files(path, "log.").last().map_or(0, |log| content_len(log));
            write(&store, nth).await;
            for log in files(path, "log.") {
                let _ = fs::hard_link(&log, kept.path().join(log.file_name().unwrap()));
            }
            // The last segment has more than one frame.
            let end = files(path, "log.").last().map_or(0, |log| content_len(log));
            if nth > 27 && last_frame > HEADER_LEN && end > last_frame {
                break;
            }
        }
        let (revision, content) = content(&store);
        store.close().await;
        fs::copy(path.join("acknowledged"), kept.path().join("acknowledged")).unwrap();
        // Trying most zeros after closed segments only takes time.
        for log in files(kept.path(), "log.").iter().rev().skip(1) {
            let len = content_len(log) + 32;
            File::options().write(true).open(log).unwrap().set_len(len).unwrap();
        }
        let sample = Self { directory: kept, lagging, last_frame, revision, content, values };
        assert!(sample.logs().len() >= 4, "{:?}", sample.logs());
        assert!(content_len(sample.logs().last().unwrap()) > last_frame && last_frame > HEADER_LEN);
        sample
    }

    fn logs(&self) -> Vec<PathBuf> {
        files(self.directory.path(), "log.")
    }

    /// A copy to be damaged.
    fn copy(&self) -> tempfile::TempDir {
        let copy = directory();
        for file in files(self.directory.path(), "") {
            fs::copy(&file, copy.path().join(file.file_name().unwrap())).unwrap();
        }
        copy
    }

    async fn open_damaged(&self, name: &str, harm: Damage, lagging: bool) -> (OpenOutcome, String) {
        let copy = self.copy();
        let path = copy.path().join(name);
        if lagging {
            fs::write(copy.path().join("acknowledged"), &self.lagging).unwrap();
        }
        inflict(&path, harm);
        let config = config(copy.path(), self.values);
        let opened = catch_unwind(AssertUnwindSafe(|| Store::<Bytes>::open(config)));
        let store = match opened {
            Err(_) => return (OpenOutcome::Panicked, String::new()),
            Ok(Err(error @ OpenError::Damaged(_))) => {
                return (OpenOutcome::Damaged, error.to_string());
            }
            Ok(Err(error)) => return (OpenOutcome::Checkpoint, error.to_string()),
            Ok(Ok(store)) => store,
        };
        let found = content(&store);
        store.close().await;
        if found == (self.revision, self.content.clone()) {
            return (OpenOutcome::Whole, String::new());
        }
        let aside =
            files(copy.path(), "log.").iter().any(|path| path.to_string_lossy().contains(".torn-"));
        let answer = if aside { OpenOutcome::SetAside } else { OpenOutcome::LostInSilence };
        (answer, format!("{name}, {harm:?}: revision {} of {}", found.0, self.revision))
    }
}

async fn write(store: &Store<Bytes>, nth: usize) {
    let secret = nth.is_multiple_of(2);
    let key = format!("{}/{}", if secret { "secrets" } else { "key" }, nth % 7);
    let write = match nth % 5 {
        4 => Write::Delete { key, expect: WriteCondition::Anything },
        _ => {
            let draft = Bytes::from(format!("value {nth}"));
            Write::Put { key, expect: WriteCondition::Anything, draft }
        }
    };
    // A key that is not there cannot be deleted.
    let _ = store.write(write).await;
}

fn inflict(path: &Path, harm: Damage) {
    if let Damage::Remove = harm {
        return fs::remove_file(path).unwrap();
    }
    let file = File::options().read(true).write(true).open(path).unwrap();
    match harm {
        Damage::Cut(len) => file.set_len(len).unwrap(),
        Damage::Flip { offset, with } => {
            let mut byte = [0];
            file.read_exact_at(&mut byte, offset).unwrap();
            file.write_all_at(&[byte[0] ^ with], offset).unwrap();
        }
        Damage::Remove => {}
    }
}

/// All positions of a file's content, and some of the zeros after it.
fn places(path: &Path, step: usize) -> Vec<u64> {
    let content = content_len(path);
    let len = fs::metadata(path).unwrap().len();
    let zeros = (content..len).step_by(61_441).chain([content + 1, content + 7, content + 8]);
    (0..content).step_by(step).chain(zeros.filter(|place| *place < len)).collect()
}

fn flips(places: &[u64], bits: bool) -> Vec<Damage> {
    let each = |offset: &u64| {
        let offset = *offset;
        let masks = if bits { vec![0xff, 1 << (offset % 8)] } else { vec![0xff] };
        masks.into_iter().map(move |with| Damage::Flip { offset, with })
    };
    places.iter().flat_map(each).collect()
}

fn cuts(places: &[u64]) -> Vec<Damage> {
    places.iter().map(|place| Damage::Cut(*place)).collect()
}

/// A row of the table: name, damage by file, and whether the acknowledged revision lags by one write.
type Tries = (&'static str, Vec<(String, Damage)>, bool);

/// Tries all of it.
pub async fn table(effort: Effort) -> Table {
    let sample = Sample::make(effort.values).await;
    let name = |path: &Path| path.file_name().unwrap().to_str().unwrap().to_owned();
    let logs = sample.logs();
    let (last, closed) = logs.split_last().unwrap();
    let mut tries: Vec<Tries> = Vec::new();
    let on = |path: &Path, harms: Vec<Damage>| -> Vec<(String, Damage)> {
        harms.into_iter().map(|harm| (name(path), harm)).collect()
    };
    let each = |make: &dyn Fn(&[u64]) -> Vec<Damage>| -> Vec<(String, Damage)> {
        closed.iter().flat_map(|log| on(log, make(&places(log, effort.log_step)))).collect()
    };
    tries.push(("closed segment: cut", each(&cuts), false));
    tries.push(("closed segment: flip", each(&|places| flips(places, effort.bits)), false));
    let removed = closed.iter().flat_map(|log| on(log, vec![Damage::Remove])).collect();
    tries.push(("closed segment: removed", removed, false));
    let of_last = places(last, effort.log_step);
    tries.push(("last segment: cut", on(last, cuts(&of_last)), false));
    tries.push(("last segment: flip", on(last, flips(&of_last, effort.bits)), false));
    tries.push(("last segment: removed", on(last, vec![Damage::Remove]), false));
    let note = sample.directory.path().join("acknowledged");
    let of_note = places(&note, effort.log_step);
    tries.push(("acknowledged revision: cut", on(&note, cuts(&of_note)), false));
    tries.push(("acknowledged revision: flip", on(&note, flips(&of_note, effort.bits)), false));
    tries.push(("acknowledged revision: removed", on(&note, vec![Damage::Remove]), false));
    let checkpoint = sample.directory.path().join("records.redb");
    let of_checkpoint = used(&checkpoint, effort.checkpoint_step);
    tries.push(("checkpoint: cut", on(&checkpoint, cuts(&of_checkpoint)), false));
    tries.push(("checkpoint: flip", on(&checkpoint, flips(&of_checkpoint, false)), false));
    tries.push(("checkpoint: removed", on(&checkpoint, vec![Damage::Remove]), false));
    let (before, in_last): (Vec<u64>, Vec<u64>) = places(last, 1)
        .into_iter()
        .filter(|at| *at < content_len(last))
        .partition(|at| *at < sample.last_frame);
    let older = on(last, flips(&before, false));
    tries.push((
        "two at once: note lags by one write (power cut), flip before the last frame",
        older,
        true,
    ));
    let torn = on(last, flips(&in_last, false));
    tries.push((
        "two at once: note lags by one write (power cut), flip in the last frame",
        torn,
        true,
    ));

    let mut table = Table { rows: Vec::new(), first_loss: None };
    for (row, harms, lagging) in tries {
        let mut counts = BTreeMap::new();
        for (file, harm) in harms {
            let (answer, what) = sample.open_damaged(&file, harm, lagging).await;
            *counts.entry(answer).or_default() += 1;
            if answer == OpenOutcome::LostInSilence {
                table.first_loss.get_or_insert(what);
            }
        }
        table.rows.push((row.to_owned(), counts));
    }
    table
}

/// Nonzero positions of a file, one in `step`.
fn used(path: &Path, step: usize) -> Vec<u64> {
    let bytes = fs::read(path).unwrap();
    let used = bytes.iter().enumerate().filter(|(_, byte)| **byte != 0);
    used.map(|(at, _)| at as u64).step_by(step).collect()
}

/// Accepting the damage keeps the writes before it, sets files aside, and continues above all revisions seen.
pub async fn accepted(values: Values) {
    let sample = Sample::make(values).await;
    let logs = sample.logs();
    for nth in 0..logs.len() {
        let copy = sample.copy();
        let path = copy.path().join(logs[nth].file_name().unwrap());
        inflict(&path, Damage::Flip { offset: HEADER_LEN + 1, with: 1 });
        let refused = Store::<Bytes>::open(config(copy.path(), values)).err().unwrap();
        let OpenError::Damaged(damage) = &refused else { panic!("{refused}") };
        assert_eq!((&damage.path, damage.offset), (&path, HEADER_LEN), "{damage}");
        let names = |prefix: &str| files(copy.path(), prefix).len();
        assert_eq!(names("log."), logs.len(), "nothing is changed");
        let accept = StoreConfig { on_damage: OnDamage::SetAside, ..config(copy.path(), values) };
        let store = Store::<Bytes>::open(accept).unwrap();
        let (revision, kept) = content(&store);
        assert_eq!(revision, sample.revision);
        assert!(kept.values().all(|(modified, _)| *modified < damage.first.0));
        let aside = files(copy.path(), "log.");
        let aside = aside.iter().filter(|path| path.to_string_lossy().ends_with(".damaged-1"));
        assert_eq!(aside.count(), logs.len());
        let write = Write::create("new", Bytes::new());
        assert_eq!(store.write(write).await.unwrap().revision, sample.revision.next());
        store.close().await;
        let store = Store::<Bytes>::open(config(copy.path(), values)).unwrap();
        assert_eq!(store.revision(), sample.revision.next());
        assert!(store.snapshot().get("new").unwrap().is_some());
        store.close().await;
    }
}
