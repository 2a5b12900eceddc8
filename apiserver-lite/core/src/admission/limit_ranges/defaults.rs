//! Default requests and limits of containers. Pure.

use std::borrow::Cow;

use apiserver_schema::{Map, Object, Value};

/// The containers that get defaults: their list, and what the annotation calls them.
const LISTS: [(&str, &str); 2] =
    [("containers", "container"), ("initContainers", "init container")];

/// Sets the requests and limits that the pod's containers lack and the spec `range` of a LimitRange has defaults for, and says in
/// `annotation` which. Returns what is left of `room` bytes; `None` if they do not suffice, and the pod is partly changed.
pub fn fill(range: &Map, pod: &mut Object, annotation: &str, mut room: usize) -> Option<usize> {
    let requests = merge(range, "defaultRequest");
    let limits = merge(range, "default");
    let mut set = Vec::new();
    for (list, noun) in LISTS {
        let Some(spec) = pod.fields.map_mut("spec") else { break };
        for container in spec.maps_mut(list) {
            for (field, word, defaults) in
                [("requests", "request", &requests), ("limits", "limit", &limits)]
            {
                let missing = missing_of(container, field, defaults);
                if missing.is_empty() {
                    continue;
                }
                room = missing.iter().try_fold(room, |room, (name, amount)| {
                    let len = name.len().saturating_add(amount.as_str().map_or(0, str::len));
                    room.checked_sub(len)
                })?;
                let names: Vec<&str> = missing.iter().map(|(name, _)| name.as_str()).collect();
                let names = names.join(", ");
                set.push(format!("{names} {word} for {noun} {}", container.str("name")));
                add(container.map_or_insert("resources").map_or_insert(field), missing);
            }
        }
    }
    if !set.is_empty() {
        let text = format!("LimitRanger plugin set: {}", set.join("; "));
        pod.metadata_mut().map_or_insert("annotations").insert(annotation.to_owned(), text);
    }
    Some(room)
}

/// The amounts under `field` of all limits on containers; of several for one resource the last.
fn merge(range: &Map, field: &str) -> Map {
    let limits = range.maps("limits").filter(|limit| limit.str("type") == "Container");
    let amounts = limits.filter_map(|limit| limit.map(field)).flat_map(Map::iter);
    amounts.map(|(name, amount)| (name.to_owned(), amount.clone())).collect()
}

/// The entries of `defaults` that the container's requests or limits lack, by name.
fn missing_of(container: &Map, field: &str, defaults: &Map) -> Vec<(String, Value)> {
    let own = container.map("resources").and_then(|resources| resources.map(field));
    let lacks = |name: &str| own.is_none_or(|own| !own.contains(name));
    let missing = defaults.iter().filter(|(name, _)| lacks(name));
    missing.map(|(name, amount)| (name.to_owned(), amount.clone())).collect()
}

/// Adds entries in one pass, because each insertion moves those after it.
fn add(amounts: &mut Map, entries: Vec<(String, Value)>) {
    let own = std::mem::take(amounts).into_iter();
    let new = entries.into_iter().map(|(name, amount)| (Cow::Owned(name), amount));
    *amounts = own.chain(new).collect();
}
