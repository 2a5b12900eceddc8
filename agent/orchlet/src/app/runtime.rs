//! The container runtime at the start: waited for, given the sandbox image, asked what it has, listened to.

use std::time::Duration;

use agent_runtime::cri::CRI_NAMESPACE;
use agent_runtime::events::RuntimeEvent;
use agent_runtime::runtime::PodOnNode;
use agent_runtime::{Runtime, events, import, pause};
use proto_daemon::exit::chain;
use tokio::sync::mpsc;

use super::{Bound, SAID_LEN};

/// Pause between attempts to reach the runtime at the start.
const RUNTIME_RETRY: Duration = Duration::from_millis(250);
/// Longest wait for its events before it is asked what it has.
const LISTENING_MAX: Duration = Duration::from_secs(1);
/// How often the runtime is looked at as a whole, to repair what no event told of.
const LOOK_PERIOD: Duration = Duration::from_secs(300);

impl Bound {
    /// Waits for the runtime, and sees to it that it has the sandbox image.
    pub(super) async fn runtime_ready(&mut self) {
        let name = &self.settings.flags.pod_infra_container_image;
        let mut told = false;
        loop {
            match self.prepare_runtime(name).await {
                Ok(version) => {
                    self.machine.info.container_runtime_version = version;
                    return;
                }
                Err(line) if !told => {
                    told = true;
                    tracing::warn!(error = line, "waiting for the container runtime");
                }
                Err(_) => {}
            }
            tokio::time::sleep(RUNTIME_RETRY).await;
        }
    }

    async fn prepare_runtime(&self, sandbox_image: &str) -> Result<String, String> {
        let runtime = &self.runtime;
        let version = runtime.version().await.map_err(|e| chain(&e))?;
        let there = runtime.image(sandbox_image).await.map_err(|e| chain(&e))?.is_some();
        if !there && version.name == "containerd" {
            let image = pause::image(sandbox_image).map_err(|e| e.to_string())?;
            import::tar(runtime.channel(), CRI_NAMESPACE, &image, import::Keep::Pinned)
                .await
                .map_err(|e| chain(&e))?;
            import::shown(runtime, sandbox_image).await.map_err(|e| chain(&e))?;
        }
        Ok(format!("{}://{}", version.name, version.version))
    }

    /// What the runtime has, and its news from before that was asked: nothing happens between the two, and nobody has to ask again.
    pub(super) async fn runtime_from_now(&self) -> (Vec<PodOnNode>, mpsc::Receiver<RuntimeEvent>) {
        let mut news = events::watch(self.runtime.clone(), CRI_NAMESPACE);
        // The first word is to ask for everything, as is done next. One that comes late is passed on.
        if tokio::time::timeout(LISTENING_MAX, news.recv()).await.is_err() {
            tracing::warn!("the runtime's events are not heard yet");
        }
        let listed = self.listed_pods().await;
        (listed, with_reminders(news))
    }

    async fn listed_pods(&self) -> Vec<PodOnNode> {
        loop {
            match self.runtime.list().await {
                Ok(listed) => return listed,
                Err(error) => {
                    tracing::warn!(error = chain(&error), "cannot list pods");
                    tokio::time::sleep(RUNTIME_RETRY).await;
                }
            }
        }
    }
}

/// The runtime's news, and every few minutes a reminder to look.
fn with_reminders(mut news: mpsc::Receiver<RuntimeEvent>) -> mpsc::Receiver<RuntimeEvent> {
    let (send, receive) = mpsc::channel(SAID_LEN);
    tokio::spawn(async move {
        let mut reminder = tokio::time::interval(LOOK_PERIOD);
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
