//! Which key writes and which reads, in tables and in histories of rotations.

use proptest::prelude::*;
use serde_json::json;

use super::*;

/// The rules of a configuration: `secrets=a,b,identity` are two keys and clear text.
fn rules(entries: &[&str]) -> Rules {
    let entry = |entry: &&str| {
        let (resource, providers) = entry.split_once('=').expect("an entry");
        let providers = providers.split(',').map(|name| match name {
            "identity" => json!({"identity": {}}),
            name => json!({"aesgcm": {"keys": [{"name": name, "secret": secret(name)}]}}),
        });
        json!({"resources": [resource], "providers": providers.collect::<Vec<_>>()})
    };
    let tree = json!({"resources": entries.iter().map(entry).collect::<Vec<_>>()});
    let configuration = serde_json::from_value(tree).expect("a configuration");
    Rules::new(&configuration, &resources()).unwrap_or_else(|faults| panic!("{faults:?}"))
}

/// A secret of 16 bytes; names that end with an apostrophe have the name without it and other bits.
fn secret(name: &str) -> String {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.encode(format!("{name:*<16}"))
}

fn resources() -> Vec<StoredResource> {
    let resource =
        |name: &str, prefix: &str| StoredResource { name: name.into(), prefix: prefix.into() };
    vec![
        resource("secrets", "/core/secrets/"),
        resource("configmaps", "/core/configmaps/"),
        resource("deployments.apps", "/apps/deployments/"),
    ]
}

const SECRET: &str = "/core/secrets/ns/name";

fn write(rules: &Rules, key: &str, text: &[u8]) -> Vec<u8> {
    match rules.writer(key) {
        None => text.to_vec(),
        Some(writer) => writer.seal(key, [9; NONCE_LEN], text).expect("sealed"),
    }
}

/// The text that is read, or the error's text.
fn read(rules: &Rules, key: &str, stored: &[u8]) -> Result<Vec<u8>, DecryptError> {
    Ok(rules.open(key, stored)?.map_or_else(|| stored.to_vec(), |(text, _)| text))
}

#[test]
fn the_first_provider_writes_and_all_read() {
    let gone = |name: &str| DecryptError::KeyGone { name: name.to_owned() };
    let text = b"k8s\0text".as_slice();
    for (before, after, expected) in [
        ("secrets=a,identity", "secrets=a,identity", Ok(())),
        ("secrets=a,identity", "secrets=b,a,identity", Ok(())),
        ("secrets=a,identity", "secrets=identity,a", Ok(())),
        ("secrets=a,identity", "secrets=b,identity", Err(gone("a"))),
        ("secrets=a,identity", "secrets=identity", Err(gone("a"))),
        ("secrets=a,identity", "configmaps=a", Err(gone("a"))),
        ("secrets=identity,a", "secrets=b", Err(DecryptError::Clear)),
        ("secrets=identity,a", "secrets=b,identity", Ok(())),
        ("configmaps=a", "secrets=b", Err(DecryptError::Clear)),
        ("configmaps=a", "deployments.apps=b", Ok(())),
    ] {
        let stored = write(&rules(&[before]), SECRET, text);
        let found = read(&rules(&[after]), SECRET, &stored);
        assert_eq!(found, expected.map(|()| text.to_vec()), "{before} then {after}");
    }
}

#[test]
fn a_key_with_other_bits_does_not_open() {
    let stored = write(&rules(&["secrets=a"]), SECRET, b"text");
    // The same name in the file, another secret.
    let tree = json!({"resources": [{"resources": ["secrets"], "providers": [
        {"aesgcm": {"keys": [{"name": "a", "secret": secret("b")}]}}]}]});
    let configuration = serde_json::from_value(tree).expect("a configuration");
    let Ok(other) = Rules::new(&configuration, &resources()) else { panic!("valid") };
    assert_eq!(read(&other, SECRET, &stored), Err(DecryptError::Unopened { name: "a".to_owned() }));
    let moved = read(&rules(&["secrets=a"]), "/core/secrets/ns/other", &stored);
    assert_eq!(moved, Err(DecryptError::Unopened { name: "a".to_owned() }));
    let unknown = read(&rules(&["secrets=a"]), SECRET, b"k8s:enc:secretbox:v1:a:xyz");
    assert_eq!(unknown, Err(DecryptError::UnknownProvider { provider: "secretbox".to_owned() }));
}

#[test]
fn a_resource_that_is_listed_again_has_the_providers_of_both() {
    let both = rules(&["secrets=a", "configmaps=c", "secrets=b,identity"]);
    assert_eq!(both.writer(SECRET).map(AesGcmKey::name), Some("a"));
    assert_eq!(both.writer("/core/configmaps/x/y").map(AesGcmKey::name), Some("c"));
    assert!(both.writer("/apps/deployments/x/y").is_none());
    assert!(both.writer("/core/secretsx/y").is_none());
    let stored = write(&rules(&["secrets=b"]), SECRET, b"text");
    assert_eq!(read(&both, SECRET, &stored), Ok(b"text".to_vec()));
}

#[test]
fn a_name_that_is_no_resource_is_a_fault() {
    for name in ["secret", "deployments", "secrets.v1", "*", "*.*", ""] {
        let tree = json!({"resources": [{"resources": ["secrets", name], "providers": [{"identity": {}}]}]});
        let configuration = serde_json::from_value(tree).expect("a configuration");
        let Err(faults) = Rules::new(&configuration, &resources()) else { panic!("{name}") };
        assert_eq!(faults[0].path, "resources[0].resources[1]");
        assert!(faults[0].message.contains("is no resource of this server"), "{}", faults[0]);
    }
}

proptest! {
    /// In every history of rotations a value is read if and only if what wrote it is still there, and as it was written.
    #[test]
    fn histories_of_rotations(
        histories in proptest::collection::vec(
            proptest::sample::subsequence(vec!["a", "b", "c", "d", "identity"], 1..=5).prop_shuffle(),
            1..8,
        ),
        text in proptest::collection::vec(any::<u8>(), 0..64),
    ) {
        let text = [b"k8s\0".as_slice(), &text].concat();
        let mut written = Vec::<(String, Vec<u8>, &str)>::new();
        for (nth, providers) in histories.iter().enumerate() {
            let rules = rules(&[&format!("secrets={}", providers.join(","))]);
            for (key, stored, by) in &written {
                let found = read(&rules, key, stored);
                if providers.contains(by) {
                    prop_assert_eq!(found, Ok(text.clone()));
                } else {
                    let expected = match *by {
                        "identity" => DecryptError::Clear,
                        name => DecryptError::KeyGone { name: name.to_owned() },
                    };
                    prop_assert_eq!(found, Err(expected));
                }
            }
            let key = format!("/core/secrets/ns/{nth}");
            let stored = write(&rules, &key, &text);
            let hidden = !stored.windows(text.len()).any(|part| part == text);
            prop_assert_eq!(hidden, providers[0] != "identity");
            written.push((key, stored, providers[0]));
        }
    }
}
