//! The machine's etcd, as a store beside our own. It waits for the disk, as it does by default.

use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::Stdio;

use anyhow::{Context as _, Result};
use tokio::process::{Child, Command};

/// Starts one with its data in `dir`, and says where it is. It ends with what is returned.
///
/// # Errors
/// It cannot be started.
pub fn start(dir: &Path) -> Result<(Child, String)> {
    let (clients, peers) = (free_port()?, free_port()?);
    let store = format!("http://127.0.0.1:{clients}");
    let etcd = Command::new("etcd")
        .arg(format!("--data-dir={}", dir.display()))
        .args([format!("--listen-client-urls={store}"), format!("--advertise-client-urls={store}")])
        .arg(format!("--listen-peer-urls=http://127.0.0.1:{peers}"))
        .arg(format!("--initial-advertise-peer-urls=http://127.0.0.1:{peers}"))
        .arg(format!("--initial-cluster=default=http://127.0.0.1:{peers}"))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .context("starting etcd")?;
    Ok((etcd, store))
}

/// What it says of itself.
///
/// # Errors
/// It cannot be run.
pub async fn version() -> Result<String> {
    let output = Command::new("etcd").arg("--version").output().await.context("running etcd")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let first = text.lines().next().unwrap_or_default();
    Ok(first.replace("etcd Version: ", "etcd "))
}

/// A port that nobody listens at.
pub fn free_port() -> Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}
