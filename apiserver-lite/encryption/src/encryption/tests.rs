//! The file while the server runs, and what is not told of it.

use std::time::Duration;

use super::*;

const LONG: &str = "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=";
const OTHER: &str = "ZmVkY2JhOTg3NjU0MzIxMGZlZGNiYTk4NzY1NDMyMTA=";

fn file(keys: &[(&str, &str)]) -> String {
    let keys: Vec<String> =
        keys.iter().map(|(name, secret)| format!("{{name: {name}, secret: {secret}}}")).collect();
    format!(
        "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources: [{{resources: [secrets], providers: [{{aesgcm: {{keys: [{}]}}}}, {{identity: {{}}}}]}}]\n",
        keys.join(", ")
    )
}

fn load(path: &Path) -> Result<Encryption, String> {
    let accepted = FileType {
        api_version: "apiserver.config.k8s.io/v1".into(),
        kind: "EncryptionConfiguration".into(),
    };
    let secrets = StoredResource { name: "secrets".into(), prefix: "/core/secrets/".into() };
    Encryption::load(path, accepted, vec![secrets]).map_err(|error| chain(&error))
}

fn key_of(encryption: &Encryption) -> String {
    let (stored, _) = encryption
        .encode_stored("/core/secrets/a/b", Bytes::from_static(b"text"))
        .expect("written");
    let text = String::from_utf8_lossy(&stored).into_owned();
    text.split(':').nth(4).unwrap_or_default().to_owned()
}

#[test]
fn a_changed_file_counts_and_a_broken_one_does_not() {
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("e.yaml");
    let replace = |content: &str| {
        let new = dir.path().join("new");
        std::fs::write(&new, content).expect("written");
        std::fs::rename(&new, &path).expect("renamed");
    };
    replace(&file(&[("one", LONG)]));
    let encryption = load(&path).expect("valid");
    let start = Instant::now();
    let mut secs = 0;
    // The file is looked at once a second.
    let stored_forms = std::cell::RefCell::new(Vec::<(&str, Form)>::new());
    let mut reload = || {
        secs += 2;
        encryption.reload(start + Duration::from_secs(secs), |each| {
            stored_forms.borrow().iter().for_each(|(key, form)| each(key, *form));
        })
    };
    assert_eq!(reload(), Reload::Unchanged);
    assert_eq!(key_of(&encryption), "one");
    let before = encryption.encode_stored("/core/secrets/a/b", Bytes::from_static(b"text"));
    let (stored, form) = before.expect("written");

    replace(&file(&[("two", OTHER), ("one", LONG)]));
    assert_eq!(reload(), Reload::Done);
    assert_eq!(key_of(&encryption), "two");
    assert_ne!(encryption.current_form("/core/secrets/a/b"), form);
    let read = encryption.decode_stored("/core/secrets/a/b", stored.clone()).expect("read");
    assert_eq!(read, (Bytes::from_static(b"text"), form));
    let other = "/core/configmaps/a/b";
    *stored_forms.borrow_mut() =
        vec![(other, Form::AS_IS), ("/core/secrets/a/gone", Form::UNREADABLE)];

    for broken in ["kind: Pod\n", "\u{1}", &file(&[("a:b", LONG)]), ""] {
        replace(broken);
        assert_eq!(reload(), Reload::Refused, "{broken:?}");
        assert_eq!(key_of(&encryption), "two");
        replace(&file(&[("two", OTHER), ("one", LONG)]));
        assert_eq!(reload(), Reload::Done);
    }
    std::fs::remove_file(&path).expect("removed");
    assert_eq!(reload(), Reload::Unchanged);
    assert_eq!(key_of(&encryption), "two");

    // A key of a stored value, or clear text, that the new file does not read.
    let only = file(&[("two", OTHER)]);
    let (identity, no_identity) = (", {identity: {}}", "");
    assert!(only.contains(identity), "{only}");
    for (forms, text) in [
        (form, only.clone()),
        (Form::AS_IS, file(&[("two", OTHER), ("one", LONG)]).replace(identity, no_identity)),
    ] {
        stored_forms.borrow_mut().push(("/core/secrets/a/b", forms));
        replace(&text);
        assert_eq!(reload(), Reload::Refused, "{text}");
        assert!(encryption.decode_stored("/core/secrets/a/b", stored.clone()).is_ok());
        let clear = Bytes::from_static(b"text");
        assert!(encryption.decode_stored("/core/secrets/a/b", clear).is_ok());
        stored_forms.borrow_mut().pop();
    }
    replace(&only);
    assert_eq!(reload(), Reload::Done);
    let error = encryption.decode_stored("/core/secrets/a/b", stored).expect_err("the key is gone");
    assert!(error.to_string().contains("key \"one\" of aesgcm"), "{error}");
}

#[test]
fn every_write_has_another_nonce() {
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("e.yaml");
    std::fs::write(&path, file(&[("one", LONG)])).expect("written");
    let encryption = load(&path).expect("valid");
    let write = || {
        let written = encryption.encode_stored("/core/secrets/a/b", Bytes::from_static(b"text"));
        written.expect("written").0
    };
    let written: std::collections::BTreeSet<Bytes> = (0..100).map(|_| write()).collect();
    assert_eq!(written.len(), 100);
    let clear =
        encryption.encode_stored("/core/pods/a/b", Bytes::from_static(b"text")).expect("written");
    assert_eq!(clear, (Bytes::from_static(b"text"), Form::AS_IS));
}

/// Wherever a secret stands in a file that is refused, the error does not repeat it.
#[test]
fn errors_do_not_contain_secrets() {
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("e.yaml");
    let head = "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\n";
    for wrong in [
        format!("resources: {LONG}"),
        format!("resources: [{{resources: [secrets], providers: [{{aesgcm: {LONG}}}]}}]"),
        format!("resources: [{{resources: [secrets], providers: [{{aesgcm: {{keys: {LONG}}}}}]}}]"),
        format!(
            "resources: [{{resources: [secrets], providers: [{{aesgcm: {{keys: [{LONG}]}}}}]}}]"
        ),
        format!(
            "resources: [{{resources: [secrets], providers: [{{aesgcm: {{keys: [{{name: a, secret: {{{LONG}: 1}}}}]}}}}]}}]"
        ),
        format!(
            "resources: [{{resources: [secrets], providers: [{{aesgcm: {{keys: [{{name: a, secret: {LONG}x}}]}}}}]}}]"
        ),
        format!("resources:\n- secret: {LONG}\n  - a: [\n"),
        format!("resources: [{{secret: \"{LONG}"),
    ] {
        std::fs::write(&path, format!("{head}{wrong}\n")).expect("written");
        let Err(told) = load(&path) else { panic!("{wrong} is accepted") };
        assert!(told.contains("e.yaml"), "{told}");
        assert!(!told.contains(&LONG[..12]), "{wrong}: {told}");
    }
}
