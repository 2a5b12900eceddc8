//! Requests to CSI drivers: pure.

use std::collections::{BTreeMap, HashMap};

use agent_volume::persistent::{CsiVolume, PersistentSource};
use proto_grpc::csi::v1 as wire;
use serde_json::json;

use crate::driver::Capabilities;

/// Volume context keys for pod information. Defined by CSI, so the same under every naming profile.
mod keys {
    pub const POD_NAME: &str = "csi.storage.k8s.io/pod.name";
    pub const POD_NAMESPACE: &str = "csi.storage.k8s.io/pod.namespace";
    pub const POD_UID: &str = "csi.storage.k8s.io/pod.uid";
    pub const ACCOUNT: &str = "csi.storage.k8s.io/serviceAccount.name";
    pub const EPHEMERAL: &str = "csi.storage.k8s.io/ephemeral";
    pub const TOKENS: &str = "csi.storage.k8s.io/serviceAccount.tokens";
}

/// The pod that a volume is set up for.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PodFacts {
    /// Uid of the pod.
    pub uid: String,
    /// Name of the pod.
    pub name: String,
    /// Namespace of the pod.
    pub namespace: String,
    /// Its service account.
    pub account: String,
    /// Its `fsGroup`.
    pub group: Option<u32>,
    /// Its `fsGroupChangePolicy`.
    pub change: agent_volume::fs_group::FsGroupChangePolicy,
}

/// A service account token for a driver.
#[derive(Clone, PartialEq, Eq)]
pub struct DriverToken {
    pub audience: String,
    /// The encoded token.
    pub text: String,
    /// Expiry in RFC 3339.
    pub expires: String,
}

/// Volume context of NodePublishVolume: volume attributes, pod information and tokens.
#[must_use]
pub fn publish_context(
    volume: &CsiVolume,
    pod: &PodFacts,
    tokens: &[DriverToken],
) -> HashMap<String, String> {
    let mut context: HashMap<String, String> = volume.attributes.clone().into_iter().collect();
    if volume.pod_info {
        let ephemeral = volume.ephemeral.to_string();
        for (key, value) in [
            (keys::POD_NAME, &pod.name),
            (keys::POD_NAMESPACE, &pod.namespace),
            (keys::POD_UID, &pod.uid),
            (keys::ACCOUNT, &pod.account),
            (keys::EPHEMERAL, &ephemeral),
        ] {
            context.insert(key.to_owned(), value.clone());
        }
    }
    if !tokens.is_empty() {
        let each = |token: &DriverToken| {
            let value = json!({"token": token.text, "expirationTimestamp": token.expires});
            (token.audience.clone(), value)
        };
        let all: BTreeMap<String, serde_json::Value> = tokens.iter().map(each).collect();
        context.insert(keys::TOKENS.to_owned(), json!(all).to_string());
    }
    context
}

/// Volume capability for a volume. `group` is passed to drivers that apply `fsGroup` themselves.
#[must_use]
pub fn capability(
    volume: &PersistentSource,
    csi: &CsiVolume,
    group: Option<u32>,
    able: Capabilities,
) -> wire::VolumeCapability {
    use wire::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};
    let access = if volume.block {
        AccessType::Block(BlockVolume {})
    } else {
        let group = group.filter(|_| able.mount_group);
        AccessType::Mount(MountVolume {
            fs_type: csi.fs_type.clone(),
            mount_flags: volume.mount_options.clone(),
            volume_mount_group: group.map(|group| group.to_string()).unwrap_or_default(),
        })
    };
    let mode = access_mode(csi.access_modes.first().map_or("ReadWriteOnce", |m| m), able);
    let access_mode = Some(AccessMode { mode: mode.into() });
    wire::VolumeCapability { access_mode, access_type: Some(access) }
}

fn access_mode(mode: &str, able: Capabilities) -> wire::volume_capability::access_mode::Mode {
    use wire::volume_capability::access_mode::Mode;
    match (mode, able.single_node_multi_writer) {
        ("ReadOnlyMany", _) => Mode::MultiNodeReaderOnly,
        ("ReadWriteMany", _) => Mode::MultiNodeMultiWriter,
        ("ReadWriteOncePod", true) => Mode::SingleNodeSingleWriter,
        (_, true) => Mode::SingleNodeMultiWriter,
        (_, false) => Mode::SingleNodeWriter,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use agent_volume::persistent::Backing;
    use wire::volume_capability::access_mode::Mode;

    #[test]
    fn a_csi_driver_gets_only_the_pod_info_and_tokens_that_it_requests() {
        let pod = PodFacts {
            uid: "u".into(),
            name: "p".into(),
            namespace: "ns".into(),
            account: "default".into(),
            ..PodFacts::default()
        };
        let attributes = BTreeMap::from([("a".to_owned(), "b".to_owned())]);
        let mut volume = CsiVolume { attributes, ephemeral: true, ..CsiVolume::default() };
        assert_eq!(publish_context(&volume, &pod, &[]).len(), 1);
        volume.pod_info = true;
        let token = DriverToken {
            audience: "x".into(),
            text: "t".into(),
            expires: "2026-01-01T00:00:00Z".into(),
        };
        let got: BTreeMap<_, _> = publish_context(&volume, &pod, &[token]).into_iter().collect();
        let expect = [
            ("a", "b"),
            ("csi.storage.k8s.io/ephemeral", "true"),
            ("csi.storage.k8s.io/pod.name", "p"),
            ("csi.storage.k8s.io/pod.namespace", "ns"),
            ("csi.storage.k8s.io/pod.uid", "u"),
            ("csi.storage.k8s.io/serviceAccount.name", "default"),
            (
                "csi.storage.k8s.io/serviceAccount.tokens",
                r#"{"x":{"token":"t","expirationTimestamp":"2026-01-01T00:00:00Z"}}"#,
            ),
        ];
        assert_eq!(got, expect.map(|(k, v)| (k.to_owned(), v.to_owned())).into());
    }

    #[test]
    fn modes_and_groups_follow_what_the_driver_can() {
        let able = |single_node_multi_writer| Capabilities {
            single_node_multi_writer,
            mount_group: single_node_multi_writer,
            ..Capabilities::default()
        };
        for (mode, plain, fine) in [
            ("ReadWriteOnce", Mode::SingleNodeWriter, Mode::SingleNodeMultiWriter),
            ("ReadWriteOncePod", Mode::SingleNodeWriter, Mode::SingleNodeSingleWriter),
            ("ReadOnlyMany", Mode::MultiNodeReaderOnly, Mode::MultiNodeReaderOnly),
            ("ReadWriteMany", Mode::MultiNodeMultiWriter, Mode::MultiNodeMultiWriter),
        ] {
            assert_eq!(access_mode(mode, able(false)), plain);
            assert_eq!(access_mode(mode, able(true)), fine);
        }
        let csi = CsiVolume::default();
        let mut volume = PersistentSource {
            name: "v".into(),
            spec_name: "pv".into(),
            backing: Backing::Csi(Box::default()),
            read_only: false,
            block: false,
            mount_options: vec!["ro".into()],
            grow_to: None,
            claim: None,
        };
        let group =
            |volume: &PersistentSource, can| match capability(volume, &csi, Some(7), able(can))
                .access_type
            {
                Some(wire::volume_capability::AccessType::Mount(mount)) => {
                    Some(mount.volume_mount_group)
                }
                _ => None,
            };
        assert_eq!(group(&volume, true).as_deref(), Some("7"));
        assert_eq!(group(&volume, false).as_deref(), Some(""));
        volume.block = true;
        assert_eq!(group(&volume, true), None);
    }
}
