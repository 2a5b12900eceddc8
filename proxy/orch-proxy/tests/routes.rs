//! Pod routes in the real kernel: made, recognised as ours, moved, withdrawn; others' left alone.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may end anywhere")]

#[path = "../../kernel/tests/support/sys.rs"]
mod sys;

use std::net::IpAddr;

use orch_proxy::routes::{Kernel, Range, Routes, plan};
use sys::{in_namespace, run};

fn route(range: &str, hop: &str) -> (Range, IpAddr) {
    (Range::parse(range).unwrap(), hop.parse().unwrap())
}

#[test]
fn routes_are_made_moved_and_withdrawn() {
    in_namespace("routes_are_made_moved_and_withdrawn", || {
        run(&["ip", "link", "add", "v0", "type", "veth", "peer", "name", "v1"]);
        run(&["ip", "link", "set", "v0", "up"]);
        run(&["ip", "link", "set", "v1", "up"]);
        run(&["ip", "addr", "add", "172.30.0.1/24", "dev", "v0"]);
        run(&["ip", "addr", "add", "fd01::1/64", "dev", "v0", "nodad"]);
        run(&["ip", "route", "add", "10.9.0.0/24", "via", "172.30.0.9"]);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let kernel = Kernel::open().unwrap();
            assert_eq!(kernel.current().await.unwrap(), Routes::new());
            let first =
                Routes::from([route("10.1.0.0/24", "172.30.0.2"), route("fd02::/64", "fd01::2")]);
            kernel.apply(&plan(&Routes::new(), &first)).await.unwrap();
            assert_eq!(kernel.current().await.unwrap(), first);
            // Again is no error.
            kernel.apply(&plan(&Routes::new(), &first)).await.unwrap();
            let second = Routes::from([route("10.1.0.0/24", "172.30.0.3")]);
            kernel.apply(&plan(&first, &second)).await.unwrap();
            assert_eq!(kernel.current().await.unwrap(), second);
            kernel.apply(&plan(&second, &Routes::new())).await.unwrap();
            assert_eq!(kernel.current().await.unwrap(), Routes::new());
        });
        assert!(run(&["ip", "route"]).contains("10.9.0.0/24 via 172.30.0.9"));
    });
}
