//! Two paths from a client through a node to servers: one through this network namespace, which has the Services, and
//! one through a node with conntrack and empty chains of type nat, as the baseline.
//!
//! ```text
//! client 10.2.0.1 ──veth── node ──veth── server: every address of 11.0.0.0/8
//! ```

use std::fs::File;
use std::net::Ipv4Addr;
use std::thread;

use nix::sched::{CloneFlags, CpuSet, sched_setaffinity, setns};
use nix::unistd::Pid;

use crate::sys::run;

/// The client's address.
pub const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 2, 0, 1);
/// First address of the servers.
pub const SERVERS: u32 = 0x0b00_0000;

/// A path from a client through a node to servers.
pub struct Road {
    /// Namespace of the client.
    pub client: String,
    /// Namespace of the servers.
    pub server: String,
    /// Namespace of the node; `None` for the program's own.
    node: Option<String>,
}

/// Mounts a directory for named namespaces that ends with the mount namespace.
pub fn prepare() {
    run(&["mount", "-t", "tmpfs", "tmpfs", "/run"]);
}

impl Road {
    /// Through the program's own namespace.
    pub fn over_here() -> Self {
        Self::make("here", None)
    }

    /// Through a node with empty chains.
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
        // Handmade packets have no checksums.
        let checksum = "echo 0 > /proc/sys/net/netfilter/nf_conntrack_checksum";
        let filter = "for f in /proc/sys/net/ipv4/conf/*/rp_filter; do echo 0 > $f; done";
        road.at_node(&["sh", "-c", &format!("{forward}; {checksum}; {filter}")]);
        road
    }

    /// Addresses and routes of a veth pair: `far` is the address of the place, `blocks` are further networks there.
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

    /// Runs a command on the node.
    pub fn at_node(&self, words: &[&str]) -> String {
        match &self.node {
            Some(node) => run(&[&["ip", "netns", "exec", node], words].concat()),
            None => run(words),
        }
    }

    /// Number of conntrack entries on the node.
    pub fn tracked(&self) -> u32 {
        let count = self.at_node(&["cat", "/proc/sys/net/netfilter/nf_conntrack_count"]);
        count.trim().parse().unwrap()
    }

    /// Deletes all conntrack entries on the node.
    pub fn forget(&self) {
        self.at_node(&["sh", "-c", "conntrack -F 2>/dev/null"]);
    }
}

/// Chains of type nat without rules. A rule that uses conntrack enables it, even if no packet matches it.
const EMPTY: &str = "table ip empty {
    chain unused { ct state new accept\n}
    chain pre { type nat hook prerouting priority -100\n}
    chain post { type nat hook postrouting priority 100\n}
}
";

/// Drops packets of no connection on arrival.
const SINK: &str = "table netdev sink {
    chain in { type filter hook ingress device eth0 priority 0\n ip saddr 10.1.0.0/16 drop\n}
}
";

/// Runs `body` on a thread in a named namespace; its sockets stay there.
pub fn inside<T: Send + 'static>(place: &str, body: impl FnOnce() -> T + Send + 'static) -> T {
    let path = format!("/run/netns/{place}");
    let thread = thread::spawn(move || {
        setns(File::open(path).unwrap(), CloneFlags::CLONE_NEWNET).unwrap();
        body()
    });
    thread.join().unwrap()
}

/// Pins a thread: the measuring one to the first processor, the measured ones to the others, so that they do not wait
/// for each other. Does nothing on a single processor.
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
    First,
    /// All but the first one.
    Others,
    All,
}
