//! Programs with their output in a log.

use std::fs::File;
use std::path::Path;
use std::process::Stdio;

use anyhow::{Context as _, Result};
use tokio::process::{Child, Command};

/// Lines at the end of a log that say why a program has failed.
const SHOWN_LINES: usize = 15;

/// Starts a program, which is killed when its handle is dropped.
///
/// # Errors
/// It cannot be started, or the log cannot be written.
pub fn spawn(argv: &[String], log: &Path) -> Result<Child> {
    start(&mut command(argv, log)?)
}

/// The same in a working directory of its own, to which relative paths among the arguments are relative; that of the program is not.
///
/// # Errors
/// Those of [`spawn`].
pub fn spawn_in(directory: &Path, argv: &[String], log: &Path) -> Result<Child> {
    start(command(argv, log)?.current_dir(directory))
}

fn command(argv: &[String], log: &Path) -> Result<Command> {
    let (program, arguments) = argv.split_first().context("no program")?;
    let log = File::options().create(true).append(true).open(log)?;
    let is_path = program.contains('/');
    let program = if is_path { std::path::absolute(program)? } else { program.into() };
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    Ok(command)
}

fn start(command: &mut Command) -> Result<Child> {
    let child = command.kill_on_drop(true).spawn();
    child.with_context(|| format!("starting {}", command.as_std().get_program().display()))
}

/// How a log ends.
#[must_use]
pub fn log_end(log: &Path) -> String {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    let end = &lines[lines.len().saturating_sub(SHOWN_LINES)..];
    format!("{} ends with:\n{}", log.display(), end.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn output_is_appended_to_the_log_and_its_end_is_shown() {
        let dir = tempfile::tempdir().expect("a directory");
        let log = dir.path().join("log");
        for script in ["seq 1 20", "pwd >&2"] {
            let argv = ["sh", "-c", script].map(str::to_owned);
            let mut child = spawn_in(dir.path(), &argv, &log).expect("started");
            assert!(child.wait().await.expect("it ends").success());
        }
        let text = std::fs::read_to_string(&log).expect("a log");
        let directory = dir.path().display().to_string();
        assert!(text.starts_with("1\n2\n") && text.ends_with(&format!("{directory}\n")), "{text}");
        let end = log_end(&log);
        assert!(end.contains("ends with:\n7\n8\n") && end.ends_with(&directory), "{end}");
        assert!(log_end(&dir.path().join("missing")).ends_with("ends with:\n"));
    }

    #[tokio::test]
    async fn a_program_that_cannot_be_started_is_named() {
        let dir = tempfile::tempdir().expect("a directory");
        let missing = dir.path().join("missing").display().to_string();
        let error = spawn(std::slice::from_ref(&missing), &dir.path().join("log")).unwrap_err();
        assert_eq!(error.to_string(), format!("starting {missing}"));
    }
}
