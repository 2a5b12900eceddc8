//! The certificates of a control plane, by kubeadm's names, and their files: made when missing, checked, renewed.

use std::path::Path;

use proto_api::names::Names;
use proto_daemon::private_files;

use crate::authority::{Issuance, Leaf, is_pair, missing, read, write_key, write_public};
use crate::error::BootstrapError;

/// The last part of the user that the API server is towards nodes. What it shows to nodes can reach other servers by mistake: it is no administrator's.
pub const NODE_CLIENT: &str = "apiserver-node-client";
/// The file of the cluster's authority, without ending.
pub const AUTHORITY: &str = "ca";
/// The file of the authority of authenticating proxies.
pub const PROXY_AUTHORITY: &str = "front-proxy-ca";
/// The file of the API server's certificate as an authenticating proxy, without ending, and its common name.
pub const PROXY_CLIENT: &str = "front-proxy-client";

/// A certificate in a file of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateFile {
    /// File name without ending.
    pub stem: String,
    /// File name of its authority, without ending.
    pub authority: &'static str,
    /// Its content.
    pub leaf: Leaf,
}

/// The certificates of the API server. `served` are its names and addresses ([`served_names`]).
pub fn of_control_plane(names: &Names, served: &[String]) -> Vec<CertificateFile> {
    let file = |stem: &str, authority, leaf| CertificateFile { stem: stem.into(), authority, leaf };
    vec![
        file("apiserver", AUTHORITY, Leaf::server(&names.component("apiserver"), served)),
        file(&node_client_stem(names), AUTHORITY, Leaf::client(&names.user(NODE_CLIENT), &[])),
        file(PROXY_CLIENT, PROXY_AUTHORITY, Leaf::client(PROXY_CLIENT, &[])),
    ]
}

/// File name of the certificate that the API server shows to nodes, without ending.
pub fn node_client_stem(names: &Names) -> String {
    format!("apiserver-{}-client", names.component("let"))
}

/// All files that are written into a directory of certificates.
pub fn file_names(names: &Names) -> Vec<String> {
    let mut stems = vec![AUTHORITY.to_owned(), PROXY_AUTHORITY.to_owned()];
    stems.extend(of_control_plane(names, &[]).into_iter().map(|file| file.stem));
    let pair = |stem: &String| [format!("{stem}.crt"), format!("{stem}.key")];
    let mut all: Vec<String> = stems.iter().flat_map(pair).collect();
    all.extend(["sa.key", "sa.pub"].map(str::to_owned));
    all
}

/// The names under which the API server is reached: its Service's, the machine's and those given.
pub fn served_names(names: &Names, domain: &str, others: &[String]) -> Vec<String> {
    let service = names.api_service_name();
    let mut all: Vec<String> = ["", ".default", ".default.svc"]
        .iter()
        .map(|suffix| format!("{service}{suffix}"))
        .collect();
    all.push(format!("{service}.default.svc.{domain}"));
    for other in ["localhost", "127.0.0.1"].map(str::to_owned).iter().chain(others) {
        if !other.is_empty() && !all.contains(other) {
            all.push(other.clone());
        }
    }
    all
}

/// What was done for a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileChange {
    /// It was written.
    New,
    /// It was there, and is valid.
    Kept,
}

/// Makes a certificate with its key in a directory unless it is there; one that is there has to be valid. A key alone is one whose certificate was not
/// written: both are created again, as are two that do not belong together.
///
/// # Errors
/// The files cannot be read or written, or what is there is not what it should be.
pub fn ensure(
    dir: &Path,
    stem: &str,
    issuance: &Issuance<'_>,
) -> Result<FileChange, BootstrapError> {
    let (path, key) = (dir.join(format!("{stem}.crt")), dir.join(format!("{stem}.key")));
    let Some(certificate) = read(&path)? else {
        renew(dir, stem, issuance)?;
        return Ok(FileChange::New);
    };
    let Some(text) = read(&key)? else {
        return Err(BootstrapError::unusable(
            &key,
            format!("is missing, and {} is there: add the key, or remove both", path.display()),
        ));
    };
    private_files::make_private(&key).map_err(BootstrapError::file(&key))?;
    if !is_pair(&path, &certificate, &key, &text)? {
        // A renewal that was cut off between its two files.
        if issuance.authority.is_external() {
            let text = format!(
                "is not the key of {}, and the authority's key is not here to issue another: put the pair here that belongs together",
                path.display()
            );
            return Err(BootstrapError::unusable(&key, text));
        }
        renew(dir, stem, issuance)?;
        return Ok(FileChange::New);
    }
    issuance.check(&path, &certificate)?;
    Ok(FileChange::Kept)
}

/// Files that are the same on all control planes of a cluster: others in their place would be those of another cluster.
const SHARED: [&str; 4] = ["ca.crt", "front-proxy-ca.crt", "sa.key", "sa.pub"];

/// Checks the files of a directory that a control plane must not make for itself, by the authority of the cluster that was found.
///
/// # Errors
/// Files are missing, or of another cluster.
pub fn check_shared(dir: &Path, authority: &str) -> Result<(), BootstrapError> {
    let missing: Vec<&str> = SHARED.into_iter().filter(|name| !dir.join(name).is_file()).collect();
    if !missing.is_empty() {
        let text = format!(
            "has no {}: copy these files from the first control plane, and the keys ca.key and front-proxy-ca.key",
            missing.join(", ")
        );
        return Err(BootstrapError::unusable(dir, text));
    }
    let path = dir.join("ca.crt");
    match read(&path)?.is_some_and(|own| own.trim() == authority.trim()) {
        true => Ok(()),
        false => Err(BootstrapError::unusable(
            &path,
            "is not the authority of the cluster that was found: copy that of its first control plane",
        )),
    }
}

/// Makes a certificate with a new key, in the place of those that are there.
///
/// # Errors
/// The authority is external, or the files cannot be written.
pub fn renew(dir: &Path, stem: &str, issuance: &Issuance<'_>) -> Result<(), BootstrapError> {
    let pair = issuance.issue()?;
    // The key is written first: a program that reads between the two writes finds a certificate of another key and reads again.
    write_key(&dir.join(format!("{stem}.key")), &pair.key)?;
    write_public(&dir.join(format!("{stem}.crt")), &pair.certificate)
}

/// The content of the certificate that is in a file, for a renewal with the same content.
///
/// # Errors
/// It is missing or unusable.
pub fn leaf_of(
    path: &Path,
    usage: crate::authority::CertificateUsage,
) -> Result<Leaf, BootstrapError> {
    let text = read(path)?.ok_or_else(|| missing(path))?;
    let facts = crate::authority::facts(path, &text)?;
    Ok(Leaf {
        common_name: facts.common_name,
        organizations: facts.organizations,
        alternative_names: facts.alternative_names,
        usage,
    })
}

#[cfg(test)]
mod tests;
