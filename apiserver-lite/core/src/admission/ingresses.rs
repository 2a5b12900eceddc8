//! The default IngressClass, for Ingresses that name no class, and the warning for those that name it in the older way.

use apiserver_schema::Object;

use super::default_classes::default_classes;
use crate::context::RequestContext;
use crate::status::{ApiError, StatusTarget};

/// Sets the class of a new Ingress that has none, neither as field nor as the older annotation.
///
/// # Errors
/// 403 if several classes are the default.
pub fn admit_create(call: &RequestContext<'_>, ingress: &mut Object) -> Result<(), ApiError> {
    let names = call.server.names;
    let is_named = ingress.spec().is_some_and(|spec| spec.contains("ingressClassName"));
    if is_named || ingress.annotations().contains_key(&names.label("ingress.class")) {
        return Ok(());
    }
    let annotation = names.sub_label("ingressclass", "is-default-class");
    let classes = default_classes(call, ("networking", "ingressclasses"), &[annotation]);
    match classes.as_slice() {
        [] => Ok(()),
        [class] => {
            let name = class.object().name().to_owned();
            ingress.fields.map_or_insert("spec").insert("ingressClassName", name);
            Ok(())
        }
        several => {
            let count = several.len();
            let about = StatusTarget { name: ingress.name(), ..call.about() };
            let why = format!(
                "Internal error occurred: {count} default IngressClasses were found, only 1 allowed"
            );
            Err(ApiError::forbidden(about, &why))
        }
    }
}

/// The warning for a new Ingress that names its class by the older annotation, in Kubernetes' words.
pub fn class_warning(call: &RequestContext<'_>, ingress: &Object) -> Option<String> {
    let annotation = call.server.names.label("ingress.class");
    let is_older = ingress.kind.is("networking", "Ingress")
        && ingress.spec().is_none_or(|spec| !spec.contains("ingressClassName"))
        && ingress.annotations().contains_key(&annotation);
    is_older.then(|| {
        format!(
            "annotation {annotation:?} is deprecated, please use 'spec.ingressClassName' instead"
        )
    })
}
