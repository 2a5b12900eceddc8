//! The certificates of a control plane that can be renewed: where they are, when they end, and their renewal with the same content.

use std::path::{Path, PathBuf};

use proto_api::names::Names;
use time::OffsetDateTime;

use crate::authority::{
    Authority, CertificateUsage, Issuance, LEAF_DAYS, Leaf, facts, missing, read,
};
use crate::certificates::{self, AUTHORITY, PROXY_AUTHORITY, node_client_stem};
use crate::client_config::{self, AuthorityAt, ClusterEntry};
use crate::error::BootstrapError;
use crate::layout::Layout;

/// Where a certificate is.
enum CertificateLocation {
    /// Files of its own, with what it is for and its authority.
    Files(CertificateUsage, &'static str),
    /// Inside a client configuration.
    Config(PathBuf),
}

/// A certificate that can be renewed.
pub struct RenewableCertificate {
    /// Its name: that of its file, without the ending of a certificate.
    pub name: String,
    place: CertificateLocation,
}

/// When a certificate ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expiry {
    pub name: String,
    pub ends: OffsetDateTime,
    /// File name of its authority, without ending; empty for an authority's own.
    pub authority: String,
    /// Whether the key of its certificate authority is not on this host, so that it cannot be renewed here.
    pub is_external: bool,
}

/// All that can be renewed, in kubeadm's order.
pub fn renewable(names: &Names, layout: &Layout) -> Vec<RenewableCertificate> {
    let config = |path: &PathBuf| {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
        RenewableCertificate {
            name: name.unwrap_or_default(),
            place: CertificateLocation::Config(path.clone()),
        }
    };
    let files = |name: &str, usage, authority| RenewableCertificate {
        name: name.to_owned(),
        place: CertificateLocation::Files(usage, authority),
    };
    vec![
        config(&layout.admin),
        files("apiserver", CertificateUsage::Server, AUTHORITY),
        files(&node_client_stem(names), CertificateUsage::Client, AUTHORITY),
        config(&layout.controller_manager),
        files("front-proxy-client", CertificateUsage::Client, PROXY_AUTHORITY),
        config(&layout.scheduler),
    ]
}

/// When the certificates end, and when their authorities do.
///
/// # Errors
/// One is missing or unusable.
pub fn expiries(
    names: &Names,
    layout: &Layout,
    pki: &Path,
) -> Result<(Vec<Expiry>, Vec<Expiry>), BootstrapError> {
    let is_external = |authority: &str| !pki.join(format!("{authority}.key")).exists();
    let mut leaves = Vec::new();
    for one in renewable(names, layout) {
        let (path, pem) = one.read(pki)?;
        let authority = one.authority();
        leaves.push(Expiry {
            ends: facts(&path, &pem)?.ends,
            is_external: is_external(authority),
            authority: authority.to_owned(),
            name: one.name,
        });
    }
    let mut authorities = Vec::new();
    for name in [AUTHORITY, PROXY_AUTHORITY] {
        let path = pki.join(format!("{name}.crt"));
        let pem = read(&path)?.ok_or_else(|| missing(&path))?;
        authorities.push(Expiry {
            name: name.to_owned(),
            ends: facts(&path, &pem)?.ends,
            authority: String::new(),
            is_external: is_external(name),
        });
    }
    Ok((leaves, authorities))
}

impl RenewableCertificate {
    /// File name of its authority, without ending.
    fn authority(&self) -> &'static str {
        match self.place {
            CertificateLocation::Files(_, authority) => authority,
            CertificateLocation::Config(_) => AUTHORITY,
        }
    }

    /// Why this host does not renew it: the key of its authority is elsewhere. None if it is here.
    pub fn kept_by_another(&self, pki: &Path) -> Option<String> {
        let key = pki.join(format!("{}.key", self.authority()));
        (!key.exists()).then(|| {
            format!(
                "{} cannot be renewed here and stays as it is: the key of its authority is not in {}; renew it where the key is kept",
                self.name,
                key.display()
            )
        })
    }

    /// The file, and the certificate in it.
    fn read(&self, pki: &Path) -> Result<(PathBuf, String), BootstrapError> {
        match &self.place {
            CertificateLocation::Files(..) => {
                let path = pki.join(format!("{}.crt", self.name));
                let text = read(&path)?.ok_or_else(|| missing(&path))?;
                Ok((path, text))
            }
            CertificateLocation::Config(path) => {
                let config = client_config::load(path)?;
                Ok((path.clone(), client_config::certificate(path, &config)?))
            }
        }
    }

    /// Renews it with its own authority and the same content.
    ///
    /// # Errors
    /// It is missing, or its authority issues nothing.
    pub fn renew(
        &self,
        names: &Names,
        pki: &Path,
        now: OffsetDateTime,
    ) -> Result<(), BootstrapError> {
        let authority = Authority::load(pki, self.authority(), now)?;
        match &self.place {
            CertificateLocation::Files(usage, _) => {
                let leaf = certificates::leaf_of(&pki.join(format!("{}.crt", self.name)), *usage)?;
                let issuance =
                    Issuance { leaf: &leaf, authority: &authority, days: LEAF_DAYS, now };
                certificates::renew(pki, &self.name, &issuance)
            }
            CertificateLocation::Config(path) => {
                let config = client_config::load(path)?;
                let known = facts(path, &client_config::certificate(path, &config)?)?;
                let groups: Vec<&str> = known.organizations.iter().map(String::as_str).collect();
                let leaf = Leaf::client(&known.common_name, &groups);
                let server = config.server.to_string();
                let cluster = ClusterEntry {
                    name: names.api_service_name(),
                    server: server.trim_end_matches('/'),
                    authority: AuthorityAt::Embedded(authority.certificate()),
                };
                let issuance =
                    Issuance { leaf: &leaf, authority: &authority, days: LEAF_DAYS, now };
                client_config::renew(path, &cluster, &issuance)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proto_api::names::Profile;

    use super::*;

    #[test]
    fn renewed_certificates_have_the_same_subject_and_a_later_expiry() {
        let root = tempfile::tempdir().unwrap();
        let names = Names::new(Profile::Kubernetes);
        let layout = Layout::new(names, root.path());
        let pki = &layout.pki;
        std::fs::create_dir_all(pki).unwrap();
        let then = OffsetDateTime::from_unix_timestamp(1_800_000_000).unwrap();
        let authority = Authority::ensure(pki, AUTHORITY, "a", then).unwrap();
        let proxies = Authority::ensure(pki, PROXY_AUTHORITY, "b", then).unwrap();
        for file in certificates::of_control_plane(names, &["a.b".to_owned()]) {
            let by = if file.authority == AUTHORITY { &authority } else { &proxies };
            let issuance = Issuance { leaf: &file.leaf, authority: by, days: LEAF_DAYS, now: then };
            certificates::ensure(pki, &file.stem, &issuance).unwrap();
        }
        let leaf = Leaf::client("u", &["g"]);
        for path in [&layout.admin, &layout.controller_manager, &layout.scheduler] {
            let cluster = ClusterEntry {
                name: "c",
                server: "https://h:1",
                authority: AuthorityAt::Embedded(authority.certificate()),
            };
            let issuance =
                Issuance { leaf: &leaf, authority: &authority, days: LEAF_DAYS, now: then };
            client_config::ensure(path, &cluster, &issuance).unwrap();
        }
        let (before, _) = expiries(names, &layout, pki).unwrap();
        let later = then + time::Duration::days(100);
        for one in renewable(names, &layout) {
            one.renew(names, pki, later).unwrap();
        }
        let (after, authorities) = expiries(names, &layout, pki).unwrap();
        let shown: Vec<&str> = after.iter().map(|one| one.name.as_str()).collect();
        assert_eq!(
            shown,
            [
                "admin.conf",
                "apiserver",
                "apiserver-kubelet-client",
                "controller-manager.conf",
                "front-proxy-client",
                "scheduler.conf"
            ]
        );
        for (before, after) in before.iter().zip(&after) {
            assert_eq!(after.ends - before.ends, time::Duration::days(100), "{}", after.name);
        }
        assert_eq!(authorities[1].name, PROXY_AUTHORITY);
        let served =
            certificates::leaf_of(&pki.join("apiserver.crt"), CertificateUsage::Server).unwrap();
        assert_eq!(served.alternative_names, ["a.b"]);
        std::fs::remove_file(pki.join("ca.key")).unwrap();
        let (external, _) = expiries(names, &layout, pki).unwrap();
        assert!(external[0].is_external && !external[4].is_external);
        assert!(renewable(names, &layout)[0].renew(names, pki, later).is_err());
        let all = renewable(names, &layout);
        let kept = all.iter().filter_map(|one| one.kept_by_another(pki));
        let kept: Vec<String> = kept.collect();
        assert!(kept.len() == 5 && kept[0].contains("admin.conf"), "{kept:?}");
        assert!(all[4].kept_by_another(pki).is_none(), "the other authority is here");
        let actions = crate::dry_run::renewal(names, &layout, pki);
        assert_eq!(actions[4], "renew front-proxy-client");
        assert!(actions[0].starts_with("keep admin.conf"), "{actions:?}");
    }
}
