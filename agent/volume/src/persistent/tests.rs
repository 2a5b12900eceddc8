use proto_api::migration::DRIVERS;
use proto_api::yaml;

use super::*;

fn from_yaml<T: serde::de::DeserializeOwned>(text: &str) -> T {
    serde_json::from_value(yaml::parse(text).unwrap()).unwrap()
}

fn pod(volume: &str) -> Pod {
    from_yaml(&format!(
        "{{metadata: {{name: web, namespace: ns, uid: u1}}, spec: {{volumes: [{volume}]}}}}"
    ))
}

const CLAIM: &str = "{metadata: {name: data, namespace: ns, uid: c1}, spec: {volumeName: pv}, status: {phase: Bound}}";
const CLAIMED: &str = "{name: v, persistentVolumeClaim: {claimName: data}}";

fn claimed(claim: &str, volume: &str) -> KnownObjects {
    let mut known = KnownObjects::default();
    known.claims.insert("data".into(), Some(Arc::new(from_yaml(claim))));
    known.volumes.insert("pv".into(), Some(Arc::new(from_yaml(volume))));
    known
}

fn volume(source: &str) -> String {
    format!("{{metadata: {{name: pv}}, spec: {{claimRef: {{uid: c1}}, {source}}}}}")
}

fn error(pod: &Pod, known: &KnownObjects) -> String {
    resolve(pod, &pod.spec.volumes[0], "n", known).unwrap_err().to_string()
}

fn found(pod: &Pod, known: &KnownObjects) -> PersistentSource {
    resolve(pod, &pod.spec.volumes[0], "n", known).unwrap().unwrap()
}

#[test]
fn a_claim_has_to_be_there_bound_and_the_pods_own() {
    let pod_of = |text: &str| pod(text);
    let mut nothing = KnownObjects::default();
    nothing.claims.insert("data".into(), None);
    let not_found = "error processing PVC ns/data: failed to fetch PVC from API server: persistentvolumeclaims \"data\" not found";
    assert_eq!(error(&pod_of(CLAIMED), &nothing), not_found);
    let good = volume("hostPath: {path: /x}");
    let cases = [
        (CLAIM.replace("Bound", "Pending"), good.clone(), "PVC is not bound"),
        (CLAIM.replace("volumeName: pv", ""), good.clone(), "PVC is not bound"),
        (
            CLAIM.replace("uid: c1", "uid: c1, deletionTimestamp: '2026-01-01T00:00:00Z'"),
            good.clone(),
            "can't start pod because PVC is being deleted",
        ),
        (
            CLAIM.into(),
            good.replace("uid: c1", "uid: c2, namespace: o, name: other"),
            "PV \"pv\" is bound to another PVC o/other",
        ),
        (
            CLAIM.into(),
            good.replace("claimRef: {uid: c1}, ", ""),
            "found PV object pv bound to PVC with nil claimRef",
        ),
    ];
    for (claim, volume, why) in cases {
        let told = error(&pod_of(CLAIMED), &claimed(&claim, &volume));
        assert_eq!(told, format!("error processing PVC ns/data: {why}"));
    }
    let ephemeral = pod("{name: v, ephemeral: {}}");
    let mut known = claimed(CLAIM, &good);
    let claim = known.claims.remove("data").unwrap();
    known.claims.insert("web-v".into(), claim);
    assert!(
        error(&ephemeral, &known).ends_with("was not created for pod ns/web (pod is not owner)")
    );
    let own = CLAIM.replace("uid: c1", "uid: c1, ownerReferences: [{uid: u1, controller: true}]");
    known.claims.insert("web-v".into(), Some(Arc::new(from_yaml(&own))));
    assert_eq!(found(&ephemeral, &known).claim.as_deref(), Some("web-v"));
}

#[test]
fn required_objects_are_named_step_by_step() {
    let pod = pod(CLAIMED);
    let mut known = KnownObjects::default();
    let next = |known: &KnownObjects| required_objects(&pod, "n", known);
    assert_eq!(next(&known).claims, ["data".to_owned()].into());
    let source = "csi: {driver: d, volumeHandle: h, nodeStageSecretRef: {name: s, namespace: o}}";
    let all = claimed(CLAIM, &volume(source));
    known.claims = all.claims;
    assert_eq!(next(&known).volumes, ["pv".to_owned()].into());
    assert!(!next(&known).is_known(&known));
    known.volumes = all.volumes;
    assert_eq!(next(&known).drivers, ["d".to_owned()].into());
    assert_eq!(next(&known).secrets, [("o".to_owned(), "s".to_owned())].into());
    assert!(next(&known).attachments.is_empty(), "unknown drivers attach nothing");
    known.drivers.insert("d".into(), None);
    let attachment = attachment_name("h", "d", "n");
    assert_eq!(next(&known).attachments, [attachment.clone()].into());
    assert!(error(&pod, &known).contains("has not been read from the API server yet"));
    known.attachments.insert(attachment.clone(), None);
    assert!(error(&pod, &known).starts_with("AttachVolume.Attach failed for volume \"pv\" : "));
    let failed = "{status: {attachError: {message: no room}}}";
    known.attachments.insert(attachment.clone(), Some(Arc::new(from_yaml(failed))));
    assert_eq!(error(&pod, &known), "AttachVolume.Attach failed for volume \"pv\" : no room");
    let attached = "{status: {attached: true, attachmentMetadata: {dev: x}}}";
    known.attachments.insert(attachment, Some(Arc::new(from_yaml(attached))));
    let Backing::Csi(csi) = found(&pod, &known).backing else { panic!("a driver's") };
    assert_eq!(csi.publish_context["dev"], "x");
    // A driver that attaches nothing.
    let driver = "{spec: {attachRequired: false, podInfoOnMount: true, fsGroupPolicy: File, requiresRepublish: true, tokenRequests: [{audience: a}]}}";
    known.drivers.insert("d".into(), Some(Arc::new(from_yaml(driver))));
    known.attachments.clear();
    let Backing::Csi(csi) = found(&pod, &known).backing else { panic!("a driver's") };
    assert!(csi.attachment.is_none() && csi.pod_info && csi.republish && csi.takes_group());
    assert_eq!(
        csi.tokens,
        [crate::sources::TokenWant { audience: "a".into(), expiration_secs: 3600 }]
    );
}

#[test]
fn inline_volumes_need_a_driver_that_says_so() {
    let pod = pod(
        "{name: v, csi: {driver: d, nodePublishSecretRef: {name: s}, volumeAttributes: {a: b}}}",
    );
    let mut known = KnownObjects::default();
    let mut told = |driver: Option<&str>| {
        known.drivers.insert("d".into(), driver.map(|text| Arc::new(from_yaml(text))));
        resolve(&pod, &pod.spec.volumes[0], "n", &known)
    };
    assert!(told(None).is_err());
    assert!(told(Some("{spec: {}}")).is_err());
    assert!(told(Some("{spec: {volumeLifecycleModes: [Persistent]}}")).is_err());
    let found = told(Some("{spec: {volumeLifecycleModes: [Ephemeral]}}")).unwrap().unwrap();
    let Backing::Csi(csi) = found.backing else { panic!("a driver's") };
    assert!(csi.ephemeral && csi.attachment.is_none());
    assert_eq!(csi.publish_secret, Some(("ns".into(), "s".into())));
    assert_eq!(csi.handle.len(), "csi-".len() + 64);
}

/// Every source of the API, in a persistent volume and in a pod.
#[test]
fn every_source_is_honoured_or_refused_with_its_reason() {
    let cases = [
        ("hostPath: {path: /x, type: Directory}", "hostPath"),
        ("local: {path: /mnt/x}", "local"),
        ("nfs: {server: s, path: /e}", "nfs"),
        ("csi: {driver: d, volumeHandle: h}", "d h"),
        (
            "gcePersistentDisk: {pdName: x, partition: 2}",
            "pd.csi.storage.gke.io projects/UNSPECIFIED/zones/UNSPECIFIED/disks/x",
        ),
        ("awsElasticBlockStore: {volumeID: 'aws://z/vol-1'}", "ebs.csi.aws.com vol-1"),
        ("azureDisk: {diskName: x, diskURI: /sub/x}", "disk.csi.azure.com /sub/x"),
        ("azureFile: {secretName: s, shareName: x}", "file.csi.azure.com ##x#pv#default"),
        ("cinder: {volumeID: x}", "cinder.csi.openstack.org x"),
        ("vsphereVolume: {volumePath: x}", "csi.vsphere.vmware.com x"),
        ("portworxVolume: {volumeID: x}", "pxd.portworx.com x"),
        ("rbd: {image: x, monitors: [m]}", "rbd.csi.ceph.com and its clusterID"),
        (
            "iscsi: {targetPortal: p, iqn: i, lun: 1, fsType: xfs}",
            "by-path/ip-p:3260-iscsi-i-lun-1 xfs",
        ),
        ("fc: {wwids: [w]}", "by-id/scsi-w "),
        ("glusterfs: {endpoints: e, path: p}", "glusterfs volumes are not supported"),
        ("cephfs: {monitors: [m]}", "cephfs volumes are not supported"),
        ("flocker: {}", "flocker volumes are not supported"),
        ("flexVolume: {driver: d}", "flexVolume volumes are not supported"),
        ("quobyte: {registry: r, volume: v}", "quobyte volumes are not supported"),
        ("photonPersistentDisk: {pdID: x}", "photonPersistentDisk volumes are not supported"),
        ("scaleIO: {gateway: g, system: s}", "scaleIO volumes are not supported"),
        ("storageos: {}", "storageos volumes are not supported"),
    ];
    for (source, expect) in cases {
        let mut known = claimed(CLAIM, &volume(source));
        let none = r#"{spec: {attachRequired: false}}"#;
        for driver in DRIVERS.iter().map(|(_, driver)| driver).chain(&["d"]) {
            known.drivers.insert((*driver).into(), Some(Arc::new(from_yaml(none))));
        }
        let pod = pod(CLAIMED);
        let shown = match resolve(&pod, &pod.spec.volumes[0], "n", &known) {
            Err(error) => error.to_string(),
            Ok(found) => match found.unwrap().backing {
                Backing::HostPath { .. } => "hostPath".into(),
                Backing::Local { .. } => "local".into(),
                Backing::Nfs { .. } => "nfs".into(),
                Backing::Disk { disk, fs_type } => format!("{} {fs_type}", disk.links().join(" ")),
                Backing::Csi(csi) => format!("{} {}", csi.driver, csi.handle),
            },
        };
        assert!(shown.contains(expect), "{source}: {shown}");
    }
    assert_eq!(names(cases.map(|case| case.0)), sources_of("PersistentVolumeSource"));
}

/// The fields of a message in the schema.
fn sources_of(message: &str) -> BTreeSet<&'static str> {
    let schema = include_str!("../../../../proto/api/schema/core_v1.tsv");
    let rows = schema.lines().map(|line| line.split('\t').collect::<Vec<_>>());
    rows.filter(|row| row[0] == message && row[1] != "{}").map(|row| row[1]).collect()
}

fn names<'a>(cases: impl IntoIterator<Item = &'a str>) -> BTreeSet<&'a str> {
    cases.into_iter().filter_map(|source| source.split(':').next()).collect()
}

/// In a pod: supported by the agent, by a driver, or rejected.
#[test]
fn every_source_of_a_pod_is_honoured_or_refused_with_its_reason() {
    let cases = [
        ("hostPath: {path: /x}", "HostPath"),
        ("emptyDir: {}", "EmptyDir(Disk)"),
        ("secret: {secretName: s}", "Secret"),
        ("configMap: {name: m}", "ConfigMap"),
        ("downwardAPI: {}", "DownwardApi"),
        ("projected: {sources: []}", "Projected"),
        ("persistentVolumeClaim: {claimName: data}", "Local { path: \"/mnt\""),
        ("ephemeral: {volumeClaimTemplate: {spec: {}}}", "Local { path: \"/mnt\""),
        ("csi: {driver: d}", "driver: \"d\""),
        ("nfs: {server: s, path: /p}", "Nfs"),
        ("iscsi: {targetPortal: p, iqn: i, lun: 0}", "Iscsi"),
        ("fc: {wwids: [w]}", "FibreChannel"),
        ("gcePersistentDisk: {pdName: x}", "pd.csi.storage.gke.io"),
        ("awsElasticBlockStore: {volumeID: vol-1}", "ebs.csi.aws.com"),
        ("azureDisk: {diskName: x, diskURI: /sub/x}", "disk.csi.azure.com"),
        ("azureFile: {secretName: s, shareName: x}", "file.csi.azure.com"),
        ("cinder: {volumeID: x}", "cinder.csi.openstack.org"),
        ("vsphereVolume: {volumePath: x}", "csi.vsphere.vmware.com"),
        ("portworxVolume: {volumeID: x}", "pxd.portworx.com"),
        ("rbd: {image: x, monitors: [m]}", "rbd.csi.ceph.com and its clusterID"),
        ("gitRepo: {repository: r}", "gitRepo volumes are not supported by this node agent: "),
        ("flexVolume: {driver: d}", "flexVolume volumes are not supported by this node agent: "),
        ("glusterfs: {endpoints: e, path: p}", "glusterfs volumes are not supported"),
        ("cephfs: {monitors: [m]}", "cephfs volumes are not supported"),
        ("flocker: {}", "flocker volumes are not supported"),
        ("quobyte: {registry: r, volume: v}", "quobyte volumes are not supported"),
        ("photonPersistentDisk: {pdID: x}", "photonPersistentDisk volumes are not supported"),
        ("scaleIO: {gateway: g, system: s}", "scaleIO volumes are not supported"),
        ("storageos: {}", "storageos volumes are not supported"),
    ];
    assert_eq!(names(cases.map(|case| case.0)), sources_of("VolumeSource"));
    for (source, expect) in cases {
        let mut known = claimed(CLAIM, &volume("local: {path: /mnt}"));
        let own =
            CLAIM.replace("uid: c1", "uid: c1, ownerReferences: [{uid: u1, controller: true}]");
        known.claims.insert("web-v".into(), Some(Arc::new(from_yaml(&own))));
        let both = "{spec: {attachRequired: false, volumeLifecycleModes: [Persistent, Ephemeral]}}";
        for driver in DRIVERS.iter().map(|(_, driver)| driver).chain(&["d"]) {
            known.drivers.insert((*driver).into(), Some(Arc::new(from_yaml(both))));
        }
        let pod = pod(&format!("{{name: v, {source}}}"));
        let shown = match sources::volumes(&pod) {
            Err(refused) => refused.to_string(),
            Ok(volumes) if volumes[0].kind == sources::VolumeKind::Persistent => {
                match resolve(&pod, &pod.spec.volumes[0], "n", &known) {
                    Err(refused) => refused.to_string(),
                    Ok(found) => format!("{:?}", found.map(|found| found.backing)),
                }
            }
            Ok(volumes) => format!("{:?}", volumes[0].kind),
        };
        assert!(shown.contains(expect), "{source}: {shown}");
    }
}

/// A pod of 3 MB may name 200,000 portals, each of which is several programs.
#[test]
fn a_disk_that_names_more_than_is_supported_is_refused() {
    let list = |len: usize| vec!["x"; len].join(", ");
    let iscsi = |portals: &str| {
        format!("iscsi: {{targetPortal: p, iqn: i, lun: 0, secretRef: {{name: s}}, {portals}}}")
    };
    let (many, long) = (list(65), "x".repeat(321));
    let cases = [
        (iscsi(&format!("portals: [{many}]")), "iscsi.portals has 65 entries, at most 64 are"),
        (iscsi(&format!("portals: [{long}]")), "iscsi.portals has 321 bytes, at most 320 are"),
        (iscsi(&format!("iscsiInterface: {long}")), "iscsi.iscsiInterface has 321 bytes"),
        (iscsi(&format!("initiatorName: {long}")), "iscsi.initiatorName has 321 bytes"),
        (format!("iscsi: {{targetPortal: {long}, iqn: i}}"), "iscsi.targetPortal has 321 bytes"),
        (format!("iscsi: {{targetPortal: p, iqn: {long}}}"), "iscsi.iqn has 321 bytes"),
        (format!("fc: {{targetWWNs: [{many}], lun: 0}}"), "fc.targetWWNs has 65 entries"),
        (format!("fc: {{wwids: [{many}]}}"), "fc.wwids has 65 entries"),
    ];
    for (source, why) in cases {
        let inline = pod(&format!("{{name: v, {source}}}"));
        let none = KnownObjects::default();
        let refused = error(&inline, &none);
        assert!(refused.starts_with(&format!("volume \"v\": {why}")), "{refused}");
        assert_eq!(required_objects(&inline, "n", &none), ObjectNames::default());
        let refused = error(&pod(CLAIMED), &claimed(CLAIM, &volume(&source)));
        assert!(refused.starts_with(&format!("volume \"pv\": {why}")), "{refused}");
    }
    let most = iscsi(&format!("portals: [{}]", list(64)));
    found(&pod(&format!("{{name: v, {most}}}")), &KnownObjects::default());
}

/// What a pod says of its disk or server becomes arguments of programs of root, and names in which `*` is a wildcard.
#[test]
fn names_of_disks_and_servers_are_names_and_nothing_else() {
    let iscsi = |fields: &str| format!("iscsi: {{lun: 0, {fields}}}");
    let cases = [
        ("fc: {wwids: ['*-part3']}".to_owned(), "fc.wwids: Invalid value: \"*-part3\": "),
        ("fc: {wwids: [w, '*']}".to_owned(), "fc.wwids: Invalid value: \"*\": "),
        ("fc: {wwids: ['a/../b']}".to_owned(), "fc.wwids: Invalid value: \"a/../b\": "),
        ("fc: {targetWWNs: ['5*'], lun: 0}".to_owned(), "fc.targetWWNs: Invalid value: \"5*\": "),
        (iscsi("targetPortal: p, iqn: 'i*'"), "iscsi.iqn: Invalid value: \"i*\": "),
        (iscsi("targetPortal: p, iqn: 'i/../x'"), "iscsi.iqn: Invalid value: "),
        (iscsi("targetPortal: p, iqn: -i"), "iscsi.iqn: Invalid value: "),
        (iscsi("targetPortal: '*', iqn: i"), "iscsi.targetPortal: Invalid value: \"*\": "),
        (
            iscsi("targetPortal: p, iqn: i, iscsiInterface: volume-0a"),
            "iscsi.iscsiInterface: Invalid value: \"volume-0a\": ",
        ),
        (iscsi("targetPortal: p, iqn: i, iscsiInterface: -x"), "iscsi.iscsiInterface: Invalid"),
        (iscsi("targetPortal: p, iqn: i, initiatorName: \"i\\nx\""), "iscsi.initiatorName: Inv"),
        ("nfs: {server: -V, path: /x}".to_owned(), "nfs.server: Invalid value: \"-V\": "),
        ("nfs: {server: '', path: /x}".to_owned(), "nfs.server: Invalid value: \"\": "),
        ("nfs: {server: 'a b', path: /x}".to_owned(), "nfs.server: Invalid value: \"a b\": "),
    ];
    let none = KnownObjects::default();
    for (source, why) in cases {
        let inline = pod(&format!("{{name: v, {source}}}"));
        let refused = resolve(&inline, &inline.spec.volumes[0], "n", &none);
        let refused = refused.err().map(|error| error.to_string()).unwrap_or_default();
        assert!(refused.starts_with(&format!("volume \"v\": {why}")), "{source}: {refused}");
        let refused = error(&pod(CLAIMED), &claimed(CLAIM, &volume(&source)));
        assert!(refused.starts_with(&format!("volume \"pv\": {why}")), "{source}: {refused}");
    }
    for source in [
        "fc: {wwids: ['36001405 f_1.a-B:2']}",
        "fc: {targetWWNs: ['0x50060e801049cfd1'], lun: 0}",
        "iscsi: {targetPortal: p, iqn: 'iqn.2003-04.com.example:a_b', iscsiInterface: bnx2i.00:05}",
        "nfs: {server: 'fd00::1', path: /x}",
        "nfs: {server: nfs_1.example.com, path: '-x'}",
    ] {
        found(&pod(&format!("{{name: v, {source}}}")), &none);
    }
}

/// Two texts of one portal would be two sessions, of which one is ended under the other.
#[test]
fn a_portal_has_one_text() {
    let links = |portal: &str| {
        let source = format!("iscsi: {{targetPortal: p, iqn: i, lun: 0, portals: ['{portal}']}}");
        let pod = pod(&format!("{{name: v, {source}}}"));
        match resolve(&pod, &pod.spec.volumes[0], "n", &KnownObjects::default()) {
            Ok(Some(PersistentSource { backing: Backing::Disk { disk, .. }, .. })) => {
                Ok(disk.links().get(1).cloned().unwrap_or_default())
            }
            other => Err(other.map(drop).unwrap_err().to_string()),
        }
    };
    for (text, canonical) in [
        ("10.0.0.1", "10.0.0.1:3260"),
        ("10.0.0.1:3260", "10.0.0.1:3260"),
        ("10.0.0.1:99", "10.0.0.1:99"),
        ("[FD00:0::1]", "[fd00::1]:3260"),
        ("fd00::1", "[fd00::1]:3260"),
        ("[fd00::1]:99", "[fd00::1]:99"),
        ("[::ffff:10.0.0.1]:3260", "10.0.0.1:3260"),
        ("SAN-1.example.com", "san-1.example.com:3260"),
        ("san_1:99", "san_1:99"),
    ] {
        assert_eq!(links(text), Ok(format!("by-path/ip-{canonical}-iscsi-i-lun-0")), "{text}");
    }
    for text in [
        "10.0.0.1:03260",
        "10.0.0.1:+3260",
        ":+3260",
        ":3260",
        "10.0.0.1:3260,1",
        "10.0.0.1:",
        "10.0.0.1:0",
        "10.0.0.1:65536",
        "10.0.0.01",
        "10.1",
        "0x0a000001",
        "0.0.0.0",
        "[::]:3260",
        "[fd00::1",
        "[fd00::1]x",
        "[10.0.0.1]",
        "fe80::1%eth0",
        "a..b",
        "-a",
        "a b",
    ] {
        let refused = links(text).unwrap_err();
        let why = format!("volume \"v\": iscsi.portals: Invalid value: {text:?}: ");
        assert!(refused.starts_with(&why), "{text}: {refused}");
    }
}

#[test]
fn devices_are_no_mounts_and_sizes_are_followed() {
    let mut pod = pod(CLAIMED);
    let container = "{name: c, volumeMounts: [{name: v, mountPath: /v}]}";
    pod.spec.containers.push(from_yaml(container));
    let known = claimed(CLAIM, &volume("local: {path: /dev/x}, volumeMode: Block"));
    let told = error(&pod, &known);
    assert!(
        told.ends_with("volume v has volumeMode Block, but is specified in volumeMounts"),
        "{told}"
    );
    let grown = CLAIM.replace("phase: Bound", "phase: Bound, capacity: {storage: 1Gi}");
    let known = claimed(&grown, &volume("local: {path: /x}, capacity: {storage: 2Gi}"));
    assert_eq!(found(&pod, &known).grow_to, Some(2 << 30));
    let known = claimed(&grown, &volume("local: {path: /x}, capacity: {storage: 1Gi}"));
    assert_eq!(found(&pod, &known).grow_to, None);
}
