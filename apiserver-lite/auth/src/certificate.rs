//! Client certificates: the common name is the user, each organization a group.

use time::OffsetDateTime;
use x509_parser::prelude::parse_x509_certificate;

use crate::user::User;

/// A client certificate that was presented on a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientCertificate {
    /// It authenticates a user until it expires.
    User {
        user: User,
        /// Unix time of its expiry in seconds.
        not_after: i64,
    },
    /// The certificate does not authenticate a user, for this reason.
    Invalid(String),
}

/// Why a certificate authenticates no user. The request is answered with 401, unless it has a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CertificateError<'a> {
    /// It was valid when the connection began.
    #[error("the certificate has expired")]
    Expired,
    /// It never was, for this reason.
    #[error("{0}")]
    Invalid(&'a str),
}

impl ClientCertificate {
    /// Reads the user from a certificate that was verified against the client CA.
    #[must_use]
    pub fn read(der: &[u8]) -> Self {
        match read(der) {
            Some((user, not_after)) => Self::User { user, not_after },
            // A certificate without a common name authenticates no user.
            None => Self::Invalid("the certificate's subject has no common name".to_owned()),
        }
    }

    /// The user at the time `now`, because a connection may outlive the certificate.
    ///
    /// # Errors
    /// See [`CertificateError`].
    pub fn user(&self, now: OffsetDateTime) -> Result<&User, CertificateError<'_>> {
        match self {
            Self::User { not_after, .. } if *not_after < now.unix_timestamp() => {
                Err(CertificateError::Expired)
            }
            Self::User { user, .. } => Ok(user),
            Self::Invalid(reason) => Err(CertificateError::Invalid(reason)),
        }
    }
}

fn read(der: &[u8]) -> Option<(User, i64)> {
    let (_, certificate) = parse_x509_certificate(der).ok()?;
    let subject = certificate.subject();
    let name = subject.iter_common_name().next()?.as_str().ok()?.to_owned();
    if name.is_empty() {
        return None;
    }
    let groups = subject
        .iter_organization()
        .filter_map(|value| value.as_str().ok())
        .map(str::to_owned)
        .collect();
    let user = User { name, groups, ..User::default() }.authenticated();
    Some((user, certificate.validity().not_after.timestamp()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_that_expires_during_a_connection_is_no_longer_valid() {
        let user = User { name: "a".to_owned(), ..User::default() };
        let shown = ClientCertificate::User { user, not_after: 1000 };
        let at = |seconds| OffsetDateTime::from_unix_timestamp(seconds).unwrap();
        assert!(shown.user(at(1000)).is_ok());
        assert_eq!(shown.user(at(1001)), Err(CertificateError::Expired));
    }

    #[test]
    fn a_certificate_without_a_common_name_names_no_user() {
        let mut params = rcgen::CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        let key = rcgen::KeyPair::generate().unwrap();
        let made = params.clone().self_signed(&key).unwrap();
        assert!(matches!(ClientCertificate::read(made.der()), ClientCertificate::Invalid(_)));
        params.distinguished_name.push(rcgen::DnType::CommonName, "a");
        let made = params.self_signed(&key).unwrap();
        assert!(
            matches!(ClientCertificate::read(made.der()), ClientCertificate::User { user, .. } if user.name == "a")
        );
        assert!(matches!(ClientCertificate::read(b"x"), ClientCertificate::Invalid(_)));
    }

    #[test]
    fn each_organization_is_a_group() {
        let mut params = rcgen::CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(rcgen::DnType::CommonName, "jane");
        params.distinguished_name.push(rcgen::DnType::OrganizationName, "dev");
        let made = params.self_signed(&rcgen::KeyPair::generate().unwrap()).unwrap();
        let ClientCertificate::User { user, .. } = ClientCertificate::read(made.der()) else {
            unreachable!("a user")
        };
        assert_eq!(user.name, "jane");
        assert_eq!(user.groups, ["dev", "system:authenticated"]);
    }
}
