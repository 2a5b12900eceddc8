//! The layout of the ecosystem's proxy at sizes that it can bear, for comparison: a chain for each service, with a map
//! of its endpoints, programmed as it is programmed there, by `nft`.

use std::fmt::Write as _;
use std::io::Write as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Changes that are timed.
const ROUNDS: u32 = 20;

/// Loads each size and replaces single endpoints.
pub fn measure_all(sizes: &[u32]) {
    println!("for comparison: a chain and a map for each service, by nft");
    println!("{:>9} {:>12} {:>22}", "services", "load", "replace ep p50/p99");
    for services in sizes {
        let mut rules = String::from("table ip peer {\n");
        for n in 0..*services {
            writeln!(rules, "chain svc-{n} {{ {}\n}}", balance(n, 0)).unwrap();
        }
        rules.push_str(
            "map services { type ipv4_addr . inet_proto . inet_service : verdict; elements = {",
        );
        for n in 0..*services {
            write!(
                rules,
                "{} . tcp . 80 : goto svc-{n},",
                std::net::Ipv4Addr::from(0x0a60_0000 + n)
            )
            .unwrap();
        }
        rules.push_str("}\n}\nchain pre { type nat hook prerouting priority -100\n");
        rules.push_str("ip daddr . meta l4proto . th dport vmap @services\n}\n}\n");
        let load = nft(&rules);
        let changes = (0..ROUNDS).map(|round| {
            let n = crate::plane::scatter(round, *services);
            let chain = format!("ip peer svc-{n}");
            nft(&format!("flush chain {chain}\nadd rule {chain} {}\n", balance(n, 7)))
        });
        let changes = crate::plane::quantiles(changes.collect());
        println!("{services:>9} {:>9.0} ms {changes:>22}", load.as_secs_f64() * 1e3);
        nft("delete table ip peer\n");
    }
}

fn balance(n: u32, variant: u32) -> String {
    let address = |k| std::net::Ipv4Addr::from(0x0b00_0000 + n * 16 + k);
    let (a, b, c) = (address(variant), address(1), address(2));
    format!(
        "meta l4proto tcp dnat ip to numgen random mod 3 map {{ 0 : {a} . 8080, 1 : {b} . 8080, 2 : {c} . 8080 }}"
    )
}

/// Runs a script; how long it took.
fn nft(script: &str) -> Duration {
    let started = Instant::now();
    let mut child = Command::new("nft").args(["-f", "-"]).stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success(), "nft");
    started.elapsed()
}
