//! The cluster's CA: signs certificates.

use std::time::Duration;

use apiserver_token::{KeyError, pkcs8_from_pem};
use proto_api::Time;
use proto_api::certificates::v1::CertificateSigningRequestSpec;
use rcgen::{
    CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};
use time::OffsetDateTime;

use super::signer_policy::ApprovedRequest;
use super::subject::with_subject;

/// Tolerated clock skew: certificates are valid from this long before they are signed.
const BACKDATED: i64 = 300;
/// Minimum validity that can be requested, in seconds.
const LIFE_MIN: i64 = 600;

/// The certificate authority of `--cluster-signing-cert-file` and its key.
pub struct CertificateAuthority {
    issuer: Issuer<'static, KeyPair>,
    /// Maximum validity of a certificate, in seconds.
    life_max: i64,
    /// Expiry of the CA's certificate, in seconds since 1970.
    ends: i64,
}

/// Why the CA cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CertificateAuthorityError {
    /// A file cannot be read.
    #[error("cannot read {0}")]
    Read(String, #[source] std::io::Error),
    /// The key cannot be parsed.
    #[error("expected a private key in PEM")]
    Key(#[source] KeyError),
    /// Certificate or key cannot be used.
    #[error("expected a CA certificate and its key in PEM")]
    Pair(#[from] rcgen::Error),
    /// The certificate cannot be parsed.
    #[error("expected a CA certificate in PEM")]
    Certificate,
    /// The key belongs to another certificate.
    #[error("the private key does not match the public key of the CA certificate")]
    OtherKey,
}

/// Why a certificate was not signed.
#[derive(Debug, thiserror::Error)]
pub enum SignError {
    /// The certificate cannot be encoded or signed.
    #[error("cannot encode the certificate")]
    Encode(#[from] rcgen::Error),
    /// The expiry is out of range.
    #[error("the expiry of the certificate is out of range")]
    Time(#[from] time::error::ComponentRange),
    /// The CA's certificate has expired.
    #[error("the CA certificate has expired")]
    Expired,
}

impl CertificateAuthority {
    /// The CA of a certificate and a key in PEM.
    ///
    /// # Errors
    /// They cannot be used, or the key is not the certificate's.
    pub fn new(
        certificate: &str,
        key: &str,
        life_max: Duration,
    ) -> Result<Self, CertificateAuthorityError> {
        let (_, block) = x509_parser::pem::parse_x509_pem(certificate.as_bytes())
            .map_err(|_| CertificateAuthorityError::Certificate)?;
        let parsed = block.parse_x509().map_err(|_| CertificateAuthorityError::Certificate)?;
        let ends = parsed.validity().not_after.timestamp();
        let key = pkcs8_from_pem(key.as_bytes()).map_err(CertificateAuthorityError::Key)?;
        let key = KeyPair::try_from(key)?;
        if key.public_key_raw() != parsed.public_key().subject_public_key.data.as_ref() {
            return Err(CertificateAuthorityError::OtherKey);
        }
        let issuer = Issuer::from_ca_cert_pem(certificate, key)?;
        Ok(Self { issuer, life_max: i64::try_from(life_max.as_secs()).unwrap_or(i64::MAX), ends })
    }

    /// Signs a certificate for a checked request, as PEM. Key and names are the decoded ones; `spec` has the checked usages and the validity.
    ///
    /// # Errors
    /// The CA has expired, or the certificate cannot be encoded.
    pub fn sign(
        &self,
        spec: &CertificateSigningRequestSpec,
        checked: &ApprovedRequest,
        now: Time,
    ) -> Result<Vec<u8>, SignError> {
        let asked = &checked.request.asked;
        let mut params = CertificateParams::default();
        // The subject comes in the end. Without any, the alternative names are critical (RFC 5280, section 4.2.1.6).
        params.distinguished_name = rcgen::DistinguishedName::new();
        if !asked.subject.is_empty() {
            params.distinguished_name.push(DnType::CommonName, "subject");
        }
        params.subject_alt_names = asked.alternative_names()?;
        let now = now.unix().unwrap_or(0);
        if self.ends <= now {
            return Err(SignError::Expired);
        }
        let life = spec
            .expiration_seconds
            .map_or(self.life_max, i64::from)
            .clamp(LIFE_MIN, self.life_max.max(LIFE_MIN));
        params.not_before = OffsetDateTime::from_unix_timestamp(now.saturating_sub(BACKDATED))?;
        params.not_after =
            OffsetDateTime::from_unix_timestamp(now.saturating_add(life).min(self.ends))?;
        params.is_ca = IsCa::ExplicitNoCa;
        for name in &spec.usages {
            match usage(name) {
                Some(KeyUsage::Key(usage)) => params.key_usages.push(usage),
                Some(KeyUsage::Extended(usage)) => params.extended_key_usages.push(usage),
                None => {}
            }
        }
        params.use_authority_key_identifier_extension = true;
        let certificate = params.signed_by(&checked.request.key, &self.issuer)?;
        Ok(with_subject(certificate.der(), &asked.subject, &self.issuer)?.into_bytes())
    }
}

/// A usage of a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyUsage {
    /// A bit of the extension keyUsage.
    Key(KeyUsagePurpose),
    /// A purpose of the extension extKeyUsage.
    Extended(ExtendedKeyUsagePurpose),
}

/// Parses the name of a usage in certificate requests. The usages of CAs are not allowed.
pub fn usage(name: &str) -> Option<KeyUsage> {
    use ExtendedKeyUsagePurpose as Extended;
    use KeyUsagePurpose as Key;
    let key = match name {
        "digital signature" | "signing" => Key::DigitalSignature,
        "content commitment" => Key::ContentCommitment,
        "key encipherment" => Key::KeyEncipherment,
        "key agreement" => Key::KeyAgreement,
        "data encipherment" => Key::DataEncipherment,
        "encipher only" => Key::EncipherOnly,
        "decipher only" => Key::DecipherOnly,
        _ => {
            let extended = match name {
                "any" => Extended::Any,
                "server auth" => Extended::ServerAuth,
                "client auth" => Extended::ClientAuth,
                "code signing" => Extended::CodeSigning,
                "email protection" | "s/mime" => Extended::EmailProtection,
                "timestamping" => Extended::TimeStamping,
                "ocsp signing" => Extended::OcspSigning,
                _ => return None,
            };
            return Some(KeyUsage::Extended(extended));
        }
    };
    Some(KeyUsage::Key(key))
}

#[cfg(test)]
pub(super) mod tests {
    use proto_api::names::{Names, Profile};
    use rcgen::BasicConstraints;
    use x509_parser::certification_request::X509CertificationRequest;
    use x509_parser::prelude::FromDer;

    use super::*;
    use crate::certificates::signer_policy;

    /// The certificate of a new CA and its key, in PEM.
    pub(in super::super) fn pair() -> (String, String) {
        let key = KeyPair::generate().expect("key");
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        (params.self_signed(&key).expect("signed").pem(), key.serialize_pem())
    }

    fn authority(life_max: u64) -> CertificateAuthority {
        let (certificate, key) = pair();
        CertificateAuthority::new(&certificate, &key, Duration::from_secs(life_max))
            .expect("an authority")
    }

    #[test]
    fn a_certificate_has_the_requested_subject_and_at_most_the_allowed_lifetime() {
        let names = Names::new(Profile::default());
        let mut request = signer_policy::tests::request(
            &names.node_serving_signer(),
            "system:nodes",
            "system:node:n1",
            &["n1"],
            "server auth",
        );
        let checked =
            signer_policy::check_request(names, &request).expect("allowed").expect("known");
        let now = 1_800_000_000;
        for (asked, expected) in
            [(None, 86_400), (Some(7200), 7200), (Some(1), LIFE_MIN), (Some(i32::MAX), 86_400)]
        {
            request.spec.expiration_seconds = asked;
            let pem = authority(86_400)
                .sign(&request.spec, &checked, Time::from_unix(now))
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
            let names = certificate.subject_alternative_name().expect("read").expect("there");
            assert!(!names.critical);
            assert!(!certificate.is_ca());
        }
        // No certificate outlives the CA's.
        let late = Time::from_unix(authority(1).ends);
        assert!(matches!(
            authority(1).sign(&request.spec, &checked, late),
            Err(SignError::Expired)
        ));
    }

    /// PEM parsers differ in whether a block must start at a line's start, so that one block could be checked and another signed.
    #[test]
    fn the_signed_request_is_the_one_that_was_checked() {
        let names = Names::new(Profile::Kubernetes);
        let evil = signer_policy::tests::pem("system:masters", "root", |_| {});
        let signer = names.node_client_signer();
        let mut request = signer_policy::tests::request(
            &signer,
            "system:nodes",
            "system:node:n1",
            &[],
            "client auth",
        );
        let good = String::from_utf8(request.spec.request.clone()).expect("text");
        let attack = format!("x{evil}\n{good}");
        let (_, block) = x509_parser::pem::parse_x509_pem(attack.as_bytes()).expect("PEM");
        let seen = X509CertificationRequest::from_der(&block.contents).expect("a request").1;
        let subject = seen.certification_request_info.subject.to_string();
        assert_eq!(subject, "O=system:nodes, CN=system:node:n1");
        let signed = rcgen::CertificateSigningRequestParams::from_pem(&attack).expect("a request");
        let masters = rcgen::DnValue::Utf8String("system:masters".to_owned());
        let name = signed.params.distinguished_name;
        assert_eq!(name.get(&rcgen::DnType::OrganizationName), Some(&masters));
        for text in
            [attack, format!("x{good}\n{evil}"), format!("{good}{evil}"), format!("x{good}")]
        {
            request.spec.request = text.into_bytes();
            assert!(
                signer_policy::check_request(names, &request).is_err(),
                "two blocks, or text around one"
            );
        }
    }

    #[test]
    fn a_certificate_has_the_requested_usages() {
        let names = Names::new(Profile::Kubernetes);
        let mut request = signer_policy::tests::request(
            &names.client_signer(),
            "devs",
            "jane",
            &[],
            "client auth",
        );
        request.spec.usages = vec!["client auth".to_owned()];
        let checked =
            signer_policy::check_request(names, &request).expect("allowed").expect("known");
        let now = Time::from_unix(1_800_000_000);
        let signed = authority(86_400).sign(&request.spec, &checked, now).expect("signed");
        let (_, block) = x509_parser::pem::parse_x509_pem(&signed).expect("PEM");
        let certificate = block.parse_x509().expect("a certificate");
        assert!(certificate.key_usage().expect("read").is_none());
        let auth = certificate.extended_key_usage().expect("read").expect("there").value;
        assert!(auth.client_auth && !auth.server_auth);
        assert!(usage("cert sign").is_none() && usage("crl sign").is_none());
    }
}
