//! The programs of a host with systemd: units, written and started through `systemctl`, as kubeadm does.

use std::path::{Path, PathBuf};
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
/// written before: a command that was killed then has not got to the restart. Where a drop-in says the command line, only a changed unit is a reason to.
/// Says whether it was restarted.
///
/// # Errors
/// The unit cannot be written, or systemd refuses.
pub async fn ensure(layout: &Layout, program: &Program) -> Result<bool, BootstrapError> {
    let name = units::file_name(&program.name);
    let changed = write(&layout.units.join(&name), &units::text(program))?;
    let properties = "--property=ActiveState,MainPID,NeedDaemonReload,DropInPaths";
    let shown = show_properties(&[properties, &name]).await?;
    if changed || needs_reload(&shown) {
        systemctl(&["daemon-reload"]).await?;
    }
    systemctl(&["enable", &name]).await?;
    let running = pid_of(&shown).map(command_line);
    let restarts = changed || runs_another(&shown, running.as_deref(), &program.argv);
    systemctl(&[if restarts { "restart" } else { "start" }, &name]).await?;
    Ok(restarts)
}

/// Whether a program runs with another command line than that of its unit.
fn runs_another(shown: &str, running: Option<&[String]>, wanted: &[String]) -> bool {
    running.is_some_and(|running| running != wanted) && !has_own_command(shown)
}

/// Whether a drop-in among those that `systemctl show` says has a command line of its own. One that cannot be read has none: it is gone.
fn has_own_command(shown: &str) -> bool {
    let paths = shown.lines().find_map(|line| line.strip_prefix("DropInPaths="));
    let mut paths = paths.unwrap_or_default().split_whitespace().map(PathBuf::from);
    let is_command = |line: &str| {
        let setting = line.trim_start().strip_prefix("ExecStart").map(str::trim_start);
        setting.is_some_and(|rest| rest.starts_with('='))
    };
    paths.any(|path| std::fs::read_to_string(path).is_ok_and(|text| text.lines().any(is_command)))
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
    fn a_program_with_the_command_line_of_a_drop_in_is_not_restarted_for_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name).display().to_string();
        let write = |name: &str, text: &str| std::fs::write(path(name), text).unwrap();
        write("a.conf", "[Service]\nExecStartPre=/bin/true\n#ExecStart=/bin/false\n");
        write("b.conf", "[Service]\nExecStart=\nExecStart=/bin/sleep 1\n");
        write("c.conf", "[Service]\n ExecStart = /bin/sleep 1\n");
        let has = |names: &[&str]| {
            let paths = names.iter().map(|name| path(name)).collect::<Vec<_>>().join(" ");
            has_own_command(&format!("ActiveState=active\nDropInPaths={paths}\nMainPID=12\n"))
        };
        assert!(has(&["b.conf"]) && has(&["a.conf", "b.conf"]) && has(&["c.conf"]));
        assert!(!has(&["a.conf"]) && !has(&["a.conf", "missing.conf"]) && !has(&[]));
        assert!(!has_own_command("ActiveState=active\nMainPID=12\n"));
        let line = |word: &str| vec!["/b/p".to_owned(), word.to_owned()];
        let shown = format!("DropInPaths={}\n", path("b.conf"));
        assert!(runs_another("DropInPaths=\n", Some(&line("old")), &line("new")));
        assert!(!runs_another("DropInPaths=\n", Some(&line("new")), &line("new")));
        assert!(!runs_another("DropInPaths=\n", None, &line("new")));
        assert!(!runs_another(&shown, Some(&line("own")), &line("new")));
    }

    #[test]
    fn restarts_are_counted_by_systemd() {
        assert_eq!(restarts_of("NRestarts=7\n"), Some(7));
        assert_eq!(restarts_of("NRestarts=\n"), None);
        assert_eq!(restarts_of(""), None);
    }
}
