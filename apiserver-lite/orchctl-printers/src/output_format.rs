//! The form of the output, as `-o` says it, and objects in that form.

use proto_api::yaml;
use serde_json::Value;

use crate::custom_columns::{CustomColumns, CustomColumnsError};
use crate::go_template::{GoTemplate, GoTemplateError};
use crate::jsonpath::{JsonPathError, MissingFields, Template};
use crate::{json, objects};

/// The form of the output.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum PrintFormat {
    /// The columns of the kind.
    #[default]
    Table,
    /// With less important columns.
    Wide,
    /// Whole objects as JSON.
    Json,
    /// Whole objects as YAML.
    Yaml,
    /// `kind/name`.
    Name,
    /// A JSONPath template.
    JsonPath(Template),
    /// What a JSONPath template leads to, as a list in JSON.
    JsonPathAsJson(Template),
    /// What the template makes of an object, in the language of Go's `text/template`.
    GoTemplate(GoTemplate),
    /// Columns of the command line.
    Columns(CustomColumns),
}

/// Why an object has no such form.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RenderError {
    /// Of a JSONPath template or of columns.
    #[error(transparent)]
    JsonPath(#[from] JsonPathError),
    /// The template has no meaning for the object.
    #[error(transparent)]
    GoTemplate(#[from] GoTemplateError),
    /// `--allow-missing-template-keys=false` with a template of Go.
    #[error(
        "--allow-missing-template-keys=false is not supported for go-template: missing fields are \"<no value>\""
    )]
    MissingFields,
}

/// Why there is no such form.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FormError {
    /// The word is unknown.
    #[error(
        "unable to match a printer suitable for the output format \"{0}\", allowed formats are: \
         custom-columns,custom-columns-file,go-template,go-template-file,json,jsonpath,jsonpath-as-json,jsonpath-file,name,wide,yaml"
    )]
    Unknown(String),
    /// A template is missing.
    #[error("template format specified but no template given")]
    NoTemplate,
    /// A template is malformed.
    #[error("error parsing jsonpath {0}, {1}")]
    Template(String, JsonPathError),
    /// A template of Go is malformed.
    #[error(transparent)]
    GoTemplate(#[from] GoTemplateError),
    /// Columns are malformed.
    #[error(transparent)]
    Columns(#[from] CustomColumnsError),
    /// A file cannot be read.
    #[error("error reading {0}: {1}")]
    File(String, String),
}

impl PrintFormat {
    /// Reads the value of `-o`; `read_file` reads files that it names.
    ///
    /// # Errors
    /// When it is none, or a file cannot be read.
    pub fn parse(
        text: &str,
        read_file: impl Fn(&str) -> std::io::Result<String>,
    ) -> Result<Self, FormError> {
        let (word, rest) = match text.split_once('=') {
            Some((word, rest)) => (word, Some(rest)),
            None => (text, None),
        };
        let parsed = |text: &str| {
            Template::parse(text).map_err(|error| FormError::Template(text.to_owned(), error))
        };
        let file = |path: Option<&str>| {
            let path = path.filter(|path| !path.is_empty()).ok_or(FormError::NoTemplate)?;
            read_file(path).map_err(|error| FormError::File(path.to_owned(), error.to_string()))
        };
        Ok(match (word, rest) {
            ("", None) => Self::Table,
            ("wide", None) => Self::Wide,
            ("json", None) => Self::Json,
            ("yaml", None) => Self::Yaml,
            ("name", None) => Self::Name,
            ("jsonpath" | "jsonpath-as-json", rest) => {
                let text = rest.filter(|rest| !rest.is_empty()).ok_or(FormError::NoTemplate)?;
                let template = parsed(text)?;
                if word == "jsonpath" {
                    Self::JsonPath(template)
                } else {
                    Self::JsonPathAsJson(template)
                }
            }
            ("jsonpath-file", rest) => Self::JsonPath(parsed(&file(rest)?)?),
            ("go-template" | "template", rest) => {
                let text = rest.filter(|rest| !rest.is_empty()).ok_or(FormError::NoTemplate)?;
                Self::GoTemplate(GoTemplate::parse(text)?)
            }
            ("go-template-file" | "templatefile", rest) => {
                Self::GoTemplate(GoTemplate::parse(&file(rest)?)?)
            }
            ("custom-columns", rest) => {
                Self::Columns(CustomColumns::parse(rest.unwrap_or_default())?)
            }
            ("custom-columns-file", rest) => {
                Self::Columns(CustomColumns::parse_file(&file(rest)?)?)
            }
            _ => return Err(FormError::Unknown(text.to_owned())),
        })
    }

    /// Whether it shows the columns of the kind, for which the server makes tables.
    pub fn is_table(&self) -> bool {
        matches!(self, Self::Table | Self::Wide)
    }

    /// An object, or a list of them, in this form. Tables are not made here: they have the form of [`PrintFormat::Name`].
    ///
    /// # Errors
    /// When a template has no meaning for the object.
    pub fn render(
        &self,
        object: &Value,
        missing: MissingFields,
        heads: bool,
    ) -> Result<String, RenderError> {
        Ok(match self {
            Self::Json => json::pretty(object),
            Self::Yaml => yaml::to_string(object),
            Self::JsonPath(template) => template.render(object, missing)?,
            Self::JsonPathAsJson(template) => {
                let found = template.find(object, missing)?.into_iter().cloned().collect();
                json::pretty(&Value::Array(found))
            }
            Self::GoTemplate(_) if missing == MissingFields::Refused => {
                return Err(RenderError::MissingFields);
            }
            Self::GoTemplate(template) => template.render(object)?,
            Self::Columns(columns) => {
                columns.render(&objects::into_items(object.clone()), heads)?
            }
            Self::Name | Self::Table | Self::Wide => {
                let items = objects::into_items(object.clone());
                items.iter().map(|item| objects::kind_and_name(item) + "\n").collect()
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(text: &str) -> Result<PrintFormat, FormError> {
        PrintFormat::parse(text, |path| match path {
            "f" => Ok("NAME\n.metadata.name\n".to_owned()),
            _ => Err(std::io::Error::other("not found")),
        })
    }

    #[test]
    fn objects_in_every_form() {
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}});
        for (form, wanted) in [
            ("yaml", "apiVersion: v1\nkind: Pod\nmetadata:\n  name: a\n"),
            ("name", "pod/a\n"),
            ("jsonpath={.metadata.name}", "a"),
            ("go-template={{.metadata.name}}", "a"),
            ("template={{.kind}}", "Pod"),
            ("go-template-file=f", "NAME\n.metadata.name\n"),
            ("custom-columns=N:.metadata.name", "N\na\n"),
            ("custom-columns-file=f", "NAME\na\n"),
        ] {
            let form = read(form).expect(form);
            assert_eq!(form.render(&pod, MissingFields::Skipped, true).as_deref(), Ok(wanted));
        }
        let list = objects::list_of(vec![pod.clone(), pod]);
        let name = read("name").expect("name");
        assert_eq!(
            name.render(&list, MissingFields::Skipped, true).as_deref(),
            Ok("pod/a\npod/a\n")
        );
    }

    #[test]
    fn unknown_forms_are_refused() {
        for form in [
            "foo",
            "json=x",
            "go-template",
            "go-template={{",
            "go-template-file",
            "jsonpath",
            "jsonpath={",
            "custom-columns",
            "custom-columns-file=g",
        ] {
            assert!(read(form).is_err(), "{form}");
        }
    }
}
