//! Looking at claims, volumes and what is attached. Before something is called gone that the maps do not show, the
//! server is asked: each map is kept by itself, and one may be behind another.

use std::sync::Arc;
use std::time::{Duration, Instant};

use proto_api::Quantity;
use proto_api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use proto_client::{ListParams, ObjectKey};

use super::{CATCH_UP, WorkError, Worker, lock};
use crate::controllers::Plan;
use crate::controllers::addresses::has_ended;
use crate::controllers::volumes::attach::{self, Attachable, Scene};
use crate::controllers::volumes::claim::{self, Around};
use crate::controllers::volumes::{
    claim_of, claims_of, ephemeral, growth, has, is_own, own_claim, protection, storage, volume,
};
use crate::task::{Task, users};

/// Wishes for more that are remembered as told.
const WISHES_MAX: usize = 10_000;

impl Worker {
    /// Does a task about volumes.
    pub(super) async fn work_volumes(&self, task: &Task) -> Result<Option<Duration>, WorkError> {
        let plan = match task {
            Task::Claim(key) => match self.plan_claim(key).await? {
                Some(plan) => plan,
                None => return Ok(Some(CATCH_UP)),
            },
            Task::Volume(name) => self.plan_volume(name).await?,
            Task::ClaimProtection(key) => self.plan_claim_protection(key).await?,
            Task::VolumeProtection(name) => self.plan_volume_protection(name).await?,
            Task::OwnClaims(pod) => self.plan_own_claims(pod),
            Task::Attachments(node) => self.plan_attachments(node),
            Task::Growth(key) => self.plan_growth(key),
            _ => Plan::default(),
        };
        self.apply(task, plan).await
    }

    /// `None` when the maps have to catch up first.
    async fn plan_claim(&self, key: &ObjectKey) -> Result<Option<Plan>, WorkError> {
        let (world, marks) = (&self.world, &self.marks);
        let Some(claim) = world.claims.get(key) else { return Ok(Some(Plan::default())) };
        let named = &claim.spec.volume_name;
        let shown = |name: &str| world.volumes.get(&ObjectKey::new("", name));
        if has(&claim.metadata, &marks.bind_completed)
            && !named.is_empty()
            && claim.status.phase != "Lost"
            && shown(named).is_none()
            && self.client.all::<PersistentVolume>().find(named).await?.is_some()
        {
            return Ok(None);
        }
        let around = Around {
            names: world.names,
            marks,
            volume: &shown,
            volumes: &|| world.volumes.objects(),
            class: &|name| world.classes.get(&ObjectKey::new("", name)),
            default_class: &|| {
                let classes = world.classes.list();
                let classes = classes.iter().map(|(_, class)| class.as_ref());
                marks.default_of(classes).map(str::to_owned)
            },
            pods: &|| users(world, key),
        };
        Ok(Some(claim::plan(&claim, &around)))
    }

    /// The claim that a volume refers to, as the map has it or, if it is not there, the server.
    async fn claim_behind(
        &self,
        volume: &PersistentVolume,
    ) -> Result<Option<Arc<PersistentVolumeClaim>>, WorkError> {
        let Some(key) = claim_of(volume) else { return Ok(None) };
        let uid = volume.spec.claim_ref.as_ref().map_or("", |of| of.uid.as_str());
        let shown = self.world.claims.get(&key);
        let settled = matches!(volume.status.phase.as_str(), "Released" | "Failed");
        if settled || uid.is_empty() || shown.as_ref().is_some_and(|c| c.metadata.uid == uid) {
            return Ok(shown);
        }
        let api = self.client.within::<PersistentVolumeClaim>(&key.namespace);
        Ok(api.find(&key.name).await?.map(Arc::new))
    }

    async fn plan_volume(&self, name: &str) -> Result<Plan, WorkError> {
        let Some(found) = self.world.volumes.get(&ObjectKey::new("", name)) else {
            return Ok(Plan::default());
        };
        let claim = self.claim_behind(&found).await?;
        Ok(volume::plan(self.world.names, &self.marks, &found, claim.as_deref()))
    }

    async fn plan_volume_protection(&self, name: &str) -> Result<Plan, WorkError> {
        let Some(volume) = self.world.volumes.get(&ObjectKey::new("", name)) else {
            return Ok(Plan::default());
        };
        let claim = if protection::is_held(&volume.metadata, &self.marks.volume_protection) {
            self.claim_behind(&volume).await?
        } else {
            None
        };
        Ok(protection::plan_volume(&self.marks, &volume, claim.as_deref()))
    }

    async fn plan_claim_protection(&self, key: &ObjectKey) -> Result<Plan, WorkError> {
        let Some(claim) = self.world.claims.get(key) else { return Ok(Plan::default()) };
        let used = if protection::is_held(&claim.metadata, &self.marks.claim_protection) {
            self.is_used(&claim).await?
        } else {
            false
        };
        Ok(protection::plan_claim(&self.marks, &claim, used))
    }

    async fn is_used(&self, claim: &PersistentVolumeClaim) -> Result<bool, WorkError> {
        let namespace = &claim.metadata.namespace;
        if self.world.pods.within(namespace).iter().any(|pod| protection::uses(pod, claim)) {
            return Ok(true);
        }
        let pods = self.client.within::<Pod>(namespace).list(&ListParams::default()).await?;
        Ok(pods.items.iter().any(|pod| protection::uses(pod, claim)))
    }

    fn plan_own_claims(&self, key: &ObjectKey) -> Plan {
        let Some(pod) = self.world.pods.get(key) else { return Plan::default() };
        ephemeral::plan(self.world.names, &pod, |name| {
            self.world.claims.get(&ObjectKey::new(&key.namespace, name))
        })
    }

    fn plan_growth(&self, key: &ObjectKey) -> Plan {
        let Some(claim) = self.world.claims.get(key) else { return Plan::default() };
        let mut told = lock(&self.memory.wishes);
        let uid = &claim.metadata.uid;
        let plan = growth::plan(self.world.names, &claim, told.get(uid).copied());
        if !plan.said.is_empty() {
            if told.len() >= WISHES_MAX {
                told.clear();
            }
            let wish: Quantity = storage(&claim.spec.resources.requests);
            told.insert(uid.clone(), wish);
        }
        plan
    }

    fn plan_attachments(&self, name: &str) -> Plan {
        let world = &self.world;
        let node = world.nodes.get(&ObjectKey::new("", name));
        let here = world.pods_on(name).into_iter().filter(|pod| !has_ended(pod));
        let needs = here.map(|pod| (pod.clone(), self.attachables(&pod)));
        let attachments = world.attachments.objects();
        let volume = |name: &str| world.volumes.get(&ObjectKey::new("", name));
        let scene = Scene {
            names: world.names,
            name,
            node: node.as_deref(),
            pods: needs.filter(|(_, volumes)| !volumes.is_empty()).collect(),
            attachments: &attachments,
            volume: &volume,
            unmount: self.settings.unmount,
            elsewhere: &|of| {
                let claim = volume(of).as_deref().and_then(claim_of);
                let mut pods = claim.map(|claim| users(world, &claim)).unwrap_or_default();
                pods.retain(|pod| {
                    let node = &pod.spec.node_name;
                    node != name && !node.is_empty() && !has_ended(pod)
                });
                pods
            },
        };
        attach::plan(&scene, &mut lock(&self.memory.attaching), Instant::now())
    }

    /// The volumes of a pod that drivers attach.
    fn attachables(&self, pod: &Pod) -> Vec<Attachable> {
        let world = &self.world;
        let own: Vec<String> = pod
            .spec
            .volumes
            .iter()
            .filter(|volume| volume.volume_source.ephemeral.is_some())
            .map(|volume| own_claim(pod, &volume.name))
            .collect();
        let bound = |name: String| {
            let claim = world.claims.get(&ObjectKey::new(&pod.metadata.namespace, &name))?;
            if own.contains(&name) && !is_own(pod, &claim) {
                return None;
            }
            let volume = world.volumes.get(&ObjectKey::new("", &claim.spec.volume_name))?;
            let of = volume.spec.claim_ref.as_ref()?;
            (of.uid == claim.metadata.uid).then_some(volume)
        };
        let needs = |volume: &Attachable| {
            let driver = world.drivers.get(&ObjectKey::new("", &volume.driver));
            driver.is_none_or(|driver| driver.spec.attach_required != Some(false))
        };
        let volumes = claims_of(pod).filter_map(bound);
        volumes.filter_map(|volume| Attachable::of(&volume)).filter(needs).collect()
    }
}
