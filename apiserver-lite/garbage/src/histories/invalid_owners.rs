//! Owners of another namespace: when their dependents are deleted, and which events say why.

use proto_api::event_report::EventKind;

use super::*;
use crate::process::READS_MAX;

fn owner(kind: &str, name: &str) -> OwnerReference {
    OwnerReference {
        api_version: "v1".to_owned(),
        kind: kind.to_owned(),
        name: name.to_owned(),
        uid: format!("uid-{name}"),
        ..OwnerReference::default()
    }
}

impl Cluster {
    fn add_to(
        &mut self,
        namespace: &str,
        (kind, name): (&str, &str),
        owner_references: Vec<OwnerReference>,
    ) -> Id {
        let metadata = ObjectMeta {
            name: name.to_owned(),
            namespace: namespace.to_owned(),
            uid: format!("uid-{name}"),
            owner_references,
            ..ObjectMeta::default()
        };
        let id = Id { kind: self.kind(kind), key: ObjectKey::from_metadata(&metadata) };
        self.write(&id, Some(metadata));
        self.deliver_all();
        id
    }
}

/// The message of the event, and whether the object is there afterwards.
fn process(cluster: Cluster, ids: &[&Id]) -> Vec<(Option<String>, bool)> {
    let (shared, processor) = processor(cluster, READS_MAX);
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let one = |id: &&Id| {
        let seen = runtime.block_on(processor.process(id)).unwrap();
        if let Some(report) = &seen.report {
            assert_eq!(
                (report.kind, &*report.reason),
                (EventKind::Warning, "OwnerRefInvalidNamespace")
            );
            let about = &report.about;
            assert_eq!((&about.namespace, &about.name), (&id.key.namespace, &id.key.name));
            assert_eq!(about.uid, format!("uid-{}", about.name));
        }
        (seen.report.map(|report| report.message), lock(&shared.0).objects.contains_key(*id))
    };
    ids.iter().map(one).collect()
}

#[test]
fn an_owner_of_another_namespace_is_reported() {
    let mut cluster = Cluster::new(Vec::new());
    for namespace in ["ns", "other"] {
        cluster.add_to("", ("Namespace", namespace), Vec::new());
    }
    cluster.add_to("ns", ("ConfigMap", "there"), Vec::new());
    cluster.add_to("other", ("ConfigMap", "here"), Vec::new());
    let there = || owner("ConfigMap", "there");
    let pod = |cluster: &mut Cluster, name: &str, owners: Vec<OwnerReference>| {
        cluster.add_to("other", ("Pod", name), owners)
    };
    let lost = pod(&mut cluster, "lost", vec![there()]);
    let again = pod(&mut cluster, "again", vec![there()]);
    let kept = pod(&mut cluster, "kept", vec![owner("ConfigMap", "here"), there()]);
    let gone = pod(&mut cluster, "gone", vec![owner("ConfigMap", "never")]);
    let renamed =
        pod(&mut cluster, "renamed", vec![OwnerReference { uid: "old".into(), ..there() }]);
    let node = cluster.add_to("", ("Node", "node"), vec![there()]);
    let unowned = cluster.add_to("", ("Node", "unowned"), vec![owner("ConfigMap", "never")]);
    let in_order = cluster.add_to("other", ("Pod", "in-order"), vec![owner("Node", "node")]);
    let message = |namespace: &str| {
        let owner = format!("[v1/ConfigMap, namespace: {namespace}, name: there, uid: uid-there]");
        Some(format!("ownerRef {owner} does not exist in namespace \"{namespace}\""))
    };
    let all = [&lost, &again, &kept, &gone, &renamed, &node, &unowned, &in_order];
    let expected = [
        (message("other"), false),
        // Its owner is remembered.
        (message("other"), false),
        (message("other"), true),
        (None, false),
        (None, false),
        // A cluster-scoped object is not deleted for it.
        (message(""), true),
        (None, true),
        (None, true),
    ];
    assert_eq!(process(cluster, &all), expected);
}

/// The caches may be behind: an owner that they still show in the dependent's own namespace is in no other one.
#[test]
fn an_owner_that_has_just_been_deleted_is_not_reported() {
    let mut cluster = Cluster::new(Vec::new());
    cluster.add_to("", ("Namespace", "ns"), Vec::new());
    let of = cluster.add_to("ns", ("ConfigMap", "of"), Vec::new());
    let lost = cluster.add_to("ns", ("Pod", "lost"), vec![owner("ConfigMap", "of")]);
    cluster.delete(&of, DeletionPropagation::Background);
    cluster.deliver_all();
    let shown =
        Ownership { uid: "uid-of".into(), owners: [].into(), stage: DeletionStage::Foreground };
    cluster.shown.insert(of, Arc::new(shown));
    assert_eq!(process(cluster, &[&lost]), [(None, false)]);
}
