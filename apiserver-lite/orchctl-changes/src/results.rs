//! What a changing command prints for each object: one line, or the object itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::{Args, ValueEnum};
use orchctl_client::{CommandError, Output};
use orchctl_commands::print_flags::PrintFlags;
use orchctl_printers::PrintFormat;
use serde_json::Value;

use crate::requests::{Place, WriteOptions};

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
    /// How the object is printed instead of a line.
    #[command(flatten)]
    pub print: PrintFlags,
    /// Whether an object was printed.
    #[arg(skip)]
    printed: Arc<AtomicBool>,
}

impl ResultFlags {
    /// Flags of a command without dry run, that print so.
    pub fn printing(print: PrintFlags) -> Self {
        Self { print, ..Self::default() }
    }

    /// The write of these flags.
    ///
    /// # Errors
    /// When what is written could not be printed: nothing is changed then.
    pub fn write(&self, manager: &str) -> Result<WriteOptions, CommandError> {
        self.form()?;
        Ok(WriteOptions {
            dry_run: self.dry_run == DryRun::Server,
            manager: manager.to_owned(),
            ..WriteOptions::default()
        })
    }

    fn form(&self) -> Result<PrintFormat, CommandError> {
        match self.print.form()? {
            PrintFormat::Wide | PrintFormat::Columns(_) => Err(CommandError::with_text(format!(
                "unable to match a printer suitable for the output format \"{}\", allowed formats are: go-template,go-template-file,json,jsonpath,jsonpath-as-json,jsonpath-file,name,yaml",
                self.print.output.as_deref().unwrap_or_default()
            ))),
            form => Ok(form),
        }
    }

    /// Whether objects are printed whole or in part, not lines about them.
    pub fn prints_objects(&self) -> bool {
        !matches!(self.print.text().as_deref(), None | Some("" | "name"))
    }

    /// Prints an object; of several the YAML documents are divided.
    ///
    /// # Errors
    /// A template does not apply to the object, or the output is closed.
    pub fn print(&self, output: &mut Output, object: Value) -> Result<(), CommandError> {
        let form = self.form()?;
        if matches!(form, PrintFormat::Yaml) && self.printed.swap(true, Ordering::Relaxed) {
            writeln!(output.out, "---")?;
        }
        self.print.print(&form, object, true, output)
    }

    /// Whether requests are sent.
    pub fn sends(&self) -> bool {
        self.dry_run != DryRun::Client
    }

    /// Prints what was done to an object.
    ///
    /// # Errors
    /// The output is closed.
    pub fn print_result(
        &self,
        output: &mut Output,
        place: &Place,
        object: &Value,
        done: &str,
    ) -> Result<(), CommandError> {
        let title = title_of(place, object);
        match self.print.text().as_deref() {
            None | Some("") => {
                let note = match self.dry_run {
                    DryRun::None => "",
                    DryRun::Client => " (dry run)",
                    DryRun::Server => " (server dry run)",
                };
                writeln!(output.out, "{title} {done}{note}")?;
            }
            Some("name") => writeln!(output.out, "{title}")?,
            Some(_) => self.print(output, object.clone())?,
        }
        Ok(())
    }
}

/// What the object is called: subresources such as scales are objects of another kind.
fn title_of(place: &Place, object: &Value) -> String {
    let text = |field: &str| object.get(field).and_then(Value::as_str).unwrap_or_default();
    let (kind, api_version) = (text("kind"), text("apiVersion"));
    if kind.is_empty() || kind == place.resource.kind {
        return place.title();
    }
    let word = kind.to_lowercase();
    match api_version.split_once('/') {
        Some((group, _)) => format!("{word}.{group}/{}", place.name),
        None => format!("{word}/{}", place.name),
    }
}
