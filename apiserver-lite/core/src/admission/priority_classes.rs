//! PriorityClasses: which one is the default of pods that name none, and that there is no second one.

use std::sync::Arc;

use apiserver_schema::Object;

use super::Operation;
use crate::context::RequestContext;
use crate::record::StoredObject;
use crate::status::{ApiError, StatusTarget};

/// The default class: of several, which older stores may have, the one with the lowest priority.
pub fn default_class(call: &RequestContext<'_>) -> Option<Arc<StoredObject>> {
    let kind = call.server.kind("scheduling", "priorityclasses")?;
    let classes = call.server.objects(kind, "", None).into_iter();
    let defaults = classes.filter(|class| class.object().fields.is_true("globalDefault"));
    defaults.min_by_key(|class| class.object().fields.int("value").unwrap_or(0))
}

/// Refuses a class that is to be the default while another one is.
///
/// # Errors
/// 403.
pub fn admit(
    call: &RequestContext<'_>,
    operation: Operation,
    class: &Object,
) -> Result<(), ApiError> {
    if !class.fields.is_true("globalDefault") {
        return Ok(());
    }
    match default_class(call) {
        Some(found) if operation == Operation::Create || found.object().name() != class.name() => {
            let why = format!(
                "PriorityClass {} is already marked as default. Only one default can exist",
                found.object().name()
            );
            Err(ApiError::forbidden(StatusTarget { name: class.name(), ..call.about() }, &why))
        }
        _ => Ok(()),
    }
}
