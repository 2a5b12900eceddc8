//! The runtime of hollow nodes passes the contract, and gives pods the addresses of its range.

use agent_pod::spec::SandboxConfig;
use agent_runtime::contract::Contract;
use agent_runtime::events::RuntimeEvent;
use agent_runtime::memory::{MemoryRuntime, PodRange};
use agent_runtime::{ImageRuntime as _, RuntimeStatus as _, SandboxRuntime as _};
use futures_util::FutureExt as _;

fn now() -> i64 {
    1_700_000_000_000_000_000
}

#[tokio::test]
async fn the_runtime_of_hollow_nodes_keeps_the_contract() {
    let (runtime, mut events) = MemoryRuntime::new(now);
    runtime.set_pod_range(PodRange::parse("10.244.3.0/24").expect("a range"));
    runtime.pull_image("orch.local/busybox:1", None).await.expect("pulled");
    let contract = Contract {
        runtime: &runtime,
        image: "orch.local/busybox:1",
        cgroup_parent: "",
        log_directory: "/var/log/pods",
    };
    contract.check().await;
    // Skips earlier events; a new watch starts with `Missed`.
    while events.recv().now_or_never().is_some() {}
    let mut first = Some(RuntimeEvent::Missed);
    let mut next = || {
        let event = first.take().or_else(|| events.recv().now_or_never().flatten());
        std::future::ready(event).boxed()
    };
    contract.check_events(&mut next).await;
}

#[tokio::test]
async fn pods_have_addresses_of_the_range_while_there_are_any() {
    let (runtime, _events) = MemoryRuntime::new(now);
    assert!(runtime.health().await.expect("health").network.is_err(), "no range yet");
    runtime.set_pod_range(PodRange::parse("10.244.3.0/29").expect("a range"));
    assert!(runtime.health().await.expect("health").network.is_ok());
    let of = |uid: &str| SandboxConfig { uid: uid.to_owned(), ..SandboxConfig::default() };
    let mut ips = Vec::new();
    for uid in ["a", "b", "c", "d", "e"] {
        ips.extend(runtime.run_sandbox(&of(uid)).await.expect("sandbox").ips);
    }
    let expected = ["10.244.3.2", "10.244.3.3", "10.244.3.4", "10.244.3.5", "10.244.3.6"];
    assert_eq!(ips, expected, "neither the network, the node nor the last address");
    assert!(runtime.run_sandbox(&of("f")).await.is_err(), "all are taken");
    let sandbox = runtime.run_sandbox(&of("c")).await.expect("the same again");
    runtime.remove_sandbox(&sandbox.id).await.expect("removed");
    assert_eq!(runtime.run_sandbox(&of("f")).await.expect("sandbox").ips, ["10.244.3.4"]);
}

#[test]
fn invalid_pod_cidrs_are_refused() {
    for wrong in ["", "10.0.0.0", "10.0.0.0/30", "10.0.0.0/0", "10.0.0.0/33", "fd00::/64", "x/24"] {
        assert_eq!(PodRange::parse(wrong), None, "{wrong}");
    }
    assert_eq!(PodRange::parse("10.0.0.7/24"), PodRange::parse("10.0.0.0/24"));
}
