use super::*;

fn now() -> OffsetDateTime {
    OffsetDateTime::from_unix_timestamp(1_800_000_000).unwrap()
}

fn message<T>(made: Result<T, BootstrapError>) -> String {
    made.err().expect("an error").to_string()
}

#[test]
fn an_authority_is_made_once_and_lasts_ten_years() {
    let dir = tempfile::tempdir().unwrap();
    let made = Authority::ensure(dir.path(), "ca", "the-ca", now()).unwrap();
    let again = Authority::ensure(dir.path(), "ca", "other", now()).unwrap();
    assert_eq!(made.certificate(), again.certificate());
    let facts = facts(Path::new("ca"), made.certificate()).unwrap();
    assert!(facts.is_authority);
    assert_eq!(facts.common_name, "the-ca");
    assert_eq!(facts.ends - now(), Duration::days(AUTHORITY_DAYS));
    let mode = |name: &str| {
        use std::os::unix::fs::PermissionsExt as _;
        dir.path().join(name).metadata().unwrap().permissions().mode() & 0o777
    };
    assert_eq!((mode("ca.key"), mode("ca.crt")), (0o600, 0o644));
}

#[test]
fn a_crash_between_key_and_certificate_is_completed() {
    let dir = tempfile::tempdir().unwrap();
    Authority::ensure(dir.path(), "ca", "a", now()).unwrap();
    let key = fs::read(dir.path().join("ca.key")).unwrap();
    fs::remove_file(dir.path().join("ca.crt")).unwrap();
    Authority::ensure(dir.path(), "ca", "a", now()).unwrap();
    assert_eq!(fs::read(dir.path().join("ca.key")).unwrap(), key, "the key is kept");
}

#[test]
fn an_authority_without_a_key_checks_and_does_not_issue() {
    let dir = tempfile::tempdir().unwrap();
    let leaf = Leaf::client("u", &["g"]);
    let with_key = Authority::ensure(dir.path(), "ca", "a", now()).unwrap();
    let pair = with_key.issue(&leaf, LEAF_DAYS, now()).unwrap();
    fs::remove_file(dir.path().join("ca.key")).unwrap();
    let external = Authority::ensure(dir.path(), "ca", "a", now()).unwrap();
    assert!(external.is_external());
    external.check(Path::new("u"), &pair.certificate, &leaf, now()).unwrap();
    assert!(message(external.issue(&leaf, LEAF_DAYS, now())).contains("no key beside it"));
}

#[test]
fn files_that_are_not_an_authority_are_errors() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(dir.path().join(name), text).unwrap();
    let one = Authority::ensure(dir.path(), "ca", "a", now()).unwrap();
    Authority::ensure(dir.path(), "other", "b", now()).unwrap();
    let ensure = || Authority::ensure(dir.path(), "ca", "a", now());
    let key = fs::read_to_string(dir.path().join("ca.key")).unwrap();
    write("ca.key", &fs::read_to_string(dir.path().join("other.key")).unwrap());
    assert!(message(ensure()).contains("is not the key of"));
    write("ca.key", "nonsense");
    assert!(message(ensure()).contains("contains no usable private key"));
    write("ca.key", &key);
    let leaf = one.issue(&Leaf::client("u", &[]), LEAF_DAYS, now()).unwrap();
    write("ca.crt", &leaf.certificate);
    assert!(message(ensure()).contains("is not a certificate authority"));
    write("ca.crt", "nonsense");
    assert!(message(ensure()).contains("contains no valid certificate"));
    let late = now() + Duration::days(AUTHORITY_DAYS + 1);
    write("ca.crt", one.certificate());
    assert!(message(Authority::load(dir.path(), "ca", late)).contains("has expired"));
}

#[test]
fn the_public_key_s_hash_is_that_of_openssl() {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::ensure(dir.path(), "ca", "a", now()).unwrap();
    let key = KeyPair::from_pem(&fs::read_to_string(dir.path().join("ca.key")).unwrap()).unwrap();
    // openssl x509 -pubkey -noout | openssl pkey -pubin -outform der | sha256sum: the hash of the key's SubjectPublicKeyInfo.
    let expected = format!("sha256:{}", proto_api::sha256_hex(&key.subject_public_key_info()));
    assert_eq!(facts(Path::new("ca"), authority.certificate()).unwrap().public_key_hash, expected);
}
