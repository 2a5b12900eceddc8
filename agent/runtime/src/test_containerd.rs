//! A containerd for one test, started on the host and removed afterwards (`hack/containerd-private`).
#![allow(clippy::print_stderr, clippy::unwrap_used, clippy::panic, reason = "for tests only")]

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::cri::CriRuntime;

/// A containerd of a test.
#[derive(Debug)]
pub struct Containerd {
    dir: PathBuf,
    /// Its CRI client.
    pub runtime: CriRuntime,
}

impl Containerd {
    /// Starts a containerd for the named test; prints a reason and returns `None` if containerd cannot run here.
    ///
    /// # Panics
    /// It should run and does not.
    #[must_use]
    pub fn start(test: &str) -> Option<Self> {
        let root = std::fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0);
        let installed =
            ["/usr/bin/containerd", "/bin/busybox"].iter().all(|p| Path::new(p).exists());
        if !root || !installed {
            eprintln!("SKIPPED {test}: needs root, containerd and a static busybox");
            return None;
        }
        let unique = format!("containerd-test-{test}-{}", std::process::id());
        let dir = std::env::temp_dir().join(unique);
        let started = script("start", &dir);
        let endpoint = String::from_utf8(started.stdout).unwrap();
        let runtime = CriRuntime::new(endpoint.trim()).unwrap();
        Some(Self { dir, runtime })
    }

    /// Directory of all its files.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Stops it; its files are kept.
    pub fn stop(&self) {
        script("stop", &self.dir);
    }

    pub fn start_again(&self) {
        script("start", &self.dir);
    }
}

impl Drop for Containerd {
    fn drop(&mut self) {
        script("clean", &self.dir);
    }
}

fn script(verb: &str, dir: &Path) -> Output {
    let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../hack/containerd-private");
    let output = Command::new(script).arg(verb).arg(dir).output().unwrap();
    assert!(output.status.success(), "{verb}: {}", String::from_utf8_lossy(&output.stderr));
    output
}
