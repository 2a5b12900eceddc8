//! One flow schema: which requests match it, and what distinguishes their flows.

use std::hash::{DefaultHasher, Hasher as _};

const ALL: &str = "*";
const SERVICE_ACCOUNT: &str = "system:serviceaccount:";

/// A request, as flow schemas see it.
#[derive(Clone, Copy, Debug)]
pub struct RequestDigest<'a> {
    /// Name of the user.
    pub user: &'a str,
    /// The user's groups.
    pub groups: &'a [String],
    /// API verb, or the method in lower case.
    pub verb: &'a str,
    /// What it is about.
    pub target: DigestTarget<'a>,
}

/// What a request is about.
#[derive(Clone, Copy, Debug)]
pub enum DigestTarget<'a> {
    Resource {
        /// API group, domain included; empty for the core group.
        group: &'a str,
        /// Resource in the plural.
        resource: &'a str,
        /// Empty for none.
        subresource: &'a str,
        /// Empty for all namespaces and for cluster-scoped resources.
        namespace: &'a str,
    },
    /// Another path.
    Path(&'a str),
}

/// A FlowSchema, read once: its rules, its priority level and what distinguishes its flows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowSchema {
    pub name: String,
    /// Its identity; empty for a mandatory one that is not stored yet.
    pub uid: String,
    /// The least one that matches takes a request.
    pub precedence: i64,
    /// Name of its priority level.
    pub level: String,
    /// What distinguishes flows.
    pub distinguisher: Distinguisher,
    /// Any of them has to match.
    pub rules: Vec<FlowSchemaRule>,
}

/// What distinguishes the flows of a schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Distinguisher {
    /// Nothing: all requests are one flow.
    None,
    User,
    /// The namespace of the resource.
    Namespace,
}

/// One of the subjects has to match, and one of the rules.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FlowSchemaRule {
    /// The user of the request.
    pub subjects: Vec<Subject>,
    /// For requests to resources.
    pub resources: Vec<ResourceRule>,
    /// For other requests.
    pub paths: Vec<PathRule>,
}

/// The user of the request; the name `*` matches any.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subject {
    /// A user of this name.
    User(String),
    /// A member of this group.
    Group(String),
    ServiceAccount {
        namespace: String,
        name: String,
    },
}

/// Lists of which each has to contain what a request to a resource has; `*` is everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResourceRule {
    /// API verbs.
    pub verbs: Vec<String>,
    /// API groups, domain included.
    pub groups: Vec<String>,
    /// Resources, with `/subresource`.
    pub resources: Vec<String>,
    /// Whether requests without a namespace match.
    pub cluster_scope: bool,
    /// Namespaces of the requests with one.
    pub namespaces: Vec<String>,
}

/// Verbs and paths; `*` is everything. A path stands for those below it too.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PathRule {
    /// Methods in lower case.
    pub verbs: Vec<String>,
    pub paths: Vec<String>,
}

impl FlowSchema {
    /// Whether it takes the request, if none before it does.
    #[must_use]
    pub fn matches(&self, request: &RequestDigest<'_>) -> bool {
        self.rules.iter().any(|rule| rule.matches(request))
    }

    /// The number of the request's flow: requests of the same schema and distinguisher have the same.
    #[must_use]
    pub fn flow(&self, request: &RequestDigest<'_>) -> u64 {
        let distinguisher = match (self.distinguisher, request.target) {
            (Distinguisher::User, _) => request.user,
            (Distinguisher::Namespace, DigestTarget::Resource { namespace, .. }) => namespace,
            (Distinguisher::Namespace, DigestTarget::Path(_)) | (Distinguisher::None, _) => "",
        };
        let mut hasher = DefaultHasher::new();
        hasher.write(self.name.as_bytes());
        // No name has this byte.
        hasher.write_u8(0);
        hasher.write(distinguisher.as_bytes());
        hasher.finish()
    }

    /// How many subjects, verbs, groups, resources, namespaces and paths its rules name.
    #[must_use]
    pub fn terms(&self) -> usize {
        self.rules.iter().map(FlowSchemaRule::terms).sum()
    }
}

impl FlowSchemaRule {
    fn matches(&self, request: &RequestDigest<'_>) -> bool {
        self.subjects.iter().any(|subject| subject.matches(request))
            && match request.target {
                DigestTarget::Resource { .. } => {
                    self.resources.iter().any(|rule| rule.matches(request))
                }
                DigestTarget::Path(path) => {
                    self.paths.iter().any(|rule| has(&rule.verbs, request.verb) && rule.has(path))
                }
            }
    }

    fn terms(&self) -> usize {
        let of_resource = |rule: &ResourceRule| {
            [&rule.verbs, &rule.groups, &rule.resources, &rule.namespaces]
                .iter()
                .map(|list| list.len())
                .sum::<usize>()
        };
        let resources: usize = self.resources.iter().map(of_resource).sum();
        let paths: usize =
            self.paths.iter().map(|rule| rule.verbs.len().saturating_add(rule.paths.len())).sum();
        let lists =
            [&self.subjects.len(), &self.resources.len(), &self.paths.len(), &resources, &paths];
        lists.into_iter().fold(1, |sum: usize, len| sum.saturating_add(*len))
    }
}

impl Subject {
    fn matches(&self, request: &RequestDigest<'_>) -> bool {
        match self {
            Self::User(name) => name == ALL || name == request.user,
            Self::Group(name) => name == ALL || request.groups.iter().any(|group| group == name),
            Self::ServiceAccount { namespace, name } => {
                let user = request.user.strip_prefix(SERVICE_ACCOUNT);
                let own = user.and_then(|user| user.split_once(':'));
                own.is_some_and(|(of, own)| of == namespace && (name == ALL || name == own))
            }
        }
    }
}

impl ResourceRule {
    fn matches(&self, request: &RequestDigest<'_>) -> bool {
        let DigestTarget::Resource { group, resource, subresource, namespace } = request.target
        else {
            return false;
        };
        has(&self.verbs, request.verb)
            && self.resources.iter().any(|own| is_resource(own, resource, subresource))
            && has(&self.groups, group)
            && if namespace.is_empty() {
                self.cluster_scope
            } else {
                has(&self.namespaces, namespace)
            }
    }
}

impl PathRule {
    fn has(&self, path: &str) -> bool {
        self.paths.iter().any(|own| {
            if own == ALL || own == path {
                return true;
            }
            let prefix = own.strip_suffix(ALL).unwrap_or(own);
            let rest = path.strip_prefix(prefix);
            rest.is_some_and(|rest| prefix.ends_with('/') || rest.starts_with('/'))
        })
    }
}

fn has(list: &[String], wanted: &str) -> bool {
    list.iter().any(|own| own == ALL || own == wanted)
}

fn is_resource(own: &str, resource: &str, subresource: &str) -> bool {
    if own == ALL {
        return true;
    }
    match own.strip_prefix(resource) {
        Some("") => subresource.is_empty(),
        Some(rest) => !subresource.is_empty() && rest.strip_prefix('/') == Some(subresource),
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(text: &str) -> Vec<String> {
        text.split_whitespace().map(|word| word.replace("core", "")).collect()
    }

    fn resource_rule(verbs: &str, groups: &str, resources: &str, namespaces: &str) -> ResourceRule {
        let namespaces = list(namespaces);
        let cluster_scope = namespaces.iter().any(|name| name == "(cluster)");
        let [verbs, groups, resources] = [verbs, groups, resources].map(list);
        ResourceRule { verbs, groups, resources, cluster_scope, namespaces }
    }

    #[test]
    fn subjects_are_users_groups_and_service_accounts() {
        let account = |namespace: &str, name: &str| Subject::ServiceAccount {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        };
        let groups = ["system:authenticated".to_owned(), "dev".to_owned()];
        for (subject, user, expected) in [
            (Subject::User("a".to_owned()), "a", true),
            (Subject::User("a".to_owned()), "b", false),
            (Subject::User("*".to_owned()), "b", true),
            (Subject::Group("dev".to_owned()), "b", true),
            (Subject::Group("ops".to_owned()), "b", false),
            (Subject::Group("*".to_owned()), "b", true),
            (account("n", "s"), "system:serviceaccount:n:s", true),
            (account("n", "s"), "system:serviceaccount:n:t", false),
            (account("n", "*"), "system:serviceaccount:n:t", true),
            (account("n", "*"), "system:serviceaccount:nn:t", false),
            (account("n", "s"), "n:s", false),
        ] {
            let request = RequestDigest {
                user,
                groups: &groups,
                verb: "get",
                target: DigestTarget::Path("/"),
            };
            assert_eq!(subject.matches(&request), expected, "{subject:?} {user}");
        }
    }

    #[test]
    fn a_resource_is_matched_as_kubernetes_matches_it() {
        // rule: verbs, groups, resources, namespaces; request: verb, group, resource, subresource, namespace
        let cases: &[([&str; 4], [&str; 5], bool)] = &[
            (["get", "core", "pods", "a"], ["get", "", "pods", "", "a"], true),
            (["get", "core", "pods", "a"], ["list", "", "pods", "", "a"], false),
            (["*", "core", "pods", "a"], ["list", "", "pods", "", "a"], true),
            (["get", "apps", "pods", "a"], ["get", "", "pods", "", "a"], false),
            (["get", "*", "pods", "a"], ["get", "apps", "pods", "", "a"], true),
            (["get", "core", "pods", "a"], ["get", "", "pods", "log", "a"], false),
            (["get", "core", "pods/log", "a"], ["get", "", "pods", "log", "a"], true),
            (["get", "core", "pods/log", "a"], ["get", "", "pods", "", "a"], false),
            (["get", "core", "*", "a"], ["get", "", "pods", "log", "a"], true),
            (["get", "core", "podsx", "a"], ["get", "", "pods", "", "a"], false),
            (["get", "core", "pods", "b c"], ["get", "", "pods", "", "c"], true),
            (["get", "core", "pods", "b"], ["get", "", "pods", "", "c"], false),
            (["get", "core", "pods", "*"], ["get", "", "pods", "", "c"], true),
            (["get", "core", "pods", "*"], ["get", "", "pods", "", ""], false),
            (["get", "core", "pods", "(cluster)"], ["get", "", "pods", "", ""], true),
            (["get", "core", "pods", "(cluster)"], ["get", "", "pods", "", "a"], false),
        ];
        for ([verbs, groups, resources, namespaces], request, expected) in cases {
            let [verb, group, resource, subresource, namespace] = *request;
            let target = DigestTarget::Resource { group, resource, subresource, namespace };
            let request = RequestDigest { user: "u", groups: &[], verb, target };
            let rule = resource_rule(verbs, groups, resources, namespaces);
            assert_eq!(rule.matches(&request), *expected, "{rule:?} {request:?}");
        }
    }

    #[test]
    fn a_path_stands_for_those_below_it() {
        for (own, path, expected) in [
            ("/healthz", "/healthz", true),
            ("/healthz", "/healthz/etcd", true),
            ("/healthz", "/healthzz", false),
            ("/healthz/*", "/healthz/etcd", true),
            ("/healthz/*", "/healthz", false),
            ("/", "/", true),
            ("/", "/version", true),
            ("*", "/anything", true),
            ("", "/anything", true),
        ] {
            let paths = vec![own.to_owned()];
            let rule = PathRule { verbs: list("get"), paths };
            assert_eq!(rule.has(path), expected, "{own} {path}");
        }
    }

    #[test]
    fn a_rule_needs_a_subject_and_a_rule_of_the_right_sort() {
        let schema = |rule: FlowSchemaRule| FlowSchema {
            name: "s".to_owned(),
            uid: String::new(),
            precedence: 1,
            level: "l".to_owned(),
            distinguisher: Distinguisher::User,
            rules: vec![FlowSchemaRule::default(), rule],
        };
        let subjects = vec![Subject::User("a".to_owned())];
        let resources = vec![resource_rule("*", "*", "*", "*")];
        let paths = vec![PathRule { verbs: list("get"), paths: list("/metrics") }];
        let pods =
            DigestTarget::Resource { group: "", resource: "pods", subresource: "", namespace: "n" };
        let request = |user, verb, target| RequestDigest { user, groups: &[], verb, target };
        let both = schema(FlowSchemaRule {
            subjects: subjects.clone(),
            resources: resources.clone(),
            paths: paths.clone(),
        });
        assert!(both.matches(&request("a", "get", pods)));
        assert!(both.matches(&request("a", "get", DigestTarget::Path("/metrics"))));
        assert!(!both.matches(&request("a", "post", DigestTarget::Path("/metrics"))));
        assert!(!both.matches(&request("b", "get", pods)));
        let first =
            schema(FlowSchemaRule { subjects: subjects.clone(), resources, paths: Vec::new() });
        assert!(!first.matches(&request("a", "get", DigestTarget::Path("/metrics"))));
        let second = schema(FlowSchemaRule { subjects, resources: Vec::new(), paths });
        assert!(!second.matches(&request("a", "get", pods)));
        assert_eq!(both.terms(), 11);
    }

    #[test]
    fn flows_are_distinguished_by_the_method_of_the_schema() {
        let schema = |name: &str, distinguisher| FlowSchema {
            name: name.to_owned(),
            uid: String::new(),
            precedence: 1,
            level: "l".to_owned(),
            distinguisher,
            rules: Vec::new(),
        };
        let pods = |user, namespace| RequestDigest {
            user,
            groups: &[],
            verb: "get",
            target: DigestTarget::Resource {
                group: "",
                resource: "pods",
                subresource: "",
                namespace,
            },
        };
        let by_user = schema("s", Distinguisher::User);
        assert_eq!(by_user.flow(&pods("a", "x")), by_user.flow(&pods("a", "y")));
        assert_ne!(by_user.flow(&pods("a", "x")), by_user.flow(&pods("b", "x")));
        assert_ne!(
            by_user.flow(&pods("a", "x")),
            schema("t", Distinguisher::User).flow(&pods("a", "x"))
        );
        let by_namespace = schema("s", Distinguisher::Namespace);
        assert_ne!(by_namespace.flow(&pods("a", "x")), by_namespace.flow(&pods("a", "y")));
        assert_eq!(by_namespace.flow(&pods("a", "x")), by_namespace.flow(&pods("b", "x")));
        let one = schema("s", Distinguisher::None);
        assert_eq!(one.flow(&pods("a", "x")), one.flow(&pods("b", "y")));
    }
}
