//! Reads a log file and sends what the client asked for, to the end of the file or of the
//! container.

use std::io::{self, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use proto_api::Time;
use std::os::unix::fs::MetadataExt;
use tokio::fs::File;
use tokio::io::{AsyncReadExt, AsyncSeekExt};
use tokio::sync::mpsc::Sender;

use super::cut::{Cutter, tail_start};
use super::options::{LogOptions, Since};

/// Read at a time, and looked through at a time for the last lines.
const BLOCK: usize = 64 << 10;
/// Between two looks at a file that has been read to its end ...
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// ... of which every so many-th also asks whether the container still runs.
const ASK_EVERY: u32 = 5;

/// Sends `path` cut by `options`; returns when all is sent, when a followed container has ended, or
/// when the client has gone.
pub async fn send<Runs: Future<Output = bool> + Send>(
    path: PathBuf,
    options: LogOptions,
    is_running: impl Fn() -> Runs + Send,
    to: Sender<io::Result<Bytes>>,
) {
    if let Err(error) = read(&path, &options, is_running, &to).await {
        // The client may have gone as well.
        let _ = to.send(Err(error)).await;
    }
}

async fn read<Runs: Future<Output = bool> + Send>(
    path: &Path,
    options: &LogOptions,
    is_running: impl Fn() -> Runs + Send,
    to: &Sender<io::Result<Bytes>>,
) -> io::Result<()> {
    let mut file = File::open(path).await?;
    if let Some(lines) = options.tail_lines {
        let start = last_lines(&mut file, lines).await?;
        file.seek(SeekFrom::Start(start)).await?;
    }
    let mut cutter = Cutter::new(options.timestamps, since(options), options.limit_bytes);
    let mut block = vec![0; BLOCK];
    let mut looks = 0;
    let mut may_grow = options.follow;
    loop {
        if may_grow && looks % ASK_EVERY == 0 {
            // Asked before reading: what was written before the end is then read after it.
            may_grow = is_running().await;
        }
        let len = file.read(&mut block).await?;
        if len > 0 {
            let cut = cutter.push(block.get(..len).unwrap_or_default());
            if !give(to, cut).await || cutter.is_done() {
                return Ok(());
            }
            continue;
        }
        if may_grow {
            if let Some(next) = successor(path, &file).await {
                file = next;
                continue;
            }
            looks += 1;
            // Both arms are cancel safe: neither takes anything.
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

/// Whether somebody still listens.
async fn give(to: &Sender<io::Result<Bytes>>, bytes: Vec<u8>) -> bool {
    bytes.is_empty() || to.send(Ok(Bytes::from(bytes))).await.is_ok()
}

/// The file that has taken the place of one that was rotated away.
async fn successor(path: &Path, old: &File) -> Option<File> {
    let new = File::open(path).await.ok()?;
    let (old, now) = (old.metadata().await.ok()?, new.metadata().await.ok()?);
    (old.ino() != now.ino() || old.dev() != now.dev()).then_some(new)
}

/// Where the last `lines` lines begin, looked for from the end, block by block.
async fn last_lines(file: &mut File, lines: u64) -> io::Result<u64> {
    let len = file.metadata().await?.len();
    if lines == 0 {
        return Ok(len);
    }
    let mut begin = len;
    let mut found = 0;
    let mut block = Vec::new();
    while begin > 0 {
        let size = begin.min(BLOCK as u64);
        begin -= size;
        file.seek(SeekFrom::Start(begin)).await?;
        block.resize(usize::try_from(size).unwrap_or(BLOCK), 0);
        file.read_exact(&mut block).await?;
        // The line end at the very end of the file belongs to the last line; one at the end of an
        // earlier block does not.
        let at_end = begin + size == len;
        let ends = block.iter().filter(|byte| **byte == b'\n').count() as u64
            - u64::from(at_end && block.ends_with(b"\n"));
        if found + ends >= lines {
            let wanted = lines - found;
            let body = if at_end { block.as_slice() } else { block_with_end(&mut block) };
            return Ok(begin + tail_start(body, wanted).unwrap_or(0) as u64);
        }
        found += ends;
    }
    Ok(0)
}

/// A block in the middle counts its last line end like any other: one more is put after it.
fn block_with_end(block: &mut Vec<u8>) -> &[u8] {
    if block.ends_with(b"\n") {
        block.push(b'\n');
    }
    block
}

/// The moment from which on entries are wanted, as text.
fn since(options: &LogOptions) -> Option<String> {
    let unix = match options.since? {
        Since::Unix(unix) => unix,
        Since::SecondsAgo(secs) => {
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
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

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
        std::fs::rename(&path, directory.path().join("0.log.1")).expect("rotated");
        std::fs::write(&path, entry("two")).expect("written");
        assert_eq!(from.recv().await.expect("open").expect("read"), "two\n");
        running.store(false, Ordering::Relaxed);
        assert!(from.recv().await.is_none());
        task.await.expect("ended");
    }

    #[tokio::test]
    async fn a_client_that_has_gone_ends_it() {
        let file = tempfile::NamedTempFile::new().expect("file");
        let (to, from) = channel(1);
        let options = LogOptions { follow: true, ..LogOptions::default() };
        let task = tokio::spawn(send(file.path().to_owned(), options, || ready(true), to));
        drop(from);
        task.await.expect("ended");
    }

    #[tokio::test]
    async fn a_file_that_is_not_there_is_told() {
        let (to, mut from) = channel(1);
        send("/no/such/file".into(), LogOptions::default(), || ready(false), to).await;
        assert!(from.recv().await.expect("told").is_err());
    }
}
