//! The agent as a process: how it starts, and how it dies.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use agent_csi::{CsiNode, Drivers};
use agent_interfaces::testing::FakeHost;
use agent_journal::Journal;
use agent_journal::simulated::Disk;
use agent_node_volumes::persistent_volumes::PersistentVolumes;
use agent_node_volumes::persistent_volumes::block::Disks;
use agent_node_volumes::persistent_volumes::helpers::{Helpers, NodeHelpers};
use agent_node_volumes::volumes::NodeVolumes;
use agent_pod::desired::PodSource;
use agent_resources::allocator::pool;
use agent_volume::shared_mounts::SharedMounts;
use proto_api::names::Names;
use proto_daemon::ready::Readiness;
use proto_daemon::statusz::StatusBoard;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::super::cluster::{Clerk, SimCgroups, SimObjects, View};
use super::super::issuer::SimIssuer;
use super::super::runtime::Troubled;
use super::super::world::{SECRET, lock};
use super::super::{shares, volumes};
use super::{Agent, Due, Sim};
use crate::pod_context::PodContext;
use crate::test_support::{TestContextParts, metrics, pod_context};
use crate::{FoundAtStart, Pods};

/// Between two looks at the processors of what runs, as the configuration has it.
const POOL_PERIOD: Duration = Duration::from_secs(10);

impl Sim {
    /// A new process: the journal as it is on disk, whatever the runtime and the disk have.
    pub(super) fn start(&mut self) {
        {
            let mut world = lock(&self.world);
            (world.incarnation, world.under_way) = (world.incarnation + 1, 0);
            let (inner, incarnation) = (self.runtime.inner.clone(), world.incarnation);
            self.runtime = Arc::new(Troubled { inner, world: self.world.clone(), incarnation });
        }
        volumes::begin(&self.runtime);
        let records = self.disk.read(std::mem::take(&mut self.rebooted));
        if serde_json::to_string(&records).expect("encode").contains(SECRET) {
            lock(&self.world).broken("the journal holds a secret");
        }
        let notes = std::mem::take(&mut self.disk.notes);
        let (journal, disk) = Disk::open(records.clone(), notes, self.given.clone());
        self.disk = disk;
        let drivers = Drivers::default();
        let csi =
            CsiNode::open(&self.root, Names::new(Default::default()), "node", drivers.clone());
        let csi = Arc::new(csi.expect("the records can be read"));
        let view = Arc::new(View::new(volumes::known(self.republish)));
        let mut parts = self.parts(journal.clone(), csi.clone(), view.clone());
        let mut heals = JoinSet::new();
        if lock(&self.world).scrutiny {
            let allocator = shares::give_to(&mut parts, journal);
            let runtime = self.runtime.clone();
            heals.spawn(pool::keep(allocator, runtime.clone(), runtime, POOL_PERIOD));
        }
        let parts = Arc::new(parts);
        let found = FoundAtStart::new(self.runtime.all(), records, parts.leftover_uids());
        let unready = Readiness::default().guard("sources");
        let sources = vec![PodSource::Static, PodSource::Api];
        let (said, hear_said) = mpsc::channel(1024);
        let (news, hear_news) = mpsc::channel(1024);
        let pods = Pods::new(parts.clone(), StatusBoard::default(), found, sources, unready);
        let task = tokio::spawn(pods.run(hear_said, hear_news));
        let (told, told_static) = (BTreeMap::new(), BTreeMap::new());
        let synced = BTreeSet::new();
        heals.spawn(async move { csi.keep_unstaged(|_| ()).await });
        let agent =
            Agent { said, news, task, told, told_static, synced, view, drivers, parts, heals };
        self.agent = Some(agent);
        {
            let mut world = lock(&self.world);
            world.note("agent starts");
            world.mirrors_heard = false;
            world.books.values_mut().for_each(|book| (book.told, book.kill_by) = (false, None));
        }
        self.due(Duration::ZERO, Due::Missed);
        let (tell, register) = {
            let chance = &mut lock(&self.world).chance;
            (chance.pause(), chance.pause())
        };
        self.due(tell, Due::Tell);
        self.due(register, Due::Register);
    }

    /// What its pods' tasks share.
    fn parts(&self, journal: Journal, csi: Arc<CsiNode>, view: Arc<View>) -> PodContext {
        let names = Names::new(Default::default());
        let reports = Arc::new(Clerk { world: self.world.clone(), runtime: self.runtime.clone() });
        let on_disk = agent_volume::VolumesOnDisk::new(&self.root, names);
        let helpers: Arc<dyn Helpers> = Arc::new(NodeHelpers::default());
        let shared = SharedMounts::new(&self.root, names);
        let persistent = PersistentVolumes {
            disks: Arc::new(Disks::new(shared, helpers.clone(), csi.changes().clone())),
            helpers,
            selinux: false,
            operations: metrics().operations.clone(),
            csi,
            volumes: on_disk.clone(),
            node: "node".into(),
            client: None,
            reports: reports.clone(),
        };
        let node = watch::channel(None).1;
        let outside = TestContextParts {
            dir: &self.root,
            runtime: self.runtime.clone(),
            reports,
            host: Arc::new(FakeHost::default()),
            journal,
        };
        let mut parts = pod_context(outside);
        parts.settings.root_dir.clone_from(&self.root);
        let (world, runtime) = (self.world.clone(), self.runtime.clone());
        parts.cgroups = Arc::new(SimCgroups { world, runtime });
        let incarnation = lock(&self.world).incarnation;
        let issuer = Arc::new(SimIssuer { world: self.world.clone(), incarnation });
        let boot = format!("boot {}", self.boots);
        parts.volumes = Arc::new(NodeVolumes::new(on_disk, persistent, Some(issuer), node, boot));
        parts.object_cache = Arc::new(SimObjects(view));
        parts
    }

    pub async fn kill(&mut self) {
        let Some(agent) = self.agent.take() else { return };
        agent.task.abort();
        if let Err(error) = agent.task.await
            && error.is_panic()
        {
            lock(&self.world).broken(format!("the agent panics: {error}"));
        }
        for uid in agent.parts.active_pods.suspects() {
            lock(&self.world).broken(format!("the task of {uid} panics"));
        }
        drop(agent.heals);
        drop(agent.parts);
        // Everything that belongs to it ends before anything else happens.
        sleep(Duration::from_millis(1)).await;
        while self.happened.try_recv().is_ok() {}
        self.take_late();
        self.agenda.retain(|_, due| {
            !matches!(
                due,
                Due::News(_) | Due::Missed | Due::Write | Due::Commit | Due::Tell | Due::Register
            )
        });
        let mut world = lock(&self.world);
        world.note("agent dies");
    }
}
