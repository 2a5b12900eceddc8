//! The root-ca-cert-publisher controller: publishes the API server's CA in a ConfigMap of every namespace.

use std::collections::BTreeMap;

use proto_api::core::v1::{ConfigMap, Namespace};
use proto_api::meta::v1::ObjectMeta;
use proto_api::names::Names;

use crate::Plan;
use crate::api_writes::ApiWrite;

/// Key of the certificates in the ConfigMap.
pub const KEY: &str = "ca.crt";

/// Plans the ConfigMap: creates it, or restores its data.
pub fn plan(names: &Names, namespace: &Namespace, ca: &str, existing: Option<&ConfigMap>) -> Plan {
    if namespace.metadata.deletion_timestamp.is_some() {
        return Plan::default();
    }
    let data = BTreeMap::from([(KEY.to_owned(), ca.to_owned())]);
    match existing {
        Some(existing) if existing.data == data && existing.binary_data.is_empty() => {
            Plan::default()
        }
        Some(existing) => {
            let metadata = existing.metadata.clone();
            Plan::from_writes([ApiWrite::Update(
                ConfigMap { metadata, data, ..ConfigMap::default() }.into(),
            )])
        }
        None => {
            let metadata = ObjectMeta {
                name: names.root_ca_config_map().to_owned(),
                namespace: namespace.metadata.name.clone(),
                annotations: BTreeMap::from([(
                    names.label("description"),
                    "Certificates that verify the API server; any pod of the namespace may read them."
                        .to_owned(),
                )]),
                ..ObjectMeta::default()
            };
            Plan::from_writes([ApiWrite::Create(
                ConfigMap { metadata, data, ..ConfigMap::default() }.into(),
            )])
        }
    }
}

#[cfg(test)]
mod tests {
    use proto_api::names::Profile;

    use super::*;
    use crate::api_writes::WrittenObject;

    #[test]
    fn made_when_missing_and_restored_when_changed() {
        let names = Names::new(Profile::Kubernetes);
        let namespace = Namespace::default();
        let made = plan(names, &namespace, "pem", None).writes;
        let [ApiWrite::Create(WrittenObject::ConfigMap(made))] = &made[..] else {
            unreachable!("one config map")
        };
        assert_eq!(made.metadata.name, "kube-root-ca.crt");
        assert_eq!(made.data["ca.crt"], "pem");
        assert_eq!(plan(names, &namespace, "pem", Some(made)), Plan::default());
        let changed = plan(names, &namespace, "new", Some(made)).writes;
        let [ApiWrite::Update(WrittenObject::ConfigMap(changed))] = &changed[..] else {
            unreachable!("one update")
        };
        assert_eq!((&changed.metadata, &*changed.data["ca.crt"]), (&made.metadata, "new"));
    }
}
