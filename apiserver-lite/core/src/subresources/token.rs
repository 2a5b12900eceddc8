//! TokenRequest: issues a token of a service account, optionally bound to a pod, a Secret or a Node.

#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

use std::sync::Arc;

use apiserver_schema::{Format, Object, Value};
use time::{Duration, OffsetDateTime};

use crate::admission;
use crate::auth::{BoundObject, TOKEN_LIFETIME_SECS, TokenRequest};
use crate::context::{RequestContext, about_kind};
use crate::options::Effects;
use crate::record::StoredObject;
use crate::status::{ApiError, FieldProblem, StatusTarget};
use crate::times::{now, timestamp};
use crate::verbs::{VerbOutput, VerbResponse, decode_as};
use apiserver_auth::is_node;

/// Lifetime in seconds of a token whose request names none.
const TOKEN_LIFETIME_SECS_DEFAULT: i64 = 3600;

/// Issues a token of the requested service account. A dry run returns an empty token.
///
/// # Errors
/// 404 if the service account or bound object does not exist, 409 if a uid differs, 422 for an unknown dry run or a lifetime out
/// of range.
pub async fn create(
    call: &RequestContext<'_>,
    body: &[u8],
    format: Format,
) -> Result<VerbOutput, ApiError> {
    let server = call.server;
    let effects = call.effects()?;
    let group = server.names.group("authentication");
    let kind = server
        .engine
        .kind(&group, "v1", "TokenRequest")
        .ok_or_else(|| crate::server::missing_kind("TokenRequest"))?;
    let mut decoded = decode_as(call, kind, body, format)?;
    let mut request = decoded.object;
    let account = call.stored()?;
    let operation = admission::WebhookOperation::Create;
    admission::admit_unstored(call, operation, &mut request, None, effects).await?;
    let lifetime_secs = request
        .spec()
        .and_then(|spec| spec.int("expirationSeconds"))
        .unwrap_or(TOKEN_LIFETIME_SECS_DEFAULT);
    check_lifetime(&request, lifetime_secs)?;
    let audiences = request.spec().map(|spec| spec.list("audiences")).unwrap_or_default();
    let mut audiences: Vec<String> =
        audiences.iter().filter_map(Value::as_str).map(str::to_owned).collect();
    if audiences.is_empty() {
        audiences = server.authenticators.tokens.audiences().to_vec();
    }
    let granted_secs = server.authenticators.tokens.lifetime_secs(lifetime_secs);
    if granted_secs < lifetime_secs {
        decoded.warnings.push(format!(
            "requested expiration of {lifetime_secs} seconds shortened to {granted_secs} seconds"
        ));
    }
    let token_request = TokenRequest {
        namespace: &call.request.namespace,
        account: &call.request.name,
        account_uid: account.object().uid(),
        bound: bound_object(call, &request)?,
        audiences: audiences.clone(),
        lifetime_secs: granted_secs,
    };
    let issued: OffsetDateTime = now();
    let token = match effects {
        Effects::Real => server
            .authenticators
            .tokens
            .issue(&token_request, issued.unix_timestamp())
            .map_err(ApiError::internal)?,
        Effects::DryRun => String::new(),
    };
    let spec = request.fields.map_or_insert("spec");
    spec.insert("expirationSeconds", token_request.lifetime_secs);
    spec.insert("audiences", audiences.into_iter().map(Value::from).collect::<Vec<_>>());
    let status = request.fields.map_or_insert("status");
    status.insert("token", token);
    status.insert(
        "expirationTimestamp",
        timestamp(issued.saturating_add(Duration::seconds(token_request.lifetime_secs))),
    );
    let (name, namespace) = (call.request.name.clone(), call.request.namespace.clone());
    request.set_meta_str("name", &name);
    request.set_meta_str("namespace", &namespace);
    request.metadata_mut().insert("creationTimestamp", timestamp(issued));
    Ok(VerbOutput {
        response: VerbResponse::Object { code: 201, object: Box::new(request) },
        warnings: decoded.warnings,
    })
}

fn check_lifetime(request: &Object, secs: i64) -> Result<(), ApiError> {
    let problem = match secs {
        secs if TOKEN_LIFETIME_SECS.contains(&secs) => return Ok(()),
        secs if secs < *TOKEN_LIFETIME_SECS.start() => {
            "may not specify a duration less than 10 minutes"
        }
        _ => "may not specify a duration larger than 2^32 seconds",
    };
    let problem = FieldProblem::invalid("spec.expirationSeconds", secs, problem);
    Err(ApiError::invalid(about_kind(request), &[problem]))
}

/// Allows a kubelet only tokens bound to pods of its own node, as Kubernetes' NodeRestriction: other tokens would give it
/// permissions that its certificate lacks.
fn check_node(call: &RequestContext<'_>, bound: Option<&Object>) -> Result<(), ApiError> {
    let own = |pod: &Object| {
        let node = pod.str_at(&["spec", "nodeName"]);
        call.user.name.strip_prefix("system:node:") == Some(node) && !node.is_empty()
    };
    if !is_node(call.user) || bound.is_some_and(own) {
        return Ok(());
    }
    let about = StatusTarget { group: "", kind: "serviceaccounts", name: &call.request.name };
    Err(ApiError::forbidden(
        about,
        "node requested token not bound to a pod scheduled on this node",
    ))
}

/// The object that the token is bound to. It must exist, and a pod must use the service account.
fn bound_object(
    call: &RequestContext<'_>,
    request: &Object,
) -> Result<Option<BoundObject>, ApiError> {
    let Some(reference) = request.spec().and_then(|spec| spec.map("boundObjectRef")) else {
        check_node(call, None)?;
        return Ok(None);
    };
    let namespace = call.request.namespace.as_str();
    let (kind, resource, namespace) = match (reference.str("apiVersion"), reference.str("kind")) {
        ("v1", "Pod") => ("pod", "pods", namespace),
        ("v1", "Secret") => ("secret", "secrets", namespace),
        ("v1", "Node") => ("node", "nodes", ""),
        (version, kind) => {
            return Err(ApiError::bad_request(format!(
                "cannot bind token for serviceaccount {:?} to type {version}, Kind={kind}",
                call.request.name,
            )));
        }
    };
    let about = StatusTarget { group: "", kind: resource, name: reference.str("name") };
    let found = call.server.find_in("", resource, namespace, about.name);
    let found: Arc<StoredObject> = found.ok_or_else(|| ApiError::not_found(about))?;
    let object = found.object();
    if !reference.str("uid").is_empty() && reference.str("uid") != object.uid() {
        let why = format!(
            "the UID in the bound object reference ({}) does not match the UID in record. The object might have been deleted and then recreated",
            reference.str("uid"),
        );
        // Kubernetes names the kind here, not the resource.
        return Err(ApiError::conflict(
            StatusTarget { kind: reference.str("kind"), ..about },
            &why,
        ));
    }
    if kind == "pod" && object.str_at(&["spec", "serviceAccountName"]) != call.request.name {
        return Err(ApiError::bad_request(format!(
            "cannot bind token for serviceaccount {:?} to pod running with different serviceaccount name.",
            call.request.name,
        )));
    }
    check_node(call, Some(object))?;
    Ok(Some(BoundObject { kind, name: object.name().to_owned(), uid: object.uid().to_owned() }))
}
