//! `etcd.external` of a cluster configuration: an etcd that others run, in which the API servers of all control planes keep the objects. Values only.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::error::BootstrapError;

/// Most members of an etcd; seven are usual at most.
const MEMBERS_MAX: usize = 32;
/// Longest URL of a member.
const URL_LEN_MAX: usize = 512;

/// Where an etcd is, and how the API server vouches for itself there.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ExternalEtcd {
    /// URLs of its members, all `http` or all `https`.
    pub endpoints: Vec<String>,
    /// Certificates of the authority of its members.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub ca_file: String,
    /// Client certificate of the API server.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub cert_file: String,
    /// Key of the client certificate.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub key_file: String,
}

impl ExternalEtcd {
    /// Checks URLs and paths, by kubeadm's rules and those of the API server.
    ///
    /// # Errors
    /// The first field that cannot be.
    pub fn validate(&self) -> Result<(), BootstrapError> {
        let fault = |text: String| Err(BootstrapError::Invalid(format!("etcd.external.{text}")));
        if self.endpoints.is_empty() || self.endpoints.len() > MEMBERS_MAX {
            return fault(format!("endpoints: must have 1 to {MEMBERS_MAX} URLs"));
        }
        if let Some(bad) = self.endpoints.iter().find(|endpoint| scheme(endpoint).is_none()) {
            let shown: String = bad.chars().take(URL_LEN_MAX).collect();
            return fault(format!(
                "endpoints: {shown:?}: must be http://host:port or https://host:port"
            ));
        }
        let is_secure = |endpoint: &String| scheme(endpoint) == Some("https");
        let secure = self.endpoints.iter().filter(|endpoint| is_secure(endpoint)).count();
        if secure != 0 && secure != self.endpoints.len() {
            return fault("endpoints: must be all http or all https".to_owned());
        }
        for (field, path) in ["caFile", "certFile", "keyFile"].into_iter().zip(self.files()) {
            if !path.is_empty() && !Path::new(path).is_absolute() {
                return fault(format!("{field} {path:?}: must be an absolute path"));
            }
        }
        if (secure == 0) != self.ca_file.is_empty() {
            return fault("caFile: must be given for https, and for nothing else".to_owned());
        }
        if self.cert_file.is_empty() != self.key_file.is_empty() {
            return fault("certFile, keyFile: must be given both, or none of them".to_owned());
        }
        if secure == 0 && !self.cert_file.is_empty() {
            return fault("certFile: must be given for https only".to_owned());
        }
        Ok(())
    }

    /// The files: of the authority, of the certificate, of its key; empty where they are not given.
    pub fn files(&self) -> [&str; 3] {
        [&self.ca_file, &self.cert_file, &self.key_file]
    }

    /// The directories of its files, which the API server has to see.
    pub fn directories(&self) -> Vec<&Path> {
        self.files().into_iter().filter_map(|path| Path::new(path).parent()).collect()
    }
}

/// The scheme of a URL that is no more than scheme, host and port.
fn scheme(endpoint: &str) -> Option<&str> {
    let (scheme, rest) = endpoint.split_once("://")?;
    let (host, port) = rest.trim_end_matches('/').rsplit_once(':')?;
    let is_inner = |b: u8| b.is_ascii_alphanumeric() || b"-._:[]".contains(&b);
    let is_one = matches!(scheme, "http" | "https")
        && endpoint.len() <= URL_LEN_MAX
        && !host.is_empty()
        && host.bytes().all(is_inner)
        && port.parse::<u16>().is_ok_and(|port| port != 0);
    is_one.then_some(scheme)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn etcd(endpoints: &[&str], files: [&str; 3]) -> ExternalEtcd {
        let [ca_file, cert_file, key_file] = files.map(str::to_owned);
        let endpoints = endpoints.iter().map(|endpoint| (*endpoint).to_owned()).collect();
        ExternalEtcd { endpoints, ca_file, cert_file, key_file }
    }

    #[test]
    fn members_and_files_fit_together() {
        let secure = ["https://10.0.0.1:2379", "https://[fd00::1]:2379"];
        for (endpoints, files) in [
            (&["http://e:2379"][..], ["", "", ""]),
            (&["http://e:2379/"], ["", "", ""]),
            (&secure, ["/e/ca.crt", "", ""]),
            (&secure, ["/e/ca.crt", "/e/c.crt", "/e/c.key"]),
        ] {
            etcd(endpoints, files).validate().unwrap();
        }
        let many = vec!["http://e:2379"; MEMBERS_MAX + 1];
        for (endpoints, files, what) in [
            (&[][..], ["", "", ""], "endpoints"),
            (&many, ["", "", ""], "endpoints"),
            (&["e:2379"], ["", "", ""], "http://host:port"),
            (&["http://e"], ["", "", ""], "http://host:port"),
            (&["http://e:0"], ["", "", ""], "http://host:port"),
            (&["http://:2379"], ["", "", ""], "http://host:port"),
            (&["http://e:2379/path"], ["", "", ""], "http://host:port"),
            (&["http://a:1,http://b:1"], ["", "", ""], "http://host:port"),
            (&["http://u:p@e:1"], ["", "", ""], "http://host:port"),
            (&["unix://e:1"], ["", "", ""], "http://host:port"),
            (&["http://e:1", "https://e:2"], ["/ca", "", ""], "all http or all https"),
            (&secure, ["", "", ""], "caFile"),
            (&secure, ["ca.crt", "", ""], "absolute"),
            (&secure, ["/ca", "/c", ""], "certFile, keyFile"),
            (&secure, ["/ca", "", "/k"], "certFile, keyFile"),
            (&["http://e:1"], ["/ca", "", ""], "caFile"),
            (&["http://e:1"], ["", "/c", "/k"], "https only"),
        ] {
            let error = etcd(endpoints, files).validate().unwrap_err().to_string();
            assert!(error.starts_with("etcd.external.") && error.contains(what), "{what}: {error}");
        }
    }

    #[test]
    fn directories_are_those_of_the_files_that_are_given() {
        assert_eq!(etcd(&[], ["/a/ca", "/b/c", "/b/k"]).directories().len(), 3);
        assert_eq!(etcd(&[], ["", "", ""]).directories(), [] as [&Path; 0]);
    }
}
