//! The programs of a host with systemd: units, written and started through `systemctl`, as kubeadm does.

use std::path::Path;
use std::time::Duration;

use proto_daemon::private_files;
use tokio::process::Command;

use crate::arguments::Program;
use crate::error::BootstrapError;
use crate::layout::Layout;
use crate::processes::{ProcessIdentity, command_line};
use crate::{external, program_log, units};

/// Longest wait for systemctl: orchlet may take long to stop, as pods end with the host.
const PATIENCE: Duration = Duration::from_secs(300);
/// Longest wait for the journal, which only explains an error.
const JOURNAL_PATIENCE: Duration = Duration::from_secs(10);
/// Mode of units: they hold no secret.
const UNIT_MODE: u32 = 0o644;

/// Whether systemd runs the host of these paths (sd_booted(3)).
pub fn runs_host(layout: &Layout) -> bool {
    layout.root.join("run/systemd/system").is_dir()
}

/// Writes the unit of a program if it differs, enables it, and starts it. One that runs with another command line is restarted, also when the unit was
/// written before: a command that was killed then has not got to the restart. Says whether it was restarted.
///
/// # Errors
/// The unit cannot be written, or systemd refuses.
pub async fn ensure(layout: &Layout, program: &Program) -> Result<bool, BootstrapError> {
    let name = units::file_name(&program.name);
    let changed = write(&layout.units.join(&name), &units::text(program))?;
    let shown =
        show_properties(&["--property=ActiveState,MainPID,NeedDaemonReload", &name]).await?;
    if changed || needs_reload(&shown) {
        systemctl(&["daemon-reload"]).await?;
    }
    systemctl(&["enable", &name]).await?;
    let runs_another = pid_of(&shown).is_some_and(|pid| command_line(pid) != program.argv);
    let restarts = changed || runs_another;
    systemctl(&[if restarts { "restart" } else { "start" }, &name]).await?;
    Ok(restarts)
}

/// Whether a unit has changed since systemd read it.
fn needs_reload(shown: &str) -> bool {
    shown.lines().any(|line| line == "NeedDaemonReload=yes")
}

fn write(path: &Path, text: &str) -> Result<bool, BootstrapError> {
    if std::fs::read_to_string(path).is_ok_and(|known| known == text) {
        return Ok(false);
    }
    private_files::write_atomically(path, text.as_bytes(), UNIT_MODE)
        .map_err(BootstrapError::file(path))?;
    Ok(true)
}

/// Restarts a program.
///
/// # Errors
/// systemd refuses.
pub async fn restart(program: &str) -> Result<(), BootstrapError> {
    systemctl(&["restart", &units::file_name(program)]).await
}

/// Stops a program and removes its unit.
///
/// # Errors
/// It does not stop, or its unit cannot be removed.
pub async fn remove(layout: &Layout, program: &str) -> Result<(), BootstrapError> {
    let name = units::file_name(program);
    let path = layout.units.join(&name);
    if !path.exists() {
        return Ok(());
    }
    systemctl(&["disable", "--now", &name]).await?;
    private_files::remove_private(&path).map_err(BootstrapError::file(&path))?;
    systemctl(&["daemon-reload"]).await?;
    // A unit that failed once is listed until it is reset; one that did not cannot be.
    let _listed = systemctl(&["reset-failed", &name]).await;
    Ok(())
}

/// What `systemctl show` says.
async fn show_properties(arguments: &[&str]) -> Result<String, BootstrapError> {
    let mut command = Command::new("systemctl");
    let output = external::output(command.arg("show").args(arguments), PATIENCE).await?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Ends a slice with all that is in it, if there is one: transient units outlast their cgroups.
///
/// # Errors
/// systemd refuses.
pub async fn end_slice(name: &str) -> Result<(), BootstrapError> {
    match show_properties(&["--property=ActiveState", name]).await?.contains("ActiveState=active") {
        true => systemctl(&["stop", name]).await,
        false => Ok(()),
    }
}

/// The main process of a program that is active.
pub async fn main_process(program: &str) -> Option<ProcessIdentity> {
    let name = units::file_name(program);
    let shown = show_properties(&["--property=ActiveState,MainPID", &name]).await.ok()?;
    let is_active = shown.contains("ActiveState=active");
    ProcessIdentity::from_pid(pid_of(&shown).filter(|_| is_active)?).ok()
}

/// How often systemd has started a program again because it ended.
pub async fn restarts(program: &str) -> Option<u32> {
    let name = units::file_name(program);
    restarts_of(&show_properties(&["--property=NRestarts", &name]).await.ok()?)
}

fn restarts_of(shown: &str) -> Option<u32> {
    shown.lines().find_map(|line| line.strip_prefix("NRestarts="))?.parse().ok()
}

/// What a program said last, by the journal.
pub async fn last_lines(program: &str, count: usize) -> Vec<String> {
    let (unit, lines) = (format!("--unit={program}"), format!("--lines={count}"));
    let shown = [unit.as_str(), &lines, "--no-pager", "--output=cat"];
    let output = external::output(Command::new("journalctl").args(shown), JOURNAL_PATIENCE).await;
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    program_log::last_of(&text.unwrap_or_default(), count)
}

/// The main process in what `systemctl show` says.
fn pid_of(shown: &str) -> Option<i32> {
    let pid = shown.lines().find_map(|line| line.strip_prefix("MainPID="))?;
    pid.parse().ok().filter(|pid| *pid > 0)
}

async fn systemctl(arguments: &[&str]) -> Result<(), BootstrapError> {
    let output = external::output(Command::new("systemctl").args(arguments), PATIENCE).await?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let text = format!("systemctl {}: {}; {}", arguments.join(" "), output.status, said.trim());
        return Err(BootstrapError::Program(text));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_without_a_process_has_no_pid() {
        assert_eq!(pid_of("ActiveState=active\nMainPID=12\n"), Some(12));
        assert_eq!(pid_of("MainPID=0\nActiveState=active\n"), None);
        assert_eq!(pid_of("ActiveState=active\n"), None);
    }

    #[test]
    fn a_unit_that_systemd_has_not_read_is_read_again() {
        assert!(needs_reload("ActiveState=active\nMainPID=12\nNeedDaemonReload=yes\n"));
        assert!(!needs_reload("NeedDaemonReload=no\n") && !needs_reload(""));
    }

    #[test]
    fn restarts_are_counted_by_systemd() {
        assert_eq!(restarts_of("NRestarts=7\n"), Some(7));
        assert_eq!(restarts_of("NRestarts=\n"), None);
        assert_eq!(restarts_of(""), None);
    }
}
