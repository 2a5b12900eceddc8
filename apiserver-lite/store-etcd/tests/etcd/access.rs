//! How servers get to etcd: TLS with client certificates, users with passwords, prefixes, and what lies in etcd.

use std::{path::Path, sync::Arc, time::Duration};

use crate::etcd_process::{EtcdProcess, TlsPaths};
use crate::support::{Text, config, content, open_with, raw, server, store_config};
use apiserver_store::{
    Form, Medium, Store, StoreConfig, StoreIdentity, Transform, TransformError, Write,
    WriteCondition,
};
use apiserver_store_etcd::{EtcdConfig, EtcdUser, OpenEtcdError, PrefixError, TlsFiles, open};
use bytes::Bytes;
use etcd_client::Permission;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};

async fn set(store: &Store<Text>, key: &str, text: &'static str) {
    let draft = Bytes::from_static(text.as_bytes());
    store
        .write(Write::Put { key: key.into(), expect: WriteCondition::Anything, draft })
        .await
        .unwrap();
}

/// The error of a store that does not open, at once.
async fn refusal(mut config: EtcdConfig) -> OpenEtcdError {
    config.patience = Duration::ZERO;
    match open_with(config).await {
        Ok(_) => panic!("opened"),
        Err(error) => error,
    }
}

/// An authority, and certificates that it issued, in `directory`.
fn make_certificates(directory: &Path) -> (TlsPaths, TlsPaths) {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, "authority of etcd");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = directory.join("ca.crt");
    std::fs::write(&authority, params.self_signed(&key).unwrap().pem()).unwrap();
    let issuer = Issuer::new(params, key);
    let issue = |name: &str| {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        let paths = TlsPaths {
            authority: authority.clone(),
            certificate: directory.join(format!("{name}.crt")),
            key: directory.join(format!("{name}.key")),
        };
        let certificate = params.signed_by(&key, &issuer).unwrap();
        std::fs::write(&paths.certificate, certificate.pem()).unwrap();
        std::fs::write(&paths.key, key.serialize_pem()).unwrap();
        paths
    };
    (issue("etcd"), issue("apiserver"))
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_verifies_both_sides() {
    let directory = tempfile::tempdir().unwrap();
    let (of_etcd, of_server) = make_certificates(directory.path());
    let Some(etcd) = EtcdProcess::start_with("tls_verifies_both_sides", Some(of_etcd)) else {
        return;
    };
    let mut secure = config(&etcd.url());
    secure.tls = TlsFiles {
        authority: Some(of_server.authority.clone()),
        client: Some((of_server.certificate, of_server.key)),
    };
    let store = open_with(secure.clone()).await.unwrap();
    set(&store, "/core/a", "1").await;
    assert_eq!(content(&store).len(), 1);
    let mut anonymous = secure.clone();
    anonymous.tls.client = None;
    assert!(matches!(
        refusal(anonymous).await,
        OpenEtcdError::Connect { .. } | OpenEtcdError::Prefix(_)
    ));
    let elsewhere = tempfile::tempdir().unwrap();
    let mut strange = secure;
    strange.tls.authority = Some(make_certificates(elsewhere.path()).0.authority);
    assert!(matches!(
        refusal(strange).await,
        OpenEtcdError::Connect { .. } | OpenEtcdError::Prefix(_)
    ));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_needs_its_password_and_has_its_prefix_only() {
    let name = "a_user_needs_its_password_and_has_its_prefix_only";
    let Some(etcd) = EtcdProcess::start(name) else { return };
    let mut admin = loop {
        // It is still starting.
        let mut admin = raw(&etcd.url()).await;
        if admin.user_add("root", "of-root", None).await.is_ok() {
            break admin;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    admin.role_add("root").await.unwrap();
    admin.user_grant_role("root", "root").await.unwrap();
    admin.user_add("apiserver", "of-apiserver", None).await.unwrap();
    admin.role_add("apiserver").await.unwrap();
    let below = Permission::read_write("/registry/").with_prefix();
    admin.role_grant_permission("apiserver", below).await.unwrap();
    admin.user_grant_role("apiserver", "apiserver").await.unwrap();
    admin.auth_enable().await.unwrap();

    let directory = tempfile::tempdir().unwrap();
    let password_file = directory.path().join("password");
    std::fs::write(&password_file, "of-apiserver\n").unwrap();
    let mut known = config(&etcd.url());
    known.user = Some(EtcdUser { name: "apiserver".into(), password_file: password_file.clone() });
    let store = open_with(known.clone()).await.unwrap();
    let other = open_with(known.clone()).await.unwrap();
    set(&store, "/core/a", "1").await;
    other.sync().await.unwrap();
    assert_eq!(content(&other), content(&store));

    let denied = |error: &OpenEtcdError| {
        let text = proto_daemon::exit::chain(error);
        assert!(text.contains("etcdserver: "), "{text}");
    };
    denied(&refusal(config(&etcd.url())).await);
    denied(&refusal(EtcdConfig { prefix: "/other".into(), ..known.clone() }).await);
    std::fs::write(&password_file, "wrong").unwrap();
    denied(&refusal(known).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prefix_with_something_else_is_refused() {
    let Some(etcd) = EtcdProcess::start("a_prefix_with_something_else_is_refused") else { return };
    let store = server(&etcd.url()).await;
    set(&store, "/core/a", "1").await;
    let other = StoreIdentity { profile: "orch".into(), domain: "k8s.io".into() };
    let other = StoreConfig::new(Medium::Memory, other);
    let opened = open::<Text>(config(&etcd.url()), other, Box::new(|_| Ok(()))).await;
    let Err(OpenEtcdError::Prefix(PrefixError::Identity { what, .. })) = opened else {
        panic!("opened")
    };
    assert_eq!(what, "profile");

    let mut beside = raw(&etcd.url()).await;
    beside.put("/k8s/pods/default/a", "k8s\0...", None).await.unwrap();
    let at = |prefix: &str| EtcdConfig { prefix: prefix.to_owned(), ..config(&etcd.url()) };
    let foreign = refusal(at("/k8s")).await.to_string();
    assert!(foreign.contains("/k8s/pods/default/a"), "{foreign}");
    beside.put("/new/.format", "2 kubernetes k8s.io", None).await.unwrap();
    assert!(refusal(at("/new")).await.to_string().contains("format \"2 "));
    for prefix in ["", "/", "registry", "//a", "/a/.b"] {
        assert!(matches!(refusal(at(prefix)).await, OpenEtcdError::BadPrefix(_)), "{prefix:?}");
    }
    // Two clusters in one etcd do not see each other.
    let second = open_with(at("/registry2")).await.unwrap();
    assert_eq!(content(&second), []);
    set(&second, "/core/b", "2").await;
    store.sync().await.unwrap();
    assert_eq!(content(&store).len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unreadable_record_stops_the_store_until_it_is_deleted() {
    let name = "an_unreadable_record_stops_the_store_until_it_is_deleted";
    let Some(etcd) = EtcdProcess::start(name) else { return };
    let store = server(&etcd.url()).await;
    set(&store, "/core/a", "1").await;
    let mut beside = raw(&etcd.url()).await;
    beside.put("/registry/core/b", vec![0xff], None).await.unwrap();
    crate::support::until_serving(&store, false).await;
    let told = format!("{:?}", store.health().borrow());
    assert!(told.contains("/core/b"), "{told}");
    assert!(store.sync().await.is_err());
    beside.delete("/registry/core/b", None).await.unwrap();
    crate::support::until_serving(&store, true).await;
    set(&store, "/core/c", "1").await;
    assert_eq!(content(&store).len(), 2);
}

/// Turns the bits of the values below `/core/secrets/`, behind a sign.
struct Turned;

impl Transform for Turned {
    fn encode_stored(&self, key: &str, value: Bytes) -> Result<(Bytes, Form), TransformError> {
        if !key.starts_with("/core/secrets/") {
            return Ok((value, Form::AS_IS));
        }
        let turned = b"turned:".iter().copied().chain(value.iter().map(|byte| !byte));
        Ok((turned.collect(), Form(7)))
    }

    fn decode_stored(&self, _: &str, stored: Bytes) -> Result<(Bytes, Form), TransformError> {
        match stored.strip_prefix(b"turned:") {
            Some(turned) => Ok((turned.iter().map(|byte| !byte).collect(), Form(7))),
            None => Ok((stored, Form::AS_IS)),
        }
    }

    fn current_form(&self, key: &str) -> Form {
        if key.starts_with("/core/secrets/") { Form(7) } else { Form::AS_IS }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn values_are_transformed_in_etcd_and_only_there() {
    let Some(etcd) = EtcdProcess::start("values_are_transformed_in_etcd_and_only_there") else {
        return;
    };
    let open_turned = || {
        let store = StoreConfig { transform: Some(Arc::new(Turned)), ..store_config() };
        open::<Text>(config(&etcd.url()), store, Box::new(|_| Ok(())))
    };
    let (one, other) = (open_turned().await.unwrap(), open_turned().await.unwrap());
    set(&one, "/core/secrets/a", "known").await;
    set(&one, "/core/maps/a", "known").await;
    other.sync().await.unwrap();
    for store in [&one, &other] {
        let texts: Vec<String> = content(store).into_iter().map(|(_, _, text)| text).collect();
        assert_eq!(texts, ["known", "known"]);
        assert!(!store.is_stale("/core/secrets/a") && !store.is_stale("/core/maps/a"));
        assert_eq!(store.forms().get(&Form(7)), Some(&1));
    }
    let mut beside = raw(&etcd.url()).await;
    let mut stored = async |key: &str| {
        let found = beside.get(key, None).await.unwrap();
        found.kvs()[0].value().to_vec()
    };
    assert!(stored("/registry/core/secrets/a").await.starts_with(b"turned:"));
    assert_eq!(stored("/registry/core/maps/a").await, b"known");
}
