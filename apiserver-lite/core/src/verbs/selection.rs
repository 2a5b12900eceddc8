//! Selection of objects in a collection: label selector, field selector, or a single name.

use std::sync::Arc;

use apiserver_schema::{Kind, Object, Value, fields};
use proto_api::selectors::{FieldSelector, Selector};

use crate::context::RequestContext;
use crate::status::ApiError;
use crate::versions;

/// A filter over objects.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    labels: Option<Selector>,
    fields: Option<FieldSelector>,
    /// The only name that matches: from the path, or from a field selector on it.
    name: Option<String>,
    /// The version whose fields the field selector uses, if it is not the stored one.
    version: Option<Arc<Kind>>,
}

impl Selection {
    /// Parses the selectors of a request.
    ///
    /// # Errors
    /// 400 for a selector that cannot be parsed or a field that is not selectable.
    pub fn parse(call: &RequestContext<'_>) -> Result<Self, ApiError> {
        let labels = call.query.text("labelSelector").map(|text| {
            Selector::parse(text).map_err(|error| {
                ApiError::bad_request(format!("unable to parse requirement: {error}"))
            })
        });
        let fields = call
            .query
            .text("fieldSelector")
            .map(|text| field_selector(&call.requested_version, text))
            .transpose()?;
        let by_field =
            fields.as_ref().and_then(|fields| fields.exact("metadata.name")).map(str::to_owned);
        let by_path = (!call.request.name.is_empty()).then(|| call.request.name.clone());
        let version = (!Arc::ptr_eq(&call.requested_version, &call.kind))
            .then(|| call.requested_version.clone());
        Ok(Self { labels: labels.transpose()?, fields, name: by_path.or(by_field), version })
    }

    /// Whether all objects match.
    #[must_use]
    pub fn is_everything(&self) -> bool {
        self.labels.is_none() && self.fields.is_none() && self.name.is_none()
    }

    /// The only name that can match, if there is one.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// The only topic of records that can match, of pods, if there is one: their node.
    #[must_use]
    pub fn topic(&self, kind: &Kind) -> Option<&str> {
        let fields = self.fields.as_ref().filter(|_| kind.is("", "Pod"))?;
        fields.exact("spec.nodeName")
    }

    /// Whether an object of this name can match.
    #[must_use]
    pub fn may_match_name(&self, object: &Object) -> bool {
        self.name.as_deref().is_none_or(|name| object.name() == name)
    }

    /// Whether `object` matches.
    #[must_use]
    pub fn matches(&self, object: &Object) -> bool {
        self.may_match_name(object)
            && self.labels.as_ref().is_none_or(|selector| labels_match(selector, object))
            && self.fields.as_ref().is_none_or(|selector| match &self.version {
                Some(kind) => fields_match(selector, &versions::convert(object, kind)),
                None => fields_match(selector, object),
            })
    }
}

/// Whether the labels of `object` match `selector`.
#[must_use]
pub fn labels_match(selector: &Selector, object: &Object) -> bool {
    let labels = object.metadata().and_then(|metadata| metadata.map("labels"));
    selector.matches_with(|key| labels.and_then(|labels| labels.get(key)).and_then(Value::as_str))
}

fn fields_match(selector: &FieldSelector, object: &Object) -> bool {
    selector.requirements().iter().all(|requirement| {
        let value = fields::value_of(object, &requirement.field).unwrap_or_default();
        (value == requirement.value) == requirement.equal
    })
}

fn field_selector(kind: &Kind, text: &str) -> Result<FieldSelector, ApiError> {
    let selector = FieldSelector::parse(text)
        .map_err(|error| ApiError::bad_request(format!("invalid field selector: {error}")))?;
    let unknown = selector.requirements().iter().find(|r| !fields::is_supported(kind, &r.field));
    match unknown {
        Some(requirement) => {
            Err(ApiError::bad_request(fields::not_supported(kind, &requirement.field)))
        }
        None => Ok(selector),
    }
}
