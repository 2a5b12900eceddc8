//! Stores in an etcd of the test's own.

use std::time::Duration;

use apiserver_store::{
    Event, Health, Medium, Record, Revision, Stamp, Store, StoreConfig, StoreIdentity, Watch,
};
use apiserver_store_etcd::{EtcdConfig, OpenEtcdError, open};
use bytes::Bytes;

/// A text, with claims in the words that begin with `+`.
pub struct Text {
    pub text: Bytes,
    pub stamp: Stamp,
}

impl Text {
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.text).unwrap()
    }

    pub fn number(&self) -> u64 {
        self.as_str().parse().unwrap()
    }
}

impl Record for Text {
    type Draft = Bytes;

    fn stored(draft: &Bytes) -> Bytes {
        draft.clone()
    }

    fn stamp(draft: Bytes, stamp: Stamp) -> Self {
        Self { text: draft, stamp }
    }

    fn tombstone(last: &Self, stamp: Stamp) -> Self {
        Self { text: last.text.clone(), stamp }
    }

    fn memory_len(&self) -> usize {
        self.text.len()
    }

    fn restore(
        _: &str,
        stored: Bytes,
        stamp: Stamp,
    ) -> Result<Self, apiserver_store::RestoreError> {
        std::str::from_utf8(&stored)?;
        Ok(Self { text: stored, stamp })
    }

    fn claims(&self) -> Vec<String> {
        Self::claims_of(&self.text)
    }

    fn claims_of(draft: &Bytes) -> Vec<String> {
        let text = std::str::from_utf8(draft).unwrap_or_default();
        text.split(' ').filter(|word| word.starts_with('+')).map(str::to_owned).collect()
    }
}

pub fn identity() -> StoreIdentity {
    StoreIdentity { profile: "kubernetes".to_owned(), domain: "k8s.io".to_owned() }
}

pub fn store_config() -> StoreConfig {
    StoreConfig::new(Medium::Memory, identity())
}

/// An etcd whose history nobody compacts.
pub fn config(url: &str) -> EtcdConfig {
    EtcdConfig { compaction_interval: Duration::ZERO, ..EtcdConfig::new(vec![url.to_owned()]) }
}

pub async fn open_with(config: EtcdConfig) -> Result<Store<Text>, OpenEtcdError> {
    open(config, store_config(), Box::new(|_| Ok(()))).await
}

pub async fn server(url: &str) -> Store<Text> {
    open_with(config(url)).await.unwrap()
}

/// A client beside the servers.
pub async fn raw(url: &str) -> etcd_client::Client {
    etcd_client::Client::connect([url], None).await.unwrap()
}

/// What a watch says of an event, for comparison.
pub type Seen = (String, u64, String);

/// The events of a watch up to a revision.
pub async fn events_until(watch: &mut Watch<Text>, last: Revision) -> Vec<Seen> {
    let mut events: Vec<Event<Text>> = Vec::new();
    while watch.delivered_revision() < last {
        watch.next_batch(&mut events).await.unwrap();
    }
    let one = |event: &Event<Text>| {
        let text = format!("{:?} {}", event.kind, event.record.as_str());
        assert_eq!(event.record.stamp, event.stamp);
        (event.key.to_string(), event.stamp.modified.0, text)
    };
    events.iter().map(one).collect()
}

/// All records of a store, for comparison.
pub fn content(store: &Store<Text>) -> Vec<Seen> {
    let page = store.current_range(apiserver_store::Range::default());
    let one = |entry: &apiserver_store::Entry<Text>| {
        (entry.key.to_string(), entry.stamp.modified.0, entry.record.as_str().to_owned())
    };
    page.entries.iter().map(one).collect()
}

/// Waits until the store accepts writes, or refuses them.
pub async fn until_serving(store: &Store<Text>, serving: bool) {
    let mut health = store.health();
    let reached = health.wait_for(|health| (*health == Health::Serving) == serving);
    reached.await.unwrap();
}
