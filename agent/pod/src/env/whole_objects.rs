//! Whole objects in an environment (`envFrom`): each key is a variable.

use std::collections::{BTreeMap, BTreeSet};

use proto_api::core::v1::{ConfigMap, Container, Secret};

use super::{EnvError, EnvObjects, Environment, Value, text};

/// Most bytes of the keys that a message about skipped ones shows.
const SHOWN_KEYS_LEN_MAX: usize = 1000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    ConfigMap,
    Secret,
}

impl Kind {
    /// As in Kubernetes' message about skipped keys.
    fn name(self) -> &'static str {
        match self {
            Self::ConfigMap => "configMap",
            Self::Secret => "secret",
        }
    }
}

/// What an entry of `envFrom` reads.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Source<'a> {
    kind: Kind,
    name: &'a str,
    prefix: &'a str,
}

/// An entry of `envFrom`.
struct Entry<'a> {
    source: Source<'a>,
    optional: bool,
    /// Whether its keys are read: of entries with the same source only the last, which overwrites the others.
    is_read: bool,
}

/// A present object.
enum Object<'a> {
    ConfigMap(&'a ConfigMap),
    Secret(&'a Secret),
}

impl Object<'_> {
    fn keys(&self) -> Box<dyn Iterator<Item = &String> + '_> {
        match self {
            Self::ConfigMap(object) => Box::new(object.data.keys()),
            Self::Secret(object) => Box::new(object.data.keys()),
        }
    }
}

impl<'a> Source<'a> {
    fn object<'o>(&self, objects: &'o dyn EnvObjects) -> Option<Object<'o>> {
        match self.kind {
            Kind::ConfigMap => objects.config_map(self.name).map(Object::ConfigMap),
            Kind::Secret => objects.secret(self.name).map(Object::Secret),
        }
    }

    fn not_found(&self) -> EnvError {
        match self.kind {
            Kind::ConfigMap => EnvError::NoConfigMap(self.name.to_owned()),
            Kind::Secret => EnvError::NoSecret(self.name.to_owned()),
        }
    }

    /// The variable of a key; `None` if it is not a valid name.
    fn variable(&self, key: &str) -> Option<String> {
        Some(format!("{}{key}", self.prefix)).filter(|name| is_variable_name(name))
    }
}

fn entries(container: &Container) -> Vec<Entry<'_>> {
    let mut entries = Vec::new();
    let mut add = |kind, name, prefix, optional| {
        let source = Source { kind, name, prefix };
        entries.push(Entry { source, optional: optional == Some(true), is_read: false });
    };
    for from in &container.env_from {
        if let Some(object) = &from.config_map_ref {
            let name = &object.local_object_reference.name;
            add(Kind::ConfigMap, name.as_str(), from.prefix.as_str(), object.optional);
        }
        if let Some(object) = &from.secret_ref {
            let name = &object.local_object_reference.name;
            add(Kind::Secret, name.as_str(), from.prefix.as_str(), object.optional);
        }
    }
    let mut read = BTreeSet::new();
    for entry in entries.iter_mut().rev() {
        entry.is_read = read.insert(entry.source);
    }
    entries
}

/// Sets the variables of `envFrom`. Later entries win.
pub(super) fn set_all<V: Value>(
    container: &Container,
    objects: &dyn EnvObjects,
    result: &mut Environment<'_, V>,
) -> Result<(), EnvError> {
    for Entry { source, optional, is_read } in entries(container) {
        match source.object(objects) {
            None if optional => {}
            None => return Err(source.not_found()),
            Some(_) if !is_read => {}
            Some(Object::ConfigMap(object)) => {
                for (key, value) in &object.data {
                    result.spend([source.prefix.len(), key.len(), value.len()])?;
                    set(result, source, key, value)?;
                }
            }
            Some(Object::Secret(object)) => {
                for (key, value) in &object.data {
                    result.spend([source.prefix.len(), key.len(), value.len()])?;
                    set(result, source, key, text(source.name, key, value)?)?;
                }
            }
        }
    }
    Ok(())
}

/// Sets a variable named after a key; skips a key that is not a valid variable name.
fn set<V: Value>(
    result: &mut Environment<'_, V>,
    source: Source<'_>,
    key: &str,
    value: &str,
) -> Result<(), EnvError> {
    source.variable(key).map_or(Ok(()), |name| result.set(name, value.into()))
}

/// Messages about keys that `envFrom` selects and that are not valid variable names, one per object and of bounded length. The work is that of
/// [`super::environment`], which is to succeed first.
pub fn skipped_keys(
    container: &Container,
    namespace: &str,
    objects: &dyn EnvObjects,
) -> Vec<String> {
    let mut skipped: BTreeMap<(Kind, &str), SkippedKeys> = BTreeMap::new();
    for Entry { source, .. } in entries(container).into_iter().filter(|entry| entry.is_read) {
        let Some(object) = source.object(objects) else { continue };
        for key in object.keys().filter(|key| source.variable(key).is_none()) {
            skipped.entry((source.kind, source.name)).or_default().add(key);
        }
    }
    let message = |((kind, name), keys): ((Kind, &str), SkippedKeys)| {
        format!(
            "Keys [{keys}] from the EnvFrom {} {namespace}/{name} were skipped since they are \
             considered invalid environment variable names.",
            kind.name()
        )
    };
    skipped.into_iter().map(message).collect()
}

/// The first keys that were skipped, and the number of others.
#[derive(Default)]
struct SkippedKeys {
    shown: String,
    others: usize,
}

impl SkippedKeys {
    fn add(&mut self, key: &str) {
        let len = self.shown.len().saturating_add(key.len());
        if self.others > 0 || len > SHOWN_KEYS_LEN_MAX {
            self.others = self.others.saturating_add(1);
            return;
        }
        if !self.shown.is_empty() {
            self.shown.push_str(", ");
        }
        self.shown.push_str(key);
    }
}

impl std::fmt::Display for SkippedKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.shown)?;
        if self.others > 0 { write!(f, " and {} others", self.others) } else { Ok(()) }
    }
}

/// Whether the name consists of letters, digits, `_`, `-` and `.`, does not start with a digit and is not a path.
fn is_variable_name(name: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    !name.is_empty()
        && name.chars().all(allowed)
        && !name.starts_with(|c: char| c.is_ascii_digit())
        && name != "."
        && !name.starts_with("..")
}
