//! Objects of another API server: what waits while their server has not been asked for them, or does not answer.

use super::*;
use crate::process::NextSteps;

impl Cluster {
    fn add_object(&mut self, kind: &str, name: &str, owner: Option<(&str, &str)>) -> Id {
        let reference = |(kind, name): (&str, &str)| OwnerReference {
            api_version: self.api_version(self.kind(kind)),
            kind: kind.to_owned(),
            name: name.to_owned(),
            uid: name.to_owned(),
            controller: None,
            block_owner_deletion: Some(true),
        };
        let metadata = ObjectMeta {
            name: name.to_owned(),
            namespace: "ns".to_owned(),
            uid: name.to_owned(),
            owner_references: owner.map(reference).into_iter().collect(),
            ..ObjectMeta::default()
        };
        let id = Id { kind: self.kind(kind), key: ObjectKey::from_metadata(&metadata) };
        self.write(&id, Some(metadata));
        self.deliver_all_that_is_listed();
        id
    }

    fn deliver_all_that_is_listed(&mut self) {
        let bird = self.kind(BIRD);
        for kind in self.unseen.keys().copied().collect::<Vec<_>>() {
            while (kind != bird || self.other.is_listed)
                && self.unseen.get(&kind).is_some_and(|list| !list.is_empty())
            {
                self.deliver_of(kind);
            }
        }
    }
}

fn run(processor: &Processor<Shared, Shared>, id: &Id) -> Result<NextSteps, Failed> {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(processor.process(id))
}

#[test]
fn owners_wait_for_the_first_list_of_another_server() {
    for policy in [DeletionPropagation::Orphan, DeletionPropagation::Foreground] {
        let mut cluster = Cluster::new(Vec::new());
        cluster.calm = true;
        let owner = cluster.add_object("Deployment", "owner", None);
        let bird = cluster.add_object(BIRD, "bird", Some(("Deployment", "owner")));
        cluster.delete(&owner, policy);
        cluster.deliver_all_that_is_listed();
        let (shared, processor) = processor(cluster, 1);
        assert!(run(&processor, &owner).unwrap().requeue_after.is_some(), "{policy:?}");
        assert!(lock(&shared.0).objects.contains_key(&owner), "{policy:?}");
        lock(&shared.0).list_birds();
        for _ in 0..4 {
            run(&processor, &owner).unwrap();
            run(&processor, &bird).unwrap();
            lock(&shared.0).deliver_all_that_is_listed();
        }
        let cluster = lock(&shared.0);
        assert!(!cluster.objects.contains_key(&owner), "{policy:?}");
        let is_kept = policy == DeletionPropagation::Orphan;
        assert_eq!(cluster.objects.contains_key(&bird), is_kept, "{policy:?}");
    }
}

#[test]
fn what_is_owned_by_an_object_out_of_reach_stays() {
    let mut cluster = Cluster::new(Vec::new());
    cluster.calm = true;
    let owned = cluster.add_object("ConfigMap", "owned", Some((BIRD, "never-there")));
    let (shared, processor) = processor(cluster, 1);
    run(&processor, &owned).unwrap();
    assert!(lock(&shared.0).objects.contains_key(&owned), "its owner's kind is not listed yet");
    lock(&shared.0).list_birds();
    lock(&shared.0).other.is_away = true;
    assert!(run(&processor, &owned).is_err(), "whether the owner exists is not known");
    assert!(lock(&shared.0).objects.contains_key(&owned));
    lock(&shared.0).other.is_away = false;
    run(&processor, &owned).unwrap();
    assert!(!lock(&shared.0).objects.contains_key(&owned));
}

#[test]
fn a_server_that_is_away_holds_up_no_owner_that_its_objects_do_not_block() {
    let mut cluster = Cluster::new(Vec::new());
    cluster.calm = true;
    cluster.list_birds();
    let owner = cluster.add_object("Deployment", "owner", None);
    let bird = cluster.add_object(BIRD, "bird", Some(("Deployment", "owner")));
    let mut free = cluster.objects[&bird].clone();
    free.owner_references[0].block_owner_deletion = None;
    cluster.write(&bird, Some(free));
    cluster.other.is_away = true;
    cluster.delete(&owner, DeletionPropagation::Foreground);
    cluster.deliver_all_that_is_listed();
    cluster.policies = Policies::default();
    let (shared, processor) = processor(cluster, 1);
    run(&processor, &owner).unwrap();
    assert!(!lock(&shared.0).objects.contains_key(&owner));
}
