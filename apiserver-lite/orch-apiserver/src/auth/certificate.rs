//! Client certificates: common name is the user, each organization a group.

use x509_parser::prelude::parse_x509_certificate;

use super::user::User;

/// Reads the user out of a certificate that the TLS layer has verified against the client CA.
/// `None` when it has no common name: such a certificate names nobody.
#[must_use]
pub fn user_of(der: &[u8]) -> Option<User> {
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
    Some(User { name, groups, ..User::default() }.authenticated())
}
