//! Differences as patches: what turns an object of the server into the one that a user describes. The reverse of [`super::strategic`].
//!
//! Three documents: what the user described last (`original`), what they describe now (`modified`), and what the server has (`current`). Fields that
//! the user dropped are removed, fields that they set are set, and fields that they never named stay.

use std::collections::HashSet;

use super::PatchError;
use super::strategic::{
    DELETE_PRIMITIVES, DIRECTIVE, ELEMENT_ORDER, ListBelow, Merge, RETAIN_KEYS,
};
use super::strategic::{identity, places};
use crate::shape::{PatchStrategy, ShapeId, Shapes};
use crate::value::{Map, Value};

/// The strategic merge patch for a message of `shape`.
pub(crate) fn strategic_difference(
    shapes: &Shapes,
    shape: ShapeId,
    original: &Map,
    modified: &Map,
    current: &Map,
) -> Result<Map, PatchError> {
    let make = Difference { merge: Some(Merge::new(shapes)) };
    make.message(Some(shape), original, modified, current)
}

/// The JSON merge patch for an object without a descriptor: lists are replaced.
pub fn merge_difference(original: &Map, modified: &Map, current: &Map) -> Result<Map, PatchError> {
    Difference { merge: None }.message(None, original, modified, current)
}

struct Difference<'a> {
    /// What knows the strategies of fields; none for a JSON merge patch.
    merge: Option<Merge<'a>>,
}

impl Difference<'_> {
    fn message(
        &self,
        shape: Option<ShapeId>,
        original: &Map,
        modified: &Map,
        current: &Map,
    ) -> Result<Map, PatchError> {
        let mut patch: Vec<(crate::value::Key, Value)> = Vec::new();
        for (key, wanted) in modified.iter() {
            let below =
                Below { shape, key, original: original.get(key), current: current.get(key) };
            self.entry(&below, wanted, &mut patch)?;
        }
        let dropped = original.iter().map(|(key, _)| key);
        let dropped = dropped.filter(|key| !modified.contains(key) && current.contains(key));
        patch.extend(dropped.map(|key| (key.to_owned().into(), Value::Null)));
        Ok(Map::from_entries(patch))
    }

    fn entry(
        &self,
        below: &Below,
        wanted: &Value,
        patch: &mut Vec<(crate::value::Key, Value)>,
    ) -> Result<(), PatchError> {
        let key = || crate::value::Key::Owned(below.key.to_owned());
        match (wanted, below.current) {
            (Value::Null, None) => {}
            (wanted, None) => patch.push((key(), wanted.clone())),
            (Value::Map(wanted), Some(Value::Map(current))) => {
                let empty = Map::new();
                let original = below.original.and_then(Value::as_map).unwrap_or(&empty);
                let shape =
                    self.merge.as_ref().and_then(|m| m.message_below(below.shape, below.key));
                let mut inner = self.message(shape, original, wanted, current)?;
                if self.strategy(below).retain_keys && !inner.is_empty() {
                    let kept = wanted.iter().map(|(key, _)| Value::from(key)).collect();
                    inner.insert(RETAIN_KEYS, Value::List(kept));
                }
                if !inner.is_empty() {
                    patch.push((key(), Value::Map(inner)));
                }
            }
            (Value::List(wanted), Some(Value::List(current))) => {
                self.list(below, wanted, current, patch)?;
            }
            (wanted, Some(current)) if wanted != current => patch.push((key(), wanted.clone())),
            _ => {}
        }
        Ok(())
    }

    fn strategy(&self, below: &Below) -> PatchStrategy {
        self.list_below(below).strategy
    }

    fn list_below(&self, below: &Below) -> ListBelow {
        let merge = self.merge.as_ref();
        merge.map(|merge| merge.list_below(below.shape, below.key)).unwrap_or_default()
    }

    fn list(
        &self,
        below: &Below,
        wanted: &[Value],
        current: &[Value],
        patch: &mut Vec<(crate::value::Key, Value)>,
    ) -> Result<(), PatchError> {
        if wanted == current {
            return Ok(());
        }
        let list = self.list_below(below);
        let original = below.original.and_then(Value::as_list).unwrap_or_default();
        let three = Three { original, wanted, current };
        match list.strategy.merge_key {
            None => patch.push((below.key.to_owned().into(), Value::List(wanted.to_vec()))),
            Some("") => set_difference(below.key, &three, patch),
            Some(key) if three.is_ambiguous(key) => {
                // The server cannot distinguish two items with one key: the list is replaced.
                let mut items = vec![Value::Map(Map::from_iter([(DIRECTIVE, "replace")]))];
                items.extend(wanted.iter().cloned());
                patch.push((below.key.to_owned().into(), Value::List(items)));
            }
            Some(key) => self.keyed_list(below.key, &list, key, &three, patch)?,
        }
        Ok(())
    }

    fn keyed_list(
        &self,
        name: &str,
        list: &ListBelow,
        key: &str,
        three: &Three,
        patch: &mut Vec<(crate::value::Key, Value)>,
    ) -> Result<(), PatchError> {
        let (had, have) = (places(three.original, Some(key)), places(three.current, Some(key)));
        let empty = Map::new();
        let mut items = Vec::new();
        let mut order = Vec::new();
        for item in three.wanted {
            let named = item.as_map().and_then(|map| Some((map, map.get(key)?)));
            let (Some((map, id_value)), Some(id)) = (named, identity(item, Some(key))) else {
                let why =
                    format!("an item of {name:?} has no {key:?}, by which its items are merged");
                return Err(PatchError::Inapplicable(why));
            };
            order.push(Value::Map(Map::from_iter([(key.to_owned(), id_value.clone())])));
            let Some(current) = map_at(three.current, have.get(&id)) else {
                items.push(item.clone());
                continue;
            };
            let original = map_at(three.original, had.get(&id)).unwrap_or(&empty);
            let mut inner = self.message(list.item, original, map, current)?;
            if !inner.is_empty() {
                if list.strategy.retain_keys {
                    let kept = map.iter().map(|(key, _)| Value::from(key)).collect();
                    inner.insert(RETAIN_KEYS, Value::List(kept));
                }
                inner.insert(key.to_owned(), id_value.clone());
                items.push(Value::Map(inner));
            }
        }
        let wanted = places(three.wanted, Some(key));
        for item in three.original {
            let gone = identity(item, Some(key))
                .is_some_and(|id| !wanted.contains_key(&id) && have.contains_key(&id));
            if let (true, Some(id_value)) = (gone, item.as_map().and_then(|map| map.get(key))) {
                let mut doomed = Map::from_iter([(key.to_owned(), id_value.clone())]);
                doomed.insert(DIRECTIVE, "delete");
                items.push(Value::Map(doomed));
            }
        }
        if items.is_empty() && three.is_in_order(Some(key)) {
            return Ok(());
        }
        patch.push((format!("{ELEMENT_ORDER}{name}").into(), Value::List(order)));
        if !items.is_empty() {
            patch.push((name.to_owned().into(), Value::List(items)));
        }
        Ok(())
    }
}

/// A field whose value is compared.
struct Below<'a> {
    shape: Option<ShapeId>,
    key: &'a str,
    original: Option<&'a Value>,
    current: Option<&'a Value>,
}

/// A list in the three documents.
struct Three<'a> {
    original: &'a [Value],
    wanted: &'a [Value],
    current: &'a [Value],
}

impl Three<'_> {
    /// Whether two items of one of the lists have the same key.
    fn is_ambiguous(&self, key: &str) -> bool {
        [self.original, self.wanted, self.current].into_iter().any(|items| {
            let mut seen = HashSet::new();
            items.iter().filter_map(|item| identity(item, Some(key))).any(|id| !seen.insert(id))
        })
    }

    /// Whether the items that are wanted stand in this order already.
    fn is_in_order(&self, key: Option<&str>) -> bool {
        let have = places(self.current, key);
        let places = self.wanted.iter().filter_map(|item| have.get(&identity(item, key)?).copied());
        places.is_sorted()
    }
}

fn map_at<'a>(items: &'a [Value], at: Option<&usize>) -> Option<&'a Map> {
    items.get(*at?)?.as_map()
}

fn set_difference(name: &str, three: &Three, patch: &mut Vec<(crate::value::Key, Value)>) {
    let (wanted, have) = (places(three.wanted, None), places(three.current, None));
    let is_in = |places: &std::collections::HashMap<String, usize>, item: &Value| {
        places.contains_key(&item.identity())
    };
    let added: Vec<Value> =
        three.wanted.iter().filter(|item| !is_in(&have, item)).cloned().collect();
    let gone = three.original.iter().filter(|item| !is_in(&wanted, item) && is_in(&have, item));
    let gone: Vec<Value> = gone.cloned().collect();
    if added.is_empty() && gone.is_empty() && three.is_in_order(None) {
        return;
    }
    patch.push((format!("{ELEMENT_ORDER}{name}").into(), Value::List(three.wanted.to_vec())));
    if !added.is_empty() {
        patch.push((name.to_owned().into(), Value::List(added)));
    }
    if !gone.is_empty() {
        patch.push((format!("{DELETE_PRIMITIVES}{name}").into(), Value::List(gone)));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proto_api::names::{Names, Profile};
    use serde_json::{Value as Json, json};

    use super::*;
    use crate::object::Kind;
    use crate::patch::{apply_merge_patch, apply_strategic};
    use crate::{Engine, value};

    fn map(json: &Json) -> Map {
        let tree = value::parse_json(json.to_string().as_bytes(), &mut Vec::new()).expect("JSON");
        tree.as_map().expect("an object").clone()
    }

    fn json_of(map: Map) -> Json {
        let mut out = Vec::new();
        value::write_json(&mut out, &Value::Map(map));
        serde_json::from_slice(&out).expect("JSON")
    }

    fn deployments() -> Arc<Kind> {
        let engine = Engine::new(Names::new(Profile::Kubernetes));
        engine.kind("apps", "v1", "Deployment").expect("a kind").clone()
    }

    fn pod_spec(spec: &Json) -> Json {
        json!({"spec": {"template": {"spec": spec}}})
    }

    #[test]
    fn lists_are_patched_by_their_keys() {
        let kind = deployments();
        let container = |name: &str, image: &str| json!({"name": name, "image": image});
        let with = |containers: Json| pod_spec(&json!({"containers": containers}));
        let made = json!({"name": "a", "image": "1", "resources": {}, "imagePullPolicy": "Always"});
        let order = json!([{"name": "a"}]);
        let cases = [
            (
                "nothing",
                with(json!([container("a", "1")])),
                with(json!([container("a", "1")])),
                with(json!([made])),
                json!({}),
            ),
            (
                "one field of an item",
                with(json!([container("a", "1")])),
                with(json!([container("a", "2")])),
                with(json!([made])),
                pod_spec(
                    &json!({"$setElementOrder/containers": order, "containers": [{"name": "a", "image": "2"}]}),
                ),
            ),
            (
                "an item of the user is gone, one of another writer stays",
                with(json!([container("a", "1"), container("b", "1")])),
                with(json!([container("a", "1")])),
                with(json!([made, container("b", "1"), container("injected", "1")])),
                pod_spec(
                    &json!({"$setElementOrder/containers": order, "containers": [{"name": "b", "$patch": "delete"}]}),
                ),
            ),
            (
                "two items of one key: the list is replaced",
                with(json!([])),
                with(json!([container("a", "1"), container("a", "2")])),
                with(json!([made])),
                pod_spec(
                    &json!({"containers": [{"$patch": "replace"}, container("a", "1"), container("a", "2")]}),
                ),
            ),
            (
                "a volume of another source loses the old one",
                pod_spec(&json!({"volumes": [{"name": "v", "emptyDir": {}}]})),
                pod_spec(&json!({"volumes": [{"name": "v", "hostPath": {"path": "/"}}]})),
                pod_spec(&json!({"volumes": [{"name": "v", "emptyDir": {}}]})),
                pod_spec(&json!({"$setElementOrder/volumes": [{"name": "v"}], "volumes": [
                    {"$retainKeys": ["name", "hostPath"], "emptyDir": null, "hostPath": {"path": "/"}, "name": "v"}]})),
            ),
            (
                "a list without a key is replaced",
                with(json!([{"name": "a", "args": ["x"]}])),
                with(json!([{"name": "a", "args": ["y"]}])),
                with(json!([{"name": "a", "args": ["x"]}])),
                pod_spec(
                    &json!({"$setElementOrder/containers": order, "containers": [{"name": "a", "args": ["y"]}]}),
                ),
            ),
        ];
        for (what, original, modified, current, expected) in cases {
            let (original, modified, current) = (map(&original), map(&modified), map(&current));
            let patch = Engine::difference(&kind, &original, &modified, &current).expect(what);
            assert_eq!(json_of(patch.clone()), expected, "{what}");
            // Applied, nothing is left to do.
            if what.starts_with("two items") {
                continue;
            }
            let merged = apply_strategic(&kind.shapes, kind.root, current, patch).expect(what);
            let again = Engine::difference(&kind, &modified, &modified, &merged).expect(what);
            assert!(again.is_empty(), "{what}: {again:?}");
        }
    }

    #[test]
    fn sets_lose_what_was_dropped() {
        let kind = deployments();
        let with = |list: Json| map(&json!({"metadata": {"finalizers": list}}));
        let difference = |o, m, c| Engine::difference(&kind, &with(o), &with(m), &with(c));
        let patch = difference(json!(["a", "b"]), json!(["b", "c"]), json!(["a", "b", "theirs"]));
        assert_eq!(
            json_of(patch.expect("a patch")),
            json!({"metadata": {"$setElementOrder/finalizers": ["b", "c"], "finalizers": ["c"],
                "$deleteFromPrimitiveList/finalizers": ["a"]}})
        );
    }

    #[test]
    fn an_item_without_its_key_is_refused() {
        let kind = deployments();
        let (with, without) = (json!([{"name": "a"}]), json!([{"image": "i"}]));
        let spec = |containers: &Json| map(&pod_spec(&json!({"containers": containers})));
        let error = Engine::difference(&kind, &Map::new(), &spec(&without), &spec(&with));
        let error = error.expect_err("no key").to_string();
        assert!(error.contains("containers") && error.contains("name"), "{error}");
    }

    #[test]
    fn merge_patches_replace_lists() {
        let original = json!({"spec": {"a": 1, "dropped": 1, "list": [1]}});
        let modified = json!({"spec": {"a": 2, "list": [1, 2], "new": {"x": 1}}});
        let current = json!({"spec": {"a": 1, "dropped": 1, "list": [1], "theirs": 1}});
        let patch = merge_difference(&map(&original), &map(&modified), &map(&current));
        let patch = patch.expect("a patch");
        let expected = json!({"spec": {"a": 2, "dropped": null, "list": [1, 2], "new": {"x": 1}}});
        assert_eq!(json_of(patch.clone()), expected);
        let mut merged = Value::Map(map(&current));
        apply_merge_patch(&mut merged, Value::Map(patch));
        let merged = merged.as_map().expect("an object").clone();
        let expected = json!({"spec": {"a": 2, "list": [1, 2], "new": {"x": 1}, "theirs": 1}});
        assert_eq!(json_of(merged), expected);
    }
}
