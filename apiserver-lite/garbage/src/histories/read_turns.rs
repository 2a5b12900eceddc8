//! Objects with more owners than one turn reads: how many reads each turn has, which object keeps a place between turns, and that all come to their end.

use std::sync::atomic::Ordering;

use super::*;
use crate::process::{READS_MAX, UNFINISHED_MAX};

impl Shared {
    fn reads(&self) -> usize {
        self.1.load(Ordering::Relaxed)
    }
}

/// A reference to a pod whose uid is its name.
fn pod(name: String) -> OwnerReference {
    OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Pod".to_owned(),
        uid: name.clone(),
        name,
        controller: None,
        block_owner_deletion: Some(true),
    }
}

/// References to pods that never were, of the object with this name only.
fn forged(of: &str, count: usize) -> impl Iterator<Item = OwnerReference> {
    (0..count).map(move |nth| pod(format!("{of}-{nth}")))
}

impl Cluster {
    fn add(&mut self, kind: &str, name: &str, owner_references: Vec<OwnerReference>) -> Id {
        let (name, namespace, uid) = (name.to_owned(), "ns".to_owned(), name.to_owned());
        let metadata =
            ObjectMeta { name, namespace, uid, owner_references, ..ObjectMeta::default() };
        let id = Id { kind: self.kind(kind), key: ObjectKey::from_metadata(&metadata) };
        self.write(&id, Some(metadata));
        self.deliver_all();
        id
    }
}

/// The reads of each turn of an object, until no further one is due.
fn turns(shared: &Shared, processor: &Processor<Shared, Shared>, id: &Id) -> Vec<usize> {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let mut turns = Vec::new();
    loop {
        let before = shared.reads();
        let seen = runtime.block_on(processor.process(id)).unwrap();
        let mut cluster = lock(&shared.0);
        turns.push(shared.reads() - before);
        cluster.deliver_all();
        if seen.requeue_after.is_none() || turns.len() > 1_000 {
            return turns;
        }
    }
}

#[test]
fn owners_that_do_not_exist_are_read_in_turns() {
    let mut cluster = Cluster::new(Vec::new());
    cluster.add("Pod", "keeps", Vec::new());
    let lost = cluster.add("ConfigMap", "lost", forged("lost", 1_050).collect());
    let kept = forged("kept", 250).chain([pod("keeps".to_owned())]);
    let kept = cluster.add("ConfigMap", "kept", kept.collect());
    // Other uids of one name.
    let named =
        (0..5_000).map(|nth| OwnerReference { uid: nth.to_string(), ..pod("keeps".into()) });
    let one_name = cluster.add("ConfigMap", "one-name", named.collect());
    let (shared, processor) = processor(cluster, READS_MAX);
    // The last read is that of the object.
    let expected = [vec![READS_MAX; 10], vec![51]].concat();
    assert_eq!(turns(&shared, &processor, &lost), expected);
    assert_eq!(turns(&shared, &processor, &kept), [READS_MAX, READS_MAX, 51]);
    assert_eq!(turns(&shared, &processor, &one_name), [2]);
    let cluster = lock(&shared.0);
    assert!(!cluster.objects.contains_key(&lost) && !cluster.objects.contains_key(&one_name));
    assert_eq!(cluster.objects[&kept].owner_references, [pod("keeps".to_owned())]);
    assert_eq!(lock(&processor.unfinished).len(), 0);
}

#[test]
fn owners_that_wait_are_read_in_turns_too() {
    let mut cluster = Cluster::new(Vec::new());
    let owners: Vec<OwnerReference> = (0..250).map(|nth| pod(format!("p{nth}"))).collect();
    let pods: Vec<Id> =
        owners.iter().map(|owner| cluster.add("Pod", &owner.name, Vec::new())).collect();
    let blocking = cluster.add("ConfigMap", "blocking", owners);
    for pod in &pods {
        cluster.delete(pod, DeletionPropagation::Foreground);
    }
    cluster.deliver_all();
    let (shared, processor) = processor(cluster, READS_MAX);
    assert_eq!(turns(&shared, &processor, &blocking), [READS_MAX, READS_MAX, 51]);
    assert!(!lock(&shared.0).objects.contains_key(&blocking));
}

#[test]
fn few_objects_have_turns_at_a_time_and_all_have_theirs() {
    let mut cluster = Cluster::new(Vec::new());
    let name = |nth: usize| format!("lost{nth}");
    let mut queue: VecDeque<Id> = (0..3 * UNFINISHED_MAX)
        .map(|nth| cluster.add("ConfigMap", &name(nth), forged(&name(nth), 300).collect()))
        .collect();
    let count = queue.len();
    let (shared, processor) = processor(cluster, READS_MAX);
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let mut rounds = 0;
    while let Some(id) = queue.pop_front() {
        rounds += 1;
        assert!(rounds < 1_000, "{} objects are left", queue.len());
        let seen = runtime.block_on(processor.process(&id)).unwrap();
        lock(&shared.0).deliver_all();
        assert!(lock(&processor.unfinished).len() <= UNFINISHED_MAX);
        queue.extend(seen.requeue_after.map(|_| id));
    }
    let cluster = lock(&shared.0);
    assert!(cluster.objects.is_empty());
    assert!(shared.reads() <= count * 301, "{}: what waits reads nothing", shared.reads());
}

#[test]
fn an_object_whose_owners_change_gives_its_place_to_others() {
    let mut cluster = Cluster::new(Vec::new());
    let lost = cluster.add("ConfigMap", "lost", forged("lost", 150).collect());
    let (shared, processor) = processor(cluster, READS_MAX);
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    for (nth, has_place) in [(0, true), (1, false), (2, true), (3, false)] {
        let name = format!("other{nth}");
        lock(&shared.0).add("ConfigMap", "lost", forged(&name, 150).collect());
        let seen = runtime.block_on(processor.process(&lost)).unwrap();
        assert!(seen.requeue_after.is_some());
        assert_eq!(lock(&processor.unfinished).len(), usize::from(has_place), "{name}");
    }
    lock(&shared.0).add("ConfigMap", "lost", forged("last", 150).collect());
    turns(&shared, &processor, &lost);
    assert!(lock(&shared.0).objects.is_empty());
}

#[test]
fn an_object_whose_owners_cannot_be_read_keeps_no_place() {
    let mut cluster = Cluster::new(Vec::new());
    let owners = forged("lost", 150).chain([pod(UNREADABLE.to_owned())]);
    let lost = cluster.add("ConfigMap", "lost", owners.collect());
    let (shared, processor) = processor(cluster, READS_MAX);
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let turn = || runtime.block_on(processor.process(&lost));
    assert!(turn().is_ok_and(|seen| seen.requeue_after.is_some()));
    assert_eq!(lock(&processor.unfinished).len(), 1);
    assert!(turn().is_err());
    assert_eq!(lock(&processor.unfinished).len(), 0);
    assert!(lock(&shared.0).objects.contains_key(&lost));
}

#[test]
fn an_owner_whose_kind_is_removed_meanwhile_is_not_deleted() {
    let mut cluster = Cluster::new(Vec::new());
    let object = cluster.add("ConfigMap", "kept", vec![pod(KIND_ENDS.to_owned())]);
    let (shared, processor) = processor(cluster, READS_MAX);
    // The owner; then the object, whose owner has no known kind.
    assert_eq!(turns(&shared, &processor, &object), [1, 1]);
    assert!(lock(&shared.0).objects.contains_key(&object));
}
