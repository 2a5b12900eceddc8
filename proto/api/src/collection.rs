//! The collection of the objects of one kind, and the paths below it.

use percent_encoding::AsciiSet;

use crate::names::Names;
use crate::object::{Kind, Resource};
use crate::uri;

/// What is encoded in a segment of a path; names of RBAC objects have colons.
const SEGMENT: &AsciiSet = &uri::COMPONENT.remove(b':');
/// What is encoded in several segments.
const SEGMENTS: &AsciiSet = &uri::COMPONENT.remove(b'/');

/// The collection of the objects of one kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Collection {
    /// The full group; empty for core.
    pub group: String,
    /// For example `v1`.
    pub version: String,
    /// For example `pods`.
    pub plural: String,
    /// The namespace; not set for cluster-scoped kinds and for all namespaces.
    pub namespace: Option<String>,
}

impl Collection {
    /// The collection of a typed kind.
    pub fn for_type<T: Resource>(names: &Names, namespace: Option<&str>) -> Self {
        Self {
            group: names.group(<T as Kind>::GROUP),
            version: <T as Kind>::VERSION.to_owned(),
            plural: T::PLURAL.to_owned(),
            namespace: if T::NAMESPACED { namespace.map(str::to_owned) } else { None },
        }
    }

    /// The path of the version of the group, for example `/apis/apps/v1`.
    pub fn version_path(&self) -> String {
        match self.group.as_str() {
            "" => format!("/api/{}", segment(&self.version)),
            group => format!("/apis/{}/{}", segment(group), segment(&self.version)),
        }
    }

    /// The path of the collection.
    pub fn path(&self) -> String {
        let mut path = self.version_path();
        if let Some(namespace) = &self.namespace {
            path.push_str("/namespaces/");
            path.push_str(&segment(namespace));
        }
        path.push('/');
        path.push_str(&segment(&self.plural));
        path
    }

    /// The path of one object, or of one of its subresources.
    pub fn item(&self, name: &str, subresource: Option<&str>) -> String {
        let mut path = format!("{}/{}", self.path(), segment(name));
        if let Some(subresource) = subresource {
            path.push('/');
            // A subresource may be a path, as in `proxy/metrics/resource`.
            path.push_str(&uri::encode(subresource, SEGMENTS));
        }
        path
    }
}

/// One segment of a path. Servers and proxies would remove `.` and `..`, so their dots are encoded.
fn segment(text: &str) -> String {
    if matches!(text, "." | "..") { text.replace('.', "%2E") } else { uri::encode(text, SEGMENT) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coordination::v1::Lease;
    use crate::core::v1::{Node, Pod};
    use crate::names::Profile;

    #[test]
    fn paths_follow_group_namespace_and_naming() {
        let orch = Names::new(Profile::Orch { domain: "orch.io".into() });
        let path = |collection: Collection| collection.path();
        assert_eq!(
            path(Collection::for_type::<Pod>(orch, Some("web"))),
            "/api/v1/namespaces/web/pods"
        );
        assert_eq!(path(Collection::for_type::<Pod>(orch, None)), "/api/v1/pods");
        assert_eq!(path(Collection::for_type::<Node>(orch, Some("ignored"))), "/api/v1/nodes");
        let leases = Collection::for_type::<Lease>(orch, Some("x"));
        assert_eq!(leases.item("a", None), "/apis/coordination.orch.io/v1/namespaces/x/leases/a");
        let foreign = Collection::for_type::<Lease>(Names::new(Profile::Kubernetes), None);
        assert_eq!(foreign.path(), "/apis/coordination.k8s.io/v1/leases");
    }

    #[test]
    fn names_cannot_leave_their_segment() {
        let pods = Collection {
            group: String::new(),
            version: "v1".into(),
            plural: "pods".into(),
            namespace: None,
        };
        assert_eq!(pods.item("a/../b?x", None), "/api/v1/pods/a%2F..%2Fb%3Fx");
        assert_eq!(pods.item("..", Some("log")), "/api/v1/pods/%2E%2E/log");
        assert_eq!(
            pods.item("system:node", Some("proxy/metrics/x")),
            "/api/v1/pods/system:node/proxy/metrics/x"
        );
    }
}
