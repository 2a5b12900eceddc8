//! The system's authorities, which count where the client configuration names none.

use std::path::PathBuf;

use proto_client::config::{Pem, TlsSettings, Verification};

/// Where distributions keep them, in the order in which they are looked for.
const FILES: [&str; 6] = [
    "/etc/ssl/certs/ca-certificates.crt", // Debian, Arch
    "/etc/pki/tls/certs/ca-bundle.crt",   // Fedora
    "/etc/ssl/ca-bundle.pem",             // openSUSE
    "/etc/pki/tls/cacert.pem",            // OpenELEC
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", // CentOS
    "/etc/ssl/cert.pem",                  // Alpine
];

/// Names the file of the system's authorities if `settings` have none and it is not the one that the client reads by itself.
pub fn complete(settings: &mut TlsSettings, environment: impl Fn(&str) -> Option<String>) {
    if settings.authority.is_some() || settings.verification == Verification::Skipped {
        return;
    }
    settings.authority =
        find(environment, |path| std::path::Path::new(path).exists()).map(Pem::File);
}

/// `SSL_CERT_FILE`, else the first file that exists; `None` if that is the usual one.
fn find(
    environment: impl Fn(&str) -> Option<String>,
    exists: impl Fn(&str) -> bool,
) -> Option<PathBuf> {
    if let Some(path) = environment("SSL_CERT_FILE").filter(|path| !path.is_empty()) {
        return Some(path.into());
    }
    let found = FILES.iter().position(|path| exists(path)).filter(|at| *at > 0)?;
    FILES.get(found).map(PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_then_the_first_file_that_exists() {
        for (named, existing, wanted) in [
            (Some("/mine"), &FILES[..], Some("/mine")),
            (Some("/missing"), &[], Some("/missing")),
            (Some(""), &FILES[1..], Some(FILES[1])),
            (None, &FILES[..], None),
            (None, &FILES[5..], Some(FILES[5])),
            (None, &[], None),
        ] {
            let environment = |name: &str| {
                assert_eq!(name, "SSL_CERT_FILE");
                named.map(str::to_owned)
            };
            let found = find(environment, |path| existing.contains(&path));
            assert_eq!(found, wanted.map(PathBuf::from), "{named:?} {existing:?}");
        }
    }

    #[test]
    fn what_the_configuration_says_counts_first() {
        let named = |_: &str| Some("/mine".to_owned());
        let pem = Pem::File("/ca".into());
        for (authority, verification, wanted) in [
            (Some(pem.clone()), Verification::Full, Some(pem)),
            (None, Verification::Skipped, None),
            (None, Verification::Full, Some(Pem::File("/mine".into()))),
        ] {
            let mut settings = TlsSettings { authority, verification, ..TlsSettings::default() };
            complete(&mut settings, named);
            assert_eq!(settings.authority, wanted);
        }
    }
}
