//! Shares that outlive the agent.

use agent_node::managers::cpus;
use agent_node::managers::topology::Cpu;
use agent_pod::spec::{ContainerConfig, SandboxConfig};
use agent_runtime::fake::FakeRuntime;
use agent_runtime::{ContainerRuntime as _, ImageRuntime as _, SandboxRuntime as _};
use proto_api::core::v1::Container;
use proto_api::names::Names;
use std::sync::Arc;
use std::time::Duration;

use super::*;

fn pod(uid: &str, cpus: &str) -> Pod {
    let mut container = Container { name: "c".into(), ..Container::default() };
    for (name, amount) in [("cpu", cpus), ("memory", "1Gi")] {
        container.resources.limits.insert(name.into(), amount.parse().expect("quantity"));
    }
    let mut pod = Pod::default();
    pod.metadata.uid = uid.into();
    pod.spec.containers = vec![container];
    pod
}

fn journal(path: &std::path::Path) -> Journal {
    // The process before lets go of the journal when it ends.
    Journal::open(path, "boot").expect("journal").0
}

fn allocator(journal: Journal) -> Arc<Allocator> {
    let cpu = |id| Cpu { id, core: id, socket: 0, node: 0 };
    let machine = MachineTopology { cpus: (0..4).map(cpu).collect(), memory: BTreeMap::new() };
    let reserved = "0".parse().expect("set");
    let rules = ManagerRules {
        cpus: Some(cpus::CpuRules { reserved, unit: cpus::CpuUnit::Thread }),
        ..ManagerRules::default()
    };
    let plugins = Plugins::new("/nonexistent".into(), <&Names>::default(), []);
    Arc::new(Allocator::new(
        rules,
        machine,
        plugins,
        journal,
        agent_telemetry::metrics::AgentMetrics::default().operations,
    ))
}

#[tokio::test]
async fn shares_are_remembered_and_given_back() {
    // In memory, if possible: the first journal may be open while a busy disk syncs it.
    let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("tempdir");
    let path = dir.path().join("journal.redb");
    let (a, b, shared) = (pod("a", "2"), pod("b", "2"), pod("s", "500m"));
    let first = journal(&path);
    let before = allocator(first.clone());
    before.admit(&a).await.expect("given");
    before.admit(&shared).await.expect("given");
    assert_eq!(before.granted(&a, "c").cpus, "1-2");
    assert_eq!(before.granted(&shared, "c").cpus, "0,3");
    let refused = before.admit(&b).await.expect_err("too much");
    assert_eq!(refused.reason, "UnexpectedAdmissionError");
    assert_eq!(before.granted(&b, "c").cpus, "0,3", "a refused pod has nothing of its own");
    first.close();
    drop((before, first));

    let after = allocator(journal(&path));
    assert_eq!(after.granted(&a, "c").cpus, "1-2", "a restart takes nothing away");
    after.admit(&a).await.expect("it has it already");
    assert!(after.admit(&b).await.is_err(), "and gives nothing away twice");
    after.retain(|uid| uid != "a");
    after.admit(&b).await.expect("given");
    assert_eq!(after.granted(&b, "c").cpus, "1-2");
}

/// Running containers leave processors that another gets for itself, and get them back.
#[tokio::test(start_paused = true)]
async fn the_others_make_room() {
    let dir = tempfile::tempdir().expect("tempdir");
    let allocator = allocator(journal(&dir.path().join("journal.redb")));
    let runtime = Arc::new(FakeRuntime::new().0);
    let sandbox = SandboxConfig { uid: "s".into(), name: "s".into(), ..SandboxConfig::default() };
    let made = runtime.run_sandbox(&sandbox).await.expect("sandbox");
    runtime.add_image("i");
    let image = runtime.image("i").await.expect("asked").expect("there").id;
    let config = ContainerConfig { name: "c".into(), image, ..ContainerConfig::default() };
    let id = runtime.create_container(&made.id, &config, &sandbox).await.expect("container");
    runtime.start_container(&id).await.expect("started");
    let keeper =
        pool::keep(allocator.clone(), runtime.clone(), runtime.clone(), Duration::from_secs(10));
    let keeper = tokio::spawn(keeper);
    let cpus = async |expect: &str| {
        for _ in 0..1000 {
            if runtime.resources(&id).cpuset_cpus == expect {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!("{:?} instead of {expect}", runtime.resources(&id).cpuset_cpus);
    };
    cpus("0-3").await;
    allocator.admit(&pod("a", "2")).await.expect("given");
    cpus("0,3").await;
    allocator.release("a");
    cpus("0-3").await;
    keeper.abort();
}
