//! The system's authorities, which count where the client configuration names none.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use proto_client::config::{Pem, TlsSettings, Verification};
use proto_daemon::tls;

/// Where distributions keep them, in the order in which they are looked for.
const FILES: [&str; 6] = [
    "/etc/ssl/certs/ca-certificates.crt", // Debian, Arch
    "/etc/pki/tls/certs/ca-bundle.crt",   // Fedora
    "/etc/ssl/ca-bundle.pem",             // openSUSE
    "/etc/pki/tls/cacert.pem",            // OpenELEC
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", // CentOS
    "/etc/ssl/cert.pem",                  // Alpine
];

/// Directories of them, a file each, which count where no such file can be read.
const DIRECTORIES: [&str; 2] = ["/etc/ssl/certs", "/etc/pki/tls/certs"];
/// Most files that are read of directories, and the longest of them.
const FILES_MAX: usize = 4096;
const FILE_LEN_MAX: u64 = 1 << 20;

/// Names the system's authorities if `settings` have none and they are not in the file that the client reads by itself.
pub fn complete(settings: &mut TlsSettings, environment: impl Fn(&str) -> Option<String>) {
    if settings.authority.is_some() || settings.verification == Verification::Skipped {
        return;
    }
    settings.authority = find(environment, &FILES, &DIRECTORIES);
}

/// The file of `SSL_CERT_FILE`, else the first of `files` that can be read; and the directories of `SSL_CERT_DIR`. Where no file can be read, `directories`
/// are the usual ones. `None` if only the first of `files` counts.
fn find(
    environment: impl Fn(&str) -> Option<String>,
    files: &[&str],
    directories: &[&str],
) -> Option<Pem> {
    let named = |name: &str| environment(name).filter(|value| !value.is_empty());
    let file = match named("SSL_CERT_FILE") {
        Some(file) => Some(file).filter(|file| is_readable(file)),
        None => files.iter().find(|file| is_readable(file)).map(|file| (*file).to_owned()),
    };
    let named_directories = named("SSL_CERT_DIR");
    let directories: Vec<&str> = match (&named_directories, &file) {
        (Some(list), _) => list.split(':').filter(|path| !path.is_empty()).collect(),
        (None, Some(_)) => Vec::new(),
        (None, None) => directories.to_vec(),
    };
    let mut found =
        directories.into_iter().map(Path::new).flat_map(read_directory).collect::<Vec<_>>();
    if found.is_empty() {
        // A file that is missing is named by the error of the connection, if there is one.
        let path = file.or_else(|| named("SSL_CERT_FILE"))?;
        return Some(PathBuf::from(path))
            .filter(|path| files.first().is_none_or(|first| path != Path::new(first)))
            .map(Pem::File);
    }
    found.extend(file.and_then(|file| std::fs::read(file).ok()));
    Some(Pem::Data(found.join(&b'\n')))
}

fn is_readable(path: &str) -> bool {
    std::fs::File::open(path).and_then(|file| file.metadata()).is_ok_and(|about| about.is_file())
}

/// The files of a directory that have authorities. Links to others of them are passed over, and so is what cannot be read.
fn read_directory(path: &Path) -> Vec<Vec<u8>> {
    let Ok(entries) = std::fs::read_dir(path) else { return Vec::new() };
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    let is_of_its_own = |path: &PathBuf| {
        std::fs::read_link(path).map_or(true, |target| target.components().count() > 1)
    };
    let read = |path: PathBuf| {
        let file = std::fs::File::open(path).ok()?;
        let about = file.metadata().ok().filter(|about| about.is_file())?;
        let mut text = Vec::new();
        file.take(FILE_LEN_MAX).read_to_end(&mut text).ok()?;
        let is_whole = about.len() <= FILE_LEN_MAX;
        (is_whole && tls::authorities("authority", &text).is_ok()).then_some(text)
    };
    paths.into_iter().filter(is_of_its_own).take(FILES_MAX).filter_map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory with files of authorities, one of which is also there by a link, and other files.
    fn directory() -> tempfile::TempDir {
        let directory = tempfile::tempdir().expect("a directory");
        let at = |name: &str| directory.path().join(name);
        for name in ["a.crt", "b.crt", "bundle"] {
            let key =
                rcgen::generate_simple_self_signed(vec![name.to_owned()]).expect("a certificate");
            std::fs::write(at(name), key.cert.pem()).expect("a file");
        }
        std::fs::write(at("README"), "no certificate").expect("a file");
        std::fs::create_dir(at("certs")).expect("a directory");
        for name in ["a.crt", "b.crt", "README"] {
            std::fs::rename(at(name), at("certs").join(name)).expect("moved");
        }
        std::os::unix::fs::symlink("a.crt", at("certs/0.0")).expect("a link");
        directory
    }

    #[test]
    fn a_named_file_that_is_missing_leaves_the_directories() {
        let directory = directory();
        let at = |name: &str| directory.path().join(name).display().to_string();
        let (bundle, certs, missing, usual) = (at("bundle"), at("certs"), at("missing"), "/usual");
        // How many authorities there are, or the file that is read later.
        let count = |pem: Option<Pem>| match pem {
            None => "usual".to_owned(),
            Some(Pem::File(path)) => path.display().to_string(),
            Some(Pem::Data(pem)) => {
                tls::certificates(&pem).expect("certificates").len().to_string()
            }
        };
        for (file, list, files, directories, wanted) in [
            (&*bundle, "", &[][..], &[&*certs][..], &*bundle),
            (&missing, "", &[&*bundle], &[&certs], "2"),
            (&missing, "", &[&bundle], &[&missing], &missing),
            (&missing, &certs, &[], &[], "2"),
            (&certs, &certs, &[], &[], "2"),
            (&bundle, &certs, &[], &[], "3"),
            (&bundle, &missing, &[], &[&certs], &bundle),
            ("", &format!("{missing}:{certs}"), &[&bundle], &[], "3"),
            ("", "", &[usual, &bundle], &[&certs], &bundle),
            ("", "", &[&bundle, usual], &[&certs], "usual"),
            ("", "", &[usual], &[&certs], "2"),
            ("", "", &[usual], &[], "usual"),
        ] {
            let environment = |name: &str| match name {
                "SSL_CERT_FILE" => Some(file.to_owned()),
                "SSL_CERT_DIR" => Some(list.to_owned()),
                _ => None,
            };
            let found = count(find(environment, files, directories));
            assert_eq!(found, wanted, "{file:?} {list:?} {files:?} {directories:?}");
        }
    }

    #[test]
    fn what_the_configuration_says_counts_first() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let path = file.path().to_owned();
        let named = |name: &str| (name == "SSL_CERT_FILE").then(|| path.display().to_string());
        let pem = Pem::File("/ca".into());
        for (authority, verification, wanted) in [
            (Some(pem.clone()), Verification::Full, Some(pem)),
            (None, Verification::Skipped, None),
            (None, Verification::Full, Some(Pem::File(path.clone()))),
        ] {
            let mut settings = TlsSettings { authority, verification, ..TlsSettings::default() };
            complete(&mut settings, named);
            assert_eq!(settings.authority, wanted);
        }
    }
}
