//! Flags of etcd as the store.

use std::path::PathBuf;
use std::time::Duration;

use apiserver_core::config::{Credentials, EtcdSettings};

/// The flags.
#[derive(clap::Args, Clone, Debug)]
pub struct EtcdFlags {
    /// URLs of the members of etcd (https://HOST:PORT), which then keeps the objects instead of a directory. Servers of one cluster share it. All of
    /// them need the same keys of service account tokens and the same authority of clients.
    #[arg(long, value_name = "URL", value_delimiter = ',',
          conflicts_with_all = ["data_dir", "ephemeral", "restore", "store_accept_damage"])]
    etcd_servers: Vec<String>,
    /// What the keys of all objects in etcd start with. Nothing else may lie below it: the objects have a format of their own.
    #[arg(long, value_name = "PREFIX", default_value = "/registry")]
    etcd_prefix: String,
    /// CA certificates that verify those of etcd.
    #[arg(long, value_name = "FILE", requires = "etcd_servers")]
    etcd_cafile: Option<PathBuf>,
    /// Client certificate for etcd.
    #[arg(long, value_name = "FILE", requires_all = ["etcd_keyfile", "etcd_servers"])]
    etcd_certfile: Option<PathBuf>,
    /// Key of the client certificate for etcd.
    #[arg(long, value_name = "FILE", requires = "etcd_certfile")]
    etcd_keyfile: Option<PathBuf>,
    /// User of etcd, where it asks for a name and a password.
    #[arg(long, value_name = "NAME", requires_all = ["etcd_password_file", "etcd_servers"])]
    etcd_username: Option<String>,
    /// File with that user's password.
    #[arg(long, value_name = "FILE", requires = "etcd_username")]
    etcd_password_file: Option<PathBuf>,
    /// Time between two compactions of etcd's history; 0 leaves them to others.
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = proto_daemon::go_duration::parse)]
    etcd_compaction_interval: Duration,
}

impl EtcdFlags {
    /// What the flags say; `None` without a server.
    pub fn settings(self) -> Option<EtcdSettings> {
        if self.etcd_servers.is_empty() {
            return None;
        }
        let client = self.etcd_certfile.zip(self.etcd_keyfile);
        Some(EtcdSettings {
            servers: self.etcd_servers,
            prefix: self.etcd_prefix,
            authority: self.etcd_cafile,
            client: client.map(|(certificate, key)| Credentials { certificate, key }),
            user: self.etcd_username.zip(self.etcd_password_file),
            compaction_interval: self.etcd_compaction_interval,
        })
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::super::ApiServerFlags;
    use apiserver_core::config::Storage;

    fn config(args: &[&str]) -> Result<Storage, String> {
        let flags = ApiServerFlags::try_parse_from([&["orch-apiserver"], args].concat());
        let config = flags.map_err(|error| error.to_string())?.config();
        Ok(config.map_err(|error| error.to_string())?.0.storage)
    }

    const SERVER: &str = "--etcd-servers=https://a:2379,https://b:2379";
    const PKI: &str = "--cert-dir=/pki";

    #[test]
    fn spellings_of_kube_apiserver() {
        let Ok(Storage::Etcd(etcd)) = config(&[SERVER, PKI]) else { panic!("etcd") };
        assert_eq!(etcd.servers, ["https://a:2379", "https://b:2379"]);
        assert_eq!((etcd.prefix.as_str(), etcd.compaction_interval.as_secs()), ("/registry", 300));
        let more = [
            "--etcd-cafile=/ca",
            "--etcd-certfile=/c",
            "--etcd-keyfile=/k",
            "--etcd-prefix=/x",
            "--etcd-compaction-interval=0",
        ];
        let Ok(Storage::Etcd(etcd)) = config(&[&[SERVER, PKI][..], &more].concat()) else {
            panic!("etcd")
        };
        assert_eq!((etcd.prefix.as_str(), etcd.compaction_interval.as_secs()), ("/x", 0));
        assert!(etcd.authority.is_some() && etcd.client.is_some() && etcd.user.is_none());
        assert_eq!(config(&[]), Ok(Storage::Memory));
    }

    #[test]
    fn conflicting_etcd_flags_are_refused() {
        for args in [
            &["--data-dir=/d"][..],
            &["--ephemeral"],
            &["--etcd-certfile=/c"],
            &["--etcd-keyfile=/k"],
            &["--etcd-username=u"],
            &["--store-accept-damage"],
        ] {
            assert!(config(&[&[SERVER, PKI][..], args].concat()).is_err(), "{args:?}");
        }
        assert!(config(&["--etcd-cafile=/ca"]).is_err());
        let lost = config(&[SERVER]).unwrap_err();
        assert!(lost.contains("--cert-dir"), "{lost}");
        let keys = ["--service-account-signing-key-file=/k", "--service-account-issuer=https://x"];
        assert!(config(&[&[SERVER][..], &keys].concat()).is_ok());
    }
}
