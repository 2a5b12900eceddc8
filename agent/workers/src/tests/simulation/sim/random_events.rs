//! What happens to pods, to the agent and to the world.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use agent_clock as clock;
use agent_pod::observed::ObservedContainer;
use proto_api::core::v1::{ConfigMap, Pod, PodCondition, Secret};
use proto_api::names::Names;

use super::super::extras;
use super::super::random::{DRIVER, MAPS, deleted, ephemeral, pod_of};
use super::super::world::{Book, SECRET, lock};
use super::{Due, Sim};

impl Sim {
    fn uid(&mut self, kind: &str) -> String {
        self.made += 1;
        // What comes later is told sooner: a list is in no order of age.
        let first = lock(&self.world).chance.below(10);
        format!("{kind}{first}{}", self.made)
    }

    fn enter(&mut self, pod: &Pod, is_static: bool) {
        let mut world = lock(&self.world);
        let ends = pod.spec.active_deadline_seconds.is_some();
        let book = Book { pod: pod.clone(), is_static, ends, ..Book::default() };
        world.note(format!("{} is wanted", pod.metadata.uid));
        world.books.insert(pod.metadata.uid.clone(), book);
    }

    /// A pod for the API server. Its name may be one that was used before.
    pub fn create(&mut self) {
        if self.made >= self.scale.pods_max() {
            return;
        }
        let uid = self.uid("u");
        let pod = {
            let mut world = lock(&self.world);
            let name = format!("p{}", world.chance.below(3));
            if world.api.pods.values().any(|pod| pod.metadata.name == name) {
                return;
            }
            let (scrutiny, scale) = (world.scrutiny, self.scale);
            let mut pod = pod_of(&mut world.chance, scale, &name, &uid);
            if scrutiny {
                extras::adorn(&mut world.chance, &mut pod, self.long);
            }
            pod
        };
        self.add(pod);
    }

    /// A pod for the API server.
    pub fn add(&mut self, pod: Pod) {
        self.enter(&pod, false);
        let mut world = lock(&self.world);
        world.api.version += 1;
        let mut pod = pod;
        pod.metadata.resource_version = world.api.version.to_string();
        world.api.pods.insert(pod.metadata.uid.clone(), Arc::new(pod));
        world.api_changed.notify_one();
    }

    /// A manifest.
    pub fn add_static(&mut self, mut pod: Pod) {
        let names = Names::new(Default::default());
        pod.metadata.annotations.insert(names.label("config.source"), "file".into());
        self.enter(&pod, true);
        self.statics.insert(pod.metadata.uid.clone(), Arc::new(pod));
        lock(&self.world).api_changed.notify_one();
    }

    /// From now on nothing can be written.
    pub fn fill_disk(&mut self) {
        self.disk_full = true;
        lock(&self.world).disk_lags = true;
    }

    /// Lets time pass until that is so.
    pub async fn until(&mut self, what: &str, is_so: impl Fn(&Self) -> bool) {
        let began = clock::since_began();
        while !is_so(self) && !self.failed() {
            self.pass(Duration::from_millis(1)).await;
            if clock::since_began() > began + Duration::from_secs(600) {
                lock(&self.world).broken(format!("not after ten minutes: {what}"));
            }
        }
    }

    /// A manifest. A second one of that name is the first, edited.
    pub fn create_static(&mut self) {
        if self.made >= self.scale.pods_max() {
            return;
        }
        let before: Vec<String> = self.statics.keys().cloned().collect();
        before.iter().for_each(|uid| self.dropped(uid, None));
        self.statics.clear();
        let uid = self.uid("s");
        let mut pod = pod_of(&mut lock(&self.world).chance, self.scale, "static", &uid);
        pod.spec.volumes.retain(|v| v.volume_source.empty_dir.is_some());
        let kept: BTreeSet<String> = pod.spec.volumes.iter().map(|v| v.name.clone()).collect();
        for container in pod.spec.init_containers.iter_mut().chain(&mut pod.spec.containers) {
            container.volume_mounts.retain(|mount| kept.contains(&mount.name));
            container.env.clear();
        }
        self.add_static(pod);
    }

    /// A source does not have a pod any more, or wants it ended: what runs of it may be stopped, and is killed not before its time.
    pub(super) fn dropped(&mut self, uid: &str, grace: Option<i64>) {
        let mut world = lock(&self.world);
        let Some(book) = world.books.get_mut(uid) else { return };
        let own = book.pod.metadata.deletion_grace_period_seconds;
        let grace = grace.or(own).or(book.pod.spec.termination_grace_period_seconds).unwrap_or(30);
        let from = clock::boot() + Duration::from_secs(u64::try_from(grace).unwrap_or(0));
        book.ends = true;
        book.kill_from = Some(book.kill_from.map_or(from, |known| known.min(from)));
        world.note(format!("{uid} is to end within {grace} s"));
    }

    fn change(&mut self, uid: &str, change: impl FnOnce(&mut Pod)) {
        let mut world = lock(&self.world);
        let world = &mut *world;
        let Some(object) = world.api.pods.get_mut(uid) else { return };
        let pod = Arc::make_mut(object);
        change(pod);
        world.api.version += 1;
        pod.metadata.resource_version = world.api.version.to_string();
        let pod = pod.clone();
        if let Some(book) = world.books.get_mut(uid) {
            book.pod = pod;
        }
        world.api_changed.notify_one();
    }

    pub fn delete(&mut self, uid: &str, grace: i64) {
        self.dropped(uid, Some(grace));
        self.change(uid, |pod| *pod = deleted(pod, grace));
    }

    pub(super) fn write_maps(&mut self) {
        let mut world = lock(&self.world);
        for n in 0..MAPS {
            let version = world.chance.next().to_string();
            let mut map = ConfigMap::default();
            map.metadata.name = format!("map{n}");
            map.data.insert("version".into(), version.clone());
            map.data.insert("same".into(), version.clone());
            world.readers.written(&map.metadata.name, &version);
            world.api.maps.insert(format!("map{n}"), Arc::new(map));
        }
        let mut secret = Secret::default();
        secret.data.insert("key".into(), SECRET.into());
        if world.scrutiny {
            let version = format!("{SECRET} {}", world.chance.next());
            world.readers.written(extras::KEYS, &version);
            secret.data.insert("version".into(), version.clone().into_bytes());
            secret.data.insert("same".into(), version.into_bytes());
        }
        world.api.secret = Arc::new(secret);
        world.api_changed.notify_one();
    }

    fn some_running(&mut self) -> Option<(String, ObservedContainer)> {
        let running = self.runtime.running();
        let at = lock(&self.world).chance.below(running.len().max(1) as u64);
        running.into_iter().nth(usize::try_from(at).expect("small"))
    }

    fn some_pod(&mut self) -> Option<String> {
        let mut world = lock(&self.world);
        let uids: Vec<String> = world.api.pods.keys().cloned().collect();
        let at = world.chance.below(uids.len().max(1) as u64);
        uids.into_iter().nth(usize::try_from(at).expect("small"))
    }

    /// Something happens.
    pub async fn happen(&mut self) {
        let what = lock(&self.world).chance.below(40);
        match what {
            0..4 => self.exit_one(),
            4..6 => self.lose_sandbox(),
            6..10 => self.sicken(),
            10..13 => self.kill().await,
            13 | 14 => self.create(),
            15 => self.create_static(),
            16 => {
                let uids: Vec<String> = self.statics.keys().cloned().collect();
                uids.iter().for_each(|uid| self.dropped(uid, None));
                self.statics.clear();
                lock(&self.world).api_changed.notify_one();
            }
            17 | 18 => self.debug(),
            19..22 => self.end_one(),
            22..25 => self.change_maps(),
            25 => self.replace(),
            26 | 27 => self.go_away().await,
            28 | 29 => self.set_clock(),
            30 => self.reboot().await,
            31 => self.press(),
            32 => self.runtime.inner.remove_image_now("image:2"),
            33..36 => self.cripple(),
            36..38 if lock(&self.world).scrutiny => self.meddle(),
            36..40 => self.overwrite(),
            _ => {}
        }
    }

    fn exit_one(&mut self) {
        if let Some((_, container)) = self.some_running() {
            let code = i32::try_from(lock(&self.world).chance.below(3)).expect("small");
            lock(&self.world).note(format!("{} exits with {code}", container.id));
            self.runtime.inner.end(&container.id, code);
        }
    }

    /// Somebody else opens or shuts the gate of a pod, in its status.
    fn meddle(&mut self) {
        let Some(uid) = self.some_pod() else { return };
        let open = lock(&self.world).chance.one_in(2);
        self.write_gate(&uid, open);
    }

    pub(super) fn write_gate(&mut self, uid: &str, open: bool) {
        let gate = PodCondition {
            type_: extras::GATE.into(),
            status: if open { "True" } else { "False" }.into(),
            message: format!("by somebody else at {:?}", clock::since_began()),
            ..PodCondition::default()
        };
        let write = |conditions: &mut Vec<PodCondition>| {
            conditions.retain(|c| c.type_ != gate.type_);
            conditions.push(gate.clone());
        };
        self.change(uid, |pod| write(&mut pod.status.conditions));
        let mut world = lock(&self.world);
        world.note(format!("the gate of {uid} is open: {open}"));
        if let Some(book) = world.books.get_mut(uid) {
            write(&mut book.shown.conditions);
            book.opened |= open;
        }
    }

    /// A container that runs ends, and from now on soon after each of its starts.
    fn cripple(&mut self) {
        let Some((uid, container)) = self.some_running() else { return };
        if let Some(book) = lock(&self.world).books.get_mut(&uid) {
            book.crashing = Some(container.name);
        }
        self.crash(&container.id);
    }

    pub(super) fn crash(&mut self, id: &str) {
        if self.runtime.running().iter().any(|(_, container)| container.id == id) {
            lock(&self.world).note(format!("{id} crashes"));
            self.runtime.inner.end(id, 1);
        }
    }

    fn lose_sandbox(&mut self) {
        let Some((uid, container)) = self.some_running() else { return };
        lock(&self.world).note(format!("{} of {uid} dies", container.sandbox_id));
        self.runtime.inner.end_sandbox(&container.sandbox_id);
    }

    fn sicken(&mut self) {
        if let Some((_, container)) = self.some_running() {
            let mut world = lock(&self.world);
            let instance = world.instances.entry(container.id.clone()).or_default();
            instance.sick = !instance.sick;
            let sick = instance.sick;
            world.note(format!("{} sick: {sick}", container.id));
        }
    }

    fn debug(&mut self) {
        let Some(uid) = self.some_pod() else { return };
        self.change(&uid, |pod| {
            let known = &mut pod.spec.ephemeral_containers;
            if known.len() < 2 {
                known.push(ephemeral(format!("debug{}", known.len())));
            }
        });
    }

    /// Deletes a pod, perhaps one that is deleted already, sooner; or its object goes at once.
    fn end_one(&mut self) {
        let Some(uid) = self.some_pod() else { return };
        let (force, grace) = {
            let mut world = lock(&self.world);
            (world.chance.one_in(4), i64::try_from(world.chance.below(8)).expect("small"))
        };
        let known = lock(&self.world).api.pods.get(&uid).cloned();
        let sooner = known.and_then(|pod| pod.metadata.deletion_grace_period_seconds);
        if force {
            // The agent gives what the object said last.
            self.dropped(&uid, None);
            lock(&self.world).api.pods.remove(&uid);
            lock(&self.world).api_changed.notify_one();
        } else {
            self.delete(&uid, sooner.map_or(grace, |known| known.min(grace)));
        }
    }

    fn change_maps(&mut self) {
        let gone = lock(&self.world).chance.one_in(5);
        if gone {
            lock(&self.world).api.maps.remove("map0");
            lock(&self.world).api_changed.notify_one();
        } else {
            self.write_maps();
        }
    }

    /// Another image for a container: its instance is replaced.
    fn replace(&mut self) {
        let Some(uid) = self.some_pod() else { return };
        self.change(&uid, |pod| {
            if let Some(container) = pod.spec.containers.first_mut() {
                container.image =
                    if container.image == "image:1" { "image:2" } else { "image:1" }.into();
            }
        });
        // Though it may be changed back before the agent gets to it.
        let mut world = lock(&self.world);
        let of = world.instances.values_mut().filter(|i| i.uid == uid && i.name == "main0");
        of.for_each(|instance| instance.may_be_stopped = true);
    }

    async fn go_away(&mut self) {
        let (who, long) = {
            let mut world = lock(&self.world);
            (world.chance.below(4), world.chance.secs(60))
        };
        lock(&self.world).note(format!("away for {long:?}: {who}"));
        match who {
            0 => {
                lock(&self.world).runtime_away = true;
                self.due(long, Due::RuntimeBack);
            }
            1 => {
                lock(&self.world).api.away = true;
                self.due(long, Due::ApiBack);
                // While it is silent, or just when it returns.
                let noticed = lock(&self.world).chance.below(long.as_secs() + 2);
                self.due(Duration::from_secs(noticed), Due::Silent);
            }
            2 => {
                self.fill_disk();
                self.due(long, Due::DiskBack);
            }
            _ => {
                self.driver_away = true;
                self.due(long, Due::DriverBack);
                if let Some(agent) = &self.agent {
                    agent.drivers.remove(DRIVER);
                }
            }
        }
    }

    /// The machine boots: no process, no mount and no cgroup is left, and the clock since boot starts again.
    pub(super) async fn reboot(&mut self) {
        self.kill().await;
        self.runtime.inner.reboot();
        clock::reboot();
        while self.happened.try_recv().is_ok() {}
        self.rebooted = true;
        self.boots += 1;
        self.agenda.retain(|_, due| !matches!(due, Due::Late(_) | Due::Crash(_)));
        let mut world = lock(&self.world);
        world.lose_mounts();
        world.cgroups.clear();
        for book in world.books.values_mut() {
            (book.kill_from, book.kill_by) = (None, None);
            (book.starts, book.crashes) = (BTreeMap::new(), BTreeMap::new());
            book.ending = book.ending.map(|_| Duration::ZERO);
        }
        world.note("the machine boots");
    }

    /// The node is short of room, or is not any more: whoever is here stays.
    fn press(&mut self) {
        if let Some(agent) = &self.agent {
            agent.parts.node_pressure.send_modify(|strain| {
                strain.pressure.disk = !strain.pressure.disk;
            });
        }
    }

    /// Somebody sets the wall clock.
    pub(super) fn set_clock(&mut self) {
        let by = lock(&self.world).chance.choose(&["-86400", "86400", "-60", "3600"]).parse();
        clock::step(by.expect("a number"));
        let mut world = lock(&self.world);
        world.steps += 1;
        world.note("the clock is set");
    }
}
