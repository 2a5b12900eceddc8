//! The programs of a host without systemd: `orchadm run`, which keeps them running until a stop signal.

use std::pin::pin;

use anyhow::{Result, bail};
pub use apiserver_bootstrap::supervisor::{Supervisor, find, find_supervisor};
use futures_util::future::select;
use tokio::signal::unix::{SignalKind, signal};

/// Resolves when this process is to end.
///
/// # Errors
/// Signals cannot be received.
pub fn stop_signal() -> Result<impl Future<Output = ()>> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    Ok(async move {
        select(pin!(terminate.recv()), pin!(interrupt.recv())).await;
    })
}

/// `orchadm run`: keeps the programs of this host running until a stop signal.
///
/// # Errors
/// There is nothing to run, or it runs.
pub async fn run(host: &crate::host::Host) -> Result<()> {
    let stop = stop_signal()?;
    let known = host.read_record()?;
    if crate::host::has_systemd(&host.layout) {
        bail!("systemd runs the programs of this host: `systemctl status orchlet`");
    }
    let mut supervisor = Supervisor::begin(&host.layout)?;
    for program in &known.programs {
        supervisor.keep(&program.name);
        host.output.log("run", &format!("{} is kept running", program.name));
    }
    stop.await;
    host.output.log("run", "stopping the programs");
    Ok(supervisor.stop().await?)
}
