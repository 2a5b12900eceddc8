//! Reads a log file and sends it as the client requested, to the end of the file or of the
//! container. A pod may have written the file: a request ends with its client, whatever it is
//! reading, and reads a bounded number of bytes that are not log entries (`SearchBudget`).

use std::io;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use proto_api::Time;
use tokio::sync::mpsc::Sender;

use super::cri_log::Cutter;
use super::last_lines::{Begun, last_lines_of};
use super::options::{LogOptions, LogStart};
use super::rotated_files::Part;
use super::search_budget::SearchBudget;

/// Poll interval at the end of a file ...
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// ... every n-th poll also checks whether the container still runs.
const ASK_EVERY: u32 = 5;
/// A rotated file is read to its end this often before the next one: the runtime may write a last
/// line to it while it opens the new one.
const ENDS_BEFORE_NEXT: u32 = 2;
/// Bytes that are not log entries which a request may read. A runtime's log has next to none; a
/// sparse file of terabytes costs nothing to make.
const IGNORED_LEN_MAX: u64 = 256 << 20;

/// Sends `path` filtered by `options`. Returns when everything is sent, a followed container has
/// ended, or the client has disconnected.
pub async fn send<Runs: Future<Output = bool> + Send>(
    path: PathBuf,
    options: LogOptions,
    is_running: impl Fn() -> Runs + Send,
    to: Sender<io::Result<Bytes>>,
) {
    let budget = SearchBudget::new(&path, IGNORED_LEN_MAX);
    send_within(budget, &options, is_running, &to).await;
}

async fn send_within<Runs: Future<Output = bool> + Send>(
    budget: SearchBudget<'_>,
    options: &LogOptions,
    is_running: impl Fn() -> Runs + Send,
    to: &Sender<io::Result<Bytes>>,
) {
    // All that `read` does may be given up at any moment: it only reads.
    let done = tokio::select! {
        done = read(budget, options, is_running, to) => done,
        () = to.closed() => return,
    };
    if let Err(error) = done {
        // The client may have disconnected as well.
        let _ = to.send(Err(error)).await;
    }
}

async fn read<Runs: Future<Output = bool> + Send>(
    mut budget: SearchBudget<'_>,
    options: &LogOptions,
    is_running: impl Fn() -> Runs + Send,
    to: &Sender<io::Result<Bytes>>,
) -> io::Result<()> {
    let current = Part::current(budget.path().to_owned()).await?;
    let (mut part, begun) = match options.tail_lines {
        Some(lines) => last_lines_of(current, lines, &mut budget).await?,
        None => (current, Begun::Here),
    };
    // Without `follow` the log ends with the current file.
    let goes_on = options.follow || begun == Begun::Earlier;
    let ends_before_next = if options.follow { ENDS_BEFORE_NEXT } else { 1 };
    let mut cutter = Cutter::new(options.timestamps, since(options), options.limit_bytes);
    let mut block = Vec::new();
    let mut looks: u32 = 0;
    let mut may_grow = options.follow;
    // Whether this file was read to its end. Only then do its successor and the container matter.
    let mut is_at_end = false;
    // How often this file was read to its end since it was rotated.
    let mut ends: u32 = 0;
    loop {
        if may_grow && is_at_end && looks.is_multiple_of(ASK_EVERY) {
            // Checked before reading, so that everything written before the container's end is
            // read.
            may_grow = is_running().await;
        }
        let succeeded = goes_on && is_at_end && part.has_successor().await;
        let len = part.read(&mut block).await?;
        if len > 0 {
            let cut = cutter.push(block.get(..len).unwrap_or_default());
            if !give(to, cut).await || cutter.is_done() {
                return Ok(());
            }
            budget.spend(cutter.take_ignored())?;
            (ends, is_at_end) = (0, false);
            continue;
        }
        if goes_on && !is_at_end {
            is_at_end = true;
            continue;
        }
        ends = if succeeded { ends.saturating_add(1) } else { 0 };
        if ends >= ends_before_next {
            (part, ends, is_at_end) = (part.successor().await?, 0, false);
            continue;
        }
        if may_grow || succeeded {
            looks = looks.wrapping_add(1);
            // Both arms are cancel safe.
            tokio::select! {
                () = tokio::time::sleep(LOOK_EVERY) => {}
                () = to.closed() => return Ok(()),
            }
            continue;
        }
        give(to, cutter.finish()).await;
        return Ok(());
    }
}

/// Sends bytes. Returns whether the client is still connected.
async fn give(to: &Sender<io::Result<Bytes>>, bytes: Vec<u8>) -> bool {
    bytes.is_empty() || to.send(Ok(Bytes::from(bytes))).await.is_ok()
}

/// The time from which on entries are requested, as text.
fn since(options: &LogOptions) -> Option<String> {
    let unix = match options.since? {
        LogStart::Unix(unix) => unix,
        LogStart::SecondsAgo(secs) => {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            i64::try_from(now.as_secs().saturating_sub(secs)).unwrap_or(0)
        }
    };
    Some(Time::from_unix(unix).to_string())
}

#[cfg(test)]
mod tests {
    use std::future::ready;
    use std::io::Write;
    use std::path::Path;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use proptest::prelude::*;
    use tokio::sync::mpsc::{Receiver, channel};

    use super::*;

    fn entry(text: &str) -> String {
        format!("2024-01-01T00:00:01Z stdout F {text}\n")
    }

    async fn all(mut from: Receiver<io::Result<Bytes>>) -> String {
        let mut out = Vec::new();
        while let Some(piece) = from.recv().await {
            out.extend_from_slice(&piece.expect("read"));
        }
        String::from_utf8(out).expect("text")
    }

    #[tokio::test]
    async fn the_last_lines_of_a_file_of_many_blocks() {
        let mut file = tempfile::NamedTempFile::new().expect("file");
        let lines: Vec<String> =
            (0..9000).map(|n| format!("line {n} {}", "x".repeat(n % 50))).collect();
        for line in &lines {
            file.write_all(entry(line).as_bytes()).expect("written");
        }
        for tail in [0, 1, 2, 1000, 5000, 9000, 10_000] {
            let (to, from) = channel(4);
            let options = LogOptions { tail_lines: Some(tail as u64), ..LogOptions::default() };
            tokio::spawn(send(file.path().to_owned(), options, || ready(false), to));
            let expected = &lines[lines.len() - tail.min(lines.len())..];
            let got = all(from).await;
            assert!(got.lines().eq(expected.iter().map(String::as_str)), "tail {tail}");
        }
    }

    #[tokio::test]
    async fn follows_over_rotation_until_the_container_ends() {
        let directory = tempfile::tempdir().expect("tempdir");
        let path = directory.path().join("0.log");
        std::fs::write(&path, entry("one")).expect("written");
        let running = Arc::new(AtomicBool::new(true));
        let (to, mut from) = channel(4);
        let options = LogOptions { follow: true, ..LogOptions::default() };
        let still = running.clone();
        let task = tokio::spawn(send(
            path.clone(),
            options,
            move || ready(still.load(Ordering::Relaxed)),
            to,
        ));
        assert_eq!(from.recv().await.expect("open").expect("read"), "one\n");
        std::fs::rename(&path, directory.path().join("0.log.20240102-150405")).expect("rotated");
        std::fs::write(&path, entry("two")).expect("written");
        assert_eq!(from.recv().await.expect("open").expect("read"), "two\n");
        running.store(false, Ordering::Relaxed);
        assert!(from.recv().await.is_none());
        task.await.expect("ended");
    }

    /// What happens to a log while somebody follows it.
    #[derive(Clone, Copy, Debug)]
    enum Happens {
        Lines(usize),
        Rotated,
        /// The oldest file that is not compressed yet, but never the newest rotated one.
        Compressed,
        Time(u64),
    }

    fn happens() -> impl Strategy<Value = Happens> {
        prop_oneof![
            (1_usize..40).prop_map(Happens::Lines),
            Just(Happens::Rotated),
            Just(Happens::Compressed),
            (1_u64..400).prop_map(Happens::Time),
        ]
    }

    /// A runtime and an agent that rotates.
    struct Writer {
        directory: tempfile::TempDir,
        lines: usize,
        plain: Vec<PathBuf>,
        stamps: usize,
    }

    impl Writer {
        fn path(&self) -> PathBuf {
            self.directory.path().join("0.log")
        }

        fn lines(&mut self, count: usize) {
            let mut file = std::fs::OpenOptions::new()
                .append(true)
                .create(true)
                .open(self.path())
                .expect("open");
            for _ in 0..count {
                file.write_all(entry(&format!("line {}", self.lines)).as_bytes()).expect("written");
                self.lines += 1;
            }
        }

        fn rotate(&mut self) {
            self.stamps += 1;
            let to = self.directory.path().join(format!("0.log.20240101-{:06}", self.stamps));
            std::fs::rename(self.path(), &to).expect("rotated");
            std::fs::write(self.path(), "").expect("made");
            self.plain.push(to);
        }

        fn compress(&mut self) {
            if self.plain.len() < 2 {
                return;
            }
            let from = self.plain.remove(0);
            let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            packed.write_all(&std::fs::read(&from).expect("read")).expect("packed");
            let to = format!("{}.gz", from.display());
            std::fs::write(to, packed.finish().expect("packed")).expect("written");
            std::fs::remove_file(from).expect("removed");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

        #[test]
        fn a_follower_loses_no_line(story in proptest::collection::vec(happens(), 1..40)) {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().expect("runtime");
            runtime.block_on(async {
                let directory = tempfile::tempdir().expect("tempdir");
                let mut writer = Writer { directory, lines: 0, plain: Vec::new(), stamps: 0 };
                writer.lines(1);
                let running = Arc::new(AtomicBool::new(true));
                let (to, from) = channel(4);
                let still = running.clone();
                let options = LogOptions { follow: true, ..LogOptions::default() };
                tokio::spawn(send(writer.path(), options, move || ready(still.load(Ordering::Relaxed)), to));
                let got = tokio::spawn(all(from));
                // The log is opened before anything else happens to it.
                tokio::time::sleep(Duration::from_secs(1)).await;
                for happens in &story {
                    match *happens {
                        Happens::Lines(count) => writer.lines(count),
                        Happens::Rotated => writer.rotate(),
                        Happens::Compressed => writer.compress(),
                        Happens::Time(ms) => tokio::time::sleep(Duration::from_millis(ms)).await,
                    }
                }
                running.store(false, Ordering::Relaxed);
                let expected: Vec<_> = (0..writer.lines).map(|n| format!("line {n}")).collect();
                let got = got.await.expect("ended");
                assert!(got.lines().eq(expected.iter().map(String::as_str)), "{story:?}: {got}");
            });
        }
    }

    #[tokio::test]
    async fn last_lines_reach_back_over_one_rotation() {
        let directory = tempfile::tempdir().expect("tempdir");
        let path = directory.path().join("0.log");
        let write = |name: &str, lines: std::ops::Range<usize>| {
            let text: String = lines.map(|n| entry(&n.to_string())).collect();
            std::fs::write(directory.path().join(name), text).expect("written");
        };
        write("0.log.20240101-000000", 0..5);
        write("0.log.20240102-000000", 5..10);
        write("0.log", 10..12);
        for (lines, expected) in [(1, 11..12), (2, 10..12), (4, 8..12), (7, 5..12), (9, 5..12)] {
            let (to, from) = channel(4);
            let options = LogOptions { tail_lines: Some(lines), ..LogOptions::default() };
            tokio::spawn(send(path.clone(), options, || ready(false), to));
            let expected: String = expected.map(|n| format!("{n}\n")).collect();
            assert_eq!(all(from).await, expected, "{lines}");
        }
        let (to, from) = channel(4);
        tokio::spawn(send(path.clone(), LogOptions::default(), || ready(false), to));
        assert_eq!(
            all(from).await,
            "10\n11\n",
            "without a number of lines, the file that is written"
        );
    }

    #[tokio::test]
    async fn following_ends_when_the_client_disconnects() {
        let file = tempfile::NamedTempFile::new().expect("file");
        let (to, from) = channel(1);
        let options = LogOptions { follow: true, ..LogOptions::default() };
        let task = tokio::spawn(send(file.path().to_owned(), options, || ready(true), to));
        drop(from);
        task.await.expect("ended");
    }

    /// A file that takes no room on the disk, longer than anybody can read.
    fn sparse() -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().expect("file");
        file.as_file().set_len(1 << 42).expect("a sparse file");
        file
    }

    /// All ways to read a log.
    fn ways() -> [LogOptions; 4] {
        let all = LogOptions::default();
        [
            LogOptions { follow: true, ..all.clone() },
            LogOptions { tail_lines: Some(10), ..all.clone() },
            LogOptions { since: Some(LogStart::Unix(0)), ..all.clone() },
            all,
        ]
    }

    /// So long a test waits for what takes moments if it ends at all.
    const PATIENCE: Duration = Duration::from_secs(120);

    #[tokio::test]
    async fn a_sparse_log_is_read_no_longer_than_its_client_is_there() {
        for options in ways() {
            let file = sparse();
            let path = file.path().to_owned();
            let (to, from) = channel(1);
            let name = format!("{options:?}");
            let task = tokio::spawn(async move {
                let budget = SearchBudget::new(&path, u64::MAX);
                send_within(budget, &options, || ready(true), &to).await;
            });
            for _ in 0..100 {
                tokio::task::yield_now().await;
            }
            assert!(!task.is_finished(), "{name}: it cannot be read to its end");
            drop(from);
            let ended = tokio::time::timeout(PATIENCE, task).await;
            ended.expect(&name).expect("ended");
        }
    }

    #[tokio::test]
    async fn a_sparse_log_is_refused_after_a_bounded_number_of_bytes() {
        for options in ways() {
            let file = sparse();
            let path = file.path().to_owned();
            let (to, mut from) = channel(1);
            let name = format!("{options:?}");
            tokio::spawn(async move {
                let budget = SearchBudget::new(&path, 8 << 20);
                send_within(budget, &options, || ready(true), &to).await;
            });
            let first = tokio::time::timeout(PATIENCE, from.recv()).await.expect(&name);
            let error = first.expect("told").expect_err(&name);
            assert!(error.to_string().ends_with(": 8 MiB hold no log entries"), "{name}: {error}");
        }
        let (file, options) =
            (sparse(), LogOptions { tail_lines: Some(1), ..LogOptions::default() });
        let (to, mut from) = channel(1);
        tokio::spawn(send(file.path().to_owned(), options, || ready(true), to));
        let first = tokio::time::timeout(PATIENCE, from.recv()).await.expect("a bound");
        assert!(first.expect("told").is_err());
    }

    /// Sends a log of `<directory>/0.log`; what came, and whether it ended with an error.
    async fn sent(directory: &Path, follow: bool) -> (String, bool) {
        let (to, mut from) = channel(4);
        let options = LogOptions { follow, ..LogOptions::default() };
        tokio::spawn(send(directory.join("0.log"), options, || ready(false), to));
        let (mut text, mut failed) = (String::new(), false);
        while let Some(piece) = from.recv().await {
            match piece {
                Ok(piece) => text.push_str(&String::from_utf8_lossy(&piece)),
                Err(_) => failed = true,
            }
        }
        (text, failed)
    }

    #[tokio::test]
    async fn links_fifos_and_directories_in_place_of_logs_are_errors() {
        use std::os::unix::fs::symlink;
        let root = tempfile::tempdir().expect("tempdir");
        let secret = root.path().join("secret");
        // An entry by its form, so that nothing but the opening keeps it back.
        std::fs::write(&secret, entry("the secret")).expect("written");
        let fifo = |path: &Path| {
            let (kind, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::from_raw_mode(0o600));
            rustix::fs::mknodat(rustix::fs::CWD, path, kind, mode, 0).expect("a FIFO");
        };
        for (nth, name) in
            ["0.log", "0.log.20240102-150405", "0.log.20240102-150405.gz"].into_iter().enumerate()
        {
            for planted in ["link", "dangling", "FIFO", "directory"] {
                for follow in [false, true] {
                    let at = root.path().join(format!("{nth}{planted}{follow}"));
                    std::fs::create_dir(&at).expect("made");
                    match planted {
                        "link" => symlink(&secret, at.join(name)).expect("linked"),
                        "dangling" => symlink("/nowhere", at.join(name)).expect("linked"),
                        "FIFO" => fifo(&at.join(name)),
                        _ => std::fs::create_dir(at.join(name)).expect("made"),
                    }
                    let (text, failed) = sent(&at, follow).await;
                    assert_eq!((text.as_str(), failed), ("", true), "{name} {planted} {follow}");
                }
            }
        }
        // Another name of a file that the pod could read anyway, which is none of a runtime.
        let at = root.path().join("hard");
        std::fs::create_dir(&at).expect("made");
        std::fs::write(&secret, "root:x:0\n").expect("written");
        std::fs::hard_link(&secret, at.join("0.log")).expect("linked");
        assert_eq!(sent(&at, false).await, (String::new(), false));
    }

    #[tokio::test]
    async fn a_link_that_is_planted_while_a_log_is_followed_is_not_shown() {
        let root = tempfile::tempdir().expect("tempdir");
        let secret = root.path().join("secret");
        std::fs::write(&secret, entry("the secret")).expect("written");
        let path = root.path().join("0.log");
        std::fs::write(&path, entry("one")).expect("written");
        let (to, mut from) = channel(4);
        let options = LogOptions { follow: true, ..LogOptions::default() };
        let task = tokio::spawn(send(path.clone(), options, || ready(true), to));
        assert_eq!(from.recv().await.expect("open").expect("read"), "one\n");
        std::fs::rename(&path, root.path().join("0.log.20240102-150405")).expect("rotated");
        std::os::unix::fs::symlink(&secret, &path).expect("linked");
        assert!(from.recv().await.expect("told").is_err());
        assert!(from.recv().await.is_none());
        task.await.expect("ended");
    }

    #[tokio::test]
    async fn a_missing_log_file_is_an_error() {
        let (to, mut from) = channel(1);
        send("/no/such/file".into(), LogOptions::default(), || ready(false), to).await;
        assert!(from.recv().await.expect("told").is_err());
    }
}
