//! The clusterrole-aggregation controller: a ClusterRole with an aggregation rule has the rules of all roles that its selectors match.

use std::collections::HashSet;
use std::sync::Arc;

use proto_api::rbac::v1::{ClusterRole, PolicyRule};
use proto_api::selectors::Selector;

use crate::Plan;
use crate::api_writes::ApiWrite;

/// Whether the rules of a role are the union of others'.
#[must_use]
pub fn is_aggregated(role: &ClusterRole) -> bool {
    role.aggregation_rule.is_some()
}

/// Plans the rules of an aggregated role from `roles`, all ClusterRoles of the cluster. The rules have the order of the selectors, below
/// them of the roles' names, each once. A selector that is not valid matches nothing.
#[must_use]
pub fn plan(role: &ClusterRole, roles: &[Arc<ClusterRole>]) -> Plan {
    let Some(aggregation) = &role.aggregation_rule else { return Plan::default() };
    let mut others: Vec<&ClusterRole> = roles.iter().map(|other| &**other).collect();
    others.retain(|other| other.metadata.name != role.metadata.name);
    others.sort_by(|one, other| one.metadata.name.cmp(&other.metadata.name));
    let mut rules: Vec<PolicyRule> = Vec::new();
    let mut seen = HashSet::new();
    for selector in &aggregation.cluster_role_selectors {
        let Ok(selector) = Selector::from_label_selector(selector, "clusterRoleSelectors") else {
            continue;
        };
        let matching = others.iter().filter(|other| selector.matches(&other.metadata.labels));
        for rule in matching.flat_map(|other| &other.rules) {
            if seen.insert(format!("{rule:?}")) {
                rules.push(rule.clone());
            }
        }
    }
    if rules == role.rules {
        return Plan::default();
    }
    Plan::from_writes([ApiWrite::Update(ClusterRole { rules, ..role.clone() }.into())])
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proto_api::meta::v1::{LabelSelector, ObjectMeta};
    use proto_api::rbac::v1::AggregationRule;

    use super::*;
    use crate::api_writes::WrittenObject;

    fn role(name: &str, labels: &[&str], verbs: &[&str]) -> ClusterRole {
        let labels = labels.iter().map(|label| ((*label).to_owned(), "true".to_owned()));
        let rule = |verb: &&str| PolicyRule {
            verbs: vec![(*verb).to_owned()],
            api_groups: vec![String::new()],
            resources: vec!["pods".to_owned()],
            ..PolicyRule::default()
        };
        ClusterRole {
            metadata: ObjectMeta {
                name: name.to_owned(),
                labels: labels.collect(),
                ..ObjectMeta::default()
            },
            rules: verbs.iter().map(rule).collect(),
            aggregation_rule: None,
        }
    }

    fn aggregated(name: &str, labels: &[&str], from: &[&str]) -> ClusterRole {
        let selector = |label: &&str| LabelSelector {
            match_labels: BTreeMap::from([((*label).to_owned(), "true".to_owned())]),
            ..LabelSelector::default()
        };
        let cluster_role_selectors = from.iter().map(selector).collect();
        let aggregation_rule = Some(AggregationRule { cluster_role_selectors });
        ClusterRole { aggregation_rule, ..role(name, labels, &[]) }
    }

    fn verbs(plan: &Plan) -> Vec<&str> {
        let [ApiWrite::Update(WrittenObject::ClusterRole(role))] = &plan.writes[..] else {
            return Vec::new();
        };
        role.rules.iter().map(|rule| rule.verbs[0].as_str()).collect()
    }

    #[test]
    fn the_rules_are_those_of_the_selected_roles() {
        let edit = aggregated("edit", &["to-edit"], &["to-edit", "more"]);
        let roles = [
            edit.clone(),
            role("b", &["to-edit"], &["list", "get"]),
            role("a", &["to-edit", "more"], &["get", "watch"]),
            role("c", &["more"], &["delete"]),
            role("d", &["other"], &["patch"]),
        ]
        .map(Arc::new);
        let planned = plan(&edit, &roles);
        assert_eq!(verbs(&planned), ["get", "watch", "list", "delete"]);
        let [ApiWrite::Update(WrittenObject::ClusterRole(written))] = &planned.writes[..] else {
            unreachable!("one update")
        };
        assert_eq!(plan(written, &roles), Plan::default());
        // Without the roles nothing is left of their rules.
        let [ApiWrite::Update(WrittenObject::ClusterRole(emptied))] =
            &plan(written, &[]).writes[..]
        else {
            unreachable!("one update")
        };
        assert!(emptied.rules.is_empty());
        assert_eq!(plan(&role("own", &[], &["get"]), &roles), Plan::default());
    }
}
