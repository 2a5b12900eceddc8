//! Options of write requests: dry run, field manager, and DeleteOptions.

use apiserver_schema::{Map, Value};
use proto_api::names::Names;

use crate::request::Query;
use crate::status::{ApiError, FieldProblem, StatusTarget};

/// Whether a request changes stored objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effects {
    /// The request is carried out.
    Real,
    /// Everything but the write is done.
    DryRun,
}

/// Deletion propagation: the treatment of dependents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Propagation {
    /// The garbage collector deletes them afterwards.
    Background,
    /// They are deleted before the object.
    Foreground,
    /// They are kept.
    Orphan,
}

/// Parsed `DeleteOptions`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeleteOptions {
    /// Grace period in seconds; the kind's default when unset.
    pub grace_secs: Option<i64>,
    /// Precondition: the object has this uid.
    pub uid: Option<String>,
    /// Precondition: the object has this resourceVersion.
    pub resource_version: Option<String>,
    /// Treatment of dependents; the kind's default when unset.
    pub propagation: Option<Propagation>,
    /// Whether it is a dry run.
    pub effects: Effects,
}

impl Default for DeleteOptions {
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

/// Longest grace period in seconds, so that resulting timestamps have years of four digits.
pub(crate) const GRACE_SECS_MAX: i64 = i32::MAX as i64;

/// Longest `fieldManager`, in bytes.
const FIELD_MANAGER_LEN_MAX: usize = 128;

/// Checks the options of an apply, and returns whether it takes the fields of others.
///
/// # Errors
/// 422 without `fieldManager`.
pub(crate) fn apply_force(query: &Query) -> Result<bool, ApiError> {
    if query.text("fieldManager").is_none_or(str::is_empty) {
        let problem = FieldProblem::required("fieldManager", "is required for apply patch");
        return Err(ApiError::invalid(
            StatusTarget { kind: "PatchOptions", ..StatusTarget::default() },
            &[problem],
        ));
    }
    let force = query.text("force").unwrap_or("false");
    // As Kubernetes reads booleans of a query.
    Ok(!force.is_empty() && force != "0" && !force.eq_ignore_ascii_case("false"))
}

/// Refuses `force` of other patches.
///
/// # Errors
/// 422.
pub(crate) fn refuse_force(query: &Query) -> Result<(), ApiError> {
    if query.text("force").is_none_or(str::is_empty) {
        return Ok(());
    }
    let problem = FieldProblem::forbidden("force", "may not be specified for non-apply patch");
    Err(ApiError::invalid(
        StatusTarget { kind: "PatchOptions", ..StatusTarget::default() },
        &[problem],
    ))
}

/// Checks the query parameter `fieldManager`.
///
/// # Errors
/// 422 for a name that is too long or not printable.
pub(crate) fn check_field_manager(query: &Query) -> Result<(), ApiError> {
    let Some(manager) = query.text("fieldManager") else { return Ok(()) };
    let problem = if manager.len() > FIELD_MANAGER_LEN_MAX {
        FieldProblem {
            reason: "FieldValueTooLong".to_owned(),
            message: format!("Too long: may not be longer than {FIELD_MANAGER_LEN_MAX}"),
            field: "fieldManager".to_owned(),
        }
    } else if manager.chars().any(char::is_control) {
        let detail = "should only contain printable characters";
        FieldProblem::invalid("fieldManager", format!("{manager:?}"), detail)
    } else {
        return Ok(());
    };
    Err(ApiError::invalid(StatusTarget { kind: "Options", ..StatusTarget::default() }, &[problem]))
}

/// `seconds` within bounds. A negative grace period is one second, as in Kubernetes.
#[must_use]
pub(crate) fn bounded_grace(seconds: i64) -> i64 {
    if seconds < 0 { 1 } else { seconds.min(GRACE_SECS_MAX) }
}

/// Parses the values of `dryRun`; empty ones are ignored.
///
/// # Errors
/// 422 for any value but `All`.
pub(crate) fn effects<'a>(values: impl Iterator<Item = &'a str>) -> Result<Effects, ApiError> {
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
                StatusTarget { kind: "Options", ..StatusTarget::default() },
                &[problem],
            ));
        }
        effects = Effects::DryRun;
    }
    Ok(effects)
}

impl DeleteOptions {
    /// Merges the options of the body with the query parameters, which apply where the body has no value.
    ///
    /// # Errors
    /// 400 for query values that are not a number or boolean, 422 for an unknown dry run or propagation policy, or for both
    /// `propagationPolicy` and `orphanDependents`.
    pub fn new(names: &Names, options: &Map, query: &Query) -> Result<Self, ApiError> {
        let dry_runs =
            options.list("dryRun").iter().filter_map(Value::as_str).chain(query.all("dryRun"));
        let effects = effects(dry_runs)?;
        let asked = match options.int("gracePeriodSeconds") {
            Some(seconds) => Some(seconds),
            None => query_value(query, "gracePeriodSeconds")?,
        };
        let precondition = |field: &str| {
            options
                .map("preconditions")
                .and_then(|map| map.get(field))
                .and_then(Value::as_str)
                .map(str::to_owned)
        };
        Ok(Self {
            grace_secs: asked.map(bounded_grace),
            uid: precondition("uid"),
            resource_version: precondition("resourceVersion"),
            propagation: propagation(names, options, query)?,
            effects,
        })
    }
}

/// The policy of `propagationPolicy`, or of the older `orphanDependents`.
fn propagation(
    names: &Names,
    options: &Map,
    query: &Query,
) -> Result<Option<Propagation>, ApiError> {
    let group = names.group("meta");
    let invalid = |problem| {
        let about = StatusTarget { group: &group, kind: "DeleteOptions", name: "" };
        ApiError::invalid(about, &[problem])
    };
    let policy = options.get("propagationPolicy").and_then(Value::as_str);
    let policy = policy.filter(|policy| !policy.is_empty()).or(query.text("propagationPolicy"));
    let orphans = match options.get("orphanDependents").and_then(Value::as_bool) {
        Some(orphans) => Some(orphans),
        None => query_value(query, "orphanDependents")?,
    };
    match (policy, orphans) {
        (Some(policy), Some(_)) => Err(invalid(FieldProblem::invalid(
            "propagationPolicy",
            format!("{policy:?}"),
            "orphanDependents and deletionPropagation cannot be both set",
        ))),
        (Some("Background"), None) | (None, Some(false)) => Ok(Some(Propagation::Background)),
        (Some("Foreground"), None) => Ok(Some(Propagation::Foreground)),
        (Some("Orphan"), None) | (None, Some(true)) => Ok(Some(Propagation::Orphan)),
        (Some(other), None) => Err(invalid(FieldProblem {
            reason: "FieldValueNotSupported".to_owned(),
            message: format!(
                "Unsupported value: {other:?}: supported values: \"Background\", \"Foreground\", \"Orphan\""
            ),
            field: "propagationPolicy".to_owned(),
        })),
        (None, None) => Ok(None),
    }
}

/// Parses a query parameter.
fn query_value<T: std::str::FromStr>(query: &Query, name: &str) -> Result<Option<T>, ApiError> {
    let parse = |text: &str| {
        let wrong = |_| ApiError::bad_request(format!("invalid value {text:?} for {name}"));
        text.parse().map_err(wrong)
    };
    query.text(name).map(parse).transpose()
}

#[cfg(test)]
mod tests {
    use proto_api::names::Profile;

    use super::*;

    fn names() -> &'static Names {
        Names::new(Profile::Kubernetes)
    }

    #[test]
    fn body_goes_before_query() {
        let body: Map = [("gracePeriodSeconds", 5)].into_iter().collect();
        let query = Query::parse("gracePeriodSeconds=7&propagationPolicy=Orphan&dryRun=All");
        let options = DeleteOptions::new(names(), &body, &query).unwrap();
        assert_eq!((options.grace_secs, options.propagation), (Some(5), Some(Propagation::Orphan)));
        assert_eq!(options.effects, Effects::DryRun);
        assert_eq!(DeleteOptions::new(names(), &Map::new(), &query).unwrap().grace_secs, Some(7));
    }

    #[test]
    fn unknown_values_are_refused() {
        let refuse = |query: &str| {
            DeleteOptions::new(names(), &Map::new(), &Query::parse(query)).unwrap_err().code()
        };
        assert_eq!(refuse("dryRun=Some"), 422);
        assert_eq!(refuse("propagationPolicy=Never"), 422);
        assert_eq!(refuse("propagationPolicy=Orphan&orphanDependents=true"), 422);
        assert_eq!(refuse("orphanDependents=perhaps"), 400);
        assert_eq!(refuse("gracePeriodSeconds=x"), 400);
        assert_eq!(refuse("gracePeriodSeconds=9223372036854775808"), 400);
        assert_eq!(effects(["", "All"].into_iter()).unwrap(), Effects::DryRun);
        assert_eq!(effects([""].into_iter()).unwrap(), Effects::Real);
    }

    #[test]
    fn any_grace_is_brought_within_bounds() {
        for (asked, expected) in [
            (i64::MIN, 1),
            (-1, 1),
            (0, 0),
            (30, 30),
            (GRACE_SECS_MAX, GRACE_SECS_MAX),
            (GRACE_SECS_MAX + 1, GRACE_SECS_MAX),
            (i64::MAX, GRACE_SECS_MAX),
        ] {
            let body: Map = [("gracePeriodSeconds", asked)].into_iter().collect();
            let query = Query::parse(&format!("gracePeriodSeconds={asked}"));
            let by_body = DeleteOptions::new(names(), &body, &Query::default()).unwrap().grace_secs;
            let by_query = DeleteOptions::new(names(), &Map::new(), &query).unwrap().grace_secs;
            assert_eq!((by_body, by_query), (Some(expected), Some(expected)), "{asked}");
        }
    }

    #[test]
    fn the_older_way_to_name_a_policy() {
        let of = |query: &str| {
            DeleteOptions::new(names(), &Map::new(), &Query::parse(query)).unwrap().propagation
        };
        assert_eq!(of("orphanDependents=true"), Some(Propagation::Orphan));
        assert_eq!(of("orphanDependents=false"), Some(Propagation::Background));
        assert_eq!(of(""), None);
    }
}
