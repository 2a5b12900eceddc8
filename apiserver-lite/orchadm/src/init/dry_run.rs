//! `init --dry-run`: what the phases would write and run.

use anyhow::Result;
use apiserver_bootstrap::{access, dry_run, systemd};

use super::control_plane::{authority, programs};
use super::node::member;
use super::{InitContext, upload};

/// Says what a phase would do, or a part of it.
///
/// # Errors
/// The cluster's networks are not valid.
pub fn print_plan(context: &InitContext, phase: &str, asked: &str) -> Result<()> {
    for (part, action) in actions(context, phase)? {
        if part.is_empty() || context.is_selected(phase, &part, asked) {
            context.host.would(phase, [action]);
        }
    }
    Ok(())
}

/// What a phase would do, each with the part of the phase that it belongs to.
fn actions(context: &InitContext, phase: &str) -> Result<Vec<(String, String)>> {
    let (host, settings) = (&context.host, &context.settings);
    let (names, layout) = (host.names, &host.layout);
    let has_systemd = systemd::runs_host(layout);
    let authority = authority(settings);
    let member = member(host, settings, &context.runtime, &authority);
    let one = |action: String| vec![(String::new(), action)];
    let all = |actions: Vec<String>| -> Vec<(String, String)> {
        actions.into_iter().map(|action| (String::new(), action)).collect()
    };
    Ok(match phase {
        "certs" => dry_run::certificates(names, &settings.pki, |path| path.exists()),
        "kubeconfig" => dry_run::client_configs(layout, |path| path.exists()),
        "control-plane" => {
            let part = |name: &str| name.trim_start_matches("orch-").to_owned();
            let start = programs(host, settings);
            let start = start.iter().map(|program| {
                (part(&program.name), dry_run::program(layout, has_systemd, program))
            });
            start.collect()
        }
        "upload-config" => one(dry_run::object(&upload::configuration_object(context))),
        "bootstrap-token" => {
            let (tokens, server) = (&settings.tokens, settings.server());
            let objects = access::for_hosts_that_join(names, tokens, &server, "")?;
            all(objects.iter().map(dry_run::object).collect())
        }
        "kubelet-start" => one(dry_run::program(layout, has_systemd, &member.agent(false)?)),
        "mark-control-plane" => {
            one(format!("label and taint the node {} as one of the control plane", settings.node))
        }
        "kubelet-finalize" => {
            one(format!("have {} name {}", layout.node.display(), layout.node_pair.display()))
        }
        _ => {
            let address = settings.cluster.dns_address()?;
            let service = dry_run::objects(&access::dns_service(names, address))?;
            let mut actions: Vec<(String, String)> =
                service.into_iter().map(|action| ("dns".to_owned(), action)).collect();
            let proxy = dry_run::program(layout, has_systemd, &member.proxy());
            actions.push(("kube-proxy".to_owned(), format!("write {}", layout.proxy.display())));
            actions.push(("kube-proxy".to_owned(), proxy));
            actions
        }
    })
}

#[cfg(test)]
mod tests {
    use apiserver_bootstrap::layout::Layout;
    use apiserver_bootstrap::services::Services;
    use clap::Parser;
    use proto_api::names::{Names, Profile};

    use super::*;
    use crate::host::Host;
    use crate::init::{InitFlags, PHASES};
    use crate::output::{LineOutput, OutputFormat};

    #[derive(Parser)]
    struct Alone {
        #[command(flatten)]
        flags: InitFlags,
    }

    #[test]
    fn every_phase_says_what_it_would_do_and_nothing_is_written() {
        let root = tempfile::tempdir().unwrap();
        let names = Names::new(Profile::Kubernetes);
        let output = LineOutput { format: OutputFormat::Text };
        let host = Host { names, layout: Layout::new(names, root.path()), record: None, output };
        let line = [
            "x",
            "--apiserver-advertise-address=10.0.0.1",
            "--node-name=n",
            "--token=abcdef.0123456789abcdef",
        ];
        let settings = Alone::parse_from(line).flags.settings(&host).unwrap();
        let context = InitContext::new(host, settings, Services::Recorded);
        let mut all = Vec::new();
        for (phase, _) in PHASES.iter().filter(|(phase, _)| *phase != "preflight") {
            let planned = actions(&context, phase).unwrap();
            assert!(!planned.is_empty(), "{phase}");
            all.extend(planned.into_iter().map(|(_, action)| action));
        }
        let all = all.join("\n");
        for what in [
            "pki/ca.key",
            "admin.conf",
            "orch-scheduler",
            "ConfigMap kube-system/kubeadm-config",
            "Secret kube-system/bootstrap-token-abcdef",
            "cluster-info",
            "orchlet",
            "kubelet-client-current.pem",
            "Service kube-system/",
            "orch-proxy",
        ] {
            assert!(all.contains(what), "{what}: {all}");
        }
        assert!(!all.contains("0123456789abcdef"), "the token is secret");
        assert!(std::fs::read_dir(root.path()).unwrap().next().is_none());
    }
}
