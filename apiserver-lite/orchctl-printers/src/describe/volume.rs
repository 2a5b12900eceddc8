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

fn lines(volume: &Value) -> Vec<String> {
    let field = |name: &str, value: String| format!("  {name}:\t{value}");
    let fields = volume.as_object().into_iter().flatten();
    let Some((kind, source)) = fields.into_iter().find(|(key, _)| *key != "name") else {
        return vec![field("Type", "<unknown>".to_owned())];
    };
    let text =
        |name: &str, pointer: &str| field(name, objects::text_at(source, pointer).to_owned());
    let value = |name: &str, pointer: &str, unset: &str| field(name, word(source, pointer, unset));
    let named = |what: &str| field("Type", what.to_owned());
    match kind.as_str() {
        "configMap" => vec![
            named("ConfigMap (a volume populated by a ConfigMap)"),
            text("Name", "/name"),
            value("Optional", "/optional", "false"),
        ],
        "secret" => vec![
            named("Secret (a volume populated by a Secret)"),
            text("SecretName", "/secretName"),
            value("Optional", "/optional", "false"),
        ],
        "emptyDir" => vec![
            named("EmptyDir (a temporary directory that shares a pod's lifetime)"),
            text("Medium", "/medium"),
            value("SizeLimit", "/sizeLimit", "<unset>"),
        ],
        "hostPath" => vec![
            named("HostPath (bare host directory volume)"),
            text("Path", "/path"),
            text("HostPathType", "/type"),
        ],
        "persistentVolumeClaim" => vec![
            named(
                "PersistentVolumeClaim (a reference to a PersistentVolumeClaim in the same namespace)",
            ),
            text("ClaimName", "/claimName"),
            value("ReadOnly", "/readOnly", "false"),
        ],
        "nfs" => vec![
            named("NFS (an NFS mount that lasts the lifetime of a pod)"),
            text("Server", "/server"),
            text("Path", "/path"),
            value("ReadOnly", "/readOnly", "false"),
        ],
        "csi" => vec![
            named("CSI (a Container Storage Interface (CSI) volume source)"),
            text("Driver", "/driver"),
            text("FSType", "/fsType"),
            value("ReadOnly", "/readOnly", "false"),
        ],
        "local" => vec![
            named("LocalVolume (a persistent volume backed by local storage on a node)"),
            text("Path", "/path"),
        ],
        "downwardAPI" => {
            let mut lines = vec![
                named("DownwardAPI (a volume populated by information about the pod)"),
                "  Items:".to_owned(),
            ];
            lines.extend(objects::list_at(source, "/items").iter().map(|item| {
                let field = objects::text_at(item, "/fieldRef/fieldPath");
                let resource = objects::text_at(item, "/resourceFieldRef/resource");
                format!("    {field}{resource} -> {}", objects::text_at(item, "/path"))
            }));
            lines
        }
        "projected" => projected(source),
        other => vec![named(other)],
    }
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
