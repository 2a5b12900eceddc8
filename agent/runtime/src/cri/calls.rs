//! The calls of [`Runtime`] over CRI, each with its deadline and its object in the error.

#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

use std::collections::BTreeSet;
use std::time::Duration;

use agent_pod::observed::{ObservedContainer, ObservedSandbox};
use agent_pod::spec::{ContainerConfig, ContainerResources, SandboxConfig, labels};
use futures_util::FutureExt as _;
use proto_grpc::cri::v1 as wire;
use proto_grpc::cri::v1::runtime_service_client::RuntimeServiceClient;
use tower::ServiceExt as _;

use super::exec_truncate::TruncatedBody;
use super::{
    ANSWER_LEN_MAX, CHANGE, CriRuntime, PULL, PendingCall, READ, call, config, ignore_missing,
    incomplete, is_already_started, observed,
};
use crate::runtime::{
    ArrivingParts, CallFuture, ContainerAccess, ContainerLogs, ContainerRuntime, ContainerUsage,
    ExecOutput, FilesystemUsage, Image, ImageRuntime, PodOnNode, PodReader, RegistryLogin,
    RuntimeHealth, RuntimeStatus, RuntimeVersion, SandboxRuntime, StreamRequest, UsageReader,
};

/// Longest time for a checkpoint if the caller sets no timeout.
const CHECKPOINT: Duration = Duration::from_secs(120);

impl RuntimeStatus for CriRuntime {
    fn version(&self) -> CallFuture<'_, RuntimeVersion> {
        async move {
            let request = wire::VersionRequest { version: "v1".into() };
            let mut client = self.service();
            let answer = call("Version", "", READ, request, |r| client.version(r)).await?;
            let version = answer.runtime_version.trim_start_matches('v');
            Ok(RuntimeVersion { name: answer.runtime_name, version: version.into() })
        }
        .boxed()
    }

    fn health(&self) -> CallFuture<'_, RuntimeHealth> {
        async move {
            let mut client = self.service();
            let request = wire::StatusRequest { verbose: false };
            let answer = call("Status", "", READ, request, |r| client.status(r)).await?;
            let status = answer.status.ok_or_else(|| incomplete("Status", "", "status"))?;
            Ok(observed::health(&status))
        }
        .boxed()
    }
}

impl PodReader for CriRuntime {
    fn list(&self) -> CallFuture<'_, Vec<PodOnNode>> {
        self.pods(&[], None).boxed()
    }

    fn list_unmanaged<'a>(&'a self, known: &'a BTreeSet<String>) -> CallFuture<'a, Vec<PodOnNode>> {
        self.pods(&[], Some(known)).boxed()
    }

    fn pod<'a>(&'a self, uid: &'a str) -> CallFuture<'a, PodOnNode> {
        async move {
            let found = self.pods(&[(labels::POD_UID, uid)], None).await?.into_iter().next();
            Ok(found.unwrap_or_else(|| PodOnNode { uid: uid.into(), ..PodOnNode::default() }))
        }
        .boxed()
    }

    fn container<'a>(&'a self, id: &'a str) -> CallFuture<'a, Option<ObservedContainer>> {
        async move {
            let shown = self.shown_container(id).await?;
            Ok(shown.map(|(_, mut container)| {
                self.reported.apply(&mut container);
                container
            }))
        }
        .boxed()
    }
}

impl SandboxRuntime for CriRuntime {
    fn run_sandbox<'a>(&'a self, config: &'a SandboxConfig) -> CallFuture<'a, ObservedSandbox> {
        async move {
            let _under_way = self.changes();
            let request = || wire::RunPodSandboxRequest {
                config: Some(config::sandbox(config)),
                runtime_handler: config.runtime_handler.clone(),
            };
            let object = format!("{}/{}", config.namespace, config.name);
            let earlier = PendingCall::new();
            loop {
                let mut client = self.service();
                let ran = call("RunPodSandbox", &object, CHANGE, request(), |r| {
                    client.run_pod_sandbox(r)
                });
                let error = match ran.await {
                    Ok(made) => {
                        let status = self.sandbox_status(&made.pod_sandbox_id).await?;
                        return Ok(observed::sandbox(status));
                    }
                    Err(error) => error,
                };
                // The name may belong to the same sandbox, created by a call whose response was lost or is still due.
                match self.same_sandbox(config).await {
                    Some(sandbox) if sandbox.ready => return Ok(sandbox),
                    None if earlier.should_retry(&error).await => {}
                    _ => return Err(error),
                }
            }
        }
        .boxed()
    }

    fn stop_sandbox<'a>(&'a self, id: &'a str) -> CallFuture<'a, ()> {
        async move {
            let _under_way = self.changes();
            let request = wire::StopPodSandboxRequest { pod_sandbox_id: id.into() };
            let mut client = self.service();
            ignore_missing(
                call("StopPodSandbox", id, CHANGE, request, |r| client.stop_pod_sandbox(r)).await,
            )
        }
        .boxed()
    }

    fn remove_sandbox<'a>(&'a self, id: &'a str) -> CallFuture<'a, ()> {
        async move {
            let _under_way = self.changes();
            let request = wire::RemovePodSandboxRequest { pod_sandbox_id: id.into() };
            let mut client = self.service();
            let removed =
                call("RemovePodSandbox", id, CHANGE, request, |r| client.remove_pod_sandbox(r))
                    .await;
            ignore_missing(removed)?;
            self.placed.forget_sandbox(id);
            Ok(())
        }
        .boxed()
    }
}

impl ContainerRuntime for CriRuntime {
    fn create_container<'a>(
        &'a self,
        sandbox_id: &'a str,
        config: &'a ContainerConfig,
        sandbox: &'a SandboxConfig,
    ) -> CallFuture<'a, String> {
        async move {
            let _under_way = self.changes();
            let request = || wire::CreateContainerRequest {
                pod_sandbox_id: sandbox_id.into(),
                config: Some(config::container(config)),
                sandbox_config: Some(config::sandbox(sandbox)),
            };
            let object = format!("{}/{}/{}", sandbox.namespace, sandbox.name, config.name);
            let earlier = PendingCall::new();
            loop {
                let mut client = self.service();
                let name = "CreateContainer";
                let created =
                    call(name, &object, CHANGE, request(), |r| client.create_container(r));
                let error = match created.await {
                    Ok(answer) => {
                        self.placed.insert_container(&answer.container_id, sandbox_id);
                        return Ok(answer.container_id);
                    }
                    Err(error) => error,
                };
                match self.same_container(config, sandbox).await {
                    Some(id) => return Ok(id),
                    None if earlier.should_retry(&error).await => {}
                    None => return Err(error),
                }
            }
        }
        .boxed()
    }

    fn start_container<'a>(&'a self, id: &'a str) -> CallFuture<'a, ()> {
        async move {
            let _under_way = self.changes();
            let request = wire::StartContainerRequest { container_id: id.into() };
            let (earlier, mut waited) = (PendingCall::new(), false);
            loop {
                let (mut client, request) = (self.service(), request.clone());
                let started =
                    call("StartContainer", id, CHANGE, request, |r| client.start_container(r));
                match started.await {
                    Ok(_) => return Ok(()),
                    // An earlier call started it.
                    Err(error) if waited && is_already_started(&error) => return Ok(()),
                    Err(error) if earlier.should_retry(&error).await => waited = true,
                    Err(error) => return Err(error),
                }
            }
        }
        .boxed()
    }

    fn stop_container<'a>(&'a self, id: &'a str, grace: Duration) -> CallFuture<'a, ()> {
        async move {
            let _under_way = self.changes();
            // Whole seconds, rounded up: the container must not get less than its grace period.
            let timeout = grace.as_secs().saturating_add(u64::from(grace.subsec_nanos() > 0));
            let request = wire::StopContainerRequest {
                container_id: id.into(),
                timeout: i64::try_from(timeout).unwrap_or(i64::MAX),
            };
            let deadline = grace.saturating_add(CHANGE);
            let mut client = self.service();
            ignore_missing(
                call("StopContainer", id, deadline, request, |r| client.stop_container(r)).await,
            )
        }
        .boxed()
    }

    fn remove_container<'a>(&'a self, id: &'a str) -> CallFuture<'a, ()> {
        async move {
            let _under_way = self.changes();
            let request = wire::RemoveContainerRequest { container_id: id.into() };
            let mut client = self.service();
            let removed =
                call("RemoveContainer", id, CHANGE, request, |r| client.remove_container(r)).await;
            ignore_missing(removed)?;
            self.placed.forget(id);
            Ok(())
        }
        .boxed()
    }

    fn update_resources<'a>(
        &'a self,
        id: &'a str,
        resources: &'a ContainerResources,
    ) -> CallFuture<'a, ()> {
        async move {
            let _under_way = self.changes();
            let request = wire::UpdateContainerResourcesRequest {
                container_id: id.into(),
                linux: Some(config::resources(resources)),
            };
            let mut client = self.service();
            call("UpdateContainerResources", id, CHANGE, request, |r| {
                client.update_container_resources(r)
            })
            .await?;
            Ok(())
        }
        .boxed()
    }
}

impl ContainerLogs for CriRuntime {
    fn reopen_log<'a>(&'a self, id: &'a str) -> CallFuture<'a, ()> {
        async move {
            let request = wire::ReopenContainerLogRequest { container_id: id.into() };
            let mut client = self.service();
            call("ReopenContainerLog", id, READ, request, |r| client.reopen_container_log(r))
                .await?;
            Ok(())
        }
        .boxed()
    }
}

impl ContainerAccess for CriRuntime {
    fn exec<'a>(
        &'a self,
        id: &'a str,
        command: &'a [String],
        timeout: Duration,
        keep: usize,
    ) -> CallFuture<'a, ExecOutput> {
        async move {
            let secs = timeout.as_secs().saturating_add(u64::from(timeout.subsec_nanos() > 0));
            let request = wire::ExecSyncRequest {
                container_id: id.into(),
                cmd: command.to_vec(),
                timeout: i64::try_from(secs).unwrap_or(i64::MAX),
            };
            let deadline = if timeout.is_zero() { PULL } else { timeout.saturating_add(READ) };
            let abridge = move |answer: http::Response<tonic::body::Body>| {
                answer.map(|body| TruncatedBody::new(body, keep))
            };
            let mut client = RuntimeServiceClient::new(self.channel().map_response(abridge))
                .max_decoding_message_size(ANSWER_LEN_MAX);
            let answer = call("ExecSync", id, deadline, request, |r| client.exec_sync(r)).await?;
            Ok(ExecOutput { stdout: answer.stdout, stderr: answer.stderr, code: answer.exit_code })
        }
        .boxed()
    }

    fn stream<'a>(&'a self, request: &'a StreamRequest) -> CallFuture<'a, String> {
        async move {
            let mut client = self.service();
            match request {
                StreamRequest::Exec { container, command, streams } => {
                    let request = config::exec(container, command, *streams);
                    let answer = call("Exec", container, READ, request, |r| client.exec(r)).await?;
                    Ok(answer.url)
                }
                StreamRequest::Attach { container, streams } => {
                    let request = config::attach(container, *streams);
                    let answer =
                        call("Attach", container, READ, request, |r| client.attach(r)).await?;
                    Ok(answer.url)
                }
                StreamRequest::PortForward { sandbox, ports } => {
                    let request = wire::PortForwardRequest {
                        pod_sandbox_id: sandbox.clone(),
                        port: ports.clone(),
                    };
                    let answer =
                        call("PortForward", sandbox, READ, request, |r| client.port_forward(r))
                            .await?;
                    Ok(answer.url)
                }
            }
        }
        .boxed()
    }

    fn checkpoint<'a>(
        &'a self,
        id: &'a str,
        archive: &'a str,
        timeout: Duration,
    ) -> CallFuture<'a, ()> {
        async move {
            let request = wire::CheckpointContainerRequest {
                container_id: id.into(),
                location: archive.into(),
                timeout: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
            };
            let mut client = self.service();
            let deadline = timeout.max(CHECKPOINT).saturating_add(READ);
            call("CheckpointContainer", id, deadline, request, |r| client.checkpoint_container(r))
                .await?;
            Ok(())
        }
        .boxed()
    }
}

impl ImageRuntime for CriRuntime {
    fn image<'a>(&'a self, name: &'a str) -> CallFuture<'a, Option<Image>> {
        async move {
            let request =
                wire::ImageStatusRequest { image: Some(config::image(name)), verbose: false };
            let mut client = self.images.clone();
            let answer =
                call("ImageStatus", name, READ, request, |r| client.image_status(r)).await?;
            Ok(answer.image.map(observed::image))
        }
        .boxed()
    }

    fn images(&self) -> CallFuture<'_, Vec<Image>> {
        async move {
            let mut client = self.images.clone();
            let request = wire::ListImagesRequest { filter: None };
            let answer = call("ListImages", "", READ, request, |r| client.list_images(r)).await?;
            Ok(answer.images.into_iter().map(observed::image).collect())
        }
        .boxed()
    }

    fn pull_image<'a>(
        &'a self,
        name: &'a str,
        login: Option<&'a RegistryLogin>,
    ) -> CallFuture<'a, String> {
        async move {
            let _under_way = self.changes();
            let request = wire::PullImageRequest {
                image: Some(config::image(name)),
                auth: login.map(config::login),
                sandbox_config: None,
            };
            let mut client = self.images.clone();
            let answer = call("PullImage", name, PULL, request, |r| client.pull_image(r)).await?;
            Ok(answer.image_ref)
        }
        .boxed()
    }

    fn pull_progress(&self) -> CallFuture<'_, ArrivingParts> {
        super::pull_progress::read_progress(self.channel()).boxed()
    }

    fn remove_image<'a>(&'a self, id: &'a str) -> CallFuture<'a, ()> {
        async move {
            let _under_way = self.changes();
            let request = wire::RemoveImageRequest { image: Some(config::image(id)) };
            let mut client = self.images.clone();
            ignore_missing(
                call("RemoveImage", id, CHANGE, request, |r| client.remove_image(r)).await,
            )
        }
        .boxed()
    }

    fn image_filesystems(&self) -> CallFuture<'_, Vec<FilesystemUsage>> {
        async move {
            let mut client = self.images.clone();
            let request = wire::ImageFsInfoRequest {};
            let answer =
                call("ImageFsInfo", "", READ, request, |r| client.image_fs_info(r)).await?;
            Ok(answer.image_filesystems.into_iter().map(observed::filesystem).collect())
        }
        .boxed()
    }
}

impl UsageReader for CriRuntime {
    fn usage(&self) -> CallFuture<'_, Vec<ContainerUsage>> {
        async move {
            let request = wire::ListContainerStatsRequest { filter: None };
            let mut client = self.service();
            let answer =
                call("ListContainerStats", "", READ, request, |r| client.list_container_stats(r))
                    .await?;
            Ok(answer.stats.into_iter().filter_map(observed::usage).collect())
        }
        .boxed()
    }
}
