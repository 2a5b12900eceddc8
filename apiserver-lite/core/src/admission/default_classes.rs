//! Classes that their annotation makes the default of their kind.

use std::sync::Arc;

use apiserver_schema::{Map, Object};

use crate::context::RequestContext;
use crate::record::StoredObject;

/// The objects of a cluster-scoped kind, by short group and resource, of which one of `annotations` is `true`.
pub fn default_classes(
    call: &RequestContext<'_>,
    (group, resource): (&str, &str),
    annotations: &[String],
) -> Vec<Arc<StoredObject>> {
    let Some(kind) = call.server.kind(group, resource) else { return Vec::new() };
    let is_default = |class: &Object| {
        let found = class.metadata().and_then(|metadata| metadata.map("annotations"));
        let says =
            |found: &Map| annotations.iter().any(|annotation| found.str(annotation) == "true");
        found.is_some_and(says)
    };
    let classes = call.server.objects(kind, "", None).into_iter();
    classes.filter(|class| is_default(class.object())).collect()
}
