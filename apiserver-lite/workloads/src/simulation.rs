//! A server for tests: it keeps objects as JSON, executes writes as the API server does, and can lose the controller between any two of them.
//! Below it are the histories of controllers of `apiserver-controllers` that work on one another's objects.

mod collected_pods;
mod disruptions;
mod nodes;
mod replica_sets;
mod rollouts;

use std::collections::BTreeMap;
use std::sync::Arc;

use apiserver_controllers::api_writes::{ApiWrite, ObjectKind, WrittenObject};
use apiserver_controllers::{Plan, for_every_written_kind};
use proto_api::core::v1::{Pod, PodCondition};
use proto_api::{Kind, Message, ObjectKey, Time, merge_patch};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

macro_rules! define_into_json {
    ($($kind:ident: $type:ty),+) => {
        fn into_json(object: &WrittenObject) -> (ObjectKind, Value) {
            match object {
                $(WrittenObject::$kind(object) => {
                    (ObjectKind::$kind, serde_json::to_value(object.as_ref()).expect("JSON"))
                })+
            }
        }
    };
}

for_every_written_kind!(define_into_json);

/// An object that can be read from its JSON.
pub(crate) trait Stored: Kind + DeserializeOwned {}

impl<T: Kind + DeserializeOwned> Stored for T {}

/// The server's objects. A clone is what a cache shows at that time.
#[derive(Clone, Default)]
pub(crate) struct World {
    objects: BTreeMap<(ObjectKind, ObjectKey), Value>,
    pub(crate) version: u64,
    created: u64,
    pub(crate) now: i64,
}

/// Why the server refused a write.
#[derive(Debug, PartialEq)]
pub(crate) struct Refused;

impl World {
    /// An empty server at this time.
    pub(crate) fn at(now: i64) -> Self {
        Self { now, ..Self::default() }
    }

    pub(crate) fn time(&self) -> Time {
        Time::from_unix(self.now)
    }

    /// Stores an object as a user does.
    pub(crate) fn put(&mut self, object: impl Into<WrittenObject>) {
        let (kind, mut object) = into_json(&object.into());
        self.stamp(&mut object);
        self.objects.insert((kind, key_of(&object)), object);
    }

    fn stamp(&mut self, object: &mut Value) {
        self.version += 1;
        let metadata = object["metadata"].as_object_mut().expect("metadata");
        metadata.insert("resourceVersion".into(), json!(self.version.to_string()));
        if !metadata.get("uid").is_some_and(|uid| uid != "") {
            self.created += 1;
            metadata.insert("uid".into(), json!(format!("uid-{}", self.created)));
            let created = serde_json::to_value(Time::from_unix(self.now)).expect("a time");
            metadata.insert("creationTimestamp".into(), created);
        }
    }

    pub(crate) fn list<T: Stored>(&self, kind: ObjectKind) -> Vec<Arc<T>> {
        let of_kind = self.objects.iter().filter(|((other, _), _)| *other == kind);
        of_kind.map(|(_, object)| Arc::new(decode(object))).collect()
    }

    pub(crate) fn get<T: Stored>(&self, kind: ObjectKind, name: &str) -> Option<T> {
        self.objects.get(&(kind, ObjectKey::new("ns", name))).map(decode)
    }

    pub(crate) fn pods(&self) -> Vec<Arc<Pod>> {
        self.list(ObjectKind::Pod)
    }

    /// Changes an object as a user or a kubelet does.
    pub(crate) fn edit<T: Stored>(
        &mut self,
        kind: ObjectKind,
        name: &str,
        edit: impl FnOnce(&mut T),
    ) where
        WrittenObject: From<T>,
    {
        if let Some(mut object) = self.get::<T>(kind, name) {
            edit(&mut object);
            self.put(object);
        }
    }

    pub(crate) fn remove(&mut self, kind: ObjectKind, name: &str) {
        self.version += 1;
        self.objects.remove(&(kind, ObjectKey::new("ns", name)));
    }

    /// Deletes a pod: one that runs stays until its kubelet has ended it.
    pub(crate) fn delete_pod(&mut self, name: &str) {
        let Some(pod) = self.get::<Pod>(ObjectKind::Pod, name) else { return };
        if is_over(&pod) && pod.metadata.finalizers.is_empty() {
            return self.remove(ObjectKind::Pod, name);
        }
        let now = self.time();
        self.edit::<Pod>(ObjectKind::Pod, name, |pod| pod.metadata.deletion_timestamp = Some(now));
    }

    /// Deletes a pod without a grace period: its finalizers alone hold it.
    fn force_delete_pod(&mut self, name: &str) {
        let Some(pod) = self.get::<Pod>(ObjectKind::Pod, name) else { return };
        if pod.metadata.finalizers.is_empty() {
            self.remove(ObjectKind::Pod, name);
        } else if pod.metadata.deletion_timestamp.is_none() {
            let now = self.time();
            self.edit::<Pod>(ObjectKind::Pod, name, |pod| {
                pod.metadata.deletion_timestamp = Some(now);
            });
        }
    }

    /// Removes a deleted pod that nothing holds any more.
    pub(crate) fn end_pod(&mut self, name: &str) {
        let pod = self.get::<Pod>(ObjectKind::Pod, name);
        let ends = |pod: &Pod| {
            let metadata = &pod.metadata;
            metadata.deletion_timestamp.is_some() && metadata.finalizers.is_empty() && is_over(pod)
        };
        if pod.as_ref().is_some_and(ends) {
            self.remove(ObjectKind::Pod, name);
        }
    }

    /// Sets phase and readiness of a pod.
    pub(crate) fn set_state(&mut self, name: &str, phase: &str, ready: bool) {
        let now = self.time();
        self.edit::<Pod>(ObjectKind::Pod, name, |pod| {
            pod.status.phase = phase.into();
            let status = if ready { "True" } else { "False" };
            if pod.status.conditions.first().is_some_and(|before| before.status == status) {
                return;
            }
            pod.status.conditions = vec![PodCondition {
                type_: "Ready".into(),
                status: status.into(),
                last_transition_time: now,
                ..PodCondition::default()
            }];
        });
    }

    /// Executes the writes without those that depend on one that is refused, at most `limit` of them: the controller is gone after that. Gives the number
    /// of those that were not refused.
    pub(crate) fn run(&mut self, plan: &Plan, limit: usize) -> usize {
        self.run_refused(plan, limit, |_| false)
    }

    /// The same at a server that refuses some writes for another reason than a lost race: the status says so.
    pub(crate) fn run_refused(
        &mut self,
        plan: &Plan,
        limit: usize,
        refuses: impl Fn(&ApiWrite) -> bool,
    ) -> usize {
        let (mut done, mut from, mut failed, mut status) = (0, 0, None, None);
        while let Some(nth) = plan.next_write(from, failed) {
            if done == limit {
                return done;
            }
            from = nth + 1;
            let (write, now) = (&plan.writes[nth], self.time());
            if refuses(write) {
                status = status.or_else(|| plan.status_of_failure(nth, "refused".into(), now));
                failed = Some(nth);
            } else if self.execute(write).is_err() {
                failed = Some(nth);
            } else {
                done += 1;
            }
        }
        // One that is lost is written by the next try.
        let _ = status.map(|status| self.execute(&status));
        done
    }

    fn has(&self, kind: ObjectKind, key: &ObjectKey, uid: &str) -> bool {
        let stored = self.objects.get(&(kind, key.clone()));
        stored.is_some_and(|stored| stored["metadata"]["uid"] == json!(uid))
    }

    pub(crate) fn execute(&mut self, write: &ApiWrite) -> Result<(), Refused> {
        match write {
            ApiWrite::Create(object) => {
                let (kind, mut object) = into_json(object);
                if object["metadata"]["name"].as_str().unwrap_or_default().is_empty() {
                    let prefix = object["metadata"]["generateName"].as_str().expect("a prefix");
                    let name = format!("{prefix}x{}", self.created + 1);
                    object["metadata"]["name"] = json!(name);
                }
                match kind {
                    ObjectKind::Pod => object["status"] = json!({"phase": "Pending"}),
                    _ => object["metadata"]["generation"] = json!(1),
                }
                if !self.objects.contains_key(&(kind, key_of(&object))) {
                    self.stamp(&mut object);
                    self.objects.insert((kind, key_of(&object)), object);
                }
            }
            ApiWrite::Update(object) | ApiWrite::UpdateStatus(object) => {
                let (kind, object) = into_json(object);
                let stored = self.objects.get(&(kind, key_of(&object))).ok_or(Refused)?;
                if stored["metadata"]["resourceVersion"] != object["metadata"]["resourceVersion"] {
                    return Err(Refused);
                }
                let mut next = stored.clone();
                next["status"] = object["status"].clone();
                if let Some(annotations) = object["metadata"].get("annotations") {
                    next["metadata"]["annotations"] = annotations.clone();
                }
                self.stamp(&mut next);
                self.objects.insert((kind, key_of(&object)), next);
            }
            ApiWrite::Patch { kind, key, patch, .. } => {
                let stored = self.objects.get(&(*kind, key.clone())).ok_or(Refused)?;
                let asked = &patch["metadata"];
                let fits = |field: &str| {
                    asked.get(field).is_none_or(|value| *value == stored["metadata"][field])
                };
                if !fits("uid") || !fits("resourceVersion") {
                    return Err(Refused);
                }
                let mut next = stored.clone();
                merge_patch::apply(&mut next, patch);
                if next["spec"] != stored["spec"] {
                    let generation = stored["metadata"]["generation"].as_i64().unwrap_or(0);
                    next["metadata"]["generation"] = json!(generation + 1);
                }
                self.stamp(&mut next);
                self.objects.insert((*kind, key.clone()), next);
                if *kind == ObjectKind::Pod {
                    self.end_pod(&key.name);
                }
            }
            ApiWrite::Delete { kind, key, uid, grace_secs } => match kind {
                _ if !self.has(*kind, key, uid) => {}
                ObjectKind::Pod if *grace_secs == Some(0) => self.force_delete_pod(&key.name),
                ObjectKind::Pod => self.delete_pod(&key.name),
                _ => self.remove(*kind, &key.name),
            },
            ApiWrite::DeleteTree { kind, key, uid, .. } => {
                if self.has(*kind, key, uid) {
                    self.remove(*kind, &key.name);
                }
            }
        }
        Ok(())
    }
}

/// Whether no kubelet runs the pod.
fn is_over(pod: &Pod) -> bool {
    pod.spec.node_name.is_empty() || matches!(pod.status.phase.as_str(), "Failed" | "Succeeded")
}

fn decode<T: Stored>(object: &Value) -> T {
    serde_json::from_value(object.clone()).expect("an object of this kind")
}

fn key_of(object: &Value) -> ObjectKey {
    let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
    ObjectKey::new(text("namespace"), text("name"))
}

/// Plans and executes until nothing is planned. Gives the numbers of pods that the plans create; a plan of several has 1 MiB of them at most.
pub(crate) fn run_in_bursts(
    world: &mut World,
    mut planned: impl FnMut(&World) -> Plan,
) -> Vec<usize> {
    let mut bursts = Vec::new();
    for _ in 0..30 {
        let plan = planned(world);
        if plan.writes.is_empty() {
            return bursts;
        }
        let created = plan.writes.iter().filter_map(|write| match write {
            ApiWrite::Create(WrittenObject::Pod(pod)) => Some((1, pod.encoded_len())),
            ApiWrite::Create(WrittenObject::PersistentVolumeClaim(claim)) => {
                Some((0, claim.encoded_len()))
            }
            _ => None,
        });
        let created: Vec<(usize, usize)> = created.collect();
        let bytes: usize = created.iter().map(|(_, bytes)| bytes).sum();
        assert!(created.len() <= 1 || bytes <= 1 << 20, "{} objects, {bytes} bytes", created.len());
        bursts.push(created.iter().map(|(pods, _)| pods).sum());
        world.run(&plan, usize::MAX);
    }
    panic!("the plans do not end");
}

/// Makes an object large: three and no more fit into a plan.
pub(crate) fn enlarge(metadata: &mut proto_api::meta::v1::ObjectMeta) {
    metadata.annotations.insert("large".into(), "x".repeat(300_000));
}
