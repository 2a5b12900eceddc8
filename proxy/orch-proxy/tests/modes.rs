//! The program by its flags: node ports at loopback addresses in addition to the tables, and userspace mode, with
//! Services from a watch.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may end anywhere")]

#[path = "support/api.rs"]
mod api;
#[path = "support/net.rs"]
mod net;
#[path = "support/program.rs"]
mod program;
#[path = "../../kernel/tests/support/sys.rs"]
mod sys;

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use api::Api;
use net::{Net, Reply};
use program::{Program, get};
use proto_api::core::v1::{Service, ServicePort};
use proto_api::discovery::v1::{Endpoint, EndpointPort, EndpointSlice};
use proto_api::names::{Names, Profile};
use proxy_rules::model::Protocol;
use sys::in_namespace;

const NODE: [&str; 2] = ["192.168.9.1", "fd00:9::1"];
const CLIENT: [&str; 2] = ["203.0.113.7", "fd00:cc::7"];
const POD: [&str; 2] = ["10.244.1.1", "fd00:10:244::1"];
const SERVICE: [&str; 2] = ["10.96.0.1", "fd00:96::1"];
const LOOPBACK: [&str; 2] = ["127.0.0.1", "::1"];
const PORT: u16 = 80;
const NODE_PORT: u16 = 30_080;
const HEALTH_PORT: u16 = 32_000;
const TARGET: u16 = 8080;
const PROTOCOLS: [(&str, Protocol); 2] = [("TCP", Protocol::Tcp), ("UDP", Protocol::Udp)];

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// A Service of both families with node ports and a health check.
fn service() -> Service {
    let mut service = Service::default();
    service.metadata.namespace = "ns".into();
    service.metadata.name = "web".into();
    service.spec.type_ = "LoadBalancer".into();
    service.spec.external_traffic_policy = "Local".into();
    service.spec.health_check_node_port = HEALTH_PORT.into();
    service.spec.cluster_ip = SERVICE[0].into();
    service.spec.cluster_ips = SERVICE.map(Into::into).into();
    let port = |protocol: &str| ServicePort {
        name: protocol.to_lowercase(),
        protocol: protocol.into(),
        port: PORT.into(),
        node_port: NODE_PORT.into(),
        ..ServicePort::default()
    };
    service.spec.ports = ["TCP", "UDP", "SCTP"].map(port).into();
    service
}

/// Its endpoint of a family, on this node.
fn slice(family: usize) -> EndpointSlice {
    let address_type = ["IPv4", "IPv6"][family].into();
    let mut slice = EndpointSlice { address_type, ..EndpointSlice::default() };
    slice.metadata.namespace = "ns".into();
    slice.metadata.name = format!("web-{family}");
    slice.metadata.labels.insert("kubernetes.io/service-name".into(), "web".into());
    let port = |protocol: &str| EndpointPort {
        name: Some(protocol.to_lowercase()),
        protocol: Some(protocol.into()),
        port: Some(TARGET.into()),
        ..EndpointPort::default()
    };
    slice.ports = ["TCP", "UDP", "SCTP"].map(port).into();
    let mut endpoint = Endpoint { addresses: vec![POD[family].into()], ..Endpoint::default() };
    endpoint.node_name = Some("node".into());
    endpoint.conditions.ready = Some(true);
    slice.endpoints = vec![endpoint];
    slice
}

/// The network, an API with the Service, and the program with these flags.
struct Node {
    net: Net,
    api: Api,
    program: Program,
}

impl Node {
    fn start(flags: &[&str]) -> Self {
        let net = Net::make(&NODE, &[("client", CLIENT), ("pod", POD)]);
        net.serve("pod", TARGET);
        let api = Api::new(Names::new(Profile::Kubernetes));
        let address = api.serve();
        api.put_service(service());
        (0..2).for_each(|family| api.put_slice(slice(family)));
        let program = Program::start(address, flags);
        Self { net, api, program }
    }

    /// The endpoint and the client address that it sees, or the error, once the result is the expected one.
    fn until(
        &self,
        wanted: impl Fn(&Reply) -> bool,
        from: &str,
        protocol: Protocol,
        to: (IpAddr, u16),
    ) {
        let started = Instant::now();
        loop {
            let reply = self.net.call(from, protocol, to.0, to.1);
            if wanted(&reply) {
                return;
            }
            let log = self.program.log();
            let late = started.elapsed() > Duration::from_secs(60);
            assert!(!late, "{from} {protocol:?} {to:?}: {reply:?}\n{log}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn serves(&self, from: &str, to: [&str; 2], port: u16) {
        for (_, protocol) in PROTOCOLS {
            for (to, pod) in to.map(ip).into_iter().zip(POD.map(ip)) {
                let wanted =
                    |reply: &Reply| matches!(reply, Reply::Answer { server, .. } if *server == pod);
                self.until(wanted, from, protocol, (to, port));
            }
        }
    }

    fn refuses(&self, from: &str, to: [&str; 2], port: u16) {
        for (_, protocol) in PROTOCOLS {
            for to in to.map(ip) {
                let reply = self.net.call_within(net::LONG_PATIENCE, from, protocol, to, port);
                assert_eq!(reply, Reply::Refused, "{from} {protocol:?} {to}");
            }
        }
    }
}

#[test]
fn node_ports_answer_at_loopback_addresses_without_route_localnet() {
    in_namespace("node_ports_answer_at_loopback_addresses_without_route_localnet", || {
        let mut node = Node::start(&["--cluster-cidr=10.244.0.0/16,fd00:10:244::/64"]);
        node.serves("node", LOOPBACK, NODE_PORT);
        node.serves("client", NODE, NODE_PORT);
        let setting = std::fs::read_to_string("/proc/sys/net/ipv4/conf/all/route_localnet");
        assert_eq!(setting.unwrap().trim(), "0");
        // The kernel serves the other addresses: nothing else listens.
        let listening = sys::run(&["ss", "-Hltn", &format!("sport = {NODE_PORT}")]);
        assert_eq!(listening.lines().count(), 2, "{listening}");
        // Without endpoints nothing listens: the kernel refuses.
        for family in 0..2 {
            node.api.put_slice(EndpointSlice { endpoints: Vec::new(), ..slice(family) });
        }
        let refused = |reply: &Reply| *reply == Reply::Refused;
        for to in LOOPBACK.map(ip) {
            node.until(refused, "node", Protocol::Tcp, (to, NODE_PORT));
        }
        (0..2).for_each(|family| node.api.put_slice(slice(family)));
        node.serves("node", LOOPBACK, NODE_PORT);
        // A port of another program is left alone, and bound when it is free.
        let held = std::net::TcpListener::bind((LOOPBACK[0], NODE_PORT + 1)).unwrap();
        let mut moved = service();
        moved.spec.ports.iter_mut().for_each(|port| port.node_port += 1);
        node.api.put_service(moved);
        let udp = Protocol::Udp;
        let answered = |reply: &Reply| matches!(reply, Reply::Answer { .. });
        node.until(answered, "node", udp, (ip(LOOPBACK[0]), NODE_PORT + 1));
        drop(held);
        node.serves("node", LOOPBACK, NODE_PORT + 1);
        node.refuses("node", LOOPBACK, NODE_PORT);
        node.program.end();
        node.refuses("node", LOOPBACK, NODE_PORT + 1);
        node.serves("client", NODE, NODE_PORT + 1);
    });
}

#[test]
fn node_ports_stay_off_loopback_addresses_where_they_are_not_wanted() {
    in_namespace("node_ports_stay_off_loopback_addresses_where_they_are_not_wanted", || {
        let node = Node::start(&["--iptables-localhost-nodeports=false"]);
        node.serves("client", NODE, NODE_PORT);
        node.refuses("node", LOOPBACK, NODE_PORT);
    });
}

#[test]
fn sockets_forward_where_the_kernel_is_not_wanted() {
    in_namespace("sockets_forward_where_the_kernel_is_not_wanted", || {
        let mut node = Node::start(&["--proxy-mode=userspace", "--cluster-cidr=10.244.0.0/16"]);
        node.serves("node", SERVICE, PORT);
        node.serves("client", SERVICE, PORT);
        node.serves("client", NODE, NODE_PORT);
        node.serves("node", LOOPBACK, NODE_PORT);
        assert_eq!(sys::run(&["nft", "list", "tables"]), "");
        // Responses to load balancers.
        let check = SocketAddr::new(ip(NODE[0]), HEALTH_PORT);
        let (status, body) = get(check, "/");
        assert_eq!(status, 200, "{body}");
        assert!(body.contains("\"localEndpoints\": 1"), "{body}");
        // Without SCTP in the kernel: reported, not a failure. A host with SCTP serves it.
        let sctp = std::path::Path::new("/proc/net/sctp").exists();
        let text = get(node.program.metrics, "/statusz").1;
        assert_eq!(text.contains("ports of SCTP are not served"), !sctp, "{text}");
        for family in 0..2 {
            node.api.put_slice(EndpointSlice { endpoints: Vec::new(), ..slice(family) });
        }
        let refused = |reply: &Reply| *reply == Reply::Refused;
        node.until(refused, "node", Protocol::Tcp, (ip(SERVICE[0]), PORT));
        let started = Instant::now();
        while get(check, "/").0 != 503 {
            assert!(started.elapsed() < Duration::from_secs(60));
            std::thread::sleep(Duration::from_millis(20));
        }
        node.program.end();
    });
}

/// `trace` and `diff` get no flags: they read the configuration of the running proxy.
#[test]
fn the_program_says_how_it_is_configured_and_what_it_does() {
    in_namespace("the_program_says_how_it_is_configured_and_what_it_does", || {
        let flags = [
            "--cluster-cidr=10.244.0.0/16,fd00:10:244::/64",
            "--nft-table=other",
            "--service-counters",
            "--detect-local-mode=InterfaceNamePrefix",
            "--pod-interface-name-prefix=v1",
            "--nodeport-addresses=192.168.0.0/16,fd00:9::/64,127.0.0.0/8",
        ];
        let node = Node::start(&flags);
        node.serves("client", NODE, NODE_PORT);
        node.serves("client", SERVICE, PORT);
        let answered = |reply: &Reply| matches!(reply, Reply::Answer { .. });
        node.until(answered, "node", Protocol::Tcp, (ip(LOOPBACK[0]), NODE_PORT));
        let metrics = node.program.metrics;
        assert_eq!(get(metrics, "/proxyMode"), (200, "nftables".to_owned()));
        let (status, text) = get(metrics, "/configz");
        assert_eq!(status, 200);
        let told: serde_json::Value = serde_json::from_str(&text).unwrap();
        let told = &told["kubeproxy.config.k8s.io"];
        assert_eq!(told["kind"], "KubeProxyConfiguration");
        assert_eq!(told["dataplane"]["table"], "other");
        assert_eq!(told["hostnameOverride"], "node");
        let ask = |words: &[&str]| {
            let at = format!("--metrics-bind-address={metrics}");
            let program = env!("CARGO_BIN_EXE_orch-proxy");
            sys::run(&[&[program, at.as_str()], words].concat())
        };
        assert_eq!(ask(&["diff"]), "no differences\n");
        let trace = ask(&["trace", "tcp", SERVICE[0], "80", "--from", CLIENT[0]]);
        for expected in [
            "from interface v0",
            "Service ns/web, port \"tcp\": cluster IP",
            "connections counted by counted: ",
            "=> to 10.244.1.1 port 8080, masqueraded",
            "replied, TIME_WAIT",
        ] {
            assert!(trace.contains(expected), "no {expected:?} in\n{trace}");
        }
        let pod = ask(&["trace", "tcp", SERVICE[0], "80", "--from", POD[0]]);
        assert!(pod.contains("from interface v1"), "{pod}");
        let loopback = ask(&["trace", "tcp", LOOPBACK[0], "30080"]);
        assert!(loopback.contains("served by a socket of the proxy"), "{loopback}");
        // A flag overrides the running proxy's configuration: the comparison can fail.
        let at = format!("--metrics-bind-address={metrics}");
        let mut other = std::process::Command::new(env!("CARGO_BIN_EXE_orch-proxy"));
        let other = other.args([&at, "--masquerade-all", "diff"]).output().unwrap();
        assert!(!other.status.success());
        assert!(String::from_utf8_lossy(&other.stdout).contains("postrouting"), "{other:?}");
        let text = get(metrics, "/metrics").1;
        for name in [
            "rest_client_requests_total",
            "rest_client_request_duration_seconds_count",
            "kubeproxy_sync_proxy_rules_no_local_endpoints_total{traffic_policy=\"external\"} 0",
            "kubeproxy_userspace_connections_total{protocol=\"tcp\"}",
        ] {
            assert!(text.contains(name), "no {name} in\n{text}");
        }
    });
}
