//! pure: which programs a cluster consists of, with their arguments, in the order in which they are started.

use std::net::SocketAddr;
use std::path::PathBuf;

use apiserver_bootstrap::arguments::{self, ApiServerArguments, NodeAgent, PkiFiles, command_line};
pub use apiserver_bootstrap::arguments::{SANDBOX_IMAGE, with_own};
use apiserver_bootstrap::certificates::NODE_CLIENT;
use apiserver_bootstrap::encryption;
use proto_api::names::Names;

use crate::spec::{Node, Spec};

/// One long-running program of the cluster.
#[derive(Clone, Debug, PartialEq)]
pub struct Program {
    /// Unique in the cluster: names its log and its record.
    pub name: String,
    /// The executable and its arguments.
    pub argv: Vec<String>,
    /// Those of its arguments that the user gave.
    pub own_flags: Vec<String>,
    /// The node in whose namespaces it runs.
    pub node: String,
    /// What later programs wait for.
    pub ready: ReadinessCheck,
}

/// A sign that a program accepts work; waiting for it is bounded, and never a condition for going on.
#[derive(Clone, Debug, PartialEq)]
pub enum ReadinessCheck {
    /// Nothing waits for it.
    Started,
    /// Its socket exists.
    Socket(PathBuf),
    /// Its port accepts connections.
    Port(SocketAddr),
}

/// All programs of the cluster in dependency order: each may need those before it.
pub fn programs(spec: &Spec) -> Vec<Program> {
    let names = spec.names();
    let mut all =
        vec![api_server(spec, names), controller_manager(spec, names), scheduler(spec, names)];
    for node in spec.node_list() {
        let agent = orchlet(spec, names, &node);
        all.extend([containerd(spec, &node), agent, proxy(spec, names, &node)]);
    }
    all
}

fn path(path: PathBuf) -> String {
    path.display().to_string()
}

fn pki_files(spec: &Spec, names: &Names) -> PkiFiles {
    PkiFiles { node_client_stem: NODE_CLIENT.to_owned(), ..PkiFiles::new(names, &spec.pki()) }
}

fn api_server(spec: &Spec, names: &Names) -> Program {
    let (pki, store) = (pki_files(spec, names), spec.dir.join("apiserver"));
    let server = ApiServerArguments {
        bind: spec.api_address().into(),
        advertise: spec.api_address().into(),
        port: Spec::API_PORT,
        store: arguments::ObjectStore::Directory(&store),
        pki: &pki,
        service_cidr: Spec::SERVICE_CIDR,
        domain: Spec::DOMAIN,
    };
    let mut flags = server.flags();
    flags.extend(arguments::request_headers(&pki));
    flags.push(("encryption-provider-config", path(encryption::file(&spec.pki()))));
    // Nodes have certificates of the same authority.
    flags.push(("kubelet-certificate-authority", path(spec.pki().join("ca.crt"))));
    Program {
        name: "orch-apiserver".into(),
        argv: with_own(
            command_line(&spec.bin_dir, "orch-apiserver", names, &flags),
            &spec.server_flags,
        ),
        own_flags: spec.server_flags.clone(),
        node: first_node(spec),
        ready: ReadinessCheck::Port((spec.api_address(), Spec::API_PORT).into()),
    }
}

/// The node of the control plane: the API server has to reach pods and services, and looks for the other two at its loopback address.
fn first_node(spec: &Spec) -> String {
    spec.node_list().into_iter().next().map(|node| node.name).unwrap_or_default()
}

fn controller_manager(spec: &Spec, names: &Names) -> Program {
    let client = spec.client_config("controller-manager");
    let mut flags = arguments::controller_manager(&client, &pki_files(spec, names), Spec::POD_CIDR);
    // There is one: a restart need not wait for the lease of what it replaces.
    flags.push(("leader-elect", "false".to_owned()));
    let argv = command_line(&spec.bin_dir, "orch-controller-manager", names, &flags);
    Program {
        name: "orch-controller-manager".into(),
        argv: with_own(argv, &spec.manager_flags),
        own_flags: spec.manager_flags.clone(),
        node: first_node(spec),
        ready: ReadinessCheck::Started,
    }
}

fn scheduler(spec: &Spec, names: &Names) -> Program {
    let client = spec.client_config("scheduler");
    let mut flags = arguments::scheduler(&client, &pki_files(spec, names));
    flags.push(("leader-elect", "false".to_owned()));
    Program {
        name: "orch-scheduler".into(),
        argv: with_own(
            command_line(&spec.bin_dir, "orch-scheduler", names, &flags),
            &spec.scheduler_flags,
        ),
        own_flags: spec.scheduler_flags.clone(),
        node: first_node(spec),
        ready: ReadinessCheck::Started,
    }
}

fn containerd(spec: &Spec, node: &Node) -> Program {
    let config = spec.node_dir(&node.name).join("containerd/config.toml");
    Program {
        name: format!("containerd-{}", node.name),
        argv: vec!["containerd".into(), "--config".into(), path(config)],
        own_flags: Vec::new(),
        node: node.name.clone(),
        ready: ReadinessCheck::Socket(spec.containerd_socket(&node.name)),
    }
}

fn orchlet(spec: &Spec, names: &Names, node: &Node) -> Program {
    let (dir, pki) = (spec.node_dir(&node.name), spec.pki());
    let agent = NodeAgent {
        client_config: &spec.client_config(&format!("orchlet-{}", node.name)),
        name: &node.name,
        root: &dir.join("orchlet"),
        manifests: &dir.join("manifests"),
        runtime: &format!("unix://{}", spec.containerd_socket(&node.name).display()),
        cni: &dir.join("cni"),
        dns: Some(Spec::DNS_SERVICE_ADDRESS.into()),
        domain: Spec::DOMAIN,
        authority: &pki.join("ca.crt"),
        sandbox_image: SANDBOX_IMAGE,
    };
    let mut flags = agent.flags();
    flags.extend([
        ("node-ip", node.address.to_string()),
        ("cgroup-root", spec.node_cgroup(&node.name)),
        // A test creates its pods all at once, and waits for their status.
        ("event-qps", "50".to_owned()),
        ("event-burst", "100".to_owned()),
        // The disk is the host's: how full it is says nothing about the node.
        ("eviction-hard", "memory.available<100Mi".to_owned()),
        ("image-gc-high-threshold", "100".to_owned()),
        // Whether the host swaps is its owner's business.
        ("fail-swap-on", "false".to_owned()),
        ("tls-cert-file", path(pki.join(format!("{}.crt", node.name)))),
        ("tls-private-key-file", path(pki.join(format!("{}.key", node.name)))),
    ]);
    Program {
        name: format!("orchlet-{}", node.name),
        argv: with_own(command_line(&spec.bin_dir, "orchlet", names, &flags), &spec.agent_flags),
        own_flags: spec.agent_flags.clone(),
        node: node.name.clone(),
        ready: ReadinessCheck::Started,
    }
}

fn proxy(spec: &Spec, names: &Names, node: &Node) -> Program {
    let client = spec.client_config("proxy");
    let flags = arguments::proxy(&client, &node.name, Spec::POD_CIDR, Spec::DOMAIN);
    Program {
        name: format!("orch-proxy-{}", node.name),
        argv: with_own(command_line(&spec.bin_dir, "orch-proxy", names, &flags), &spec.proxy_flags),
        own_flags: spec.proxy_flags.clone(),
        node: node.name.clone(),
        ready: ReadinessCheck::Started,
    }
}

/// containerd's configuration for a node: everything below the cluster's directory, nothing shared with the host's own.
pub fn containerd_config(spec: &Spec, node: &Node) -> String {
    let dir = spec.node_dir(&node.name).join("containerd");
    let (root, state) = (dir.join("root"), dir.join("state"));
    format!(
        r#"version = 2
root = "{root}"
state = "{state}"
oom_score = 0

[grpc]
  address = "{socket}"

[metrics]
  # In the node's own network: what the runtime was asked to do, by call.
  address = "127.0.0.1:1338"

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{SANDBOX_IMAGE}"
  # Hosts that withhold CAP_SYS_RESOURCE refuse negative values.
  restrict_oom_score_adj = true
  disable_apparmor = {no_apparmor}
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{cni}"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"

[plugins."io.containerd.internal.v1.opt"]
  path = "{opt}"
"#,
        root = root.display(),
        state = state.display(),
        socket = spec.containerd_socket(&node.name).display(),
        cni = spec.node_dir(&node.name).join("cni").display(),
        opt = dir.join("opt").display(),
        no_apparmor = !PathBuf::from("/sys/kernel/security/apparmor").exists(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_start_in_order_each_on_its_node() {
        let spec = Spec {
            dir: "/var/tmp/c".into(),
            bin_dir: "/opt/bin".into(),
            naming: "kubernetes".into(),
            nodes: 2,
            subnet: 1,
            agent_flags: vec!["--root-dir=/mnt/small".into()],
            server_flags: vec!["--feature-gates=PodSecurity=false".into()],
            manager_flags: Vec::new(),
            scheduler_flags: Vec::new(),
            proxy_flags: vec!["--v=4".into()],
        };
        let all = programs(&spec);
        let names: Vec<&str> = all.iter().map(|program| program.name.as_str()).collect();
        assert_eq!(
            names,
            [
                "orch-apiserver",
                "orch-controller-manager",
                "orch-scheduler",
                "containerd-node-1",
                "orchlet-node-1",
                "orch-proxy-node-1",
                "containerd-node-2",
                "orchlet-node-2",
                "orch-proxy-node-2"
            ]
        );
        let nodes: Vec<&str> = all.iter().map(|program| program.node.as_str()).collect();
        assert_eq!(nodes, [["node-1"; 6].as_slice(), &["node-2"; 3]].concat());
        assert!(all[4].argv.contains(&"--naming=kubernetes".to_owned()));
        assert!(all[7].argv.contains(&"--node-ip=172.30.1.11".to_owned()));
        let has = |program: usize, flag: &str| all[program].argv.contains(&flag.to_owned());
        assert!(has(0, "--authorization-mode=Node,RBAC"));
        assert!(has(0, "--requestheader-client-ca-file=/var/tmp/c/pki/front-proxy-ca.crt"));
        assert!(has(0, "--proxy-client-cert-file=/var/tmp/c/pki/front-proxy-client.crt"));
        assert!(has(0, "--encryption-provider-config=/var/tmp/c/pki/encryption.yaml"));
        assert!(has(1, "--use-service-account-credentials=true"));
        assert!(has(0, "--feature-gates=PodSecurity=false"));
        assert!(has(5, "--v=4") && has(8, "--v=4") && !has(4, "--v=4"));
        for program in [1, 2] {
            assert!(has(program, "--client-ca-file=/var/tmp/c/pki/ca.crt"));
            // Their health is where the API server looks for it: their own loopback address and ports.
            let moved = ["--bind-address", "--secure-port", "--healthz-bind-address"];
            let flags = &all[program].argv;
            assert!(!flags.iter().any(|flag| moved.iter().any(|moved| flag.starts_with(moved))));
        }
        for node in [4, 7] {
            assert!(
                has(node, "--anonymous-auth=false") && has(node, "--authorization-mode=Webhook")
            );
        }
        for (program, user) in
            [(1, "controller-manager"), (2, "scheduler"), (4, "orchlet-node-1"), (5, "proxy")]
        {
            assert!(has(program, &format!("--kubeconfig=/var/tmp/c/{user}.conf")), "{user}");
        }
        let roots = all[7].argv.iter().filter(|flag| flag.starts_with("--root-dir"));
        assert_eq!(roots.collect::<Vec<_>>(), ["--root-dir=/mnt/small"]);
    }
}
