//! Files that an operator gives to the API server and to clients.

// Private modules of orch-apiserver, which stand alone.
#[path = "../../../apiserver-lite/orch-apiserver/src/admission_config.rs"]
mod admission_config;
#[path = "../../../apiserver-lite/orch-apiserver/src/audit_policy.rs"]
mod audit_policy;

/// Configurations of admission, audit, encryption and clients.
pub mod operator_files {
    use std::path::{Path, PathBuf};
    use std::sync::OnceLock;

    use apiserver_audit::{AuditAttributes, AuditedResource};
    use apiserver_bootstrap::configuration;
    use apiserver_encryption::{Encryption, StoredResource, is_encrypted};
    use apiserver_store::{Form, Transform as _};
    use proto_client::config::file;
    use proto_daemon::config::FileType;
    use tempfile::TempDir;

    use super::{admission_config, audit_policy};
    use crate::api;

    /// A file with the bytes in it.
    fn file_with(bytes: &[u8]) -> PathBuf {
        static DIR: OnceLock<TempDir> = OnceLock::new();
        let dir = DIR.get_or_init(|| tempfile::tempdir().expect("a directory"));
        let path = dir.path().join("file.yaml");
        std::fs::write(&path, bytes).expect("a file");
        path
    }

    /// What is written by a configuration is read by it, of its own object only; nothing else that looks encrypted is.
    fn encryption(path: &Path, bytes: &[u8]) {
        let accepted = FileType {
            api_version: "apiserver.config.k8s.io/v1".to_owned(),
            kind: "EncryptionConfiguration".to_owned(),
        };
        let resource =
            |name: &str| StoredResource { name: name.to_owned(), prefix: format!("/core/{name}/") };
        let resources = ["secrets", "configmaps"].map(resource).to_vec();
        let Ok(encryption) = Encryption::load(path, accepted, resources) else { return };
        let stored = |key: &str| encryption.decode_stored(key, bytes.to_vec().into());
        assert!(!is_encrypted(bytes) || stored("/core/secrets/n/a").is_err());
        for (key, other) in [
            ("/core/secrets/n/a", "/core/secrets/n/b"),
            ("/core/configmaps/n/a", "/core/configmaps/n/b"),
        ] {
            let text = b"k8s\0text".as_slice();
            let written = encryption.encode_stored(key, text.into());
            let (value, form) = written.expect("written");
            assert_eq!(encryption.current_form(key), form);
            assert_eq!(is_encrypted(&value), form != Form::AS_IS);
            let read = encryption.decode_stored(key, value.clone()).expect("own value");
            assert_eq!((read.0.as_ref(), read.1), (text, form));
            let moved = encryption.decode_stored(other, value);
            assert_eq!(moved.is_err(), form != Form::AS_IS, "another object's value");
        }
    }

    fn audit(path: &Path) {
        let Ok(policy) = audit_policy::read(path, api::names()) else { return };
        let resource = AuditedResource { resource: "pods", namespace: "n", ..Default::default() };
        for resource in [None, Some(resource)] {
            for user in [None, Some("u")] {
                let groups = &["g".to_owned()];
                let request =
                    AuditAttributes { user, groups, verb: "get", resource, path: "/metrics" };
                assert_eq!(policy.decide(&request), policy.decide(&request));
            }
        }
    }

    /// Reads the bytes as each of them.
    pub fn check(bytes: &[u8]) {
        let path = file_with(bytes);
        let _ = admission_config::read(&path, api::names());
        audit(&path);
        encryption(&path, bytes);
        let Ok(text) = std::str::from_utf8(bytes) else { return };
        if let Ok(config) = file::parse(&path, text, None) {
            assert!(!config.namespace.is_empty());
            assert!(config.server.host().is_some(), "{}", config.server);
        }
        // A configuration of orchadm that is migrated is one of the current version.
        if let Ok((migrated, _)) = configuration::migrate(text, api::names()) {
            if let Err(error) = configuration::parse(&migrated, api::names()) {
                panic!("{text:?} becomes {migrated:?}: {error}");
            }
        }
        let _ = configuration::parse(text, api::names());
    }

    /// One of each.
    pub fn seeds() -> Vec<Vec<u8>> {
        crate::texts(&[
            "apiVersion: apiserver.config.k8s.io/v1\nkind: AdmissionConfiguration\nplugins:\n- name: PodSecurity\n  configuration:\n    apiVersion: pod-security.admission.config.k8s.io/v1\n    kind: PodSecurityConfiguration\n    defaults: {enforce: baseline, enforce-version: v1.24}\n    exemptions: {usernames: [a], namespaces: [b]}\n",
            "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\nrules:\n- {level: Metadata, users: [u], resources: [{group: \"\", resources: [pods, \"pods/*\"]}]}\n- {level: None, nonResourceURLs: [\"/metrics*\"]}\n",
            "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n- resources: [secrets]\n  providers:\n  - aesgcm: {keys: [{name: k, secret: c2VjcmV0c2VjcmV0c2VjcmV0cw==}]}\n  - identity: {}\n",
            "k8s:enc:aesgcm:v1:k:0123456789abcdefghijklmnopqrst",
            "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{name: c, context: {cluster: k, user: u, namespace: n}}]\nclusters: [{name: k, cluster: {server: \"https://a:6443/x\", certificate-authority-data: YQ==}}]\nusers: [{name: u, user: {token: t}}]\n",
            "apiVersion: kubeadm.k8s.io/v1beta3\nkind: ClusterConfiguration\nkubernetesVersion: v1.25.0\nnetworking: {podSubnet: 10.244.0.0/16}\n---\napiVersion: kubeadm.k8s.io/v1beta3\nkind: InitConfiguration\nbootstrapTokens: [{token: abcdef.0123456789abcdef}]\n",
        ])
    }
}
