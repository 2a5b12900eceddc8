//! Flags that say how objects are printed, for every command that prints some.

use std::io::Read as _;

use orchctl_client::{CommandError, Output};
use orchctl_printers::jsonpath::MissingFields;
use orchctl_printers::{PrintFormat, RenderError, objects};
use serde_json::Value;

/// Longest file of a template.
const TEMPLATE_FILE_LEN_MAX: u64 = 1 << 20;

/// How objects are printed.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct PrintFlags {
    /// Form: json, yaml, name, wide, jsonpath=..., jsonpath-file=..., go-template=..., go-template-file=..., custom-columns=..., custom-columns-file=...
    #[arg(long, short, value_name = "FORM")]
    pub output: Option<String>,
    /// Template or its file, for a form without one; go-template is the default form then
    #[arg(long, value_name = "TEMPLATE")]
    pub template: Option<String>,
    /// Leave out fields that a template names and an object lacks (otherwise they are errors)
    #[arg(long, value_name = "BOOL", action = clap::ArgAction::Set, num_args = 0..=1, require_equals = true, default_value_t = true, default_missing_value = "true")]
    pub allow_missing_template_keys: bool,
    /// Keep metadata.managedFields in JSON and YAML
    #[arg(long)]
    pub show_managed_fields: bool,
}

impl PrintFlags {
    /// The form with its template; none if neither is given.
    pub fn text(&self) -> Option<String> {
        let Some(template) = &self.template else { return self.output.clone() };
        Some(match self.output.as_deref() {
            None | Some("") => format!("go-template={template}"),
            Some(
                form @ ("jsonpath" | "jsonpath-as-json" | "jsonpath-file" | "go-template"
                | "go-template-file" | "template" | "templatefile"),
            ) => format!("{form}={template}"),
            Some(form) => form.to_owned(),
        })
    }

    /// The form of the output.
    ///
    /// # Errors
    /// When there is no such form.
    pub fn form(&self) -> Result<PrintFormat, CommandError> {
        PrintFormat::parse(&self.text().unwrap_or_default(), read_file)
            .map_err(|error| CommandError::with_text(error.to_string()))
    }

    /// What becomes of fields that a template names and an object lacks.
    pub fn missing(&self) -> MissingFields {
        if self.allow_missing_template_keys {
            MissingFields::Skipped
        } else {
            MissingFields::Refused
        }
    }

    /// Prints an object, or a list of them.
    ///
    /// # Errors
    /// When a template has no meaning for the object.
    pub fn print(
        &self,
        form: &PrintFormat,
        mut object: Value,
        heads: bool,
        output: &mut Output,
    ) -> Result<(), CommandError> {
        if !self.show_managed_fields {
            objects::without_managed_fields(&mut object);
        }
        let text = form.render(&object, self.missing(), heads).map_err(|error| {
            if !matches!(error, RenderError::JsonPath(_)) {
                return CommandError::with_text(error.to_string());
            }
            let template = match form {
                PrintFormat::JsonPath(template) | PrintFormat::JsonPathAsJson(template) => {
                    template.text()
                }
                _ => self.output.as_deref().unwrap_or_default(),
            };
            CommandError::with_text(format!(
                "error executing jsonpath \"{template}\": Error executing template: {error}"
            ))
        })?;
        Ok(output.out.write_all(text.as_bytes())?)
    }
}

fn read_file(path: &str) -> std::io::Result<String> {
    let mut text = String::new();
    std::fs::File::open(path)?.take(TEMPLATE_FILE_LEN_MAX).read_to_string(&mut text)?;
    Ok(text)
}
