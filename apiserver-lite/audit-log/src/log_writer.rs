//! The thread that writes events to a file or to standard output, a line each. What waits is written together.

use std::io::{self, Write as _};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use time::OffsetDateTime;

use crate::metrics::AuditMetrics;
use crate::queue::{AuditJobs, EventBatch, TAKEN_MAX};
use crate::rotating_file::RotatingFile;

/// Between two lines in the program's log about failures.
const WARN_INTERVAL: Duration = Duration::from_secs(10);

/// Standard output or a rotated file.
pub enum AuditLogOutput {
    /// Standard output.
    Stdout,
    File(RotatingFile),
}

impl AuditLogOutput {
    fn append(&mut self, lines: &[u8]) -> io::Result<()> {
        match self {
            Self::Stdout => {
                let mut stdout = io::stdout().lock();
                stdout.write_all(lines).and_then(|()| stdout.flush())
            }
            Self::File(file) => file.append(lines, OffsetDateTime::now_utc()),
        }
    }
}

/// Writes until the queue is closed.
///
/// # Errors
/// The thread cannot be started.
pub fn start(
    mut output: AuditLogOutput,
    mut jobs: AuditJobs,
    metrics: AuditMetrics,
) -> io::Result<JoinHandle<()>> {
    let run = move || {
        let mut warned: Option<Instant> = None;
        while let Some(first) = jobs.jobs.blocking_recv() {
            let mut taken = EventBatch::default();
            jobs.take(first, &mut taken);
            jobs.take_ready(&mut taken, TAKEN_MAX);
            let written = output.append(&lines(&taken));
            if let Err(error) = &written {
                metrics.failed("log", taken.events.len());
                if warned.is_none_or(|at| at.elapsed() >= WARN_INTERVAL) {
                    warned = Some(Instant::now());
                    let events = taken.events.len();
                    tracing::error!(events, %error, "cannot write events to the audit log; they are lost");
                }
            }
            taken.finish(written.is_ok());
        }
    };
    std::thread::Builder::new().name("audit-log".to_owned()).spawn(run)
}

fn lines(taken: &EventBatch) -> Vec<u8> {
    let mut lines = Vec::with_capacity(taken.len.saturating_add(taken.events.len()));
    for event in &taken.events {
        lines.extend_from_slice(event);
        lines.push(b'\n');
    }
    lines
}

#[cfg(test)]
mod tests {
    use apiserver_audit::Mode;
    use bytes::Bytes;

    use super::*;
    use crate::metrics::for_tests;
    use crate::queue::queue;
    use crate::rotating_file::on_full_disk;

    #[tokio::test]
    async fn a_full_disk_stops_requests_in_the_strict_mode_only() {
        for (mode, goes_on) in [(Mode::Blocking, true), (Mode::BlockingStrict, false)] {
            let (metrics, registry) = for_tests();
            let (sending, jobs) = queue(mode, metrics.clone());
            let writer = start(AuditLogOutput::File(on_full_disk()), jobs, metrics).unwrap();
            assert_eq!(sending.store(Bytes::from_static(b"e")).await, goes_on, "{mode:?}");
            let text = registry.text();
            assert!(text.contains("apiserver_audit_error_total{plugin=\"log\"} 1"), "{text}");
            drop(sending);
            writer.join().unwrap();
        }
    }
}
