//! The in-memory runtime passes the contract.

use agent_runtime::contract::Contract;
use agent_runtime::fake::FakeRuntime;
use futures_util::FutureExt as _;

#[tokio::test]
async fn the_runtime_in_memory_keeps_the_contract() {
    let (runtime, mut events) = FakeRuntime::new();
    runtime.add_image("orch.local/busybox:1");
    let contract = Contract {
        runtime: &runtime,
        image: "orch.local/busybox:1",
        cgroup_parent: "",
        log_directory: "/var/log/pods",
    };
    contract.check().await;
    // Skips earlier events; a new watch starts with `Missed`.
    while events.recv().now_or_never().is_some() {}
    let mut first = Some(agent_runtime::events::RuntimeEvent::Missed);
    let mut next = || {
        let event = first.take().or_else(|| events.recv().now_or_never().flatten());
        std::future::ready(event).boxed()
    };
    contract.check_events(&mut next).await;
}
