//! Random histories of claims, volumes, pods and a provisioner, against a model of the API server that checks versions. The controllers read
//! stale caches, lose their state at any point, and stop between any two writes.
//!
//! Safety: no two claims have one volume, no claim loses its volume, no volume or claim in use is deleted. Liveness: a claim is bound in the end if a
//! volume matches.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;
use proto_api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use proto_api::object::{from_json_value, to_json_value};
use proto_api::storage::v1::StorageClass;
use proto_api::{Resource, Time, merge_patch};
use serde_json::Value;

use super::claim::ClaimContext;
use super::examples::*;
use super::*;
use crate::Plan;

/// Objects by name, each with its version.
#[derive(Clone, Default)]
struct Objects {
    claims: BTreeMap<String, PersistentVolumeClaim>,
    volumes: BTreeMap<String, PersistentVolume>,
    pods: BTreeMap<String, Pod>,
    class: Option<StorageClass>,
}

/// The server, and the caches of the controllers.
struct Cluster {
    annotations: VolumeAnnotations,
    now: Objects,
    /// Older states, of which the caches show one.
    before: Vec<Objects>,
    version: u64,
    made: u32,
    /// The volume that each claim was bound to, by the claim's uid.
    pairs: BTreeMap<String, String>,
}

/// Patches an object as the server does: checks version and uid, and changes only the given part.
fn patched<T: Resource>(old: &T, part: Part, patch: &Value, version: u64) -> Option<T> {
    let metadata = old.metadata();
    let asked = &patch["metadata"];
    let same = |key: &str, is: &str| asked.get(key).is_none_or(|expected| expected == is);
    if !same("uid", &metadata.uid) || !same("resourceVersion", &metadata.resource_version) {
        return None;
    }
    let mut json = to_json_value(old, names()).unwrap();
    let before = json.clone();
    merge_patch::apply(&mut json, patch);
    match part {
        Part::Main => json["status"] = before["status"].clone(),
        Part::Status => json["spec"] = before["spec"].clone(),
    }
    let mut new: T = from_json_value(json, names()).unwrap();
    new.metadata_mut().resource_version = version.to_string();
    Some(new)
}

/// Stores a changed object; deletes a terminating one without finalizers.
fn put<T: Resource>(map: &mut BTreeMap<String, T>, object: T) {
    let metadata = object.metadata();
    let name = metadata.name.clone();
    if metadata.deletion_timestamp.is_some() && metadata.finalizers.is_empty() {
        map.remove(&name);
    } else {
        map.insert(name, object);
    }
}

impl Cluster {
    fn new() -> Self {
        let now = Objects {
            class: Some(class("made", "disk.csi.test", "Immediate")),
            ..Objects::default()
        };
        let annotations = VolumeAnnotations::new(names());
        Self { annotations, now, before: Vec::new(), version: 10, made: 0, pairs: BTreeMap::new() }
    }

    fn next(&mut self) -> String {
        self.version += 1;
        self.version.to_string()
    }

    fn uid(&mut self) -> String {
        self.made += 1;
        format!("u{}", self.made)
    }

    /// Executes a write, or rejects it.
    fn write(&mut self, write: &ApiWrite) -> bool {
        self.version += 1;
        let version = self.version;
        let ApiWrite::Patch { kind, key, part, patch } = write else {
            unreachable!("these controllers only patch: {write:?}")
        };
        let done = match kind {
            ObjectKind::PersistentVolume => {
                let old = self.now.volumes.get(&key.name);
                let new = old.and_then(|old| patched(old, *part, patch, version));
                new.map(|new| {
                    self.check_volume_goes(&new);
                    put(&mut self.now.volumes, new);
                })
            }
            _ => {
                let old = self.now.claims.get(&key.name);
                let new = old.and_then(|old| patched(old, *part, patch, version));
                new.map(|new| {
                    self.check_claim_goes(&new);
                    put(&mut self.now.claims, new);
                })
            }
        };
        self.check();
        done.is_some()
    }

    // === Safety ===

    fn check(&mut self) {
        let mut owners: BTreeMap<&str, &str> = BTreeMap::new();
        for claim in self.now.claims.values() {
            let volume = &claim.spec.volume_name;
            if volume.is_empty()
                || !has_annotation(&claim.metadata, &self.annotations.bind_completed)
            {
                continue;
            }
            let other = owners.insert(volume, &claim.metadata.uid);
            assert_eq!(other, None, "two claims have {volume}");
            let had = self.pairs.entry(claim.metadata.uid.clone()).or_insert(volume.clone());
            assert_eq!(had, volume, "a claim has changed its volume");
            let of = self.now.volumes.get(volume).and_then(|v| v.spec.claim_ref.clone());
            assert_eq!(
                of.map(|of| of.uid).as_deref(),
                Some(claim.metadata.uid.as_str()),
                "{volume} is no more the volume of {}",
                claim.metadata.name
            );
            assert_ne!(claim.status.phase, "Lost");
        }
    }

    fn check_volume_goes(&self, new: &PersistentVolume) {
        if new.metadata.deletion_timestamp.is_none() || !new.metadata.finalizers.is_empty() {
            return;
        }
        let name = &new.metadata.name;
        let user = self.now.claims.values().find(|claim| {
            claim.spec.volume_name == *name
                && has_annotation(&claim.metadata, &self.annotations.bind_completed)
        });
        assert!(user.is_none(), "{name} goes while a claim has it");
    }

    fn check_claim_goes(&self, new: &PersistentVolumeClaim) {
        if new.metadata.deletion_timestamp.is_none() || !new.metadata.finalizers.is_empty() {
            return;
        }
        let used = self.now.pods.values().any(|pod| protection::uses(pod, new));
        assert!(!used, "{} goes while a pod uses it", new.metadata.name);
    }

    // === The controllers ===

    /// The caches of the controllers: a past state for volumes, and one for claims.
    fn observe(&self, age: (usize, usize)) -> Objects {
        let back = |age: usize| {
            let at = self.before.len().checked_sub(age % 4);
            at.and_then(|at| self.before.get(at)).unwrap_or(&self.now)
        };
        Objects { volumes: back(age.0).volumes.clone(), ..back(age.1).clone() }
    }

    fn plan_claim(&self, seen: &Objects, name: &str) -> Plan {
        let Some(claim) = seen.claims.get(name) else { return Plan::default() };
        let volume = |name: &str| {
            // As the reconciler does: a bound claim's volume is read before it counts as lost.
            let found = seen.volumes.get(name).or_else(|| self.now.volumes.get(name));
            found.cloned().map(Arc::new)
        };
        let context = ClaimContext {
            names: names(),
            annotations: &self.annotations,
            volume: &volume,
            volumes: &|| seen.volumes.values().cloned().map(Arc::new).collect(),
            class: &|_| seen.class.clone().map(Arc::new),
            default_class: &|| None,
            pods: &Vec::new,
        };
        super::claim::plan(claim, &context)
    }

    /// The claim of a volume, from the cache, or from the server if the cache has none with that uid.
    fn behind(&self, seen: &Objects, volume: &PersistentVolume) -> Option<PersistentVolumeClaim> {
        let of = volume.spec.claim_ref.as_ref()?;
        let shown = seen.claims.get(&of.name);
        if shown.is_some_and(|claim| claim.metadata.uid == of.uid) {
            return shown.cloned();
        }
        self.now.claims.get(&of.name).cloned()
    }

    /// One reconcile of every key, each plan stopped after `writes` writes.
    fn look(&mut self, age: (usize, usize), writes: usize) -> bool {
        let seen = self.observe(age);
        let mut plans = Vec::new();
        for (name, claim) in &seen.claims {
            plans.push(self.plan_claim(&seen, name));
            let held =
                protection::has_finalizer(&claim.metadata, &self.annotations.claim_protection);
            let pods = seen.pods.values().chain(self.now.pods.values());
            let used = held && pods.into_iter().any(|pod| protection::uses(pod, claim));
            plans.push(protection::plan_claim(&self.annotations, claim, used));
        }
        for volume in seen.volumes.values() {
            let claim = self.behind(&seen, volume);
            plans.push(super::volume::plan(names(), &self.annotations, volume, claim.as_ref()));
            plans.push(protection::plan_volume(&self.annotations, volume, claim.as_ref()));
        }
        let mut changed = false;
        for plan in plans {
            for write in plan.writes.iter().take(writes) {
                if !self.write(write) {
                    break;
                }
                changed = true;
            }
        }
        changed
    }

    // === Other clients ===

    fn make_claim(&mut self, nth: u8, gib: u8, made: bool) {
        let name = format!("c{}", nth % 3);
        if self.now.claims.contains_key(&name) {
            return;
        }
        let mut claim = claim(&name);
        claim.metadata.uid = self.uid();
        claim.metadata.resource_version = self.next();
        claim.metadata.finalizers = vec![self.annotations.claim_protection.clone()];
        claim.spec.storage_class_name = Some(if made { "made" } else { "" }.into());
        let size = format!("{}Gi", 1 + gib % 3).parse().unwrap();
        claim.spec.resources.requests.insert("storage".into(), size);
        self.now.claims.insert(name, claim);
    }

    fn make_volume(&mut self, nth: u8, gib: u8, promise: Option<u8>) {
        let name = format!("v{}", nth % 4);
        if self.now.volumes.contains_key(&name) {
            return;
        }
        let mut volume = volume(&name, &format!("{}Gi", 1 + gib % 3));
        volume.metadata.uid = self.uid();
        volume.metadata.resource_version = self.next();
        volume.metadata.finalizers = vec![self.annotations.volume_protection.clone()];
        volume.status.phase = "Pending".into();
        if let Some(to) = promise {
            let mut of = reference_to(names(), &claim(&format!("c{}", to % 3)));
            of.uid.clear();
            volume.spec.claim_ref = Some(of);
        }
        self.now.volumes.insert(name, volume);
    }

    /// Provisions volumes for annotated claims, and deletes released ones.
    fn provision(&mut self) {
        for claim in self.now.claims.clone().into_values() {
            let asked = has_annotation(&claim.metadata, &self.annotations.provisioners[0]);
            let name = format!("pvc-{}", claim.metadata.uid);
            if !asked || !claim.spec.volume_name.is_empty() || self.now.volumes.contains_key(&name)
            {
                continue;
            }
            let mut volume = promised(&name, &claim, true);
            volume.metadata.resource_version = self.next();
            volume.metadata.finalizers = vec![self.annotations.volume_protection.clone()];
            let by = self.annotations.provisioned_by.clone();
            volume.metadata.annotations.insert(by, "disk.csi.test".into());
            volume.spec.storage_class_name = "made".into();
            volume.spec.capacity = claim.spec.resources.requests.clone();
            volume.spec.persistent_volume_reclaim_policy = "Delete".into();
            volume.status.phase = "Pending".into();
            self.now.volumes.insert(name, volume);
        }
        for mut volume in self.now.volumes.clone().into_values() {
            let made = has_annotation(&volume.metadata, &self.annotations.provisioned_by);
            if made && volume.status.phase == "Released" {
                volume.metadata.deletion_timestamp = Some(Time::from_unix(1));
                volume.metadata.resource_version = self.next();
                self.check_volume_goes(&volume);
                put(&mut self.now.volumes, volume);
            }
        }
    }

    fn delete_claim(&mut self, nth: u8) {
        let Some(claim) = self.now.claims.get(&format!("c{}", nth % 3)) else { return };
        let mut claim = claim.clone();
        claim.metadata.deletion_timestamp = Some(Time::from_unix(1));
        claim.metadata.resource_version = self.next();
        put(&mut self.now.claims, claim);
    }

    fn delete_volume(&mut self, nth: u8) {
        let Some(volume) = self.now.volumes.get(&format!("v{}", nth % 4)) else { return };
        let mut volume = volume.clone();
        volume.metadata.deletion_timestamp = Some(Time::from_unix(1));
        volume.metadata.resource_version = self.next();
        self.check_volume_goes(&volume);
        put(&mut self.now.volumes, volume);
    }

    /// A pod is scheduled or deleted. No pod is started with a terminating claim.
    fn toggle_pod(&mut self, nth: u8) {
        let (name, claim) = (format!("p{}", nth % 3), format!("c{}", nth % 3));
        let going = |claim: &PersistentVolumeClaim| claim.metadata.deletion_timestamp.is_some();
        if self.now.pods.remove(&name).is_none()
            && self.now.claims.get(&claim).is_some_and(|claim| !going(claim))
        {
            self.now.pods.insert(name.clone(), user(&name, &claim, "n"));
        }
    }
}

#[derive(Clone, Debug)]
enum HistoryStep {
    Claim(u8, u8, bool),
    Volume(u8, u8, Option<u8>),
    DeleteClaim(u8),
    DeleteVolume(u8),
    Pod(u8),
    Provision,
    /// The controllers run with caches of these ages, and stop after this many writes of each plan.
    Look((usize, usize), usize),
}

fn step() -> impl Strategy<Value = HistoryStep> {
    prop_oneof![
        2 => (any::<u8>(), any::<u8>(), any::<bool>()).prop_map(|(n, g, m)| HistoryStep::Claim(n, g, m)),
        2 => (any::<u8>(), any::<u8>(), proptest::option::weighted(0.3, any::<u8>()))
            .prop_map(|(n, g, p)| HistoryStep::Volume(n, g, p)),
        1 => any::<u8>().prop_map(HistoryStep::DeleteClaim),
        1 => any::<u8>().prop_map(HistoryStep::DeleteVolume),
        1 => any::<u8>().prop_map(HistoryStep::Pod),
        2 => Just(HistoryStep::Provision),
        8 => ((0usize..4, 0usize..4), 0usize..3).prop_map(|(age, writes)| HistoryStep::Look(age, writes)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]

    #[test]
    fn bindings_are_kept_and_matching_volumes_are_bound(steps in proptest::collection::vec(step(), 1..60)) {
        let mut cluster = Cluster::new();
        for step in steps {
            let state = cluster.now.clone();
            match step {
                HistoryStep::Claim(nth, gib, made) => cluster.make_claim(nth, gib, made),
                HistoryStep::Volume(nth, gib, promise) => cluster.make_volume(nth, gib, promise),
                HistoryStep::DeleteClaim(nth) => cluster.delete_claim(nth),
                HistoryStep::DeleteVolume(nth) => cluster.delete_volume(nth),
                HistoryStep::Pod(nth) => cluster.toggle_pod(nth),
                HistoryStep::Provision => cluster.provision(),
                HistoryStep::Look(age, writes) => drop(cluster.look(age, writes)),
            }
            cluster.before.push(state);
        }
        // In the end the controllers run undisturbed.
        for round in 0.. {
            cluster.provision();
            if !cluster.look((0, 0), usize::MAX) {
                break;
            }
            prop_assert!(round < 40, "the controllers never rest");
        }
        let free: Vec<&PersistentVolume> = cluster.now.volumes.values().collect();
        for claim in cluster.now.claims.values() {
            let going = claim.metadata.deletion_timestamp.is_some();
            let made = claim.spec.storage_class_name.as_deref() == Some("made");
            let open = claim.spec.volume_name.is_empty() && !going;
            let fits = fit::best(&cluster.annotations, claim, free.iter().copied(), fit::Choice::Any);
            prop_assert!(!open || fits.is_none() && !made, "{} could have a volume", claim.metadata.name);
            let done = claim.status.phase == "Bound" || going || open;
            prop_assert!(done, "{} is {}", claim.metadata.name, claim.status.phase);
        }
    }
}
