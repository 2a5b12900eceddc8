//! Service accounts, roles and their bindings.

use serde_json::Value;

use super::{Context, Page, common};
use crate::{objects, rules};

pub(super) fn describe_account(page: &mut Page, object: &Value, context: Context<'_>) {
    common::name(page, object);
    common::labels(page, object, context);
    let list = |pointer: &str| -> Vec<String> {
        let references = objects::list_at(object, pointer).iter();
        references.map(|one| objects::text_at(one, "/name").to_owned()).collect()
    };
    common::title_lines(page, 0, "Image pull secrets", &list("/imagePullSecrets"));
    common::title_lines(page, 0, "Mountable secrets", &list("/secrets"));
    common::title_lines(page, 0, "Tokens", &[]);
}

fn head(page: &mut Page, object: &Value, context: Context<'_>) {
    page.field(0, "Name", objects::name(object));
    common::labels(page, object, context);
}

pub(super) fn describe_role(page: &mut Page, object: &Value, context: Context<'_>) {
    head(page, object, context);
    page.line(0, "PolicyRule:");
    page.line(1, "Resources\tNon-Resource URLs\tResource Names\tVerbs");
    page.line(1, "---------\t-----------------\t--------------\t-----");
    let of_urls = |rule: &&Value| !objects::list_at(rule, "/nonResourceURLs").is_empty();
    let all = objects::list_at(object, "/rules");
    let urls: Vec<Value> = all.iter().filter(of_urls).cloned().collect();
    for row in rules::rows(all, &urls) {
        page.line(1, row.join("\t"));
    }
}

pub(super) fn describe_binding(page: &mut Page, object: &Value, context: Context<'_>) {
    head(page, object, context);
    page.line(0, "Role:");
    page.field(1, "Kind", objects::text_at(object, "/roleRef/kind"));
    page.field(1, "Name", objects::text_at(object, "/roleRef/name"));
    page.line(0, "Subjects:");
    page.line(1, "Kind\tName\tNamespace");
    page.line(1, "----\t----\t---------");
    for subject in objects::list_at(object, "/subjects") {
        let text = |pointer: &str| objects::text_at(subject, pointer);
        page.line(1, format!("{}\t{}\t{}", text("/kind"), text("/name"), text("/namespace")));
    }
}
