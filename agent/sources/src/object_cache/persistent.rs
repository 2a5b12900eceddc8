//! Watches of the claims, persistent volumes, drivers and attachments of a pod's volumes, as long
//! as it needs them.
//!
//! They are found step by step: a claim names its volume, the volume its driver, and the driver
//! whether it needs an attachment.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use agent_csi::Drivers;
use agent_volume::persistent::{self, Backing, KnownObjects, ObjectNames};
use proto_api::Resource;
use proto_api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod, Secret};
use proto_api::storage::v1::{CSIDriver, VolumeAttachment};
use proto_client::Client;
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::poll::Polling;
use super::shares::Shares;
use super::{Registry, Subscriber, Watched};

/// How long to wait for an unbound claim, a missing attachment or an unregistered driver before it
/// is reported. The wait continues afterwards.
const PATIENCE: Duration = Duration::from_secs(5);
/// Steps from a claim to all its objects, and one to check that there are no more.
const STEPS_MAX: usize = 6;

/// A registry of a kind that a node may not be allowed to watch; `is_settled` as in [`Polling`].
fn polled<T: Resource>(
    client: &Client,
    shares: &Arc<Shares>,
    is_settled: fn(&T) -> bool,
) -> Registry<T> {
    let polling = Arc::new(Polling::new(is_settled));
    let registry = Registry::new(client.clone(), shares.clone());
    Registry { polling, may_be_forbidden: true, ..registry }
}

/// Watches of all pods.
pub struct PersistentObjects {
    claims: Registry<PersistentVolumeClaim>,
    volumes: Registry<PersistentVolume>,
    drivers: Registry<CSIDriver>,
    attachments: Registry<VolumeAttachment>,
    secrets: Arc<Registry<Secret>>,
    registered: Drivers,
    node: String,
}

impl PersistentObjects {
    /// `registered` are the registered CSI drivers.
    pub(super) fn new(
        client: &Client,
        secrets: Arc<Registry<Secret>>,
        registered: Drivers,
        node: &str,
    ) -> Self {
        let shares = &secrets.shares;
        let is_bound = |claim: &PersistentVolumeClaim| claim.status.phase == "Bound";
        let is_attached = |attachment: &VolumeAttachment| attachment.status.attached;
        Self {
            claims: polled(client, shares, is_bound),
            volumes: polled(client, shares, |_| true),
            drivers: Registry::new(client.clone(), shares.clone()),
            attachments: polled(client, shares, is_attached),
            secrets,
            registered,
            node: node.to_owned(),
        }
    }

    /// Watches the objects of a pod's persistent volumes; `None` for a pod without any.
    pub(super) fn follow(self: &Arc<Self>, pod: &Pod, poke: &Arc<Notify>) -> Option<Followed> {
        if persistent::required_objects(pod, &self.node, &KnownObjects::default())
            == ObjectNames::default()
        {
            return None;
        }
        let (weak, mut changes) = (Arc::downgrade(poke), self.registered.changes());
        let until = Instant::now() + PATIENCE;
        // Wakes the pod when a driver registers and when the wait is to be reported.
        let notifier = tokio::spawn(async move {
            let mut patient = true;
            loop {
                // Both arms are cancel safe.
                tokio::select! {
                    changed = changes.changed() => if changed.is_err() { return },
                    () = tokio::time::sleep_until(until), if patient => patient = false,
                }
                match weak.upgrade() {
                    Some(poke) => poke.notify_one(),
                    None => return,
                }
            }
        });
        Some(Followed {
            objects: self.clone(),
            pod: pod.clone(),
            poke: poke.clone(),
            held: Mutex::default(),
            until,
            notifier: notifier.abort_handle(),
        })
    }
}

/// The watched objects of one pod's persistent volumes.
pub(super) struct Followed {
    objects: Arc<PersistentObjects>,
    pod: Pod,
    poke: Arc<Notify>,
    held: Mutex<WatchedObjects>,
    until: Instant,
    notifier: AbortHandle,
}

impl Drop for Followed {
    fn drop(&mut self) {
        self.notifier.abort();
    }
}

type ByName<T, K = String> = BTreeMap<K, Arc<Watched<T>>>;

#[derive(Default)]
struct WatchedObjects {
    claims: ByName<PersistentVolumeClaim>,
    volumes: ByName<PersistentVolume>,
    drivers: ByName<CSIDriver>,
    attachments: ByName<VolumeAttachment>,
    secrets: ByName<Secret, (String, String)>,
}

impl Followed {
    /// The known objects, and whether a set-up of the volumes should be attempted.
    pub(super) fn known_objects(&self) -> (KnownObjects, bool) {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let mut known = held.known_objects();
        let mut wanted = persistent::required_objects(&self.pod, &self.objects.node, &known);
        for _ in 0..STEPS_MAX {
            self.hold(&mut held, &wanted);
            known = held.known_objects();
            let next = persistent::required_objects(&self.pod, &self.objects.node, &known);
            if next == wanted {
                break;
            }
            wanted = next;
        }
        let looked_up = wanted.is_known(&known);
        let worth = looked_up && (self.is_ready(&known) || Instant::now() >= self.until);
        (known, worth)
    }

    fn hold(&self, held: &mut WatchedObjects, wanted: &ObjectNames) {
        let objects = &self.objects;
        let own = self.pod.metadata.namespace.as_str();
        let subscriber = Subscriber { namespace: own, poke: &self.poke };
        let plain = |name: &String| (String::new(), name.clone());
        keep(&mut held.claims, &wanted.claims, &objects.claims, subscriber, |n| {
            (own.to_owned(), n.clone())
        });
        keep(&mut held.volumes, &wanted.volumes, &objects.volumes, subscriber, plain);
        keep(&mut held.drivers, &wanted.drivers, &objects.drivers, subscriber, plain);
        keep(&mut held.attachments, &wanted.attachments, &objects.attachments, subscriber, plain);
        keep(&mut held.secrets, &wanted.secrets, &objects.secrets, subscriber, Clone::clone);
    }

    fn is_ready(&self, known: &KnownObjects) -> bool {
        self.pod.spec.volumes.iter().all(|volume| {
            match persistent::resolve(&self.pod, volume, &self.objects.node, known) {
                Ok(Some(found)) => match &found.backing {
                    Backing::Csi(csi) => self.objects.registered.get(&csi.driver).is_some(),
                    _ => true,
                },
                Ok(None) => true,
                Err(_) => false,
            }
        })
    }
}

/// Starts missing watches and drops those no longer needed.
fn keep<T: Resource, K: Ord + Clone>(
    held: &mut ByName<T, K>,
    wanted: &std::collections::BTreeSet<K>,
    registry: &Registry<T>,
    subscriber: Subscriber<'_>,
    place: impl Fn(&K) -> (String, String),
) {
    held.retain(|key, _| wanted.contains(key));
    for key in wanted {
        if !held.contains_key(key) {
            let (namespace, name) = place(key);
            held.insert(key.clone(), registry.watch(&namespace, &name, subscriber));
        }
    }
}

impl WatchedObjects {
    fn known_objects(&self) -> KnownObjects {
        KnownObjects {
            claims: super::read_watched(&self.claims),
            volumes: super::read_watched(&self.volumes),
            drivers: super::read_watched(&self.drivers),
            attachments: super::read_watched(&self.attachments),
            secrets: super::read_watched(&self.secrets),
        }
    }
}
