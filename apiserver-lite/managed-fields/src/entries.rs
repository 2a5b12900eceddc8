//! `metadata.managedFields`: who owns which fields.

use std::collections::BTreeMap;

use apiserver_schema::value::{Key, write_json_string};
use apiserver_schema::{Map, Value};
use proto_api::Time;

use crate::set::{FieldSet, FieldsError, MAX_PATHS, PathBudget};

#[cfg(test)]
mod tests;

/// Entries of one object that are read and stored.
pub const MAX_ENTRIES: usize = 1000;

/// Entries that a client may send, and appliers of one object: what is left of [`MAX_ENTRIES`] is room for those who update it.
pub const MAX_SENT_ENTRIES: usize = MAX_ENTRIES - 16;

/// Steps of all sets together that a client may send: what is left of [`MAX_PATHS`] is room for the writers to come.
pub const MAX_SENT_PATHS: usize = MAX_PATHS / 4 * 3;

/// Bytes of a manager's name.
pub const MAX_NAME: usize = 128;

/// Bytes of a subresource's name.
pub const MAX_SUBRESOURCE: usize = 256;

/// How fields came to be owned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ManagedFieldsOperation {
    /// By server-side apply.
    Apply,
    /// By any other write.
    Update,
}

impl ManagedFieldsOperation {
    /// The text in an entry.
    pub fn text(self) -> &'static str {
        match self {
            ManagedFieldsOperation::Apply => "Apply",
            ManagedFieldsOperation::Update => "Update",
        }
    }
}

/// What identifies an owner. One manager may be several: it applies and updates, writes in several versions and through subresources.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Owner {
    /// Name of the manager.
    pub manager: String,
    /// How it writes.
    pub operation: ManagedFieldsOperation,
    /// The version in which it updates; empty for appliers, which are one owner in all versions.
    pub api_version: String,
    /// The subresource through which it writes; empty for the object.
    pub subresource: String,
}

impl Owner {
    /// An owner that writes in `api_version`.
    pub fn new(
        manager: &str,
        operation: ManagedFieldsOperation,
        api_version: &str,
        subresource: &str,
    ) -> Self {
        let api_version = match operation {
            ManagedFieldsOperation::Apply => String::new(),
            ManagedFieldsOperation::Update => api_version.to_owned(),
        };
        Owner {
            manager: manager.to_owned(),
            operation,
            api_version,
            subresource: subresource.to_owned(),
        }
    }

    /// The entry without fields and time, as JSON: conflicts are listed in its order.
    pub(crate) fn identifier(&self) -> Vec<u8> {
        let mut out = vec![b'{'];
        for (name, value) in [
            ("manager", self.manager.as_str()),
            ("operation", self.operation.text()),
            ("apiVersion", &self.api_version),
            ("subresource", &self.subresource),
        ] {
            if value.is_empty() {
                continue;
            }
            if out.len() > 1 {
                out.push(b',');
            }
            write_json_string(&mut out, name);
            out.push(b':');
            write_json_string(&mut out, value);
        }
        out.push(b'}');
        out
    }
}

/// The fields of one owner.
#[derive(Clone, Debug, PartialEq)]
pub struct Owned {
    /// The fields, in `api_version`.
    pub fields: FieldSet,
    /// The version that the paths are of.
    pub api_version: String,
    /// When they were last changed.
    pub time: Time,
}

/// The owners of an object's fields.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ManagedFields {
    pub(crate) owners: BTreeMap<Owner, Owned>,
}

/// Why `metadata.managedFields` cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EntryError {
    /// Too many entries.
    #[error("metadata.managedFields has {0} entries, at most {MAX_ENTRIES} are allowed")]
    TooMany(usize),
    /// Too many managers that apply.
    #[error("{0} managers apply the object, at most {MAX_SENT_ENTRIES} may")]
    TooManyAppliers(usize),
    /// An entry is not an object, or the whole not a list.
    #[error("metadata.managedFields must be a list of objects")]
    NotEntries,
    /// An operation that does not exist.
    #[error("operation must be `Apply` or `Update`")]
    Operation,
    #[error("apiVersion must not be empty")]
    NoVersion,
    /// No format of the fields.
    #[error("missing fieldsType in managed fields entry {0}")]
    NoFieldsType(usize),
    /// An unknown format of the fields.
    #[error("invalid fieldsType {fields_type:?} in managed fields entry {at}")]
    FieldsType {
        /// Index of the entry.
        at: usize,
        /// The format.
        fields_type: String,
    },
    /// A name that is too long.
    #[error("{field} in managed fields entry {at} must have at most {most} bytes")]
    TooLong {
        /// Index of the entry.
        at: usize,
        /// The field of the entry.
        field: &'static str,
        /// Its bound.
        most: usize,
    },
    /// A time that is not RFC 3339.
    #[error("time in managed fields entry {at} is not an RFC 3339 time")]
    Time {
        /// Index of the entry.
        at: usize,
    },
    /// Fields that cannot be read.
    #[error("managed fields entry {at}: {error}")]
    Fields {
        /// Index of the entry.
        at: usize,
        /// What is wrong.
        error: FieldsError,
    },
}

impl ManagedFields {
    /// Whether no manager owns a field.
    pub fn is_empty(&self) -> bool {
        self.owners.is_empty()
    }

    /// The owners with their fields, sorted.
    pub fn iter(&self) -> impl Iterator<Item = (&Owner, &Owned)> {
        self.owners.iter()
    }

    /// The fields of an owner.
    pub fn get(&self, owner: &Owner) -> Option<&Owned> {
        self.owners.get(owner)
    }

    /// Reads `metadata.managedFields`, strictly; of several entries of one owner the last wins.
    pub fn decode(value: Option<&Value>) -> Result<Self, EntryError> {
        let entries = match value {
            None | Some(Value::Null) => return Ok(ManagedFields::default()),
            Some(Value::List(entries)) => entries,
            Some(_) => return Err(EntryError::NotEntries),
        };
        if entries.len() > MAX_ENTRIES {
            return Err(EntryError::TooMany(entries.len()));
        }
        let mut limits = PathBudget::default();
        let mut owners = BTreeMap::new();
        for (at, entry) in entries.iter().enumerate() {
            let Value::Map(entry) = entry else { return Err(EntryError::NotEntries) };
            let (owner, owned) = decode_entry(at, entry, &mut limits)?;
            owners.insert(owner, owned);
        }
        Ok(ManagedFields { owners })
    }

    /// Reads entries that a client sends to be stored, which must leave room for other writers'.
    pub(crate) fn decode_sent(value: &Value) -> Result<Self, EntryError> {
        let count = value.as_list().map_or(0, <[Value]>::len);
        if count > MAX_SENT_ENTRIES {
            return Err(EntryError::TooMany(count));
        }
        let managed = ManagedFields::decode(Some(value))?;
        managed.check_fields(MAX_SENT_PATHS)?;
        Ok(managed)
    }

    /// The value of `metadata.managedFields` in Kubernetes' order; `None` if no manager owns a field. Entries that [`ManagedFields::decode`] would
    /// refuse are an error.
    pub fn encode(&self) -> Result<Option<Value>, EntryError> {
        self.check()?;
        Ok(self.encode_unchecked())
    }

    fn encode_unchecked(&self) -> Option<Value> {
        let mut sorted: Vec<(&Owner, &Owned)> = self.owners.iter().collect();
        sorted.sort_by(|(a, x), (b, y)| {
            let seconds = |owned: &Owned| owned.time.unix().unwrap_or(0);
            (a.operation.cmp(&b.operation))
                .then_with(|| seconds(x).cmp(&seconds(y)))
                .then_with(|| a.manager.cmp(&b.manager))
                .then_with(|| x.api_version.cmp(&y.api_version))
                .then_with(|| a.subresource.cmp(&b.subresource))
        });
        let entries: Vec<Value> =
            sorted.into_iter().map(|(owner, owned)| encode_entry(owner, owned)).collect();
        (!entries.is_empty()).then_some(Value::List(entries))
    }

    /// The bounds of entries that are read; an index in an error is that of the sorted owners.
    fn check(&self) -> Result<(), EntryError> {
        if self.owners.len() > MAX_ENTRIES {
            return Err(EntryError::TooMany(self.owners.len()));
        }
        for (at, (owner, owned)) in self.owners.iter().enumerate() {
            check_names(at, &owner.manager, &owner.subresource, &owned.api_version)?;
        }
        self.check_fields(MAX_PATHS)
    }

    fn check_fields(&self, most: usize) -> Result<(), EntryError> {
        let mut limits = PathBudget::with_paths(most);
        self.owners.values().enumerate().try_for_each(|(at, owned)| {
            owned.fields.check(&mut limits).map_err(|error| EntryError::Fields { at, error })
        })
    }

    /// Refuses more appliers than an object may have.
    pub(crate) fn check_appliers(&self) -> Result<(), EntryError> {
        let appliers =
            self.owners.keys().filter(|owner| owner.operation == ManagedFieldsOperation::Apply);
        match appliers.count() {
            count if count > MAX_SENT_ENTRIES => Err(EntryError::TooManyAppliers(count)),
            _ => Ok(()),
        }
    }

    /// Removes owners that own nothing.
    pub(crate) fn drop_empty(&mut self) {
        self.owners.retain(|_, owned| !owned.fields.is_empty());
    }
}

fn decode_entry(
    at: usize,
    entry: &Map,
    limits: &mut PathBudget,
) -> Result<(Owner, Owned), EntryError> {
    let operation = match entry.str("operation") {
        "Apply" => ManagedFieldsOperation::Apply,
        "Update" => ManagedFieldsOperation::Update,
        _ => return Err(EntryError::Operation),
    };
    let api_version = entry.str("apiVersion");
    match entry.str("fieldsType") {
        "FieldsV1" => {}
        "" => return Err(EntryError::NoFieldsType(at)),
        other => return Err(EntryError::FieldsType { at, fields_type: other.to_owned() }),
    }
    check_names(at, entry.str("manager"), entry.str("subresource"), api_version)?;
    let time = match entry.get("time") {
        None | Some(Value::Null) => Time::UNSET,
        Some(time) => {
            let parsed = time.as_str().and_then(|text| text.parse().ok());
            parsed.ok_or(EntryError::Time { at })?
        }
    };
    let fields = match entry.get("fieldsV1") {
        None | Some(Value::Null) => FieldSet::new(),
        Some(value) => {
            FieldSet::from_value(value, limits).map_err(|error| EntryError::Fields { at, error })?
        }
    };
    let owner = Owner::new(entry.str("manager"), operation, api_version, entry.str("subresource"));
    Ok((owner, Owned { fields, api_version: api_version.to_owned(), time }))
}

fn check_names(
    at: usize,
    manager: &str,
    subresource: &str,
    api_version: &str,
) -> Result<(), EntryError> {
    if api_version.is_empty() {
        return Err(EntryError::NoVersion);
    }
    for (field, text, most) in [
        ("manager", manager, MAX_NAME),
        ("subresource", subresource, MAX_SUBRESOURCE),
        ("apiVersion", api_version, MAX_SUBRESOURCE),
    ] {
        if text.len() > most {
            return Err(EntryError::TooLong { at, field, most });
        }
    }
    Ok(())
}

fn encode_entry(owner: &Owner, owned: &Owned) -> Value {
    let mut entries: Vec<(Key, Value)> = Vec::with_capacity(7);
    let mut text = |name: &'static str, value: &str| {
        if !value.is_empty() {
            entries.push((Key::Borrowed(name), Value::from(value)));
        }
    };
    text("manager", &owner.manager);
    text("operation", owner.operation.text());
    text("apiVersion", &owned.api_version);
    text("subresource", &owner.subresource);
    text("fieldsType", "FieldsV1");
    if owned.time.is_set() {
        text("time", &owned.time.to_string());
    }
    entries.push((Key::Borrowed("fieldsV1"), owned.fields.to_value()));
    Value::Map(Map::from_entries(entries))
}
