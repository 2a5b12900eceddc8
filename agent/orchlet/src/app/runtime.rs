//! The container runtime at the start: waits for it, imports the sandbox image, subscribes to its
//! events and lists its pods.

use std::time::Duration;

use agent_runtime::cri::CRI_NAMESPACE;
use agent_runtime::events::RuntimeEvent;
use agent_runtime::import::{self, ImportError};
use agent_runtime::pause::{self, UnsupportedMachine};
use agent_runtime::runtime::PodOnNode;
use agent_runtime::{ImageRuntime as _, PodReader as _, RuntimeError, RuntimeStatus as _, events};
use proto_daemon::exit::chain;
use tokio::sync::mpsc;

use super::{Agent, SOURCE_EVENTS_LEN};

/// Pause between attempts to reach the runtime at the start.
const RUNTIME_RETRY: Duration = Duration::from_millis(250);
/// Longest wait for the event subscription before the first list.
const SUBSCRIBE_MAX: Duration = Duration::from_secs(1);
/// Interval of relists, which repair lost events.
const RELIST_PERIOD: Duration = Duration::from_secs(300);

/// Why pods cannot be run yet. The runtime is asked again.
#[derive(Debug, thiserror::Error)]
enum RuntimeNotReady {
    /// It does not answer.
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
    /// There is no sandbox image for this machine.
    #[error(transparent)]
    SandboxImage(#[from] UnsupportedMachine),
    /// It does not take the sandbox image.
    #[error(transparent)]
    Import(#[from] ImportError),
}

impl Agent {
    /// Waits for the runtime, and imports the sandbox image if it is missing.
    pub(super) async fn wait_for_runtime(&mut self) {
        let name = &self.settings.flags.pod_infra_container_image;
        let mut reported = false;
        loop {
            match self.prepare_runtime(name).await {
                Ok(version) => {
                    self.machine.info.container_runtime_version = version;
                    return;
                }
                Err(error) if !reported => {
                    reported = true;
                    tracing::warn!(
                        error = chain(&error),
                        "the container runtime is not ready; retried"
                    );
                }
                Err(_) => {}
            }
            tokio::time::sleep(RUNTIME_RETRY).await;
        }
    }

    async fn prepare_runtime(&self, sandbox_image: &str) -> Result<String, RuntimeNotReady> {
        let runtime = &self.runtime;
        let version = runtime.version().await?;
        let there = runtime.image(sandbox_image).await?.is_some();
        if !there && version.name == "containerd" {
            let image = pause::image(sandbox_image)?;
            import::import_tar(
                runtime.channel(),
                CRI_NAMESPACE,
                &image,
                import::ImageRetention::Pinned,
            )
            .await?;
            import::wait_until_listed(runtime, sandbox_image).await?;
        }
        Ok(format!("{}://{}", version.name, version.version))
    }

    /// The runtime's pods, and its events from before they were listed, so that no change falls
    /// between the two.
    pub(super) async fn subscribe_and_list(
        &self,
    ) -> (Vec<PodOnNode>, mpsc::Receiver<RuntimeEvent>) {
        let mut news = events::watch(self.runtime.clone(), CRI_NAMESPACE);
        // The first event requests a relist, which follows. One that comes late is passed on.
        if tokio::time::timeout(SUBSCRIBE_MAX, news.recv()).await.is_err() {
            tracing::warn!(
                "the runtime's event subscription is not established yet; relists replace it meanwhile"
            );
        }
        let listed = self.listed_pods().await;
        (listed, with_periodic_relists(news))
    }

    async fn listed_pods(&self) -> Vec<PodOnNode> {
        loop {
            match self.runtime.list().await {
                Ok(listed) => return listed,
                Err(error) => {
                    tracing::warn!(
                        error = chain(&error),
                        "cannot list the runtime's pods; retried"
                    );
                    tokio::time::sleep(RUNTIME_RETRY).await;
                }
            }
        }
    }
}

/// The runtime's events, with a relist request every few minutes.
pub(super) fn with_periodic_relists(
    mut news: mpsc::Receiver<RuntimeEvent>,
) -> mpsc::Receiver<RuntimeEvent> {
    let (send, receive) = mpsc::channel(SOURCE_EVENTS_LEN);
    tokio::spawn(async move {
        let mut reminder = tokio::time::interval(RELIST_PERIOD);
        reminder.tick().await;
        loop {
            // Both arms are cancel safe.
            let next = tokio::select! {
                next = news.recv() => next,
                _ = reminder.tick() => Some(RuntimeEvent::Missed),
            };
            let Some(next) = next else { return };
            if send.send(next).await.is_err() {
                return;
            }
        }
    });
    receive
}
