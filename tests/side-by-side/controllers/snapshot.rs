//! Objects as they are compared: without what differs from run to run (uids, times, versions, generated names, hashes, addresses, nodes). Values only.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use proto_api::Time;
use serde_json::Value;

/// Objects by kind, namespace and name; several where generated names are left out.
pub type Snapshot = BTreeMap<String, Vec<Value>>;

/// Fields that tell a run, not what a controller did.
const UNCOMPARED: [&str; 6] =
    ["uid", "resourceVersion", "creationTimestamp", "managedFields", "selfLink", "containerID"];
/// Labels whose values are hashes or uids.
const HASHES: [&str; 3] = ["pod-template-hash", "controller-revision-hash", "controller-uid"];

/// Normalises the objects of lists.
pub fn snapshot(objects: &[Value]) -> Snapshot {
    let replaced = Replaced::from_objects(objects);
    let mut snapshot = Snapshot::new();
    for found in objects {
        let mut object = found.clone();
        replaced.normalise(&mut object);
        // Each node is compared with itself.
        let told = if found["kind"] == "Node" { found } else { &object };
        let text = |pointer| told.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        let (kind, name) = (text("/kind"), text("/metadata/name"));
        let key = match text("/metadata/namespace") {
            "" => format!("{kind} {name}"),
            namespace => format!("{kind} {namespace}/{name}"),
        };
        snapshot.entry(key).or_default().push(object);
    }
    for same in snapshot.values_mut() {
        same.sort_by_key(Value::to_string);
    }
    snapshot
}

/// Texts that stand in objects and differ from run to run, with what is compared instead; the longest first.
struct Replaced(Vec<(String, String)>);

impl Replaced {
    fn from_objects(objects: &[Value]) -> Self {
        let mut texts = BTreeSet::new();
        for object in objects {
            let metadata = &object["metadata"];
            for volume in object["spec"]["volumes"].as_array().into_iter().flatten() {
                // The volume of the account's token, whose name ends at random.
                let name = volume["name"].as_str().unwrap_or_default();
                if volume["projected"].is_object()
                    && let Some((stem, _)) = name.rsplit_once('-')
                {
                    texts.insert((name.to_owned(), format!("{stem}-*")));
                }
            }
            if object["kind"] == "Node" {
                let name = metadata["name"].as_str().unwrap_or_default();
                texts.insert((name.to_owned(), "NODE".to_owned()));
            }
            for (label, value) in metadata["labels"].as_object().into_iter().flatten() {
                let is_hash = HASHES.contains(&label.as_str()) || label.ends_with("/hash");
                if let Some(value) = value.as_str().filter(|_| is_hash) {
                    // Those of StatefulSets begin with the set's name, and those of Jobs are uids.
                    let is_uid = label == "controller-uid";
                    let hash =
                        if is_uid { value } else { value.rsplit('-').next().unwrap_or(value) };
                    texts.insert((hash.to_owned(), "HASH".to_owned()));
                }
            }
            let generated = metadata["name"].as_str().zip(metadata["generateName"].as_str());
            if let Some((name, prefix)) =
                generated.filter(|(name, prefix)| name.starts_with(prefix))
            {
                texts.insert((name.to_owned(), format!("{prefix}*")));
            }
        }
        let mut texts: Vec<_> = texts.into_iter().collect();
        texts.sort_by_key(|(text, _)| std::cmp::Reverse(text.len()));
        Self(texts)
    }

    fn normalise(&self, value: &mut Value) {
        match value {
            Value::String(text) => *text = self.text(text),
            Value::Array(items) => {
                items.iter_mut().for_each(|item| self.normalise(item));
                // Conditions and addresses have no order that means something.
                if items.iter().all(Value::is_object) {
                    items.sort_by_key(Value::to_string);
                }
            }
            Value::Object(fields) => {
                fields.retain(|name, _| !UNCOMPARED.contains(&name.as_str()));
                let own = std::mem::take(fields).into_iter();
                *fields = own
                    .map(|(name, mut field)| {
                        self.normalise(&mut field);
                        (self.text(&name), field)
                    })
                    .collect();
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    fn text(&self, text: &str) -> String {
        if text.starts_with("-----BEGIN ") {
            return "PEM".to_owned();
        }
        if text.parse::<Time>().is_ok() {
            return "TIME".to_owned();
        }
        if text.parse::<IpAddr>().is_ok() {
            return "ADDRESS".to_owned();
        }
        let mut text = text.to_owned();
        for (from, to) in &self.0 {
            text = text.replace(from, to);
        }
        text
    }
}

/// A place where two snapshots differ.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Difference {
    pub object: String,
    /// The field; empty if there are more or fewer objects.
    pub path: String,
    /// What is there with our controllers.
    pub ours: String,
    /// What is there with Kubernetes'.
    pub theirs: String,
}

/// Where two snapshots differ.
pub fn compare(ours: &Snapshot, theirs: &Snapshot) -> Vec<Difference> {
    let keys: BTreeSet<&String> = ours.keys().chain(theirs.keys()).collect();
    let mut differences = BTreeSet::new();
    for key in keys {
        let of = |side: &Snapshot| side.get(key).cloned().unwrap_or_default();
        let (ours, theirs) = (of(ours), of(theirs));
        if ours.len() != theirs.len() {
            let (ours, theirs) = (ours.len().to_string(), theirs.len().to_string());
            differences.insert(Difference {
                object: key.clone(),
                path: String::new(),
                ours,
                theirs,
            });
            continue;
        }
        for (ours, theirs) in ours.iter().zip(&theirs) {
            walk(&mut differences, key, "", Some(ours), Some(theirs));
        }
    }
    differences.into_iter().collect()
}

fn walk(
    found: &mut BTreeSet<Difference>,
    object: &str,
    path: &str,
    ours: Option<&Value>,
    theirs: Option<&Value>,
) {
    if ours == theirs {
        return;
    }
    match (ours, theirs) {
        (Some(Value::Object(ours)), Some(Value::Object(theirs))) => {
            let names: BTreeSet<&String> = ours.keys().chain(theirs.keys()).collect();
            for name in names {
                walk(found, object, &format!("{path}.{name}"), ours.get(name), theirs.get(name));
            }
        }
        (Some(Value::Array(ours)), Some(Value::Array(theirs))) if ours.len() == theirs.len() => {
            for (ours, theirs) in ours.iter().zip(theirs) {
                walk(found, object, &format!("{path}[]"), Some(ours), Some(theirs));
            }
        }
        _ => {
            let text = |value: Option<&Value>| value.map_or("absent".to_owned(), Value::to_string);
            let (path, ours, theirs) = (path.to_owned(), text(ours), text(theirs));
            found.insert(Difference { object: object.to_owned(), path, ours, theirs });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(suffix: &str, hash: &str, phase: &str) -> Value {
        json!({
            "kind": "Pod",
            "metadata": {
                "name": format!("web-{hash}-{suffix}"), "generateName": format!("web-{hash}-"), "namespace": "n",
                "uid": suffix, "labels": {"pod-template-hash": hash},
            },
            "spec": {"nodeName": "hollow-1"},
            "status": {"phase": phase, "podIP": "10.0.0.7", "startTime": "2026-01-02T03:04:05Z"},
        })
    }

    #[test]
    fn values_that_differ_between_runs_are_not_compared() {
        let node = |name: &str| json!({"kind": "Node", "metadata": {"name": name}});
        let of = |node: Value, pods: [Value; 2]| snapshot(&[[node].as_slice(), &pods].concat());
        let ours = [pod("aaaaa", "5d4f", "Running"), pod("bbbbb", "5d4f", "Failed")];
        let mut theirs = [pod("zzzzz", "77c8", "Failed"), pod("yyyyy", "77c8", "Running")];
        theirs.iter_mut().for_each(|pod| pod["status"]["podIP"] = json!("10.0.1.9"));
        let (ours, theirs) = (of(node("hollow-1"), ours), of(node("hollow-1"), theirs));
        assert_eq!(compare(&ours, &theirs), []);
        assert_eq!(ours.keys().collect::<Vec<_>>(), ["Node hollow-1", "Pod n/web-HASH-*"]);
    }

    #[test]
    fn differences_between_controllers_are_reported() {
        let one = |pods: &[Value]| snapshot(pods);
        let ours = one(&[pod("aaaaa", "5d4f", "Running")]);
        let told = |ours: &Snapshot, theirs: &Snapshot| {
            let all = compare(ours, theirs).into_iter();
            all.map(|d| (d.path, d.ours, d.theirs)).collect::<Vec<_>>()
        };
        let other = one(&[pod("bbbbb", "77c8", "Failed")]);
        let text = str::to_owned;
        assert_eq!(
            told(&ours, &other),
            [(text(".status.phase"), text("\"Running\""), text("\"Failed\""))]
        );
        assert_eq!(told(&ours, &Snapshot::new()), [(String::new(), text("1"), text("0"))]);
        let mut more = ours.clone();
        more.values_mut().for_each(|pods| pods[0]["spec"]["hostname"] = json!("h"));
        assert_eq!(told(&ours, &more), [(text(".spec.hostname"), text("absent"), text("\"h\""))]);
    }
}
