//! Static pods: manifests in a directory of the node, or behind a URL. They run whether or not there is an API server.

mod directory;
mod text;
mod url;

use std::collections::BTreeMap;
use std::sync::Arc;

use proto_api::core::v1::Pod;
use proto_api::names::Names;
use proto_client::events::EventKind;
use tokio::sync::watch;

use crate::node_events::NodeEvents;

pub use directory::Directory;
pub use url::Page;

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
    /// The word that a pod's annotation `config.source` has for it.
    fn word(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Http => "http",
        }
    }
}

/// What the sources of manifests have said so far; one that has said nothing yet has `None`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ManifestPods(BTreeMap<Origin, Option<StaticPods>>);

impl ManifestPods {
    /// Nothing yet, of these sources.
    pub fn nothing_of(origins: impl IntoIterator<Item = Origin>) -> Self {
        Self(origins.into_iter().map(|origin| (origin, None)).collect())
    }

    /// Whether every source has said everything once: what no pod stands for before that may still be wanted.
    pub fn is_whole(&self) -> bool {
        self.0.values().all(Option::is_some)
    }

    /// The pods of all sources.
    pub fn pods(&self) -> StaticPods {
        let said = self.0.values().flatten();
        said.flatten().map(|(uid, pod)| (uid.clone(), pod.clone())).collect()
    }

    fn hear(&mut self, origin: Origin, pods: StaticPods) -> bool {
        let before = self.0.insert(origin, Some(pods.clone()));
        before != Some(Some(pods))
    }
}

/// A source's way to say which pods it has, and what is wrong with its manifests.
pub struct ManifestPublisher {
    /// Which source.
    pub origin: Origin,
    /// What all of them say.
    pub known: watch::Sender<ManifestPods>,
    /// Where users of the node read of faults.
    pub events: NodeEvents,
    /// Names of the naming profile.
    pub names: &'static Names,
    /// The node.
    pub node: String,
    faults: Faults,
}

impl ManifestPublisher {
    /// One that has said nothing.
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

    /// These are the source's pods now.
    fn say(&self, pods: StaticPods) {
        self.known.send_if_modified(|known| known.hear(self.origin, pods));
    }

    /// These are the faults that the source has now.
    fn complain(&mut self, faults: BTreeMap<String, String>) {
        for fault in self.faults.take(faults) {
            tracing::warn!(source = self.origin.word(), fault, "a manifest is not used");
            let message = format!("Error validating static pod: {fault}");
            self.events.tell(EventKind::Warning, "FailedValidation", message);
        }
    }
}

/// Faults by place. One is told when it is met a second time, once: most are files that somebody is writing.
#[derive(Debug, Default)]
struct Faults(BTreeMap<String, Fault>);

#[derive(Debug, PartialEq)]
struct Fault {
    text: String,
    told: bool,
}

impl Faults {
    /// Takes the faults that there are now; those to tell.
    fn take(&mut self, now: BTreeMap<String, String>) -> Vec<String> {
        let mut to_tell = Vec::new();
        let mut known = std::mem::take(&mut self.0);
        for (place, text) in now {
            let before = known.remove(&place).filter(|before| before.text == text);
            if before.as_ref().is_some_and(|before| !before.told) {
                to_tell.push(format!("{place}: {text}"));
            }
            let told = before.is_some();
            self.0.insert(place, Fault { text, told });
        }
        to_tell
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_that_stays_is_told_once() {
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
        let mut known = ManifestPods::nothing_of([Origin::File, Origin::Http]);
        assert!(known.hear(Origin::File, pods("a")));
        assert_eq!((known.pods(), known.is_whole()), (pods("a"), false));
        assert!(!known.hear(Origin::File, pods("a")), "no news");
        assert!(known.hear(Origin::Http, StaticPods::new()));
        assert!(known.is_whole());
    }
}
