//! Names for the pods of this node: answered here, from what forwarding hears of anyway.

use proto_api::names::Names;
use proxy_rules::model::ServiceId;

/// The service at whose addresses pods ask for names.
pub fn service_id(names: &Names) -> ServiceId {
    ServiceId::new(names.system_namespace(), &names.component("dns"))
}
