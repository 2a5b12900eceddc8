//! The authorization module `ABAC`: a file of policies, one JSON object a line, read at the start. Any policy that matches a request allows it.
//! Unlike in Kubernetes an unknown field is refused: a misspelt one would match too much or nothing.

use apiserver_rbac::Rule;
use proto_api::names::Names;
use serde::Deserialize;

use crate::authorization::{
    AccessTarget, Attributes, Authorization, Authorizer, Decision, UserRules,
};
use crate::user::{AUTHENTICATED, User};

/// Matches everything in a field of a policy.
const ANY: &str = "*";

/// An invalid line of a policy file.
#[derive(Debug, thiserror::Error)]
#[error("line {line}: {problem}")]
pub struct AbacError {
    /// Line number, from 1.
    pub line: usize,
    /// What is wrong with it.
    pub problem: String,
}

/// The policies of a file.
#[derive(Debug, Default)]
pub struct Abac(Vec<Policy>);

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Line {
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    kind: String,
    #[serde(default, rename = "metadata")]
    _metadata: serde::de::IgnoredAny,
    #[serde(default)]
    spec: Policy,
}

/// One policy, as in Kubernetes' `abac.authorization.kubernetes.io/v1beta1`.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
struct Policy {
    user: String,
    group: String,
    readonly: bool,
    api_group: String,
    resource: String,
    namespace: String,
    #[serde(rename = "nonResourcePath")]
    path: String,
}

impl Abac {
    /// Reads the text of a policy file. Empty lines and lines that begin with `#` are skipped.
    ///
    /// # Errors
    /// The first line that is no `Policy` of version `abac.authorization.<domain>/v1beta1`.
    pub fn parse(text: &str, names: &Names) -> Result<Self, AbacError> {
        let version = names.sub_label("abac.authorization", "v1beta1");
        let mut policies = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let fail = |problem: String| AbacError { line: index.saturating_add(1), problem };
            let read: Line = serde_json::from_str(line).map_err(|error| fail(error.to_string()))?;
            if (read.api_version.as_str(), read.kind.as_str()) != (version.as_str(), "Policy") {
                return Err(fail(format!("expected apiVersion {version:?} and kind \"Policy\"")));
            }
            policies.push(read.spec.without_wildcards());
        }
        Ok(Self(policies))
    }
}

impl Policy {
    /// In version `v1beta1` a wildcard for the user or the group means all users that are authenticated, whatever the other one says.
    fn without_wildcards(self) -> Self {
        match self.user == ANY || self.group == ANY {
            true => Self { user: String::new(), group: AUTHENTICATED.to_owned(), ..self },
            false => self,
        }
    }

    fn matches(&self, attributes: &Attributes<'_>) -> bool {
        self.matches_user(attributes.user)
            && (!self.readonly || matches!(attributes.verb, "get" | "list" | "watch"))
            && match attributes.subject {
                AccessTarget::Path(path) => is_path(&self.path, path),
                AccessTarget::Resource { group, resource, namespace, .. } => {
                    is_any_or(&self.namespace, namespace)
                        && is_any_or(&self.resource, resource)
                        && is_any_or(&self.api_group, group)
                }
            }
    }

    /// A policy that names a user and a group needs both to match; one that names neither matches no user.
    fn matches_user(&self, user: &User) -> bool {
        let by_name = self.user.is_empty() || self.user == user.name;
        let by_group = self.group.is_empty() || user.is_in(&self.group);
        by_name && by_group && !(self.user.is_empty() && self.group.is_empty())
    }
}

fn is_any_or(wanted: &str, value: &str) -> bool {
    wanted == ANY || wanted == value
}

/// `*` at the end matches any rest.
fn is_path(wanted: &str, path: &str) -> bool {
    match wanted.strip_suffix(ANY) {
        Some(prefix) => path.starts_with(prefix.trim_end_matches(ANY)),
        None => wanted == path,
    }
}

impl Authorizer for Abac {
    fn authorize(&self, attributes: &Attributes<'_>) -> Authorization {
        match self.0.iter().any(|policy| policy.matches(attributes)) {
            true => Authorization::new(Decision::Allow, ""),
            false => Authorization::new(Decision::NoOpinion, "No policy matched."),
        }
    }

    fn rules(&self, user: &User, namespace: &str) -> UserRules {
        let mut rules = Vec::new();
        for policy in self.0.iter().filter(|policy| policy.matches_user(user)) {
            // As in Kubernetes, also for paths.
            if !is_any_or(&policy.namespace, namespace) {
                continue;
            }
            let verbs: &[&str] = if policy.readonly { &["get", "list", "watch"] } else { &[ANY] };
            if !policy.resource.is_empty() {
                rules.push(Rule {
                    verbs: texts(verbs),
                    groups: texts(&[&policy.api_group]),
                    resources: texts(&[&policy.resource]),
                    ..Rule::default()
                });
            }
            if !policy.path.is_empty() {
                let urls = texts(&[&policy.path]);
                rules.push(Rule { verbs: texts(verbs), urls, ..Rule::default() });
            }
        }
        UserRules { rules, ..UserRules::default() }
    }
}

fn texts(all: &[&str]) -> Vec<String> {
    all.iter().map(|text| (*text).to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use proto_api::names::Profile;

    use super::*;

    fn parse(specs: &[&str]) -> Result<Abac, AbacError> {
        let line = |spec: &&str| {
            format!(
                r#"{{"apiVersion":"abac.authorization.kubernetes.io/v1beta1","kind":"Policy","spec":{spec}}}"#
            )
        };
        let text = specs.iter().map(line).collect::<Vec<_>>().join("\n");
        Abac::parse(&format!("# policies\n\n{text}\n"), Names::new(Profile::Kubernetes))
    }

    fn user(name: &str, groups: &[&str]) -> User {
        User { name: name.to_owned(), groups: texts(groups), ..User::default() }
    }

    #[test]
    fn a_policy_matches_user_verb_and_resource() {
        let pods = |namespace: &'static str| AccessTarget::Resource {
            group: "",
            version: "v1",
            resource: "pods",
            subresource: "",
            namespace,
            name: "",
        };
        let cases: &[(&str, &str, AccessTarget<'_>, bool)] = &[
            (
                r#"{"user":"a","namespace":"*","resource":"*","apiGroup":"*"}"#,
                "create",
                pods("n"),
                true,
            ),
            (
                r#"{"user":"b","namespace":"*","resource":"*","apiGroup":"*"}"#,
                "create",
                pods("n"),
                false,
            ),
            (r#"{"user":"*","namespace":"n","resource":"pods"}"#, "create", pods("n"), true),
            (r#"{"user":"*","namespace":"n","resource":"pods"}"#, "create", pods("m"), false),
            (
                r#"{"user":"*","namespace":"n","resource":"pods","apiGroup":"apps"}"#,
                "get",
                pods("n"),
                false,
            ),
            (r#"{"group":"g","namespace":"n","resource":"pods"}"#, "get", pods("n"), true),
            (r#"{"group":"h","namespace":"n","resource":"pods"}"#, "get", pods("n"), false),
            (
                r#"{"user":"a","group":"h","namespace":"n","resource":"pods"}"#,
                "get",
                pods("n"),
                false,
            ),
            (r#"{"namespace":"*","resource":"*"}"#, "get", pods("n"), false),
            (
                r#"{"user":"a","readonly":true,"namespace":"*","resource":"*"}"#,
                "watch",
                pods("n"),
                true,
            ),
            (
                r#"{"user":"a","readonly":true,"namespace":"*","resource":"*"}"#,
                "delete",
                pods("n"),
                false,
            ),
            (
                r#"{"user":"a","namespace":"*","resource":"*","apiGroup":"*"}"#,
                "get",
                AccessTarget::Path("/x"),
                false,
            ),
            (r#"{"user":"a","nonResourcePath":"*"}"#, "get", AccessTarget::Path("/x"), true),
            (r#"{"user":"a","nonResourcePath":"/x"}"#, "get", AccessTarget::Path("/x/y"), false),
            (r#"{"user":"a","nonResourcePath":"/x/*"}"#, "get", AccessTarget::Path("/x/y"), true),
            (r#"{"user":"a","nonResourcePath":"*"}"#, "get", pods("n"), false),
        ];
        for (spec, verb, subject, allowed) in cases {
            let abac = parse(&[spec]).unwrap();
            let user = user("a", &["g", "system:authenticated"]);
            let decided = abac.authorize(&Attributes { user: &user, verb, subject: *subject });
            assert_eq!(decided.decision == Decision::Allow, *allowed, "{spec} {verb} {subject:?}");
        }
    }

    #[test]
    fn a_wildcard_means_every_user_that_is_authenticated() {
        for spec in [
            r#"{"user":"*","nonResourcePath":"/version"}"#,
            r#"{"group":"*","nonResourcePath":"/version"}"#,
            r#"{"user":"a","group":"*","nonResourcePath":"/version"}"#,
            r#"{"user":"*","group":"g","nonResourcePath":"/version"}"#,
        ] {
            let abac = parse(&[spec]).unwrap();
            for (user, decision) in [
                (user("b", &["system:authenticated"]), Decision::Allow),
                (User::anonymous(), Decision::NoOpinion),
            ] {
                let subject = AccessTarget::Path("/version");
                let decided = abac.authorize(&Attributes { user: &user, verb: "get", subject });
                assert_eq!(decided.decision, decision, "{spec} {user:?}");
            }
        }
    }

    #[test]
    fn bad_lines_are_named() {
        let line = |text: &str| {
            Abac::parse(text, Names::new(Profile::Kubernetes)).unwrap_err().to_string()
        };
        assert!(line("\n{\"user\":\"a\"}").starts_with("line 2: unknown field `user`"));
        assert!(line("{\"kind\":\"Policy\"}").starts_with("line 1: expected apiVersion"));
        assert!(line("{").starts_with("line 1: "));
        assert!(parse(&[r#"{"user":"a","resources":"pods"}"#]).is_err(), "a misspelt field");
        let misspelt = r#"{"apiVersion":"abac.authorization.kubernetes.io/v1beta1","kind":"Policy","specs":{}}"#;
        assert!(line(misspelt).contains("specs"));
    }

    #[test]
    fn rules_of_a_user_are_those_of_its_policies() {
        let abac = parse(&[
            r#"{"user":"a","readonly":true,"namespace":"n","resource":"pods"}"#,
            r#"{"user":"a","namespace":"*","nonResourcePath":"/x"}"#,
            r#"{"user":"a","nonResourcePath":"/y"}"#,
            r#"{"user":"b","namespace":"*","resource":"*"}"#,
        ])
        .unwrap();
        let rules = abac.rules(&user("a", &[]), "n").rules;
        assert_eq!(rules.len(), 2);
        assert_eq!(rules[0].verbs, ["get", "list", "watch"]);
        assert_eq!(rules[1].urls, ["/x"]);
    }
}
