//! The serviceaccount controller: creates the account `default` in every active namespace.

use proto_api::core::v1::{Namespace, ServiceAccount};
use proto_api::meta::v1::ObjectMeta;

use crate::Plan;
use crate::api_writes::ApiWrite;

/// The account of pods that name none.
pub const NAME: &str = "default";

/// Plans the account if it is missing.
pub fn plan(namespace: &Namespace, existing: Option<&ServiceAccount>) -> Plan {
    if namespace.metadata.deletion_timestamp.is_some() || existing.is_some() {
        return Plan::default();
    }
    let metadata = ObjectMeta {
        name: NAME.to_owned(),
        namespace: namespace.metadata.name.clone(),
        ..ObjectMeta::default()
    };
    let account = ServiceAccount { metadata, ..ServiceAccount::default() };
    Plan::from_writes([ApiWrite::Create(account.into())])
}

#[cfg(test)]
mod tests {
    use proto_api::Time;

    use super::*;

    #[test]
    fn only_missing_and_only_in_active_namespaces() {
        let mut namespace = Namespace::default();
        namespace.metadata.name = "a".into();
        let plan_for = |namespace: &Namespace, existing| plan(namespace, existing).writes;
        let [ApiWrite::Create(crate::api_writes::WrittenObject::ServiceAccount(made))] =
            &plan_for(&namespace, None)[..]
        else {
            unreachable!("one account")
        };
        assert_eq!((&*made.metadata.namespace, &*made.metadata.name), ("a", "default"));
        assert!(plan_for(&namespace, Some(made)).is_empty());
        namespace.metadata.deletion_timestamp = Some(Time::from_unix(1));
        assert!(plan_for(&namespace, None).is_empty());
    }
}
