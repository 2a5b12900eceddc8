//! Certificates, keys and client configurations of a control plane of one's own on this machine.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::Result;
use apiserver_bootstrap::arguments::PkiFiles;
use apiserver_bootstrap::authority::{Authority, Issuance, LEAF_DAYS, Leaf};
use apiserver_bootstrap::certificates::{self, AUTHORITY};
use apiserver_bootstrap::client_config::{self, AuthInfo, AuthorityAt, ClusterEntry};
use apiserver_bootstrap::service_account_keys;
use proto_api::names::Names;
use proto_client::{Client, config};
use time::OffsetDateTime;

/// Domain of the cluster's names.
pub const DOMAIN: &str = "cluster.local";

/// The files of a cluster, and the authority that makes more of them.
pub struct Pki {
    /// Certificates and keys of the API server.
    pub files: PkiFiles,
    names: &'static Names,
    server: SocketAddr,
    clients: PathBuf,
    authority: Authority,
}

impl Pki {
    /// Makes `dir/pki` for an API server at that address, and `dir/clients`.
    pub fn make(dir: &Path, names: &'static Names, server: SocketAddr) -> Result<Self> {
        let files = PkiFiles::new(names, &dir.join("pki"));
        let clients = dir.join("clients");
        for made in [&files.dir, &clients] {
            std::fs::create_dir(made)?;
        }
        let authority = Authority::ensure(&files.dir, AUTHORITY, "orch-ca", now())?;
        service_account_keys::ensure(&files.dir)?;
        let served = certificates::served_names(names, DOMAIN, &[]);
        let server_leaf = Leaf::server("apiserver", &served);
        let node_client = Leaf::client(&names.user(certificates::NODE_CLIENT), &[]);
        for (stem, leaf) in [("apiserver", &server_leaf), (&files.node_client_stem, &node_client)] {
            let issuance = Issuance { leaf, authority: &authority, days: LEAF_DAYS, now: now() };
            certificates::ensure(&files.dir, stem, &issuance)?;
        }
        Ok(Self { files, names, server, clients, authority })
    }

    /// An administrator's client, and the file that it has its credentials from.
    pub fn admin(&self, agent: &'static str) -> Result<(Client, PathBuf)> {
        let path = self.clients.join("admin.conf");
        self.write(&path, &Leaf::client("admin", &["system:masters"]))?;
        Ok((Client::new(&config::file::load(&path, None)?, self.names, agent)?, path))
    }

    /// Writes the client configuration of a component.
    pub fn client_of(&self, component: &str) -> Result<PathBuf> {
        let path = self.clients.join(format!("{component}.conf"));
        self.write(&path, &Leaf::client(&self.names.user(component), &[]))?;
        Ok(path)
    }

    /// Writes the client configuration of a node into a directory.
    pub fn client_of_node(&self, dir: &Path, node: &str) -> Result<()> {
        let leaf = Leaf::client(&format!("system:node:{node}"), &["system:nodes"]);
        self.write(&dir.join(format!("{node}.conf")), &leaf)
    }

    fn write(&self, path: &Path, leaf: &Leaf) -> Result<()> {
        let issuance = Issuance { leaf, authority: &self.authority, days: LEAF_DAYS, now: now() };
        let pair = issuance.issue()?;
        let server = format!("https://{}", self.server);
        let authority = AuthorityAt::Embedded(self.authority.certificate());
        let cluster = ClusterEntry { name: "own", server: &server, authority };
        let text = client_config::text(&cluster, &leaf.common_name, &AuthInfo::Embedded(&pair));
        Ok(client_config::write(path, &text)?)
    }
}

fn now() -> OffsetDateTime {
    OffsetDateTime::now_utc()
}
