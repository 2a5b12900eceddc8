//! References to owners of another namespace. They own nothing, and the object is deleted as if they did not exist; a cluster-scoped object stays. An event
//! says why, as in Kubernetes.

use proto_api::ObjectKey;
use proto_api::core::v1::ObjectReference;
use proto_api::event_report::{EventKind, EventReport};
use proto_api::meta::v1::OwnerReference;

use super::owners::READS_MAX;
use super::{OwnershipCaches, Processor, lock};
use crate::index::Ownership;
use crate::kinds::{CollectedKind, Id, KindId};
use crate::plan::OwnerState;

/// Most namespaces that one reference is looked for in: references are cheap to write. In larger clusters an event may be missing.
const NAMESPACES_MAX: usize = 1000;

impl<S, M: OwnershipCaches> Processor<S, M> {
    /// Whether another namespace than the dependent's has the owner that a reference names, as the caches show it.
    pub(super) fn is_elsewhere(&self, id: &Id, owner: KindId, reference: &OwnerReference) -> bool {
        let is_namespaced = self.kinds.get(owner).is_some_and(|kind| kind.namespaced);
        let Some(namespaces) = self.kinds.find("v1", "Namespace").filter(|_| is_namespaced) else {
            return false;
        };
        let others = self.caches.names(namespaces).into_iter().take(NAMESPACES_MAX);
        others.filter(|namespace| *namespace != id.key.namespace).any(|namespace| {
            let key = ObjectKey::new(namespace, &reference.name);
            let found = self.caches.get(&Id { kind: owner, key });
            found.is_some_and(|found| *found.uid == *reference.uid)
        })
    }

    /// The event of the first reference of an object to an owner of another namespace. `owners` are in the order of the references.
    pub(super) fn report_invalid_owner(
        &self,
        id: &Id,
        state: &Ownership,
        owners: &[OwnerState],
    ) -> Option<EventReport> {
        // Each of them is looked for in all namespaces.
        let mut looks_left = READS_MAX;
        let mut is_invalid = |(reference, state): &(&OwnerReference, &OwnerState)| match state {
            OwnerState::Absent => {
                let owner = self.locate(id, reference);
                owner.is_some_and(|owner| lock(&self.absent).is_elsewhere(&reference.uid, &owner))
            }
            // A cluster-scoped object and a kind of namespaces.
            OwnerState::Unknown if id.key.namespace.is_empty() && looks_left > 0 => {
                looks_left = looks_left.saturating_sub(1);
                let kind = self.kinds.find(&reference.api_version, &reference.kind);
                kind.is_some_and(|kind| self.is_elsewhere(id, kind, reference))
            }
            OwnerState::Unknown | OwnerState::Solid | OwnerState::Waiting => false,
        };
        let (reference, _) = state.owners.iter().zip(owners).find(|pair| is_invalid(pair))?;
        Some(report(&*self.kinds.get(id.kind)?, id, &state.uid, reference))
    }
}

fn report(kind: &CollectedKind, id: &Id, uid: &str, owner: &OwnerReference) -> EventReport {
    let ObjectKey { namespace, name } = &id.key;
    let api_version = match kind.group.is_empty() {
        true => kind.version.clone().into_owned(),
        false => format!("{}/{}", kind.group, kind.version),
    };
    let about = ObjectReference {
        api_version,
        kind: kind.kind.clone().into_owned(),
        namespace: namespace.clone(),
        name: name.clone(),
        uid: uid.to_owned(),
        ..ObjectReference::default()
    };
    let named = format!(
        "[{}/{}, namespace: {namespace}, name: {}, uid: {}]",
        owner.api_version, owner.kind, owner.name, owner.uid
    );
    EventReport {
        about,
        kind: EventKind::Warning,
        reason: "OwnerRefInvalidNamespace".into(),
        message: format!("ownerRef {named} does not exist in namespace {namespace:?}"),
    }
}
