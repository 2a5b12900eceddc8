//! Conversion: the strategy and its webhook.

use apiserver_schema::validate::names;
use apiserver_schema::{Map, Value};

use super::columns::check_choice;
use crate::errors::{ErrorList, Path};

pub(super) fn check(spec: &Map, errors: &mut ErrorList) {
    let Some(conversion) = spec.map("conversion") else { return };
    let path = Path::ROOT.field("spec.conversion");
    let strategy = conversion.str("strategy");
    if strategy != "None" && spec.is_true("preserveUnknownFields") {
        let detail = "must be None if spec.preserveUnknownFields is true";
        errors.invalid_text(&path.field("strategy"), strategy, detail);
    }
    check_choice(strategy, &["None", "Webhook"], &path.field("strategy"), errors);
    let webhook = conversion.map("webhook");
    let client = webhook.and_then(|webhook| webhook.map("clientConfig"));
    let versions = webhook.map_or(&[][..], |webhook| webhook.list("conversionReviewVersions"));
    if strategy != "Webhook" {
        let detail = "should not be set when strategy is not set to Webhook";
        if client.is_some() {
            errors.forbidden(&path.field("webhookClientConfig"), detail);
        }
        if !versions.is_empty() {
            errors.forbidden(&path.field("conversionReviewVersions"), detail);
        }
        return;
    }
    check_client(client, path.field("webhookClientConfig"), errors);
    check_versions(versions, path.field("conversionReviewVersions"), errors);
}

fn check_client(client: Option<&Map>, path: Path<'_>, errors: &mut ErrorList) {
    let Some(client) = client else {
        return errors.required(&path, "required when strategy is set to Webhook");
    };
    let url = client.get("url").and_then(Value::as_str);
    match (url, client.map("service")) {
        (Some(url), None) => check_url(url, &path.field("url"), errors),
        (None, Some(service)) => check_service(service, path.field("service"), errors),
        _ => errors.required(&path, "exactly one of url or service is required"),
    }
}

fn check_url(url: &str, path: &Path<'_>, errors: &mut ErrorList) {
    const FORM: &str = "; desired format: https://host[/path]";
    let Some(rest) = url.strip_prefix("https://") else {
        let detail = format!("'https' is the only allowed URL scheme{FORM}");
        return errors.invalid_text(path, url, &detail);
    };
    let (before, fragment) =
        rest.split_once('#').map_or((rest, ""), |(before, after)| (before, after));
    let (before, query) =
        before.split_once('?').map_or((before, ""), |(before, after)| (before, after));
    let host = before.split('/').next().unwrap_or_default();
    if host.is_empty() {
        errors.invalid_text(path, host, &format!("host must be specified{FORM}"));
    }
    if let Some((user, _)) = host.rsplit_once('@') {
        errors.invalid_text(path, user, "user information is not permitted in the URL");
    }
    if !fragment.is_empty() {
        errors.invalid_text(path, fragment, "fragments are not permitted in the URL");
    }
    if !query.is_empty() {
        errors.invalid_text(path, query, "query parameters are not permitted in the URL");
    }
}

fn check_service(service: &Map, path: Path<'_>, errors: &mut ErrorList) {
    for (field, detail) in
        [("name", "service name is required"), ("namespace", "service namespace is required")]
    {
        if service.str(field).is_empty() {
            errors.required(&path.field(field), detail);
        }
    }
    let port = service.int("port").unwrap_or(443);
    for complaint in names::port_number(port) {
        let detail = format!("port is not valid: {complaint}");
        errors.invalid(&path.field("port"), &Value::Int(port), &detail);
    }
    let Some(url_path) = service.get("path").and_then(Value::as_str) else { return };
    let field = path.field("path");
    if url_path == "/" || url_path.is_empty() {
        return;
    }
    if url_path == "//" {
        return errors.invalid_text(&field, url_path, "segment[0] may not be empty");
    }
    let Some(rest) = url_path.strip_prefix('/') else {
        return errors.invalid_text(&field, url_path, "must start with a '/'");
    };
    for (at, segment) in rest.strip_suffix('/').unwrap_or(rest).split('/').enumerate() {
        if segment.is_empty() {
            errors.invalid_text(&field, url_path, &format!("segment[{at}] may not be empty"));
            continue;
        }
        for complaint in names::dns_subdomain(segment) {
            errors.invalid_text(&field, url_path, &format!("segment[{at}]: {complaint}"));
        }
    }
}

fn check_versions(versions: &[Value], path: Path<'_>, errors: &mut ErrorList) {
    if versions.is_empty() {
        return errors.required(&path, "");
    }
    let mut seen: Vec<&str> = Vec::new();
    for (at, version) in versions.iter().enumerate().take(100) {
        let version = version.as_str().unwrap_or_default();
        if seen.contains(&version) {
            errors.invalid_text(&path.index(at), version, "duplicate version");
            continue;
        }
        seen.push(version);
        for complaint in names::dns_1035_label(version) {
            errors.invalid_text(&path.index(at), version, &complaint);
        }
    }
    if !seen.iter().any(|version| matches!(*version, "v1" | "v1beta1")) {
        let versions = Value::List(versions.to_vec());
        errors.invalid(&path, &versions, "must include at least one of v1, v1beta1");
    }
}
