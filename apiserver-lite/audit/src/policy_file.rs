//! The content of a policy file, and its faults with the paths of their fields.

use proto_api::dns_names::is_subdomain;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use crate::stage::{Level, Stage};

/// A policy as it is written: audit.k8s.io/v1 `Policy`, without `apiVersion` and `kind`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PolicyFile {
    /// Without a meaning.
    pub metadata: Value,
    /// The rules, of which the first that matches decides.
    #[serde(deserialize_with = "null_is_empty")]
    pub rules: Vec<PolicyRule>,
    /// Stages of which no event is recorded.
    #[serde(deserialize_with = "null_is_empty")]
    pub omit_stages: Vec<String>,
    /// Whether objects are recorded without `managedFields`.
    #[serde(deserialize_with = "null_is_empty")]
    pub omit_managed_fields: bool,
}

/// A rule; what it does not name matches everything.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PolicyRule {
    #[serde(deserialize_with = "null_is_empty")]
    pub level: String,
    /// Names of users.
    #[serde(deserialize_with = "null_is_empty")]
    pub users: Vec<String>,
    #[serde(deserialize_with = "null_is_empty")]
    pub user_groups: Vec<String>,
    #[serde(deserialize_with = "null_is_empty")]
    pub verbs: Vec<String>,
    #[serde(deserialize_with = "null_is_empty")]
    pub resources: Vec<GroupResources>,
    /// Namespaces; the empty one is that of cluster-scoped resources.
    #[serde(deserialize_with = "null_is_empty")]
    pub namespaces: Vec<String>,
    /// Other paths; a `*` at the end stands for anything.
    #[serde(rename = "nonResourceURLs", deserialize_with = "null_is_empty")]
    pub non_resource_urls: Vec<String>,
    /// Stages of which no event is recorded, besides those of the policy.
    #[serde(deserialize_with = "null_is_empty")]
    pub omit_stages: Vec<String>,
    /// In the place of the policy's.
    pub omit_managed_fields: Option<bool>,
}

/// An entry of `resources` of a policy rule: an API group with resources and object names.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GroupResources {
    /// The group; empty for the core group.
    #[serde(deserialize_with = "null_is_empty")]
    pub group: String,
    /// `pods`, `pods/log`, `pods/*`, `*/scale` or `*`; all of the group if there is none.
    #[serde(deserialize_with = "null_is_empty")]
    pub resources: Vec<String>,
    /// Names of objects.
    #[serde(deserialize_with = "null_is_empty")]
    pub resource_names: Vec<String>,
}

/// An invalid field of a policy file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyFault {
    /// As `rules[0].level`.
    pub path: String,
    /// What is wrong, in Kubernetes' words.
    pub message: String,
}

fn null_is_empty<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Option::deserialize(deserializer).map(Option::unwrap_or_default)
}

impl PolicyFile {
    /// All faults, in the order of the fields.
    #[must_use]
    pub fn faults(&self) -> Vec<PolicyFault> {
        let mut faults = Faults(Vec::new());
        faults.of_stages("omitStages", &self.omit_stages);
        if self.rules.is_empty() {
            faults.add("rules", "Required value: a policy has at least one rule");
        }
        for (nth, rule) in self.rules.iter().enumerate() {
            faults.of_rule(&format!("rules[{nth}]"), rule);
        }
        faults.0
    }
}

struct Faults(Vec<PolicyFault>);

impl Faults {
    fn add(&mut self, path: impl Into<String>, message: impl Into<String>) {
        self.0.push(PolicyFault { path: path.into(), message: message.into() });
    }

    fn of_rule(&mut self, path: &str, rule: &PolicyRule) {
        if rule.level.is_empty() {
            self.add(format!("{path}.level"), "Required value");
        } else if rule.level.parse::<Level>().is_err() {
            let supported = Level::ALL.map(|level| format!("{:?}", level.as_str())).join(", ");
            let message =
                format!("Unsupported value: {:?}: supported values: {supported}", rule.level);
            self.add(format!("{path}.level"), message);
        }
        let urls = &rule.non_resource_urls;
        for (nth, url) in urls.iter().enumerate().filter(|(_, url)| *url != "*") {
            let mut fault = |why: &str| {
                self.add(
                    format!("{path}.nonResourceURLs[{nth}]"),
                    format!("Invalid value: {url:?}: {why}"),
                );
            };
            if !url.starts_with('/') {
                fault("non-resource URL rules must begin with a '/' character");
            }
            if url.strip_suffix('*').unwrap_or(url).contains('*') {
                fault("non-resource URL wildcards '*' must be the final character of the rule");
            }
        }
        for group in &rule.resources {
            self.of_resources(&format!("{path}.resources"), group);
        }
        self.of_stages(&format!("{path}.omitStages"), &rule.omit_stages);
        let is_of_resources = !rule.resources.is_empty() || !rule.namespaces.is_empty();
        if !urls.is_empty() && is_of_resources {
            let message = format!(
                "Invalid value: {urls:?}: rules cannot apply to both regular resources and non-resource URLs"
            );
            self.add(format!("{path}.nonResourceURLs"), message);
        }
    }

    fn of_resources(&mut self, path: &str, group: &GroupResources) {
        if !group.group.is_empty() && !is_subdomain(&group.group) {
            let message = format!(
                "Invalid value: {:?}: a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character",
                group.group
            );
            self.add(format!("{path}.group"), message);
        }
        if !group.resource_names.is_empty() && group.resources.is_empty() {
            let names = &group.resource_names;
            let message = format!(
                "Invalid value: {names:?}: using resourceNames requires at least one resource"
            );
            self.add(format!("{path}.resourceNames"), message);
        }
    }

    fn of_stages(&mut self, path: &str, stages: &[String]) {
        let allowed = Stage::ALL.map(Stage::as_str).join(",");
        for (nth, stage) in stages.iter().enumerate().filter(|(_, s)| s.parse::<Stage>().is_err()) {
            let message = format!("Invalid value: {stage:?}: allowed stages are {allowed}");
            self.add(format!("{path}[{nth}]"), message);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn faults(policy: Value) -> Vec<String> {
        let file: PolicyFile = serde_json::from_value(policy).unwrap();
        file.faults()
            .into_iter()
            .map(|fault| format!("{}: {}", fault.path, fault.message))
            .collect()
    }

    #[test]
    fn a_valid_policy_has_no_faults() {
        let policy = json!({"omitStages": ["RequestReceived"], "rules": [
            {"level": "None", "nonResourceURLs": ["/healthz*", "/version", "*"], "users": null},
            {"level": "Metadata", "resources": [{"group": "", "resources": ["secrets"], "resourceNames": ["a"]},
                {"group": "rbac.authorization.k8s.io"}]},
            {"level": "RequestResponse", "omitStages": ["Panic"], "omitManagedFields": true},
        ]});
        assert_eq!(faults(policy), Vec::<String>::new());
    }

    #[test]
    fn each_fault_names_its_field() {
        let levels = r#"supported values: "None", "Metadata", "Request", "RequestResponse""#;
        let stages = "allowed stages are RequestReceived,ResponseStarted,ResponseComplete,Panic";
        for (rule, expected) in [
            (json!({}), "rules[0].level: Required value".to_owned()),
            (json!({"level": "All"}), format!("rules[0].level: Unsupported value: \"All\": {levels}")),
            (
                json!({"level": "None", "omitStages": ["Done"]}),
                format!("rules[0].omitStages[0]: Invalid value: \"Done\": {stages}"),
            ),
            (
                json!({"level": "None", "nonResourceURLs": ["x"]}),
                "rules[0].nonResourceURLs[0]: Invalid value: \"x\": non-resource URL rules must begin with a '/' character".to_owned(),
            ),
            (
                json!({"level": "None", "nonResourceURLs": ["/a*b"]}),
                "rules[0].nonResourceURLs[0]: Invalid value: \"/a*b\": non-resource URL wildcards '*' must be the final character of the rule".to_owned(),
            ),
            (
                json!({"level": "None", "nonResourceURLs": ["/a"], "namespaces": ["b"]}),
                "rules[0].nonResourceURLs: Invalid value: [\"/a\"]: rules cannot apply to both regular resources and non-resource URLs".to_owned(),
            ),
            (
                json!({"level": "None", "resources": [{"resourceNames": ["a"]}]}),
                "rules[0].resources.resourceNames: Invalid value: [\"a\"]: using resourceNames requires at least one resource".to_owned(),
            ),
        ] {
            assert_eq!(faults(json!({"rules": [rule]})), [expected]);
        }
        let group =
            json!({"level": "None", "resources": [{"group": "rbac.authorization.k8s.io/v1beta1"}]});
        let reported = faults(json!({"rules": [group]}));
        assert!(
            reported[0].starts_with("rules[0].resources.group: Invalid value: "),
            "{reported:?}"
        );
        assert_eq!(faults(json!({}))[0], "rules: Required value: a policy has at least one rule");
        let both = faults(json!({"omitStages": [""], "rules": [{"level": "None"}, {}]}));
        assert_eq!(both.len(), 2, "{both:?}");
    }
}
