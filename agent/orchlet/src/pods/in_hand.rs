//! Which pods the agent computes for at this moment, in a file that outlives a process that is killed, and how often the agent ended
//! while it did.
//!
//! A line of fixed length for each pod that has a task. Its first byte is set for as long as the pod's task is polled and no longer, so
//! that a pod that only waits for the runtime is no suspect when the agent is killed. Nothing is synchronized: what a process has
//! written stays in the page cache when it is killed or aborts, and after a loss of power every pod gets its chances anew.

use std::collections::BTreeMap;
use std::fs::File;
use std::future::Future;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use proto_api::core::v1::Pod;
use proto_daemon::private_files;

/// Bytes of a line, its end included.
const LINE_BYTES: usize = 160;
/// Longest uid that has a line.
const UID_BYTES_MAX: usize = 120;
/// Most lines that are read: more than a node has pods.
const LINES_MAX: usize = 8192;
/// Ends of the agent one after the other, in each of which a pod was in hand, that make it a suspect by itself.
pub const ENDS_MAX: u32 = 2;

/// What is known of one pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Line {
    /// UID of the pod.
    pub uid: String,
    /// Whether the agent was computing for it.
    pub is_in_hand: bool,
    /// Whether it was not handled at all: its turn had not come, since another suspect was tried, or its source had not spoken.
    pub is_kept: bool,
    /// Ends of the agent in a row in which it was in hand.
    pub ends: u32,
    /// Whether it is not handled any more.
    pub is_quarantined: bool,
    /// What the pod was like; see [`content`].
    pub content: u64,
}

impl Line {
    /// Whether it has to be tried while no other suspect is.
    pub fn is_on_trial(&self) -> bool {
        self.ends >= ENDS_MAX && !self.is_quarantined
    }

    fn write(&self) -> Vec<u8> {
        let flag = |flag: bool| if flag { '1' } else { '0' };
        let [hand, kept, quarantined] =
            [self.is_in_hand, self.is_kept, self.is_quarantined].map(flag);
        let ends = self.ends.min(9999);
        let text =
            format!("{hand}{kept}{quarantined} {ends:04} {:016x} {}", self.content, self.uid);
        let mut bytes = text.into_bytes();
        bytes.resize(LINE_BYTES - 1, b' ');
        bytes.push(b'\n');
        bytes
    }

    /// Nothing of a line that is damaged or was not written to its end.
    fn read(bytes: &[u8]) -> Option<Self> {
        let mut parts = std::str::from_utf8(bytes).ok()?.split_ascii_whitespace();
        let flags: [u8; 3] = parts.next()?.as_bytes().try_into().ok()?;
        let [is_in_hand, is_kept, is_quarantined] = flags.map(|flag| flag == b'1');
        let ends = parts.next()?.parse().ok()?;
        let content = u64::from_str_radix(parts.next()?, 16).ok()?;
        let uid = parts.next()?.to_owned();
        Some(Self { uid, is_in_hand, is_kept, ends, is_quarantined, content })
    }
}

/// What an end of the agent says of the pods that it left, by uid; only those that are under suspicion. One that was in hand in two
/// ends in a row, and in the last one alone among such, is quarantined; where there are several they are tried one at a time.
pub fn judge(left: Vec<Line>) -> BTreeMap<String, Line> {
    let counted = left.into_iter().map(|line| {
        let ends = match () {
            () if line.is_in_hand => line.ends.saturating_add(1),
            () if line.is_quarantined || line.is_kept => line.ends,
            () => 0,
        };
        Line { ends, ..line }
    });
    let mut all: Vec<Line> = counted.filter(|line| line.ends > 0).collect();
    let is_prime = |line: &Line| line.is_in_hand && line.is_on_trial();
    let is_alone = all.iter().filter(|line| is_prime(line)).count() == 1;
    for line in &mut all {
        line.is_quarantined |= is_alone && is_prime(line);
        (line.is_in_hand, line.is_kept) = (false, true);
    }
    all.into_iter().map(|line| (line.uid.clone(), line)).collect()
}

/// A number for what a user can change of a pod: its specification, labels and annotations.
pub fn content(pod: &Pod) -> u64 {
    let mut hash = DefaultHasher::new();
    serde_json::to_vec(&pod.spec).unwrap_or_default().hash(&mut hash);
    (&pod.metadata.labels, &pod.metadata.annotations).hash(&mut hash);
    hash.finish()
}

/// The file, and what it said when it was opened.
#[derive(Clone, Debug, Default)]
pub struct InHand(Arc<Mutex<Lines>>);

#[derive(Debug, Default)]
struct Lines {
    file: Option<Arc<Marks>>,
    lines: BTreeMap<String, (u64, Line)>,
    free: Vec<u64>,
    next: u64,
}

impl InHand {
    /// Opens the file at `path`, judges what an agent before has left in it, and begins it anew with that.
    ///
    /// # Errors
    /// The file cannot be read or written.
    pub fn open(path: &Path) -> io::Result<Self> {
        let judged = judge(read(path)?);
        let new = path.with_extension("new");
        match std::fs::remove_file(&new) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = private_files::create_private(&new)?;
        let mut lines = Lines::default();
        for (uid, line) in judged {
            file.write_all(&line.write())?;
            lines.lines.insert(uid, (lines.next, line));
            lines.next = lines.next.saturating_add(1);
        }
        // Once at each start: who is quarantined stays so after a loss of power as well.
        file.sync_all()?;
        std::fs::rename(&new, path)?;
        lines.file = Some(Arc::new(Marks { file, closed: AtomicBool::new(false) }));
        Ok(Self(Arc::new(Mutex::new(lines))))
    }

    /// The mark of a pod, whose task begins. What was known of it is kept.
    pub fn hand(&self, uid: &str, content: u64) -> Hand {
        let mut lines = self.lock();
        let known = lines.line(uid).unwrap_or_default();
        let mut line = Line { uid: uid.to_owned(), is_kept: false, ..known };
        if !line.is_quarantined && line.content != content {
            (line.ends, line.content) = (0, content);
        }
        match lines.put(line) {
            Some(at) => Hand { file: lines.file.clone(), at, depth: Arc::default() },
            None => Hand::default(),
        }
    }

    /// What is known of a pod.
    pub fn line(&self, uid: &str) -> Option<Line> {
        self.lock().line(uid)
    }

    /// Pods that are under suspicion, by uid.
    #[cfg(test)]
    pub fn suspects(&self) -> Vec<String> {
        let lines = self.lock();
        let all = lines.lines.iter().filter(|(_, (_, line))| line.ends > 0);
        all.map(|(uid, _)| uid.clone()).collect()
    }

    /// Changes what is known of a pod, which is made known if it was not; what is known then.
    pub fn change(&self, uid: &str, change: impl FnOnce(&mut Line)) -> Line {
        let mut lines = self.lock();
        let mut line = lines.line(uid).unwrap_or_default();
        uid.clone_into(&mut line.uid);
        change(&mut line);
        lines.put(line.clone());
        line
    }

    /// Forgets a pod of which nothing is left.
    pub fn forget(&self, uid: &str) {
        let mut lines = self.lock();
        if let Some((at, _)) = lines.lines.remove(uid) {
            lines.write(at, &Line::default());
            lines.free.push(at);
        }
    }

    /// The agent ends in good order: whatever is still being done, nobody is to blame.
    pub fn close(&self) {
        let lines = self.lock();
        let Some(marks) = &lines.file else { return };
        marks.closed.store(true, Ordering::SeqCst);
        for (at, _) in lines.lines.values() {
            marks.write(*at, false);
        }
    }

    /// Forgets all suspicions short of quarantine: the agent has run for long enough.
    pub fn settle(&self) {
        let mut lines = self.lock();
        let mut all: Vec<Line> = lines.lines.values().map(|(_, line)| line.clone()).collect();
        all.retain(|line| line.ends > 0 && !line.is_quarantined);
        for line in all {
            lines.put(Line { ends: 0, is_kept: false, ..line });
        }
    }

    fn lock(&self) -> MutexGuard<'_, Lines> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Lines {
    fn line(&self, uid: &str) -> Option<Line> {
        self.lines.get(uid).map(|(_, line)| line.clone())
    }

    /// Writes a line in its place or a free one; which place that is. None for what fits in no line.
    fn put(&mut self, line: Line) -> Option<u64> {
        let fits = !line.uid.is_empty()
            && line.uid.len() <= UID_BYTES_MAX
            && line.uid.bytes().all(|byte| byte.is_ascii_graphic());
        if !fits {
            return None;
        }
        let known = self.lines.get(&line.uid).map(|(at, _)| *at);
        let at = known.or_else(|| self.free.pop()).unwrap_or_else(|| {
            let at = self.next;
            self.next = self.next.saturating_add(1);
            at
        });
        self.write(at, &line);
        self.lines.insert(line.uid.clone(), (at, line));
        Some(at)
    }

    /// What cannot be written is no reason to serve no pod.
    fn write(&self, at: u64, line: &Line) {
        let Some(Marks { file, .. }) = self.file.as_deref() else { return };
        // The first byte is the mark's.
        let bytes = line.write();
        let offset = at.saturating_mul(LINE_BYTES as u64).saturating_add(1);
        let _unwritten = file.write_all_at(bytes.get(1..).unwrap_or_default(), offset);
    }
}

fn read(path: &Path) -> io::Result<Vec<Line>> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut bytes = Vec::new();
    file.take((LINE_BYTES * LINES_MAX) as u64).read_to_end(&mut bytes)?;
    Ok(bytes.chunks(LINE_BYTES).filter_map(Line::read).collect())
}

/// The file, as those use it who set marks.
#[derive(Debug)]
struct Marks {
    file: File,
    closed: AtomicBool,
}

impl Marks {
    fn write(&self, at: u64, is_in_hand: bool) {
        let mark = if is_in_hand { b"1" } else { b"0" };
        let _unwritten = self.file.write_all_at(mark, at.saturating_mul(LINE_BYTES as u64));
    }
}

/// The mark of one pod. Cheap to clone; all clones are one mark.
#[derive(Clone, Debug, Default)]
pub struct Hand {
    file: Option<Arc<Marks>>,
    at: u64,
    depth: Arc<Mutex<u32>>,
}

tokio::task_local! {
    static CURRENT: Hand;
}

impl Hand {
    /// The mark of the pod whose task or operation runs this; one of no pod elsewhere.
    pub fn current() -> Self {
        CURRENT.try_with(Clone::clone).unwrap_or_default()
    }

    /// Whether the pod is in hand.
    pub fn is_marked(&self) -> bool {
        *self.depth.lock().unwrap_or_else(PoisonError::into_inner) > 0
    }

    /// Has the pod in hand until what is given is dropped.
    pub fn mark(&self) -> Mark<'_> {
        self.count(|depth| depth.saturating_add(1));
        Mark(self)
    }

    /// Has the pod in hand whenever `work` is polled.
    pub async fn around<F: Future>(self, work: F) -> F::Output {
        let hand = self.clone();
        let marked = async move {
            let mut work = pin!(work);
            std::future::poll_fn(move |context| {
                let _mark = hand.mark();
                work.as_mut().poll(context)
            })
            .await
        };
        CURRENT.scope(self, marked).await
    }

    fn count(&self, to: impl FnOnce(u32) -> u32) {
        let mut depth = self.depth.lock().unwrap_or_else(PoisonError::into_inner);
        let before = *depth;
        *depth = to(before);
        if let Some(marks) = &self.file
            && (before == 0) != (*depth == 0)
            && !marks.closed.load(Ordering::SeqCst)
        {
            marks.write(self.at, *depth > 0);
        }
    }
}

/// The pod is in hand.
pub struct Mark<'a>(&'a Hand);

impl Drop for Mark<'_> {
    fn drop(&mut self) {
        self.0.count(|depth| depth.saturating_sub(1));
    }
}

#[cfg(test)]
mod tests;
