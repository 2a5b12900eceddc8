//! Selection of objects in a collection: label selector, field selector, or a single name.

mod field_filter;
mod label_filter;
mod sorted;

use std::sync::Arc;

use apiserver_schema::{Kind, Map, Object, Value, fields};
use apiserver_store::Record as _;
use proto_api::selectors::{FieldSelector, Selector};
use tokio::time::Instant;

use crate::context::RequestContext;
use crate::conversion;
use crate::record::StoredObject;
use crate::status::ApiError;
use crate::versions;
use crate::webhook_call::Asker;
use field_filter::FieldFilter;
use label_filter::LabelFilter;

/// A filter over objects.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    labels: Option<LabelFilter>,
    fields: Option<FieldFilter>,
    /// The only name that matches: from the path, or from a field selector on it.
    name: Option<String>,
    /// The version whose fields the field selector uses, if it is not the stored one.
    version: Option<Arc<Kind>>,
    /// The version of a custom kind whose own fields the field selector uses: objects are compared as that version shows them.
    shown_as: Option<Arc<Kind>>,
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
        let kind = &call.requested_version;
        let own = |fields: &FieldSelector| {
            let mut all = fields.requirements().iter();
            all.any(|requirement| fields::is_defined(kind, &requirement.field))
        };
        let shown_as = fields.as_ref().filter(|fields| own(fields)).map(|_| kind.clone());
        let name = by_path.or(by_field);
        let labels = labels.transpose()?.as_ref().map(LabelFilter::new);
        let fields = fields.as_ref().map(FieldFilter::new);
        Ok(Self { labels, fields, name, version, shown_as })
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

    /// Whether a stored object can match in the version in which it is shown: name and labels are those of every version.
    fn may_match_shown(&self, stored: &Object) -> bool {
        self.may_match_name(stored)
            && self.labels.as_ref().is_none_or(|filter| filter.matches(labels(stored)))
    }

    /// Whether the object of `record` matches. [`prepare`](Self::prepare) comes before.
    #[must_use]
    pub fn matches_record(&self, record: &Arc<StoredObject>) -> bool {
        if self.is_everything() {
            return true;
        }
        let Some(kind) = &self.shown_as else { return self.matches(record.object()) };
        self.may_match_shown(record.object())
            && self.fields.as_ref().is_none_or(|fields| {
                let shown = record.as_version(kind);
                fields_match(fields, shown.object())
            })
    }

    /// As [`matches_record`](Self::matches_record) for a list, which looks at many objects and needs few of them: it leaves shrunk records as they are.
    #[must_use]
    pub fn matches_listed(&self, record: &Arc<StoredObject>) -> bool {
        self.is_everything()
            || match &self.shown_as {
                Some(_) => self.matches_record(record),
                None => self.matches(&record.object_once()),
            }
    }

    /// Whether the object of `record` matches for a watch. What a selector says of one that cannot be decrypted is not known: its event becomes an error of
    /// the stream.
    #[must_use]
    pub fn may_match_record(&self, record: &Arc<StoredObject>) -> bool {
        self.matches_record(record)
            || (!record.is_readable() && self.may_match_name(record.object()))
    }

    /// Converts the objects whose fields are compared, where a webhook has to: the records keep what it makes of them.
    ///
    /// # Errors
    /// 500 if the webhook does not convert one of them, 429 if the user has too many calls of it.
    pub async fn prepare(
        &self,
        asker: Asker<'_>,
        records: impl Iterator<Item = &Arc<StoredObject>>,
    ) -> Result<(), ApiError> {
        self.prepare_until(asker, records, conversion::list_deadline()).await
    }

    /// As [`prepare`](Self::prepare), for a part of a list with that deadline.
    ///
    /// # Errors
    /// As [`prepare`](Self::prepare); 500 after the deadline.
    pub(crate) async fn prepare_until(
        &self,
        asker: Asker<'_>,
        records: impl Iterator<Item = &Arc<StoredObject>>,
        deadline: Instant,
    ) -> Result<(), ApiError> {
        let converted = |kind: &&Arc<Kind>| conversion::webhook_version(kind).is_some();
        let Some(kind) = self.shown_as.as_ref().filter(converted) else { return Ok(()) };
        let mut records: Vec<Arc<StoredObject>> =
            records.filter(|record| self.may_match_shown(record.object())).cloned().collect();
        conversion::show_until(asker, kind, &mut records, deadline).await
    }

    /// Whether `object` matches.
    #[must_use]
    pub fn matches(&self, object: &Object) -> bool {
        self.may_match_name(object)
            && self.labels.as_ref().is_none_or(|filter| filter.matches(labels(object)))
            && self.fields.as_ref().is_none_or(|filter| match &self.version {
                Some(kind) => fields_match(filter, &versions::convert(object, kind)),
                None => fields_match(filter, object),
            })
    }
}

/// Whether the labels of `object` match `selector`.
#[must_use]
pub fn labels_match(selector: &Selector, object: &Object) -> bool {
    let labels = labels(object);
    selector.matches_with(|key| labels.and_then(|labels| labels.get(key)).and_then(Value::as_str))
}

fn labels(object: &Object) -> Option<&Map> {
    object.metadata().and_then(|metadata| metadata.map("labels"))
}

fn fields_match(filter: &FieldFilter, object: &Object) -> bool {
    filter.matches(|field| fields::value_of(object, field))
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
