//! Rules of webhooks, and what they look at.

use apiserver_schema::{Map, Value};

/// `operation` of an AdmissionReview.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WebhookOperation {
    /// An object is created.
    Create,
    /// An object is replaced or patched.
    Update,
    /// An object is deleted.
    Delete,
    /// A connection is made through an object.
    Connect,
}

impl WebhookOperation {
    /// As in rules and reviews.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Create => "CREATE",
            Self::Update => "UPDATE",
            Self::Delete => "DELETE",
            Self::Connect => "CONNECT",
        }
    }
}

/// A resource in one version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResourceRef<'a> {
    /// API group, domain included; empty for the core group.
    pub group: &'a str,
    pub version: &'a str,
    /// Plural name.
    pub resource: &'a str,
}

/// What a webhook's rules look at.
#[derive(Clone, Copy, Debug)]
pub struct AdmissionAttributes<'a> {
    /// What the request does.
    pub operation: WebhookOperation,
    /// The requested resource.
    pub resource: ResourceRef<'a>,
    /// The subresource; empty for none.
    pub subresource: &'a str,
    /// The namespace of the request; of a Namespace its own name.
    pub namespace: &'a str,
    /// The same resource in its other versions and groups.
    pub equivalents: &'a [ResourceRef<'a>],
}

/// The version of the resource that a rule matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MatchedVersion {
    Requested,
    /// That of the equivalent at this index.
    Equivalent(usize),
}

/// Operations and resources for which a webhook is called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebhookRule {
    operations: Vec<String>,
    groups: Vec<String>,
    versions: Vec<String>,
    resources: Vec<String>,
    scope: RuleScope,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RuleScope {
    All,
    Namespaced,
    Cluster,
    Unknown,
}

impl AdmissionAttributes<'_> {
    /// Whether the request is about a Namespace.
    pub(crate) fn is_namespace(&self) -> bool {
        let ResourceRef { group, version, resource } = self.resource;
        (group, version, resource) == ("", "v1", "namespaces")
    }
}

impl WebhookRule {
    /// Reads a rule of a validated configuration.
    #[must_use]
    pub fn read(fields: &Map) -> Self {
        let texts = |field: &str| {
            let list = fields.list(field).iter().filter_map(Value::as_str);
            list.map(str::to_owned).collect()
        };
        Self {
            operations: texts("operations"),
            groups: texts("apiGroups"),
            versions: texts("apiVersions"),
            resources: texts("resources"),
            scope: match fields.str("scope") {
                "" | "*" => RuleScope::All,
                "Namespaced" => RuleScope::Namespaced,
                "Cluster" => RuleScope::Cluster,
                _ => RuleScope::Unknown,
            },
        }
    }

    /// Whether the rule matches the request, as one for this version of its resource.
    pub(crate) fn matches(
        &self,
        attributes: &AdmissionAttributes<'_>,
        resource: ResourceRef<'_>,
    ) -> bool {
        let any =
            |list: &[String], wanted: &str| list.iter().any(|one| one == "*" || one == wanted);
        self.matches_scope(attributes)
            && any(&self.operations, attributes.operation.name())
            && any(&self.groups, resource.group)
            && any(&self.versions, resource.version)
            && self.matches_resource(resource.resource, attributes.subresource)
    }

    /// A Namespace is cluster-scoped, although a request for one has a namespace.
    fn matches_scope(&self, attributes: &AdmissionAttributes<'_>) -> bool {
        let namespaced = !attributes.namespace.is_empty() && !attributes.is_namespace();
        match self.scope {
            RuleScope::All => true,
            RuleScope::Namespaced => namespaced,
            RuleScope::Cluster => !namespaced,
            RuleScope::Unknown => false,
        }
    }

    /// `pods` is the resource alone, `pods/*` also its subresources, `*/scale` this subresource of all, `*` all resources without subresources, `*/*`
    /// everything.
    fn matches_resource(&self, resource: &str, subresource: &str) -> bool {
        self.resources.iter().any(|rule| {
            let (of, sub) = rule.split_once('/').unwrap_or((rule, ""));
            (of == "*" || of == resource) && (sub == "*" || sub == subresource)
        })
    }
}
