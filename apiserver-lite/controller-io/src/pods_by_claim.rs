//! An index of pods by claim: a change of a claim takes time in the number of its pods, whatever other pods of its namespace name.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use apiserver_controllers::volumes::claims_of;
use proto_api::ObjectKey;
use proto_api::core::v1::Pod;

use crate::pods_by_label::{PodNames, insert, remove};

/// Names of pods by namespace and claim. An entry takes less memory than the volume in the cached pod. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct PodsByClaim(Arc<Mutex<Namespaces>>);

type Namespaces = BTreeMap<Box<str>, BTreeMap<Box<str>, PodNames>>;

impl PodsByClaim {
    /// Applies a change of a pod.
    pub fn apply(&self, key: &ObjectKey, old: Option<&Pod>, new: Option<&Pod>) {
        let is_same = |old: &Pod, new: &Pod| old.spec.volumes == new.spec.volumes;
        if old.zip(new).is_some_and(|(old, new)| is_same(old, new)) {
            return;
        }
        let mut namespaces = self.lock();
        if let (Some(old), Some(claims)) = (old, namespaces.get_mut(key.namespace.as_str())) {
            for claim in claims_of(old) {
                remove(claims, &claim, &key.name);
            }
            if claims.is_empty() {
                namespaces.remove(key.namespace.as_str());
            }
        }
        if let Some(new) = new.filter(|new| claims_of(new).next().is_some()) {
            let claims = namespaces.entry(key.namespace.as_str().into()).or_default();
            let name: Arc<str> = key.name.as_str().into();
            for claim in claims_of(new) {
                insert(claims, claim.into(), &name);
            }
        }
    }

    /// The names of the pods that use a claim.
    pub fn using(&self, claim: &ObjectKey) -> Vec<Arc<str>> {
        let namespaces = self.lock();
        let claims = namespaces.get(claim.namespace.as_str());
        let names = claims.and_then(|claims| claims.get(claim.name.as_str()));
        names.into_iter().flat_map(PodNames::iter).cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, Namespaces> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use proto_api::core::v1::{
        EphemeralVolumeSource, PersistentVolumeClaimVolumeSource, Volume, VolumeSource,
    };

    use super::*;

    /// A pod that names claims, and has one of its own.
    fn pod(claims: &[&str]) -> Pod {
        let mut pod = Pod::default();
        pod.metadata.name = "one".into();
        let named = |claim: &&str| VolumeSource {
            persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource {
                claim_name: (*claim).to_owned(),
                read_only: false,
            }),
            ..VolumeSource::default()
        };
        let own = Some(Box::new(EphemeralVolumeSource::default()));
        let own = VolumeSource { ephemeral: own, ..VolumeSource::default() };
        let sources = claims.iter().map(named).chain([own]);
        let volume = |volume_source| Volume { name: "v".into(), volume_source };
        pod.spec.volumes = sources.map(volume).collect();
        pod
    }

    #[test]
    fn pods_are_found_by_their_claims_and_nothing_is_kept_of_them() {
        let index = PodsByClaim::default();
        let using = |claim: &str| -> Vec<String> {
            let found = index.using(&ObjectKey::new("ns", claim));
            found.iter().map(|name| name.to_string()).collect()
        };
        let (key, other) = (ObjectKey::new("ns", "one"), ObjectKey::new("ns", "two"));
        let (ab, bc) = (pod(&["a", "b", "a"]), pod(&["b", "c"]));
        index.apply(&key, None, Some(&ab));
        index.apply(&other, None, Some(&bc));
        index.apply(&ObjectKey::new("else", "one"), None, Some(&bc));
        assert_eq!([using("a"), using("c")], [["one"], ["two"]]);
        assert_eq!([using("b"), using("one-v")], [["one", "two"], ["one", "two"]]);
        // Another pod of the same name.
        index.apply(&key, Some(&ab), Some(&bc));
        assert_eq!((using("a").len(), using("c").len()), (0, 2));
        index.apply(&key, Some(&bc), None);
        assert_eq!((using("b"), using("d").len()), (vec!["two".to_owned()], 0));
        index.apply(&other, Some(&bc), None);
        index.apply(&ObjectKey::new("else", "one"), Some(&bc), None);
        assert!(index.lock().is_empty());
    }
}
