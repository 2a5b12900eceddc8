//! The options of a request as webhooks see them.

use apiserver_admission_webhooks::WebhookOperation;
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Map, Value};

use crate::context::RequestContext;
use crate::options::{DeleteOptions, Effects, Propagation};

/// CreateOptions, UpdateOptions or DeleteOptions; a connection has none. A patch has UpdateOptions, as in Kubernetes.
pub fn document(
    call: &RequestContext<'_>,
    operation: WebhookOperation,
    effects: Effects,
    deletion: Option<&DeleteOptions>,
) -> Option<Box<RawValue>> {
    let kind = match operation {
        WebhookOperation::Create => "CreateOptions",
        WebhookOperation::Update => "UpdateOptions",
        WebhookOperation::Delete => "DeleteOptions",
        WebhookOperation::Connect => return None,
    };
    let mut options = Map::new();
    let mut set = |field: &str, value: Value| drop(options.insert(field.to_owned(), value));
    set("kind", kind.into());
    set("apiVersion", call.server.names.api_version("meta", "v1").into());
    match (operation, deletion) {
        (WebhookOperation::Delete, Some(deletion)) => fields_of_deletion(deletion, &mut set),
        (WebhookOperation::Delete, None) => {}
        _ => {
            for field in ["fieldManager", "fieldValidation"] {
                if let Some(text) = call.query.text(field) {
                    set(field, text.into());
                }
            }
        }
    }
    if effects == Effects::DryRun {
        set("dryRun", vec!["All"].into());
    }
    to_raw_value(&options).ok()
}

fn fields_of_deletion(options: &DeleteOptions, set: &mut impl FnMut(&str, Value)) {
    if let Some(seconds) = options.grace_secs {
        set("gracePeriodSeconds", seconds.into());
    }
    let preconditions = [("uid", &options.uid), ("resourceVersion", &options.resource_version)];
    let preconditions = preconditions.into_iter().filter_map(|(field, value)| {
        value.as_ref().map(|value| (field.to_owned(), Value::from(value.as_str())))
    });
    let preconditions: Map<String, Value> = preconditions.collect();
    if !preconditions.is_empty() {
        set("preconditions", preconditions.into());
    }
    if let Some(propagation) = options.propagation {
        let policy = match propagation {
            Propagation::Background => "Background",
            Propagation::Foreground => "Foreground",
            Propagation::Orphan => "Orphan",
        };
        set("propagationPolicy", policy.into());
    }
}
