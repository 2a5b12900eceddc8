//! Files, and what is wrong with them.

use std::path::Path;

use proto_daemon::config::{FileType, parse};
use proto_daemon::exit::chain;

use super::*;

const HEAD: &str = "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\n";
const LONG: &str = "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=";
const SHORT: &str = "MDEyMzQ1Njc4OWFiY2RlZg==";

fn read(body: &str) -> Result<EncryptionConfiguration, String> {
    let accepted = FileType {
        api_version: "apiserver.config.k8s.io/v1".into(),
        kind: "EncryptionConfiguration".into(),
    };
    parse(Path::new("/e.yaml"), &format!("{HEAD}{body}"), &[accepted])
        .map_err(|error| chain(&error))
}

#[test]
fn the_example_of_kubernetes_is_read() {
    let body = format!(
        "resources:
- resources: [secrets, configmaps]
  providers:
  - aesgcm:
      keys:
      - name: key1
        secret: {LONG}
      - name: key2
        secret: {SHORT}
  - identity: {{}}
- resources: [deployments.apps]
  providers:
  - identity: {{}}
"
    );
    let Ok(read) = read(&body) else { panic!("valid") };
    let [first, second] = read.resources.as_slice() else { panic!("two entries") };
    assert_eq!(first.resources, ["secrets", "configmaps"]);
    let keys = &first.providers[0].aesgcm.as_ref().expect("aesgcm").keys;
    let lens: Vec<_> = keys.iter().map(|key| key.secret().expect("base64").len()).collect();
    assert_eq!(lens, [32, 16]);
    assert!(first.providers[1].identity.is_some() && first.providers[1].aesgcm.is_none());
    assert_eq!(second.resources, ["deployments.apps"]);
}

/// Providers and the fault that is told of them, after `resources[0].providers`.
const FAULTS: &[(&str, &str)] = &[
    ("[]", ": at least one provider is required"),
    ("[{}]", "[0]: expected one of the providers aesgcm, identity"),
    ("[{identity: {}, aesgcm: {keys: []}}]", "[0]: more than one provider specified"),
    ("[{aesgcm: {}}]", "[0].aesgcm.keys: at least one key is required"),
    ("[{aescbc: {keys: []}}]", "[0].aescbc: provider aescbc is not supported"),
    ("[{secretbox: {keys: []}}]", "[0].secretbox: provider secretbox is not supported"),
    ("[{identity: {}}, {kms: {name: a}}]", "[1].kms: provider kms is not supported"),
    ("[{kms: {name: a}, identity: {}}]", "[0]: more than one provider specified"),
    ("[{aes: {}}]", "[0].aes: unknown field"),
    ("[{identity: {a: 1}}]", "[0].identity.a: unknown field"),
    ("[{aesgcm: {keys: [{secret: SHORT}]}}]", "[0].aesgcm.keys[0].name: name is a mandatory"),
    ("[{aesgcm: {keys: [{name: 'a:b', secret: SHORT}]}}]", "[0].aesgcm.keys[0].name: must have"),
    ("[{aesgcm: {keys: [{name: a}]}}]", "[0].aesgcm.keys[0].secret: secret is a mandatory field"),
    (
        "[{aesgcm: {keys: [{name: a, secret: '%%%'}]}}]",
        "[0].aesgcm.keys[0].secret: secrets must be base64 encoded",
    ),
    (
        "[{aesgcm: {keys: [{name: a, secret: c2hvcnQ=}]}}]",
        "[0].aesgcm.keys[0].secret: secret is not of the expected length, got 5, expected one of [16, 32]",
    ),
    (
        "[{aesgcm: {keys: [{name: a, secret: MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3}]}}]",
        "[0].aesgcm.keys[0].secret: secret is not of the expected length, got 24",
    ),
    (
        "[{aesgcm: {keys: [{name: a, secret: SHORT}, {name: a, secret: SHORT}]}}]",
        "[0].aesgcm.keys[1].name: duplicate value \"a\"",
    ),
    (
        "[{aesgcm: {keys: [{name: a, secret: SHORT}]}}, {aesgcm: {keys: [{name: a, secret: SHORT}]}}]",
        "[1].aesgcm.keys[0].name: duplicate value \"a\"",
    ),
];

#[test]
fn every_fault_is_named_with_its_field() {
    for (providers, fault) in FAULTS {
        let providers = providers.replace("SHORT", SHORT);
        let told =
            read(&format!("resources: [{{resources: [secrets], providers: {providers}}}]\n"));
        let Err(told) = told else { panic!("{providers} is accepted") };
        let fault = format!("resources[0].providers{fault}");
        assert!(told.contains(&fault), "{providers}: {told}");
        assert!(!told.contains(SHORT), "{told}");
    }
    for (body, fault) in [
        ("", "resources: at least one resource is required"),
        (
            "resources: [{providers: [{identity: {}}]}]",
            "resources[0].resources: at least one resource is required",
        ),
        ("resource: []", "resource: unknown field"),
    ] {
        let Err(told) = read(body) else { panic!("{body} is accepted") };
        assert!(told.contains(fault), "{body}: {told}");
    }
}
