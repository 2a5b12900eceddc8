//! etcd with a single member.

use std::path::Path;

use anyhow::{Context as _, Result};
use tokio::process::{Child, Command};

use crate::ports::free_port;
use crate::processes::spawn;

/// When a write is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// When it is on the disk, as by default.
    Synced,
    /// At once: what is stored is thrown away.
    Unsynced,
}

/// A running etcd. It ends with this.
#[derive(Debug)]
pub struct Etcd {
    url: String,
    process: Child,
}

impl Etcd {
    /// Starts one with its data in a directory, which it makes.
    ///
    /// # Errors
    /// It cannot be started, or no port is free.
    pub fn start(program: &Path, data: &Path, log: &Path, durability: Durability) -> Result<Self> {
        let url = format!("http://127.0.0.1:{}", free_port()?);
        let peer = format!("http://127.0.0.1:{}", free_port()?);
        let mut argv = vec![
            program.display().to_string(),
            format!("--data-dir={}", data.display()),
            format!("--listen-client-urls={url}"),
            format!("--advertise-client-urls={url}"),
            format!("--listen-peer-urls={peer}"),
            format!("--initial-advertise-peer-urls={peer}"),
            format!("--initial-cluster=default={peer}"),
        ];
        if durability == Durability::Unsynced {
            argv.push("--unsafe-no-fsync".to_owned());
        }
        Ok(Self { url, process: spawn(&argv, log)? })
    }

    /// Where its clients find it.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Ends it and waits for its end.
    ///
    /// # Errors
    /// It cannot be ended.
    pub async fn stop(mut self) -> Result<()> {
        Ok(self.process.kill().await?)
    }
}

/// What the machine's etcd says of itself: `etcd 3.4.30`.
///
/// # Errors
/// It cannot be run.
pub async fn version() -> Result<String> {
    let output = Command::new("etcd").arg("--version").output().await.context("running etcd")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let first = text.lines().next().unwrap_or_default();
    Ok(first.replace("etcd Version: ", "etcd "))
}
