//! The programs of a host without systemd: this process keeps them running until a stop signal, after `init` and `join`, and as `orchadm run`.

use std::pin::pin;

use anyhow::{Result, bail};
use apiserver_bootstrap::services::Services;
use apiserver_bootstrap::supervisor::Supervisor;
use apiserver_bootstrap::systemd;
use futures_util::future::select;
use tokio::signal::unix::{SignalKind, signal};

use crate::host::Host;

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

/// Waits until a stop signal if this process runs the programs.
///
/// # Errors
/// That of the command, or a program does not stop.
pub async fn run_until_stopped(
    services: Services,
    host: &Host,
    ended: Result<()>,
    stop: impl Future<Output = ()>,
) -> Result<()> {
    if ended.is_ok() && matches!(services, Services::Supervised(_)) {
        host.output.log("run", "systemd does not run this host: the programs run as long as this process; `orchadm run` starts them again later");
        stop.await;
        host.output.log("run", "stopping the programs");
    }
    services.stop().await?;
    ended
}

/// `orchadm run`: keeps the programs of this host running until a stop signal.
///
/// # Errors
/// There is nothing to run, or it runs.
pub async fn run(host: &Host) -> Result<()> {
    let stop = stop_signal()?;
    let known = host.read_record()?;
    if systemd::runs_host(&host.layout) {
        bail!("systemd runs the programs of this host: `systemctl status orchlet`");
    }
    // Held until this is the supervisor, which another command can find then.
    let lock = host.lock().await?;
    let mut supervisor = Supervisor::begin(&host.layout)?;
    drop(lock);
    for program in &known.programs {
        supervisor.keep(&program.name);
        host.output.log("run", &format!("{} is kept running", program.name));
    }
    stop.await;
    host.output.log("run", "stopping the programs");
    Ok(supervisor.stop().await?)
}
