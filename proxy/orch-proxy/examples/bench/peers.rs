//! kube-proxy's layouts at feasible sizes, reimplemented and programmed by `nft` as in kube-proxy: the older one with
//! a chain per Service and per endpoint and a verdict map in each Service's rule, the newer one with a chain per
//! Service and a data map in its rule.

use std::fmt::Write as _;
use std::io::Write as _;
use std::net::Ipv4Addr;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::resource::{UsageWho, getrusage};

use crate::dataplane_sizes::{LOAD, LOAD_IN_KERNEL, REPLACE, REPLACE_IN_KERNEL, figure};
use crate::figures::Unit;
use crate::packets::Roads;

/// Changes that are timed.
const ROUNDS: u32 = 20;
/// Endpoints per Service.
const ENDPOINTS: u32 = 3;
/// Pause before each load, in which the kernel frees the previous tables.
const UNREPLIED_DELAY: Duration = Duration::from_secs(2);

/// A layout.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Peer {
    /// A chain per Service and per endpoint.
    Older,
    /// A chain per Service.
    Newer,
}

/// Measures with one DNAT rule without lookup for all cluster IPs: the cost of NAT itself.
pub fn with_one_rule(measure: impl FnOnce()) {
    nft("table ip peer {
        chain pre { type nat hook prerouting priority -100\n
            ip daddr 10.96.0.0/11 tcp dport 80 dnat to 11.0.0.9:8080\n}
        chain post { type nat hook postrouting priority 100\n}
    }
");
    measure();
    nft("delete table ip peer\n");
}

/// Loads each size, replaces single endpoints, and sends packets.
pub fn measure_all(sizes: &[u32], roads: &Roads) {
    for services in sizes {
        for peer in [Peer::Older, Peer::Newer] {
            peer.measure(*services, roads);
        }
    }
}

impl Peer {
    fn name(self) -> &'static str {
        if self == Self::Older { "nft, chain per endpoint" } else { "nft, chain per Service" }
    }

    fn measure(self, services: u32, roads: &Roads) {
        std::thread::sleep(UNREPLIED_DELAY);
        let load = nft(&self.tables(services));
        let changes = (0..ROUNDS).map(|round| {
            let n = crate::dataplane_sizes::scatter(round, services);
            nft(&self.change(n, round + 1))
        });
        let (wall, kernel): (Vec<_>, Vec<_>) = changes.map(|took| (took.wall, took.kernel)).unzip();
        for (what, unit, times) in [
            (LOAD, Unit::Millis, vec![load.wall]),
            (LOAD_IN_KERNEL, Unit::Millis, vec![load.kernel]),
            (REPLACE, Unit::Micros, wall),
            (REPLACE_IN_KERNEL, Unit::Micros, kernel),
        ] {
            figure(what, unit, services, times).side(self.name()).tell().unwrap();
        }
        roads.measure(self.name(), services);
        nft("delete table ip peer\n");
    }

    /// All tables.
    fn tables(self, services: u32) -> String {
        let mut rules = String::from(FRAME);
        for n in 0..services {
            if self == Self::Older {
                (0..ENDPOINTS).for_each(|k| rules.push_str(&endpoint_chain(n, k, 0)));
            }
            let endpoints = self.rule(n, 0);
            writeln!(rules, "add chain ip peer svc-{n}\n{}{endpoints}", self.mark(n)).unwrap();
        }
        rules.push_str("add element ip peer services {");
        for n in 0..services {
            write!(rules, "{} . tcp . 80 : goto svc-{n},", cluster_ip(n)).unwrap();
        }
        rules.push_str("}\nadd element ip peer cluster-ips {");
        (0..services).for_each(|n| write!(rules, "{},", cluster_ip(n)).unwrap());
        rules.push_str("}\n");
        rules
    }

    /// Replaces one endpoint of a Service.
    fn change(self, n: u32, variant: u32) -> String {
        let (mark, rule) = (self.mark(n), self.rule(n, variant));
        let service = format!("flush chain ip peer svc-{n}\n{mark}{rule}");
        match self {
            Self::Older => format!("{}{service}", endpoint_chain(n, 0, variant)),
            Self::Newer => service,
        }
    }

    /// Marks clients outside the cluster for masquerading.
    fn mark(self, n: u32) -> String {
        let ip = cluster_ip(n);
        format!(
            "add rule ip peer svc-{n} ip daddr {ip} tcp dport 80 ip saddr != 10.0.0.0/8 jump mark-for-masquerade\n"
        )
    }

    /// The rule that draws an endpoint; in another `variant` the first endpoint differs.
    fn rule(self, n: u32, variant: u32) -> String {
        let endpoints = (0..ENDPOINTS).map(|k| match self {
            Self::Older => format!("{k} : goto ep-{n}-{k}-{}", if k == 0 { variant } else { 0 }),
            Self::Newer => format!("{k} : {} . 8080", address(n, k, variant)),
        });
        let endpoints = endpoints.collect::<Vec<_>>().join(", ");
        match self {
            Self::Older => {
                format!(
                    "add rule ip peer svc-{n} numgen random mod {ENDPOINTS} vmap {{ {endpoints} }}\n"
                )
            }
            Self::Newer => format!(
                "add rule ip peer svc-{n} meta l4proto tcp dnat ip to numgen random mod {ENDPOINTS} map {{ {endpoints} }}\n"
            ),
        }
    }
}

fn endpoint_chain(n: u32, k: u32, variant: u32) -> String {
    let variant = if k == 0 { variant } else { 0 };
    let (chain, to) = (format!("ip peer ep-{n}-{k}-{variant}"), address(n, k, variant));
    format!(
        "add chain {chain}\nadd rule {chain} ip saddr {to} jump mark-for-masquerade\n\
         add rule {chain} meta l4proto tcp dnat to {to}:8080\n"
    )
}

fn cluster_ip(n: u32) -> Ipv4Addr {
    Ipv4Addr::from(0x0a60_0000 + n)
}

fn address(n: u32, k: u32, variant: u32) -> Ipv4Addr {
    Ipv4Addr::from(0x0b00_0000 + n * 64 + if k == 0 { 8 + variant } else { k })
}

/// The fixed part of both: base chains, filters, masquerading.
const FRAME: &str = "table ip peer {
    set cluster-ips { type ipv4_addr\n}
    map no-endpoints { type ipv4_addr . inet_proto . inet_service : verdict\n}
    map firewall { type ipv4_addr . inet_proto . inet_service : verdict\n}
    map services { type ipv4_addr . inet_proto . inet_service : verdict\n}
    chain pre { type nat hook prerouting priority -100\n jump dispatch\n}
    chain out { type nat hook output priority -100\n jump dispatch\n}
    chain dispatch { ip daddr . meta l4proto . th dport vmap @services\n}
    chain post { type nat hook postrouting priority 100\n
        meta mark and 0x4000 == 0x4000 masquerade fully-random\n}
    chain mark-for-masquerade { meta mark set meta mark or 0x4000\n}
    chain check { ip daddr . meta l4proto . th dport vmap @no-endpoints\n}
    chain wall { ip daddr . meta l4proto . th dport vmap @firewall\n}
    chain unused { ip daddr @cluster-ips reject\n}
    chain filter-pre { type filter hook prerouting priority -110\n ct state new jump wall\n}
    chain filter-in { type filter hook input priority -110\n ct state new jump check\n}
    chain filter-forward { type filter hook forward priority -110\n
        ct state new jump check\n ct state new jump unused\n}
    chain filter-out { type filter hook output priority -110\n
        ct state new jump check\n ct state new jump wall\n}
}
";

/// Duration of a script.
struct Took {
    wall: Duration,
    /// CPU time in the kernel, without starting the process.
    kernel: Duration,
}

fn nft(script: &str) -> Took {
    let kernel = || {
        let usage = getrusage(UsageWho::RUSAGE_CHILDREN).unwrap().system_time();
        Duration::from_micros(u64::try_from(usage.tv_sec() * 1_000_000 + usage.tv_usec()).unwrap())
    };
    let (started, before) = (Instant::now(), kernel());
    let mut child = Command::new("nft").args(["-f", "-"]).stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success(), "nft");
    Took { wall: started.elapsed(), kernel: kernel().saturating_sub(before) }
}
