//! Rules of what is allowed, one row a resource.

use serde_json::Value;

use crate::columns::Row;
use crate::objects;

/// Most rows: each resource of each group of a rule is one.
const ROWS_MAX: usize = 100_000;

/// Texts in brackets.
pub fn words(list: &[Value]) -> String {
    let texts: Vec<&str> = list.iter().filter_map(Value::as_str).collect();
    format!("[{}]", texts.join(" "))
}

#[derive(Debug)]
struct Rule {
    /// Group and resource in brackets, for the order.
    order: (String, String),
    resource: String,
    urls: String,
    names: String,
    verbs: Vec<Value>,
}

/// One row for all objects of a resource and one for each named object, with the verbs of all rules about it, and one for each verb of each URL; rows are
/// in the order of their verbs.
pub fn rows(resource_rules: &[Value], url_rules: &[Value]) -> Vec<Row> {
    let mut rules: Vec<Rule> = Vec::new();
    for rule in resource_rules {
        let names: Vec<String> = match objects::list_at(rule, "/resourceNames") {
            [] => vec!["[]".to_owned()],
            names => names.iter().map(|name| words(std::slice::from_ref(name))).collect(),
        };
        let verbs = objects::list_at(rule, "/verbs");
        for resource in objects::list_at(rule, "/resources").iter().filter_map(Value::as_str) {
            for group in objects::list_at(rule, "/apiGroups").iter().filter_map(Value::as_str) {
                names.iter().for_each(|name| add(&mut rules, (group, resource, name), verbs));
            }
        }
    }
    for rule in url_rules {
        let verbs = objects::list_at(rule, "/verbs");
        let urls = objects::list_at(rule, "/nonResourceURLs").iter();
        for url in urls.filter(|url| url.is_string()) {
            rules.extend(verbs.iter().take(ROWS_MAX.saturating_sub(rules.len())).map(|verb| {
                Rule {
                    order: ("[]".to_owned(), "[]".to_owned()),
                    resource: String::new(),
                    urls: words(std::slice::from_ref(url)),
                    names: "[]".to_owned(),
                    verbs: vec![verb.clone()],
                }
            }));
        }
    }
    rules.sort_by_cached_key(|rule| {
        (words(&rule.verbs), rule.order.clone(), rule.names.clone(), rule.urls.clone())
    });
    rules
        .into_iter()
        .map(|rule| vec![rule.resource, rule.urls, rule.names, words(&rule.verbs)])
        .collect()
}

/// Adds the verbs of a resource, of which there is one object or all.
fn add(rules: &mut Vec<Rule>, (group, resource, names): (&str, &str, &str), verbs: &[Value]) {
    let full = if group.is_empty() { resource.to_owned() } else { with_group(resource, group) };
    if let Some(known) = rules.iter_mut().find(|one| one.resource == full && one.names == names) {
        let new: Vec<Value> =
            verbs.iter().filter(|verb| !known.verbs.contains(verb)).cloned().collect();
        known.verbs.extend(new);
    } else if rules.len() < ROWS_MAX {
        rules.push(Rule {
            order: (format!("[{group}]"), format!("[{resource}]")),
            resource: full,
            urls: "[]".to_owned(),
            names: names.to_owned(),
            verbs: verbs.to_vec(),
        });
    }
}

/// The group stands between a resource and its subresource.
fn with_group(resource: &str, group: &str) -> String {
    match resource.split_once('/') {
        Some((resource, sub)) => format!("{resource}.{group}/{sub}"),
        None => format!("{resource}.{group}"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn verbs_of_one_resource_stand_together() {
        let status = json!({
            "resourceRules": [
                {"verbs": ["list"], "apiGroups": ["", "apps"], "resources": ["pods", "x/scale"]},
                {"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]},
                {"verbs": ["get"], "apiGroups": [""], "resources": ["pods"], "resourceNames": ["a", "b"]},
            ],
            "nonResourceRules": [{"verbs": ["get"], "nonResourceURLs": ["/healthz", "/version"]}],
        });
        let lines: Vec<String> = rows(
            objects::list_at(&status, "/resourceRules"),
            objects::list_at(&status, "/nonResourceRules"),
        )
        .into_iter()
        .map(|row| row.join("|"))
        .collect();
        assert_eq!(
            lines,
            [
                "|[/healthz]|[]|[get]",
                "|[/version]|[]|[get]",
                "pods|[]|[a]|[get]",
                "pods|[]|[b]|[get]",
                "pods|[]|[]|[list get]",
                "x/scale|[]|[]|[list]",
                "pods.apps|[]|[]|[list]",
                "x.apps/scale|[]|[]|[list]",
            ]
        );
    }
}
