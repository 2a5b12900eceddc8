//! What a command would write and run, for `--dry-run`: a line of each, in its order. Values only.

use std::path::{Path, PathBuf};

use proto_api::names::Names;
use proto_api::yaml;
use serde_json::Value;

use crate::arguments::Program;
use crate::certificates::{AUTHORITY, PROXY_AUTHORITY, node_client_stem, of_control_plane};
use crate::error::BootstrapError;
use crate::layout::Layout;
use crate::renewal::{RenewableCertificate, renewable};
use crate::units;

/// Files of a directory of certificates, each with the part of the phase `certs` that makes it.
pub fn certificates(
    names: &Names,
    pki: &Path,
    exists: impl Fn(&Path) -> bool,
) -> Vec<(String, String)> {
    let part = |stem: String| {
        let is_node_client = stem == node_client_stem(names);
        let part =
            if is_node_client { "apiserver-kubelet-client".to_owned() } else { stem.clone() };
        (part, pki.join(format!("{stem}.crt")), pki.join(format!("{stem}.key")))
    };
    let leaves = of_control_plane(names, &[]).into_iter().map(|file| file.stem);
    let stems = [AUTHORITY, PROXY_AUTHORITY].map(str::to_owned).into_iter().chain(leaves);
    let accounts = ("sa".to_owned(), pki.join("sa.pub"), pki.join("sa.key"));
    stems
        .map(part)
        .chain([accounts])
        .flat_map(|(part, public, key)| {
            [public, key].map(|path| (part.clone(), write(&path, exists(&path))))
        })
        .collect()
}

/// Client configurations, each with the part of the phase `kubeconfig` that makes it.
pub fn client_configs(layout: &Layout, exists: impl Fn(&Path) -> bool) -> Vec<(String, String)> {
    [
        ("admin", &layout.admin),
        ("kubelet", &layout.node),
        ("controller-manager", &layout.controller_manager),
        ("scheduler", &layout.scheduler),
    ]
    .map(|(part, path)| (part.to_owned(), write(path, exists(path))))
    .to_vec()
}

fn write(path: &Path, exists: bool) -> String {
    let verb = if exists { "check and keep" } else { "write" };
    format!("{verb} {}", path.display())
}

/// A program: its unit where systemd runs it, and its command line.
pub fn program(layout: &Layout, has_systemd: bool, program: &Program) -> String {
    let line = program.argv.join(" ");
    match has_systemd {
        true => {
            let unit = layout.units.join(units::file_name(&program.name));
            format!("write {}, enable and start it: {line}", unit.display())
        }
        false => format!(
            "start and keep running, with its log in {}: {line}",
            layout.log(&program.name).display()
        ),
    }
}

/// The renewal of the certificates of a control plane.
pub fn renewal(names: &Names, layout: &Layout, pki: &Path) -> Vec<String> {
    let action = |one: RenewableCertificate| match one.kept_by_another(pki) {
        Some(_) => format!("keep {}, whose authority has its key elsewhere", one.name),
        None => format!("renew {}", one.name),
    };
    renewable(names, layout).into_iter().map(action).collect()
}

/// A program that goes from one version to another.
pub fn upgrade(program: &Program, from: &str, to: &str) -> String {
    let path = program.argv.first().map_or("", String::as_str);
    format!(
        "restart {} as {path}, {to} instead of {from}, and go back if it is not well",
        program.name
    )
}

/// What a reset ends and removes; `runtime` is the socket of the container runtime, unset if it is not used.
pub fn reset(
    layout: &Layout,
    running: &[&str],
    runtime: Option<&str>,
    removes_backups: bool,
) -> Vec<String> {
    let mut actions: Vec<String> =
        running.iter().map(|program| format!("stop {program}")).collect();
    if !running.is_empty() {
        actions.push(match runtime {
            Some(socket) => format!("remove the pods of the container runtime at {socket}"),
            None => "kill the processes of pods".to_owned(),
        });
        actions.push(format!("undo the mounts below {}", layout.node_root.display()));
        actions
            .push("remove the tables, routes, network and cgroups of pods and Services".to_owned());
    }
    let backups = if removes_backups { "" } else { ", but for its backups" };
    actions.push(format!("remove {}{backups}", layout.store.display()));
    actions.extend(removed_by_reset(layout).map(|dir| format!("remove {}", dir.display())));
    actions
}

/// The directories that a reset removes, besides that of the store.
pub fn removed_by_reset(layout: &Layout) -> impl Iterator<Item = PathBuf> {
    let logs = ["var/log/pods", "var/log/containers"].map(|dir| layout.root.join(dir));
    [&layout.config, &layout.node_root, &layout.logs, &layout.run]
        .map(Clone::clone)
        .into_iter()
        .chain(logs)
}

/// An object of the API, by its kind and name: its content may be secret.
pub fn object(object: &Value) -> String {
    let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default();
    let kind = object["kind"].as_str().unwrap_or_default();
    match text("namespace") {
        "" => format!("create or update the {kind} {}", text("name")),
        namespace => format!("create or update the {kind} {namespace}/{}", text("name")),
    }
}

/// The objects of manifests.
///
/// # Errors
/// They are no YAML.
pub fn objects(manifests: &str) -> Result<Vec<String>, BootstrapError> {
    let all = yaml::parse_all(manifests)
        .map_err(|error| BootstrapError::Invalid(format!("not valid YAML: {error}")))?;
    Ok(all.iter().filter(|value| !value.is_null()).map(object).collect())
}

#[cfg(test)]
mod tests {
    use proto_api::names::Profile;

    use super::*;
    use crate::access;

    #[test]
    fn every_file_is_named_with_its_part_and_what_is_there_is_kept() {
        let names = Names::new(Profile::Kubernetes);
        let layout = Layout::new(names, Path::new("/"));
        let made = certificates(names, &layout.pki, |path| path.ends_with("ca.crt"));
        assert_eq!(made.len(), 12, "{made:?}");
        let has = |part: &str, text: &str| made.contains(&(part.to_owned(), text.to_owned()));
        assert!(has("ca", "check and keep /etc/kubernetes/pki/ca.crt"));
        assert!(has("sa", "write /etc/kubernetes/pki/sa.key"));
        let client = "write /etc/kubernetes/pki/apiserver-kubelet-client.key";
        assert!(has("apiserver-kubelet-client", client));
        let configs = client_configs(&layout, |_| false);
        assert_eq!(
            configs[1],
            ("kubelet".to_owned(), "write /etc/kubernetes/kubelet.conf".to_owned())
        );
    }

    #[test]
    fn a_reset_names_what_it_ends_and_removes() {
        let layout = Layout::new(Names::new(Profile::Kubernetes), Path::new("/"));
        let elsewhere = reset(&layout, &[], Some("unix:///s"), true);
        assert!(elsewhere.iter().all(|line| line.starts_with("remove /")), "{elsewhere:?}");
        assert_eq!(elsewhere[0], "remove /var/lib/orch-apiserver");
        let here = reset(&layout, &["orchlet"], Some("unix:///s"), false);
        let has = |text: &str| here.iter().any(|line| line == text);
        assert!(has("stop orchlet") && has("remove /var/lib/orch-apiserver, but for its backups"));
        assert!(has("remove the pods of the container runtime at unix:///s"), "{here:?}");
        assert!(reset(&layout, &["orchlet"], None, false).iter().any(|line| line.contains("kill")));
    }

    #[test]
    fn programs_and_objects_are_named_without_secrets() {
        let names = Names::new(Profile::Kubernetes);
        let layout = Layout::new(names, Path::new("/"));
        let one = Program { name: "p".into(), argv: vec!["/b/p".into(), "--a=1".into()] };
        assert!(program(&layout, true, &one).contains("/etc/systemd/system/p.service"));
        assert!(program(&layout, false, &one).ends_with("/var/log/orch/p.log: /b/p --a=1"));
        let all = objects(&access::bindings(names)).unwrap();
        assert!(all.len() > 3 && all.iter().all(|line| line.contains("ClusterRole")), "{all:?}");
        let secret = serde_json::json!({
            "kind": "Secret", "metadata": {"name": "s", "namespace": "n"}, "stringData": {"x": "hidden"},
        });
        assert_eq!(object(&secret), "create or update the Secret n/s");
    }
}
