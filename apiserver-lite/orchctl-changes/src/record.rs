//! `--record`: the command is written into the annotation that `rollout history` shows.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use orchctl_client::{CommandError, Output, Session};
use orchctl_plans::change_cause;
use serde_json::Value;

/// The flag of commands that change objects.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct RecordFlags {
    /// Write the command into the annotation change-cause (deprecated)
    #[arg(long)]
    record: bool,
    /// Whether it was said that the flag is deprecated.
    #[arg(skip)]
    warned: Arc<AtomicBool>,
}

impl RecordFlags {
    /// Writes the command into the object, if that is wanted; whether it is.
    ///
    /// # Errors
    /// The server's names cannot be read, or the output is closed.
    pub async fn annotate(
        &self,
        session: &Session,
        object: &mut Value,
        output: &mut Output,
    ) -> Result<bool, CommandError> {
        if !self.record {
            return Ok(false);
        }
        if !self.warned.swap(true, Ordering::Relaxed) {
            writeln!(
                output.err,
                "Flag --record has been deprecated, --record will be removed in the future"
            )?;
        }
        let command = change_cause::command_line(std::env::args_os());
        change_cause::annotate(session.names().await?, object, &command);
        Ok(true)
    }
}
