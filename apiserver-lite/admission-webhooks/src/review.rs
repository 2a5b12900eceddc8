//! The AdmissionReview that a webhook is sent.

use std::collections::BTreeMap;

use apiserver_schema::Value;
use apiserver_schema::value::parse_json;
use proto_api::names::Names;
use serde::Serialize;
use serde_json::value::RawValue;

use crate::configuration::AdmissionReviewVersion;
use crate::rules::{ResourceRef, WebhookOperation};

/// A kind in one version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct KindRef<'a> {
    /// API group, domain included; empty for the core group.
    pub group: &'a str,
    pub version: &'a str,
    pub kind: &'a str,
}

/// Who sent the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct UserInfo<'a> {
    /// User name.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub username: &'a str,
    /// Stable identifier.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub uid: &'a str,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    pub groups: &'a [String],
    /// Further attributes.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub extra: &'a BTreeMap<String, Vec<String>>,
}

/// The request that a webhook reviews.
#[derive(Clone, Copy, Debug)]
pub struct Review<'a> {
    /// Identifies the question; the answer repeats it.
    pub uid: &'a str,
    /// Kind of the objects that are sent.
    pub kind: KindRef<'a>,
    /// Resource in the version that the webhook's rule matches.
    pub resource: ResourceRef<'a>,
    pub request_kind: KindRef<'a>,
    pub request_resource: ResourceRef<'a>,
    /// Subresource; empty for none.
    pub subresource: &'a str,
    /// Name of the object; empty if it is not known yet.
    pub name: &'a str,
    /// Namespace of the request; of a Namespace its own name.
    pub namespace: &'a str,
    /// What the request does.
    pub operation: WebhookOperation,
    /// Who sent it.
    pub user: UserInfo<'a>,
    /// The object as it will be.
    pub object: Option<&'a RawValue>,
    /// The object as it is stored.
    pub old_object: Option<&'a RawValue>,
    /// Whether it is a dry run.
    pub dry_run: bool,
    /// Options of the operation.
    pub options: Option<&'a RawValue>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Envelope<'a> {
    kind: &'a str,
    api_version: String,
    request: Request<'a>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Request<'a> {
    uid: &'a str,
    kind: KindRef<'a>,
    resource: Resource<'a>,
    #[serde(skip_serializing_if = "str::is_empty")]
    sub_resource: &'a str,
    request_kind: KindRef<'a>,
    request_resource: Resource<'a>,
    #[serde(skip_serializing_if = "str::is_empty")]
    request_sub_resource: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    name: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    namespace: &'a str,
    operation: &'a str,
    user_info: UserInfo<'a>,
    object: Option<&'a RawValue>,
    old_object: Option<&'a RawValue>,
    dry_run: bool,
    options: Option<&'a RawValue>,
}

#[derive(Serialize)]
struct Resource<'a> {
    group: &'a str,
    version: &'a str,
    resource: &'a str,
}

impl<'a> From<ResourceRef<'a>> for Resource<'a> {
    fn from(ResourceRef { group, version, resource }: ResourceRef<'a>) -> Self {
        Self { group, version, resource }
    }
}

impl Review<'_> {
    /// The AdmissionReview in JSON. Both versions have the same fields.
    ///
    /// # Errors
    /// None occurs: every part can be written.
    pub fn write(
        &self,
        names: &Names,
        version: AdmissionReviewVersion,
    ) -> Result<Vec<u8>, serde_json::Error> {
        serde_json::to_vec(&Envelope {
            kind: "AdmissionReview",
            api_version: names.api_version("admission", version.name()),
            request: self.request(),
        })
    }

    /// The request without its objects, as match conditions see it.
    ///
    /// # Errors
    /// None occurs: every part can be written and read.
    pub fn request_tree(&self) -> Result<Value, serde_json::Error> {
        let text =
            serde_json::to_vec(&Request { object: None, old_object: None, ..self.request() })?;
        parse_json(&text, &mut Vec::new()).map_err(serde::de::Error::custom)
    }

    fn request(&self) -> Request<'_> {
        Request {
            uid: self.uid,
            kind: self.kind,
            resource: self.resource.into(),
            sub_resource: self.subresource,
            request_kind: self.request_kind,
            request_resource: self.request_resource.into(),
            request_sub_resource: self.subresource,
            name: self.name,
            namespace: self.namespace,
            operation: self.operation.name(),
            user_info: self.user,
            object: self.object,
            old_object: self.old_object,
            dry_run: self.dry_run,
            options: self.options,
        }
    }
}

#[cfg(test)]
mod tests {
    use proto_api::names::Profile;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_review_has_the_fields_of_kubernetes() {
        let names = Names::new(Profile::Kubernetes);
        let object: &RawValue = serde_json::from_str(r#"{"kind":"Scale"}"#).unwrap();
        let options: &RawValue = serde_json::from_str(r#"{"kind":"UpdateOptions"}"#).unwrap();
        let extra = BTreeMap::from([("k".to_owned(), vec!["v".to_owned()])]);
        let user = UserInfo { username: "jane", uid: "", groups: &["g".to_owned()], extra: &extra };
        let resource = |version| ResourceRef { group: "apps", version, resource: "deployments" };
        let kind = KindRef { group: "autoscaling", version: "v1", kind: "Scale" };
        let review = Review {
            uid: "u",
            kind,
            resource: resource("v1"),
            request_kind: kind,
            request_resource: resource("v1beta1"),
            subresource: "scale",
            name: "d",
            namespace: "n",
            operation: WebhookOperation::Update,
            user,
            object: Some(object),
            old_object: None,
            dry_run: true,
            options: Some(options),
        };
        let written = |review: &Review<'_>, version| -> serde_json::Value {
            serde_json::from_slice(&review.write(names, version).unwrap()).unwrap()
        };
        let scale = json!({"group": "autoscaling", "version": "v1", "kind": "Scale"});
        let expected = json!({
            "kind": "AdmissionReview",
            "apiVersion": "admission.k8s.io/v1",
            "request": {
                "uid": "u",
                "kind": scale,
                "resource": {"group": "apps", "version": "v1", "resource": "deployments"},
                "subResource": "scale",
                "requestKind": scale,
                "requestResource": {"group": "apps", "version": "v1beta1", "resource": "deployments"},
                "requestSubResource": "scale",
                "name": "d",
                "namespace": "n",
                "operation": "UPDATE",
                "userInfo": {"username": "jane", "groups": ["g"], "extra": {"k": ["v"]}},
                "object": {"kind": "Scale"},
                "oldObject": null,
                "dryRun": true,
                "options": {"kind": "UpdateOptions"},
            },
        });
        assert_eq!(written(&review, AdmissionReviewVersion::V1), expected);
        let nameless = Review { name: "", namespace: "", subresource: "", ..review };
        let beta = written(&nameless, AdmissionReviewVersion::V1Beta1);
        assert_eq!(beta["apiVersion"], "admission.k8s.io/v1beta1");
        for absent in ["name", "namespace", "subResource", "requestSubResource"] {
            assert_eq!(beta["request"].get(absent), None, "{absent}");
        }
        let tree = review.request_tree().unwrap();
        let tree = tree.as_map().unwrap();
        assert_eq!((tree.str("operation"), tree.str("subResource")), ("UPDATE", "scale"));
        assert_eq!(tree.get("object"), Some(&Value::Null));
    }
}
