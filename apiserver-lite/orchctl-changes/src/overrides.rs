//! `--overrides`: a patch of what a command generates, before it is sent.

use apiserver_schema::{Engine, PatchType};
use clap::ValueEnum;
use orchctl_client::{CommandError, Session};
use serde_json::Value;

/// Flags of commands that generate objects.
#[derive(clap::Args, Clone, Debug)]
pub struct OverrideFlags {
    /// Patch of the generated object, as JSON
    #[arg(long, value_name = "JSON")]
    overrides: Option<String>,
    /// Format of the patch
    #[arg(long, value_enum, default_value = "merge", value_name = "FORMAT")]
    override_type: OverrideType,
}

/// Formats of the patch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum OverrideType {
    Json,
    Merge,
    Strategic,
}

impl OverrideFlags {
    /// The object with the overrides.
    ///
    /// # Errors
    /// They are no patch, or do not fit.
    pub async fn apply(&self, session: &Session, object: Value) -> Result<Value, CommandError> {
        let Some(text) = &self.overrides else { return Ok(object) };
        let patch_type = match self.override_type {
            OverrideType::Json => PatchType::Json,
            OverrideType::Merge => PatchType::Merge,
            OverrideType::Strategic => PatchType::Strategic,
        };
        let engine = Engine::new(session.names().await?);
        orchctl_plans::apply::overridden(&engine, &object, patch_type, text)
            .map_err(|error| CommandError::with_text(format!("invalid --overrides: {error}")))
    }
}
