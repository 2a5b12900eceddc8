//! TokenReview and the access reviews: virtual resources whose result is in the status.

use apiserver_schema::{Format, Kind, Map, Object, Value};

use crate::admission;
use crate::context::{RequestContext, about_kind};
use crate::options::Effects;
use crate::request::Representation;
use crate::status::{ApiError, FieldProblem};
use crate::verbs::{VerbOutput, VerbResponse, decode};
use apiserver_auth::{Attributes, Decision, Subject, User, UserRules};

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
        "SelfSubjectAccessReview" => access(call, &review, call.user).await?,
        "SubjectAccessReview" => access(call, &review, &named_user(&review)?).await?,
        "LocalSubjectAccessReview" => {
            let asked = review.str_at(&["spec", "resourceAttributes", "namespace"]);
            if asked != call.request.namespace {
                return Err(ApiError::bad_request(
                    "spec.resourceAttributes.namespace must match metadata.namespace",
                ));
            }
            access(call, &review, &named_user(&review)?).await?
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
    let (authenticators, client) = (&call.server.authenticators, &call.user.name);
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

fn named_user(review: &Object) -> Result<User, ApiError> {
    let spec = review.spec().cloned().unwrap_or_default();
    let list = |values: &[Value]| {
        values.iter().filter_map(Value::as_str).map(str::to_owned).collect::<Vec<_>>()
    };
    let extra = spec.map("extra").into_iter().flat_map(Map::iter);
    let user = User {
        name: spec.str("user").to_owned(),
        uid: spec.str("uid").to_owned(),
        groups: list(spec.list("groups")),
        extra: extra
            .map(|(key, values)| (key.to_owned(), list(values.as_list().unwrap_or_default())))
            .collect(),
    };
    if user.name.is_empty() && user.groups.is_empty() {
        let problem =
            FieldProblem::required("spec.user", "at least one of user or group must be specified");
        return Err(ApiError::invalid(about_kind(review), &[problem]));
    }
    Ok(user)
}

async fn access(call: &RequestContext<'_>, review: &Object, user: &User) -> Result<Map, ApiError> {
    let spec = review.spec().cloned().unwrap_or_default();
    let subject = match (spec.map("resourceAttributes"), spec.map("nonResourceAttributes")) {
        (Some(of), None) => (
            of.str("verb"),
            Subject::Resource {
                group: of.str("group"),
                version: of.str("version"),
                resource: of.str("resource"),
                subresource: of.str("subresource"),
                namespace: of.str("namespace"),
                name: of.str("name"),
            },
        ),
        (None, Some(of)) => (of.str("verb"), Subject::Path(of.str("path"))),
        _ => {
            return Err(ApiError::bad_request(
                "exactly one of nonResourceAttributes or resourceAttributes must be specified",
            ));
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
