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

/// One row a resource, with the verbs of all rules about it, and one for each verb of each URL; rows are in the order of their verbs.
pub fn rows(resource_rules: &[Value], url_rules: &[Value]) -> Vec<Row> {
    let mut rules: Vec<Rule> = Vec::new();
    for rule in resource_rules {
        let names = words(objects::list_at(rule, "/resourceNames"));
        let verbs = objects::list_at(rule, "/verbs");
        for resource in objects::list_at(rule, "/resources").iter().filter_map(Value::as_str) {
            for group in objects::list_at(rule, "/apiGroups").iter().filter_map(Value::as_str) {
                let full = if group.is_empty() {
                    resource.to_owned()
                } else {
                    with_group(resource, group)
                };
                let known = rules.iter_mut().find(|one| one.resource == full && one.names == names);
                if let Some(known) = known {
                    let new: Vec<Value> =
                        verbs.iter().filter(|verb| !known.verbs.contains(verb)).cloned().collect();
                    known.verbs.extend(new);
                } else if rules.len() < ROWS_MAX {
                    let (urls, verbs) = ("[]".to_owned(), verbs.to_vec());
                    let order = (format!("[{group}]"), format!("[{resource}]"));
                    rules.push(Rule { order, resource: full, urls, names: names.clone(), verbs });
                }
            }
        }
    }
    for rule in url_rules {
        let verbs = objects::list_at(rule, "/verbs");
        for url in objects::list_at(rule, "/nonResourceURLs") {
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
    rules.sort_by(|a, b| {
        let key = |rule: &Rule| {
            (words(&rule.verbs), rule.order.clone(), rule.names.clone(), rule.urls.clone())
        };
        key(a).cmp(&key(b))
    });
    rules
        .into_iter()
        .map(|rule| vec![rule.resource, rule.urls, rule.names, words(&rule.verbs)])
        .collect()
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
                {"verbs": ["get"], "apiGroups": [""], "resources": ["pods"], "resourceNames": ["a"]},
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
                "pods|[]|[]|[list get]",
                "x/scale|[]|[]|[list]",
                "pods.apps|[]|[]|[list]",
                "x.apps/scale|[]|[]|[list]",
            ]
        );
    }
}
