//! The subject of a certificate: attributes in order, of which every type but the common name may be there several times. The library that makes certificates
//! holds one value of a type, so the subject is written here, into the certificate that it has made.

use apiserver_token::der;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rcgen::{Issuer, KeyPair, SigningKey as _};
use x509_parser::der_parser::oid::Oid;
use x509_parser::oid_registry as oid;
use x509_parser::prelude::FromDer as _;
use x509_parser::x509::X509Name;

use super::request::RequestError;

/// Tags of DER: an object identifier, the two kinds of text that a subject is written in, a list and a set.
const OID: u8 = 0x06;
const UTF8: u8 = 0x0c;
const PRINTABLE: u8 = 0x13;
const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const BIT_STRING: u8 = 0x03;

/// Characters of an encoded line in PEM (RFC 7468, section 2).
const LINE_LEN: usize = 64;

/// The attributes of a subject, texts only.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CertificateSubject(Vec<(Oid<'static>, String)>);

impl CertificateSubject {
    /// Reads the attributes of a request.
    ///
    /// # Errors
    /// One is no text or has control characters; there are two common names, of which readers take the first or the last.
    pub fn read(name: &X509Name<'_>) -> Result<Self, RequestError> {
        let mut subject = Self::default();
        for attribute in name.iter_attributes() {
            let text = attribute.as_str().ok().filter(|text| !text.chars().any(char::is_control));
            let text = text.ok_or(RequestError::AttributeValue)?;
            let kind = attribute.attr_type();
            if *kind == oid::OID_X509_COMMON_NAME && subject.values(kind).next().is_some() {
                return Err(RequestError::TwoCommonNames);
            }
            subject.0.push((kind.to_owned(), text.to_owned()));
        }
        Ok(subject)
    }

    /// Whether it has no attributes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The common name; empty if there is none.
    #[must_use]
    pub fn common_name(&self) -> &str {
        self.values(&oid::OID_X509_COMMON_NAME).next().unwrap_or_default()
    }

    /// The organizations, which are the groups of a user.
    #[must_use]
    pub fn organizations(&self) -> Vec<&str> {
        self.values(&oid::OID_X509_ORGANIZATION_NAME).collect()
    }

    fn values(&self, wanted: &Oid<'_>) -> impl Iterator<Item = &str> {
        self.0.iter().filter(move |(kind, _)| kind == wanted).map(|(_, text)| text.as_str())
    }

    fn der(&self) -> Vec<u8> {
        let attributes = self.0.iter().map(|(kind, text)| {
            let tag = if text.chars().all(is_printable) { PRINTABLE } else { UTF8 };
            let kind = der::element(OID, &[kind.as_bytes()]);
            let pair = der::element(SEQUENCE, &[&kind, &der::element(tag, &[text.as_bytes()])]);
            der::element(SET, &[&pair])
        });
        der::element(SEQUENCE, &[&attributes.collect::<Vec<_>>().concat()])
    }
}

/// Whether a PrintableString may have it (X.680, section 41.4).
fn is_printable(character: char) -> bool {
    character.is_ascii_alphanumeric() || " '()+,-./:=?".contains(character)
}

/// The certificate with another subject, signed again by its issuer, as PEM.
///
/// # Errors
/// It cannot be signed, or is no certificate.
pub fn with_subject(
    certificate: &[u8],
    subject: &CertificateSubject,
    issuer: &Issuer<'static, KeyPair>,
) -> Result<String, rcgen::Error> {
    let body =
        body_with_subject(certificate, subject).ok_or(rcgen::Error::CouldNotParseCertificate)?;
    let signature = issuer.key().sign(&body.content)?;
    let bits = der::element(BIT_STRING, &[&[0], &signature]);
    Ok(pem(&der::element(SEQUENCE, &[&body.content, &body.algorithm, &bits])))
}

/// What is signed of a certificate, and how.
struct Body {
    content: Vec<u8>,
    /// The signature's algorithm, which stands in the content, too.
    algorithm: Vec<u8>,
}

fn body_with_subject(certificate: &[u8], subject: &CertificateSubject) -> Option<Body> {
    let (_, parsed) = x509_parser::parse_x509_certificate(certificate).ok()?;
    let whole = parsed.tbs_certificate.as_ref();
    let old = parsed.tbs_certificate.subject.as_raw();
    let (fields, _) = x509_parser::asn1_rs::Header::from_der(whole).ok()?;
    let before = whole.len().checked_sub(fields.len())?;
    let begin = (old.as_ptr() as usize).checked_sub(whole.as_ptr() as usize)?;
    let end = begin.checked_add(old.len())?;
    let content = [whole.get(before..begin)?, &subject.der(), whole.get(end..)?].concat();
    // Content, algorithm and signature are the three fields of a certificate.
    let (all, _) = x509_parser::asn1_rs::Header::from_der(certificate).ok()?;
    let behind = all.get(whole.len()..)?;
    let (rest, header) = x509_parser::asn1_rs::Header::from_der(behind).ok()?;
    let length =
        behind.len().checked_sub(rest.len())?.checked_add(header.length().definite().ok()?)?;
    Some(Body {
        content: der::element(SEQUENCE, &[&content]),
        algorithm: behind.get(..length)?.to_vec(),
    })
}

fn pem(der: &[u8]) -> String {
    let encoded = STANDARD.encode(der);
    let mut text = "-----BEGIN CERTIFICATE-----\n".to_owned();
    for line in encoded.as_bytes().chunks(LINE_LEN) {
        text.extend(line.iter().copied().map(char::from));
        text.push('\n');
    }
    text + "-----END CERTIFICATE-----\n"
}

#[cfg(test)]
mod tests;
