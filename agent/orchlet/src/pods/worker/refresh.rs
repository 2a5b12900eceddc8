//! The pod's volumes while it lives: brought up to date when what they are made from changes.

use std::sync::Arc;
use std::time::Duration;

use agent_pod::backoff::Step;
use agent_pod::desired::{Config, PodWant};
use agent_pod::events;
use agent_pod::observed::{ImageSeen, VolumesSeen};
use agent_pod::plan::{Action, Plan, Stage};
use proto_api::core::v1::Container;

use super::{Outcome, Worker, name};
use crate::clock;
use crate::pods::action_result::Effect;
use crate::pods::in_flight::Key;
use crate::pods::ports::{Line, MountedVolumes};

/// A failed refresh of volumes is tried again after this, and after twice as long each time it fails again.
const REFRESH_RETRY: Duration = Duration::from_secs(2);
/// The longest wait for another try.
const REFRESH_RETRY_MAX: Duration = Duration::from_secs(60);

impl Worker {
    /// What volumes are made from may have changed: a failure of before says nothing about what is there now.
    pub(super) fn sources_changed(&mut self) {
        self.volumes_stale = true;
        let soon = clock::boot().saturating_add(REFRESH_RETRY);
        self.refresh_not_before = self.refresh_not_before.min(soon);
    }

    /// Brings volumes up to date whose sources have changed, or whose token has aged.
    pub(super) fn refresh(&mut self, next: &Plan) -> Option<Duration> {
        let alive = matches!(next.stage, Stage::Preparing | Stage::Initializing | Stage::Running);
        if !alive && self.seen.volumes == VolumesSeen::Unverified {
            // Whoever is asked for a volume may never answer, and nobody wants it any more.
            self.parts.volumes.give_up(&self.pod());
        }
        if !alive || self.seen.volumes != VolumesSeen::Mounted || self.busy.has(&Key::Volumes) {
            return None;
        }
        let now = clock::boot();
        let aged = self.mounted.refresh_at.is_some_and(|at| at <= now);
        if !self.volumes_stale && !aged {
            return self.mounted.refresh_at;
        }
        if now < self.refresh_not_before {
            return Some(self.refresh_not_before);
        }
        self.volumes_stale = false;
        let (parts, scene) = (self.parts.clone(), self.scene());
        self.spawn(Key::Volumes, None, async move {
            Outcome::Mounted(parts.volumes.set_up(&scene.pod, &scene.sources).await)
        });
        None
    }

    pub(super) fn mounted(&mut self, want: &PodWant, result: Result<MountedVolumes, Line>) {
        match result {
            Ok(mounted) => {
                self.refresh_failures = 0;
                self.mounted = Arc::new(mounted);
                self.worked(want, &Action::MountVolumes, Effect::Nothing, Duration::ZERO);
            }
            Err(line) if self.seen.volumes == VolumesSeen::Mounted => {
                // A refresh that failed leaves the volumes as they are.
                tracing::warn!(pod = %name(&self.pod()), error = line, "volumes are not up to date");
                self.parts.reports.event(&self.pod(), events::mount_failed(&line));
                self.volumes_stale = true;
                let wait = REFRESH_RETRY
                    .saturating_mul(2_u32.saturating_pow(self.refresh_failures.min(8)));
                self.refresh_failures = self.refresh_failures.saturating_add(1);
                self.refresh_not_before = clock::boot().saturating_add(wait.min(REFRESH_RETRY_MAX));
            }
            Err(line) => {
                let action = Action::MountVolumes;
                self.parts.step_failed(&self.pod(), &action, Duration::ZERO, &line);
                self.failed(want, &Action::MountVolumes, "", &line);
            }
        }
    }

    /// An image that was imported is there, whatever a registry said.
    pub(super) fn forget_imported(&mut self) {
        let images = &self.parts.images;
        self.memory
            .troubles
            .retain(|t| !matches!(&t.step, Step::Image(image) if images.is_imported(image)));
        self.seen.images.retain(|image, seen| {
            !(matches!(seen, ImageSeen::Absent { .. }) && images.is_imported(image))
        });
    }

    /// Whether the environment of a container can be made from what is known.
    pub(super) fn config(&self, container: &Container) -> Config {
        if !self.subscription.is_complete() {
            return Config::Unknown;
        }
        match self.subscription.missing(&self.pod(), container) {
            None => Config::Ready,
            Some(text) => Config::Missing(text),
        }
    }
}
