//! What is written is what was read.

use rcgen::{CertificateParams, DnType, IsCa, PublicKeyData as _};
use x509_parser::certification_request::X509CertificationRequest;

use super::*;

fn issuer() -> Issuer<'static, KeyPair> {
    let key = KeyPair::generate().expect("key");
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    Issuer::new(params, key)
}

/// Made with `openssl req -new -newkey ed25519 -utf8 -multivalue-rdn -subj "/C=IT/O=dev/O=ops/OU=a+OU=b/DC=example/emailAddress=a@b.c/serialNumber=1/CN=jané"`.
const REQUEST: &str = include_str!("many-attributes.pem");

#[test]
fn every_attribute_of_a_request_is_in_the_certificate() {
    let (_, block) = x509_parser::pem::parse_x509_pem(REQUEST.as_bytes()).expect("PEM");
    let (_, request) = X509CertificationRequest::from_der(&block.contents).expect("a request");
    let asked = &request.certification_request_info.subject;
    let subject = CertificateSubject::read(asked).expect("read");
    assert_eq!(subject.organizations(), ["dev", "ops"]);
    assert_eq!(subject.common_name(), "jan\u{e9}");

    let issuer = issuer();
    let key = KeyPair::generate().expect("key");
    let certificate = CertificateParams::default().signed_by(&key, &issuer).expect("signed");
    let text = with_subject(certificate.der(), &subject, &issuer).expect("signed");
    let (_, block) = x509_parser::pem::parse_x509_pem(text.as_bytes()).expect("PEM");
    let (rest, found) = x509_parser::parse_x509_certificate(&block.contents).expect("DER");
    assert!(rest.is_empty());
    let texts = |name: &X509Name<'_>| -> Vec<(String, String)> {
        let one = |one: &x509_parser::x509::AttributeTypeAndValue<'_>| {
            (one.attr_type().to_id_string(), one.as_str().expect("text").to_owned())
        };
        name.iter_attributes().map(one).collect()
    };
    assert_eq!(texts(found.subject()), texts(asked));
    assert_eq!(texts(found.subject()).len(), 9);
    assert_eq!(found.public_key().raw, key.subject_public_key_info());
}

#[test]
fn the_issuer_has_signed_the_whole() {
    let issuer = issuer();
    let own = CertificateParams::default().self_signed(issuer.key()).expect("signed");
    let (_, own) = x509_parser::parse_x509_certificate(own.der()).expect("DER");
    let key = KeyPair::generate().expect("key");
    // Long and short subjects: lengths of one, two and three bytes.
    for length in [0, 1, 100, 200, 300, 70_000] {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "x".repeat(length));
        let request = params.serialize_request(&key).expect("request");
        let (_, request) = X509CertificationRequest::from_der(request.der()).expect("a request");
        let subject =
            CertificateSubject::read(&request.certification_request_info.subject).expect("read");
        let certificate = CertificateParams::default().signed_by(&key, &issuer).expect("signed");
        let text = with_subject(certificate.der(), &subject, &issuer).expect("signed");
        let (_, block) = x509_parser::pem::parse_x509_pem(text.as_bytes()).expect("PEM");
        let (_, found) = x509_parser::parse_x509_certificate(&block.contents).expect("DER");
        found.verify_signature(Some(own.public_key())).expect("signed by the issuer");
        assert_eq!(
            CertificateSubject::read(found.subject()).expect("read").common_name().len(),
            length
        );
    }
}
