//! Claims, volumes and storage classes.

use serde_json::Value;

use super::common::{self, texts, time, word};
use super::{Context, Page, Related, volume};
use crate::objects;

/// Access modes with their short forms, in the order in which they are shown.
const ACCESS_MODES: [(&str, &str); 4] = [
    ("ReadWriteOnce", "RWO"),
    ("ReadOnlyMany", "ROX"),
    ("ReadWriteMany", "RWX"),
    ("ReadWriteOncePod", "RWOP"),
];

fn access_modes(object: &Value, pointer: &str) -> String {
    let all = texts(object, pointer);
    let shown = ACCESS_MODES.iter().filter(|(mode, _)| all.contains(mode));
    shown.map(|(_, short)| *short).collect::<Vec<_>>().join(",")
}

/// The class, also of objects from the time of annotations.
fn class<'a>(object: &'a Value, context: Context<'_>) -> &'a str {
    let key = context.names.sub_label("volume.beta", "storage-class");
    let annotations = objects::map_at(object, "/metadata/annotations");
    let annotated = annotations.and_then(|map| map.get(&key)).and_then(Value::as_str);
    annotated.unwrap_or_else(|| objects::text_at(object, "/spec/storageClassName"))
}

/// The phase; of an object that is to go, for how long already.
fn status(page: &mut Page, object: &Value, context: Context<'_>) {
    let deleted = object.pointer("/metadata/deletionTimestamp").and_then(Value::as_str);
    let phase = match deleted {
        Some(_) => format!("Terminating (lasts {})", crate::age::since(deleted, context.now)),
        None => objects::text_at(object, "/status/phase").to_owned(),
    };
    page.field(0, "Status", phase);
}

fn finalizers(page: &mut Page, object: &Value) {
    let all = texts(object, "/metadata/finalizers").join(" ");
    page.field(0, "Finalizers", format!("[{all}]"));
}

fn volume_mode(page: &mut Page, object: &Value) {
    if object.pointer("/spec/volumeMode").is_some() {
        page.field(0, "VolumeMode", objects::text_at(object, "/spec/volumeMode"));
    }
}

pub(super) fn describe_claim(
    page: &mut Page,
    claim: &Value,
    related: &Related,
    context: Context<'_>,
) {
    let text = |pointer: &str| objects::text_at(claim, pointer);
    page.field(0, "Name", objects::name(claim));
    page.field(0, "Namespace", objects::namespace(claim));
    page.field(0, "StorageClass", class(claim, context));
    status(page, claim, context);
    page.field(0, "Volume", text("/spec/volumeName"));
    common::labels(page, claim, context);
    finalizers(page, claim);
    let (mut capacity, mut modes) = (String::new(), String::new());
    if !text("/spec/volumeName").is_empty() {
        capacity = word(claim, "/status/capacity/storage", "0");
        modes = access_modes(claim, "/status/accessModes");
    }
    page.field(0, "Capacity", capacity);
    page.field(0, "Access Modes", modes);
    volume_mode(page, claim);
    if let Some(source) = claim.pointer("/spec/dataSource") {
        page.line(0, "DataSource:");
        for (title, pointer) in [("APIGroup", "/apiGroup"), ("Kind", "/kind"), ("Name", "/name")] {
            if source.pointer(pointer).is_some() {
                page.field(1, title, objects::text_at(source, pointer));
            }
        }
    }
    let users: Vec<String> = related.pods.iter().map(|pod| objects::name(pod).to_owned()).collect();
    common::title_lines(page, 0, "Used By", &users);
    let conditions = objects::list_at(claim, "/status/conditions");
    if !conditions.is_empty() {
        page.line(0, "Conditions:");
        page.line(1, "Type\tStatus\tLastProbeTime\tLastTransitionTime\tReason\tMessage");
        page.line(1, "----\t------\t-----------------\t------------------\t------\t-------");
    }
    for one in conditions {
        let text = |pointer: &str| objects::text_at(one, pointer);
        let (probed, changed) = (moment(one, "/lastProbeTime"), moment(one, "/lastTransitionTime"));
        let (kind, status) = (text("/type"), text("/status"));
        let (reason, message) = (text("/reason"), text("/message"));
        page.line(1, format!("{kind} \t{status} \t{probed} \t{changed} \t{reason} \t{message}"));
    }
}

/// A time in words; the beginning of the calendar for none.
fn moment(object: &Value, pointer: &str) -> String {
    match time(object, pointer) {
        none if none.is_empty() => "Mon, 01 Jan 0001 00:00:00 +0000".to_owned(),
        time => time,
    }
}

pub(super) fn describe_volume(page: &mut Page, object: &Value, context: Context<'_>) {
    let text = |pointer: &str| objects::text_at(object, pointer);
    page.field(0, "Name", objects::name(object));
    common::labels(page, object, context);
    finalizers(page, object);
    page.field(0, "StorageClass", class(object, context));
    status(page, object, context);
    let claim = match object.pointer("/spec/claimRef") {
        Some(claim) => {
            let text = |pointer: &str| objects::text_at(claim, pointer);
            format!("{}/{}", text("/namespace"), text("/name"))
        }
        None => String::new(),
    };
    page.field(0, "Claim", claim);
    page.field(0, "Reclaim Policy", text("/spec/persistentVolumeReclaimPolicy"));
    page.field(0, "Access Modes", access_modes(object, "/spec/accessModes"));
    volume_mode(page, object);
    page.field(0, "Capacity", word(object, "/spec/capacity/storage", "0"));
    affinity(page, object);
    page.field(0, "Message", text("/status/message"));
    page.line(0, "Source:");
    for line in volume::source_lines(object) {
        page.line(1, line);
    }
}

/// The nodes from which a volume can be reached.
fn affinity(page: &mut Page, object: &Value) {
    let pointer = "/spec/nodeAffinity/required";
    if object.pointer(pointer).is_none() {
        page.field(0, "Node Affinity", "<none>");
        return;
    }
    page.field(0, "Node Affinity", "");
    let terms = objects::list_at(object, &format!("{pointer}/nodeSelectorTerms"));
    page.field(1, "Required Terms", if terms.is_empty() { "<none>" } else { "" });
    for (at, term) in terms.iter().enumerate() {
        requirements(page, 2, &format!("Term {at}"), objects::list_at(term, "/matchExpressions"));
    }
}

/// What labels of a node have to be, below a title.
fn requirements(page: &mut Page, level: usize, title: &str, all: &[Value]) {
    let lines: Vec<String> = all
        .iter()
        .map(|one| {
            let key = objects::text_at(one, "/key");
            let operator = objects::text_at(one, "/operator").to_lowercase();
            let values = texts(one, "/values");
            match values.is_empty() {
                true => format!("{key} {operator}"),
                false => format!("{key} {operator} [{}]", values.join(", ")),
            }
        })
        .collect();
    common::title_lines(page, level, title, &lines);
}

pub(super) fn describe_class(page: &mut Page, object: &Value, context: Context<'_>) {
    let annotations = objects::map_at(object, "/metadata/annotations");
    let key = |prefix: &str| context.names.sub_label(prefix, "is-default-class");
    let is_default = ["storageclass", "storageclass.beta"].iter().any(|prefix| {
        let value = annotations.and_then(|map| map.get(&key(prefix))).and_then(Value::as_str);
        value == Some("true")
    });
    page.field(0, "Name", objects::name(object));
    page.field(0, "IsDefaultClass", if is_default { "Yes" } else { "No" });
    page.field(0, "Annotations", objects::pairs(annotations));
    page.field(0, "Provisioner", objects::text_at(object, "/provisioner"));
    page.field(0, "Parameters", objects::pairs(objects::map_at(object, "/parameters")));
    page.field(0, "AllowVolumeExpansion", common::boolean(object, "/allowVolumeExpansion"));
    let options = texts(object, "/mountOptions");
    if options.is_empty() {
        page.field(0, "MountOptions", "<none>");
    } else {
        page.line(0, "MountOptions:");
    }
    for option in options {
        page.line(1, option);
    }
    for (title, pointer) in
        [("ReclaimPolicy", "/reclaimPolicy"), ("VolumeBindingMode", "/volumeBindingMode")]
    {
        if object.pointer(pointer).is_some() {
            page.field(0, title, objects::text_at(object, pointer));
        }
    }
    let topologies = objects::list_at(object, "/allowedTopologies");
    if !topologies.is_empty() {
        page.field(0, "AllowedTopologies", "");
    }
    for (at, term) in topologies.iter().enumerate() {
        let lines: Vec<String> = objects::list_at(term, "/matchLabelExpressions")
            .iter()
            .map(|one| {
                let values = texts(one, "/values").join(", ");
                format!("{} in [{values}]", objects::text_at(one, "/key"))
            })
            .collect();
        common::title_lines(page, 1, &format!("Term {at}"), &lines);
    }
}
