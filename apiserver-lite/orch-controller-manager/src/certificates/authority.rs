//! The cluster's authority: makes certificates of requests.

use std::path::Path;
use std::time::Duration;

use proto_api::Time;
use proto_api::certificates::v1::CertificateSigningRequestSpec;
use rcgen::{
    CertificateParams, CertificateSigningRequestParams, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose,
};
use time::OffsetDateTime;

use super::shape::Shape;

/// Clocks of nodes that are behind by this much take a new certificate.
const BACKDATED: i64 = 300;
/// The shortest life that can be asked for, in seconds.
const LIFE_MIN: i64 = 600;

/// Signs.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    /// Longest life of a certificate, in seconds.
    life_max: i64,
    /// End of the authority's own certificate, seconds since 1970.
    ends: i64,
}

/// Why the authority cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum AuthorityError {
    /// A file cannot be read.
    #[error("read {0}")]
    Read(String, #[source] std::io::Error),
    /// They are no certificate and key.
    #[error("certificate and key")]
    Pair(#[from] rcgen::Error),
    /// The certificate is none.
    #[error("the certificate is none")]
    Certificate,
}

/// Why a certificate is not made.
#[derive(Debug, thiserror::Error)]
pub enum SignError {
    /// The request is none, or not signed by its own key.
    #[error("certificate request")]
    Request(#[from] rcgen::Error),
    /// A time that no certificate can carry.
    #[error("end of the certificate")]
    Time(#[from] time::error::ComponentRange),
    /// The request is no text.
    #[error("certificate request is no text")]
    Text(#[from] std::str::Utf8Error),
}

impl Authority {
    /// Reads certificate and key.
    ///
    /// # Errors
    /// They cannot be read or used.
    pub fn read(
        certificate: &Path,
        key: &Path,
        life_max: Duration,
    ) -> Result<Self, AuthorityError> {
        let text = |path: &Path| {
            std::fs::read_to_string(path)
                .map_err(|cause| AuthorityError::Read(path.display().to_string(), cause))
        };
        Self::new(&text(certificate)?, &text(key)?, life_max)
    }

    fn new(certificate: &str, key: &str, life_max: Duration) -> Result<Self, AuthorityError> {
        let (_, block) = x509_parser::pem::parse_x509_pem(certificate.as_bytes())
            .map_err(|_| AuthorityError::Certificate)?;
        let ends = block
            .parse_x509()
            .map_err(|_| AuthorityError::Certificate)?
            .validity()
            .not_after
            .timestamp();
        let issuer = Issuer::from_ca_cert_pem(certificate, KeyPair::from_pem(key)?)?;
        Ok(Self { issuer, life_max: i64::try_from(life_max.as_secs()).unwrap_or(i64::MAX), ends })
    }

    /// Makes a certificate of a request of a shape that may be signed, as PEM.
    ///
    /// # Errors
    /// The request cannot be read, or is not signed by the key that it is about.
    pub fn sign(
        &self,
        spec: &CertificateSigningRequestSpec,
        shape: &Shape,
        now: Time,
    ) -> Result<Vec<u8>, SignError> {
        let mut request =
            CertificateSigningRequestParams::from_pem(std::str::from_utf8(&spec.request)?)?;
        // Nothing of the request but its owner and names: what else it asks for is not looked at.
        let mut params = CertificateParams::default();
        params.distinguished_name = request.params.distinguished_name.clone();
        params.subject_alt_names = request.params.subject_alt_names.clone();
        let now = now.unix().unwrap_or(0);
        let life = spec
            .expiration_seconds
            .map_or(self.life_max, i64::from)
            .clamp(LIFE_MIN, self.life_max.max(LIFE_MIN));
        params.not_before = OffsetDateTime::from_unix_timestamp(now - BACKDATED)?;
        params.not_after =
            OffsetDateTime::from_unix_timestamp(now.saturating_add(life).min(self.ends))?;
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = key_usages(&spec.usages);
        params.extended_key_usages = vec![match shape {
            Shape::NodeServing => ExtendedKeyUsagePurpose::ServerAuth,
            Shape::NodeClient(_) | Shape::Client => ExtendedKeyUsagePurpose::ClientAuth,
        }];
        params.use_authority_key_identifier_extension = true;
        request.params = params;
        Ok(request.signed_by(&self.issuer)?.pem().into_bytes())
    }
}

fn key_usages(usages: &[String]) -> Vec<KeyUsagePurpose> {
    let known = |usage: &String| match usage.as_str() {
        "digital signature" => Some(KeyUsagePurpose::DigitalSignature),
        "key encipherment" => Some(KeyUsagePurpose::KeyEncipherment),
        _ => None,
    };
    usages.iter().filter_map(known).collect()
}

#[cfg(test)]
mod tests {
    use proto_api::names::{Names, Profile};
    use rcgen::BasicConstraints;

    use super::super::shape;
    use super::*;

    fn authority(life_max: u64) -> Authority {
        let key = KeyPair::generate().expect("key");
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let certificate = params.self_signed(&key).expect("signed").pem();
        Authority::new(&certificate, &key.serialize_pem(), Duration::from_secs(life_max))
            .expect("an authority")
    }

    #[test]
    fn a_certificate_says_what_was_asked_and_lasts_as_long_as_allowed() {
        let names = Names::new(Profile::default());
        let mut request = shape::tests::request(
            &names.node_serving_signer(),
            "system:nodes",
            "system:node:n1",
            &["n1"],
            "server auth",
        );
        let shape = shape::of(names, &request).expect("allowed").expect("known");
        let now = 1_800_000_000;
        for (asked, expected) in
            [(None, 86_400), (Some(7200), 7200), (Some(1), LIFE_MIN), (Some(i32::MAX), 86_400)]
        {
            request.spec.expiration_seconds = asked;
            let pem = authority(86_400)
                .sign(&request.spec, &shape, Time::from_unix(now))
                .expect("signed");
            let (_, block) = x509_parser::pem::parse_x509_pem(&pem).expect("PEM");
            let certificate = block.parse_x509().expect("a certificate");
            assert_eq!(certificate.validity().not_after.timestamp(), now + expected, "{asked:?}");
            assert_eq!(certificate.validity().not_before.timestamp(), now - BACKDATED);
            let name =
                certificate.subject().iter_common_name().next().and_then(|name| name.as_str().ok());
            assert_eq!(name, Some("system:node:n1"));
            let auth = certificate.extended_key_usage().expect("read").expect("there").value;
            assert!(auth.server_auth && !auth.client_auth);
            assert!(certificate.subject_alternative_name().expect("read").is_some());
            assert!(!certificate.is_ca());
        }
        request.spec.request = b"nonsense".to_vec();
        assert!(authority(1).sign(&request.spec, &shape, Time::from_unix(now)).is_err());
    }
}
