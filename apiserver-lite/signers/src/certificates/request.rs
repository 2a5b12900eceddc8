//! Decodes a certificate request in PEM to names and key. Pure.
//!
//! Nothing else of the request enters the certificate, so that what is checked is what is signed.

use std::net::IpAddr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rcgen::{SanType, SubjectPublicKeyInfo};
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::oid_registry as oid;
use x509_parser::prelude::FromDer;
use x509_parser::public_key::PublicKey;

use super::subject::CertificateSubject;

/// Maximum length of a request in bytes of PEM.
const REQUEST_MAX: usize = 64 << 10;
/// Maximum number of alternative names.
const NAMES_MAX: usize = 100;
/// Minimum and maximum bits of an RSA modulus.
const RSA_BITS: std::ops::RangeInclusive<usize> = 2048..=8192;

const BEGIN: &str = "-----BEGIN CERTIFICATE REQUEST-----";
const END: &str = "-----END CERTIFICATE REQUEST-----";

/// Subject and subjectAltNames of a certificate request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestedNames {
    /// Attributes of the subject: the user and its groups.
    pub subject: CertificateSubject,
    /// Host names.
    pub dns: Vec<String>,
    pub addresses: Vec<IpAddr>,
    /// Mail addresses.
    pub emails: Vec<String>,
    pub uris: Vec<String>,
}

/// A decoded request whose signature has been verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateRequest {
    /// The names.
    pub asked: RequestedNames,
    /// The public key.
    pub key: SubjectPublicKeyInfo,
}

/// Why a request cannot be signed by any signer: its requester has to send another one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    #[error("spec.request: longer than {REQUEST_MAX} bytes")]
    TooLong,
    /// Another PEM block, or none.
    #[error("PEM block type must be CERTIFICATE REQUEST")]
    BlockType,
    /// The block is not base64, or there are two.
    #[error("spec.request: not one PEM block of base64")]
    Base64,
    /// The block holds no certificate request.
    #[error("spec.request: cannot parse the certificate request")]
    Malformed,
    /// The block holds more than the request.
    #[error("spec.request: data after the certificate request")]
    TrailingData,
    /// Signed with SHA-1.
    #[error("spec.request: signatures with SHA-1 are not supported")]
    Sha1,
    /// The RSA key is too short or too long.
    #[error("spec.request: an RSA key of {0} bits, expected {least} to {most}", least = RSA_BITS.start(), most = RSA_BITS.end())]
    RsaBits(usize),
    /// The key is of another kind.
    #[error("spec.request: the algorithm of the public key is not supported")]
    KeyKind,
    /// Signed with another key.
    #[error("spec.request: the signature does not match the public key")]
    Signature,
    /// An attribute of the subject is no text.
    #[error("the subject has an attribute that is not a string")]
    AttributeValue,
    /// Readers differ in which of them they take.
    #[error("the subject has more than one common name")]
    TwoCommonNames,
    /// Too many alternative names.
    #[error("more than {NAMES_MAX} subjectAltNames")]
    TooManyNames,
    /// An alternative name is of another kind.
    #[error("the type of a subjectAltName is not supported")]
    NameKind,
    /// A certificate cannot hold it.
    #[error("the subjectAltName {0:?} is not ASCII")]
    NotAscii(String),
    /// An address of a wrong length.
    #[error("an IP subjectAltName has neither 4 nor 16 bytes")]
    AddressLength,
}

impl RequestedNames {
    /// The alternative names of the certificate.
    ///
    /// # Errors
    /// A name is not ASCII.
    pub fn alternative_names(&self) -> Result<Vec<SanType>, rcgen::Error> {
        let dns = self.dns.iter().map(|name| Ok(SanType::DnsName(name.as_str().try_into()?)));
        let addresses = self.addresses.iter().map(|address| Ok(SanType::IpAddress(*address)));
        let emails =
            self.emails.iter().map(|name| Ok(SanType::Rfc822Name(name.as_str().try_into()?)));
        let uris = self.uris.iter().map(|name| Ok(SanType::URI(name.as_str().try_into()?)));
        dns.chain(addresses).chain(emails).chain(uris).collect()
    }
}

/// Decodes a request.
///
/// # Errors
/// What is invalid.
pub fn read(pem: &[u8]) -> Result<CertificateRequest, RequestError> {
    let der = decode(pem)?;
    let parsed = X509CertificationRequest::from_der(&der);
    let (rest, parsed) = parsed.map_err(|_| RequestError::Malformed)?;
    if !rest.is_empty() {
        return Err(RequestError::TrailingData);
    }
    let key = key_of(&parsed)?;
    parsed.verify_signature().map_err(|_| RequestError::Signature)?;
    let mut asked = RequestedNames {
        subject: CertificateSubject::read(&parsed.certification_request_info.subject)?,
        ..RequestedNames::default()
    };
    for extension in parsed.requested_extensions().into_iter().flatten() {
        if let ParsedExtension::SubjectAlternativeName(names) = extension {
            names.general_names.iter().try_for_each(|name| asked.add(name))?;
        }
    }
    Ok(CertificateRequest { asked, key })
}

/// Decodes the only PEM block, which may be surrounded by white space.
fn decode(pem: &[u8]) -> Result<Vec<u8>, RequestError> {
    if pem.len() > REQUEST_MAX {
        return Err(RequestError::TooLong);
    }
    let text = std::str::from_utf8(pem).ok().map(str::trim_ascii);
    let body = text.and_then(|text| text.strip_prefix(BEGIN)?.strip_suffix(END));
    let body = body.ok_or(RequestError::BlockType)?;
    // The decoder rejects anything but base64, including a second block.
    let body: String = body.split_ascii_whitespace().collect();
    STANDARD.decode(body).map_err(|_| RequestError::Base64)
}

/// Decodes the key if its type is supported.
fn key_of(request: &X509CertificationRequest<'_>) -> Result<SubjectPublicKeyInfo, RequestError> {
    let info = &request.certification_request_info.subject_pki;
    let algorithm = &request.signature_algorithm.algorithm;
    if [oid::OID_PKCS1_SHA1WITHRSA, oid::OID_SHA1_WITH_RSA].contains(algorithm) {
        return Err(RequestError::Sha1);
    }
    match info.parsed() {
        Ok(PublicKey::RSA(key)) if RSA_BITS.contains(&key.key_size()) => {}
        Ok(PublicKey::RSA(key)) => return Err(RequestError::RsaBits(key.key_size())),
        Ok(PublicKey::EC(_) | PublicKey::Unknown(_)) => {}
        _ => return Err(RequestError::KeyKind),
    }
    // P-256, P-384 and Ed25519 besides RSA: signatures of other types cannot be verified.
    SubjectPublicKeyInfo::from_der(info.raw).map_err(|_| RequestError::KeyKind)
}

impl RequestedNames {
    fn add(&mut self, name: &GeneralName<'_>) -> Result<(), RequestError> {
        let counts = [self.dns.len(), self.addresses.len(), self.emails.len(), self.uris.len()];
        if counts.iter().sum::<usize>() >= NAMES_MAX {
            return Err(RequestError::TooManyNames);
        }
        match name {
            GeneralName::DNSName(name) => self.dns.push(ascii(name)?),
            GeneralName::RFC822Name(name) => self.emails.push(ascii(name)?),
            GeneralName::URI(name) => self.uris.push(ascii(name)?),
            GeneralName::IPAddress(bytes) => self.addresses.push(address(bytes)?),
            _ => return Err(RequestError::NameKind),
        }
        Ok(())
    }
}

/// The parser takes any UTF-8.
fn ascii(name: &str) -> Result<String, RequestError> {
    if name.is_ascii() { Ok(name.to_owned()) } else { Err(RequestError::NotAscii(name.to_owned())) }
}

fn address(bytes: &[u8]) -> Result<IpAddr, RequestError> {
    if let Ok(bytes) = <[u8; 4]>::try_from(bytes) {
        return Ok(bytes.into());
    }
    let bytes = <[u8; 16]>::try_from(bytes);
    Ok(bytes.map_err(|_| RequestError::AddressLength)?.into())
}

#[cfg(test)]
mod tests;
