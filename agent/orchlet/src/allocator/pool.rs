//! Keeps running containers on the processors they may use: what one gets for itself the others leave.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use agent_pod::observed::InstanceState;
use agent_pod::spec::ContainerResources;
use agent_runtime::Runtime;
use proto_daemon::exit::chain;

use super::Allocator;

/// Repairs at every change of the holdings, and every `period` for containers that were made while they changed.
pub async fn keep(allocator: Arc<Allocator>, runtime: Arc<dyn Runtime>, period: Duration) {
    if allocator.rules.cpus.is_none() {
        return;
    }
    let mut version = allocator.version.subscribe();
    let mut applied = BTreeMap::new();
    loop {
        version.mark_unchanged();
        repair(&allocator, &*runtime, &mut applied).await;
        // Cancel safe: either way everything is looked at.
        tokio::select! {
            changed = version.changed() => if changed.is_err() { return },
            () = tokio::time::sleep(period) => {}
        }
    }
}

/// Brings every running container to its processors; `applied` holds by id what was set last.
async fn repair(
    allocator: &Allocator,
    runtime: &dyn Runtime,
    applied: &mut BTreeMap<String, String>,
) {
    let pods = match runtime.list().await {
        Ok(pods) => pods,
        Err(error) => {
            tracing::warn!(error = chain(&error), "containers' processors are not looked at");
            return;
        }
    };
    let mut seen = BTreeMap::new();
    for pod in pods {
        for container in pod.containers {
            if !matches!(container.state, InstanceState::Running { .. }) {
                continue;
            }
            let cpus = {
                let holdings = allocator.lock();
                let own = holdings.get(&pod.uid).and_then(|all| all.get(&container.name));
                allocator.cpus_of(own, &holdings)
            };
            if applied.get(&container.id) != Some(&cpus) {
                let resources = ContainerResources {
                    cpuset_cpus: cpus.clone(),
                    ..ContainerResources::default()
                };
                if let Err(error) = runtime.update_resources(&container.id, &resources).await {
                    tracing::warn!(id = container.id, error = chain(&error), "processors not set");
                    continue;
                }
            }
            seen.insert(container.id, cpus);
        }
    }
    *applied = seen;
}
