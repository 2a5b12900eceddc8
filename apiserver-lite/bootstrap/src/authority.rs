//! A certificate authority of the cluster: made, taken from given files, or external (without its key); and what it issues.

use std::fs;
use std::io::ErrorKind;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use apiserver_token::pkcs8_from_pem;
use proto_daemon::{exit, private_files};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, PublicKeyData as _, SanType,
};
use rustls_pki_types::pem::PemObject as _;
use time::{Duration, OffsetDateTime};
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::X509Certificate;

use crate::error::BootstrapError;

/// How long an authority's certificate is valid, as kubeadm's.
pub const AUTHORITY_DAYS: i64 = 3650;
/// How long all others are valid, as kubeadm's.
pub const LEAF_DAYS: i64 = 365;
/// Mode of certificates and public keys.
const PUBLIC_MODE: u32 = 0o644;

/// What a certificate is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CertificateUsage {
    /// A server shows it.
    Server,
    /// A client shows it: the common name is the user and each organization a group.
    Client,
}

/// The content of a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leaf {
    pub common_name: String,
    pub organizations: Vec<String>,
    /// DNS names and addresses of a server.
    pub alternative_names: Vec<String>,
    /// What it is for.
    pub usage: CertificateUsage,
}

impl Leaf {
    /// A client's.
    pub fn client(user: &str, groups: &[&str]) -> Self {
        Self {
            common_name: user.to_owned(),
            organizations: groups.iter().map(|group| (*group).to_owned()).collect(),
            alternative_names: Vec::new(),
            usage: CertificateUsage::Client,
        }
    }

    /// A server's.
    pub fn server(common_name: &str, names: &[String]) -> Self {
        Self {
            common_name: common_name.to_owned(),
            organizations: Vec::new(),
            alternative_names: names.to_vec(),
            usage: CertificateUsage::Server,
        }
    }
}

/// A certificate and its key as PEM texts.
#[derive(Clone)]
pub struct CertificatePair {
    pub certificate: String,
    /// Its private key.
    pub key: String,
}

/// What is read of a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateFacts {
    pub common_name: String,
    pub organizations: Vec<String>,
    /// DNS names and addresses.
    pub alternative_names: Vec<String>,
    /// Start of its validity.
    pub begins: OffsetDateTime,
    /// End of its validity.
    pub ends: OffsetDateTime,
    /// Whether it is an authority's.
    pub is_authority: bool,
    /// `sha256:` and the hash of its public key, as joining machines pin it.
    pub public_key_hash: String,
}

/// A certificate authority in files; without its key it is external and issues nothing here.
pub struct Authority {
    path: PathBuf,
    certificate: String,
    issuer: Option<Issuer<'static, KeyPair>>,
}

impl Authority {
    /// The authority in `<stem>.crt` and `<stem>.key` of a directory. It is made if there is none; a key alone is one whose certificate was not written yet;
    /// a certificate alone is an external authority, which issues nothing here.
    ///
    /// # Errors
    /// The files cannot be read, written or used.
    pub fn ensure(
        dir: &Path,
        stem: &str,
        common_name: &str,
        now: OffsetDateTime,
    ) -> Result<Self, BootstrapError> {
        let (path, key) = (dir.join(format!("{stem}.crt")), dir.join(format!("{stem}.key")));
        if read(&path)?.is_none() {
            let pair = match read(&key)? {
                Some(text) => key_pair(&key, &text)?,
                None => {
                    let pair = KeyPair::generate().map_err(BootstrapError::make(stem))?;
                    write_key(&key, &pair.serialize_pem())?;
                    pair
                }
            };
            let params = authority_params(common_name, now).map_err(BootstrapError::make(stem))?;
            let certificate = params.self_signed(&pair).map_err(BootstrapError::make(stem))?;
            write_public(&path, &certificate.pem())?;
        }
        Self::load(dir, stem, now)
    }

    /// As [`Authority::ensure`], of files that have to exist.
    ///
    /// # Errors
    /// The files cannot be read or used.
    pub fn load(dir: &Path, stem: &str, now: OffsetDateTime) -> Result<Self, BootstrapError> {
        let (path, key) = (dir.join(format!("{stem}.crt")), dir.join(format!("{stem}.key")));
        let certificate = read(&path)?.ok_or_else(|| missing(&path))?;
        let facts = facts(&path, &certificate)?;
        if !facts.is_authority {
            return Err(BootstrapError::unusable(&path, "is not a certificate authority"));
        }
        check_time(&path, &facts, now)?;
        let issuer = match read(&key)? {
            Some(text) => {
                private_files::make_private(&key).map_err(BootstrapError::file(&key))?;
                let pair = key_pair(&key, &text)?;
                if !is_pair(&path, &certificate, &key, &text)? {
                    return Err(BootstrapError::unusable(
                        &key,
                        format!("is not the key of {}", path.display()),
                    ));
                }
                let issuer = Issuer::from_ca_cert_pem(&certificate, pair);
                Some(issuer.map_err(BootstrapError::make(stem))?)
            }
            None => None,
        };
        Ok(Self { path, certificate, issuer })
    }

    /// The certificate of the authority in PEM.
    pub fn certificate(&self) -> &str {
        &self.certificate
    }

    /// Whether its key is elsewhere.
    pub fn is_external(&self) -> bool {
        self.issuer.is_none()
    }

    /// Issues a certificate for a new key.
    ///
    /// # Errors
    /// The authority is external, or the content makes no certificate.
    pub fn issue(
        &self,
        leaf: &Leaf,
        days: i64,
        now: OffsetDateTime,
    ) -> Result<CertificatePair, BootstrapError> {
        let Some(issuer) = &self.issuer else {
            return Err(BootstrapError::unusable(
                &self.path,
                format!(
                    "there is no key beside it, so that {} cannot be issued: issue it elsewhere and put it here, or add the key",
                    leaf.common_name
                ),
            ));
        };
        if let [_, _, ..] = &*leaf.organizations {
            return Err(BootstrapError::Invalid(format!(
                "{} is in several groups ({}), and a certificate of one group at most is issued here: issue it with the authority's own tools",
                leaf.common_name,
                leaf.organizations.join(", ")
            )));
        }
        let made = BootstrapError::make;
        let key = KeyPair::generate().map_err(made(&leaf.common_name))?;
        let params = leaf_params(leaf, days, now).map_err(made(&leaf.common_name))?;
        let certificate = params.signed_by(&key, issuer).map_err(made(&leaf.common_name))?;
        Ok(CertificatePair { certificate: certificate.pem(), key: key.serialize_pem() })
    }

    /// Checks that a certificate was issued by this authority and is what it should be now.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn check(
        &self,
        path: &Path,
        certificate: &str,
        leaf: &Leaf,
        now: OffsetDateTime,
    ) -> Result<(), BootstrapError> {
        let facts = facts(path, certificate)?;
        check_time(path, &facts, now)?;
        if let Some(problem) = difference(&facts, leaf) {
            return Err(BootstrapError::unusable(path, problem));
        }
        let own = parse_der(&self.path, &self.certificate)?;
        let der = parse_der(path, certificate)?;
        let (own, der) = (x509(&self.path, &own)?, x509(path, &der)?);
        der.verify_signature(Some(own.public_key())).map_err(|_| {
            BootstrapError::unusable(path, format!("was not issued by {}", self.path.display()))
        })
    }
}

/// A certificate to issue: what it says, by whom, when and for how long.
pub struct Issuance<'a> {
    /// Its content.
    pub leaf: &'a Leaf,
    /// Who issues it.
    pub authority: &'a Authority,
    /// How long it is valid.
    pub days: i64,
    /// The time.
    pub now: OffsetDateTime,
}

impl Issuance<'_> {
    /// Issues it for a new key.
    ///
    /// # Errors
    /// As [`Authority::issue`].
    pub fn issue(&self) -> Result<CertificatePair, BootstrapError> {
        self.authority.issue(self.leaf, self.days, self.now)
    }

    /// Checks that a certificate is as good as this one.
    ///
    /// # Errors
    /// As [`Authority::check`].
    pub fn check(&self, path: &Path, certificate: &str) -> Result<(), BootstrapError> {
        self.authority.check(path, certificate, self.leaf, self.now)
    }
}

/// What of a certificate differs from what it should be: the subject, or names that are missing. More names are fine.
fn difference(facts: &CertificateFacts, leaf: &Leaf) -> Option<String> {
    if facts.common_name != leaf.common_name || facts.organizations != leaf.organizations {
        return Some(format!(
            "is for {} {:?}, expected {} {:?}: remove it, or give another",
            facts.common_name, facts.organizations, leaf.common_name, leaf.organizations
        ));
    }
    let lacks = |name: &&String| !facts.alternative_names.contains(name);
    let lacking: Vec<&str> =
        leaf.alternative_names.iter().filter(lacks).map(String::as_str).collect();
    (!lacking.is_empty())
        .then(|| format!("does not name {}: remove it, or give another", lacking.join(", ")))
}

fn check_time(
    path: &Path,
    facts: &CertificateFacts,
    now: OffsetDateTime,
) -> Result<(), BootstrapError> {
    if now < facts.begins {
        let text = format!("is not valid before {}: look at the clock", facts.begins);
        return Err(BootstrapError::unusable(path, text));
    }
    if now > facts.ends {
        let text = format!(
            "has expired at {}: look at the clock; `orchadm certs renew` renews those of this cluster's authority; copy others here after their renewal",
            facts.ends
        );
        return Err(BootstrapError::unusable(path, text));
    }
    Ok(())
}

/// Reads a certificate's content.
///
/// # Errors
/// It is no PEM of a certificate; `path` names it.
pub fn facts(path: &Path, pem: &str) -> Result<CertificateFacts, BootstrapError> {
    let der = parse_der(path, pem)?;
    let certificate = x509(path, &der)?;
    let subject = certificate.subject();
    let text = |value: &x509_parser::x509::AttributeTypeAndValue<'_>| {
        value.as_str().unwrap_or_default().to_owned()
    };
    let names = certificate.subject_alternative_name().ok().flatten();
    let names = names.iter().flat_map(|names| &names.value.general_names);
    let time = |at: x509_parser::time::ASN1Time| {
        OffsetDateTime::from_unix_timestamp(at.timestamp()).unwrap_or(OffsetDateTime::UNIX_EPOCH)
    };
    Ok(CertificateFacts {
        common_name: subject.iter_common_name().next().map(text).unwrap_or_default(),
        organizations: subject.iter_organization().map(text).collect(),
        alternative_names: names.filter_map(name_text).collect(),
        begins: time(certificate.validity().not_before),
        ends: time(certificate.validity().not_after),
        is_authority: certificate.is_ca(),
        public_key_hash: format!("sha256:{}", proto_api::sha256_hex(certificate.public_key().raw)),
    })
}

fn name_text(name: &GeneralName<'_>) -> Option<String> {
    match name {
        GeneralName::DNSName(name) => Some((*name).to_owned()),
        GeneralName::IPAddress(bytes) => match **bytes {
            [a, b, c, d] => Some(IpAddr::from([a, b, c, d]).to_string()),
            _ => <[u8; 16]>::try_from(*bytes).ok().map(|bytes| IpAddr::from(bytes).to_string()),
        },
        _ => None,
    }
}

fn parse_der(path: &Path, pem: &str) -> Result<Vec<u8>, BootstrapError> {
    rustls_pki_types::CertificateDer::from_pem_slice(pem.as_bytes())
        .map(|der| der.to_vec())
        .map_err(|error| {
            BootstrapError::unusable(path, format!("contains no valid certificate: {error}"))
        })
}

fn x509<'a>(path: &Path, der: &'a [u8]) -> Result<X509Certificate<'a>, BootstrapError> {
    x509_parser::parse_x509_certificate(der).map(|(_, certificate)| certificate).map_err(|error| {
        BootstrapError::unusable(path, format!("contains no valid certificate: {error}"))
    })
}

fn public_key_of(path: &Path, pem: &str) -> Result<Vec<u8>, BootstrapError> {
    let der = parse_der(path, pem)?;
    Ok(x509(path, &der)?.public_key().raw.to_vec())
}

/// Whether a key is that of a certificate.
pub(crate) fn is_pair(
    path: &Path,
    certificate: &str,
    key: &Path,
    text: &str,
) -> Result<bool, BootstrapError> {
    Ok(public_key_of(path, certificate)? == key_pair(key, text)?.subject_public_key_info())
}

pub(crate) fn key_pair(path: &Path, text: &str) -> Result<KeyPair, BootstrapError> {
    let unusable = |error: &(dyn std::error::Error + 'static)| {
        BootstrapError::unusable(
            path,
            format!("contains no usable private key: {}", exit::chain(error)),
        )
    };
    let der = pkcs8_from_pem(text.as_bytes()).map_err(|error| unusable(&error))?;
    KeyPair::try_from(der).map_err(|error| unusable(&error))
}

fn named(common_name: &str, organizations: &[String]) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    for organization in organizations {
        name.push(DnType::OrganizationName, organization.as_str());
    }
    name.push(DnType::CommonName, common_name);
    name
}

fn validity(params: &mut CertificateParams, days: i64, now: OffsetDateTime) {
    // An hour back, for clocks that differ.
    params.not_before = now - Duration::hours(1);
    params.not_after = now + Duration::days(days);
}

fn authority_params(
    common_name: &str,
    now: OffsetDateTime,
) -> Result<CertificateParams, rcgen::Error> {
    let mut params = CertificateParams::new(Vec::new())?;
    params.distinguished_name = named(common_name, &[]);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![
        KeyUsagePurpose::KeyCertSign,
        KeyUsagePurpose::CrlSign,
        KeyUsagePurpose::DigitalSignature,
    ];
    validity(&mut params, AUTHORITY_DAYS, now);
    Ok(params)
}

fn leaf_params(
    leaf: &Leaf,
    days: i64,
    now: OffsetDateTime,
) -> Result<CertificateParams, rcgen::Error> {
    let mut params = CertificateParams::new(Vec::new())?;
    params.distinguished_name = named(&leaf.common_name, &leaf.organizations);
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![match leaf.usage {
        CertificateUsage::Server => ExtendedKeyUsagePurpose::ServerAuth,
        CertificateUsage::Client => ExtendedKeyUsagePurpose::ClientAuth,
    }];
    for name in &leaf.alternative_names {
        params.subject_alt_names.push(match name.parse::<IpAddr>() {
            Ok(address) => SanType::IpAddress(address),
            Err(_) => SanType::DnsName(name.as_str().try_into()?),
        });
    }
    validity(&mut params, days, now);
    Ok(params)
}

/// The text of a file; none if it does not exist.
pub(crate) fn read(path: &Path) -> Result<Option<String>, BootstrapError> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(BootstrapError::file(path)(error)),
    }
}

pub(crate) fn missing(path: &Path) -> BootstrapError {
    BootstrapError::unusable(path, "does not exist")
}

pub(crate) fn write_key(path: &Path, pem: &str) -> Result<(), BootstrapError> {
    private_files::write_private_atomically(path, pem.as_bytes())
        .map_err(BootstrapError::file(path))
}

pub(crate) fn write_public(path: &Path, pem: &str) -> Result<(), BootstrapError> {
    private_files::write_atomically(path, pem.as_bytes(), PUBLIC_MODE)
        .map_err(BootstrapError::file(path))
}

#[cfg(test)]
mod tests;
