//! A driver of volumes in memory that keeps the rules of its specification, and what must hold of a pod's volumes.
//!
//! Directories and records are real files on a file system in memory. A mount is an entry of the table and a file in its place
//! that only the driver takes away: like a mount, it keeps the directory from being removed.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use agent_csi::driver::{Capabilities, Driver, DriverFuture, NodeService};
use agent_csi::mounts;
use agent_host::offload;
use agent_volume::mount;
use agent_volume::persistent::KnownObjects;
use futures_util::FutureExt as _;
use proto_api::core::v1::{
    CSIPersistentVolumeSource, ObjectReference, PersistentVolume, PersistentVolumeClaim,
};
use proto_api::names::Names;
use proto_api::storage::v1::CSIDriver;
use proto_grpc::csi::v1 as wire;
use tonic::{Request, Response, Status};

use super::random::{CLAIMS, DRIVER};
use super::runtime::Troubled;
use super::world::{self, Shared, Waits, World, lock, passes_in};

/// What stands for a mount.
const MOUNTED: &str = "mounted";
/// What a container leaves in a directory of its own.
const DATA: &str = "data";

pub struct SimDriver {
    pub world: Shared,
    pub incarnation: u64,
    pub runtime: Arc<Troubled>,
}

impl std::fmt::Debug for SimDriver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SimDriver")
    }
}

/// The driver as the agent knows it.
pub fn driver(world: &Shared, runtime: &Arc<Troubled>) -> Driver {
    let able = Capabilities { stage: true, ..Capabilities::default() };
    let incarnation = lock(world).incarnation;
    let service = SimDriver { world: world.clone(), incarnation, runtime: runtime.clone() };
    Driver::of_service(DRIVER, able, Arc::new(service))
}

impl SimDriver {
    fn call<A: Default + Send + 'static>(
        &self,
        what: String,
        work: impl FnOnce(&mut World, &Troubled) -> Result<(), Status> + Send + 'static,
    ) -> DriverFuture<A> {
        let (world, runtime) = (self.world.clone(), self.runtime.clone());
        let incarnation = self.incarnation;
        async move {
            let _waits = Waits::new(&world);
            let (before, after, fails, lost, hangs) = {
                let mut world = lock(&world);
                let (before, after) = (world.chance.pause(), world.chance.pause());
                (before, after, world.fault(12), world.fault(20), world.fault(60))
            };
            passes_in(&world, incarnation, before).await;
            if fails {
                lock(&world).note(format!("{what} fails"));
                return Err(Status::internal("trouble"));
            }
            // Done or not: nothing is heard of it.
            let done = !hangs || lock(&world).chance.one_in(2);
            let outcome = if done {
                let mut world = lock(&world);
                world.driven += 1;
                let outcome = work(&mut world, &runtime);
                world.note(format!(
                    "{what} {}",
                    if outcome.is_ok() { "works" } else { "is refused" }
                ));
                outcome
            } else {
                Ok(())
            };
            if hangs {
                lock(&world).note(format!("{what} hangs"));
                world::hangs(&world, Duration::from_secs(121)).await;
            }
            passes_in(&world, incarnation, after).await;
            if lost {
                Err(Status::unavailable("trouble"))
            } else {
                outcome.map(|()| Response::new(A::default()))
            }
        }
        .boxed()
    }
}

/// Refuses what a driver may refuse: its own words.
fn refused(why: &str) -> Status {
    Status::failed_precondition(why)
}

impl NodeService for SimDriver {
    fn stage(
        &self,
        asked: Request<wire::NodeStageVolumeRequest>,
    ) -> DriverFuture<wire::NodeStageVolumeResponse> {
        let asked = asked.into_inner();
        let (handle, path) = (asked.volume_id, PathBuf::from(asked.staging_target_path));
        self.call(format!("stage {handle}"), move |world, _| {
            // CSI: "the CO SHALL ensure that the staging_target_path directory exists"
            if !path.is_dir() {
                return Err(refused("the staging path is no directory"));
            }
            world.mount(&path, &handle);
            Ok(())
        })
    }

    fn unstage(
        &self,
        asked: Request<wire::NodeUnstageVolumeRequest>,
    ) -> DriverFuture<wire::NodeUnstageVolumeResponse> {
        let asked = asked.into_inner();
        let (handle, path) = (asked.volume_id, PathBuf::from(asked.staging_target_path));
        self.call(format!("unstage {handle}"), move |world, _| {
            // CSI: "the CO MUST guarantee that this RPC is called after all NodeUnpublishVolume have been called"
            let published = world.mounts.iter().any(|(at, of)| *of == handle && *at != path);
            if published {
                world.broken(format!("{handle} is unstaged while a pod has it"));
            }
            world.unmount(&path);
            Ok(())
        })
    }

    fn publish(
        &self,
        asked: Request<wire::NodePublishVolumeRequest>,
    ) -> DriverFuture<wire::NodePublishVolumeResponse> {
        let asked = asked.into_inner();
        let (handle, target) = (asked.volume_id, PathBuf::from(asked.target_path));
        let stage = PathBuf::from(asked.staging_target_path);
        self.call(format!("publish {handle}"), move |world, _| {
            let ephemeral = stage.as_os_str().is_empty();
            if !ephemeral && world.mounts.get(&stage) != Some(&handle) {
                // CSI: FAILED_PRECONDITION, "volume not staged"
                world.broken(format!("{handle} is published before it is staged"));
                return Err(refused("not staged"));
            }
            // CSI: "the CO SHALL ensure that the parent directory of the target path exists"
            if !target.parent().is_some_and(Path::is_dir) {
                return Err(refused("the parent of the target is no directory"));
            }
            let _ = fs::create_dir(&target);
            world.mount(&target, &handle);
            Ok(())
        })
    }

    fn unpublish(
        &self,
        asked: Request<wire::NodeUnpublishVolumeRequest>,
    ) -> DriverFuture<wire::NodeUnpublishVolumeResponse> {
        let asked = asked.into_inner();
        let (handle, target) = (asked.volume_id, PathBuf::from(asked.target_path));
        self.call(format!("unpublish {handle}"), move |world, runtime| {
            let user = uid_below(&world.root, &target);
            if user.is_some_and(|uid| runtime.is_live(&uid)) {
                world.broken(format!("{handle} is unpublished under a container that runs"));
            }
            world.unmount(&target);
            // CSI: the plugin deletes what it created at the target path
            let _ = fs::remove_dir(&target);
            Ok(())
        })
    }

    fn expand(
        &self,
        _: Request<wire::NodeExpandVolumeRequest>,
    ) -> DriverFuture<wire::NodeExpandVolumeResponse> {
        self.call("expand".into(), |_, _| Ok(()))
    }

    fn stats(
        &self,
        _: Request<wire::NodeGetVolumeStatsRequest>,
    ) -> DriverFuture<wire::NodeGetVolumeStatsResponse> {
        self.call("stats".into(), |_, _| Ok(()))
    }
}

/// The pod whose directory a path lies in.
fn uid_below(root: &Path, path: &Path) -> Option<String> {
    let below = path.strip_prefix(root.join("pods")).ok()?;
    Some(below.iter().next()?.to_string_lossy().into_owned())
}

impl World {
    fn mount(&mut self, at: &Path, handle: &str) {
        fs::write(at.join(MOUNTED), handle).expect("mount");
        self.mounts.insert(at.to_owned(), handle.to_owned());
        self.show_mounts();
    }

    fn unmount(&mut self, at: &Path) {
        if self.mounts.remove(at).is_some() {
            fs::remove_file(at.join(MOUNTED)).expect("the mount is there");
        }
        self.show_mounts();
    }

    /// No mount outlives a boot.
    pub fn lose_mounts(&mut self) {
        for (at, _) in std::mem::take(&mut self.mounts) {
            fs::remove_file(at.join(MOUNTED)).expect("the mount is there");
        }
        mount::simulated::lose_all();
        self.show_mounts();
    }

    fn show_mounts(&self) {
        let table: BTreeSet<PathBuf> = self.mounts.keys().cloned().collect();
        mounts::simulated::set(Some(table));
    }

    /// A mount whose file is gone was removed as if it were a directory: somebody's data is lost.
    pub fn judge_mounts(&mut self) {
        let lost = self.mounts.keys().find(|at| !at.join(MOUNTED).exists()).cloned();
        if let Some(lost) = lost {
            self.broken(format!("data below {} was removed", self.below(&lost)));
        }
    }

    fn below(&self, path: &Path) -> String {
        path.strip_prefix(&self.root).unwrap_or(path).display().to_string()
    }
}

/// Volumes of this thread are the world's from now on: with delays, faults and deaths around every piece of work on the disk.
pub fn begin(runtime: &Arc<Troubled>) {
    let (runtime, world) = (runtime.clone(), runtime.world.clone());
    let incarnation = lock(&world).incarnation;
    offload::simulated::set(Some(Arc::new(move || {
        let (runtime, world) = (runtime.clone(), world.clone());
        async move {
            judge_readers(&runtime);
            let _waits = Waits::new(&world);
            let (pause, fails) = {
                let mut world = lock(&world);
                (Duration::from_micros(world.chance.below(3000)), world.fault(60))
            };
            passes_in(&world, incarnation, pause).await;
            if fails { Err(std::io::Error::from_raw_os_error(28)) } else { Ok(()) }
        }
        .boxed()
    })));
}

/// What containers read is judged beside every piece of work on the disk.
pub fn judge_readers(runtime: &Troubled) {
    if lock(&runtime.world).scrutiny {
        let live: BTreeSet<String> = runtime.running().into_iter().map(|(uid, _)| uid).collect();
        lock(&runtime.world).judge_readers(|uid| live.contains(uid));
    }
}

/// Nothing is mounted.
pub fn lose_all() {
    mounts::simulated::set(Some(BTreeSet::new()));
    mount::simulated::set(true);
}

pub fn end() {
    mounts::simulated::set(None);
    mount::simulated::set(false);
    offload::simulated::set(None);
}

/// A container starts: every volume that it may mount is there, holds what it should, and what was in it still is.
pub fn judge_use(world: &mut World, uid: &str, id: &str) {
    let Some(book) = world.books.get_mut(uid) else { return };
    let pod = book.pod.clone();
    let names = Names::new(Default::default());
    let on_disk = agent_volume::VolumesOnDisk::new(&world.root, names);
    let volumes = agent_volume::volumes(&pod).expect("volumes");
    for (volume, spec) in volumes.iter().zip(&pod.spec.volumes) {
        let path = on_disk.path(uid, volume);
        let name = &volume.name;
        world.reads(uid, spec, path.clone());
        let Some(book) = world.books.get_mut(uid) else { return };
        if spec.volume_source.config_map.is_some() {
            if fs::read_to_string(path.join("version")).is_err() {
                world.broken(format!("{id} starts without the files of {name}"));
            }
        } else if spec.volume_source.secret.is_some() || spec.volume_source.projected.is_some() {
            // Read by who reads everything.
            if !mount::simulated::is_mounted(&path) {
                world.broken(format!("{id} starts and {name} is not in memory"));
            }
        } else if spec.volume_source.empty_dir.is_some() {
            let data = path.join(DATA);
            let lost = !book.used.insert(name.clone()) && !data.exists();
            let gone = !path.is_dir();
            let _ = fs::write(&data, "");
            if lost || gone {
                world.broken(format!("{id} starts and its {name} is gone"));
            }
        } else {
            let claim = spec.volume_source.persistent_volume_claim.as_ref();
            let spec_name = claim.map_or(name.clone(), |c| c.claim_name.replace("claim", "pv"));
            let plugin = names.label("csi").replace('/', "~");
            let target = world.root.join("pods").join(uid).join("volumes").join(plugin);
            if !world.mounts.contains_key(&target.join(spec_name).join("mount")) {
                world.broken(format!("{id} starts and {name} is not published"));
            }
        }
    }
}

/// The cluster's persistent volumes, which are there from the beginning.
pub fn known(republish: bool) -> KnownObjects {
    let mut known = KnownObjects::default();
    for n in 0..CLAIMS {
        let mut claim = PersistentVolumeClaim::default();
        claim.metadata.name = format!("claim{n}");
        claim.metadata.namespace = "ns".into();
        claim.metadata.uid = format!("claim{n}");
        claim.spec.volume_name = format!("pv{n}");
        claim.spec.access_modes = vec!["ReadWriteMany".into()];
        claim.status.phase = "Bound".into();
        let mut volume = PersistentVolume::default();
        volume.metadata.name = format!("pv{n}");
        volume.spec.access_modes = vec!["ReadWriteMany".into()];
        let (namespace, name) = ("ns".into(), format!("claim{n}"));
        let uid = format!("claim{n}");
        volume.spec.claim_ref =
            Some(ObjectReference { namespace, name, uid, ..ObjectReference::default() });
        let (driver, volume_handle) = (DRIVER.into(), format!("h{n}"));
        volume.spec.persistent_volume_source.csi =
            Some(CSIPersistentVolumeSource { driver, volume_handle, ..Default::default() });
        known.claims.insert(format!("claim{n}"), Some(Arc::new(claim)));
        known.volumes.insert(format!("pv{n}"), Some(Arc::new(volume)));
    }
    let mut driver = CSIDriver::default();
    driver.metadata.name = DRIVER.into();
    driver.spec.attach_required = Some(false);
    driver.spec.requires_republish = Some(republish);
    driver.spec.volume_lifecycle_modes = vec!["Persistent".into(), "Ephemeral".into()];
    known.drivers = BTreeMap::from([(DRIVER.to_owned(), Some(Arc::new(driver)))]);
    known
}
