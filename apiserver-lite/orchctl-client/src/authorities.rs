//! The system's authorities, which count where the client configuration names none; they are found as by Go.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, ErrorKind, Read as _};
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
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

/// Directories of them, a file each.
const DIRECTORIES: [&str; 2] = ["/etc/ssl/certs", "/etc/pki/tls/certs"];
/// Most files that are read of directories, and the longest of them.
const FILES_MAX: usize = 4096;
const FILE_LEN_MAX: u64 = 1 << 20;
/// The longest file of many authorities.
const BUNDLE_LEN_MAX: u64 = 16 << 20;

/// Whether the system's authorities count: the settings name none, and certificates are verified.
pub fn are_needed(settings: &TlsSettings) -> bool {
    settings.authority.is_none() && settings.verification == Verification::Full
}

/// The authorities of `SSL_CERT_FILE`, else of the first usual file that can be read, with those of the directories of `SSL_CERT_DIR`, else of the usual
/// ones. `SSL_CERT_FILE` may be a pipe: it is read once. `None` if there are no authorities.
///
/// If `SSL_CERT_FILE` exists and has no authorities, nothing is taken in its place: connections fail, and say why.
pub fn find(environment: impl Fn(&str) -> Option<String>) -> Option<Pem> {
    find_in(environment, &FILES, &DIRECTORIES)
}

fn find_in(
    environment: impl Fn(&str) -> Option<String>,
    files: &[&str],
    directories: &[&str],
) -> Option<Pem> {
    let named = |name: &str| environment(name).filter(|value| !value.is_empty());
    let mut found = Authorities::default();
    let file = named("SSL_CERT_FILE").map(PathBuf::from);
    match &file {
        None => {
            let bundle = files.iter().find_map(|path| read_bundle(Path::new(path)).ok());
            found.add(&bundle.unwrap_or_default());
        }
        Some(path) => match read_bundle(path) {
            Ok(text) if found.add(&text) => {}
            Ok(text) => return Some(Pem::Data(text)),
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) if error.kind() == ErrorKind::FileTooLarge => {
                return Some(Pem::Data(Vec::new()));
            }
            Err(_) => return Some(Pem::File(path.clone())),
        },
    }
    let named_directories = named("SSL_CERT_DIR");
    let directories: Vec<&str> = match &named_directories {
        Some(list) => list.split(':').filter(|path| !path.is_empty()).collect(),
        None => directories.to_vec(),
    };
    for text in directories.into_iter().map(Path::new).flat_map(read_directory) {
        found.add(&text);
    }
    match found.pem.is_empty() {
        // A file that is missing is named by the error of the connection, if there is one.
        true => file.map(Pem::File),
        false => Some(Pem::Data(found.pem.into_bytes())),
    }
}

/// Authorities, each once.
#[derive(Default)]
struct Authorities {
    known: HashSet<Vec<u8>>,
    pem: String,
}

impl Authorities {
    /// Adds those of a text; certificates that cannot be authorities are passed over. Says whether it has any.
    fn add(&mut self, text: &[u8]) -> bool {
        let mut is_any = false;
        for certificate in tls::certificates(text).unwrap_or_default() {
            let encoded = STANDARD.encode(&certificate);
            let pem =
                format!("-----BEGIN CERTIFICATE-----\n{encoded}\n-----END CERTIFICATE-----\n");
            if tls::authorities("authority", pem.as_bytes()).is_err() {
                continue;
            }
            is_any = true;
            if self.known.insert(certificate.to_vec()) {
                self.pem.push_str(&pem);
            }
        }
        is_any
    }
}

fn read_bundle(path: &Path) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    let len = File::open(path)?.take(BUNDLE_LEN_MAX.saturating_add(1)).read_to_end(&mut text)?;
    match u64::try_from(len).is_ok_and(|len| len <= BUNDLE_LEN_MAX) {
        true => Ok(text),
        false => Err(ErrorKind::FileTooLarge.into()),
    }
}

/// The files of a directory. Links to others of them are passed over, and so is what cannot be read.
fn read_directory(path: &Path) -> Vec<Vec<u8>> {
    let Ok(entries) = std::fs::read_dir(path) else { return Vec::new() };
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    let is_of_its_own = |path: &PathBuf| {
        std::fs::read_link(path).map_or(true, |target| target.components().count() > 1)
    };
    let read = |path: PathBuf| {
        let file = File::open(path).ok()?;
        let about = file.metadata().ok().filter(|about| about.is_file())?;
        let mut text = Vec::new();
        file.take(FILE_LEN_MAX).read_to_end(&mut text).ok()?;
        (about.len() <= FILE_LEN_MAX).then_some(text)
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

    /// How many authorities there are, or the file that is read later.
    fn count(pem: Option<Pem>) -> String {
        match pem {
            None => "none".to_owned(),
            Some(Pem::File(path)) => path.display().to_string(),
            Some(Pem::Data(pem)) => {
                tls::certificates(&pem).map_or(0, |found| found.len()).to_string()
            }
        }
    }

    #[test]
    fn a_file_and_directories_count_and_a_named_file_that_is_missing_leaves_the_directories() {
        let directory = directory();
        let at = |name: &str| directory.path().join(name).display().to_string();
        let (bundle, certs, missing) = (at("bundle"), at("certs"), at("missing"));
        let (text, usual) = (at("certs/README"), "/usual");
        for (file, list, files, directories, wanted) in [
            (&*bundle, "", &[][..], &[&*certs][..], "3"),
            (&bundle, "", &[], &[], "1"),
            (&missing, "", &[&*bundle], &[&certs], "2"),
            (&missing, "", &[&bundle], &[&missing], &missing),
            (&missing, &certs, &[], &[], "2"),
            // They are there, and nothing counts in their place.
            (&certs, &certs, &[&bundle], &[], &certs),
            (&text, &certs, &[&bundle], &[&certs], "0"),
            (&bundle, &certs, &[], &[], "3"),
            (&bundle, &missing, &[], &[&certs], "1"),
            ("", &format!("{missing}:{certs}"), &[&bundle], &[], "3"),
            ("", "", &[usual, &bundle], &[&certs], "3"),
            ("", "", &[&bundle, usual], &[&certs], "3"),
            ("", "", &[&bundle], &[directory.path().to_str().expect("a path")], "1"),
            ("", "", &[usual], &[&certs], "2"),
            ("", "", &[usual], &[], "none"),
        ] {
            let environment = |name: &str| match name {
                "SSL_CERT_FILE" => Some(file.to_owned()),
                "SSL_CERT_DIR" => Some(list.to_owned()),
                _ => None,
            };
            let found = count(find_in(environment, files, directories));
            assert_eq!(found, wanted, "{file:?} {list:?} {files:?} {directories:?}");
        }
    }

    #[test]
    fn a_named_file_may_be_a_pipe() {
        let directory = directory();
        let (bundle, certs) = (directory.path().join("bundle"), directory.path().join("certs"));
        let (reader, mut writer) = io::pipe().expect("a pipe");
        let text = std::fs::read(bundle).expect("a file");
        let writing = std::thread::spawn(move || {
            io::Write::write_all(&mut writer, &text).expect("written");
        });
        let path = format!("/dev/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&reader));
        let named = |name: &str| (name == "SSL_CERT_FILE").then(|| path.clone());
        let usual = certs.to_str().expect("a path");
        let found = find_in(named, &["/usual"], &[usual]);
        writing.join().expect("written");
        assert_eq!(count(found), "3");
    }

    #[test]
    fn what_the_configuration_says_counts_first() {
        let pem = Pem::File("/ca".into());
        for (authority, verification, wanted) in [
            (Some(pem), Verification::Full, false),
            (None, Verification::Skipped, false),
            (None, Verification::Full, true),
        ] {
            let settings = TlsSettings { authority, verification, ..TlsSettings::default() };
            assert_eq!(are_needed(&settings), wanted);
        }
    }
}
