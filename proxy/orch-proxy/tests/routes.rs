//! Pod routes in the real kernel: added, recognised as the proxy's, changed, removed; those of other programs stay.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may end anywhere")]

#[path = "../../kernel/tests/support/sys.rs"]
mod sys;

use std::net::IpAddr;

use proto_api::core::v1::{Node, NodeAddress};
use proxy_pod_routes::routes::{RouteError, RouteTable, Routes, plan, plan_routes};
use proxy_rules::model::Cidr;
use sys::{in_namespace, run};

fn route(range: &str, hop: &str) -> (Cidr, IpAddr) {
    (range.parse().unwrap(), hop.parse().unwrap())
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
            let kernel = RouteTable::open().unwrap();
            assert_eq!(kernel.current().await.unwrap(), Routes::new());
            let first =
                Routes::from([route("10.1.0.0/24", "172.30.0.2"), route("fd02::/64", "fd01::2")]);
            kernel.apply(&plan(&Routes::new(), &first)).await.unwrap();
            assert_eq!(kernel.current().await.unwrap(), first);
            // Adding them again is no error.
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

fn node(name: &str, range: &str, address: &str) -> Node {
    let mut node = Node::default();
    node.metadata.name = name.into();
    node.spec.pod_cidrs = vec![range.into()];
    let address = NodeAddress { type_: "InternalIP".into(), address: address.into() };
    node.status.addresses = vec![address];
    node
}

#[test]
fn routes_follow_the_nodes() {
    in_namespace("routes_follow_the_nodes", || {
        run(&["ip", "link", "add", "v0", "type", "veth", "peer", "name", "v1"]);
        run(&["ip", "link", "set", "v0", "up"]);
        run(&["ip", "link", "set", "v1", "up"]);
        run(&["ip", "addr", "add", "172.30.0.1/24", "dev", "v0"]);
        run(&["ip", "route", "add", "10.1.9.0/24", "via", "172.30.0.99"]);
        let table = || run(&["ip", "-4", "route", "show", "proto", "78"]);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let kernel = RouteTable::open().unwrap();
            let follow = async |nodes: &[Node]| {
                let wanted = plan_routes(nodes, "a", &["10.1.0.0/16".parse().unwrap()]).routes;
                kernel.apply(&plan(&kernel.current().await.unwrap(), &wanted)).await
            };
            let own = node("a", "10.1.0.0/24", "172.30.0.1");
            let b = node("b", "10.1.1.0/24", "172.30.0.2");
            let c = node("c", "10.1.2.0/24", "172.30.0.3");
            follow(&[own.clone(), b.clone(), c.clone()]).await.unwrap();
            assert!(table().contains("10.1.1.0/24 via 172.30.0.2"), "{}", table());
            assert!(
                table().contains("10.1.2.0/24 via 172.30.0.3") && !table().contains("10.1.0.0")
            );
            // One node gets another pod CIDR, one another address.
            let b = node("b", "10.1.7.0/24", "172.30.0.2");
            let c = node("c", "10.1.2.0/24", "172.30.0.4");
            follow(&[own.clone(), b.clone(), c]).await.unwrap();
            assert!(
                table().contains("10.1.7.0/24 via 172.30.0.2") && !table().contains("10.1.1.0")
            );
            assert!(table().contains("10.1.2.0/24 via 172.30.0.4"), "{}", table());
            // One node is removed.
            follow(&[own.clone(), b.clone()]).await.unwrap();
            assert!(!table().contains("10.1.2.0"), "{}", table());
            // Another program's route to a pod CIDR is reported and stays; the other routes are added.
            let d = node("d", "10.1.9.0/24", "172.30.0.5");
            let e = node("e", "10.1.10.0/24", "172.30.0.6");
            let refused = follow(&[own, b, d, e]).await;
            assert!(matches!(refused, Err(RouteError::Foreign { .. })), "{refused:?}");
            assert!(table().contains("10.1.10.0/24 via 172.30.0.6"), "{}", table());
            assert!(run(&["ip", "route"]).contains("10.1.9.0/24 via 172.30.0.99"));
        });
    });
}
