//! Options of requests that change something: dry run, and how an object is to be deleted.

use apiserver_schema::{Map, Value};

use crate::http::Query;
use crate::status::{About, ApiError, FieldProblem};

/// Whether a request leaves a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effects {
    /// It is carried out.
    Real,
    /// Everything but the write happens.
    DryRun,
}

/// How dependents of a deleted object are treated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Propagation {
    /// Deleted after it, by the garbage collector.
    Background,
    /// Deleted before it.
    Foreground,
    /// Kept.
    Orphan,
}

/// How an object is to be deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeleteWish {
    /// Seconds that the object's owner has for an orderly end; the kind's default when unset.
    pub grace_secs: Option<i64>,
    /// Only the object with this uid.
    pub uid: Option<String>,
    /// Only the object at this revision.
    pub resource_version: Option<String>,
    /// What becomes of dependents.
    pub propagation: Option<Propagation>,
    /// Whether it is carried out.
    pub effects: Effects,
}

impl Default for DeleteWish {
    fn default() -> Self {
        Self {
            grace_secs: None,
            uid: None,
            resource_version: None,
            propagation: None,
            effects: Effects::Real,
        }
    }
}

/// Longest grace: timestamps that follow from it stay within four-digit years.
const GRACE_SECS_MAX: i64 = i32::MAX as i64;

/// Reads the values of `dryRun`; one without a value asks for nothing.
///
/// # Errors
/// 422 for any value but `All`.
pub fn effects<'a>(values: impl Iterator<Item = &'a str>) -> Result<Effects, ApiError> {
    let mut effects = Effects::Real;
    for value in values.filter(|value| !value.is_empty()) {
        if value != "All" {
            let detail = format!("Unsupported value: {value:?}: supported values: \"All\"");
            let problem = FieldProblem {
                reason: "FieldValueNotSupported".to_owned(),
                message: detail,
                field: "dryRun".to_owned(),
            };
            return Err(ApiError::invalid(
                About { kind: "Options", ..About::default() },
                &[problem],
            ));
        }
        effects = Effects::DryRun;
    }
    Ok(effects)
}

impl DeleteWish {
    /// Joins the body's options with the query's, which are used where the body has none.
    ///
    /// # Errors
    /// 400 for numbers and policies that are none, 422 for an unknown dry run.
    pub fn new(options: &Map, query: &Query) -> Result<Self, ApiError> {
        let dry_runs =
            options.list("dryRun").iter().filter_map(Value::as_str).chain(query.all("dryRun"));
        let effects = effects(dry_runs)?;
        let policy = options.get("propagationPolicy").and_then(Value::as_str);
        let propagation =
            match (policy.or(query.text("propagationPolicy")), options.get("orphanDependents")) {
                (Some("Background"), _) => Some(Propagation::Background),
                (Some("Foreground"), _) => Some(Propagation::Foreground),
                (Some("Orphan"), _) => Some(Propagation::Orphan),
                (Some(other), _) => {
                    return Err(ApiError::bad_request(format!(
                        "invalid propagationPolicy {other:?}"
                    )));
                }
                (None, Some(Value::Bool(true))) => Some(Propagation::Orphan),
                (None, Some(_)) => Some(Propagation::Background),
                (None, None) => None,
            };
        let by_query = || query.number("gracePeriodSeconds");
        let grace_secs = match options.int("gracePeriodSeconds") {
            Some(seconds) => Some(seconds),
            None => by_query()?.map(|seconds| i64::try_from(seconds).unwrap_or(i64::MAX)),
        };
        if grace_secs.is_some_and(|seconds| !(0..=GRACE_SECS_MAX).contains(&seconds)) {
            return Err(ApiError::bad_request("gracePeriodSeconds must be from 0 to 2^31-1"));
        }
        let precondition = |field: &str| {
            options
                .map("preconditions")
                .and_then(|map| map.get(field))
                .and_then(Value::as_str)
                .map(str::to_owned)
        };
        Ok(Self {
            grace_secs,
            uid: precondition("uid"),
            resource_version: precondition("resourceVersion"),
            propagation,
            effects,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn body_goes_before_query() {
        let body: Map = [("gracePeriodSeconds", 5)].into_iter().collect();
        let query = Query::parse("gracePeriodSeconds=7&propagationPolicy=Orphan&dryRun=All");
        let wish = DeleteWish::new(&body, &query).unwrap();
        assert_eq!((wish.grace_secs, wish.propagation), (Some(5), Some(Propagation::Orphan)));
        assert_eq!(wish.effects, Effects::DryRun);
        assert_eq!(DeleteWish::new(&Map::new(), &query).unwrap().grace_secs, Some(7));
    }

    #[test]
    fn unknown_values_are_refused() {
        let refuse =
            |query: &str| DeleteWish::new(&Map::new(), &Query::parse(query)).unwrap_err().code();
        assert_eq!(refuse("dryRun=Some"), 422);
        assert_eq!(refuse("propagationPolicy=Never"), 400);
        assert_eq!(refuse("gracePeriodSeconds=-1"), 400);
        assert_eq!(effects(["", "All"].into_iter()).unwrap(), Effects::DryRun);
        assert_eq!(effects([""].into_iter()).unwrap(), Effects::Real);
    }
}
