//! The calls of the runtime in memory. All of them answer at once.

use std::future::ready;
use std::time::Duration;

use agent_pod::observed::{ObservedContainer, ObservedSandbox};
use agent_pod::spec::{ContainerConfig, ContainerResources, SandboxConfig};
use futures_util::FutureExt as _;

use super::objects::{image_of, updated};
use super::{MemoryRuntime, NAME, refusal, stream};
use crate::runtime::{
    CallFuture, ConditionError, ContainerAccess, ContainerLogs, ContainerRuntime, ContainerUsage,
    ExecOutput, FilesystemUsage, Image, ImageRuntime, PodOnNode, PodReader, RegistryLogin,
    RuntimeHealth, RuntimeStatus, RuntimeVersion, SandboxRuntime, StreamRequest, UsageReader,
};

/// An answer that is there.
fn answer<'a, T: Send + 'a>(answer: T) -> CallFuture<'a, T> {
    ready(Ok(answer)).boxed()
}

/// What is kept of a container's configuration. The environment may name thousands of Services, in each of tens of thousands of containers.
fn without_environment(config: &ContainerConfig) -> ContainerConfig {
    ContainerConfig {
        name: config.name.clone(),
        attempt: config.attempt,
        image: config.image.clone(),
        command: config.command.clone(),
        args: config.args.clone(),
        resources: config.resources.clone(),
        ..ContainerConfig::default()
    }
}

impl RuntimeStatus for MemoryRuntime {
    fn version(&self) -> CallFuture<'_, RuntimeVersion> {
        let version = env!("CARGO_PKG_VERSION").to_owned();
        answer(RuntimeVersion { name: NAME.to_owned(), version })
    }

    fn health(&self) -> CallFuture<'_, RuntimeHealth> {
        let network = self.lock().pod_range.map(|_| ()).ok_or_else(|| ConditionError::False {
            reason: "NetworkPluginNotReady".to_owned(),
            message: "the Node has no pod CIDR of IPv4 yet".to_owned(),
        });
        answer(RuntimeHealth { runtime: Ok(()), network })
    }
}

impl PodReader for MemoryRuntime {
    fn list(&self) -> CallFuture<'_, Vec<PodOnNode>> {
        answer(self.lock().pods(|_| true))
    }

    fn pod<'a>(&'a self, uid: &'a str) -> CallFuture<'a, PodOnNode> {
        answer(self.lock().pod(uid))
    }

    fn container<'a>(&'a self, id: &'a str) -> CallFuture<'a, Option<ObservedContainer>> {
        answer(self.lock().containers.get(id).map(|c| c.seen.clone()))
    }
}

impl SandboxRuntime for MemoryRuntime {
    fn run_sandbox<'a>(&'a self, config: &'a SandboxConfig) -> CallFuture<'a, ObservedSandbox> {
        let ran = self.lock().run_sandbox(config);
        ready(ran.map_err(refusal("RunPodSandbox", &config.name))).boxed()
    }

    fn stop_sandbox<'a>(&'a self, id: &'a str) -> CallFuture<'a, ()> {
        self.lock().stop_sandbox(id);
        answer(())
    }

    fn remove_sandbox<'a>(&'a self, id: &'a str) -> CallFuture<'a, ()> {
        self.lock().remove_sandbox(id);
        answer(())
    }
}

impl ContainerRuntime for MemoryRuntime {
    fn create_container<'a>(
        &'a self,
        sandbox_id: &'a str,
        config: &'a ContainerConfig,
        _: &'a SandboxConfig,
    ) -> CallFuture<'a, String> {
        let created = self.lock().create(sandbox_id, config, without_environment);
        ready(created.map_err(refusal("CreateContainer", &config.name))).boxed()
    }

    fn start_container<'a>(&'a self, id: &'a str) -> CallFuture<'a, ()> {
        let started = self.lock().start(id);
        if let Ok(Some(code)) = started {
            self.end(id, code);
        }
        ready(started.map(|_| ()).map_err(refusal("StartContainer", id))).boxed()
    }

    fn stop_container<'a>(&'a self, id: &'a str, _: Duration) -> CallFuture<'a, ()> {
        self.end(id, 137);
        answer(())
    }

    fn remove_container<'a>(&'a self, id: &'a str) -> CallFuture<'a, ()> {
        self.lock().containers.remove(id);
        answer(())
    }

    fn update_resources<'a>(
        &'a self,
        id: &'a str,
        resources: &'a ContainerResources,
    ) -> CallFuture<'a, ()> {
        let mut objects = self.lock();
        let now = updated(&objects.resources(id), resources);
        let done = objects.set_resources(id, now);
        ready(done.map_err(refusal("UpdateContainerResources", id))).boxed()
    }
}

impl ContainerLogs for MemoryRuntime {
    fn reopen_log<'a>(&'a self, _: &'a str) -> CallFuture<'a, ()> {
        answer(())
    }
}

impl ContainerAccess for MemoryRuntime {
    fn exec<'a>(
        &'a self,
        id: &'a str,
        command: &'a [String],
        _: Duration,
        _: usize,
    ) -> CallFuture<'a, ExecOutput> {
        ready(self.lock().exec(id, command).map_err(refusal("ExecSync", id))).boxed()
    }

    fn stream<'a>(&'a self, request: &'a StreamRequest) -> CallFuture<'a, String> {
        ready(Err(refusal("Exec", "")(stream::refuse(request)))).boxed()
    }

    fn checkpoint<'a>(&'a self, _: &'a str, _: &'a str, _: Duration) -> CallFuture<'a, ()> {
        answer(())
    }
}

impl ImageRuntime for MemoryRuntime {
    fn image<'a>(&'a self, name: &'a str) -> CallFuture<'a, Option<Image>> {
        answer(self.lock().find_image(name).cloned())
    }

    fn images(&self) -> CallFuture<'_, Vec<Image>> {
        answer(self.lock().images.values().cloned().collect())
    }

    fn pull_image<'a>(
        &'a self,
        name: &'a str,
        _: Option<&'a RegistryLogin>,
    ) -> CallFuture<'a, String> {
        let image = image_of(name);
        let id = image.id.clone();
        self.lock().images.insert(name.to_owned(), image);
        answer(id)
    }

    fn remove_image<'a>(&'a self, id: &'a str) -> CallFuture<'a, ()> {
        self.lock().remove_image(id);
        answer(())
    }

    fn image_filesystems(&self) -> CallFuture<'_, Vec<FilesystemUsage>> {
        answer(Vec::new())
    }
}

impl UsageReader for MemoryRuntime {
    fn usage(&self) -> CallFuture<'_, Vec<ContainerUsage>> {
        answer(Vec::new())
    }
}
