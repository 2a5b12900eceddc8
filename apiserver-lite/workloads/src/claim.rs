//! Ownership: the objects that a controller controls, the orphans that it adopts and the objects that it releases.

use apiserver_controllers::api_writes::{ApiWrite, ObjectKind};
use apiserver_controllers::owners::{adopt, controlled_by, release};
use apiserver_controllers::{Adopter, Plan};
use proto_api::Resource;
use proto_api::meta::v1::{LabelSelector, ObjectMeta, OwnerReference};
use proto_api::names::Names;
use proto_api::selectors::Selector;
use serde_json::json;

/// An object that controls others.
pub(crate) struct Claimant<'a, T: Resource> {
    owner: &'a T,
    kind: ObjectKind,
    selector: Selector,
    names: &'a Names,
    finalizer: Option<String>,
}

impl<'a, T: Resource> Claimant<'a, T> {
    /// The claimant; none if its selector is missing, invalid, or selects everything, which validation rejects, but stored objects may have it.
    pub(crate) fn new(
        names: &'a Names,
        kind: ObjectKind,
        owner: &'a T,
        selector: Option<&LabelSelector>,
    ) -> Option<Self> {
        let selector = Selector::from_label_selector(selector?, "spec.selector").ok()?;
        (!selector.is_everything()).then_some(Self {
            owner,
            kind,
            selector,
            names,
            finalizer: None,
        })
    }

    /// Gives what is adopted a finalizer, and takes it from what is released.
    pub(crate) fn tracking(self, finalizer: String) -> Self {
        Self { finalizer: Some(finalizer), ..self }
    }

    /// The objects that the owner controls and selects, and the orphans that it selects and adopts. Plans the writes of ownership.
    pub(crate) fn claim<'o, O: Resource>(
        &self,
        kind: ObjectKind,
        objects: impl IntoIterator<Item = &'o O>,
        is_member: impl Fn(&O) -> bool,
        plan: &mut Plan,
    ) -> Vec<&'o O> {
        let owner = self.owner.metadata();
        let is_deleting = owner.deletion_timestamp.is_some();
        let mut claimed = Vec::new();
        for object in objects {
            let metadata = object.metadata();
            let selects = self.selector.matches(&metadata.labels) && is_member(object);
            match metadata.owner_references.iter().find(|o| o.controller == Some(true)) {
                Some(controller) if controller.uid != owner.uid => {}
                Some(_) if selects => claimed.push(object),
                Some(_) if is_deleting => {}
                Some(_) => {
                    let write = release(kind, metadata, &owner.uid);
                    plan.writes.push(self.set_finalizer(write, metadata, false));
                }
                None if is_deleting || !selects || metadata.deletion_timestamp.is_some() => {}
                None => {
                    let write = adopt(kind, metadata, self.reference());
                    plan.writes.push(self.set_finalizer(write, metadata, true));
                    plan.adopter = Some(Adopter::new(self.kind, owner));
                    claimed.push(object);
                }
            }
        }
        claimed
    }

    /// Adds the finalizer to the patch of an adoption, or its removal to that of a release.
    fn set_finalizer(&self, mut write: ApiWrite, metadata: &ObjectMeta, adopts: bool) -> ApiWrite {
        if let (Some(finalizer), ApiWrite::Patch { patch, .. }) = (&self.finalizer, &mut write) {
            let others = metadata.finalizers.iter().filter(|other| *other != finalizer);
            let own = adopts.then_some(finalizer);
            let finalizers: Vec<&String> = others.chain(own).collect();
            patch["metadata"]["finalizers"] = json!(finalizers);
        }
        write
    }

    /// The reference from what the owner controls.
    pub(crate) fn reference(&self) -> OwnerReference {
        let api_version = self.names.api_version(T::GROUP, T::VERSION);
        controlled_by(api_version, T::KIND, self.owner.metadata())
    }
}
