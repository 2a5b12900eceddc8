//! pure: which programs a cluster consists of, with their arguments, in the order in which they are started.

use std::net::SocketAddr;
use std::path::PathBuf;

use crate::spec::{Node, Spec};

/// Name under which orchlet imports the sandbox image that it builds, and which containerd is told to use.
pub const SANDBOX_IMAGE: &str = "orch.local/pause:1";

/// One long-running program of the cluster.
#[derive(Clone, Debug, PartialEq)]
pub struct Program {
    /// Unique in the cluster: names its log and its record.
    pub name: String,
    /// The executable and its arguments.
    pub argv: Vec<String>,
    /// Where it runs.
    pub place: Place,
    /// What later programs wait for.
    pub ready: Ready,
}

/// The namespaces a program runs in.
#[derive(Clone, Debug, PartialEq)]
pub enum Place {
    /// The host's own.
    Host,
    /// Those of the node of this name.
    Node(String),
}

/// A sign that a program accepts work; waiting for it is bounded, and never a condition for going on.
#[derive(Clone, Debug, PartialEq)]
pub enum Ready {
    /// Nothing waits for it.
    Started,
    /// Its socket exists.
    Socket(PathBuf),
    /// Its port accepts connections.
    Port(SocketAddr),
}

/// All programs of the cluster in dependency order: each may need those before it.
pub fn programs(spec: &Spec) -> Vec<Program> {
    let mut all = vec![api_server(spec), controller_manager(spec), scheduler(spec)];
    for node in spec.node_list() {
        all.extend([containerd(spec, &node), orchlet(spec, &node), proxy(spec, &node)]);
    }
    all
}

fn ours(spec: &Spec, program: &str, flags: &[(&str, String)]) -> Vec<String> {
    let mut argv = vec![spec.bin_dir.join(program).display().to_string()];
    argv.push(format!("--naming={}", spec.naming));
    argv.extend(flags.iter().map(|(flag, value)| format!("--{flag}={value}")));
    argv
}

fn path(path: PathBuf) -> String {
    path.display().to_string()
}

fn api_server(spec: &Spec) -> Program {
    let pki = spec.pki();
    let file = |name: &str| path(pki.join(name));
    let flags = [
        ("bind-address", spec.api_address().to_string()),
        ("advertise-address", spec.api_address().to_string()),
        ("secure-port", Spec::API_PORT.to_string()),
        ("data-dir", path(spec.dir.join("apiserver"))),
        ("client-ca-file", file("ca.crt")),
        ("tls-cert-file", file("apiserver.crt")),
        ("tls-private-key-file", file("apiserver.key")),
        ("service-account-key-file", file("service-account.key")),
        ("service-account-signing-key-file", file("service-account.key")),
        ("service-cluster-ip-range", Spec::SERVICE_CIDR.to_owned()),
        ("kubelet-client-certificate", file("apiserver-node-client.crt")),
        ("kubelet-client-key", file("apiserver-node-client.key")),
        ("kubelet-certificate-authority", file("ca.crt")),
        // Nobody may do more than a role says; who is unknown learns health and version.
        ("authorization-mode", "Node,RBAC".to_owned()),
        // Machines join by token.
        ("enable-bootstrap-token-auth", "true".to_owned()),
    ];
    Program {
        name: "orch-apiserver".into(),
        argv: ours(spec, "orch-apiserver", &flags),
        place: Place::Node(first_node(spec)),
        ready: Ready::Port((spec.api_address(), Spec::API_PORT).into()),
    }
}

fn first_node(spec: &Spec) -> String {
    spec.node_list().into_iter().next().map(|node| node.name).unwrap_or_default()
}

fn controller_manager(spec: &Spec) -> Program {
    let flags = [
        ("kubeconfig", path(spec.client_config("controller-manager"))),
        ("use-service-account-credentials", "true".to_owned()),
        // Metrics are for those with a certificate or token of the cluster: pods reach the address.
        ("client-ca-file", path(spec.pki().join("ca.crt"))),
        ("cluster-cidr", Spec::POD_CIDR.to_owned()),
        ("allocate-node-cidrs", "true".to_owned()),
        ("service-account-private-key-file", path(spec.pki().join("service-account.key"))),
        ("root-ca-file", path(spec.pki().join("ca.crt"))),
        ("cluster-signing-cert-file", path(spec.pki().join("ca.crt"))),
        ("cluster-signing-key-file", path(spec.pki().join("ca.key"))),
        ("bind-address", spec.host_address().to_string()),
        // There is one: a restart need not wait for the lease of what it replaces.
        ("leader-elect", "false".to_owned()),
    ];
    Program {
        name: "orch-controller-manager".into(),
        argv: with_own(ours(spec, "orch-controller-manager", &flags), &spec.manager_flags),
        place: Place::Host,
        ready: Ready::Started,
    }
}

fn scheduler(spec: &Spec) -> Program {
    let flags = [
        ("kubeconfig", path(spec.client_config("scheduler"))),
        // Metrics are for those with a certificate or token of the cluster: pods reach the address.
        ("client-ca-file", path(spec.pki().join("ca.crt"))),
        ("bind-address", spec.host_address().to_string()),
        ("leader-elect", "false".to_owned()),
    ];
    Program {
        name: "orch-scheduler".into(),
        argv: ours(spec, "orch-scheduler", &flags),
        place: Place::Host,
        ready: Ready::Started,
    }
}

fn containerd(spec: &Spec, node: &Node) -> Program {
    let config = spec.node_dir(&node.name).join("containerd/config.toml");
    Program {
        name: format!("containerd-{}", node.name),
        argv: vec!["containerd".into(), "--config".into(), path(config)],
        place: Place::Node(node.name.clone()),
        ready: Ready::Socket(spec.containerd_socket(&node.name)),
    }
}

fn orchlet(spec: &Spec, node: &Node) -> Program {
    let (dir, pki) = (spec.node_dir(&node.name), spec.pki());
    let flags = [
        ("kubeconfig", path(spec.client_config(&format!("orchlet-{}", node.name)))),
        ("hostname-override", node.name.clone()),
        ("node-ip", node.address.to_string()),
        ("root-dir", path(dir.join("orchlet"))),
        ("pod-manifest-path", path(dir.join("manifests"))),
        (
            "container-runtime-endpoint",
            format!("unix://{}", spec.containerd_socket(&node.name).display()),
        ),
        ("pod-infra-container-image", SANDBOX_IMAGE.to_owned()),
        ("cgroup-root", spec.node_cgroup(&node.name)),
        ("cni-conf-dir", path(dir.join("cni"))),
        ("cluster-dns", Spec::DNS_SERVICE_ADDRESS.to_string()),
        ("cluster-domain", Spec::DOMAIN.to_owned()),
        // A test's pods are made all at once, and what is told of them is waited for.
        ("event-qps", "50".to_owned()),
        ("event-burst", "100".to_owned()),
        // The disk is the host's: how full it is says nothing about the node.
        ("eviction-hard", "memory.available<100Mi".to_owned()),
        ("image-gc-high-threshold", "100".to_owned()),
        // Whether the host swaps is its owner's business.
        ("fail-swap-on", "false".to_owned()),
        // Who runs commands in its pods is for the API server to say: a certificate of the cluster is not enough.
        ("anonymous-auth", "false".to_owned()),
        ("authentication-token-webhook", "true".to_owned()),
        ("authorization-mode", "Webhook".to_owned()),
        ("client-ca-file", path(pki.join("ca.crt"))),
        ("tls-cert-file", path(pki.join(format!("{}.crt", node.name)))),
        ("tls-private-key-file", path(pki.join(format!("{}.key", node.name)))),
    ];
    Program {
        name: format!("orchlet-{}", node.name),
        argv: with_own(ours(spec, "orchlet", &flags), &spec.agent_flags),
        place: Place::Node(node.name.clone()),
        ready: Ready::Started,
    }
}

/// Flags with those that somebody chose in the place of ours of the same name.
pub fn with_own(mut argv: Vec<String>, own: &[String]) -> Vec<String> {
    let name = |flag: &str| flag.split('=').next().unwrap_or_default().to_owned();
    argv.retain(|flag| !own.iter().any(|chosen| name(chosen) == name(flag)));
    argv.extend_from_slice(own);
    argv
}

fn proxy(spec: &Spec, node: &Node) -> Program {
    let flags = [
        ("kubeconfig", path(spec.client_config("proxy"))),
        ("hostname-override", node.name.clone()),
        ("cluster-cidr", Spec::POD_CIDR.to_owned()),
        ("pod-routes", "true".to_owned()),
        ("dns", "true".to_owned()),
        ("cluster-domain", Spec::DOMAIN.to_owned()),
    ];
    Program {
        name: format!("orch-proxy-{}", node.name),
        argv: ours(spec, "orch-proxy", &flags),
        place: Place::Node(node.name.clone()),
        ready: Ready::Started,
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
            manager_flags: Vec::new(),
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
        assert_eq!(all[0].place, Place::Node("node-1".into()));
        assert_eq!(all[1].place, Place::Host);
        assert_eq!(all[8].place, Place::Node("node-2".into()));
        assert!(all[4].argv.contains(&"--naming=kubernetes".to_owned()));
        assert!(all[7].argv.contains(&"--node-ip=172.30.1.11".to_owned()));
        let has = |program: usize, flag: &str| all[program].argv.contains(&flag.to_owned());
        assert!(has(0, "--authorization-mode=Node,RBAC"));
        assert!(has(1, "--use-service-account-credentials=true"));
        for program in [1, 2] {
            assert!(has(program, "--client-ca-file=/var/tmp/c/pki/ca.crt"));
            assert!(
                !all[program].argv.iter().any(|flag| flag.starts_with("--healthz-bind-address"))
            );
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
