//! What scrutinised histories have beside the rest: pods with secrets, tokens, readiness gates and processors of their own, others who
//! write to the API as well, and judges that look at everything at every step. One history in eight is one: their judges take time.

use proto_api::core::v1::{
    Container, Pod, PodReadinessGate, ProjectedVolumeSource, SecretVolumeSource,
    ServiceAccountTokenProjection, Volume, VolumeMount, VolumeProjection,
};

use super::random::Chance;

/// The secret that there is.
pub const KEYS: &str = "sec";
/// A condition that somebody else writes.
pub const GATE: &str = "example.com/gate";
/// The life of a token in seconds, by how many are wanted: the least that the API allows, and one more.
const LIVES: [i64; 2] = [600, 1000];

/// Whether a history is one of these.
pub fn is_scrutinised(seed: u64) -> bool {
    Chance(seed ^ 0x100c).one_in(8)
}

/// Whether it goes on for hours as well, in which tokens are renewed and clocks are set.
pub fn is_long(seed: u64) -> bool {
    is_scrutinised(seed) && Chance(seed ^ 0x10e6).one_in(12)
}

/// Gives a pod of the API some of it.
pub fn adorn(chance: &mut Chance, pod: &mut Pod, long: bool) {
    if chance.one_in(3) {
        let source = SecretVolumeSource { secret_name: KEYS.into(), ..Default::default() };
        let mut volume = Volume { name: "keys".into(), ..Volume::default() };
        volume.volume_source.secret = Some(source);
        mount(pod, volume);
    }
    if long || chance.one_in(3) {
        let life = LIVES[usize::try_from(chance.below(2)).expect("small")];
        let token = ServiceAccountTokenProjection {
            audience: "sim".into(),
            expiration_seconds: Some(life),
            path: "token".into(),
        };
        let part =
            VolumeProjection { service_account_token: Some(token), ..VolumeProjection::default() };
        let source = ProjectedVolumeSource { sources: vec![part], ..Default::default() };
        let mut volume = Volume { name: "access".into(), ..Volume::default() };
        volume.volume_source.projected = Some(source);
        mount(pod, volume);
    }
    if chance.one_in(4) {
        pod.spec.readiness_gates.push(PodReadinessGate { condition_type: GATE.into() });
    }
    if chance.one_in(2) {
        pod.spec.init_containers.iter_mut().for_each(|container| bound(container, "100m"));
        pod.spec.containers.iter_mut().for_each(|container| bound(container, "1"));
    }
}

fn mount(pod: &mut Pod, volume: Volume) {
    let (name, mount_path) = (volume.name.clone(), format!("/{}", volume.name));
    for container in pod.spec.init_containers.iter_mut().chain(&mut pod.spec.containers) {
        let mount = VolumeMount {
            name: name.clone(),
            mount_path: mount_path.clone(),
            ..VolumeMount::default()
        };
        container.volume_mounts.push(mount);
    }
    pod.spec.volumes.push(volume);
}

/// As much as it may have it asks for: whole processors are its own then.
fn bound(container: &mut Container, cpus: &str) {
    let resources = &mut container.resources;
    for (name, amount) in [("cpu", cpus), ("memory", "64Mi")] {
        resources.limits.insert(name.into(), amount.parse().expect("quantity"));
        resources.requests.insert(name.into(), amount.parse().expect("quantity"));
    }
}
