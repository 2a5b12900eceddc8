//! A struct with behaviour of its own has few fields: one that knows everything is split.

use std::collections::BTreeSet;

use crate::{check, is_generated, is_test, production, sources};

/// Fields of a struct that has methods.
const FIELDS_MAX: usize = 12;

/// Structs with more, each with the reason.
const LARGE: &[(&str, &str)] = &[
    ("agent/pod/src/desired.rs: DesiredPod", "a value: a pod's spec as the plan needs it"),
    ("agent/pod/src/record.rs: PodRecord", "a value: what the journal keeps of a pod"),
    ("agent/telemetry/src/metrics.rs: AgentMetrics", "one field a metric"),
    ("agent/telemetry/src/metrics/operations.rs: OperationMetrics", "one field a metric"),
    ("agent/volume/src/persistent/csi.rs: CsiVolume", "a value: one field a field of the API"),
    (
        "agent/workers/src/pod_context.rs: PodContext",
        "the interfaces through which the tasks of pods act, one a field; what decides gets its parts",
    ),
    (
        "apiserver-lite/admission-webhooks/src/review.rs: Review",
        "a value: one field a field of AdmissionReview",
    ),
    ("apiserver-lite/bootstrap/src/layout.rs: Layout", "a value: one field a file"),
    ("apiserver-lite/core/src/config.rs: Config", "a value: one field a subject of the flags"),
    (
        "apiserver-lite/core/src/server.rs: Server",
        "the parts that requests share, one a field; it only looks objects and kinds up",
    ),
    (
        "apiserver-lite/custom-resources/src/node.rs: Node",
        "a value: one field a keyword of schemas",
    ),
    ("apiserver-lite/orch-apiserver/src/flags/audit.rs: AuditFlags", "one field a flag"),
    (
        "apiserver-lite/orch-apiserver/src/flags/external_identity.rs: ExternalIdentityFlags",
        "one field a flag",
    ),
    ("apiserver-lite/controller-io/src/informers.rs: Informers", "one field a kind"),
    ("apiserver-lite/orch-controller-manager/src/reflectors.rs: Reflectors", "one field a kind"),
    ("apiserver-lite/controller-io/src/sync_flags.rs: SyncFlags", "one field a flag"),
    (
        "apiserver-lite/orch-controller-manager/src/settings.rs: ControllerManagerFlags",
        "one field a flag",
    ),
    ("apiserver-lite/scheduling/src/pod_info.rs: PodInfo", "a value: what placing needs of a pod"),
    ("apiserver-lite/orchadm/src/init/settings.rs: InitFlags", "one field a flag"),
    ("apiserver-lite/orchadm/src/join/settings.rs: JoinFlags", "one field a flag"),
    (
        "proto/api/src/schema.rs: FieldDescriptor",
        "a value: one field a column of the schema's tables",
    ),
    ("proxy/orch-proxy/src/config/file.rs: ProxyConfiguration", "one field a field of the file"),
    (
        "proxy/sync/src/driver.rs: Driver",
        "the loop's own state; what each part of it does is in the part's module",
    ),
    ("proxy/sync/src/metrics.rs: ProxyMetrics", "one field a metric"),
];

/// Names and numbers of fields of the structs with braces.
fn structs(source: &str) -> Vec<(&str, usize)> {
    let mut found = Vec::new();
    let mut lines = source.lines();
    while let Some(line) = lines.next() {
        let item = line.strip_prefix("pub").map_or(line, |rest| {
            rest.strip_prefix('(')
                .and_then(|rest| rest.split_once(')'))
                .map_or(rest, |(_, rest)| rest)
        });
        let Some(rest) = item.trim_start().strip_prefix("struct ") else { continue };
        if line.starts_with(' ') || !line.ends_with('{') {
            continue;
        }
        let name =
            rest.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default();
        let body = lines.by_ref().take_while(|line| !line.starts_with('}'));
        found.push((name, body.filter(|line| is_field(line)).count()));
    }
    found
}

fn is_field(line: &str) -> bool {
    let Some(rest) = line.strip_prefix("    ") else { return false };
    let rest = rest.strip_prefix("pub").map_or(rest, |rest| {
        rest.strip_prefix('(').and_then(|rest| rest.split_once(')')).map_or(rest, |(_, rest)| rest)
    });
    let rest = rest.trim_start();
    let name = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(0);
    name > 0 && rest[name..].starts_with(": ") && !line.starts_with("     ")
}

/// Whether a source has methods of the struct.
fn has_methods(source: &str, name: &str) -> bool {
    source.lines().filter(|line| line.starts_with("impl")).any(|line| {
        let of = line.trim_end_matches('{').trim_end().rsplit(' ').next().unwrap_or_default();
        of.split('<').next() == Some(name) && !line.contains(" for ")
    })
}

#[test]
fn structs_with_methods_are_small() {
    let mut large = BTreeSet::new();
    for (path, source) in sources() {
        if is_test(&path) || is_generated(&path) {
            continue;
        }
        let source = production(&source);
        let too_large =
            |(name, fields): &(&str, usize)| *fields > FIELDS_MAX && has_methods(source, name);
        let found = structs(source).into_iter().filter(too_large);
        large.extend(found.map(|(name, fields)| (format!("{path}: {name}"), fields)));
    }
    let is_listed = |at: &str| LARGE.iter().any(|(listed, _)| *listed == at);
    let new = large.iter().filter(|(at, _)| !is_listed(at));
    let mut offenders: Vec<String> =
        new.map(|(at, fields)| format!("{at} has {fields} fields and methods")).collect();
    let is_gone = |at: &str| !large.iter().any(|(found, _)| found == at);
    let small = LARGE.iter().filter(|(listed, _)| is_gone(listed));
    offenders.extend(small.map(|(at, _)| format!("{at} is small, or not there, and is listed")));
    check("a struct with methods has at most 12 fields", offenders);
}

#[test]
fn structs_are_read() {
    let source = "pub(crate) struct A<T> {\n    pub a: T,\n    /// b: not a field\n    pub(super) b: u8,\n    c: Vec<\n        x: u8,\n    >,\n}\n\
                  struct B(u8);\nimpl<T> A<T> {\n}\nimpl Clone for B {\n}\n";
    assert_eq!(structs(source), [("A", 3)]);
    assert!(has_methods(source, "A"));
    assert!(!has_methods(source, "B"));
}
