//! Pod security: a pod may do what the labels `pod-security.<domain>/…` of its namespace allow, as with Kubernetes' PodSecurity. Templates of pods and
//! other levels are answered with warnings. What a namespace has no label for, and what no policy applies to, says the configuration of the plugin; without
//! one, everything is allowed.

use apiserver_pod_security::{
    NamespacePolicy, PODS_CHECKED_MAX, describe_refusal, describe_warning, find_violations,
    is_significant_update, read_policy, tightens_enforcement, warn_of_exempt_namespace,
    warn_of_pods,
};
use apiserver_schema::Object;
use proto_api::core::v1::Pod;
use proto_api::object::{from_json, from_json_value};
use serde_json::{Value, json};

use super::Operation;
use crate::context::{RequestContext, about_kind};
use crate::server::missing_kind;
use crate::status::{ApiError, FieldProblem, StatusTarget};

/// Refuses a pod that violates what its namespace enforces, and labels of a namespace that are no level. Gives the warnings for the client.
///
/// # Errors
/// 403 for a pod, 422 for a namespace.
pub async fn admit(
    call: &RequestContext<'_>,
    operation: Operation,
    object: &Object,
    old: Option<&Object>,
) -> Result<Vec<String>, ApiError> {
    if object.kind.is("", "Namespace") && operation != Operation::UpdateSubresource {
        return admit_namespace(call, object, old).await;
    }
    let is_pod = object.kind.is("", "Pod");
    let checked = match operation {
        Operation::UpdateSubresource => is_pod && call.request.subresource == "ephemeralcontainers",
        Operation::Create | Operation::Update => is_pod || template_path(object).is_some(),
    };
    if !checked {
        return Ok(Vec::new());
    }
    let exempt = &call.server.config.admission.pod_security.exemptions;
    if exempt.cover_request(&call.user.name, object.namespace()) {
        let of_namespace = exempt.cover_namespace(object.namespace());
        annotate(call, "exempt", if of_namespace { "namespace" } else { "user" });
        return Ok(Vec::new());
    }
    let policy = policy_of(call, object.namespace());
    if policy == NamespacePolicy::default() {
        if is_pod {
            annotate(call, "enforce-policy", &policy.enforce.to_string());
        }
        return Ok(Vec::new());
    }
    let pod = pod_of(call, object)?;
    if exempt.cover_class(pod.spec.runtime_class_name.as_deref()) {
        annotate(call, "exempt", "runtimeClass");
        return Ok(Vec::new());
    }
    if let Some(old) = old.filter(|_| is_pod)
        && !is_significant_update(&pod, &pod_of(call, old)?, call.server.names)
    {
        return Ok(Vec::new());
    }
    let names = call.server.names;
    let violations = |level| find_violations(level, &pod.metadata, &pod.spec, names);
    if call.audit.is_on() {
        if is_pod {
            annotate(call, "enforce-policy", &policy.enforce.to_string());
        }
        let audited = violations(policy.audit);
        if !audited.is_empty() {
            annotate(call, "audit-violations", &describe_warning(policy.audit, &audited));
        }
    }
    let refused = violations(policy.enforce);
    if is_pod && !refused.is_empty() {
        let about = StatusTarget { name: object.name(), ..call.about() };
        return Err(ApiError::forbidden(about, &describe_refusal(policy.enforce, &refused)));
    }
    let warned = violations(policy.warn);
    let warning = || describe_warning(policy.warn, &warned);
    Ok(if warned.is_empty() { Vec::new() } else { vec![warning()] })
}

/// Adds an annotation of the plugin to the audit log.
fn annotate(call: &RequestContext<'_>, name: &str, value: &str) {
    if call.audit.is_on() {
        call.audit.annotate(&call.server.names.sub_label("pod-security", name), value);
    }
}

async fn admit_namespace(
    call: &RequestContext<'_>,
    namespace: &Object,
    old: Option<&Object>,
) -> Result<Vec<String>, ApiError> {
    let (names, settings) = (call.server.names, &call.server.config.admission.pod_security);
    let read = |namespace: &Object| read_policy(&namespace.labels(), settings.defaults, names);
    let (policy, problems) = read(namespace);
    let (before, known) = old.map(read).unwrap_or_default();
    if !problems.is_empty() && problems != known {
        let problem = |problem: &apiserver_pod_security::LabelProblem| {
            FieldProblem::invalid(
                problem.field(),
                problem.value.as_str(),
                &problem.error.to_string(),
            )
        };
        let problems: Vec<FieldProblem> = problems.iter().map(problem).collect();
        return Err(ApiError::invalid(about_kind(namespace), &problems));
    }
    if old.is_some() && !tightens_enforcement(&before, &policy) {
        return Ok(Vec::new());
    }
    if settings.exemptions.cover_namespace(namespace.name()) {
        let labels = namespace.labels();
        let warning = warn_of_exempt_namespace(namespace.name(), &labels, &policy, names);
        return Ok(warning.into_iter().collect());
    }
    if old.is_none() {
        return Ok(Vec::new());
    }
    let pods = pods_in(call, namespace.name()).await?;
    let is_checked =
        |pod: &&Pod| !settings.exemptions.cover_class(pod.spec.runtime_class_name.as_deref());
    let pods: Vec<&Pod> = pods.iter().filter(is_checked).collect();
    Ok(warn_of_pods(namespace.name(), policy.enforce, &pods, names))
}

fn policy_of(call: &RequestContext<'_>, namespace: &str) -> NamespacePolicy {
    let found = call.server.find_in("", "namespaces", "", namespace);
    let labels = found.map(|found| found.object().labels()).unwrap_or_default();
    let defaults = call.server.config.admission.pod_security.defaults;
    read_policy(&labels, defaults, call.server.names).0
}

/// The pods of a namespace, at most one more than are compared, so that the client learns that there are more.
async fn pods_in(call: &RequestContext<'_>, namespace: &str) -> Result<Vec<Pod>, ApiError> {
    let kind = call.server.kind("", "pods").ok_or_else(|| missing_kind("Pod"))?;
    let stored = call.server.objects(kind, namespace, Some(PODS_CHECKED_MAX + 1));
    let mut pods = Vec::with_capacity(stored.len());
    for record in &stored {
        pods.push(pod_of(call, record.object())?);
        // Other requests go on in between.
        tokio::task::yield_now().await;
    }
    Ok(pods)
}

/// Where the template of a kind lies.
fn template_path(object: &Object) -> Option<&'static str> {
    match (object.kind.short_group, object.kind.kind()) {
        ("", "PodTemplate") => Some("/template"),
        ("", "ReplicationController")
        | ("apps", "DaemonSet" | "Deployment" | "ReplicaSet" | "StatefulSet")
        | ("batch", "Job") => Some("/spec/template"),
        ("batch", "CronJob") => Some("/spec/jobTemplate/spec/template"),
        _ => None,
    }
}

/// The object as a pod, or the pod of its template.
///
/// # Errors
/// 500: what cannot be read is not admitted unread.
fn pod_of(call: &RequestContext<'_>, object: &Object) -> Result<Pod, ApiError> {
    let unreadable = |why: &dyn std::fmt::Display| {
        ApiError::internal(format!(
            "cannot read the pod of {} {:?}: {why}",
            object.kind.kind(),
            object.name()
        ))
    };
    let json = call.server.engine.encode_json(object);
    let Some(path) = template_path(object) else {
        return from_json(&json, call.server.names).map_err(|error| unreadable(&error));
    };
    let whole: Value = serde_json::from_slice(&json).map_err(|error| unreadable(&error))?;
    let part = |field: &str| {
        let found = whole.pointer(&format!("{path}/{field}"));
        found.filter(|part| !part.is_null()).cloned().unwrap_or_else(|| json!({}))
    };
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": part("metadata"), "spec": part("spec"),
    });
    from_json_value(pod, call.server.names).map_err(|error| unreadable(&error))
}
