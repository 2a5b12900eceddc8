//! The server's own CA, used where no certificate files are configured: CA, serving certificate, service account key and the
//! administrator's client certificate. They are kept in one directory and reused at the next start.

use std::fs::OpenOptions;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use apiserver_token::pkcs8_from_pem;
use proto_daemon::private_files;
use rcgen::{
    BasicConstraints, Certificate, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, SanType,
};
use time::{Duration, OffsetDateTime};

/// Error of reading, creating or writing a certificate or key.
#[derive(Debug, thiserror::Error)]
pub enum PkiError {
    /// A file or directory cannot be read or written.
    #[error("cannot use the certificate directory {path}")]
    File {
        path: PathBuf,
        /// The error of the operating system.
        #[source]
        source: std::io::Error,
    },
    /// A certificate or key cannot be made or read back.
    #[error("cannot make or read certificate {name}")]
    Certificate {
        /// File name without ending.
        name: &'static str,
        /// The error of `rcgen`.
        #[source]
        source: rcgen::Error,
    },
}

/// Subject alternative names of the serving certificate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServingNames {
    /// DNS names.
    pub names: Vec<String>,
    pub addresses: Vec<IpAddr>,
}

/// CA, certificates and keys as PEM text.
#[derive(Clone, Debug)]
pub struct Pki {
    /// CA certificate: clients verify the server with it, the server verifies client certificates with it.
    pub ca: String,
    /// Serving certificate.
    pub serving: CertificatePem,
    /// Client certificate of the administrator: user `orch-admin` or `kubernetes-admin`, group `system:masters`.
    pub admin: CertificatePem,
    /// Private key that signs service account tokens.
    pub service_account_key: String,
}

/// A certificate and its key, as PEM text.
#[derive(Clone, Debug)]
pub struct CertificatePem {
    pub certificate: String,
    /// Its private key.
    pub key: String,
}

impl Pki {
    /// Reads `dir` and creates what is missing; without a directory everything is generated in memory. The serving certificate
    /// is issued again at each start, so that it names the current addresses (`served`); the CA and the service account key stay.
    /// `admin` is the user name of the administrator's certificate.
    ///
    /// # Errors
    /// [`PkiError`] with the file or certificate.
    pub fn open(
        dir: Option<&Path>,
        served: &ServingNames,
        admin: &str,
        now: OffsetDateTime,
    ) -> Result<Self, PkiError> {
        if let Some(dir) = dir {
            private_files::create_private_dir(dir)
                .map_err(|source| PkiError::File { path: dir.to_owned(), source })?;
        }
        let ca_key = read_or_create(dir, "ca.key", || Ok(generate("ca")?.serialize_pem()))?;
        let unusable = |source| PkiError::Certificate { name: "ca", source };
        let key = pkcs8_from_pem(ca_key.as_bytes()).map_err(|_| rcgen::Error::CouldNotParseKeyPair);
        let key = key.and_then(KeyPair::try_from).map_err(unusable)?;
        let ca = read_or_create(dir, "ca.crt", || Ok(authority(&key, now)?.pem()))?;
        let issuer = Issuer::from_ca_cert_pem(&ca, key).map_err(unusable)?;
        let serving = issue("apiserver", serving_params(served, now)?, &issuer)?;
        let admin = issue("admin", client_params(admin, &["system:masters"], now), &issuer)?;
        for (name, pair) in [("apiserver", &serving), ("admin", &admin)] {
            let Some(dir) = dir else { break };
            write(&dir.join(format!("{name}.crt")), &pair.certificate)?;
            write(&dir.join(format!("{name}.key")), &pair.key)?;
        }
        let service_account_key =
            read_or_create(dir, "sa.key", || Ok(generate("sa")?.serialize_pem()))?;
        Ok(Self { ca, serving, admin, service_account_key })
    }
}

fn generate(name: &'static str) -> Result<KeyPair, PkiError> {
    KeyPair::generate().map_err(|source| PkiError::Certificate { name, source })
}

fn params(common_name: &str, now: OffsetDateTime, days: i64) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, common_name);
    // Tolerates clients whose clock is behind.
    params.not_before = now - Duration::hours(1);
    params.not_after = now + Duration::days(days);
    params
}

fn authority(key: &KeyPair, now: OffsetDateTime) -> Result<Certificate, PkiError> {
    let mut params = params("orch-ca", now, 3650);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![
        KeyUsagePurpose::KeyCertSign,
        KeyUsagePurpose::CrlSign,
        KeyUsagePurpose::DigitalSignature,
    ];
    params.self_signed(key).map_err(|source| PkiError::Certificate { name: "ca", source })
}

fn serving_params(
    served: &ServingNames,
    now: OffsetDateTime,
) -> Result<CertificateParams, PkiError> {
    let mut params = params("orch-apiserver", now, 365);
    for name in &served.names {
        let name = name
            .as_str()
            .try_into()
            .map_err(|source| PkiError::Certificate { name: "apiserver", source })?;
        params.subject_alt_names.push(SanType::DnsName(name));
    }
    params.subject_alt_names.extend(served.addresses.iter().copied().map(SanType::IpAddress));
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyEncipherment];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    Ok(params)
}

fn client_params(user: &str, groups: &[&str], now: OffsetDateTime) -> CertificateParams {
    let mut params = params(user, now, 365);
    for group in groups {
        params.distinguished_name.push(DnType::OrganizationName, *group);
    }
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    params
}

fn issue(
    name: &'static str,
    params: CertificateParams,
    issuer: &Issuer<'_, KeyPair>,
) -> Result<CertificatePem, PkiError> {
    let key = generate(name)?;
    let certificate =
        params.signed_by(&key, issuer).map_err(|source| PkiError::Certificate { name, source })?;
    Ok(CertificatePem { certificate: certificate.pem(), key: key.serialize_pem() })
}

/// The text of the file; a missing file is created with the text that `make` returns.
fn read_or_create(
    dir: Option<&Path>,
    name: &str,
    make: impl FnOnce() -> Result<String, PkiError>,
) -> Result<String, PkiError> {
    let Some(dir) = dir else { return make() };
    let path = dir.join(name);
    let read = private_files::open_private(&path, &mut OpenOptions::new());
    match read.and_then(std::io::read_to_string) {
        Ok(text) => Ok(text),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let text = make()?;
            write(&path, &text)?;
            Ok(text)
        }
        Err(source) => Err(PkiError::File { path, source }),
    }
}

/// Writes `text` atomically to a file with mode 0600.
pub fn write(path: &Path, text: &str) -> Result<(), PkiError> {
    let written = private_files::write_private_atomically(path, text.as_bytes());
    written.map_err(|source| PkiError::File { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn second_start_keeps_the_authority() {
        let dir = tempfile::tempdir().unwrap();
        let served = ServingNames {
            names: vec!["localhost".into()],
            addresses: vec!["127.0.0.1".parse().unwrap()],
        };
        let now = OffsetDateTime::UNIX_EPOCH + Duration::days(20_000);
        let first = Pki::open(Some(dir.path()), &served, "admin", now).unwrap();
        let second = Pki::open(Some(dir.path()), &served, "admin", now).unwrap();
        assert_eq!(first.ca, second.ca);
        assert_eq!(first.service_account_key, second.service_account_key);
        assert_ne!(first.serving.certificate, second.serving.certificate);
    }
}
