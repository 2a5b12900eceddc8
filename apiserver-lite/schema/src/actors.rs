//! Which component acts on the objects of each served kind. Writers of kinds without one get a warning.

use Actor::{Clients, Controllers, Node, NotImplemented, Proxy, Scheduler, Server};

use crate::object::Kind;

/// The component that acts on objects of a kind; the first one if there are several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Actor {
    /// The API server: by admission, allocation, review or expiry.
    Server,
    /// orch-controller-manager.
    Controllers,
    /// orch-scheduler.
    Scheduler,
    /// orchlet.
    Node,
    /// orch-proxy.
    Proxy,
    /// None, in Kubernetes too: the kind stores data of clients.
    Clients,
    /// None here, although Kubernetes has one.
    NotImplemented,
}

/// Every served kind: group without its domain, kind, component. Sorted.
pub const ACTORS: &[(&str, &str, Actor)] = &[
    ("", "Binding", Server),
    ("", "ComponentStatus", Server),
    ("", "ConfigMap", Node),
    ("", "Endpoints", Controllers),
    ("", "Event", Server),
    ("", "LimitRange", Server),
    ("", "Namespace", Controllers),
    ("", "Node", Scheduler),
    ("", "PersistentVolume", Controllers),
    ("", "PersistentVolumeClaim", Controllers),
    ("", "Pod", Node),
    ("", "PodTemplate", Clients),
    ("", "ReplicationController", Controllers),
    ("", "ResourceQuota", Server),
    ("", "Secret", Node),
    ("", "Service", Proxy),
    ("", "ServiceAccount", Server),
    ("admissionregistration", "MutatingWebhookConfiguration", Server),
    ("admissionregistration", "ValidatingWebhookConfiguration", Server),
    ("apiextensions", "CustomResourceDefinition", Server),
    ("apiregistration", "APIService", Server),
    ("apps", "ControllerRevision", Controllers),
    ("apps", "DaemonSet", Controllers),
    ("apps", "Deployment", Controllers),
    ("apps", "ReplicaSet", Controllers),
    ("apps", "StatefulSet", Controllers),
    ("authentication", "TokenReview", Server),
    ("authorization", "LocalSubjectAccessReview", Server),
    ("authorization", "SelfSubjectAccessReview", Server),
    ("authorization", "SelfSubjectRulesReview", Server),
    ("authorization", "SubjectAccessReview", Server),
    ("autoscaling", "HorizontalPodAutoscaler", Controllers),
    ("batch", "CronJob", Controllers),
    ("batch", "Job", Controllers),
    ("certificates", "CertificateSigningRequest", Controllers),
    ("coordination", "Lease", Clients),
    ("discovery", "EndpointSlice", Proxy),
    ("events", "Event", Server),
    ("flowcontrol.apiserver", "FlowSchema", Server),
    ("flowcontrol.apiserver", "PriorityLevelConfiguration", Server),
    ("metrics", "NodeMetrics", Server),
    ("metrics", "PodMetrics", Server),
    ("networking", "Ingress", NotImplemented),
    ("networking", "IngressClass", NotImplemented),
    ("networking", "NetworkPolicy", NotImplemented),
    ("node", "RuntimeClass", Node),
    ("policy", "PodDisruptionBudget", Controllers),
    ("rbac.authorization", "ClusterRole", Server),
    ("rbac.authorization", "ClusterRoleBinding", Server),
    ("rbac.authorization", "Role", Server),
    ("rbac.authorization", "RoleBinding", Server),
    ("scheduling", "PriorityClass", Server),
    ("storage", "CSIDriver", Controllers),
    ("storage", "CSINode", Scheduler),
    ("storage", "CSIStorageCapacity", Scheduler),
    ("storage", "StorageClass", Controllers),
    ("storage", "VolumeAttachment", Controllers),
];

/// The component that acts on objects of `kind`; `None` for a kind without a resource.
pub fn actor(kind: &Kind) -> Option<Actor> {
    kind.resource?;
    let at = ACTORS.binary_search_by_key(&(kind.short_group, kind.kind()), |row| (row.0, row.1));
    at.ok().and_then(|at| ACTORS.get(at)).map(|row| row.2)
}

/// The warning for writers of a kind that is stored but that no component here acts on.
pub fn stored_only_warning(kind: &Kind) -> Option<String> {
    let inert = actor(kind) == Some(NotImplemented);
    inert.then(|| {
        format!(
            "{} {} is only stored: no program of this release acts on it",
            kind.api_version,
            kind.kind()
        )
    })
}

#[cfg(test)]
mod tests {
    use proto_api::names::{Names, Profile};

    use super::*;
    use crate::Engine;

    #[test]
    fn every_served_kind_has_one_row_and_every_row_a_kind() {
        assert!(ACTORS.is_sorted_by(|a, b| (a.0, a.1) < (b.0, b.1)));
        let engine = Engine::new(Names::new(Profile::Kubernetes));
        let served = |kind: &&std::sync::Arc<Kind>| kind.resource.is_some();
        for kind in engine.kinds().iter().filter(served) {
            assert!(actor(kind).is_some(), "nobody says who acts on {}", kind.qualified());
        }
        for (group, name, _) in ACTORS {
            let mut kinds = engine.kinds().iter().filter(served);
            assert!(kinds.any(|kind| kind.is(group, name)), "{group} {name} is not served");
        }
    }

    #[test]
    fn only_stored_only_kinds_have_a_warning() {
        let engine = Engine::new(Names::new(Profile::Kubernetes));
        let of = |version: &str, kind: &str| {
            stored_only_warning(engine.kind_of(version, kind).expect(kind))
        };
        let policy = of("networking.k8s.io/v1", "NetworkPolicy").expect("a notice");
        assert_eq!(
            policy,
            "networking.k8s.io/v1 NetworkPolicy is only stored: no program of this release acts on it"
        );
        assert!(of("autoscaling/v1", "HorizontalPodAutoscaler").is_none());
        assert!(of("autoscaling/v1", "Scale").is_none(), "of a Deployment");
        assert!(of("v1", "Pod").is_none() && of("apps/v1", "Deployment").is_none());
        assert!(of("v1", "PodTemplate").is_none(), "Kubernetes does nothing either");
    }
}
