//! Other programs, run to their end within a time.

use std::process::Output;
use std::time::Duration;

use tokio::process::Command;

use crate::error::BootstrapError;

/// Runs a program and takes what it says. One that does not end in time is killed.
///
/// # Errors
/// It cannot be started, or does not end.
pub async fn output(command: &mut Command, patience: Duration) -> Result<Output, BootstrapError> {
    let program = command.as_std().get_program().to_string_lossy().into_owned();
    let running = command.stdin(std::process::Stdio::null()).kill_on_drop(true).output();
    // Cancel-safe: the process is killed when the future is dropped.
    let ended = tokio::time::timeout(patience, running).await;
    let seconds = patience.as_secs();
    let ended = ended.map_err(|_| {
        BootstrapError::Program(format!("{program} has not ended after {seconds} s"))
    })?;
    ended.map_err(BootstrapError::system(format!("cannot start {program}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_program_that_exceeds_its_deadline_is_killed() {
        let short = Duration::from_millis(50);
        let error = output(Command::new("/bin/sleep").arg("1000"), short).await.unwrap_err();
        assert!(error.to_string().contains("has not ended"), "{error}");
        let said = output(Command::new("/bin/echo").arg("x"), Duration::from_secs(60)).await;
        assert_eq!(said.unwrap().stdout, b"x\n");
        assert!(output(&mut Command::new("/missing"), short).await.is_err());
    }
}
