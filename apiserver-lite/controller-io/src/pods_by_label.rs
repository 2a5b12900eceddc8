//! An index of pods by label and by controller: what selects a few pods takes time in their number, not in that of all pods of its namespace.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use proto_api::ObjectKey;
use proto_api::core::v1::Pod;

/// Labels of a pod that are indexed at most. Pods may have labels without number, and an entry of the index takes more memory than a short label: a pod with
/// more labels is found by all of them.
const LABELS_MAX: usize = 64;

/// Names of pods by namespace and what they have. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct PodsByLabel(Arc<Mutex<Namespaces>>);

/// What pods are found by in each namespace that has pods.
type Namespaces = BTreeMap<Box<str>, Marks>;

/// What pods of a namespace are found by.
#[derive(Debug, Default)]
struct Marks {
    /// By `key=value`.
    labels: BTreeMap<Box<str>, PodNames>,
    /// By the uid of their controller.
    controllers: BTreeMap<Box<str>, PodNames>,
    /// Those with more labels than [`LABELS_MAX`].
    with_many_labels: BTreeSet<Arc<str>>,
}

/// Names of pods. A label that only one pod has takes no set.
#[derive(Debug)]
pub(crate) enum PodNames {
    One(Arc<str>),
    Several(BTreeSet<Arc<str>>),
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
        let mut namespaces = self.lock();
        if let (Some(old), Some(marks)) = (old, namespaces.get_mut(key.namespace.as_str())) {
            marks.remove(&key.name, old);
            if marks.is_empty() {
                namespaces.remove(key.namespace.as_str());
            }
        }
        if let Some(new) = new.filter(|new| has_marks(new)) {
            namespaces.entry(key.namespace.as_str().into()).or_default().insert(&key.name, new);
        }
    }

    /// The pods of a namespace with the rarest of some labels: all that have all of them, and others. `None` without labels, which all pods have.
    pub fn labelled(
        &self,
        namespace: &str,
        labels: &BTreeMap<String, String>,
    ) -> Option<BTreeSet<Arc<str>>> {
        if labels.is_empty() {
            return None;
        }
        let namespaces = self.lock();
        let Some(marks) = namespaces.get(namespace) else { return Some(BTreeSet::new()) };
        let with = |label| marks.labels.get(&label_text(label));
        let rarest = labels.iter().map(with).min_by_key(|names| names.map_or(0, PodNames::len));
        let rarest = rarest.flatten().into_iter().flat_map(PodNames::iter);
        Some(rarest.chain(&marks.with_many_labels).cloned().collect())
    }

    /// The pods of a controller.
    pub fn controlled(&self, namespace: &str, uid: &str) -> BTreeSet<Arc<str>> {
        let namespaces = self.lock();
        let names = namespaces.get(namespace).and_then(|marks| marks.controllers.get(uid));
        names.into_iter().flat_map(PodNames::iter).cloned().collect()
    }

    /// Whether a pod is among those of its controller, if it has one.
    pub fn has_controlled(&self, key: &ObjectKey, pod: &Pod) -> bool {
        let Some(uid) = controller(pod) else { return true };
        let namespaces = self.lock();
        let marks = namespaces.get(key.namespace.as_str());
        let names = marks.and_then(|marks| marks.controllers.get(uid.as_str()));
        names.is_some_and(|names| names.contains(&key.name))
    }

    fn lock(&self) -> MutexGuard<'_, Namespaces> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Marks {
    fn insert(&mut self, name: &str, pod: &Pod) {
        let name: Arc<str> = name.into();
        if pod.metadata.labels.len() > LABELS_MAX {
            self.with_many_labels.insert(name.clone());
        } else {
            for label in &pod.metadata.labels {
                insert(&mut self.labels, label_text(label), &name);
            }
        }
        if let Some(uid) = controller(pod) {
            insert(&mut self.controllers, uid.as_str().into(), &name);
        }
    }

    fn remove(&mut self, name: &str, pod: &Pod) {
        if pod.metadata.labels.len() > LABELS_MAX {
            self.with_many_labels.remove(name);
        } else {
            for label in &pod.metadata.labels {
                remove(&mut self.labels, &label_text(label), name);
            }
        }
        if let Some(uid) = controller(pod) {
            remove(&mut self.controllers, uid, name);
        }
    }

    fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.controllers.is_empty() && self.with_many_labels.is_empty()
    }
}

impl PodNames {
    fn len(&self) -> usize {
        match self {
            Self::One(_) => 1,
            Self::Several(names) => names.len(),
        }
    }

    fn contains(&self, name: &str) -> bool {
        match self {
            Self::One(one) => **one == *name,
            Self::Several(names) => names.contains(name),
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<str>> {
        let (one, some) = match self {
            Self::One(name) => (Some(name), None),
            Self::Several(names) => (None, Some(names)),
        };
        one.into_iter().chain(some.into_iter().flatten())
    }
}

pub(crate) fn insert(all: &mut BTreeMap<Box<str>, PodNames>, at: Box<str>, name: &Arc<str>) {
    match all.get_mut(&at) {
        None => {
            all.insert(at, PodNames::One(name.clone()));
        }
        Some(PodNames::Several(names)) => {
            names.insert(name.clone());
        }
        Some(PodNames::One(other)) if other == name => {}
        Some(names @ PodNames::One(_)) => {
            let both = names.iter().chain([name]).cloned().collect();
            *names = PodNames::Several(both);
        }
    }
}

pub(crate) fn remove(all: &mut BTreeMap<Box<str>, PodNames>, at: &str, name: &str) {
    let is_last = match all.get_mut(at) {
        None => false,
        Some(PodNames::One(other)) => **other == *name,
        Some(PodNames::Several(names)) => {
            names.remove(name);
            names.is_empty()
        }
    };
    if is_last {
        all.remove(at);
    }
}

fn label_text((key, value): (&String, &String)) -> Box<str> {
    format!("{key}={value}").into()
}

fn has_marks(pod: &Pod) -> bool {
    !pod.metadata.labels.is_empty() || controller(pod).is_some()
}

fn controller(pod: &Pod) -> Option<&String> {
    let owner = pod.metadata.owner_references.iter().find(|owner| owner.controller == Some(true));
    owner.map(|owner| &owner.uid)
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

    fn names(found: Option<BTreeSet<Arc<str>>>) -> Vec<String> {
        found.into_iter().flatten().map(|name| name.to_string()).collect()
    }

    /// The entries of the index.
    fn count(index: &PodsByLabel) -> usize {
        let of = |marks: &Marks| {
            let maps = [&marks.labels, &marks.controllers];
            let entries = maps.into_iter().flat_map(BTreeMap::values).map(PodNames::len);
            entries.sum::<usize>() + marks.with_many_labels.len()
        };
        index.lock().values().map(of).sum()
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
        assert!(!index.has_controlled(&key, &owned) && index.has_controlled(&key, &free));
        index.apply(&key, None, Some(&owned));
        assert_eq!(names(Some(index.controlled("ns", "u"))), ["one"]);
        let other = ObjectKey::new("ns", "two");
        assert!(index.has_controlled(&key, &owned) && !index.has_controlled(&other, &owned));
        index.apply(&other, None, Some(&owned));
        assert!(index.has_controlled(&key, &owned) && index.has_controlled(&other, &owned));
        index.apply(&other, Some(&owned), None);
        assert!(index.controlled("other", "u").is_empty());
        index.apply(&key, Some(&owned), Some(&free));
        assert!(index.controlled("ns", "u").is_empty());
        assert_eq!(names(index.labelled("ns", &free.metadata.labels)), ["one"]);
        index.apply(&key, Some(&free), None);
        assert!(index.lock().is_empty());
    }

    #[test]
    fn a_pod_takes_entries_for_few_labels_and_is_found_by_all() {
        let index = PodsByLabel::default();
        let keys: Vec<String> = (0..20_000).map(|nth| format!("l{nth}")).collect();
        let with = |count: usize| {
            let labels: Vec<_> = keys.iter().take(count).map(|key| (key.as_str(), "")).collect();
            pod(&labels, "u")
        };
        let (many, few) = (with(keys.len()), with(LABELS_MAX));
        let (key, other) = (ObjectKey::new("ns", "many"), pod(&[("l7", ""), ("app", "a")], ""));
        index.apply(&key, None, Some(&many));
        index.apply(&ObjectKey::new("ns", "other"), None, Some(&other));
        let asked =
            |labels: &[(&str, &str)]| names(index.labelled("ns", &pod(labels, "").metadata.labels));
        assert_eq!(count(&index), 4, "two labels, the pod with many and its controller");
        // Who asks compares the labels.
        assert_eq!(asked(&[("l7", "")]), ["many", "other"]);
        assert_eq!([asked(&[("l19999", "")]), asked(&[("app", "b")])], [["many"], ["many"]]);
        assert_eq!(names(Some(index.controlled("ns", "u"))), ["many"]);
        index.apply(&key, Some(&many), Some(&few));
        assert_eq!(count(&index), LABELS_MAX + 3);
        assert_eq!((asked(&[("l7", "")]).len(), asked(&[("l19999", "")]).len()), (2, 0));
        index.apply(&key, Some(&few), Some(&many));
        assert_eq!((count(&index), asked(&[("l19999", "")])), (4, vec!["many".to_owned()]));
        index.apply(&key, Some(&many), None);
        index.apply(&ObjectKey::new("ns", "other"), Some(&other), None);
        assert!(index.lock().is_empty());
    }

    #[test]
    fn a_label_of_one_pod_takes_no_set() {
        let index = PodsByLabel::default();
        index.apply(&ObjectKey::new("ns", "one"), None, Some(&pod(&[("a", "b")], "u")));
        let namespaces = index.lock();
        let marks = namespaces.get("ns").expect("a pod");
        let names = [marks.labels.get("a=b"), marks.controllers.get("u")];
        assert!(names.iter().all(|names| matches!(names, Some(PodNames::One(_)))), "{names:?}");
        assert!(size_of::<PodNames>() <= 32);
    }
}
