//! The programs of a host without systemd: this process keeps them running until a stop signal, after `init` and `join`, and as `orchadm run`.

use std::pin::pin;

use anyhow::{Result, bail};
use apiserver_bootstrap::host_lock::HostLock;
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

/// Waits until a stop signal if this process runs the programs. A command that has not ended well holds the host until the programs that it has started
/// are stopped.
///
/// # Errors
/// That of the command, or a program does not stop.
pub async fn run_until_stopped(
    services: Services,
    host: &Host,
    (lock, ended): (HostLock, Result<()>),
    stop: impl Future<Output = ()>,
) -> Result<()> {
    // What is left to do after a good end changes nothing: others may.
    let _lock = ended.is_err().then_some(lock);
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

#[cfg(test)]
mod tests {
    use std::path::Path;

    use apiserver_bootstrap::arguments::Program;
    use apiserver_bootstrap::layout::Layout;
    use apiserver_bootstrap::preflight::Role;
    use apiserver_bootstrap::record::HostRecord;
    use proto_api::names::{Names, Profile};

    use super::*;
    use crate::output::{LineOutput, OutputFormat};

    /// Runs a program that takes the lock of its host when it is stopped, as another command would; what came of that.
    async fn lock_while_stopping(root: &Path, ended: Result<()>) -> String {
        let names = Names::new(Profile::Kubernetes);
        let layout = Layout::new(names, root);
        let output = LineOutput { format: OutputFormat::Text };
        let host = Host { names, layout: layout.clone(), record: None, output };
        let lock = HostLock::take(&layout).await.unwrap();
        let (seen, ready) = (root.join("seen"), root.join("ready"));
        let script = format!(
            "trap 'flock -n {lock} echo free >{seen} || echo held >{seen}; exit' TERM; : >{ready}; while :; do sleep 0.1; done",
            lock = layout.lock().display(),
            seen = seen.display(),
            ready = ready.display(),
        );
        let argv = ["/bin/sh".to_owned(), "-c".to_owned(), script].to_vec();
        let mut record = HostRecord::new(names, Role::Node, "n", "");
        let mut services = Services::begin(&layout).unwrap();
        let program = Program { name: "p".into(), argv };
        services.ensure(&layout, &mut record, &program).await.unwrap();
        while !ready.exists() {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        let (failed, stop) = (ended.is_err(), async {});
        let done = run_until_stopped(services, &host, (lock, ended), stop).await;
        assert_eq!(done.is_err(), failed);
        HostLock::take(&layout).await.unwrap();
        std::fs::read_to_string(seen).unwrap()
    }

    #[tokio::test]
    async fn a_command_that_failed_holds_the_host_until_its_programs_are_stopped() {
        let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let failed = Err(anyhow::anyhow!("a phase failed"));
        assert_eq!(lock_while_stopping(one.path(), failed).await, "held\n");
        assert_eq!(lock_while_stopping(two.path(), Ok(())).await, "free\n");
    }
}
