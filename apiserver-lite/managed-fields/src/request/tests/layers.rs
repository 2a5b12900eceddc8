//! What kube-apiserver adds: first applies, the cap, entries of clients, subresources, kubectl.

use apiserver_schema::Value;
use proto_api::Time;

use super::{LAST_APPLIED, Stored, json, text};
use crate::entries::{ManagedFields, ManagedFieldsOperation, Owner};
use crate::reset::reset_fields;
use crate::scale::{ReplicasPaths, owners_of_scale, owners_of_scaled};
use crate::structure::BuiltInStructures;
use crate::times::{keep_times, manager_of_user_agent, set_managed_fields};
use crate::upgrade::upgrade_client_side_apply;
use crate::versions::ResetFields;
use crate::{FieldPath, testing};

#[test]
fn fields_from_before_the_first_apply_have_an_owner() {
    let mut object = Stored::new("v1", "ConfigMap");
    object.store(json(r#"{"metadata":{"name":"x"},"data":{"a":"1","b":"1"}}"#), None);
    object.merge("u", r#"{"data":{"c":"1"}}"#);
    assert!(object.owners().is_empty(), "nobody tracks it yet");
    object.apply("a", r#"{"data":{"a":"1","d":"1"}}"#, false).expect("no conflict");
    let owners = [
        r#"a Apply 2 {"f:data":{"f:a":{},"f:d":{}}}"#,
        r#"before-first-apply Update 2 {"f:data":{".":{},"f:a":{},"f:b":{},"f:c":{}}}"#,
    ];
    assert_eq!(object.owners(), owners);
    let error = object.apply("a", r#"{"data":{"b":"2"}}"#, false).expect_err("a conflict");
    assert_eq!(
        error,
        r#"Apply failed with 1 conflict: conflict with "before-first-apply" using v1: .data.b"#
    );
}

#[test]
fn a_time_is_renewed_only_by_a_change() {
    let mut object = Stored::new("v1", "ConfigMap");
    object.apply("a", r#"{"data":{"k":"1"}}"#, false).expect("a first apply");
    object.merge("u", r#"{"data":{"l":"1"}}"#);
    let before = object.owners();
    assert_eq!(object.apply("a", r#"{"data":{"k":"1"}}"#, false), Ok(false));
    object.merge("u", r#"{"data":{"l":"1"}}"#);
    object.merge("v", "{}");
    assert_eq!(object.owners(), before);
    object.apply("a", r#"{"data":{"k":"2"}}"#, false).expect("no conflict");
    assert_eq!(object.owners()[0], r#"a Apply 6 {"f:data":{"f:k":{}}}"#);
}

#[test]
fn the_oldest_updates_are_merged() {
    let mut object = Stored::new("v1", "ConfigMap");
    object.merge("m0", r#"{"metadata":{"name":"x"},"data":{"k0":"1"}}"#);
    for at in 1..10 {
        object.merge(&format!("m{at}"), &format!(r#"{{"data":{{"k{at}":"1"}}}}"#));
    }
    assert_eq!(object.owners().len(), 10);
    object.merge("m10", r#"{"data":{"k10":"1"}}"#);
    let owners = object.owners();
    assert_eq!(owners.len(), 10);
    let ancient = r#"ancient-changes Update 2 {"f:data":{".":{},"f:k0":{},"f:k1":{}}}"#;
    assert!(owners.contains(&ancient.to_owned()), "{owners:?}");
    object.merge("m11", r#"{"data":{"k11":"1"}}"#);
    let ancient = r#"ancient-changes Update 3 {"f:data":{".":{},"f:k0":{},"f:k1":{},"f:k2":{}}}"#;
    assert!(object.owners().contains(&ancient.to_owned()), "{:?}", object.owners());
    // Appliers do not count.
    object.apply("a", r#"{"data":{"k0":"1"}}"#, false).expect("the same value");
    assert_eq!(object.owners().len(), 11);
}

#[test]
fn entries_of_a_request_replace_those_of_the_object_if_they_can_be_read() {
    let mut object = Stored::new("v1", "ConfigMap");
    object.merge("m", r#"{"metadata":{"name":"x"},"data":{"k":"1","l":"1"}}"#);
    let before = object.owners();
    let entry = |other: &str| {
        format!(
            r#"{{"metadata":{{"managedFields":[{{"manager":"own","operation":"Update","apiVersion":"v1","fieldsType":"FieldsV1","fieldsV1":{{"f:data":{{"f:k":{{}}}}}}{other}}}]}}}}"#
        )
    };
    object.merge("u", &entry(r#","fieldsType":"FieldsV2""#));
    assert_eq!(object.owners(), before, "unreadable entries");
    object.subresource = "status";
    object.merge("u", &entry(""));
    assert_eq!(object.owners(), before, "entries in a request for a subresource");
    object.subresource = "";
    object.merge("u", &entry(""));
    assert_eq!(object.owners(), [r#"own Update - {"f:data":{"f:k":{}}}"#]);
    let error = object.apply("a", r#"{"metadata":{"managedFields":[{}]}}"#, false);
    assert_eq!(error, Err("metadata.managedFields must be nil".to_owned()));
}

#[test]
fn a_subresource_is_an_owner_of_its_own_and_what_it_resets_is_not_owned() {
    let reset = |subresource| {
        let fields = reset_fields("apps", "Deployment", true, subresource);
        ResetFields::from([("apps/v1".to_owned(), fields)])
    };
    let mut object = Stored::resetting("apps/v1", "Deployment", reset(""));
    object.merge("m", r#"{"metadata":{"name":"x"},"spec":{"replicas":1},"status":{"replicas":7}}"#);
    assert_eq!(object.owners(), [r#"m Update 1 {"f:spec":{"f:replicas":{}}}"#]);
    object.server.reset = reset("status");
    object.subresource = "status";
    object.merge(
        "m",
        r#"{"metadata":{"labels":{"a":"b"}},"spec":{"replicas":2},"status":{"replicas":2}}"#,
    );
    let owners = [
        r#"m Update 1 {"f:spec":{"f:replicas":{}}}"#,
        r#"m/status Update 2 {"f:status":{"f:replicas":{}}}"#,
    ];
    assert_eq!(object.owners(), owners);
    let error = object.apply("a", r#"{"status":{"replicas":3}}"#, false).expect_err("a conflict");
    let with = r#"Apply failed with 1 conflict: conflict with "m" with subresource "status" using apps/v1: .status.replicas"#;
    assert_eq!(error, with);
}

#[test]
fn fields_that_endpoints_reset() {
    let rows = [
        ("", "ConfigMap", false, "", "{}"),
        ("", "Pod", true, "", r#"{"f:status":{}}"#),
        (
            "",
            "Pod",
            true,
            "status",
            r#"{"f:metadata":{"f:deletionTimestamp":{},"f:ownerReferences":{}},"f:spec":{}}"#,
        ),
        ("", "Pod", true, "ephemeralcontainers", "{}"),
        ("", "Namespace", true, "finalize", r#"{"f:status":{}}"#),
        ("apps", "Deployment", true, "status", r#"{"f:metadata":{"f:labels":{}},"f:spec":{}}"#),
        ("apps", "DaemonSet", true, "status", r#"{"f:spec":{}}"#),
        ("apiregistration", "APIService", true, "status", r#"{"f:metadata":{},"f:spec":{}}"#),
        ("certificates", "CertificateSigningRequest", true, "", r#"{"f:spec":{},"f:status":{}}"#),
        (
            "certificates",
            "CertificateSigningRequest",
            true,
            "status",
            r#"{"f:spec":{},"f:status":{"f:conditions":{}}}"#,
        ),
        (
            "certificates",
            "CertificateSigningRequest",
            true,
            "approval",
            r#"{"f:spec":{},"f:status":{"f:certificate":{}}}"#,
        ),
    ];
    for (group, kind, has_status, subresource, want) in rows {
        let fields = reset_fields(group, kind, has_status, subresource);
        assert_eq!(testing::fields(&fields), want, "{kind}/{subresource}");
    }
}

#[test]
fn a_manager_without_a_name_is_unknown() {
    let mut object = Stored::new("v1", "ConfigMap");
    object.merge("", r#"{"metadata":{"name":"x"},"data":{"k":"1"}}"#);
    assert_eq!(object.owners(), [r#"unknown Update 1 {"f:data":{".":{},"f:k":{}}}"#]);
    for (agent, want) in [
        ("kubectl/v1.25.0 (linux/amd64)", "kubectl"),
        ("a\u{1}b", "ab"),
        ("", ""),
        (&"é".repeat(100), &"é".repeat(64)),
    ] {
        assert_eq!(manager_of_user_agent(agent), want);
    }
}

/// A ConfigMap that kubectl applied from the client.
fn applied_by_client() -> Stored {
    let mut object = Stored::new("v1", "ConfigMap");
    let applied = r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"x"},"data":{"a":"1","b":"1"}}"#;
    let mut patch = json(applied);
    let metadata = patch.as_map_mut().expect("a map").map_or_insert("metadata");
    metadata.map_or_insert("annotations").insert(LAST_APPLIED, applied);
    object.merge("kubectl-client-side-apply", &text(Some(&patch)));
    object
}

#[test]
fn kubectl_goes_over_to_the_server_without_conflicts_on_what_it_applied() {
    let mut object = applied_by_client();
    let config = r#"{"data":{"a":"2","b":"1"}}"#;
    assert!(object.apply("other", config, false).is_err());
    assert_eq!(object.apply("kubectl", config, false), Ok(true));
    assert_eq!(object.at(&["data"]), r#"{"a":"2","b":"1"}"#);
    // The annotation follows what is applied.
    let annotation = r#"{"apiVersion":"v1","data":{"a":"2","b":"1"},"kind":"ConfigMap","metadata":{"name":"x"}}"#;
    let annotation = Value::from(format!("{annotation}\n"));
    assert_eq!(object.at(&["metadata", "annotations", LAST_APPLIED]), text(Some(&annotation)));
    // What others changed since is a conflict, and named alone.
    let mut object = applied_by_client();
    object.merge("other", r#"{"data":{"b":"9"}}"#);
    let error = object.apply("kubectl", r#"{"data":{"a":"2","b":"2"}}"#, false);
    let want = r#"Apply failed with 1 conflict: conflict with "other" using v1: .data.b"#;
    assert_eq!(error, Err(want.to_owned()));
    // Without an annotation of this version there is nothing to go by.
    let mut object = applied_by_client();
    let patch = format!(
        r#"{{"metadata":{{"annotations":{{"{LAST_APPLIED}":"{{\"apiVersion\":\"v2\"}}"}}}}}}"#
    );
    object.merge("kubectl-client-side-apply", &patch);
    assert!(object.apply("kubectl", config, false).is_err());
}

#[test]
fn an_annotation_that_would_be_too_large_is_removed() {
    let mut object = applied_by_client();
    let large = "v".repeat(256 * 1024);
    object.apply("kubectl", &format!(r#"{{"data":{{"a":"{large}"}}}}"#), true).expect("by force");
    assert_eq!(object.at(&["metadata", "annotations", LAST_APPLIED]), "null");
}

#[test]
fn updates_of_client_side_apply_become_what_was_applied() {
    let object = applied_by_client();
    let tree = object.tree.as_ref().and_then(Value::as_map).expect("an object");
    let entries = tree.at(&["metadata", "managedFields"]);
    let upgrade = |managed: &mut ManagedFields| {
        upgrade_client_side_apply(managed, "kubectl-client-side-apply", "kubectl", "", LAST_APPLIED)
    };
    let mut managed = ManagedFields::decode(entries).expect("entries");
    assert!(upgrade(&mut managed));
    let applier = Owner::new("kubectl", ManagedFieldsOperation::Apply, "v1", "");
    let fields =
        |managed: &ManagedFields| managed.get(&applier).map(|owned| testing::fields(&owned.fields));
    let all = r#"{"f:data":{".":{},"f:a":{},"f:b":{}},"f:metadata":{"f:annotations":{".":{}}}}"#;
    assert_eq!(fields(&managed).as_deref(), Some(all.replace(r#"{".":{}}}}"#, "{}}}").as_str()));
    assert_eq!(managed.iter().count(), 1);
    assert!(!upgrade(&mut managed), "nothing is left to upgrade");
    // An applier that exists has them added; other managers stay.
    let mut managed = ManagedFields::decode(entries).expect("entries");
    let more = r#"[{"manager":"kubectl","operation":"Apply","apiVersion":"v1","fieldsType":"FieldsV1","fieldsV1":{"f:data":{"f:c":{}}}},{"manager":"o","operation":"Update","apiVersion":"v1","fieldsType":"FieldsV1","fieldsV1":{"f:data":{"f:d":{}}}}]"#;
    managed.owners.extend(ManagedFields::decode(Some(&json(more))).expect("entries").owners);
    assert!(upgrade(&mut managed));
    assert_eq!(managed.iter().count(), 2);
    assert!(fields(&managed).expect("an applier").contains(r#""f:c":{}"#));
}

#[test]
fn owners_of_a_scale_are_those_of_the_replicas() {
    let entries = |manager: &str, subresource: &str, fields: &str| {
        format!(
            r#"{{"manager":"{manager}","operation":"Update","apiVersion":"apps/v1","subresource":"{subresource}","time":"2020-01-01T00:00:00Z","fieldsType":"FieldsV1","fieldsV1":{fields}}}"#
        )
    };
    let decode = |entries: &[String]| {
        ManagedFields::decode(Some(&json(&format!("[{}]", entries.join(","))))).expect("entries")
    };
    let paths =
        ReplicasPaths::from([("apps/v1".to_owned(), FieldPath::fields(&["spec", "replicas"]))]);
    let spec = entries("m", "", r#"{"f:spec":{"f:paused":{},"f:replicas":{}}}"#);
    let parent = decode(&[spec, entries("n", "", r#"{"f:spec":{"f:paused":{}}}"#)]);
    let scale = owners_of_scale(&parent, &paths);
    let shown = text(scale.encode().expect("bounds").as_ref());
    assert!(
        shown.contains(r#""apiVersion":"autoscaling/v1""#) && !shown.contains(r#""manager":"n""#),
        "{shown}"
    );
    // Unchanged, all stay as they are.
    assert_eq!(owners_of_scaled(&parent, scale, "apps/v1", &paths), parent);
    // Another owner takes the field.
    let taken = decode(&[entries("s", "scale", r#"{"f:spec":{"f:replicas":{}}}"#)
        .replace("apps/v1", "autoscaling/v1")]);
    let after = owners_of_scaled(&parent, taken, "apps/v1", &paths);
    let want = decode(&[
        entries("m", "", r#"{"f:spec":{"f:paused":{}}}"#),
        entries("n", "", r#"{"f:spec":{"f:paused":{}}}"#),
        entries("s", "scale", r#"{"f:spec":{"f:replicas":{}}}"#),
    ]);
    assert_eq!(after, want);
}

#[test]
fn a_write_that_changes_only_times_is_none() {
    let built_in = BuiltInStructures::new();
    let server = super::Server::new("v1", "ConfigMap", &built_in, ResetFields::new());
    let at = |seconds: i64, data: &str, more: &str| {
        let time = Time::from_unix(seconds);
        server.decode(&json(&format!(r#"{{"metadata":{{"name":"x","managedFields":[{{"manager":"m","operation":"Update","apiVersion":"v1","time":"{time}"{more}}}]}},"data":{{"k":"{data}"}}}}"#)))
    };
    let kept = |mut new: apiserver_schema::Object| {
        keep_times(&at(1, "v", ""), &mut new);
        new
    };
    assert_eq!(kept(at(2, "v", "")), at(1, "v", ""));
    for other in [at(2, "w", ""), at(2, "v", r#","subresource":"status""#)] {
        assert_eq!(kept(other.clone()), other);
    }
    // Sets of another server may have another order.
    let fields = |set: &str| format!(r#","fieldsType":"FieldsV1","fieldsV1":{set}"#);
    let [ours, theirs, other] =
        [r#"{"v:9":{},"v:10":{}}"#, r#"{"v:10":{},"v:9":{}}"#, r#"{"v:10":{}}"#].map(fields);
    let kept_over = |old: &str, new: &str| {
        let mut new = at(2, "v", new);
        keep_times(&at(1, "v", old), &mut new);
        new
    };
    assert_eq!(kept_over(&theirs, &ours), at(1, "v", &theirs));
    assert_eq!(kept_over(&theirs, &other), at(2, "v", &other));
    let mut without = at(1, "v", "");
    set_managed_fields(&mut without, None);
    assert_eq!(kept(without.clone()), without);
}

#[test]
fn an_applied_configuration_must_have_the_version_and_kind_of_the_object() {
    let object = Stored::new("v1", "ConfigMap");
    let request = object.server.request("a", "", Time::UNSET);
    let error = |config: &str| {
        request.apply(object.live(), json(config), false).expect_err(config).to_string()
    };
    assert_eq!(
        error(r#"{"apiVersion":"v2","kind":"ConfigMap"}"#),
        "Incorrect version specified in apply patch. Specified patch version: v2, expected: v1"
    );
    assert_eq!(error("[]"), "the applied configuration must be an object, not a array");
    let config = r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"x","namespace":"n"},"spec":{}}"#;
    let want = "failed to create typed patch object (n/x; /v1, Kind=ConfigMap): .spec: field not declared in schema";
    assert_eq!(error(config), want);
}

#[test]
fn entries_of_other_versions_and_older_schemas_are_brought_up_to_date() {
    let entry = |manager: &str, version: &str, fields: &str| {
        format!(
            r#"{{"manager":"{manager}","operation":"Update","apiVersion":"{version}","fieldsType":"FieldsV1","fieldsV1":{fields}}}"#
        )
    };
    let entries = [
        entry("gone", "v1beta1", r#"{"f:spec":{"f:type":{}}}"#),
        // The selector of a Service was split by key once.
        entry("old", "v1", r#"{"f:spec":{"f:selector":{".":{},"f:a":{}}}}"#),
    ];
    let service = || {
        let mut object = Stored::new("v1", "Service");
        let tree = r#"{"metadata":{"name":"x"},"spec":{"type":"ClusterIP","selector":{"a":"b"}}}"#;
        object.store(json(tree), Some(json(&format!("[{}]", entries.join(",")))));
        object
    };
    let mut updated = service();
    updated.merge("u", r#"{"metadata":{"labels":{"l":"1"}}}"#);
    let old = r#"old Update - {"f:spec":{"f:selector":{}}}"#;
    let labels = r#"u Update 1 {"f:metadata":{"f:labels":{".":{},"f:l":{}}}}"#;
    assert_eq!(updated.owners(), [old, labels]);
    let mut applied = service();
    applied.apply("a", r#"{"spec":{"type":"NodePort"}}"#, false).expect("no conflict");
    assert_eq!(applied.owners(), [r#"a Apply 1 {"f:spec":{"f:type":{}}}"#, old]);
    let error = service().apply("a", r#"{"spec":{"selector":{"a":"c"}}}"#, false);
    let want = r#"Apply failed with 1 conflict: conflict with "old" using v1: .spec.selector"#;
    assert_eq!(error, Err(want.to_owned()));
}
