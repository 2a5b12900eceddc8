//! The authorization module `Node`: a kubelet may do what the role `system:node` allows, and of Secrets, ConfigMaps, claims, volumes and
//! service accounts only what the pods of its node use. The rules and the messages are those of Kubernetes' module.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use apiserver_rbac::{BootstrapPolicyError, Rule, node_rules};
use apiserver_schema::{Engine, Kind, Object};
use apiserver_store::Store;
use proto_api::names::Names;

use super::pod_references::{ReferencedKind, claim_names, refers_to, volume_refers_to};
use super::rbac::access;
use super::store_index::{IndexError, ObjectIndex, StoreIndex};
use crate::key;
use crate::record::StoredObject;
use apiserver_auth::NODE_USER_PREFIX;
use apiserver_auth::User;
use apiserver_auth::{AccessTarget, Attributes, Authorization, Authorizer, Decision, UserRules};

/// Group of kubelets.
const NODES: &str = "system:nodes";

/// The authorization mode Node: what a kubelet may read and write.
pub struct NodeAuthorizer {
    names: &'static Names,
    rules: Vec<Rule>,
    mirror_annotation: String,
    pods: StoreIndex<PodsByNode>,
    store: Store<StoredObject>,
    kinds: Kinds,
}

/// The kinds that are looked up.
struct Kinds {
    pod: Arc<Kind>,
    claim: Arc<Kind>,
    volume: Arc<Kind>,
    attachment: Arc<Kind>,
}

/// The module cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum NodeAuthorizerError {
    /// The pods cannot be followed.
    #[error(transparent)]
    Index(#[from] IndexError),
    /// The rules of kubelets cannot be read.
    #[error(transparent)]
    Rules(#[from] BootstrapPolicyError),
    /// The compiled-in schema lacks a kind.
    #[error("resource {0} is not served")]
    Kind(&'static str),
}

/// The pods of each node, by namespace and name. Mirrors of static pods are not among them: their specification is the node's own.
struct PodsByNode {
    mirror_annotation: String,
    pods: HashMap<String, BTreeSet<(String, String)>>,
}

impl ObjectIndex for PodsByNode {
    const PREFIX: &'static str = "/core/pods/";

    fn emptied(&self) -> Self {
        Self { mirror_annotation: self.mirror_annotation.clone(), pods: HashMap::new() }
    }

    fn set(&mut self, pod: &Object) {
        let node = pod.str_at(&["spec", "nodeName"]);
        if node.is_empty() || is_mirror(pod, &self.mirror_annotation) {
            self.remove(pod);
            return;
        }
        // A pod stays on its node, but another one may have had its name.
        let pods = self.pods.entry(node.to_owned()).or_default();
        pods.insert((pod.namespace().to_owned(), pod.name().to_owned()));
    }

    fn remove(&mut self, pod: &Object) {
        let node = pod.str_at(&["spec", "nodeName"]);
        if let Some(pods) = self.pods.get_mut(node) {
            pods.remove(&(pod.namespace().to_owned(), pod.name().to_owned()));
            if pods.is_empty() {
                self.pods.remove(node);
            }
        }
    }
}

impl NodeAuthorizer {
    /// A module over the pods in the store.
    ///
    /// # Errors
    /// The store cannot be watched, or the build lacks a kind or the rules.
    pub fn new(
        store: &Store<StoredObject>,
        engine: &Engine,
        names: &'static Names,
    ) -> Result<Self, NodeAuthorizerError> {
        let kind = |group: &str, resource: &'static str| {
            let found = engine.resource(&names.group(group), "v1", resource).cloned();
            found.ok_or(NodeAuthorizerError::Kind(resource))
        };
        let mirror_annotation = names.label("config.mirror");
        let empty =
            PodsByNode { mirror_annotation: mirror_annotation.clone(), pods: HashMap::new() };
        Ok(Self {
            names,
            rules: node_rules(names)?,
            mirror_annotation,
            pods: StoreIndex::follow(store, empty)?,
            store: store.clone(),
            kinds: Kinds {
                pod: kind("", "pods")?,
                claim: kind("", "persistentvolumeclaims")?,
                volume: kind("", "persistentvolumes")?,
                attachment: kind("storage", "volumeattachments")?,
            },
        })
    }

    fn find(&self, kind: &Kind, namespace: &str, name: &str) -> Option<Arc<StoredObject>> {
        self.store.current(&key::object(kind, namespace, name)).map(|entry| entry.record)
    }

    /// Whether a pod of the node meets a condition; one of all namespaces without `namespace`.
    fn has_pod(
        &self,
        node: &str,
        namespace: Option<&str>,
        meets: impl Fn(&Object) -> bool,
    ) -> bool {
        let keys: Vec<(String, String)> = self.pods.read(|index| {
            let all = index.pods.get(node).into_iter().flatten();
            all.filter(|(own, _)| namespace.is_none_or(|wanted| own == wanted)).cloned().collect()
        });
        keys.iter().any(|(namespace, name)| {
            let pod = self.find(&self.kinds.pod, namespace, name);
            pod.is_some_and(|pod| {
                // The pod may be another one of the name by now.
                let pod = pod.object();
                pod.str_at(&["spec", "nodeName"]) == node
                    && !is_mirror(pod, &self.mirror_annotation)
                    && meets(pod)
            })
        })
    }

    /// Whether a pod of the node uses a claim.
    fn uses_claim(&self, node: &str, namespace: &str, name: &str) -> bool {
        self.has_pod(node, Some(namespace), |pod| {
            claim_names(pod).iter().any(|claim| claim == name)
        })
    }

    /// Whether a pod of the node uses the claim that a volume is bound to. The volume's word counts: a claim may name any volume.
    fn uses_volume(&self, node: &str, name: &str) -> bool {
        let Some(volume) = self.find(&self.kinds.volume, "", name) else { return false };
        let claim = |field: &str| volume.object().str_at(&["spec", "claimRef", field]);
        let (namespace, name) = (claim("namespace"), claim("name"));
        !namespace.is_empty() && self.uses_claim(node, namespace, name)
    }

    /// Whether a volume that a pod of the node uses refers to a Secret, which may lie in any namespace.
    fn uses_by_volume(&self, node: &str, secret: (&str, &str)) -> bool {
        self.has_pod(node, None, |pod| {
            claim_names(pod).iter().any(|name| {
                let claim = self.find(&self.kinds.claim, pod.namespace(), name);
                let Some(claim) = claim else { return false };
                let volume = claim.object().str_at(&["spec", "volumeName"]);
                let Some(volume) = self.find(&self.kinds.volume, "", volume) else { return false };
                is_bound_to(volume.object(), claim.object())
                    && volume_refers_to(volume.object(), pod.namespace(), secret)
            })
        })
    }

    /// Whether a pod of the node uses an object of its namespace, or a volume of it does.
    fn uses(&self, node: &str, kind: ReferencedKind, namespace: &str, name: &str) -> bool {
        self.has_pod(node, Some(namespace), |pod| refers_to(pod, kind, name))
            || (kind == ReferencedKind::Secret && self.uses_by_volume(node, (namespace, name)))
    }

    fn decide(&self, node: &str, attributes: &Attributes<'_>) -> Result<(), NotAllowed> {
        let AccessTarget::Resource { group, resource, subresource, namespace, name, .. } =
            attributes.subject
        else {
            return self.by_rules(attributes);
        };
        let verb = attributes.verb;
        let reads = matches!(verb, "get" | "list" | "watch");
        let unrelated = || format!("no relationship found between node '{node}' and this object");
        let related = |holds: bool| if holds { Ok(()) } else { Err(NotAllowed(unrelated())) };
        match (self.names.short_group(group), resource) {
            (Some(""), "secrets" | "configmaps") => {
                require(reads, "can only read resources of this type")?;
                require(subresource.is_empty(), "cannot read subresource")?;
                require(!namespace.is_empty(), "can only read namespaced object of this type")?;
                require(!name.is_empty(), "No Object name found")?;
                let secret = resource == "secrets";
                let kind = if secret { ReferencedKind::Secret } else { ReferencedKind::ConfigMap };
                related(self.uses(node, kind, namespace, name))
            }
            (Some(""), "persistentvolumeclaims") => {
                if subresource == "status" {
                    require(
                        matches!(verb, "update" | "patch"),
                        "can only get/update/patch this type",
                    )?;
                } else {
                    require(verb == "get", "can only get individual resources of this type")?;
                    require(subresource.is_empty(), "cannot get subresource")?;
                }
                require(!name.is_empty(), "No Object name found")?;
                related(self.uses_claim(node, namespace, name))
            }
            (Some(""), "persistentvolumes") => {
                require(verb == "get", "can only get individual resources of this type")?;
                require(subresource.is_empty(), "cannot get subresource")?;
                require(!name.is_empty(), "No Object name found")?;
                related(self.uses_volume(node, name))
            }
            (Some("storage"), "volumeattachments") => {
                require(verb == "get", "can only get individual resources of this type")?;
                require(subresource.is_empty(), "cannot get subresource")?;
                require(!name.is_empty(), "No Object name found")?;
                let found = self.find(&self.kinds.attachment, "", name);
                related(found.is_some_and(|attachment| {
                    attachment.object().str_at(&["spec", "nodeName"]) == node
                }))
            }
            (Some(""), "serviceaccounts") => {
                let individual = "can only create tokens for individual service accounts";
                require(verb == "create" && !name.is_empty(), individual)?;
                let token = "can only create token subresource of serviceaccount";
                require(subresource == "token", token)?;
                related(self.uses(node, ReferencedKind::ServiceAccount, namespace, name))
            }
            (Some("coordination"), "leases") => {
                decide_lease(self.names.node_lease_namespace(), node, (verb, namespace, name))
            }
            (Some("storage"), "csinodes") => decide_csi_node(node, verb, subresource, name),
            _ => self.by_rules(attributes),
        }
    }

    fn by_rules(&self, attributes: &Attributes<'_>) -> Result<(), NotAllowed> {
        let access = access(attributes);
        match self.rules.iter().any(|rule| rule.allows(&access)) {
            true => Ok(()),
            false => Err(NotAllowed(String::new())),
        }
    }
}

/// Nothing allows the request; other authorizers are asked. The reason is part of their refusal, and empty if there is none.
struct NotAllowed(String);

fn is_mirror(pod: &Object, annotation: &str) -> bool {
    let annotations = pod.metadata().and_then(|metadata| metadata.map("annotations"));
    annotations.is_some_and(|all| all.contains(annotation))
}

fn is_bound_to(volume: &Object, claim: &Object) -> bool {
    let reference = |field: &str| volume.str_at(&["spec", "claimRef", field]);
    (reference("namespace"), reference("name")) == (claim.namespace(), claim.name())
}

fn require(holds: bool, reason: &str) -> Result<(), NotAllowed> {
    if holds { Ok(()) } else { Err(NotAllowed(reason.to_owned())) }
}

fn decide_lease(
    leases: &str,
    node: &str,
    (verb, namespace, name): (&str, &str, &str),
) -> Result<(), NotAllowed> {
    let verbs = "can only get, create, update, patch, or delete a node lease";
    require(is_verb_on_one_object(verb), verbs)?;
    let elsewhere = format!("can only access leases in the {leases:?} system namespace");
    require(namespace == leases, &elsewhere)?;
    let other = "can only access node lease with the same name as the requesting node";
    require(verb == "create" || name == node, other)
}

fn decide_csi_node(
    node: &str,
    verb: &str,
    subresource: &str,
    name: &str,
) -> Result<(), NotAllowed> {
    let verbs = "can only get, create, update, patch, or delete a CSINode";
    require(is_verb_on_one_object(verb), verbs)?;
    require(subresource.is_empty(), "cannot authorize CSINode subresources")?;
    let other = "can only access CSINode with the same name as the requesting node";
    require(verb == "create" || name == node, other)
}

fn is_verb_on_one_object(verb: &str) -> bool {
    matches!(verb, "get" | "create" | "update" | "patch" | "delete")
}

/// The node of a kubelet's user: one of the group of kubelets, by name. The name may be empty.
fn node_of(user: &User) -> Option<&str> {
    user.name.strip_prefix(NODE_USER_PREFIX).filter(|_| user.is_in(NODES))
}

impl Authorizer for NodeAuthorizer {
    fn authorize(&self, attributes: &Attributes<'_>) -> Authorization {
        let none = |reason| Authorization::new(Decision::NoOpinion, reason);
        let node = match node_of(attributes.user) {
            None => return none(String::new()),
            Some("") => return none(format!("unknown node for user {:?}", attributes.user.name)),
            Some(node) => node,
        };
        match self.decide(node, attributes) {
            Ok(()) => Authorization::new(Decision::Allow, ""),
            Err(NotAllowed(reason)) => none(reason),
        }
    }

    /// What a node may do follows from its pods: its rules are not listed.
    fn rules(&self, _: &User, _: &str) -> UserRules {
        UserRules {
            rules: Vec::new(),
            incomplete: true,
            error: "node authorizer does not support user rule resolution".to_owned(),
        }
    }
}
