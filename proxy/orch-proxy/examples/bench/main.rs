//! Benchmarks of the proxy in a network namespace: `unshare --net --mount target/release/examples/bench [options]
//! [services ...]`, as `hack/bench proxy` runs it.
//!
//! - From the node-local model to the kernel, kernel memory, and the cost of packets ([`plane`], [`packets`]).
//! - The program with an API server in this process: start, memory, from the bytes of a change on the watch's socket
//!   to the commit, and the longest health request meanwhile ([`watch`]). Needs the program in the parent directory.
//! - kube-proxy's layouts, a chain per Service, at feasible sizes ([`peers`]).
//! - The program and kube-proxy, if its path is given ([`kube_proxy`]).
//! - Stale flows found and deleted in a full conntrack table ([`stale`]).

#![allow(clippy::unwrap_used, reason = "a program for people, which may end anywhere")]

#[path = "../../tests/support/api.rs"]
mod api;
mod dataplane_sizes;
#[path = "../../../../tests/bench/figures.rs"]
mod figures;
mod kube_proxy;
mod memory;
mod network;
mod packets;
mod peers;
mod program;
mod stale;
#[path = "../../../kernel/tests/support/sys.rs"]
mod sys;
mod watch;

use std::path::PathBuf;

use clap::Parser;

/// Benchmarks of the proxy. Runs all parts unless some are selected.
#[derive(Parser)]
struct Flags {
    /// Sizes of the tables, in Services of three endpoints
    #[arg(value_name = "SERVICES", default_values_t = [1_000, 10_000, 100_000])]
    sizes: Vec<u32>,
    /// Sizes for kube-proxy's layouts; the older one takes half a minute for 10,000
    #[arg(long, value_delimiter = ',', default_values_t = [1_000, 10_000])]
    peer_sizes: Vec<u32>,
    /// Run only these parts
    #[arg(long, value_delimiter = ',')]
    only: Vec<Part>,
    /// kube-proxy, to compare with
    #[arg(long, value_name = "PATH")]
    peer: Option<PathBuf>,
    /// A flag for kube-proxy; may be repeated
    #[arg(long = "peer-flag", value_name = "FLAG", allow_hyphen_values = true)]
    peer_flags: Vec<String>,
}

/// A part of the benchmarks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    /// From the model to the kernel, and kernel memory.
    Plane,
    /// The cost of packets.
    Packets,
    /// The program with an API server.
    Watch,
    /// kube-proxy's layouts.
    Peers,
    /// The program with 1,000 Services, and kube-proxy if its path is given.
    Program,
    /// Stale flows.
    Stale,
}

fn main() {
    let flags = Flags::parse();
    let wanted = |part| flags.only.is_empty() || flags.only.contains(&part);
    sys::run(&["ip", "link", "set", "lo", "up"]);
    let needs_roads = [Part::Packets, Part::Peers, Part::Program].into_iter().any(wanted);
    let roads = needs_roads.then(packets::Roads::make);
    if wanted(Part::Plane) || wanted(Part::Packets) {
        dataplane_sizes::measure_all(
            &flags.sizes,
            roads.as_ref().filter(|_| wanted(Part::Packets)),
        );
    }
    if wanted(Part::Watch) {
        watch::measure_all(&flags.sizes);
    }
    if let Some(roads) = roads.as_ref().filter(|_| wanted(Part::Peers)) {
        peers::measure_all(&flags.peer_sizes, roads);
    }
    if let Some(roads) = roads.as_ref().filter(|_| wanted(Part::Program)) {
        kube_proxy::measure(flags.peer.as_deref(), &flags.peer_flags, roads);
    }
    if wanted(Part::Stale) {
        stale::measure();
    }
}
