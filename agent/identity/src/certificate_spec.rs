//! Requirements on a certificate, its request, and its renewal time. Pure except for the randomness
//! of signing.

use std::net::IpAddr;

use proto_api::certificates::v1::{CertificateSigningRequest, CertificateSigningRequestSpec};
use proto_api::meta::v1::ObjectMeta;
use proto_api::sha256_hex;
use proto_daemon::tls;
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, PublicKeyData, SanType};
use rustls::pki_types::CertificateDer;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};

/// The group of all nodes.
const NODES: &str = "system:nodes";
/// Signers compare usages for equality; these are expected by release 1.25 for every kind of key.
const KEY_USAGES: [&str; 2] = ["digital signature", "key encipherment"];

/// Requirements on a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateSpec {
    /// Name of the Node object.
    pub node: String,
    pub purpose: Purpose,
    pub signer: String,
}

/// The purpose of a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Authentication at the API server.
    Client,
    /// Serving at these names and addresses.
    Serving { names: Vec<String>, addresses: Vec<IpAddr> },
}

/// Validity of a certificate, in seconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CertificateLifetime {
    /// `notBefore`.
    pub begins: i64,
    /// `notAfter`.
    pub ends: i64,
}

impl CertificateSpec {
    /// The request for a key. Its name is derived from key and requirements, so that a repeated
    /// request is the same object.
    ///
    /// # Errors
    /// A name is invalid in certificates, or the key cannot sign.
    pub fn request(&self, key: &KeyPair) -> Result<CertificateSigningRequest, rcgen::Error> {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::OrganizationName, NODES);
        params.distinguished_name.push(DnType::CommonName, self.user());
        if let Purpose::Serving { names, addresses } = &self.purpose {
            for name in names {
                params.subject_alt_names.push(SanType::DnsName(name.as_str().try_into()?));
            }
            params.subject_alt_names.extend(addresses.iter().copied().map(SanType::IpAddress));
        }
        let request = params.serialize_request(key)?.pem()?;
        let auth = if self.purpose == Purpose::Client { "client auth" } else { "server auth" };
        let usages = KEY_USAGES.iter().copied().chain([auth]).map(str::to_owned).collect();
        Ok(CertificateSigningRequest {
            metadata: ObjectMeta { name: self.object_name(key), ..ObjectMeta::default() },
            spec: CertificateSigningRequestSpec {
                request: request.into_bytes(),
                signer_name: self.signer.clone(),
                usages,
                ..CertificateSigningRequestSpec::default()
            },
            ..CertificateSigningRequest::default()
        })
    }

    fn user(&self) -> String {
        format!("system:node:{}", self.node)
    }

    fn object_name(&self, key: &KeyPair) -> String {
        let mut hashed = key.subject_public_key_info();
        hashed.extend(format!("{self:?}").into_bytes());
        format!("node-csr-{:.40}", sha256_hex(&hashed))
    }

    /// Whether a certificate meets the requirements: its subject, and every name and address.
    pub fn is_met_by(&self, pem: &[u8]) -> bool {
        let Some(der) = first(pem) else { return false };
        let Ok((_, certificate)) = X509Certificate::from_der(&der) else { return false };
        let owner =
            certificate.subject().iter_common_name().next().and_then(|name| name.as_str().ok());
        if owner != Some(&self.user()) {
            return false;
        }
        let Purpose::Serving { names, addresses } = &self.purpose else { return true };
        let Ok(Some(extension)) = certificate.subject_alternative_name() else { return false };
        let (mut its_names, mut its_addresses) = (Vec::new(), Vec::new());
        for name in &extension.value.general_names {
            match name {
                GeneralName::DNSName(name) => its_names.push((*name).to_owned()),
                GeneralName::IPAddress(bytes) => its_addresses.extend(address(bytes)),
                _ => {}
            }
        }
        names.iter().all(|name| its_names.contains(name))
            && addresses.iter().all(|ip| its_addresses.contains(ip))
    }
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    let four: Result<[u8; 4], _> = bytes.try_into();
    let sixteen: Result<[u8; 16], _> = bytes.try_into();
    four.map(IpAddr::from).or(sixteen.map(IpAddr::from)).ok()
}

/// Whether an issued certificate is for this key.
pub fn is_for(pem: &[u8], key: &KeyPair) -> bool {
    let Some(der) = first(pem) else { return false };
    let Ok((_, certificate)) = X509Certificate::from_der(&der) else { return false };
    certificate.public_key().raw == key.subject_public_key_info()
}

fn first(pem: &[u8]) -> Option<CertificateDer<'static>> {
    tls::certificates(pem).ok()?.into_iter().next()
}

impl CertificateLifetime {
    /// The validity of the first certificate of a chain.
    pub fn from_pem(pem: &[u8]) -> Option<Self> {
        let der = first(pem)?;
        let (_, certificate) = X509Certificate::from_der(&der).ok()?;
        let validity = certificate.validity();
        Some(Self { begins: validity.not_before.timestamp(), ends: validity.not_after.timestamp() })
    }

    /// When to renew it: after 70 to 90 % of its validity, by a share between 0 and 1 that differs
    /// between nodes.
    pub fn renew_at(self, share: f64) -> i64 {
        let whole = self.ends.saturating_sub(self.begins).max(0) as f64;
        let part = whole * (0.7 + 0.2 * share.clamp(0.0, 1.0));
        self.begins.saturating_add(part as i64)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;
    use rcgen::{CertificateSigningRequestParams, Issuer};

    use super::*;

    pub(in super::super) fn serving(addresses: &[&str]) -> CertificateSpec {
        let addresses = addresses.iter().map(|ip| ip.parse().expect("an address")).collect();
        CertificateSpec {
            node: "n1".into(),
            purpose: Purpose::Serving { names: vec!["n1".into()], addresses },
            signer: "s".into(),
        }
    }

    pub(in super::super) fn client() -> CertificateSpec {
        CertificateSpec { node: "n1".into(), purpose: Purpose::Client, signer: "s".into() }
    }

    /// The certificate that an authority issues for a request.
    pub(in super::super) fn signed(request: &CertificateSigningRequest) -> Vec<u8> {
        let key = KeyPair::generate().expect("key");
        let params = CertificateParams::default();
        let ca = Issuer::new(params, key);
        let text = std::str::from_utf8(&request.spec.request).expect("PEM");
        let request = CertificateSigningRequestParams::from_pem(text).expect("a request");
        request.signed_by(&ca).expect("signed").pem().into_bytes()
    }

    #[test]
    fn a_request_names_the_node_and_is_the_same_object_each_time() {
        let key = KeyPair::generate().expect("key");
        let once = client().request(&key).expect("a request");
        let again = client().request(&key).expect("a request");
        assert_eq!(once.metadata.name, again.metadata.name);
        assert_eq!(once.spec.usages, ["digital signature", "key encipherment", "client auth"]);
        let other = serving(&["10.0.0.1"]).request(&key).expect("a request");
        assert_ne!(once.metadata.name, other.metadata.name);
        let certificate = signed(&once);
        assert!(client().is_met_by(&certificate) && is_for(&certificate, &key));
        assert!(!is_for(&certificate, &KeyPair::generate().expect("key")));
        assert!(!CertificateSpec { node: "n2".into(), ..client() }.is_met_by(&certificate));
    }

    #[test]
    fn a_node_that_has_moved_needs_another_certificate() {
        let key = KeyPair::generate().expect("key");
        let certificate =
            signed(&serving(&["10.0.0.1", "fd00::1"]).request(&key).expect("a request"));
        assert!(serving(&["fd00::1"]).is_met_by(&certificate));
        assert!(!serving(&["10.0.0.2"]).is_met_by(&certificate));
        assert!(!serving(&[]).is_met_by(b"no certificate"));
    }

    proptest! {
        #[test]
        fn renewal_lies_between_seven_and_nine_tenths(begins in 0_i64..1 << 40, len in 10_i64..1 << 32, share in 0.0_f64..1.0) {
            let at = CertificateLifetime { begins, ends: begins + len }.renew_at(share) - begins;
            prop_assert!(at >= len * 7 / 10 - 1 && at <= len * 9 / 10 + 1, "{at} of {len}");
        }
    }
}
