//! Measures the proxy in a network namespace of its own:
//! `unshare --net --mount target/release/examples/bench [--stale] [services ...]`.
//!
//! - From the node-local model to the kernel ([`plane`]).
//! - The real program at an API server in this process: start, memory, and from the bytes of a change on the
//!   watch's socket to the kernel's commit ([`watch`]). Needs the program beside this one's directory.
//! - The ecosystem's layout, a chain for each service, at sizes that it can bear ([`peers`]).
//! - Stale flows found and let go among a full table of connections ([`stale`]).

#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a program for people, which may end anywhere"
)]

#[path = "../../tests/support/api.rs"]
mod api;
mod peers;
mod plane;
mod stale;
mod watch;

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let mut sizes: Vec<u32> = words.iter().filter_map(|word| word.parse().ok()).collect();
    if sizes.is_empty() {
        sizes = vec![1_000, 10_000, 100_000];
    }
    let is_up = std::process::Command::new("ip").args(["link", "set", "lo", "up"]).status();
    assert!(is_up.is_ok_and(|status| status.success()), "loopback");
    if !words.iter().any(|word| word == "--stale") {
        plane::measure_all(&sizes);
        println!();
        watch::measure_all(&sizes);
        println!();
        peers::measure_all(&[1_000, 3_000]);
        println!();
    }
    stale::measure();
}
