use std::os::unix::fs::PermissionsExt as _;

use proto_api::names::Profile;
use time::{Duration, OffsetDateTime};

use super::*;
use crate::authority::{Authority, CertificateUsage, LEAF_DAYS, facts};

/// [`super::ensure`] of a leaf.
fn ensure(
    dir: &Path,
    stem: &str,
    leaf: &Leaf,
    authority: &Authority,
    now: OffsetDateTime,
) -> Result<FileChange, BootstrapError> {
    super::ensure(dir, stem, &Issuance { leaf, authority, days: LEAF_DAYS, now })
}

fn now() -> OffsetDateTime {
    OffsetDateTime::from_unix_timestamp(1_800_000_000).unwrap()
}

#[test]
fn a_control_plane_has_kubeadm_s_files() {
    let names = Names::new(Profile::Kubernetes);
    let others = ["10.0.0.1".to_owned(), "localhost".to_owned(), String::new()];
    let served = served_names(names, "cluster.local", &others);
    assert_eq!(
        served,
        [
            "kubernetes",
            "kubernetes.default",
            "kubernetes.default.svc",
            "kubernetes.default.svc.cluster.local",
            "localhost",
            "127.0.0.1",
            "10.0.0.1"
        ]
    );
    let files = of_control_plane(names, &served);
    let stems: Vec<&str> = files.iter().map(|file| file.stem.as_str()).collect();
    assert_eq!(stems, ["apiserver", "apiserver-kubelet-client", "front-proxy-client"]);
    assert_eq!(files[1].leaf.common_name, "system:kube-apiserver-node-client");
    assert!(files[1].leaf.organizations.is_empty(), "it is no administrator's");
}

#[test]
fn a_certificate_lasts_a_year_and_is_kept_while_it_is_valid() {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::ensure(dir.path(), "ca", "a", now()).unwrap();
    let leaf = Leaf::server("s", &["a.b".to_owned(), "10.0.0.1".to_owned(), "fd00::1".to_owned()]);
    let at = |leaf: &Leaf, now| {
        ensure(dir.path(), "s", leaf, &authority, now).map_err(|e| e.to_string())
    };
    assert_eq!(at(&leaf, now()), Ok(FileChange::New));
    assert_eq!(at(&leaf, now()), Ok(FileChange::Kept));
    let text = std::fs::read_to_string(dir.path().join("s.crt")).unwrap();
    let found = facts(dir.path(), &text).unwrap();
    assert_eq!(found.alternative_names, leaf.alternative_names);
    assert_eq!(found.ends - now(), Duration::days(LEAF_DAYS));
    assert_eq!(leaf_of(&dir.path().join("s.crt"), CertificateUsage::Server).unwrap(), leaf);
    // Fewer names are fine, and more are not.
    assert_eq!(at(&Leaf::server("s", &["a.b".to_owned()]), now()), Ok(FileChange::Kept));
    let error = at(&Leaf::server("s", &["c.d".to_owned()]), now()).unwrap_err();
    assert!(error.contains("does not name c.d"), "{error}");
    let error = at(&leaf, now() + Duration::days(366)).unwrap_err();
    assert!(error.contains("has expired"), "{error}");
    std::fs::remove_file(dir.path().join("s.key")).unwrap();
    let error = at(&leaf, now()).unwrap_err();
    assert!(error.contains("s.key") && error.contains("is missing"), "{error}");
}

#[test]
fn another_authority_s_certificate_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::ensure(dir.path(), "ca", "a", now()).unwrap();
    let other = Authority::ensure(dir.path(), "other", "a", now()).unwrap();
    let leaf = Leaf::client("u", &[]);
    ensure(dir.path(), "u", &leaf, &other, now()).unwrap();
    let error = ensure(dir.path(), "u", &leaf, &authority, now()).unwrap_err();
    assert!(error.to_string().contains("was not issued by"), "{error}");
}

#[test]
fn a_crash_between_key_and_certificate_is_made_good() {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::ensure(dir.path(), "ca", "a", now()).unwrap();
    let leaf = Leaf::client("u", &[]);
    let ensure = || ensure(dir.path(), "u", &leaf, &authority, now()).unwrap();
    ensure();
    std::fs::remove_file(dir.path().join("u.crt")).unwrap();
    assert_eq!((ensure(), ensure()), (FileChange::New, FileChange::Kept));
}

#[test]
fn a_renewal_that_was_cut_off_is_made_again_and_keys_become_private() {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::ensure(dir.path(), "ca", "a", now()).unwrap();
    let (one, other) = (Leaf::client("one", &[]), Leaf::client("other", &[]));
    for (stem, leaf) in [("one", &one), ("other", &other)] {
        ensure(dir.path(), stem, leaf, &authority, now()).unwrap();
    }
    let at = |name: &str| dir.path().join(name);
    let mode = |name: &str| std::fs::metadata(at(name)).unwrap().permissions().mode() & 0o777;
    for key in ["one.key", "ca.key"] {
        std::fs::set_permissions(at(key), std::fs::Permissions::from_mode(0o644)).unwrap();
    }
    let authority = Authority::ensure(dir.path(), "ca", "a", now()).unwrap();
    let again = |authority: &Authority| {
        ensure(dir.path(), "one", &one, authority, now()).map_err(|e| e.to_string())
    };
    assert_eq!(again(&authority), Ok(FileChange::Kept));
    assert_eq!((mode("one.key"), mode("ca.key")), (0o600, 0o600));
    std::fs::copy(at("other.key"), at("one.key")).unwrap();
    assert_eq!(again(&authority), Ok(FileChange::New));
    assert_eq!(again(&authority), Ok(FileChange::Kept));
    std::fs::copy(at("other.key"), at("one.key")).unwrap();
    std::fs::remove_file(at("ca.key")).unwrap();
    let external = Authority::load(dir.path(), "ca", now()).unwrap();
    let error = again(&external).unwrap_err();
    assert!(error.contains("is not the key of") && error.contains("one.crt"), "{error}");
}

#[test]
fn a_control_plane_that_joins_has_the_files_of_the_first() {
    let dir = tempfile::tempdir().unwrap();
    let said = |authority: &str| match check_shared(dir.path(), authority) {
        Ok(()) => String::new(),
        Err(error) => error.to_string(),
    };
    std::fs::write(dir.path().join("ca.crt"), "A\n").unwrap();
    assert!(said("A").contains("has no front-proxy-ca.crt, sa.key, sa.pub:"), "{}", said("A"));
    for name in ["front-proxy-ca.crt", "sa.key", "sa.pub"] {
        std::fs::write(dir.path().join(name), "x").unwrap();
    }
    assert_eq!(said("A"), "");
    assert!(said("B").contains("not the authority of the cluster"), "{}", said("B"));
}
