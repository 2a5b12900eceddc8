//! Static pods: manifests in a directory of the node or behind a URL. They run with or without an
//! API server.

mod directory;
mod text;
mod url;

use std::collections::BTreeMap;
use std::sync::Arc;

use agent_telemetry::node_events::NodeEvents;
use proto_api::core::v1::Pod;
use proto_api::event_report::EventKind;
use proto_api::names::Names;
use tokio::sync::watch;

pub use directory::Directory;
pub use url::{Page, PageError};

/// Static pods by uid.
pub type StaticPods = BTreeMap<String, Arc<Pod>>;

/// Where manifests come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    /// A directory.
    File,
    /// A URL.
    Http,
}

impl Origin {
    /// The value of the annotation `config.source`.
    fn word(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Http => "http",
        }
    }
}

/// The pods of all manifest sources; `None` for a source that has not been read yet.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ManifestPods(BTreeMap<Origin, Option<StaticPods>>);

impl ManifestPods {
    /// No pods yet, of these sources.
    pub fn unread(origins: impl IntoIterator<Item = Origin>) -> Self {
        Self(origins.into_iter().map(|origin| (origin, None)).collect())
    }

    /// Whether every source has been read once. Before that, a missing pod may still be reported.
    pub fn is_synced(&self) -> bool {
        self.0.values().all(Option::is_some)
    }

    /// The pods of all sources.
    pub fn pods(&self) -> StaticPods {
        let said = self.0.values().flatten();
        said.flatten().map(|(uid, pod)| (uid.clone(), pod.clone())).collect()
    }

    fn update_source(&mut self, origin: Origin, pods: StaticPods) -> bool {
        let before = self.0.insert(origin, Some(pods.clone()));
        before != Some(Some(pods))
    }
}

/// Publishes the pods of a source and the errors of its manifests.
pub struct ManifestPublisher {
    /// The directory or URL.
    pub origin: Origin,
    /// The pods of all sources.
    pub known: watch::Sender<ManifestPods>,
    /// Recorder of Node events.
    pub events: NodeEvents,
    /// Names of the naming profile.
    pub names: &'static Names,
    /// Name of the node.
    pub node: String,
    faults: Faults,
}

impl ManifestPublisher {
    /// A publisher that has published nothing yet.
    pub fn new(
        origin: Origin,
        known: watch::Sender<ManifestPods>,
        events: NodeEvents,
        names: &'static Names,
        node: &str,
    ) -> Self {
        let node = node.to_owned();
        Self { origin, known, events, names, node, faults: Faults::default() }
    }

    /// Publishes the source's present pods.
    fn publish(&self, pods: StaticPods) {
        self.known.send_if_modified(|known| known.update_source(self.origin, pods));
    }

    /// Reports the source's present errors.
    fn report_faults(&mut self, faults: BTreeMap<String, String>) {
        for fault in self.faults.take(faults) {
            tracing::warn!(
                source = self.origin.word(),
                fault,
                "a static pod manifest is invalid; its pod is not started"
            );
            let message = format!("Error validating static pod: {fault}");
            self.events.record_event(EventKind::Warning, "FailedValidation", message);
        }
    }
}

/// Errors by path or URL. An error is reported once, when it is found a second time: most first
/// ones are files being written.
#[derive(Debug, Default)]
struct Faults(BTreeMap<String, Fault>);

#[derive(Debug, PartialEq)]
struct Fault {
    text: String,
    reported: bool,
}

impl Faults {
    /// Updates the errors. Returns those to report.
    fn take(&mut self, now: BTreeMap<String, String>) -> Vec<String> {
        let mut to_tell = Vec::new();
        let mut known = std::mem::take(&mut self.0);
        for (place, text) in now {
            let before = known.remove(&place).filter(|before| before.text == text);
            if before.as_ref().is_some_and(|before| !before.reported) {
                to_tell.push(format!("{place}: {text}"));
            }
            let reported = before.is_some();
            self.0.insert(place, Fault { text, reported });
        }
        to_tell
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lasting_manifest_error_is_reported_once() {
        let now = |text: &str| BTreeMap::from([("a.yaml".to_owned(), text.to_owned())]);
        let mut faults = Faults::default();
        let none: [&str; 0] = [];
        assert_eq!(faults.take(now("empty")), none, "somebody is writing it");
        assert_eq!(faults.take(now("no pod")), none);
        assert_eq!(faults.take(now("no pod")), ["a.yaml: no pod"]);
        assert_eq!(faults.take(now("no pod")), none);
        assert_eq!(faults.take(BTreeMap::new()), none);
        assert_eq!(faults.take(now("no pod")), none, "it is back, and may be half written");
    }

    #[test]
    fn the_pods_of_one_source_do_not_wait_for_another() {
        let pods = |uid: &str| StaticPods::from([(uid.to_owned(), Arc::default())]);
        let mut known = ManifestPods::unread([Origin::File, Origin::Http]);
        assert!(known.update_source(Origin::File, pods("a")));
        assert_eq!((known.pods(), known.is_synced()), (pods("a"), false));
        assert!(!known.update_source(Origin::File, pods("a")), "no news");
        assert!(known.update_source(Origin::Http, StaticPods::new()));
        assert!(known.is_synced());
    }
}
