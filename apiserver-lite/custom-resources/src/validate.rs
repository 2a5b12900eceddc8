//! Validation of objects: first the values, then lists with keys and embedded resources, then rules.

use apiserver_schema::Value;
use apiserver_schema::validate::Cause;

use crate::errors::{ErrorList, Path};
use crate::node::Node;
use crate::rules;

mod embedded;
mod lists;
#[cfg(test)]
mod tests;
mod values;

pub(crate) use values::Values;

/// Validates `new`; `old` is the stored version of an update.
pub(crate) fn validate(root: &Node, new: &Value, old: Option<&Value>, errors: &mut ErrorList) {
    let mut values = Values::new(errors);
    values.check(root, new, Path::ROOT);
    values.check_steps();
    if root.has_lists {
        lists::check(root, new, Path::ROOT, errors);
        embedded::check_below(root, new, Path::ROOT, errors);
    }
    if !root.has_rules {
        return;
    }
    let blocking = |cause| {
        matches!(cause, Cause::Required | Cause::TooLong | Cause::TooMany | Cause::TypeInvalid)
    };
    if errors.0.iter().any(|error| blocking(error.cause)) {
        let detail = "some validation rules were not checked because the object was invalid; correct the existing errors to \
                      complete validation";
        errors.invalid(&Path::ROOT, &Value::Null, detail);
        return;
    }
    rules::check(root, new, old, errors);
}
