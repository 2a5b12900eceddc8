//! The conversion webhook of a definition, and the connections to it.

use std::sync::Arc;

use apiserver_admission_webhooks::WebhookEndpoint;
use apiserver_custom_resources::{Conversion, WebhookTarget};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use proto_api::names::Names;

use crate::dial_policy::DialPolicy;
use crate::webhooks::{CallTarget, Remote};

/// The most bytes of an answer: the objects of a call may grow.
const ANSWER_LEN_MAX: usize = 16 << 20;
/// The versions of ConversionReview that this server knows.
const REVIEW_VERSIONS: [&str; 2] = ["v1", "v1beta1"];

/// The webhook that converts the objects of a definition.
pub struct Converter {
    /// Where it is called.
    pub remote: Remote<Endpoint>,
    /// The version of ConversionReview that it receives: the first of those that it accepts and this server knows.
    pub review_version: Option<&'static str>,
}

/// Where a webhook listens.
#[derive(PartialEq)]
pub struct Endpoint {
    target: WebhookEndpoint,
    authority: Vec<u8>,
}

impl CallTarget for Endpoint {
    fn target(&self) -> &WebhookEndpoint {
        &self.target
    }

    fn authority(&self) -> &[u8] {
        &self.authority
    }

    fn answer_len_max(&self) -> usize {
        ANSWER_LEN_MAX
    }
}

impl Converter {
    /// That of a definition; `None` if its versions differ in their name only. One that stays the same keeps its connections.
    pub fn from_conversion(
        conversion: &Conversion,
        before: Option<&Arc<Self>>,
        names: &'static Names,
        dial: &Arc<DialPolicy>,
    ) -> Option<Arc<Self>> {
        let Conversion::Webhook(webhook) = conversion else { return None };
        let target = match &webhook.target {
            WebhookTarget::Url(url) => WebhookEndpoint::Url(url.clone()),
            WebhookTarget::Service { namespace, name, path, port } => WebhookEndpoint::Service {
                namespace: namespace.clone(),
                name: name.clone(),
                port: *port,
                path: if path.is_empty() { "/".to_owned() } else { path.clone() },
            },
        };
        let authority = STANDARD.decode(&webhook.ca_bundle).unwrap_or_default();
        let endpoint = Endpoint { target, authority };
        let known =
            |version: &String| REVIEW_VERSIONS.into_iter().find(|known| *known == version.as_str());
        let review_version = webhook.review_versions.iter().find_map(known);
        let same = before.filter(|before| {
            before.remote.webhook == endpoint && before.review_version == review_version
        });
        Some(same.cloned().unwrap_or_else(|| {
            let remote = Remote::new(endpoint, names, dial.clone());
            Arc::new(Self { remote, review_version })
        }))
    }
}
