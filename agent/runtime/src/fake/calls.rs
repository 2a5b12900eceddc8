//! The calls of the in-memory runtime.

use super::*;

impl RuntimeStatus for FakeRuntime {
    fn version(&self) -> CallFuture<'_, RuntimeVersion> {
        self.act("Version", "", |_| Ok(RuntimeVersion { name: "fake".into(), version: "1".into() }))
    }

    fn health(&self) -> CallFuture<'_, RuntimeHealth> {
        self.act("Status", "", |_| Ok(RuntimeHealth { runtime: Ok(()), network: Ok(()) }))
    }
}

impl PodReader for FakeRuntime {
    fn list(&self) -> CallFuture<'_, Vec<PodOnNode>> {
        self.act("ListPodSandbox", "", |state| Ok(state.objects.pods(|_| true)))
    }

    fn pod<'a>(&'a self, uid: &'a str) -> CallFuture<'a, PodOnNode> {
        self.act("ListPodSandbox", uid, |state| Ok(state.objects.pod(uid)))
    }

    fn container<'a>(&'a self, id: &'a str) -> CallFuture<'a, Option<ObservedContainer>> {
        self.act("ContainerStatus", id, |state| {
            Ok(state.objects.containers.get(id).map(|c| c.seen.clone()))
        })
    }
}

impl SandboxRuntime for FakeRuntime {
    fn run_sandbox<'a>(&'a self, config: &'a SandboxConfig) -> CallFuture<'a, ObservedSandbox> {
        let object = format!("{}/{}", config.namespace, config.name);
        self.change("RunPodSandbox", &object, |state| state.objects.run_sandbox(config))
    }

    fn stop_sandbox<'a>(&'a self, id: &'a str) -> CallFuture<'a, ()> {
        self.change("StopPodSandbox", id, |state| {
            state.objects.stop_sandbox(id);
            Ok(())
        })
    }

    fn remove_sandbox<'a>(&'a self, id: &'a str) -> CallFuture<'a, ()> {
        self.change("RemovePodSandbox", id, |state| {
            state.objects.remove_sandbox(id);
            Ok(())
        })
    }
}

impl ContainerRuntime for FakeRuntime {
    fn create_container<'a>(
        &'a self,
        sandbox_id: &'a str,
        config: &'a ContainerConfig,
        sandbox: &'a SandboxConfig,
    ) -> CallFuture<'a, String> {
        let object =
            format!("{}/{}/{}:{}", sandbox.namespace, sandbox.name, config.name, config.attempt);
        self.change("CreateContainer", &object, |state| {
            state.objects.create(sandbox_id, config, ContainerConfig::clone)
        })
    }

    fn start_container<'a>(&'a self, id: &'a str) -> CallFuture<'a, ()> {
        let mut ends = None;
        let answer = self.change("StartContainer", id, |state| {
            ends = state.objects.start(id)?;
            Ok(())
        });
        if let Some(code) = ends {
            self.end(id, code);
        }
        answer
    }

    fn stop_container<'a>(&'a self, id: &'a str, _grace: Duration) -> CallFuture<'a, ()> {
        let answer = self.change("StopContainer", id, |_| Ok(()));
        self.end(id, 137);
        answer
    }

    fn remove_container<'a>(&'a self, id: &'a str) -> CallFuture<'a, ()> {
        self.change("RemoveContainer", id, |state| {
            state.objects.containers.remove(id);
            Ok(())
        })
    }

    fn update_resources<'a>(
        &'a self,
        id: &'a str,
        resources: &'a ContainerResources,
    ) -> CallFuture<'a, ()> {
        let known = self.resources(id);
        let updated = updated(&known, resources);
        let update = |state: &mut State| state.objects.set_resources(id, updated.clone());
        // Writing unchanged limits has no effect on the container.
        match known == updated {
            true => self.act("UpdateContainerResources", id, update),
            false => self.change("UpdateContainerResources", id, update),
        }
    }
}

impl ContainerLogs for FakeRuntime {
    fn reopen_log<'a>(&'a self, id: &'a str) -> CallFuture<'a, ()> {
        self.change("ReopenContainerLog", id, |_| Ok(()))
    }
}

impl ContainerAccess for FakeRuntime {
    fn exec<'a>(
        &'a self,
        id: &'a str,
        command: &'a [String],
        _timeout: Duration,
        _keep: usize,
    ) -> CallFuture<'a, ExecOutput> {
        self.act("ExecSync", id, |state| state.objects.exec(id, command))
    }

    fn stream<'a>(&'a self, request: &'a StreamRequest) -> CallFuture<'a, String> {
        self.act("Exec", "", |_| Err(stream::refuse(request)))
    }

    fn checkpoint<'a>(&'a self, id: &'a str, _: &'a str, _: Duration) -> CallFuture<'a, ()> {
        self.change("CheckpointContainer", id, |_| Ok(()))
    }
}

impl ImageRuntime for FakeRuntime {
    fn image<'a>(&'a self, name: &'a str) -> CallFuture<'a, Option<Image>> {
        self.act("ImageStatus", name, |state| Ok(state.objects.find_image(name).cloned()))
    }

    fn images(&self) -> CallFuture<'_, Vec<Image>> {
        self.act("ListImages", "", |state| Ok(state.objects.images.values().cloned().collect()))
    }

    fn pull_image<'a>(
        &'a self,
        name: &'a str,
        _login: Option<&'a RegistryLogin>,
    ) -> CallFuture<'a, String> {
        let pulled = self.change("PullImage", name, |state| {
            let image = state.pullable.get(name).cloned().ok_or_else(|| no_such("image", name))?;
            let id = image.id.clone();
            state.objects.images.insert(name.into(), image);
            Ok(id)
        });
        let take = self.lock().pulls_take;
        if take.is_zero() {
            return pulled;
        }
        async move {
            tokio::time::sleep(take).await;
            pulled.await
        }
        .boxed()
    }

    fn remove_image<'a>(&'a self, id: &'a str) -> CallFuture<'a, ()> {
        self.change("RemoveImage", id, |state| {
            state.objects.remove_image(id);
            Ok(())
        })
    }

    fn image_filesystems(&self) -> CallFuture<'_, Vec<FilesystemUsage>> {
        let root = FilesystemUsage { mountpoint: "/".into(), ..FilesystemUsage::default() };
        self.act("ImageFsInfo", "", |_| Ok(vec![root]))
    }
}

impl UsageReader for FakeRuntime {
    fn usage(&self) -> CallFuture<'_, Vec<ContainerUsage>> {
        self.act("ListContainerStats", "", |state| Ok(state.usage.clone()))
    }
}
