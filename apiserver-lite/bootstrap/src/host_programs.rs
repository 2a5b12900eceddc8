//! The programs of a host of a cluster with their arguments: of its control plane, and of each member. Values only.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;

use proto_api::names::Names;

use crate::arguments::{
    self, ApiServerArguments, Flags, NodeAgent, ObjectStore, PkiFiles, Program, SANDBOX_IMAGE,
    command_line, extra, with_own,
};
use crate::configuration::{ClusterConfiguration, NodeRegistration, Taint};
use crate::error::BootstrapError;
use crate::layout::Layout;
use crate::preflight::RuntimeFacts;

/// The control plane of a host.
pub struct ControlPlane<'a> {
    /// Names in the API and on disk.
    pub names: &'a Names,
    /// Paths of the host.
    pub layout: &'a Layout,
    /// Directory of the programs.
    pub bin_dir: &'a Path,
    /// Directory of certificates.
    pub pki: &'a Path,
    /// Address of the API server.
    pub address: IpAddr,
    pub port: u16,
    pub cluster: &'a ClusterConfiguration,
}

impl ControlPlane<'_> {
    /// Its programs, in the order in which they need each other.
    pub fn programs(&self) -> Vec<Program> {
        let (pki, cluster) = (PkiFiles::new(self.names, self.pki), self.cluster);
        let etcd = cluster.etcd.external.as_ref();
        let server = ApiServerArguments {
            bind: self.bind_address(),
            advertise: self.address,
            port: self.port,
            store: etcd.map_or(ObjectStore::Directory(&self.layout.store), ObjectStore::Etcd),
            pki: &pki,
            service_cidr: &cluster.networking.service_subnet,
            domain: &cluster.networking.dns_domain,
        };
        let mut server = server.flags();
        server.extend(arguments::request_headers(&pki));
        let pods = &cluster.networking.pod_subnet;
        let mut manager =
            arguments::controller_manager(&self.layout.controller_manager, &pki, pods);
        // The last two are off otherwise: tokens sign the ConfigMap by which machines join, and end.
        manager.push(("controllers", "*,bootstrapsigner,tokencleaner".to_owned()));
        let mut scheduler = arguments::scheduler(&self.layout.scheduler, &pki);
        // With a store of its own there is one of each, like the API server: a restart need not wait for the lease of what it replaces.
        for flags in [&mut manager, &mut scheduler] {
            flags.push(("leader-elect", etcd.is_some().to_string()));
        }
        vec![
            self.program("orch-apiserver", &server, &cluster.api_server.extra_args),
            self.program(
                "orch-controller-manager",
                &manager,
                &cluster.controller_manager.extra_args,
            ),
            self.program("orch-scheduler", &scheduler, &cluster.scheduler.extra_args),
        ]
    }

    fn program(&self, name: &str, flags: &Flags, own: &BTreeMap<String, String>) -> Program {
        let line = command_line(self.bin_dir, name, self.names, flags);
        Program { name: name.to_owned(), argv: with_own(line, &extra(own)) }
    }

    /// All addresses, as kubeadm has it: the host's own programs and those of other networks reach it too.
    fn bind_address(&self) -> IpAddr {
        match self.address {
            IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        }
    }
}

/// A host as a member of a cluster: its node agent and its proxy.
pub struct Member<'a> {
    /// Names in the API and on disk.
    pub names: &'a Names,
    /// Paths of the host.
    pub layout: &'a Layout,
    /// Name of the Node.
    pub node: &'a str,
    /// The runtime's socket.
    pub runtime: &'a str,
    /// What the runtime says of itself.
    pub facts: &'a RuntimeFacts,
    /// Directory of the programs.
    pub bin_dir: &'a Path,
    /// The cluster's authority.
    pub authority: &'a Path,
    pub cluster: &'a ClusterConfiguration,
    /// The settings.
    pub registration: &'a NodeRegistration,
}

impl Member<'_> {
    /// The node agent; one that `joins` has no certificate yet.
    ///
    /// # Errors
    /// The cluster's networks are not valid.
    pub fn agent(&self, joins: bool) -> Result<Program, BootstrapError> {
        let layout = self.layout;
        let sandbox = match self.facts.sandbox_image.as_str() {
            "" => SANDBOX_IMAGE,
            image => image,
        };
        let agent = NodeAgent {
            client_config: &layout.node,
            name: self.node,
            root: &layout.node_root,
            manifests: &layout.manifests,
            runtime: self.runtime,
            cni: &layout.cni,
            dns: Some(self.cluster.dns_address()?),
            domain: &self.cluster.networking.dns_domain,
            authority: self.authority,
            sandbox_image: sandbox,
        };
        let mut flags = agent.flags();
        flags.push(("rotate-certificates", "true".to_owned()));
        let driver = if self.facts.uses_systemd_cgroups { "systemd" } else { "cgroupfs" };
        flags.push(("cgroup-driver", driver.to_owned()));
        if joins {
            flags.push(("bootstrap-kubeconfig", layout.bootstrap_node.display().to_string()));
            let taint = |t: &Taint| format!("{}={}:{}", t.key, t.value, t.effect);
            let taints: Vec<String> =
                self.registration.taints.iter().flatten().map(taint).collect();
            if !taints.is_empty() {
                flags.push(("register-with-taints", taints.join(",")));
            }
        }
        let line = command_line(self.bin_dir, "orchlet", self.names, &flags);
        let own = extra(&self.registration.kubelet_extra_args);
        Ok(Program { name: "orchlet".to_owned(), argv: with_own(line, &own) })
    }

    /// How orch-proxy is started on this host.
    pub fn proxy(&self) -> Program {
        let networks = &self.cluster.networking;
        let (pods, domain) = (&networks.pod_subnet, &networks.dns_domain);
        let flags = arguments::proxy(&self.layout.proxy, self.node, pods, domain);
        let argv = command_line(self.bin_dir, "orch-proxy", self.names, &flags);
        Program { name: "orch-proxy".to_owned(), argv }
    }
}

#[cfg(test)]
mod tests {
    use proto_api::names::Profile;

    use super::*;
    use crate::external_etcd::ExternalEtcd;

    fn has(program: &Program, flag: &str) -> bool {
        program.argv.iter().any(|word| word == flag)
    }

    #[test]
    fn a_control_plane_starts_with_the_api_server_and_takes_its_extra_arguments() {
        let names = Names::new(Profile::Kubernetes);
        let layout = Layout::new(names, Path::new("/"));
        let mut cluster = ClusterConfiguration::default();
        cluster.api_server.extra_args.insert("secure-port".into(), "7443".into());
        let plane = ControlPlane {
            names,
            layout: &layout,
            bin_dir: Path::new("/b"),
            pki: &layout.pki,
            address: "fd00::1".parse().unwrap(),
            port: 6443,
            cluster: &cluster,
        };
        let all = plane.programs();
        let order: Vec<&str> = all.iter().map(|program| program.name.as_str()).collect();
        assert_eq!(order, ["orch-apiserver", "orch-controller-manager", "orch-scheduler"]);
        assert!(has(&all[0], "--bind-address=::") && has(&all[0], "--advertise-address=fd00::1"));
        assert!(has(&all[0], "--secure-port=7443") && !has(&all[0], "--secure-port=6443"));
        assert!(has(&all[1], "--leader-elect=false") && has(&all[2], "--leader-elect=false"));
    }

    #[test]
    fn control_planes_on_an_etcd_have_no_store_and_elect_leaders() {
        let names = Names::new(Profile::Kubernetes);
        let layout = Layout::new(names, Path::new("/"));
        let mut cluster = ClusterConfiguration::default();
        cluster.etcd.external = Some(ExternalEtcd {
            endpoints: vec!["https://a:2379".into(), "https://b:2379".into()],
            ca_file: "/e/ca.crt".into(),
            cert_file: "/e/c.crt".into(),
            key_file: "/e/c.key".into(),
        });
        let plane = ControlPlane {
            names,
            layout: &layout,
            bin_dir: Path::new("/b"),
            pki: &layout.pki,
            address: [10, 0, 0, 1].into(),
            port: 6443,
            cluster: &cluster,
        };
        let all = plane.programs();
        for flag in [
            "--etcd-servers=https://a:2379,https://b:2379",
            "--etcd-cafile=/e/ca.crt",
            "--etcd-certfile=/e/c.crt",
            "--etcd-keyfile=/e/c.key",
        ] {
            assert!(has(&all[0], flag), "{flag}: {:?}", all[0].argv);
        }
        assert!(!all[0].argv.iter().any(|word| word.starts_with("--data-dir")));
        assert!(has(&all[1], "--leader-elect=true") && has(&all[2], "--leader-elect=true"));
    }

    #[test]
    fn a_member_that_joins_shows_its_token_and_registers_with_its_taints() {
        let names = Names::new(Profile::Kubernetes);
        let layout = Layout::new(names, Path::new("/"));
        let taint = Taint { key: "k".into(), value: "v".into(), effect: "NoExecute".into() };
        let registration =
            NodeRegistration { taints: Some(vec![taint]), ..NodeRegistration::default() };
        let facts = RuntimeFacts { uses_systemd_cgroups: true, ..RuntimeFacts::default() };
        let member = Member {
            names,
            layout: &layout,
            node: "n",
            runtime: "unix:///r",
            facts: &facts,
            bin_dir: Path::new("/b"),
            authority: Path::new("/ca"),
            cluster: &ClusterConfiguration::default(),
            registration: &registration,
        };
        let joining = member.agent(true).unwrap();
        for flag in [
            "--register-with-taints=k=v:NoExecute",
            "--bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf",
            "--cgroup-driver=systemd",
            "--cluster-dns=10.96.0.10",
        ] {
            assert!(has(&joining, flag), "{flag}: {:?}", joining.argv);
        }
        let own = member.agent(false).unwrap();
        assert!(!own.argv.iter().any(|word| word.starts_with("--bootstrap-kubeconfig")));
        assert!(has(&member.proxy(), "--cluster-cidr=10.244.0.0/16"));
    }
}
