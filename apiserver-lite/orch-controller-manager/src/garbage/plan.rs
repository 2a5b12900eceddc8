//! What is done with one object, from what the server says of it and its owners, and who depends on it. Pure.

use proto_api::meta::v1::OwnerReference;

use super::index::{FOREGROUND, ORPHAN, Slim, Stage};
use super::kinds::Id;

/// What is known of an owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// It exists, and does not wait for its dependents.
    Solid,
    /// It exists, and waits for its dependents before it goes.
    Waiting,
    /// No object of that kind, name and uid exists.
    Absent,
    /// It is of a kind that is not served, or cannot be the object's owner: nothing can be said.
    Unknown,
}

/// The object that is decided about, as the server has it.
#[derive(Clone, Debug)]
pub struct Item<'a> {
    /// Its uid, owners and stage.
    pub state: &'a Slim,
    /// Its finalizers.
    pub finalizers: &'a [String],
}

/// Something that names the object as an owner.
#[derive(Clone, Debug, PartialEq)]
pub struct Dependent {
    /// Which.
    pub id: Id,
    /// What is known of it.
    pub state: Slim,
}

/// How a deletion treats the dependents of what it deletes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// They are kept.
    Orphan,
    /// They go first.
    Foreground,
    /// They go afterwards.
    Background,
}

impl Policy {
    /// As `propagationPolicy` names it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Orphan => "Orphan",
            Self::Foreground => "Foreground",
            Self::Background => "Background",
        }
    }
}

/// One step.
#[derive(Clone, Debug, PartialEq)]
pub enum Act {
    /// Deletes the object, if it is as it was looked at.
    Delete(Policy),
    /// Takes these owners off the object, by uid.
    DropOwners(Vec<String>),
    /// Lets the object's owners go without waiting for it.
    Unblock,
    /// Takes the owner, which is the object, off one of its dependents.
    Release(Id),
    /// Takes a finalizer off the object: what it stands for is done.
    Finish(&'static str),
    /// Looks at this one: the object waits for it.
    Look(Id),
}

/// What is done with the object, in this order. `owners` are in the order of its references; `dependents` are all there are.
pub fn plan(item: &Item<'_>, owners: &[Owner], dependents: &[Dependent]) -> Vec<Act> {
    match item.state.stage {
        Stage::Going => Vec::new(),
        Stage::Orphaning => orphan(dependents),
        Stage::Foreground => wait_for_dependents(item, dependents),
        Stage::Alive => judge(item, owners, dependents),
    }
}

/// Every dependent loses the owner first; the owner goes when none is left.
fn orphan(dependents: &[Dependent]) -> Vec<Act> {
    if dependents.is_empty() {
        return vec![Act::Finish(ORPHAN)];
    }
    dependents.iter().map(|dependent| Act::Release(dependent.id.clone())).collect()
}

/// The owner goes when no dependent is left that blocks it.
fn wait_for_dependents(item: &Item<'_>, dependents: &[Dependent]) -> Vec<Act> {
    let blocking: Vec<&Dependent> =
        dependents.iter().filter(|dependent| dependent.state.blocks(&item.state.uid)).collect();
    if blocking.is_empty() {
        return vec![Act::Finish(FOREGROUND)];
    }
    let idle = blocking.into_iter().filter(|dependent| dependent.state.stage == Stage::Alive);
    idle.map(|dependent| Act::Look(dependent.id.clone())).collect()
}

fn judge(item: &Item<'_>, owners: &[Owner], dependents: &[Dependent]) -> Vec<Act> {
    let references = &item.state.owners;
    if references.is_empty() || owners.len() != references.len() {
        return Vec::new();
    }
    let of = |wanted: Owner| {
        let pairs = references.iter().zip(owners).filter(move |(_, owner)| **owner == wanted);
        pairs.map(|(reference, _): (&OwnerReference, _)| reference.uid.clone())
    };
    if owners.iter().any(|owner| matches!(owner, Owner::Solid | Owner::Unknown)) {
        // One that waits would wait for ever for what another owner keeps.
        let leaving: Vec<String> = of(Owner::Absent).chain(of(Owner::Waiting)).collect();
        let leave = !leaving.is_empty();
        return leave.then_some(Act::DropOwners(leaving)).into_iter().collect();
    }
    let waited_for = owners.contains(&Owner::Waiting);
    if waited_for && !dependents.is_empty() {
        // A dependent that waits itself may wait for this one's owner: a circle ends only if one does not block.
        let circle = dependents.iter().any(|d| d.state.stage == Stage::Foreground);
        let blocks = references.iter().any(|owner| owner.block_owner_deletion == Some(true));
        let unblock = (circle && blocks).then_some(Act::Unblock);
        return unblock.into_iter().chain([Act::Delete(Policy::Foreground)]).collect();
    }
    let has = |wanted: &str| item.finalizers.iter().any(|finalizer| finalizer == wanted);
    let policy = if has(ORPHAN) {
        Policy::Orphan
    } else if has(FOREGROUND) {
        Policy::Foreground
    } else {
        Policy::Background
    };
    vec![Act::Delete(policy)]
}

#[cfg(test)]
mod tests {
    use proto_client::ObjectKey;

    use super::super::kinds::Kinds;
    use super::*;
    use proto_api::names::{Names, Profile};

    fn id(name: &str) -> Id {
        let kinds = Kinds::new(Names::new(Profile::Kubernetes));
        let kind = kinds.find("v1", "Pod").unwrap();
        Id { kind, key: ObjectKey::new("ns", name) }
    }

    fn slim(uid: &str, owners: &[&str], stage: Stage) -> Slim {
        let reference = |uid: &&str| OwnerReference {
            uid: (*uid).to_owned(),
            block_owner_deletion: Some(true),
            ..OwnerReference::default()
        };
        Slim { uid: uid.into(), owners: owners.iter().map(reference).collect(), stage }
    }

    fn acts(state: &Slim, finalizers: &[&str], owners: &[Owner], of: &[Slim]) -> Vec<Act> {
        let finalizers: Vec<String> = finalizers.iter().map(|f| (*f).to_owned()).collect();
        let dependents: Vec<Dependent> =
            of.iter().map(|state| Dependent { id: id(&state.uid), state: state.clone() }).collect();
        plan(&Item { state, finalizers: &finalizers }, owners, &dependents)
    }

    #[test]
    fn an_object_goes_when_no_owner_keeps_it() {
        use Owner::{Absent, Solid, Unknown, Waiting};
        let delete = |policy| vec![Act::Delete(policy)];
        let drop = |owners: &[&str]| {
            vec![Act::DropOwners(owners.iter().map(|o| (*o).to_owned()).collect())]
        };
        let table: [(&[Owner], Vec<Act>); 11] = [
            (&[], vec![]),
            (&[Solid], vec![]),
            (&[Unknown], vec![]),
            (&[Absent], delete(Policy::Background)),
            (&[Waiting], delete(Policy::Background)),
            (&[Absent, Waiting], delete(Policy::Background)),
            (&[Absent, Absent], delete(Policy::Background)),
            (&[Solid, Absent], drop(&["1"])),
            (&[Unknown, Absent], drop(&["1"])),
            (&[Waiting, Solid], drop(&["0"])),
            (&[Absent, Solid, Waiting], drop(&["0", "2"])),
        ];
        for (owners, expected) in table {
            let names = ["0", "1", "2"];
            let state = slim("x", &names[..owners.len()], Stage::Alive);
            assert_eq!(acts(&state, &[], owners, &[]), expected, "{owners:?}");
        }
    }

    #[test]
    fn finalizers_of_the_object_choose_the_policy() {
        let state = slim("x", &["0"], Stage::Alive);
        let of = |finalizers: &[&str]| acts(&state, finalizers, &[Owner::Absent], &[]);
        assert_eq!(of(&["a/b", ORPHAN]), [Act::Delete(Policy::Orphan)]);
        assert_eq!(of(&[FOREGROUND]), [Act::Delete(Policy::Foreground)]);
        assert_eq!(of(&["a/b"]), [Act::Delete(Policy::Background)]);
    }

    #[test]
    fn the_foreground_reaches_down_and_breaks_circles() {
        let state = slim("x", &["0"], Stage::Alive);
        let of = |stage| acts(&state, &[], &[Owner::Waiting], &[slim("y", &["x"], stage)]);
        assert_eq!(of(Stage::Alive), [Act::Delete(Policy::Foreground)]);
        assert_eq!(of(Stage::Foreground), [Act::Unblock, Act::Delete(Policy::Foreground)]);
    }

    #[test]
    fn what_waits_goes_when_it_is_time() {
        let owner = slim("x", &["0"], Stage::Foreground);
        let mut free = slim("y", &["x"], Stage::Alive);
        let blocking = slim("z", &["x"], Stage::Alive);
        free.owners[0].block_owner_deletion = None;
        let of = |dependents: &[Slim]| acts(&owner, &[FOREGROUND], &[], dependents);
        assert_eq!(of(&[]), [Act::Finish(FOREGROUND)]);
        assert_eq!(of(std::slice::from_ref(&free)), [Act::Finish(FOREGROUND)]);
        assert_eq!(of(&[free, blocking.clone()]), [Act::Look(id("z"))]);
        assert_eq!(of(&[slim("z", &["x"], Stage::Going)]), [], "it is on its way");
        let owner = slim("x", &[], Stage::Orphaning);
        let of = |dependents: &[Slim]| acts(&owner, &[ORPHAN], &[], dependents);
        assert_eq!(of(&[blocking]), [Act::Release(id("z"))]);
        assert_eq!(of(&[]), [Act::Finish(ORPHAN)]);
        assert_eq!(acts(&slim("x", &["0"], Stage::Going), &[], &[], &[]), []);
    }
}
