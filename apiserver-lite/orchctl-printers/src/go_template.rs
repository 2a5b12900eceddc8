//! Templates of Go, with kubectl's functions `exists` and `base64decode`.

use std::collections::HashMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use gtmpl_ng::{Context, FuncError, Limits, Template, Value as GoValue};
use serde_json::Value;

/// A template whose syntax has been checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GoTemplate(String);

/// Why a template is none, or has no meaning for an object.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GoTemplateError {
    /// The syntax is wrong.
    #[error("error parsing template {0:?}: {1}")]
    Syntax(String, String),
    /// It cannot be executed for the object.
    #[error("error executing template {0:?}: {1}")]
    Execution(String, String),
}

impl GoTemplate {
    /// Reads a template.
    ///
    /// # Errors
    /// It is malformed, or calls a function that does not exist.
    pub fn parse(text: &str) -> Result<Self, GoTemplateError> {
        template(text)?;
        Ok(Self(text.to_owned()))
    }

    /// The output for an object. Fields that it lacks are `<no value>`.
    ///
    /// # Errors
    /// A value has the wrong kind for what is done with it.
    pub fn render(&self, object: &Value) -> Result<String, GoTemplateError> {
        let rendered = template(&self.0)?.render(&Context::from(value(object)));
        rendered.map_err(|error| GoTemplateError::Execution(self.0.clone(), error.to_string()))
    }
}

fn template(text: &str) -> Result<Template, GoTemplateError> {
    // The template is the user's own, and lists may be long.
    let mut template = Template::with_limits(Limits::unlimited());
    template.add_func("exists", exists);
    template.add_func("base64decode", base64_decode);
    match template.parse(text) {
        Ok(()) => Ok(template),
        Err(error) => Err(GoTemplateError::Syntax(text.to_owned(), error.to_string())),
    }
}

fn value(json: &Value) -> GoValue {
    match json {
        Value::Null => GoValue::Nil,
        Value::Bool(is) => GoValue::Bool(*is),
        Value::String(text) => GoValue::String(text.clone()),
        Value::Number(number) => match (number.as_i64(), number.as_f64()) {
            (Some(number), _) => GoValue::from(number),
            (None, number) => GoValue::from(number.unwrap_or_default()),
        },
        Value::Array(items) => GoValue::Array(items.iter().map(value).collect()),
        Value::Object(fields) => {
            let fields = fields.iter().map(|(name, field)| (name.clone(), value(field)));
            GoValue::Map(fields.collect::<HashMap<_, _>>())
        }
    }
}

/// Whether a value has what keys and indexes lead to, one after the other.
fn exists(arguments: &[GoValue]) -> Result<GoValue, FuncError> {
    let Some((first, path)) = arguments.split_first() else {
        return Err(FuncError::AtLeastXArgs("exists".to_owned(), 1));
    };
    let step = |value: &GoValue, key: &GoValue| match (value, key) {
        (GoValue::Map(fields), GoValue::String(name)) => fields.get(name).cloned(),
        (GoValue::Array(items), GoValue::Number(index)) => {
            items.get(usize::try_from(index.as_i64()?).ok()?).cloned()
        }
        _ => None,
    };
    let found = path.iter().try_fold(first.clone(), |value, key| step(&value, key));
    Ok(GoValue::Bool(found.is_some_and(|found| !matches!(found, GoValue::NoValue))))
}

fn base64_decode(arguments: &[GoValue]) -> Result<GoValue, FuncError> {
    let [GoValue::String(text)] = arguments else {
        return Err(FuncError::Generic("base64decode: want one string".to_owned()));
    };
    let bytes = STANDARD.decode(text);
    let bytes =
        bytes.map_err(|error| FuncError::Generic(format!("base64 decode failed: {error}")))?;
    Ok(GoValue::String(String::from_utf8_lossy(&bytes).into_owned()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn rendered(text: &str) -> Result<String, GoTemplateError> {
        let pod = json!({"kind": "Pod", "metadata": {"name": "a", "labels": {"app": "web", "tier": "x"}, "generation": 2000000},
            "spec": {"nodeName": null, "containers": [{"name": "c", "ports": [{"containerPort": 80}]}, {"name": "d"}]},
            "data": {"password": "c2VjcmV0"}, "status": {"ready": true, "load": 0.5}});
        GoTemplate::parse(text)?.render(&pod)
    }

    #[test]
    fn templates_of_scripts() {
        for (template, wanted) in [
            ("{{.metadata.name}}", "a"),
            ("{{.metadata.generation}} {{.status.load}} {{.status.ready}}", "2000000 0.5 true"),
            (
                "{{.nothing}}|{{.nothing.deeper}}|{{.spec.nodeName}}",
                "<no value>|<no value>|<no value>",
            ),
            ("{{range .spec.containers}}{{.name}}{{\"\\n\"}}{{end}}", "c\nd\n"),
            ("{{range $k, $v := .metadata.labels}}{{$k}}={{$v}};{{end}}", "app=web;tier=x;"),
            ("{{with index .spec.containers 0}}{{(index .ports 0).containerPort}}{{end}}", "80"),
            ("{{if exists .spec \"containers\" 1 \"ports\"}}yes{{else}}no{{end}}", "no"),
            ("{{if exists .spec \"containers\" 0 \"ports\"}}yes{{else}}no{{end}}", "yes"),
            ("{{if eq .kind \"Pod\"}}{{len .spec.containers}}{{end}}", "2"),
            ("{{.data.password | base64decode}}", "secret"),
            ("{{printf \"%s/%s\" .kind .metadata.name}}", "Pod/a"),
            ("{{index .metadata.labels \"app\"}}", "web"),
        ] {
            assert_eq!(rendered(template).as_deref(), Ok(wanted), "{template}");
        }
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (template, wanted) in [
            ("{{.metadata.name", "error parsing template"),
            ("{{unknown .}}", "error parsing template"),
            ("{{base64decode 1}}", "error executing template"),
            ("{{.data.password | base64decode | base64decode}}", "error executing template"),
            ("{{index .spec.containers 7}}", "error executing template"),
        ] {
            let error = rendered(template).expect_err(template).to_string();
            assert!(error.starts_with(wanted), "{error}");
        }
    }
}
