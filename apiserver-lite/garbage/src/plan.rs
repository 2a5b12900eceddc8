//! Plans the actions for one object from its state, its owners and its dependents. Pure.

use std::sync::Arc;

use proto_api::ObjectKey;
use proto_api::meta::v1::OwnerReference;

use super::index::{DeletionStage, FOREGROUND, ORPHAN, Ownership};
use super::kinds::Id;

/// What the collector knows of an owner of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnerState {
    /// It exists and does not wait for its dependents.
    Solid,
    /// It waits for its dependents to be deleted.
    Waiting,
    /// No object of that kind, name and uid exists.
    Absent,
    /// Its kind is not served, or it cannot own the object.
    Unknown,
}

/// The object as read from the server.
#[derive(Clone, Debug)]
pub struct Item<'a> {
    /// Uid, owners and stage.
    pub state: &'a Ownership,
    pub finalizers: &'a [String],
}

/// A dependent of the object.
#[derive(Clone, Debug, PartialEq)]
pub struct Dependent {
    pub id: Id,
    /// The ownership, shared with the caches: it may be long.
    pub state: Arc<Ownership>,
}

/// Whether an object may be owned by another: one of a namespace owns nothing outside of it, as in Kubernetes. A reference to it from elsewhere does not
/// hold it up: anyone who knows its uid could write one.
pub fn may_own(owner: &ObjectKey, dependent: &ObjectKey) -> bool {
    owner.namespace.is_empty() || owner.namespace == dependent.namespace
}

/// The propagation policy of a deletion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeletionPropagation {
    /// Dependents are orphaned.
    Orphan,
    /// Dependents are deleted first.
    Foreground,
    /// Dependents are deleted afterwards.
    Background,
}

impl DeletionPropagation {
    /// The value of `propagationPolicy`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Orphan => "Orphan",
            Self::Foreground => "Foreground",
            Self::Background => "Background",
        }
    }
}

/// An action of a plan.
#[derive(Clone, Debug, PartialEq)]
pub enum GcAction {
    /// Deletes the object if its version is unchanged.
    Delete(DeletionPropagation),
    /// Removes these owners from the object, by uid.
    DropOwners(Vec<String>),
    /// Clears the object's `blockOwnerDeletion`.
    Unblock,
    /// Removes the object from the owners of a dependent with this uid.
    Release(Id, Box<str>),
    /// Removes a finalizer of the object.
    Finish(&'static str),
    /// Processes this object, for which the planned one waits.
    Process(Id),
}

/// Plans the actions, in order. `owners` are in the order of the references; `dependents` are complete.
pub fn plan(item: &Item<'_>, owners: &[OwnerState], dependents: &[Dependent]) -> Vec<GcAction> {
    match item.state.stage {
        DeletionStage::Going => Vec::new(),
        DeletionStage::Orphaning => orphan(dependents),
        DeletionStage::Foreground => wait_for_dependents(item, dependents),
        DeletionStage::Alive => plan_item(item, owners, dependents),
    }
}

/// Removes the owner from every dependent, then its finalizer.
fn orphan(dependents: &[Dependent]) -> Vec<GcAction> {
    if dependents.is_empty() {
        return vec![GcAction::Finish(ORPHAN)];
    }
    let release = |dependent: &Dependent| {
        GcAction::Release(dependent.id.clone(), dependent.state.uid.clone())
    };
    dependents.iter().map(release).collect()
}

/// Removes the owner's finalizer once no dependent blocks it.
fn wait_for_dependents(item: &Item<'_>, dependents: &[Dependent]) -> Vec<GcAction> {
    let blocking: Vec<&Dependent> =
        dependents.iter().filter(|dependent| dependent.state.blocks(&item.state.uid)).collect();
    if blocking.is_empty() {
        return vec![GcAction::Finish(FOREGROUND)];
    }
    let idle =
        blocking.into_iter().filter(|dependent| dependent.state.stage == DeletionStage::Alive);
    idle.map(|dependent| GcAction::Process(dependent.id.clone())).collect()
}

fn plan_item(item: &Item<'_>, owners: &[OwnerState], dependents: &[Dependent]) -> Vec<GcAction> {
    let references = &item.state.owners;
    if references.is_empty() || owners.len() != references.len() {
        return Vec::new();
    }
    let of = |wanted: OwnerState| {
        let pairs = references.iter().zip(owners).filter(move |(_, owner)| **owner == wanted);
        pairs.map(|(reference, _): (&OwnerReference, _)| reference.uid.clone())
    };
    if owners.iter().any(|owner| matches!(owner, OwnerState::Solid | OwnerState::Unknown)) {
        // A waiting owner would wait for ever for an object that another owner keeps.
        let leaving: Vec<String> = of(OwnerState::Absent).chain(of(OwnerState::Waiting)).collect();
        let leave = !leaving.is_empty();
        return leave.then_some(GcAction::DropOwners(leaving)).into_iter().collect();
    }
    let waited_for = owners.contains(&OwnerState::Waiting);
    if waited_for && !dependents.is_empty() {
        // A waiting dependent may wait for this object's owner: a cycle ends only if one object does not block.
        let circle = dependents.iter().any(|d| d.state.stage == DeletionStage::Foreground);
        let blocks = references.iter().any(|owner| owner.block_owner_deletion == Some(true));
        let unblock = (circle && blocks).then_some(GcAction::Unblock);
        return unblock
            .into_iter()
            .chain([GcAction::Delete(DeletionPropagation::Foreground)])
            .collect();
    }
    let has = |wanted: &str| item.finalizers.iter().any(|finalizer| finalizer == wanted);
    let policy = if has(ORPHAN) {
        DeletionPropagation::Orphan
    } else if has(FOREGROUND) {
        DeletionPropagation::Foreground
    } else {
        DeletionPropagation::Background
    };
    vec![GcAction::Delete(policy)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::Kinds;
    use proto_api::names::{Names, Profile};

    fn id(name: &str) -> Id {
        let kinds = Kinds::new(Names::new(Profile::Kubernetes));
        let kind = kinds.find("v1", "Pod").unwrap();
        Id { kind, key: ObjectKey::new("ns", name) }
    }

    fn slim(uid: &str, owners: &[&str], stage: DeletionStage) -> Ownership {
        let reference = |uid: &&str| OwnerReference {
            uid: (*uid).to_owned(),
            block_owner_deletion: Some(true),
            ..OwnerReference::default()
        };
        Ownership { uid: uid.into(), owners: owners.iter().map(reference).collect(), stage }
    }

    fn acts(
        state: &Ownership,
        finalizers: &[&str],
        owners: &[OwnerState],
        of: &[Ownership],
    ) -> Vec<GcAction> {
        let finalizers: Vec<String> = finalizers.iter().map(|f| (*f).to_owned()).collect();
        let dependents: Vec<Dependent> = of
            .iter()
            .map(|state| Dependent { id: id(&state.uid), state: Arc::new(state.clone()) })
            .collect();
        plan(&Item { state, finalizers: &finalizers }, owners, &dependents)
    }

    /// A Node owns its CSINode and, from outside of the namespace, its Lease; both have no other owner.
    #[test]
    fn the_lease_and_the_csi_node_of_a_removed_node_go() {
        let kinds = Kinds::new(Names::new(Profile::Kubernetes));
        let node = ObjectKey::new("", "n1");
        assert!(kinds.find("v1", "Node").is_some());
        for (api_version, kind, namespace) in [
            ("coordination.k8s.io/v1", "Lease", "kube-node-lease"),
            ("storage.k8s.io/v1", "CSINode", ""),
        ] {
            assert!(kinds.find(api_version, kind).is_some(), "{kind}");
            assert!(may_own(&node, &ObjectKey::new(namespace, "n1")), "{kind}");
        }
        let owned = slim("x", &["node"], DeletionStage::Alive);
        assert_eq!(acts(&owned, &[], &[OwnerState::Solid], &[]), vec![]);
        let gone = vec![GcAction::Delete(DeletionPropagation::Background)];
        assert_eq!(acts(&owned, &[], &[OwnerState::Absent], &[]), gone);
        assert_eq!(acts(&owned, &[], &[OwnerState::Waiting], &[]), gone, "in the foreground");
    }

    #[test]
    fn an_object_goes_when_no_owner_keeps_it() {
        use OwnerState::{Absent, Solid, Unknown, Waiting};
        let delete = |policy| vec![GcAction::Delete(policy)];
        let drop = |owners: &[&str]| {
            vec![GcAction::DropOwners(owners.iter().map(|o| (*o).to_owned()).collect())]
        };
        let table: [(&[OwnerState], Vec<GcAction>); 11] = [
            (&[], vec![]),
            (&[Solid], vec![]),
            (&[Unknown], vec![]),
            (&[Absent], delete(DeletionPropagation::Background)),
            (&[Waiting], delete(DeletionPropagation::Background)),
            (&[Absent, Waiting], delete(DeletionPropagation::Background)),
            (&[Absent, Absent], delete(DeletionPropagation::Background)),
            (&[Solid, Absent], drop(&["1"])),
            (&[Unknown, Absent], drop(&["1"])),
            (&[Waiting, Solid], drop(&["0"])),
            (&[Absent, Solid, Waiting], drop(&["0", "2"])),
        ];
        for (owners, expected) in table {
            let names = ["0", "1", "2"];
            let state = slim("x", &names[..owners.len()], DeletionStage::Alive);
            assert_eq!(acts(&state, &[], owners, &[]), expected, "{owners:?}");
        }
    }

    #[test]
    fn objects_of_a_namespace_own_nothing_outside_of_it() {
        let table = [
            (("ns", "o"), ("ns", "d"), true),
            (("ns", "o"), ("other", "d"), false),
            (("ns", "o"), ("", "d"), false),
            (("", "o"), ("ns", "d"), true),
            (("", "o"), ("", "d"), true),
        ];
        for (owner, dependent, expected) in table {
            let key = |(namespace, name)| ObjectKey::new(namespace, name);
            let may = may_own(&key(owner), &key(dependent));
            assert_eq!(may, expected, "{owner:?} {dependent:?}");
        }
    }

    #[test]
    fn finalizers_of_the_object_choose_the_policy() {
        let state = slim("x", &["0"], DeletionStage::Alive);
        let of = |finalizers: &[&str]| acts(&state, finalizers, &[OwnerState::Absent], &[]);
        assert_eq!(of(&["a/b", ORPHAN]), [GcAction::Delete(DeletionPropagation::Orphan)]);
        assert_eq!(of(&[FOREGROUND]), [GcAction::Delete(DeletionPropagation::Foreground)]);
        assert_eq!(of(&["a/b"]), [GcAction::Delete(DeletionPropagation::Background)]);
    }

    #[test]
    fn the_foreground_reaches_down_and_breaks_circles() {
        let state = slim("x", &["0"], DeletionStage::Alive);
        let of = |stage| acts(&state, &[], &[OwnerState::Waiting], &[slim("y", &["x"], stage)]);
        assert_eq!(of(DeletionStage::Alive), [GcAction::Delete(DeletionPropagation::Foreground)]);
        assert_eq!(
            of(DeletionStage::Foreground),
            [GcAction::Unblock, GcAction::Delete(DeletionPropagation::Foreground)]
        );
    }

    #[test]
    fn owners_with_deletion_finalizers_are_finished_when_their_dependents_allow() {
        let owner = slim("x", &["0"], DeletionStage::Foreground);
        let mut free = slim("y", &["x"], DeletionStage::Alive);
        let blocking = slim("z", &["x"], DeletionStage::Alive);
        free.owners[0].block_owner_deletion = None;
        let of = |dependents: &[Ownership]| acts(&owner, &[FOREGROUND], &[], dependents);
        assert_eq!(of(&[]), [GcAction::Finish(FOREGROUND)]);
        assert_eq!(of(std::slice::from_ref(&free)), [GcAction::Finish(FOREGROUND)]);
        assert_eq!(of(&[free, blocking.clone()]), [GcAction::Process(id("z"))]);
        assert_eq!(of(&[slim("z", &["x"], DeletionStage::Going)]), [], "it is on its way");
        let owner = slim("x", &[], DeletionStage::Orphaning);
        let of = |dependents: &[Ownership]| acts(&owner, &[ORPHAN], &[], dependents);
        assert_eq!(of(&[blocking]), [GcAction::Release(id("z"), "z".into())]);
        assert_eq!(of(&[]), [GcAction::Finish(ORPHAN)]);
        assert_eq!(acts(&slim("x", &["0"], DeletionStage::Going), &[], &[], &[]), []);
    }
}
