//! An index of pods by label and by controller: what selects a few pods takes time in their number, not in that of all pods of its namespace.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use proto_api::ObjectKey;
use proto_api::core::v1::Pod;

/// Names of pods by namespace and what they have.
type Found = BTreeMap<(String, Mark), BTreeSet<String>>;

/// Names of pods by namespace and what they have. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct PodsByLabel(Arc<Mutex<Found>>);

/// What pods are found by.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Mark {
    /// A label with its value.
    Label(String, String),
    /// The uid of their controller.
    Controller(String),
}

impl PodsByLabel {
    /// Applies a change of a pod.
    pub fn apply(&self, key: &ObjectKey, old: Option<&Pod>, new: Option<&Pod>) {
        let is_same = |old: &Pod, new: &Pod| {
            (&old.metadata.labels, controller(old)) == (&new.metadata.labels, controller(new))
        };
        if old.zip(new).is_some_and(|(old, new)| is_same(old, new)) {
            return;
        }
        let mut found = self.lock();
        for mark in old.into_iter().flat_map(marks) {
            let at = (key.namespace.clone(), mark);
            if let Some(names) = found.get_mut(&at) {
                names.remove(&key.name);
                if names.is_empty() {
                    found.remove(&at);
                }
            }
        }
        for mark in new.into_iter().flat_map(marks) {
            found.entry((key.namespace.clone(), mark)).or_default().insert(key.name.clone());
        }
    }

    /// The pods of a namespace with the rarest of some labels: all that have all of them, and others. `None` without labels, which all pods have.
    pub fn labelled(
        &self,
        namespace: &str,
        labels: &BTreeMap<String, String>,
    ) -> Option<BTreeSet<String>> {
        let found = self.lock();
        let with = |(key, value): (&String, &String)| {
            found.get(&(namespace.to_owned(), Mark::Label(key.clone(), value.clone())))
        };
        let rarest = labels.iter().map(with).min_by_key(|names| names.map_or(0, BTreeSet::len))?;
        Some(rarest.cloned().unwrap_or_default())
    }

    /// The pods of a controller.
    pub fn controlled(&self, namespace: &str, uid: &str) -> BTreeSet<String> {
        let at = (namespace.to_owned(), Mark::Controller(uid.to_owned()));
        self.lock().get(&at).cloned().unwrap_or_default()
    }

    fn lock(&self) -> MutexGuard<'_, Found> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn controller(pod: &Pod) -> Option<&String> {
    let owner = pod.metadata.owner_references.iter().find(|owner| owner.controller == Some(true));
    owner.map(|owner| &owner.uid)
}

fn marks(pod: &Pod) -> impl Iterator<Item = Mark> {
    let labels = pod.metadata.labels.iter();
    let labels = labels.map(|(key, value)| Mark::Label(key.clone(), value.clone()));
    labels.chain(controller(pod).cloned().map(Mark::Controller))
}

#[cfg(test)]
mod tests {
    use proto_api::meta::v1::OwnerReference;

    use super::*;

    fn pod(labels: &[(&str, &str)], controller: &str) -> Pod {
        let mut pod = Pod::default();
        let pairs = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        pod.metadata.labels = pairs.collect();
        if !controller.is_empty() {
            pod.metadata.owner_references = vec![OwnerReference {
                uid: controller.to_owned(),
                controller: Some(true),
                ..OwnerReference::default()
            }];
        }
        pod
    }

    fn names(found: Option<BTreeSet<String>>) -> Vec<String> {
        found.into_iter().flatten().collect()
    }

    #[test]
    fn pods_are_found_by_their_rarest_label() {
        let index = PodsByLabel::default();
        let one = pod(&[("app", "a"), ("tier", "web")], "");
        let two = pod(&[("app", "b"), ("tier", "web")], "");
        index.apply(&ObjectKey::new("ns", "one"), None, Some(&one));
        index.apply(&ObjectKey::new("ns", "two"), None, Some(&two));
        index.apply(&ObjectKey::new("other", "three"), None, Some(&one));
        let asked = |pod: &Pod| names(index.labelled("ns", &pod.metadata.labels));
        assert_eq!(asked(&one), ["one"]);
        assert_eq!(asked(&pod(&[("tier", "web")], "")), ["one", "two"]);
        assert!(asked(&pod(&[("tier", "web"), ("app", "c")], "")).is_empty());
        assert_eq!(index.labelled("ns", &BTreeMap::new()), None, "everything is selected");
        // A label that changes.
        index.apply(&ObjectKey::new("ns", "one"), Some(&one), Some(&two));
        assert!(asked(&one).is_empty());
        assert_eq!(asked(&two), ["one", "two"]);
    }

    #[test]
    fn pods_are_found_by_their_controller_and_nothing_is_kept_of_them() {
        let index = PodsByLabel::default();
        let (owned, free) = (pod(&[("app", "a")], "u"), pod(&[("app", "a")], ""));
        let key = ObjectKey::new("ns", "one");
        index.apply(&key, None, Some(&owned));
        assert_eq!(names(Some(index.controlled("ns", "u"))), ["one"]);
        assert!(index.controlled("other", "u").is_empty());
        index.apply(&key, Some(&owned), Some(&free));
        assert!(index.controlled("ns", "u").is_empty());
        assert_eq!(names(index.labelled("ns", &free.metadata.labels)), ["one"]);
        index.apply(&key, Some(&free), None);
        assert!(index.lock().is_empty());
    }
}
