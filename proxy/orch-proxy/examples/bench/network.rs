//! Two roads from a client over a node to servers: one over this namespace, which has the services, and one over a node
//! that tracks connections and has empty chains of type nat, as a measure of what is not the services' doing.
//!
//! ```text
//! client 10.2.0.1 ──cable── node ──cable── server: every address of 11.0.0.0/8
//! ```

use std::fs::File;
use std::net::Ipv4Addr;
use std::thread;

use nix::sched::{CloneFlags, CpuSet, sched_setaffinity, setns};
use nix::unistd::Pid;

use crate::sys::run;

/// The client's own address.
pub const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 2, 0, 1);
/// Servers' addresses begin here.
pub const SERVERS: u32 = 0x0b00_0000;

/// A way from a client over a node to servers.
pub struct Road {
    /// Namespace of the client.
    pub client: String,
    /// Namespace of the servers.
    pub server: String,
    /// Namespace of the node; none for the one that the program runs in.
    node: Option<String>,
}

/// A place for named namespaces that goes with the mount namespace.
pub fn prepare() {
    run(&["mount", "-t", "tmpfs", "tmpfs", "/run"]);
}

impl Road {
    /// Over the namespace that the program runs in.
    pub fn over_here() -> Self {
        Self::make("here", None)
    }

    /// Over a node with empty chains.
    pub fn over_nothing() -> Self {
        run(&["ip", "netns", "add", "plain"]);
        let road = Self::make("plain", Some("plain".to_owned()));
        road.at_node(&["nft", EMPTY]);
        road
    }

    fn make(name: &str, node: Option<String>) -> Self {
        let (client, server) = (format!("client-{name}"), format!("server-{name}"));
        let road = Self { client, server, node };
        for (place, near) in [(&road.client, "client"), (&road.server, "server")] {
            run(&["ip", "netns", "add", place]);
            road.at_node(&[
                "ip", "link", "add", near, "type", "veth", "peer", "name", "eth0", "netns", place,
            ]);
            road.at_node(&["ip", "link", "set", near, "up"]);
            for link in ["lo", "eth0"] {
                run(&["ip", "-n", place, "link", "set", link, "up"]);
            }
        }
        let (client, server) = (CLIENT.to_string(), "10.3.0.1".to_owned());
        road.cable(&road.client, "client", "169.254.1.1", &client, &["10.2.0.0/16", "10.1.0.0/16"]);
        road.cable(&road.server, "server", "169.254.2.1", &server, &["11.0.0.0/8"]);
        run(&["ip", "-n", &road.server, "route", "add", "local", "11.0.0.0/8", "dev", "lo"]);
        let in_server = ["ip", "netns", "exec", &road.server, "nft"];
        run(&[&in_server[..], &[SINK]].concat());
        let forward = "echo 1 > /proc/sys/net/ipv4/ip_forward";
        // Packets without a connection behind them have no checksums.
        let checksum = "echo 0 > /proc/sys/net/netfilter/nf_conntrack_checksum";
        let filter = "for f in /proc/sys/net/ipv4/conf/*/rp_filter; do echo 0 > $f; done";
        road.at_node(&["sh", "-c", &format!("{forward}; {checksum}; {filter}")]);
        road
    }

    /// Addresses and routes of a cable: `far` is the address of the place, `blocks` what else lies there.
    fn cable(&self, place: &str, near: &str, gateway: &str, far: &str, blocks: &[&str]) {
        self.at_node(&["ip", "addr", "add", &format!("{gateway}/32"), "dev", near]);
        self.at_node(&["ip", "route", "add", far, "dev", near]);
        for block in blocks {
            self.at_node(&["ip", "route", "add", block, "via", far, "dev", near]);
        }
        run(&["ip", "-n", place, "addr", "add", &format!("{far}/32"), "dev", "eth0"]);
        run(&["ip", "-n", place, "route", "add", gateway, "dev", "eth0"]);
        run(&["ip", "-n", place, "route", "add", "default", "via", gateway, "dev", "eth0"]);
    }

    /// Runs a tool on the node.
    pub fn at_node(&self, words: &[&str]) -> String {
        match &self.node {
            Some(node) => run(&[&["ip", "netns", "exec", node], words].concat()),
            None => run(words),
        }
    }

    /// Connections that the node tracks.
    pub fn tracked(&self) -> u32 {
        let count = self.at_node(&["cat", "/proc/sys/net/netfilter/nf_conntrack_count"]);
        count.trim().parse().unwrap()
    }

    /// Makes the node forget all connections.
    pub fn forget(&self) {
        self.at_node(&["sh", "-c", "conntrack -F 2>/dev/null"]);
    }
}

/// Chains of type nat without rules. Connections are tracked as soon as any rule speaks of them, also one that no packet
/// meets.
const EMPTY: &str = "table ip empty {
    chain unused { ct state new accept\n}
    chain pre { type nat hook prerouting priority -100\n}
    chain post { type nat hook postrouting priority 100\n}
}
";

/// Takes packets that belong to no connection as soon as they arrive.
const SINK: &str = "table netdev sink {
    chain in { type filter hook ingress device eth0 priority 0\n ip saddr 10.1.0.0/16 drop\n}
}
";

/// Runs `body` on a thread inside a named namespace; sockets that it makes stay there.
pub fn inside<T: Send + 'static>(place: &str, body: impl FnOnce() -> T + Send + 'static) -> T {
    let path = format!("/run/netns/{place}");
    let thread = thread::spawn(move || {
        setns(File::open(path).unwrap(), CloneFlags::CLONE_NEWNET).unwrap();
        body()
    });
    thread.join().unwrap()
}

/// Keeps a thread to some of the processors: the one that measures to the first, what is measured to the others, so that
/// neither waits for the other. Does nothing where there is one.
pub fn keep_to(thread: Pid, processors: Processors) {
    let count = thread::available_parallelism().map_or(1, |count| count.get());
    let mut set = CpuSet::new();
    let wanted = (0..count).filter(|cpu| match processors {
        Processors::First => *cpu == 0,
        Processors::Others => *cpu != 0,
        Processors::All => true,
    });
    wanted.for_each(|cpu| set.set(cpu).unwrap());
    if count > 1 {
        sched_setaffinity(thread, &set).unwrap();
    }
}

/// Processors of this machine.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Processors {
    /// The first one.
    First,
    /// All but the first one.
    Others,
    /// All.
    All,
}
