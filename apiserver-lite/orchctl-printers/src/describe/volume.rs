//! Volumes of a pod or of a template of pods.

use serde_json::Value;

use super::Page;
use super::common::word;
use crate::objects;

/// The volumes under their title.
pub(super) fn list(page: &mut Page, owner: &Value, level: usize) {
    let volumes = objects::list_at(owner, "/spec/volumes");
    if volumes.is_empty() {
        page.line(level, "Volumes:\t<none>");
        return;
    }
    page.line(level, "Volumes:");
    for volume in volumes {
        // Names of a template stand a little deeper than its title.
        let space = if level == 0 { "" } else { " " };
        page.line(1, format!("{space}{}:", objects::text_at(volume, "/name")));
        for line in lines(volume) {
            page.line(1, line);
        }
        for line in volume.get("csi").map(attributes).unwrap_or_default() {
            page.line(1, line);
        }
    }
}

/// The lines of a persistent volume, whose source is a field of its specification among others.
pub(super) fn source_lines(object: &Value) -> Vec<String> {
    let fields = objects::map_at(object, "/spec").into_iter().flatten();
    let is_source = |key: &str, value: &Value| {
        value.is_object() && !matches!(key, "capacity" | "claimRef" | "nodeAffinity")
    };
    let source = fields.into_iter().find(|(key, value)| is_source(key, value));
    let lines = |(key, value): (&String, &Value)| {
        let mut lines = lines(&serde_json::json!({ key.as_str(): value }));
        if key == "csi" {
            let handle = format!("  VolumeHandle:\t{}", objects::text_at(value, "/volumeHandle"));
            lines.insert(lines.len().saturating_sub(1), handle);
            lines.extend(attributes(value));
        }
        lines
    };
    source.map(lines).unwrap_or_default()
}

/// What a driver knows of a volume, besides its handle.
fn attributes(source: &Value) -> Vec<String> {
    let pairs = super::data::sorted(objects::map_at(source, "/volumeAttributes"));
    if pairs.is_empty() {
        return vec!["  VolumeAttributes:\t<none>".to_owned()];
    }
    let line = |(at, (key, value)): (usize, (&String, &str))| {
        let title = if at == 0 { "  VolumeAttributes:" } else { "" };
        format!("{title}\t    {key}={value}")
    };
    pairs.into_iter().enumerate().map(line).collect()
}

/// A field of a source: its title, where it is, and what is shown without it.
type Field = (&'static str, &'static str, &'static str);

/// Kinds of sources: their field of a volume, what they are, and what is shown of them.
const KINDS: &[(&str, &str, &[Field])] = &[
    (
        "configMap",
        "ConfigMap (a volume populated by a ConfigMap)",
        &[("Name:", "/name", ""), ("Optional:", "/optional", "false")],
    ),
    (
        "secret",
        "Secret (a volume populated by a Secret)",
        &[("SecretName:", "/secretName", ""), ("Optional:", "/optional", "false")],
    ),
    (
        "emptyDir",
        "EmptyDir (a temporary directory that shares a pod's lifetime)",
        &[("Medium:", "/medium", ""), ("SizeLimit:", "/sizeLimit", "<unset>")],
    ),
    (
        "hostPath",
        "HostPath (bare host directory volume)",
        &[("Path:", "/path", ""), ("HostPathType:", "/type", "")],
    ),
    (
        "persistentVolumeClaim",
        "PersistentVolumeClaim (a reference to a PersistentVolumeClaim in the same namespace)",
        &[("ClaimName:", "/claimName", ""), READ_ONLY],
    ),
    (
        "nfs",
        "NFS (an NFS mount that lasts the lifetime of a pod)",
        &[("Server:", "/server", ""), ("Path:", "/path", ""), READ_ONLY],
    ),
    (
        "csi",
        "CSI (a Container Storage Interface (CSI) volume source)",
        &[("Driver:", "/driver", ""), FS_TYPE, READ_ONLY],
    ),
    (
        "local",
        "LocalVolume (a persistent volume backed by local storage on a node)",
        &[("Path:", "/path", "")],
    ),
    (
        "gitRepo",
        "GitRepo (a volume that is pulled from git when the pod is created)",
        &[("Repository:", "/repository", ""), ("Revision:", "/revision", "")],
    ),
    (
        "iscsi",
        "ISCSI (an ISCSI Disk resource that is attached to a kubelet's host machine and then exposed to the pod)",
        &[
            ("TargetPortal:", "/targetPortal", ""),
            ("IQN:", "/iqn", ""),
            ("Lun:", "/lun", "0"),
            ("ISCSIInterface", "/iscsiInterface", ""),
            FS_TYPE,
            READ_ONLY,
            ("Portals:", "/portals", "[]"),
            ("DiscoveryCHAPAuth:", "/chapAuthDiscovery", "false"),
            ("SessionCHAPAuth:", "/chapAuthSession", "false"),
            SECRET,
            ("InitiatorName:", "/initiatorName", "<none>"),
        ],
    ),
    (
        "rbd",
        "RBD (a Rados Block Device mount on the host that shares a pod's lifetime)",
        &[
            ("CephMonitors:", "/monitors", "[]"),
            ("RBDImage:", "/image", ""),
            FS_TYPE,
            ("RBDPool:", "/pool", ""),
            ("RadosUser:", "/user", ""),
            ("Keyring:", "/keyring", ""),
            SECRET,
            READ_ONLY,
        ],
    ),
    (
        "cephfs",
        "CephFS (a CephFS mount on the host that shares a pod's lifetime)",
        &[
            ("Monitors:", "/monitors", "[]"),
            ("Path:", "/path", ""),
            ("User:", "/user", ""),
            ("SecretFile:", "/secretFile", ""),
            SECRET,
            READ_ONLY,
        ],
    ),
    (
        "fc",
        "FC (a Fibre Channel disk)",
        &[("TargetWWNs:", "/targetWWNs", ""), ("LUN:", "/lun", "<none>"), FS_TYPE, READ_ONLY],
    ),
    (
        "awsElasticBlockStore",
        "AWSElasticBlockStore (a Persistent Disk resource in AWS)",
        &[("VolumeID:", "/volumeID", ""), FS_TYPE, ("Partition:", "/partition", "0"), READ_ONLY],
    ),
    (
        "gcePersistentDisk",
        "GCEPersistentDisk (a Persistent Disk resource in Google Compute Engine)",
        &[("PDName:", "/pdName", ""), FS_TYPE, ("Partition:", "/partition", "0"), READ_ONLY],
    ),
    (
        "azureDisk",
        "AzureDisk (an Azure Data Disk mount on the host and bind mount to the pod)",
        &[
            ("DiskName:", "/diskName", ""),
            ("DiskURI:", "/diskURI", ""),
            ("Kind:", "/kind", ""),
            FS_TYPE,
            ("CachingMode:", "/cachingMode", ""),
            READ_ONLY,
        ],
    ),
];

const FS_TYPE: Field = ("FSType:", "/fsType", "");
const READ_ONLY: Field = ("ReadOnly:", "/readOnly", "false");
const SECRET: Field = ("SecretRef:", "/secretRef", "nil");

fn lines(volume: &Value) -> Vec<String> {
    let named = |what: &str| format!("  Type:\t{what}");
    let fields = volume.as_object().into_iter().flatten();
    let Some((kind, source)) = fields.into_iter().find(|(key, _)| *key != "name") else {
        return vec![named("<unknown>")];
    };
    match kind.as_str() {
        "downwardAPI" => downward(source),
        "projected" => projected(source),
        "ephemeral" => ephemeral(source),
        kind => match KINDS.iter().find(|(known, ..)| *known == kind) {
            None => vec![named(kind)],
            Some((_, what, fields)) => {
                let field = |(title, pointer, unset): &Field| {
                    format!("  {title}\t{}", show_value(source.pointer(pointer), title, unset))
                };
                let fields = fields.iter().map(field);
                std::iter::once(named(what)).chain(fields).collect()
            }
        },
    }
}

/// A value of a source as kubectl shows it.
fn show_value(value: Option<&Value>, title: &str, unset: &str) -> String {
    match value {
        Some(Value::Array(all)) => {
            let all: Vec<&str> = all.iter().filter_map(Value::as_str).collect();
            // Names of ports of a fabric are joined, other lists stand in brackets.
            if title == "TargetWWNs:" { all.join(", ") } else { format!("[{}]", all.join(" ")) }
        }
        Some(secret @ Value::Object(_)) => {
            let (name, namespace) =
                (objects::text_at(secret, "/name"), objects::text_at(secret, "/namespace"));
            format!("&SecretReference{{Name:{name},Namespace:{namespace},}}")
        }
        Some(value) if !value.is_null() => crate::jsonpath::text_of(value),
        _ => unset.to_owned(),
    }
}

fn downward(source: &Value) -> Vec<String> {
    let what = "DownwardAPI (a volume populated by information about the pod)";
    let items = objects::list_at(source, "/items").iter().map(|item| {
        let field = objects::text_at(item, "/fieldRef/fieldPath");
        let resource = objects::text_at(item, "/resourceFieldRef/resource");
        format!("    {field}{resource} -> {}", objects::text_at(item, "/path"))
    });
    [format!("  Type:\t{what}"), "  Items:".to_owned()].into_iter().chain(items).collect()
}

/// A claim that is made with its pod, as its template has it.
fn ephemeral(source: &Value) -> Vec<String> {
    let what = "EphemeralVolume (an inline specification for a volume that gets created and deleted with the pod)";
    let mut lines = vec![format!("  Type:\t{what}")];
    let Some(claim) = source.get("volumeClaimTemplate") else { return lines };
    lines.push(format!("  StorageClass:\t{}", objects::text_at(claim, "/spec/storageClassName")));
    lines.push(format!("  Volume:\t{}", objects::text_at(claim, "/spec/volumeName")));
    for (title, pointer) in
        [("Labels", "/metadata/labels"), ("Annotations", "/metadata/annotations")]
    {
        let pairs = super::data::sorted(objects::map_at(claim, pointer));
        if pairs.is_empty() {
            lines.push(format!("  {title}:\t    <none>"));
        }
        for (at, (key, value)) in pairs.into_iter().enumerate() {
            let title = if at == 0 { format!("{title}:") } else { String::new() };
            lines.push(format!("  {title}\t    {key}={value}"));
        }
    }
    // Capacity and modes are those of a claim that is bound.
    lines.extend(["  Capacity:\t".to_owned(), "  Access Modes:\t".to_owned()]);
    let mode = objects::text_at(claim, "/spec/volumeMode");
    if !mode.is_empty() {
        lines.push(format!("  VolumeMode:\t{mode}"));
    }
    lines
}

fn projected(source: &Value) -> Vec<String> {
    let what = "Projected (a volume that contains injected data from multiple sources)";
    let mut lines = vec![format!("  Type:\t{what}")];
    for one in objects::list_at(source, "/sources") {
        if let Some(secret) = one.get("secret") {
            lines.push(format!("  SecretName:\t{}", objects::text_at(secret, "/name")));
            lines.push(format!("  SecretOptionalName:\t{}", word(secret, "/optional", "<nil>")));
        } else if one.get("downwardAPI").is_some() {
            lines.push("  DownwardAPI:\ttrue".to_owned());
        } else if let Some(map) = one.get("configMap") {
            lines.push(format!("  ConfigMapName:\t{}", objects::text_at(map, "/name")));
            lines.push(format!("  ConfigMapOptional:\t{}", word(map, "/optional", "<nil>")));
        } else if let Some(token) = one.get("serviceAccountToken") {
            lines.push(format!(
                "  TokenExpirationSeconds:\t{}",
                word(token, "/expirationSeconds", "0")
            ));
        }
    }
    lines
}
