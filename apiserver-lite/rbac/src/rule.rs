//! One rule of a role, and whether it allows a request.

use std::fmt;

/// A rule: every verb on every resource of every group that it names, or on every path.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rule {
    /// Verbs; `*` is each.
    pub verbs: Vec<String>,
    /// API groups, the core group being empty; `*` is each.
    pub groups: Vec<String>,
    /// Resources in the plural, with `/subresource`; `*` is each, `*/subresource` that one of each.
    pub resources: Vec<String>,
    /// Names of objects; every object if empty.
    pub names: Vec<String>,
    /// Paths without a resource; a final `*` stands for any rest.
    pub urls: Vec<String>,
}

/// What a request wants to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access<'a> {
    /// A verb on a resource.
    Resource {
        /// API verb.
        verb: &'a str,
        /// Empty for the core group.
        group: &'a str,
        /// Resource in the plural.
        resource: &'a str,
        /// Empty for none.
        subresource: &'a str,
        /// Empty for all namespaces and for cluster-scoped resources.
        namespace: &'a str,
        /// Empty for collections.
        name: &'a str,
    },
    /// A method on another path.
    Path {
        /// Method in lower case.
        verb: &'a str,
        path: &'a str,
    },
}

pub(crate) const ALL: &str = "*";

impl Rule {
    /// A rule from the lists of the API's fields; `list` gives the one of a field's name.
    pub(crate) fn from_fields(list: impl Fn(&str) -> Vec<String>) -> Self {
        Self {
            verbs: list("verbs"),
            groups: list("apiGroups"),
            resources: list("resources"),
            names: list("resourceNames"),
            urls: list("nonResourceURLs"),
        }
    }

    /// Every verb on every resource.
    #[must_use]
    pub fn every_resource() -> Self {
        let all = || vec![ALL.to_owned()];
        Self { verbs: all(), groups: all(), resources: all(), ..Self::default() }
    }

    /// Every method on every path without a resource.
    #[must_use]
    pub fn every_path() -> Self {
        Self { verbs: vec![ALL.to_owned()], urls: vec![ALL.to_owned()], ..Self::default() }
    }

    /// Whether it allows a request, wherever the request's namespace lies.
    #[must_use]
    pub fn allows(&self, request: &Access<'_>) -> bool {
        match *request {
            Access::Path { verb, path } => has(&self.verbs, verb) && self.has_url(path),
            Access::Resource { verb, group, resource, subresource, name, .. } => {
                has(&self.verbs, verb)
                    && has(&self.groups, group)
                    && self.has_resource(resource, subresource)
                    && self.has_name(name)
            }
        }
    }

    fn has_resource(&self, resource: &str, subresource: &str) -> bool {
        self.resources.iter().any(|own| is_resource(own, resource, subresource))
    }

    fn has_name(&self, name: &str) -> bool {
        self.names.is_empty() || self.names.iter().any(|own| own == name)
    }

    pub(crate) fn has_url(&self, path: &str) -> bool {
        self.urls.iter().any(|own| match own.strip_suffix('*') {
            Some(prefix) => path.starts_with(prefix),
            None => own == path,
        })
    }
}

/// As Kubernetes writes a rule in messages: `{APIGroups:[""], Resources:["pods"], Verbs:["get"]}`.
impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lists = [
            ("APIGroups", &self.groups),
            ("Resources", &self.resources),
            ("NonResourceURLs", &self.urls),
            ("ResourceNames", &self.names),
            ("Verbs", &self.verbs),
        ];
        let lists = lists.into_iter().filter(|(_, list)| !list.is_empty()).map(|(name, list)| {
            let texts: Vec<String> = list.iter().map(|text| format!("{text:?}")).collect();
            format!("{name}:[{}]", texts.join(" "))
        });
        write!(f, "{{{}}}", lists.collect::<Vec<_>>().join(", "))
    }
}

/// Whether a list of verbs or groups has `wanted`.
fn has(own: &[String], wanted: &str) -> bool {
    own.iter().any(|own| own == ALL || own == wanted)
}

fn is_resource(own: &str, resource: &str, subresource: &str) -> bool {
    if own == ALL {
        return true;
    }
    match own.split_once('/') {
        None => subresource.is_empty() && own == resource,
        Some((of, sub)) => {
            !subresource.is_empty() && sub == subresource && (of == ALL || of == resource)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(verbs: &str, groups: &str, resources: &str, names: &str) -> Rule {
        let list = |text: &str| -> Vec<String> {
            text.split_whitespace()
                .map(|word| if word == "core" { String::new() } else { word.to_owned() })
                .collect()
        };
        Rule {
            verbs: list(verbs),
            groups: list(groups),
            resources: list(resources),
            names: list(names),
            urls: Vec::new(),
        }
    }

    #[test]
    fn a_resource_is_matched_as_kubernetes_matches_it() {
        // verbs, groups, resources, names of the rule; verb, group, resource, subresource, name of the request; allowed
        let cases: &[([&str; 4], [&str; 5], bool)] = &[
            (["get", "core", "pods", ""], ["get", "", "pods", "", "a"], true),
            (["get", "core", "pods", ""], ["list", "", "pods", "", ""], false),
            (["*", "core", "pods", ""], ["list", "", "pods", "", ""], true),
            (["get", "apps", "pods", ""], ["get", "", "pods", "", "a"], false),
            (["get", "*", "pods", ""], ["get", "apps", "pods", "", "a"], true),
            (["get", "core", "pods", ""], ["get", "", "pods", "log", "a"], false),
            (["get", "core", "pods/log", ""], ["get", "", "pods", "log", "a"], true),
            (["get", "core", "pods/log", ""], ["get", "", "pods", "", "a"], false),
            (["get", "core", "*/log", ""], ["get", "", "pods", "log", "a"], true),
            (["get", "core", "*/log", ""], ["get", "", "pods", "", "a"], false),
            (["get", "core", "*", ""], ["get", "", "pods", "log", "a"], true),
            (["get", "core", "pods/*", ""], ["get", "", "pods", "log", "a"], false),
            (["get", "core", "pods", "a b"], ["get", "", "pods", "", "b"], true),
            (["get", "core", "pods", "a b"], ["get", "", "pods", "", "c"], false),
            (["list", "core", "pods", "a"], ["list", "", "pods", "", ""], false),
            (["", "core", "pods", ""], ["get", "", "pods", "", "a"], false),
            (["get", "", "pods", ""], ["get", "", "pods", "", "a"], false),
            (["get", "core", "pods", "*"], ["get", "", "pods", "", "a"], false),
        ];
        for (
            [verbs, groups, resources, names],
            [verb, group, resource, subresource, name],
            allowed,
        ) in cases
        {
            let request =
                Access::Resource { verb, group, resource, subresource, namespace: "n", name };
            let rule = rule(verbs, groups, resources, names);
            assert_eq!(rule.allows(&request), *allowed, "{rule:?} {request:?}");
        }
    }

    #[test]
    fn a_path_is_matched_whole_or_by_its_beginning() {
        for (own, path, allowed) in [
            ("/healthz", "/healthz", true),
            ("/healthz", "/healthz/etcd", false),
            ("/healthz/*", "/healthz/etcd", true),
            ("/healthz/*", "/healthz", false),
            ("*", "/anything", true),
            ("/api*", "/apis/apps", true),
        ] {
            let rule =
                Rule { verbs: vec!["get".into()], urls: vec![own.into()], ..Rule::default() };
            assert_eq!(rule.allows(&Access::Path { verb: "get", path }), allowed, "{own} {path}");
            assert!(!rule.allows(&Access::Path { verb: "post", path }));
        }
        // A rule on resources says nothing of paths, however much it allows.
        let all = rule("*", "*", "*", "");
        assert!(!all.allows(&Access::Path { verb: "get", path: "/metrics" }));
    }
}
