//! What is recorded of a request: the first rule that matches it decides.

use crate::policy_file::{GroupResources, PolicyFile, PolicyRule};
use crate::stage::{Level, Stage, Stages};

/// A checked policy.
#[derive(Clone, Debug, Default)]
pub struct Policy {
    rules: Vec<(PolicyRule, RequestAuditConfig)>,
    /// Of requests that no rule matches; nothing is recorded of them.
    otherwise: RequestAuditConfig,
}

/// What a policy says of one request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestAuditConfig {
    /// How much is recorded.
    pub level: Level,
    /// Stages of which no event is recorded.
    pub omit_stages: Stages,
    /// Whether objects are recorded without `managedFields`.
    pub omit_managed_fields: bool,
}

/// What a policy looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AuditAttributes<'a> {
    /// The user; `None` before a user is known.
    pub user: Option<&'a str>,
    /// The user's groups.
    pub groups: &'a [String],
    /// The API verb, or the method in lower case for other paths.
    pub verb: &'a str,
    /// The resource; `None` for other paths.
    pub resource: Option<AuditedResource<'a>>,
    pub path: &'a str,
}

/// The resource of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AuditedResource<'a> {
    /// Empty for the core group.
    pub group: &'a str,
    /// The plural name.
    pub resource: &'a str,
    /// Empty for none.
    pub subresource: &'a str,
    /// Empty for cluster-scoped resources.
    pub namespace: &'a str,
    /// Empty for collections.
    pub name: &'a str,
}

impl Policy {
    /// The policy of a file without faults; what is no level is None, and what is no stage is not omitted.
    #[must_use]
    pub fn new(file: PolicyFile) -> Self {
        let stages = |names: &[String]| -> Stages {
            names.iter().filter_map(|name| name.parse::<Stage>().ok()).collect()
        };
        let omitted = stages(&file.omit_stages);
        let decision = |rule: &PolicyRule| RequestAuditConfig {
            level: rule.level.parse().unwrap_or_default(),
            omit_stages: omitted.union(stages(&rule.omit_stages)),
            omit_managed_fields: rule.omit_managed_fields.unwrap_or(file.omit_managed_fields),
        };
        let rules = file.rules.into_iter().map(|rule| {
            let decision = decision(&rule);
            (rule, decision)
        });
        let otherwise = RequestAuditConfig {
            level: Level::None,
            omit_stages: omitted,
            omit_managed_fields: file.omit_managed_fields,
        };
        Self { rules: rules.collect(), otherwise }
    }

    /// The decision of the first rule that matches.
    #[must_use]
    pub fn decide(&self, request: &AuditAttributes<'_>) -> RequestAuditConfig {
        let found = self.rules.iter().find(|(rule, _)| matches(rule, request));
        found.map_or(self.otherwise, |(_, decision)| *decision)
    }
}

fn has(list: &[String], value: &str) -> bool {
    list.iter().any(|entry| entry == value)
}

fn matches(rule: &PolicyRule, request: &AuditAttributes<'_>) -> bool {
    let user = rule.users.is_empty() || request.user.is_some_and(|user| has(&rule.users, user));
    let group = rule.user_groups.is_empty()
        || (request.user.is_some() && request.groups.iter().any(|of| has(&rule.user_groups, of)));
    let verb = rule.verbs.is_empty() || has(&rule.verbs, request.verb);
    if !(user && group && verb) {
        return false;
    }
    if !rule.namespaces.is_empty() || !rule.resources.is_empty() {
        return request.resource.is_some_and(|resource| matches_resource(rule, &resource));
    }
    if !rule.non_resource_urls.is_empty() {
        let path = |spec: &String| matches_path(spec, request.path);
        return request.resource.is_none() && rule.non_resource_urls.iter().any(path);
    }
    true
}

fn matches_path(spec: &str, path: &str) -> bool {
    spec == path || spec.strip_suffix('*').is_some_and(|prefix| path.starts_with(prefix))
}

fn matches_resource(rule: &PolicyRule, request: &AuditedResource<'_>) -> bool {
    if !rule.namespaces.is_empty() && !has(&rule.namespaces, request.namespace) {
        return false;
    }
    let of_group = |group: &GroupResources| {
        if group.group != request.group {
            return false;
        }
        let named = group.resource_names.is_empty() || has(&group.resource_names, request.name);
        let any = group.resources.is_empty();
        any || (named && group.resources.iter().any(|spec| matches_name(spec, request)))
    };
    rule.resources.is_empty() || rule.resources.iter().any(of_group)
}

/// Whether `pods`, `pods/log`, `pods/*`, `*/scale` or `*` is the requested resource. A resource alone does not match its subresources.
fn matches_name(spec: &str, request: &AuditedResource<'_>) -> bool {
    let (resource, subresource) = spec.split_once('/').unwrap_or((spec, ""));
    match (resource, subresource) {
        ("*", "") => true,
        ("*", "*") => request.resource == "*" || request.subresource == "*",
        ("*", subresource) => request.subresource == subresource,
        (resource, "*") => request.resource == resource,
        (resource, subresource) => {
            request.resource == resource && request.subresource == subresource
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn policy(value: Value) -> Policy {
        let file: PolicyFile = serde_json::from_value(value).unwrap();
        assert_eq!(file.faults(), []);
        Policy::new(file)
    }

    /// `-` stands for nothing.
    fn blank(word: &str) -> &str {
        if word == "-" { "" } else { word }
    }

    /// Whether a rule with these fields matches a request of alice, `VERB group resource/subresource namespace name` or `VERB path`.
    fn rule_matches(fields: Value, request: &str) -> bool {
        let mut rule = fields;
        rule["level"] = "Metadata".into();
        let words: Vec<&str> = request.split(' ').collect();
        let groups = ["dev".to_owned(), "system:authenticated".to_owned()];
        let (verb, resource, path) = match words.as_slice() {
            [verb, path] => (*verb, None, *path),
            [verb, group, resource, namespace, name] => {
                let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
                let of = AuditedResource {
                    group: blank(group),
                    resource,
                    subresource,
                    namespace: blank(namespace),
                    name: blank(name),
                };
                (*verb, Some(of), "/api")
            }
            _ => panic!("{request}"),
        };
        let attributes =
            AuditAttributes { user: Some("alice"), groups: &groups, verb, resource, path };
        policy(json!({"rules": [rule]})).decide(&attributes).level == Level::Metadata
    }

    #[test]
    fn rules_match_users_verbs_and_paths() {
        for (fields, request, expected) in [
            (json!({}), "get /version", true),
            (json!({"users": ["bob"]}), "get /version", false),
            (json!({"users": ["bob", "alice"]}), "get /version", true),
            (json!({"userGroups": ["ops"]}), "get /version", false),
            (json!({"userGroups": ["dev"]}), "get /version", true),
            (json!({"users": ["alice"], "userGroups": ["ops"]}), "get /version", false),
            (json!({"verbs": ["list"]}), "get /version", false),
            (json!({"nonResourceURLs": ["/version"]}), "get /version", true),
            (json!({"nonResourceURLs": ["/vers"]}), "get /version", false),
            (json!({"nonResourceURLs": ["/vers*"]}), "get /version", true),
            (json!({"nonResourceURLs": ["*"]}), "get /version", true),
            (json!({"nonResourceURLs": ["/api*"]}), "get - pods a b", false),
            (json!({"namespaces": ["a"]}), "get /version", false),
        ] {
            assert_eq!(rule_matches(fields.clone(), request), expected, "{fields} {request}");
        }
    }

    #[test]
    fn rules_match_resources() {
        let resources = |list: Value| json!({"resources": [{"group": "", "resources": list}]});
        let named =
            json!({"resources": [{"group": "", "resources": ["pods"], "resourceNames": ["b"]}]});
        for (fields, request, expected) in [
            (json!({"namespaces": ["a"]}), "get - pods a b", true),
            (json!({"namespaces": ["a"]}), "get - pods c b", false),
            (json!({"namespaces": [""]}), "get - nodes - b", true),
            (json!({"namespaces": [""]}), "get - pods a b", false),
            (json!({"resources": [{"group": "apps"}]}), "get - pods a b", false),
            (json!({"resources": [{"group": "apps"}]}), "get apps deployments/scale a b", true),
            (resources(json!(["pods"])), "get - pods a b", true),
            (resources(json!(["pods"])), "get - pods/log a b", false),
            (resources(json!(["pods/log"])), "get - pods/log a b", true),
            (resources(json!(["pods/*"])), "get - pods/log a b", true),
            (resources(json!(["pods/*"])), "get - pods a b", true),
            (resources(json!(["*/log"])), "get - pods/log a b", true),
            (resources(json!(["*/log"])), "get - pods a b", false),
            (resources(json!(["*"])), "get - pods/log a b", true),
            (resources(json!(["*"])), "get apps pods a b", false),
            (named.clone(), "get - pods a b", true),
            (named.clone(), "get - pods a c", false),
            (named, "list - pods a -", false),
        ] {
            assert_eq!(rule_matches(fields.clone(), request), expected, "{fields} {request}");
        }
    }

    #[test]
    fn the_first_rule_decides_and_its_settings_add_up() {
        let policy = policy(json!({
            "omitStages": ["RequestReceived"], "omitManagedFields": true,
            "rules": [
                {"level": "Request", "users": ["alice"], "omitStages": ["Panic"], "omitManagedFields": false},
                {"level": "None", "users": ["alice", "bob"]},
                {"level": "RequestResponse", "users": ["carol"]},
            ],
        }));
        let decide = |user| {
            let path = "/";
            policy.decide(&AuditAttributes { user, groups: &[], verb: "get", resource: None, path })
        };
        let received: Stages = [Stage::RequestReceived].into_iter().collect();
        let both: Stages = [Stage::RequestReceived, Stage::Panic].into_iter().collect();
        let decision = |level, omit_stages, omit_managed_fields| RequestAuditConfig {
            level,
            omit_stages,
            omit_managed_fields,
        };
        assert_eq!(decide(Some("alice")), decision(Level::Request, both, false));
        assert_eq!(decide(Some("bob")), decision(Level::None, received, true));
        assert_eq!(decide(Some("carol")), decision(Level::RequestResponse, received, true));
        assert_eq!(decide(Some("dave")), decision(Level::None, received, true));
        assert_eq!(decide(None).level, Level::None, "no user is no listed user");
    }
}
