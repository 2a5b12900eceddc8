//! TokenReview and the access reviews: virtual resources whose result is in the status.

use apiserver_schema::{Format, Kind, Map, Object, Value};

use crate::admission;
use crate::context::{RequestContext, about_kind};
use crate::options::Effects;
use crate::request::Representation;
use crate::status::{ApiError, FieldProblem};
use crate::verbs::{VerbOutput, VerbResponse, decode};
use apiserver_auth::{AccessTarget, Attributes, Decision, User, UserRules, share_name};

/// Whether the kind is a review.
#[must_use]
pub fn is_review(kind: &Kind) -> bool {
    matches!(kind.short_group, "authentication" | "authorization")
        && kind.kind().ends_with("Review")
}

/// Evaluates a review and returns it with its status.
///
/// # Errors
/// 400 for an empty review, 406 for a Table: reviews have no rows.
pub async fn create(
    call: &RequestContext<'_>,
    body: &[u8],
    format: Format,
) -> Result<VerbOutput, ApiError> {
    if matches!(call.accepted.representation, Representation::Table(..)) {
        return Err(ApiError::not_acceptable(call.server.names.protobuf_media_type()));
    }
    let decoded = decode(call, body, format)?;
    let mut review = decoded.object;
    let operation = admission::WebhookOperation::Create;
    admission::admit_unstored(call, operation, &mut review, None, Effects::Real).await?;
    let status = match call.kind.kind() {
        "TokenReview" => token_review(call, &review).await?,
        kind @ ("SelfSubjectAccessReview" | "SubjectAccessReview" | "LocalSubjectAccessReview") => {
            check_access_review(kind, &call.request.namespace, &review)?;
            match kind {
                "SelfSubjectAccessReview" => access(call, &review, call.user).await?,
                _ => access(call, &review, &named_user(&review)).await?,
            }
        }
        "SelfSubjectRulesReview" => rules(call, &review)?,
        _ => return Err(ApiError::no_such_resource()),
    };
    review.fields.insert("status", status);
    Ok(VerbOutput {
        response: VerbResponse::Object { code: 201, object: Box::new(review) },
        warnings: decoded.warnings,
    })
}

async fn token_review(call: &RequestContext<'_>, review: &Object) -> Result<Map, ApiError> {
    let token = review.str_at(&["spec", "token"]);
    if token.is_empty() {
        return Err(ApiError::bad_request("token is required for TokenReview in authentication"));
    }
    let asked = review.spec().map(|spec| spec.list("audiences")).unwrap_or_default();
    let asked: Vec<String> = asked.iter().filter_map(Value::as_str).map(str::to_owned).collect();
    let audiences = if asked.is_empty() {
        call.server.authenticators.tokens.audiences().to_vec()
    } else {
        asked
    };
    let mut status = Map::new();
    let authenticators = &call.server.authenticators;
    let client = share_name(&call.user.name, call.server.names.system_namespace());
    match authenticators.token_user(call.server, token, &audiences, client).await {
        Some((user, meant)) => {
            status.insert("authenticated", true);
            status.insert("user", user_map(&user));
            status.insert("audiences", texts(&meant));
        }
        None => {
            status.insert("error", "invalid bearer token");
        }
    }
    Ok(status)
}

fn user_map(user: &User) -> Map {
    let mut map = Map::new();
    map.insert("username", user.name.as_str());
    map.insert("uid", user.uid.as_str());
    map.insert("groups", texts(&user.groups));
    if !user.extra.is_empty() {
        let extra: Map =
            user.extra.iter().map(|(key, values)| (key.clone(), texts(values))).collect();
        map.insert("extra", extra);
    }
    map
}

fn texts(values: &[String]) -> Vec<Value> {
    values.iter().map(|value| Value::from(value.as_str())).collect()
}

/// Checks who and what an access review is about, as Kubernetes does.
fn check_access_review(kind: &str, namespace: &str, review: &Object) -> Result<(), ApiError> {
    let spec = review.spec().cloned().unwrap_or_default();
    let mut problems = Vec::new();
    let mut invalid = |field: &str, detail: &str| {
        problems.push(FieldProblem::invalid(field, "\"\"", detail));
    };
    let resource = spec.map("resourceAttributes");
    let has_path = spec.contains("nonResourceAttributes");
    match (resource.is_some(), has_path) {
        (true, true) => invalid(
            "spec.nonResourceAttributes",
            "cannot be specified in combination with resourceAttributes",
        ),
        (false, false) => invalid(
            "spec.resourceAttributes",
            "exactly one of nonResourceAttributes or resourceAttributes must be specified",
        ),
        _ => {}
    }
    let is_own = kind == "SelfSubjectAccessReview";
    if !is_own && spec.str("user").is_empty() && spec.list("groups").is_empty() {
        invalid("spec.user", "at least one of user or group must be specified");
    }
    if kind == "LocalSubjectAccessReview" {
        if resource.is_some_and(|resource| resource.str("namespace") != namespace) {
            invalid("spec.resourceAttributes.namespace", "must match metadata.namespace");
        }
        if has_path {
            invalid("spec.nonResourceAttributes", "disallowed on this kind of request");
        }
    }
    match problems.is_empty() {
        true => Ok(()),
        false => Err(ApiError::invalid(about_kind(review), &problems)),
    }
}

fn named_user(review: &Object) -> User {
    let spec = review.spec().cloned().unwrap_or_default();
    let list = |values: &[Value]| {
        values.iter().filter_map(Value::as_str).map(str::to_owned).collect::<Vec<_>>()
    };
    let extra = spec.map("extra").into_iter().flat_map(Map::iter);
    User {
        name: spec.str("user").to_owned(),
        uid: spec.str("uid").to_owned(),
        groups: list(spec.list("groups")),
        extra: extra
            .map(|(key, values)| (key.to_owned(), list(values.as_list().unwrap_or_default())))
            .collect(),
    }
}

async fn access(call: &RequestContext<'_>, review: &Object, user: &User) -> Result<Map, ApiError> {
    let (spec, empty) = (review.spec().cloned().unwrap_or_default(), Map::new());
    let subject = match (spec.map("resourceAttributes"), spec.map("nonResourceAttributes")) {
        (Some(of), None) => (
            of.str("verb"),
            AccessTarget::Resource {
                group: of.str("group"),
                version: of.str("version"),
                resource: of.str("resource"),
                subresource: of.str("subresource"),
                namespace: of.str("namespace"),
                name: of.str("name"),
            },
        ),
        // It has one of the two.
        (_, of) => {
            let of = of.unwrap_or(&empty);
            (of.str("verb"), AccessTarget::Path(of.str("path")))
        }
    };
    let (verb, subject) = subject;
    let authorization = call.server.authorizer.authorize(&Attributes { user, verb, subject }).await;
    let mut status = Map::new();
    status.insert("allowed", authorization.decision == Decision::Allow);
    if authorization.decision == Decision::Deny {
        status.insert("denied", true);
    }
    if !authorization.reason.is_empty() {
        status.insert("reason", authorization.reason);
    }
    if !authorization.error.is_empty() {
        status.insert("evaluationError", authorization.error);
    }
    Ok(status)
}

/// The status of a SelfSubjectRulesReview.
fn rules(call: &RequestContext<'_>, review: &Object) -> Result<Map, ApiError> {
    let namespace = review.str_at(&["spec", "namespace"]);
    if namespace.is_empty() {
        return Err(ApiError::bad_request("no namespace on request"));
    }
    let UserRules { rules, incomplete, error } = call.server.authorizer.rules(call.user, namespace);
    let map = |lists: &[(&'static str, &[String])]| -> Value {
        let lists = lists.iter().filter(|(_, list)| !list.is_empty());
        lists.map(|(field, list)| (*field, Value::from(texts(list)))).collect::<Map>().into()
    };
    let resources = rules.iter().filter(|rule| !rule.resources.is_empty()).map(|rule| {
        map(&[
            ("verbs", &rule.verbs),
            ("apiGroups", &rule.groups),
            ("resources", &rule.resources),
            ("resourceNames", &rule.names),
        ])
    });
    let paths = rules.iter().filter(|rule| !rule.urls.is_empty());
    let paths = paths.map(|rule| map(&[("verbs", &rule.verbs), ("nonResourceURLs", &rule.urls)]));
    let mut status = Map::new();
    status.insert("resourceRules", resources.collect::<Vec<_>>());
    status.insert("nonResourceRules", paths.collect::<Vec<_>>());
    status.insert("incomplete", incomplete);
    if !error.is_empty() {
        status.insert("evaluationError", error);
    }
    Ok(status)
}
