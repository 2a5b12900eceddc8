//! The phases `certs` and `kubeconfig`.

use anyhow::{Context as _, Result};
use apiserver_bootstrap::authority::{Authority, Issuance, LEAF_DAYS, Leaf};
use apiserver_bootstrap::certificates::{
    self, AUTHORITY, CertificateFile, FileChange, PROXY_AUTHORITY, node_client_stem,
};
use apiserver_bootstrap::client_config::{self, AuthorityAt, ClusterEntry};
use apiserver_bootstrap::service_account_keys;
use proto_daemon::private_files;
use time::OffsetDateTime;

use super::InitContext;

/// Makes certificates and keys that are missing; those that are there have to be valid.
///
/// # Errors
/// One is not valid, or cannot be written.
pub fn make(context: &InitContext, part: &str) -> Result<()> {
    let (names, pki) = (context.host.names, &context.settings.pki);
    let now = OffsetDateTime::now_utc();
    private_files::create_trusted_dir(pki).with_context(|| pki.display().to_string())?;
    for (stem, common_name) in
        [(AUTHORITY, names.api_service_name()), (PROXY_AUTHORITY, PROXY_AUTHORITY)]
    {
        if context.is_selected("certs", stem, part) {
            let authority = Authority::ensure(pki, stem, common_name, now)?;
            let what = if authority.is_external() { "external authority" } else { "authority" };
            context.host.output.log("certs", &format!("{what} {stem} is in {}", pki.display()));
        }
    }
    for file in certificates::of_control_plane(names, &served_names(context)?) {
        let is_node_client = file.stem == node_client_stem(names);
        let name = if is_node_client { "apiserver-kubelet-client" } else { &file.stem };
        if context.is_selected("certs", name, part) {
            make_one(context, &file, now)?;
        }
    }
    if context.is_selected("certs", "sa", part) {
        print_change(context, "certs", "sa", service_account_keys::ensure(pki)?);
    }
    Ok(())
}

fn make_one(context: &InitContext, file: &CertificateFile, now: OffsetDateTime) -> Result<()> {
    let pki = &context.settings.pki;
    let authority = Authority::load(pki, file.authority, now)?;
    let issuance = Issuance { leaf: &file.leaf, authority: &authority, days: LEAF_DAYS, now };
    let made = certificates::ensure(pki, &file.stem, &issuance)?;
    print_change(context, "certs", &file.stem, made);
    Ok(())
}

fn print_change(context: &InitContext, phase: &str, what: &str, made: FileChange) {
    let verb = match made {
        FileChange::New => "made",
        FileChange::Kept => "using the existing",
    };
    context.host.output.log(phase, &format!("{verb} {what}"));
}

/// The names and addresses of the API server.
fn served_names(context: &InitContext) -> Result<Vec<String>> {
    let (settings, cluster) = (&context.settings, &context.settings.cluster);
    let mut others = vec![
        settings.node.clone(),
        settings.address.to_string(),
        cluster.api_service_address()?.to_string(),
    ];
    others.extend(cluster.endpoint_host().map(str::to_owned));
    others.extend(cluster.api_server.cert_sans.iter().cloned());
    Ok(certificates::served_names(context.host.names, &cluster.networking.dns_domain, &others))
}

/// Makes client configurations that are missing.
///
/// # Errors
/// One that is there is of another cluster, or one cannot be written.
pub fn make_client_configs(context: &InitContext, part: &str) -> Result<()> {
    let (names, layout, settings) = (context.host.names, &context.host.layout, &context.settings);
    let now = OffsetDateTime::now_utc();
    private_files::create_trusted_dir(&layout.config)
        .with_context(|| layout.config.display().to_string())?;
    let authority = Authority::load(&settings.pki, AUTHORITY, now)?;
    let (handed_out, local) = (settings.server(), settings.local_server());
    let admin = format!("{}-admin", names.api_service_name());
    let node = format!("system:node:{}", settings.node);
    for (name, path, server, leaf) in [
        ("admin", &layout.admin, &handed_out, Leaf::client(&admin, &["system:masters"])),
        ("kubelet", &layout.node, &handed_out, Leaf::client(&node, &["system:nodes"])),
        (
            "controller-manager",
            &layout.controller_manager,
            &local,
            Leaf::client(&names.user("controller-manager"), &[]),
        ),
        ("scheduler", &layout.scheduler, &local, Leaf::client(&names.user("scheduler"), &[])),
    ] {
        if !context.is_selected("kubeconfig", name, part) {
            continue;
        }
        let cluster = ClusterEntry {
            name: settings.cluster.name(names),
            server,
            authority: AuthorityAt::Embedded(authority.certificate()),
        };
        let issuance = Issuance { leaf: &leaf, authority: &authority, days: LEAF_DAYS, now };
        let made = client_config::ensure(path, &cluster, &issuance)?;
        print_change(context, "kubeconfig", &path.display().to_string(), made);
    }
    Ok(())
}
