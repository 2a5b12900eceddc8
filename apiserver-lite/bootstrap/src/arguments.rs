//! The arguments of a cluster's programs, which `orchadm` and `hack/up` have in common. Values only.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use proto_api::names::{Names, Profile};
use serde::{Deserialize, Serialize};

use crate::certificates::node_client_stem;
use crate::error::BootstrapError;
use crate::external_etcd::ExternalEtcd;

/// Name under which orchlet imports the sandbox image that it builds, unless a flag sets another.
pub const SANDBOX_IMAGE: &str = "orch.local/pause:1";

/// Flags of a program, without dashes.
pub type Flags = Vec<(&'static str, String)>;

/// A program of a host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Program {
    /// Its name, which is also that of its unit, log and record.
    pub name: String,
    /// The executable and its arguments.
    pub argv: Vec<String>,
}

impl Program {
    /// Checks that every word can stand in a unit and in a log as it is.
    ///
    /// # Errors
    /// One has a control character, as a line break.
    pub fn check(&self) -> Result<(), BootstrapError> {
        match self.argv.iter().find(|word| word.chars().any(char::is_control)) {
            None => Ok(()),
            Some(word) => Err(BootstrapError::Invalid(format!(
                "{}: the argument {word:?} has a control character: leave it out",
                self.name
            ))),
        }
    }
}

/// The command line of one of our programs.
pub fn command_line(bin_dir: &Path, program: &str, names: &Names, flags: &Flags) -> Vec<String> {
    let mut argv = vec![text(&bin_dir.join(program))];
    match names.profile() {
        Profile::Kubernetes => argv.push("--naming=kubernetes".to_owned()),
        Profile::Orch { domain } => {
            argv.push("--naming=orch".to_owned());
            if domain != proto_api::names::DEFAULT_ORCH_DOMAIN {
                argv.push(format!("--api-domain={domain}"));
            }
        }
    }
    argv.extend(flags.iter().map(|(flag, value)| format!("--{flag}={value}")));
    argv
}

/// The default flags, each replaced by the extra argument of the same name.
pub fn with_own(mut argv: Vec<String>, own: &[String]) -> Vec<String> {
    let name = |flag: &str| flag.split('=').next().unwrap_or_default().to_owned();
    argv.retain(|flag| !own.iter().any(|chosen| name(chosen) == name(flag)));
    argv.extend_from_slice(own);
    argv
}

/// The flags of a map of extra arguments.
pub fn extra(arguments: &BTreeMap<String, String>) -> Vec<String> {
    arguments.iter().map(|(flag, value)| format!("--{flag}={value}")).collect()
}

/// The value of a flag in a command line.
pub fn value_of<'a>(argv: &'a [String], flag: &str) -> Option<&'a str> {
    let value = |word: &'a String| word.strip_prefix("--")?.strip_prefix(flag)?.strip_prefix('=');
    argv.iter().find_map(value)
}

/// The etcd in which an API server with this command line keeps its objects; none if it has a store of its own.
pub fn external_etcd(argv: &[String]) -> Option<ExternalEtcd> {
    let value = |flag: &str| value_of(argv, flag).unwrap_or_default().to_owned();
    let endpoints = value_of(argv, "etcd-servers")?.split(',').map(str::to_owned).collect();
    Some(ExternalEtcd {
        endpoints,
        ca_file: value("etcd-cafile"),
        cert_file: value("etcd-certfile"),
        key_file: value("etcd-keyfile"),
    })
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

/// Files of the control plane's certificates and keys.
#[derive(Clone, Debug)]
pub struct PkiFiles {
    /// Their directory.
    pub dir: PathBuf,
    /// The key that signs service account tokens.
    pub account_key: PathBuf,
    /// The keys that verify them.
    pub account_public_keys: PathBuf,
    /// Certificate and key, without ending, that the API server shows to nodes.
    pub node_client_stem: String,
}

impl PkiFiles {
    /// With kubeadm's names.
    pub fn new(names: &Names, dir: &Path) -> Self {
        Self {
            dir: dir.to_owned(),
            account_key: dir.join("sa.key"),
            account_public_keys: dir.join("sa.pub"),
            node_client_stem: node_client_stem(names),
        }
    }

    fn file(&self, name: &str) -> String {
        text(&self.dir.join(name))
    }
}

/// Where the API server keeps its objects.
#[derive(Clone, Copy, Debug)]
pub enum ObjectStore<'a> {
    /// In its own store, in a directory.
    Directory(&'a Path),
    /// In an etcd that others run.
    Etcd(&'a ExternalEtcd),
}

impl ObjectStore<'_> {
    fn flags(&self) -> Flags {
        let etcd = match self {
            Self::Directory(path) => return vec![("data-dir", text(path))],
            Self::Etcd(etcd) => etcd,
        };
        let mut flags = vec![("etcd-servers", etcd.endpoints.join(","))];
        let files = [
            ("etcd-cafile", &etcd.ca_file),
            ("etcd-certfile", &etcd.cert_file),
            ("etcd-keyfile", &etcd.key_file),
        ];
        let given = files.into_iter().filter(|(_, path)| !path.is_empty());
        flags.extend(given.map(|(flag, path)| (flag, path.clone())));
        flags
    }
}

/// What the arguments of orch-apiserver are made from.
pub struct ApiServerArguments<'a> {
    /// Where it listens.
    pub bind: IpAddr,
    /// Where members of the cluster reach it.
    pub advertise: IpAddr,
    pub port: u16,
    pub store: ObjectStore<'a>,
    /// Certificates and keys.
    pub pki: &'a PkiFiles,
    /// Addresses of Services.
    pub service_cidr: &'a str,
    /// Domain of the cluster's names.
    pub domain: &'a str,
}

impl ApiServerArguments<'_> {
    /// The command-line flags, in the order in which they are written.
    pub fn flags(&self) -> Flags {
        let (pki, node) = (self.pki, &self.pki.node_client_stem);
        let mut flags = vec![
            ("bind-address", self.bind.to_string()),
            ("advertise-address", self.advertise.to_string()),
            ("secure-port", self.port.to_string()),
        ];
        flags.extend(self.store.flags());
        flags.extend([
            ("client-ca-file", pki.file("ca.crt")),
            ("tls-cert-file", pki.file("apiserver.crt")),
            ("tls-private-key-file", pki.file("apiserver.key")),
            ("service-account-key-file", text(&pki.account_public_keys)),
            ("service-account-signing-key-file", text(&pki.account_key)),
            ("service-cluster-ip-range", self.service_cidr.to_owned()),
            ("cluster-domain", self.domain.to_owned()),
            ("kubelet-client-certificate", pki.file(&format!("{node}.crt"))),
            ("kubelet-client-key", pki.file(&format!("{node}.key"))),
            // RBAC roles grant all access; unauthenticated clients can read health and version only.
            ("authorization-mode", "Node,RBAC".to_owned()),
            // Machines join by token.
            ("enable-bootstrap-token-auth", "true".to_owned()),
        ]);
        flags
    }
}

/// The flags of the API server that let authenticating proxies name users, and make it one of them towards other API servers.
pub fn request_headers(pki: &PkiFiles) -> Flags {
    vec![
        ("requestheader-client-ca-file", pki.file("front-proxy-ca.crt")),
        ("requestheader-allowed-names", "front-proxy-client".to_owned()),
        ("requestheader-username-headers", "X-Remote-User".to_owned()),
        ("requestheader-group-headers", "X-Remote-Group".to_owned()),
        ("requestheader-extra-headers-prefix", "X-Remote-Extra-".to_owned()),
        ("proxy-client-cert-file", pki.file("front-proxy-client.crt")),
        ("proxy-client-key-file", pki.file("front-proxy-client.key")),
    ]
}

/// The controller manager's flags.
pub fn controller_manager(client_config: &Path, pki: &PkiFiles, pod_cidr: &str) -> Flags {
    let mut flags = vec![
        ("kubeconfig", text(client_config)),
        ("use-service-account-credentials", "true".to_owned()),
        // Metrics are for those with a certificate or token of the cluster: pods reach the address.
        ("client-ca-file", pki.file("ca.crt")),
        ("service-account-private-key-file", text(&pki.account_key)),
        ("root-ca-file", pki.file("ca.crt")),
        ("cluster-signing-cert-file", pki.file("ca.crt")),
        ("cluster-signing-key-file", pki.file("ca.key")),
    ];
    if !pod_cidr.is_empty() {
        flags.push(("cluster-cidr", pod_cidr.to_owned()));
        flags.push(("allocate-node-cidrs", "true".to_owned()));
    }
    flags
}

/// The scheduler's flags.
pub fn scheduler(client_config: &Path, pki: &PkiFiles) -> Flags {
    vec![
        ("kubeconfig", text(client_config)),
        // Metrics are for those with a certificate or token of the cluster: pods reach the address.
        ("client-ca-file", pki.file("ca.crt")),
    ]
}

/// What the arguments of orchlet are made from.
pub struct NodeAgent<'a> {
    /// Its client configuration.
    pub client_config: &'a Path,
    /// Name of the Node.
    pub name: &'a str,
    /// Its directory.
    pub root: &'a Path,
    /// Manifests of static pods.
    pub manifests: &'a Path,
    /// The runtime's socket.
    pub runtime: &'a str,
    /// Where the network configuration is written.
    pub cni: &'a Path,
    /// Address of the cluster's name servers.
    pub dns: Option<IpAddr>,
    /// Domain of the cluster's names.
    pub domain: &'a str,
    /// The cluster's authority.
    pub authority: &'a Path,
    /// Name of the sandbox image in the runtime.
    pub sandbox_image: &'a str,
}

impl NodeAgent<'_> {
    /// The command-line flags, in the order in which they are written.
    pub fn flags(&self) -> Flags {
        let mut flags = vec![
            ("kubeconfig", text(self.client_config)),
            ("hostname-override", self.name.to_owned()),
            ("root-dir", text(self.root)),
            ("pod-manifest-path", text(self.manifests)),
            ("container-runtime-endpoint", self.runtime.to_owned()),
            ("pod-infra-container-image", self.sandbox_image.to_owned()),
            ("cni-conf-dir", text(self.cni)),
            ("cluster-domain", self.domain.to_owned()),
            // Who runs commands in its pods is for the API server to say: a certificate of the cluster is not enough.
            ("anonymous-auth", "false".to_owned()),
            ("authentication-token-webhook", "true".to_owned()),
            ("authorization-mode", "Webhook".to_owned()),
            ("client-ca-file", text(self.authority)),
        ];
        if let Some(dns) = self.dns {
            flags.push(("cluster-dns", dns.to_string()));
        }
        flags
    }
}

/// The proxy's flags.
pub fn proxy(client_config: &Path, node: &str, pod_cidr: &str, domain: &str) -> Flags {
    let mut flags = vec![
        ("kubeconfig", text(client_config)),
        ("hostname-override", node.to_owned()),
        ("dns", "true".to_owned()),
        ("cluster-domain", domain.to_owned()),
    ];
    if !pod_cidr.is_empty() {
        flags.push(("cluster-cidr", pod_cidr.to_owned()));
        flags.push(("pod-routes", "true".to_owned()));
    }
    flags
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_flags_take_the_place_of_ours() {
        let ours = ["/bin/p", "--a=1", "--b=2"].map(str::to_owned).to_vec();
        let own = ["--b=3".to_owned()];
        assert_eq!(with_own(ours, &own), ["/bin/p", "--a=1", "--b=3"]);
        let map = BTreeMap::from([("v".to_owned(), "2".to_owned())]);
        assert_eq!(extra(&map), ["--v=2"]);
    }

    #[test]
    fn command_lines_have_the_naming_profile() {
        let line = |profile| command_line(Path::new("/b"), "p", Names::new(profile), &Vec::new());
        assert_eq!(line(Profile::Kubernetes), ["/b/p", "--naming=kubernetes"]);
        assert_eq!(line(Profile::default()), ["/b/p", "--naming=orch"]);
        let other = Profile::Orch { domain: "a.b".to_owned() };
        assert_eq!(line(other), ["/b/p", "--naming=orch", "--api-domain=a.b"]);
    }

    #[test]
    fn an_etcd_in_a_command_line_is_read_as_it_was_written() {
        let endpoints = ["https://a:2379", "https://b:2379"].map(str::to_owned).to_vec();
        for ca_file in ["", "/e/ca.crt"] {
            let etcd = ExternalEtcd {
                endpoints: endpoints.clone(),
                ca_file: ca_file.to_owned(),
                ..ExternalEtcd::default()
            };
            let flags = ObjectStore::Etcd(&etcd).flags();
            assert_eq!(flags.len(), if ca_file.is_empty() { 1 } else { 2 });
            let names = Names::new(Profile::Kubernetes);
            let line = command_line(Path::new("/b"), "p", names, &flags);
            assert_eq!(external_etcd(&line), Some(etcd));
        }
        assert_eq!(external_etcd(&["--data-dir=/d".to_owned()]), None);
    }

    #[test]
    fn without_a_pod_network_nothing_is_assigned() {
        let pki = PkiFiles::new(Names::new(Profile::Kubernetes), Path::new("/p"));
        let has = |cidr: &str| {
            let flags = controller_manager(Path::new("/c"), &pki, cidr);
            flags.iter().any(|(flag, _)| *flag == "allocate-node-cidrs")
        };
        assert!(has("10.244.0.0/16") && !has(""));
        assert_eq!(pki.file("a.crt"), "/p/a.crt");
        assert_eq!(pki.node_client_stem, "apiserver-kubelet-client");
    }

    #[test]
    fn a_line_break_starts_no_setting_of_a_unit() {
        let of = |word: &str| Program { name: "p".into(), argv: vec!["/p".into(), word.into()] };
        of("--a=b c \"é\"").check().unwrap();
        for bad in ["a\nExecStartPre=/x", "a\rb", "\0", "\u{1b}[0m", "\u{85}"] {
            assert!(of(bad).check().is_err(), "{bad:?}");
        }
    }
}
