//! Updates the CPU sets of running containers: CPUs allocated exclusively leave the shared pool.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use agent_pod::observed::InstanceState;
use agent_pod::spec::ContainerResources;
use agent_runtime::{ContainerRuntime, PodReader};
use proto_daemon::exit::chain;

use super::Allocator;

/// Updates them after every change of allocations, and every `period` for containers created
/// meanwhile.
pub async fn keep(
    allocator: Arc<Allocator>,
    pods: Arc<dyn PodReader>,
    containers: Arc<dyn ContainerRuntime>,
    period: Duration,
) {
    if allocator.rules.cpus.is_none() {
        return;
    }
    let mut version = allocator.version.subscribe();
    let mut applied = BTreeMap::new();
    loop {
        version.mark_unchanged();
        repair(&allocator, &*pods, &*containers, &mut applied).await;
        // Cancel safe: either way all containers are checked.
        tokio::select! {
            changed = version.changed() => if changed.is_err() { return },
            () = tokio::time::sleep(period) => {}
        }
    }
}

/// Updates the CPU set of every running container; `applied` holds what was last set, by CRI id.
async fn repair(
    allocator: &Allocator,
    pods: &dyn PodReader,
    containers: &dyn ContainerRuntime,
    applied: &mut BTreeMap<String, String>,
) {
    let pods = match pods.list().await {
        Ok(pods) => pods,
        Err(error) => {
            tracing::warn!(
                error = chain(&error),
                "cannot list containers to update their CPU sets; retried"
            );
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
                if let Err(error) = containers.update_resources(&container.id, &resources).await {
                    tracing::warn!(
                        id = container.id,
                        error = chain(&error),
                        "cannot update a container's CPU set; retried"
                    );
                    continue;
                }
            }
            seen.insert(container.id, cpus);
        }
    }
    *applied = seen;
}
