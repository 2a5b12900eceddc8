//! The cluster's certificates and client configurations: what there is, in the directory of a development cluster.

use anyhow::{Context as _, Result};
use apiserver_bootstrap::authority::{Authority, Issuance, Leaf};
use apiserver_bootstrap::certificates::{self, NODE_CLIENT};
use apiserver_bootstrap::client_config::{self, AuthInfo, AuthorityAt, ClusterEntry};
use apiserver_bootstrap::{encryption, service_account_keys};
use proto_api::names::Names;
use time::OffsetDateTime;

use crate::files::make_dir;
use crate::spec::Spec;

/// Days that the development certificates last: they are not renewed.
const VALID_DAYS: i64 = 3650;

/// Writes whatever of the authority, certificates, keys and client configurations is missing.
pub fn ensure(spec: &Spec, names: &Names) -> Result<()> {
    let (pki, now) = (spec.pki(), OffsetDateTime::now_utc());
    make_dir(&pki)?;
    let authority = Authority::ensure(&pki, certificates::AUTHORITY, "orch-ca", now)?;
    service_account_keys::ensure(&pki)?;
    encryption::ensure(&pki, names)?;
    let proxies =
        Authority::ensure(&pki, certificates::PROXY_AUTHORITY, certificates::PROXY_AUTHORITY, now)?;
    let made_by = |authority: &Authority, name: &str, leaf: &Leaf| {
        let issuance = Issuance { leaf, authority, days: VALID_DAYS, now };
        certificates::ensure(&pki, name, &issuance)
            .with_context(|| format!("the certificate of {name}"))
    };
    let made = |name: &str, leaf: &Leaf| made_by(&authority, name, leaf);
    made_by(&proxies, certificates::PROXY_CLIENT, &Leaf::client(certificates::PROXY_CLIENT, &[]))?;
    made("apiserver", &Leaf::server("apiserver", &api_server_names(spec, names)))?;
    for node in spec.node_list() {
        let sans = [node.name.clone(), node.address.to_string(), "127.0.0.1".into()];
        made(&node.name, &Leaf::server(&node.name, &sans))?;
    }
    made(NODE_CLIENT, &Leaf::client(&names.user(NODE_CLIENT), &[]))?;
    for (name, leaf) in clients(spec, names) {
        made(&name, &leaf)?;
        write_client_config(spec, &name)?;
    }
    Ok(())
}

/// Who gets a client configuration, with the name of its file.
fn clients(spec: &Spec, names: &Names) -> Vec<(String, Leaf)> {
    let mut all = vec![
        ("admin".to_owned(), Leaf::client("admin", &["system:masters"])),
        ("controller-manager".to_owned(), Leaf::client(&names.user("controller-manager"), &[])),
        ("scheduler".to_owned(), Leaf::client(&names.user("scheduler"), &[])),
        ("proxy".to_owned(), Leaf::client(&names.user("proxy"), &[])),
    ];
    for node in spec.node_list() {
        let user = format!("system:node:{}", node.name);
        all.push((format!("orchlet-{}", node.name), Leaf::client(&user, &["system:nodes"])));
    }
    all
}

fn api_server_names(spec: &Spec, names: &Names) -> Vec<String> {
    let addresses = [spec.api_address().to_string(), Spec::API_SERVICE_ADDRESS.to_string()];
    certificates::served_names(names, Spec::DOMAIN, &addresses)
}

fn write_client_config(spec: &Spec, name: &str) -> Result<()> {
    let (pki, server) = (spec.pki(), spec.api_url());
    let cluster = ClusterEntry {
        name: "orch",
        server: &server,
        authority: AuthorityAt::File(pki.join("ca.crt")),
    };
    let identity = AuthInfo::Files {
        certificate: pki.join(format!("{name}.crt")),
        key: pki.join(format!("{name}.key")),
    };
    let text = client_config::text(&cluster, name, &identity);
    Ok(client_config::write(&spec.client_config(name), &text)?)
}
