//! The admission webhooks of the cluster: those of the configurations in the store, in the order of their calls. Their reviews are in `admission`.

mod metrics;
mod webhook_client;

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use apiserver_admission_webhooks::{Phase, read_webhooks};
use apiserver_schema::Object;
use apiserver_store::Store;
use proto_api::names::Names;

use crate::auth::{IndexError, ObjectIndex, StoreIndex};
use crate::config::Config;
use crate::dial_policy::DialPolicy;
use crate::record::StoredObject;

pub use metrics::WebhookMetrics;
pub(crate) use metrics::{AskedWebhook, RejectionCause};
pub(crate) use webhook_client::{CallError, CallTarget, Remote};

/// The webhooks of the configurations in the store.
pub struct Webhooks {
    index: StoreIndex<ConfigurationCache>,
    /// Of their calls.
    pub(crate) metrics: WebhookMetrics,
}

/// Webhooks in the order of their calls: by name of the configuration, then as it lists them.
#[derive(Default)]
pub(crate) struct OrderedWebhooks {
    pub(crate) mutating: Vec<Arc<Remote>>,
    pub(crate) validating: Vec<Arc<Remote>>,
}

/// What is kept of the configurations.
struct ConfigurationCache {
    names: &'static Names,
    dial: Arc<DialPolicy>,
    /// By kind and name.
    configurations: BTreeMap<(String, String), Vec<Arc<Remote>>>,
    ordered: OnceLock<Arc<OrderedWebhooks>>,
}

impl Webhooks {
    /// Reads the configurations and follows their changes. `config` is that of the server, with the port that it listens on.
    ///
    /// # Errors
    /// The store cannot be watched.
    pub fn follow(
        store: &Store<StoredObject>,
        names: &'static Names,
        metrics: WebhookMetrics,
        config: &Config,
    ) -> Result<Self, IndexError> {
        let index = StoreIndex::follow(
            store,
            ConfigurationCache::new(names, Arc::new(DialPolicy::new(config))),
        )?;
        Ok(Self { index, metrics })
    }

    /// The webhooks of all configurations that were written before this call; `None` without configurations, `Err` if they cannot be read.
    pub(crate) fn current(&self) -> Result<Option<Arc<OrderedWebhooks>>, UnreadableConfigurations> {
        let current = self.index.try_read(|configured| {
            (!configured.configurations.is_empty()).then(|| configured.ordered())
        });
        current.ok_or(UnreadableConfigurations)
    }
}

/// Requests are refused until the configurations can be read again.
#[derive(Debug, thiserror::Error)]
#[error("cannot read the webhook configurations")]
pub(crate) struct UnreadableConfigurations;

impl ConfigurationCache {
    fn new(names: &'static Names, dial: Arc<DialPolicy>) -> Self {
        Self { names, dial, configurations: BTreeMap::new(), ordered: OnceLock::new() }
    }

    fn ordered(&self) -> Arc<OrderedWebhooks> {
        let order = || {
            let all = self.configurations.values().flatten().cloned();
            let is_mutating =
                |remote: &Arc<Remote>| matches!(remote.webhook.phase, Phase::Mutating(_));
            let (mutating, validating) = all.partition(is_mutating);
            Arc::new(OrderedWebhooks { mutating, validating })
        };
        self.ordered.get_or_init(order).clone()
    }
}

fn key_of(configuration: &Object) -> (String, String) {
    (configuration.kind.kind().to_owned(), configuration.name().to_owned())
}

impl ObjectIndex for ConfigurationCache {
    const PREFIX: &'static str = "/admissionregistration/";

    fn emptied(&self) -> Self {
        Self::new(self.names, self.dial.clone())
    }

    fn set(&mut self, object: &Object) {
        let key = key_of(object);
        let before = self.configurations.remove(&key).unwrap_or_default();
        // A webhook that is the same keeps its connections.
        let remotes = read_webhooks(object).into_iter().map(|webhook| {
            let same = before.iter().find(|remote| remote.webhook == webhook).cloned();
            same.unwrap_or_else(|| Arc::new(Remote::new(webhook, self.names, self.dial.clone())))
        });
        let remotes = remotes.collect();
        self.configurations.insert(key, remotes);
        self.ordered = OnceLock::new();
    }

    fn remove(&mut self, object: &Object) {
        self.configurations.remove(&key_of(object));
        self.ordered = OnceLock::new();
    }
}

#[cfg(test)]
mod tests {
    use apiserver_schema::{Engine, Format, Strictness};
    use proto_api::names::Profile;
    use serde_json::json;

    use super::*;

    fn configuration(kind: &str, name: &str, webhooks: &[(&str, i64)]) -> Object {
        let engine = Engine::new(Names::new(Profile::Kubernetes));
        let kind = engine.kind("admissionregistration.k8s.io", "v1", kind).unwrap();
        let webhook = |(name, seconds): &(&str, i64)| json!({"name": name, "clientConfig": {"url": "https://h"}, "timeoutSeconds": seconds});
        let webhooks: Vec<_> = webhooks.iter().map(webhook).collect();
        let text = json!({"metadata": {"name": name}, "webhooks": webhooks}).to_string();
        let decoded = engine.decode(kind, Format::Json, text.as_bytes(), Strictness::Ignore);
        decoded.unwrap().object
    }

    fn names(remotes: &[Arc<Remote>]) -> Vec<&str> {
        remotes.iter().map(|remote| remote.webhook.name.as_str()).collect()
    }

    #[test]
    fn webhooks_are_ordered_by_configuration_and_then_as_listed() {
        const MUTATING: &str = "MutatingWebhookConfiguration";
        let profile = Names::new(Profile::Kubernetes);
        let dial = Arc::new(DialPolicy::new(&Config::for_tests(profile)));
        let mut configured = ConfigurationCache::new(profile, dial);
        configured.set(&configuration(MUTATING, "b", &[("z", 1), ("a", 1)]));
        configured.set(&configuration(MUTATING, "a", &[("m", 1)]));
        configured.set(&configuration("ValidatingWebhookConfiguration", "b", &[("v", 1)]));
        let first = configured.ordered();
        assert_eq!(names(&first.mutating), ["m", "z", "a"]);
        assert_eq!(names(&first.validating), ["v"]);
        // What did not change keeps its connections.
        configured.set(&configuration(MUTATING, "b", &[("z", 1), ("a", 2)]));
        let second = configured.ordered();
        let kept = |at: usize| Arc::ptr_eq(&first.mutating[at], &second.mutating[at]);
        assert_eq!([kept(0), kept(1), kept(2)], [true, true, false]);
        configured.remove(&configuration(MUTATING, "b", &[]));
        let third = configured.ordered();
        assert_eq!((names(&third.mutating), names(&third.validating)), (vec!["m"], vec!["v"]));
    }
}
