//! Other programs, run to their end within a time.

use std::io;
use std::process::{Output, Stdio};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, copy, sink};
use tokio::process::Command;

use crate::error::BootstrapError;

/// Most bytes of what a program says on each of its outputs; the rest is left out.
const SAID_MAX: u64 = 1 << 20;

/// Runs a program and takes what it says, up to 1 MiB of each output. One that does not end in time is killed.
///
/// # Errors
/// It cannot be started, or does not end.
pub async fn output(command: &mut Command, patience: Duration) -> Result<Output, BootstrapError> {
    let program = command.as_std().get_program().to_string_lossy().into_owned();
    let running = run(command.stdin(Stdio::null()).kill_on_drop(true));
    // Cancel-safe: the process is killed when the future is dropped.
    let ended = tokio::time::timeout(patience, running).await;
    let seconds = patience.as_secs();
    let ended = ended.map_err(|_| {
        BootstrapError::Program(format!("{program} has not ended after {seconds} s"))
    })?;
    ended.map_err(BootstrapError::system(format!("cannot start {program}")))
}

async fn run(command: &mut Command) -> io::Result<Output> {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let (out, error) = (child.stdout.take(), child.stderr.take());
    let (stdout, stderr, status) = tokio::try_join!(read(out), read(error), child.wait())?;
    Ok(Output { status, stdout, stderr })
}

/// The beginning of a stream. All of it is read: a program that writes on would wait for that.
async fn read(stream: Option<impl AsyncRead + Unpin>) -> io::Result<Vec<u8>> {
    let mut said = Vec::new();
    if let Some(mut stream) = stream {
        (&mut stream).take(SAID_MAX).read_to_end(&mut said).await?;
        copy(&mut stream, &mut sink()).await?;
    }
    Ok(said)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_a_program_says_is_bounded_and_it_ends() {
        let script = "head -c 3000000 /dev/zero; echo x >&2; exit 3";
        let mut command = Command::new("/bin/sh");
        let said = output(command.args(["-c", script]), Duration::from_secs(60)).await.unwrap();
        assert_eq!((said.status.code(), said.stderr.as_slice()), (Some(3), b"x\n".as_slice()));
        assert_eq!(said.stdout.len() as u64, SAID_MAX);
    }

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
