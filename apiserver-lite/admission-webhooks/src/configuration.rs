//! The webhooks of a configuration object.

use std::time::Duration;

use apiserver_custom_resources::ExpressionCompiler;
use apiserver_schema::{Map, Object, Value};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use proto_api::meta::v1::{LabelSelector, LabelSelectorRequirement};
use proto_api::selectors::{Selector, SelectorError};

use crate::conditions::{self, MatchConditions};
use crate::rules::WebhookRule;

/// Time for a call where the configuration names none.
const TIMEOUT_SECS_DEFAULT: u64 = 10;
/// Longest time for a call that a configuration may name.
const TIMEOUT_SECS_MAX: u64 = 30;
/// Port of a service where the configuration names none.
const PORT_DEFAULT: u16 = 443;

/// A webhook of a configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct Webhook {
    /// Name of its configuration.
    pub configuration: String,
    /// Its own name, unique in the configuration.
    pub name: String,
    /// When it is called.
    pub phase: Phase,
    /// Where it is called.
    pub target: WebhookEndpoint,
    /// Authorities of its certificate in PEM; empty for those of the system.
    pub authority: Vec<u8>,
    /// What it is called about: any rule suffices.
    pub rules: Vec<WebhookRule>,
    /// What happens to a request if the webhook cannot be called.
    pub failure_policy: FailurePolicy,
    /// Whether rules also mean other versions of their resources.
    pub match_policy: MatchPolicy,
    /// Which namespaces, objects and requests it is called about, or why that cannot be read.
    pub selectors: Result<Selectors, SelectorError>,
    /// Whether it may be called for a dry run.
    pub allows_dry_run: bool,
    /// Time for a call.
    pub timeout: Duration,
    /// The first version of AdmissionReview in its list that is known.
    pub version: Option<AdmissionReviewVersion>,
}

/// What a webhook is called about, among the requests that its rules match.
#[derive(Clone, Debug, PartialEq)]
pub struct Selectors {
    pub namespace: Selector,
    pub object: Selector,
    /// Looked at last.
    pub conditions: MatchConditions,
}

/// When a webhook is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Before validation; it may change the object.
    Mutating(ReinvocationPolicy),
    /// After validation.
    Validating,
}

/// Whether a mutating webhook is called again when others changed the object after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ReinvocationPolicy {
    /// It is not.
    Never,
    /// Once.
    IfNeeded,
}

/// Where a webhook is called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WebhookEndpoint {
    Url(String),
    /// At a service of the cluster.
    Service {
        /// Namespace of the service.
        namespace: String,
        name: String,
        port: u16,
        /// Path with its leading slash.
        path: String,
    },
}

/// What happens to a request if a webhook cannot be called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailurePolicy {
    /// It goes on.
    Ignore,
    /// It is refused.
    Fail,
}

/// Whether rules also mean other versions of their resources.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MatchPolicy {
    /// They do not.
    Exact,
    /// They do; the webhook then gets the objects in that version.
    Equivalent,
}

/// One of `admissionReviewVersions` of a webhook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdmissionReviewVersion {
    V1,
    /// `v1beta1`.
    V1Beta1,
}

impl AdmissionReviewVersion {
    /// As in `apiVersion`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::V1 => "v1",
            Self::V1Beta1 => "v1beta1",
        }
    }
}

impl WebhookEndpoint {
    /// The URL that is called: that of a service names the service and its namespace.
    #[must_use]
    pub fn url(&self) -> String {
        match self {
            Self::Url(url) => url.clone(),
            Self::Service { namespace, name, port, path } => {
                format!("https://{name}.{namespace}.svc:{port}{path}")
            }
        }
    }
}

/// The webhooks of a MutatingWebhookConfiguration or ValidatingWebhookConfiguration, which is defaulted and validated, in their order.
#[must_use]
pub fn read_webhooks(configuration: &Object) -> Vec<Webhook> {
    let mutating = configuration.kind.kind().starts_with("Mutating");
    let webhooks = configuration.fields.maps("webhooks");
    let mut compiler = conditions::compiler();
    let read = |fields| read_webhook(configuration.name(), mutating, fields, &mut compiler);
    webhooks.map(read).collect()
}

fn read_webhook(
    configuration: &str,
    mutating: bool,
    fields: &Map,
    compiler: &mut ExpressionCompiler,
) -> Webhook {
    let reinvocation = match fields.str("reinvocationPolicy") {
        "IfNeeded" => ReinvocationPolicy::IfNeeded,
        _ => ReinvocationPolicy::Never,
    };
    let seconds = fields.int("timeoutSeconds").and_then(|seconds| u64::try_from(seconds).ok());
    let seconds = seconds.unwrap_or(TIMEOUT_SECS_DEFAULT).clamp(1, TIMEOUT_SECS_MAX);
    let mut versions = fields.list("admissionReviewVersions").iter().filter_map(Value::as_str);
    let empty = Map::new();
    let client = fields.map("clientConfig").unwrap_or(&empty);
    Webhook {
        configuration: configuration.to_owned(),
        name: fields.str("name").to_owned(),
        phase: if mutating { Phase::Mutating(reinvocation) } else { Phase::Validating },
        target: read_target(client),
        // The tree holds valid base64.
        authority: STANDARD.decode(client.str("caBundle")).unwrap_or_default(),
        rules: fields.maps("rules").map(WebhookRule::read).collect(),
        failure_policy: match fields.str("failurePolicy") {
            "Ignore" => FailurePolicy::Ignore,
            _ => FailurePolicy::Fail,
        },
        match_policy: match fields.str("matchPolicy") {
            "Exact" => MatchPolicy::Exact,
            _ => MatchPolicy::Equivalent,
        },
        selectors: read_selectors(fields, compiler),
        allows_dry_run: matches!(fields.str("sideEffects"), "None" | "NoneOnDryRun"),
        timeout: Duration::from_secs(seconds),
        version: versions.find_map(|version| match version {
            "v1" => Some(AdmissionReviewVersion::V1),
            "v1beta1" => Some(AdmissionReviewVersion::V1Beta1),
            _ => None,
        }),
    }
}

fn read_target(client: &Map) -> WebhookEndpoint {
    let Some(service) = client.map("service") else {
        return WebhookEndpoint::Url(client.str("url").to_owned());
    };
    let port = service.int("port").and_then(|port| u16::try_from(port).ok());
    let path = service.str("path");
    WebhookEndpoint::Service {
        namespace: service.str("namespace").to_owned(),
        name: service.str("name").to_owned(),
        port: port.unwrap_or(PORT_DEFAULT),
        path: if path.starts_with('/') { path.to_owned() } else { format!("/{path}") },
    }
}

fn read_selectors(
    fields: &Map,
    compiler: &mut ExpressionCompiler,
) -> Result<Selectors, SelectorError> {
    Ok(Selectors {
        namespace: read_selector(fields, "namespaceSelector")?,
        object: read_selector(fields, "objectSelector")?,
        conditions: MatchConditions::read(fields, compiler),
    })
}

fn read_selector(fields: &Map, field: &str) -> Result<Selector, SelectorError> {
    let Some(selector) = fields.map(field) else { return Ok(Selector::everything()) };
    let labels = selector.map("matchLabels").into_iter().flat_map(Map::iter);
    let labels =
        labels.filter_map(|(key, value)| Some((key.to_owned(), value.as_str()?.to_owned())));
    let texts = |list: &[Value]| list.iter().filter_map(Value::as_str).map(str::to_owned).collect();
    let requirement = |map: &Map| LabelSelectorRequirement {
        key: map.str("key").to_owned(),
        operator: map.str("operator").to_owned(),
        values: texts(map.list("values")),
    };
    let typed = LabelSelector {
        match_labels: labels.collect(),
        match_expressions: selector.maps("matchExpressions").map(requirement).collect(),
    };
    Selector::from_label_selector(&typed, field)
}

#[cfg(test)]
pub(crate) mod tests {
    use apiserver_schema::{Engine, Format, Strictness};
    use proto_api::names::{Names, Profile};
    use serde_json::{Value as Json, json};

    use super::*;

    /// The webhooks of a configuration of this kind, with defaults.
    pub(crate) fn webhooks(kind: &str, webhooks: Json) -> Vec<Webhook> {
        read_webhooks(&configuration(kind, webhooks))
    }

    /// A configuration of this kind with these webhooks and with defaults.
    pub(crate) fn configuration(kind: &str, webhooks: Json) -> Object {
        let names = Names::new(Profile::Kubernetes);
        let engine = Engine::new(names);
        let kind = engine.kind("admissionregistration.k8s.io", "v1", kind).unwrap();
        let text = json!({"metadata": {"name": "c"}, "webhooks": webhooks}).to_string();
        let decoded = engine.decode(kind, Format::Json, text.as_bytes(), Strictness::Strict);
        let mut object = decoded.unwrap().object;
        engine.default(&mut object);
        object
    }

    /// One webhook whose fields are these.
    pub(crate) fn webhook(fields: Json) -> Webhook {
        webhooks("MutatingWebhookConfiguration", json!([fields])).remove(0)
    }

    #[test]
    fn a_webhook_has_kubernetes_defaults() {
        let plain = webhook(json!({
            "name": "a.example.com",
            "clientConfig": {"service": {"namespace": "n", "name": "s"}},
            "rules": [{"operations": ["*"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}],
            "sideEffects": "None",
            "admissionReviewVersions": ["v2", "v1beta1", "v1"],
        }));
        assert_eq!(plain.phase, Phase::Mutating(ReinvocationPolicy::Never));
        assert_eq!(plain.target.url(), "https://s.n.svc:443/");
        assert_eq!(plain.failure_policy, FailurePolicy::Fail);
        assert_eq!(plain.match_policy, MatchPolicy::Equivalent);
        assert_eq!(plain.timeout, Duration::from_secs(10));
        assert_eq!(
            plain.version,
            Some(AdmissionReviewVersion::V1Beta1),
            "the first one that is known"
        );
        let selectors = plain.selectors.unwrap();
        assert!(selectors.namespace.is_everything() && selectors.object.is_everything());
        assert!(plain.allows_dry_run && plain.authority.is_empty());
    }

    #[test]
    fn every_field_is_read() {
        let full = webhook(json!({
            "name": "a.example.com",
            "clientConfig": {
                "service": {"namespace": "n", "name": "s", "port": 8443, "path": "/x/y"},
                "caBundle": "YQ==",
            },
            "failurePolicy": "Ignore",
            "matchPolicy": "Exact",
            "namespaceSelector": {"matchLabels": {"a": "b"}},
            "objectSelector": {"matchExpressions": [{"key": "c", "operator": "Exists"}]},
            "sideEffects": "Some",
            "timeoutSeconds": 3,
            "reinvocationPolicy": "IfNeeded",
            "admissionReviewVersions": ["v9"],
        }));
        assert_eq!(full.phase, Phase::Mutating(ReinvocationPolicy::IfNeeded));
        assert_eq!(full.target.url(), "https://s.n.svc:8443/x/y");
        assert_eq!(full.authority, b"a");
        assert_eq!(full.failure_policy, FailurePolicy::Ignore);
        assert_eq!(full.match_policy, MatchPolicy::Exact);
        assert_eq!((full.timeout, full.version), (Duration::from_secs(3), None));
        assert!(!full.allows_dry_run);
        let selectors = full.selectors.unwrap();
        assert!(selectors.namespace.matches_with(|key| (key == "a").then_some("b")));
        assert!(!selectors.object.matches_with(|key| (key == "a").then_some("b")));
        let url = json!({"name": "b.example.com", "clientConfig": {"url": "https://h/p"}, "admissionReviewVersions": ["v1"]});
        let by_url = webhooks("ValidatingWebhookConfiguration", json!([url])).remove(0);
        assert_eq!(
            (by_url.phase, by_url.target),
            (Phase::Validating, WebhookEndpoint::Url("https://h/p".into()))
        );
    }
}
