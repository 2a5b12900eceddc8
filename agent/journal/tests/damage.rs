//! Damages a journal at many positions and opens it: it always opens, with what is readable or set aside, and it can be written.
//!
//! `ORCH_DAMAGE_STEP=1` tries every byte.

#![allow(clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

use agent_journal::{Journal, Record};
use agent_pod::record::PodRecord;

/// Long enough on a busy machine.
const PATIENT: Duration = Duration::from_secs(60);
/// One in this many bytes that are not zero is damaged, unless another step is wanted.
const STEP: usize = 997;
const PAGE: usize = 4096;

/// A directory in memory, if there is one, because each opening waits for the disk.
fn directory() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("tempdir")
}

fn record(name: &str, ips: usize) -> Record {
    let ips = (0..ips).map(|nth| format!("10.0.0.{nth}")).collect();
    let memory = PodRecord { ips, ..PodRecord::default() };
    Record { namespace: "ns".into(), name: name.into(), memory }
}

/// Ends a journal, and waits until its thread has closed the file.
fn close(journal: Journal, path: &Path) {
    journal.close();
    drop(journal);
    while matches!(redb::Database::open(path), Err(redb::DatabaseError::DatabaseAlreadyOpen)) {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The bytes of a journal that was closed, and of one whose agent was killed.
async fn samples() -> [(&'static str, Vec<u8>); 2] {
    let dir = directory();
    let path = dir.path().join("journal.redb");
    let (journal, _) = Journal::open(&path, "boot").expect("open");
    for round in 0..4 {
        for nth in 0..40 {
            journal.put(&format!("uid-{nth}"), Some(record("p", nth + round)));
            journal.put_note(&format!("share/{nth}"), Some(vec![7; 100]));
        }
        // Later rounds leave pages that are free again.
        let gone = journal.put(&format!("uid-{round}"), None);
        gone.durable().await;
    }
    let killed = fs::read(&path).expect("read");
    close(journal, &path);
    [("closed", fs::read(&path).expect("read")), ("killed", killed)]
}

/// Copies of `bytes`, each with a damage and its description.
fn damaged(bytes: &[u8], step: usize) -> impl Iterator<Item = (String, Vec<u8>)> {
    let with = move |change: &dyn Fn(&mut Vec<u8>)| {
        let mut copy = bytes.to_vec();
        change(&mut copy);
        copy
    };
    let written = (0..bytes.len()).filter(|at| bytes[*at] != 0);
    let flips = written.step_by(step).flat_map(move |at| {
        [0xff, 1].map(|bits| (format!("byte {at} ^ {bits}"), with(&|copy| copy[at] ^= bits)))
    });
    let used = bytes.chunks(PAGE).enumerate().filter(|(_, page)| page.iter().any(|b| *b != 0));
    let pages = used.map(|(page, _)| page * PAGE).flat_map(move |at| {
        let end = (at + PAGE).min(bytes.len());
        [
            (format!("page at {at} zeroed"), with(&|copy| copy[at..end].fill(0))),
            (format!("page at {at} of ones"), with(&|copy| copy[at..end].fill(0xff))),
            (
                format!("page at {at} elsewhere"),
                with(&|copy| copy.copy_within(PAGE..PAGE + (end - at), at)),
            ),
            (format!("cut at {at}"), with(&|copy| copy.truncate(at))),
        ]
    });
    flips.chain(pages)
}

/// Opens the journal, writes to it and opens it again. Returns whether it was set aside.
async fn use_journal(path: &Path) -> Result<bool, String> {
    let (journal, found) = Journal::open(path, "boot").map_err(|error| format!("{error:?}"))?;
    let put = journal.put("uid-new", Some(record("new", 1))).durable();
    let wrote = tokio::time::timeout(PATIENT, put).await;
    close(journal, path);
    wrote.map_err(|_| "it cannot be written".to_owned())?;
    let (journal, again) = Journal::open(path, "boot").map_err(|error| format!("{error:?}"))?;
    let known = again.get("uid-new").cloned();
    close(journal, path);
    let is_aside = path.with_extension("damaged").exists();
    let is_kept = |(uid, record): (&String, &Record)| again.get(uid) == Some(record);
    match known == Some(record("new", 1)) && (is_aside || found.iter().all(is_kept)) {
        true => Ok(is_aside),
        false => Err("it lost a record in silence".to_owned()),
    }
}

#[tokio::test]
async fn a_damaged_journal_opens_and_is_written() {
    // Those in redb are expected; the journal catches them.
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if !panic.location().is_some_and(|at| at.file().contains("redb")) {
            hook(panic);
        }
    }));
    let step = std::env::var("ORCH_DAMAGE_STEP").ok().and_then(|step| step.parse().ok());
    let mut counts = BTreeMap::new();
    let mut failures = Vec::new();
    for (sample, bytes) in samples().await {
        for (damage, bytes) in damaged(&bytes, step.unwrap_or(STEP)) {
            let dir = directory();
            let path = dir.path().join("journal.redb");
            fs::write(&path, bytes).expect("written");
            match use_journal(&path).await {
                Ok(is_aside) => *counts.entry((sample, is_aside)).or_insert(0) += 1,
                Err(error) => failures.push(format!("{sample}, {damage}: {error}")),
            }
        }
    }
    println!("tried (sample, set aside): {counts:?}");
    assert!(failures.is_empty(), "{} failures: {:#?}", failures.len(), failures.iter().take(20));
    assert!(counts.values().sum::<usize>() > 100 && counts.len() > 2, "{counts:?}");
}
