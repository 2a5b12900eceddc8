//! What a changing command tells of each object: one line, or the object itself.

use clap::{Args, ValueEnum};
use orchctl_client::{CommandError, Output};
use orchctl_printers::json;
use proto_api::yaml;
use serde_json::Value;

use crate::requests::{Place, Write};

/// Whether a write happens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum DryRun {
    /// It happens.
    #[default]
    None,
    /// Nothing is sent.
    Client,
    /// The server does everything but keep it.
    Server,
}

/// Flags of commands that change objects.
#[derive(Args, Clone, Debug, Default)]
pub struct ResultFlags {
    /// Change nothing: send nothing (client), or have the server check it (server)
    #[arg(long, value_name = "WAY", value_enum, num_args = 0..=1, require_equals = true,
        default_value = "none", default_missing_value = "client")]
    pub dry_run: DryRun,
    /// Print the object instead of a line
    #[arg(long, short, value_name = "FORM", value_parser = ["json", "yaml", "name"])]
    pub output: Option<String>,
    /// Print which fields belong to which manager, too
    #[arg(long)]
    pub show_managed_fields: bool,
}

impl ResultFlags {
    /// The write of these flags.
    pub fn write(&self, manager: &str) -> Write {
        Write {
            dry_run: self.dry_run == DryRun::Server,
            manager: manager.to_owned(),
            ..Write::default()
        }
    }

    /// Whether requests are sent.
    pub fn sends(&self) -> bool {
        self.dry_run != DryRun::Client
    }

    /// Tells what was done to an object.
    ///
    /// # Errors
    /// When the output has gone.
    pub fn tell(
        &self,
        output: &mut Output,
        place: &Place,
        object: &Value,
        done: &str,
    ) -> Result<(), CommandError> {
        match self.output.as_deref() {
            None => {
                let note = match self.dry_run {
                    DryRun::None => "",
                    DryRun::Client => " (dry run)",
                    DryRun::Server => " (server dry run)",
                };
                writeln!(output.out, "{} {done}{note}", place.title())?;
            }
            Some("name") => writeln!(output.out, "{}", place.title())?,
            Some(form) => {
                let mut object = object.clone();
                if let (false, Some(metadata)) = (
                    self.show_managed_fields,
                    object.get_mut("metadata").and_then(Value::as_object_mut),
                ) {
                    metadata.remove("managedFields");
                }
                match form {
                    "json" => write!(output.out, "{}", json::pretty(&object))?,
                    _ => write!(output.out, "{}", yaml::to_string(&object))?,
                }
            }
        }
        Ok(())
    }
}
