//! Keys of ConfigMaps and Secrets as files.

use proto_api::core::v1::KeyToPath;

use super::{Keys, PayloadInputs, SourceError, mode};
use crate::budget::Budget;
use crate::payload::{Payload, PayloadFile};

pub(super) fn config_map(
    keys: &Keys,
    inputs: &PayloadInputs<'_>,
    payload: &mut Payload,
) -> Result<(), SourceError> {
    let Some(object) = inputs.objects.config_map(&keys.object) else {
        return missing("configmap", keys);
    };
    let text = object.data.iter().map(|(key, value)| (key.as_str(), value.as_bytes()));
    let binary = object.binary_data.iter().map(|(key, value)| (key.as_str(), value.as_slice()));
    let value = |key: &str| {
        let text = object.data.get(key).map(String::as_bytes);
        text.or_else(|| object.binary_data.get(key).map(Vec::as_slice))
    };
    project(("configmap", keys), text.chain(binary), value, inputs.budget, payload)
}

pub(super) fn secret(
    keys: &Keys,
    inputs: &PayloadInputs<'_>,
    payload: &mut Payload,
) -> Result<(), SourceError> {
    let Some(object) = inputs.objects.secret(&keys.object) else { return missing("secret", keys) };
    let data = object.data.iter().map(|(key, value)| (key.as_str(), value.as_slice()));
    let value = |key: &str| object.data.get(key).map(Vec::as_slice);
    project(("secret", keys), data, value, inputs.budget, payload)
}

fn missing(kind: &'static str, keys: &Keys) -> Result<(), SourceError> {
    if keys.optional {
        Ok(())
    } else {
        Err(SourceError::NoObject { kind, name: keys.object.clone() })
    }
}

fn project<'a>(
    (kind, keys): (&'static str, &Keys),
    data: impl Iterator<Item = (&'a str, &'a [u8])>,
    value: impl Fn(&str) -> Option<&'a [u8]>,
    budget: &Budget,
    payload: &mut Payload,
) -> Result<(), SourceError> {
    if keys.items.is_empty() {
        for (key, value) in data {
            budget.reserve(value.len())?;
            payload.insert(key, PayloadFile { data: value.to_vec(), mode: keys.mode })?;
        }
        return Ok(());
    }
    for KeyToPath { key, path, mode: own } in &keys.items {
        match value(key) {
            Some(value) => {
                let mode = mode(*own, keys.mode)?;
                budget.reserve(value.len())?;
                payload.insert(path, PayloadFile { data: value.to_vec(), mode })?;
            }
            None if keys.optional => {}
            None => return Err(SourceError::NoKey { kind, key: key.clone() }),
        }
    }
    Ok(())
}
