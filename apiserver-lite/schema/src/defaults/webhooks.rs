//! Defaults of webhook configurations.

use super::set_default;
use crate::value::Map;

/// `mutating` ones also have a reinvocation policy.
pub(super) fn default_configuration(fields: &mut Map, mutating: bool) {
    for webhook in fields.maps_mut("webhooks") {
        set_default(webhook, "failurePolicy", "Fail");
        set_default(webhook, "matchPolicy", "Equivalent");
        set_default(webhook, "namespaceSelector", Map::new());
        set_default(webhook, "objectSelector", Map::new());
        set_default(webhook, "timeoutSeconds", 10);
        if mutating {
            set_default(webhook, "reinvocationPolicy", "Never");
        }
        for rule in webhook.maps_mut("rules") {
            set_default(rule, "scope", "*");
        }
        if let Some(service) = webhook.map_mut("clientConfig").and_then(|c| c.map_mut("service")) {
            set_default(service, "port", 443);
        }
    }
}
