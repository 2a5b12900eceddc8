//! Configuration files: YAML (or JSON, which is YAML), with `apiVersion` and `kind`, read once at the start. One error reports every fault: a wrong type
//! with its path, unknown fields, and the faults of the program's own validation.

use std::fmt;
use std::io::Read;
use std::path::{Path, PathBuf};

use proto_api::yaml::{self, ParseYamlError};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Largest configuration file, in bytes.
const FILE_LEN_MAX: u64 = 1 << 20;

/// The configuration of a program. Serializing writes every field, also unset ones (so: no `skip_serializing_if`): unknown fields are found by that, and
/// `/configz` shows it.
pub trait Configuration: DeserializeOwned + Serialize + Default {
    /// Every invalid value, with its path. Empty when valid.
    fn validate(&self) -> Vec<FieldError>;
}

/// The `apiVersion` and `kind` that a file must carry. Programs accept their own and, under the
/// naming profile `kubernetes`, Kubernetes'.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileType {
    /// For example `orchlet.config.orch.io/v1beta1`.
    pub api_version: String,
    /// For example `OrchletConfiguration`.
    pub kind: String,
}

/// One fault in one field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldError {
    /// JSON names from the root, as `eviction.memory[0]`.
    pub path: String,
    /// What is wrong, for example `must be greater than 0`.
    pub message: String,
}

impl FieldError {
    /// A fault at `path`.
    pub fn new(path: impl Into<String>, message: impl Into<String>) -> Self {
        Self { path: path.into(), message: message.into() }
    }
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.message)
    }
}

impl std::error::Error for FieldError {}

/// Why a configuration file is not accepted.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read configuration {path}")]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        cause: std::io::Error,
    },
    /// The file is not YAML.
    #[error("configuration {path} is not valid YAML")]
    Syntax {
        /// The file.
        path: PathBuf,
        /// Where and what.
        #[source]
        cause: ParseYamlError,
    },
    /// The file is for another program or version.
    #[error("configuration {path} is {found}, expected {expected}")]
    WrongType {
        /// The file.
        path: PathBuf,
        /// `apiVersion`, `kind` as found.
        found: String,
        /// What is accepted.
        expected: String,
    },
    /// Fields are invalid; all of them are listed.
    #[error("configuration {path} is invalid: {}", list(.faults))]
    Invalid {
        /// The file.
        path: PathBuf,
        /// Every fault found.
        faults: Vec<FieldError>,
    },
}

fn list(faults: &[FieldError]) -> String {
    faults.iter().map(FieldError::to_string).collect::<Vec<_>>().join("; ")
}

/// Reads `path` as a `C` of one of the `accepted` types. The caller applies flags and validates the result again.
pub fn load<C: Configuration>(path: &Path, accepted: &[FileType]) -> Result<C, ConfigError> {
    let read = |cause| ConfigError::Read { path: path.to_owned(), cause };
    let file = std::fs::File::open(path).map_err(read)?;
    let mut text = String::new();
    let len = file.take(FILE_LEN_MAX + 1).read_to_string(&mut text).map_err(read)?;
    if len as u64 > FILE_LEN_MAX {
        return Err(read(std::io::Error::other("larger than 1 MiB")));
    }
    parse(path, &text, accepted)
}

/// As [`load`], of a text that is already read; `path` is for the errors.
pub fn parse<C: Configuration>(
    path: &Path,
    text: &str,
    accepted: &[FileType],
) -> Result<C, ConfigError> {
    let mut tree: Value =
        yaml::parse(text).map_err(|cause| ConfigError::Syntax { path: path.to_owned(), cause })?;
    take_type(path, &mut tree, accepted)?;
    let invalid = |faults| ConfigError::Invalid { path: path.to_owned(), faults };
    let config: C = serde_path_to_error::deserialize(&tree).map_err(|error| {
        invalid(vec![FieldError::new(error.path().to_string(), error.inner().to_string())])
    })?;
    let mut faults = Vec::new();
    // A configuration that was read from JSON values can be written as JSON values; if one cannot, unknown fields are not reported.
    if let Ok(known) = serde_json::to_value(&config) {
        unknown_fields(&tree, &known, "", &mut faults);
    }
    faults.extend(config.validate());
    if faults.is_empty() { Ok(config) } else { Err(invalid(faults)) }
}

/// Removes `apiVersion` and `kind` after checking them.
fn take_type(path: &Path, tree: &mut Value, accepted: &[FileType]) -> Result<(), ConfigError> {
    let mut take =
        |key: &str| match tree.as_object_mut().and_then(|fields| fields.shift_remove(key)) {
            Some(Value::String(text)) => text,
            _ => String::new(),
        };
    let found = FileType { api_version: take("apiVersion"), kind: take("kind") };
    if accepted.contains(&found) {
        return Ok(());
    }
    let name = |of: &FileType| format!("apiVersion {:?} kind {:?}", of.api_version, of.kind);
    Err(ConfigError::WrongType {
        path: path.to_owned(),
        found: name(&found),
        expected: accepted.iter().map(name).collect::<Vec<_>>().join(" or "),
    })
}

/// Collects unknown fields: those that were read and would not be written.
fn unknown_fields(read: &Value, known: &Value, path: &str, faults: &mut Vec<FieldError>) {
    match (read, known) {
        (Value::Object(read), Value::Object(known)) => {
            for (name, value) in read {
                let at = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                match known.get(name) {
                    Some(known) => unknown_fields(value, known, &at, faults),
                    None => faults.push(FieldError::new(at, "unknown field")),
                }
            }
        }
        (Value::Array(read), Value::Array(known)) => {
            for (index, (read, known)) in read.iter().zip(known).enumerate() {
                unknown_fields(read, known, &format!("{path}[{index}]"), faults);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde::Deserialize;

    use super::*;
    use crate::exit::chain;

    #[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
    #[serde(rename_all = "camelCase", default)]
    struct Config {
        #[serde(with = "crate::go_duration::text")]
        sync_period: Duration,
        limits: Option<Limits>,
        names: Vec<Limits>,
    }

    #[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
    #[serde(rename_all = "camelCase", default)]
    struct Limits {
        max_pods: u32,
    }

    impl Configuration for Config {
        fn validate(&self) -> Vec<FieldError> {
            let zero = self.sync_period.is_zero();
            zero.then(|| FieldError::new("syncPeriod", "must be greater than 0"))
                .into_iter()
                .collect()
        }
    }

    fn read(body: &str) -> Result<Config, String> {
        let accepted =
            FileType { api_version: "x.config.orch.io/v1".into(), kind: "XConfiguration".into() };
        parse(Path::new("/x.yaml"), body, &[accepted]).map_err(|error| chain(&error))
    }

    const HEAD: &str = "apiVersion: x.config.orch.io/v1\nkind: XConfiguration\n";

    #[test]
    fn a_valid_configuration_is_read() {
        let config = read(&format!("{HEAD}syncPeriod: 15m0s\nlimits:\n  maxPods: 3\n"));
        let limits = Some(Limits { max_pods: 3 });
        let sync_period = Duration::from_secs(900);
        assert_eq!(config, Ok(Config { sync_period, limits, names: vec![] }));
    }

    #[test]
    fn lists_every_fault() {
        let error = read(&format!("{HEAD}limits: {{maxpods: 3}}\nnames: [{{a: 1}}]\nfoo: 1\n"));
        assert_eq!(
            error.expect_err("invalid"),
            "configuration /x.yaml is invalid: limits.maxpods: unknown field; names[0].a: unknown field; \
             foo: unknown field; syncPeriod: must be greater than 0"
        );
    }

    #[test]
    fn names_the_field_of_a_wrong_type() {
        let error = read(&format!("{HEAD}limits:\n  maxPods: many\n")).expect_err("invalid");
        assert!(error.contains("limits.maxPods: invalid type: string"), "{error}");
    }

    #[test]
    fn refuses_other_types_and_no_yaml() {
        let error = read("kind: Pod\n").expect_err("wrong type");
        assert!(
            error.contains("is apiVersion \"\" kind \"Pod\", expected apiVersion \"x.con"),
            "{error}"
        );
        assert!(read("a: [").expect_err("syntax").contains("is not valid YAML"));
        assert!(read("").is_err());
    }
}
