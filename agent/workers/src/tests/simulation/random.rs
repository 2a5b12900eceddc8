//! Numbers from a seed, and what is made of them.

use std::time::Duration;

use proto_api::Time;
use proto_api::core::v1::{
    CSIVolumeSource, ConfigMapVolumeSource, Container, EmptyDirVolumeSource, EnvVar, EnvVarSource,
    EphemeralContainer, ExecAction, Lifecycle, LifecycleHandler, PersistentVolumeClaimVolumeSource,
    Pod, Probe, SecretKeySelector, Volume, VolumeMount,
};

/// A generator of numbers from a seed (SplitMix64).
pub struct Chance(pub u64);

impl Chance {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    pub fn choose<'a>(&mut self, words: &[&'a str]) -> &'a str {
        words[usize::try_from(self.below(words.len() as u64)).expect("small")]
    }

    /// Mostly short, sometimes long.
    pub fn pause(&mut self) -> Duration {
        match self.below(20) {
            0..12 => Duration::from_millis(self.below(20)),
            12..19 => Duration::from_millis(self.below(500)),
            _ => Duration::from_secs(self.below(15)),
        }
    }

    /// As long as a write to a disk takes.
    pub fn write(&mut self) -> Duration {
        Duration::from_millis(1 + if self.one_in(10) { self.below(300) } else { self.below(12) })
    }

    pub fn secs(&mut self, below: u64) -> Duration {
        Duration::from_secs(self.below(below))
    }
}

/// Claims, volumes and config maps that there are.
pub const CLAIMS: u64 = 3;
pub const MAPS: u64 = 2;
/// The driver of all claims.
pub const DRIVER: &str = "sim.csi";

/// How much there is in a history. What is wrong shows mostly in small ones, which are many times cheaper; what takes several pods
/// and a long story shows in large ones only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scale {
    /// A pod or two with a container or two.
    Small,
    /// Up to six pods with something of everything.
    #[default]
    Large,
}

impl Scale {
    /// As small or as large.
    fn pick<T>(self, small: T, large: T) -> T {
        match self {
            Self::Small => small,
            Self::Large => large,
        }
    }

    /// Pods that are at most made.
    pub fn pods_max(self) -> u64 {
        self.pick(2, 6)
    }

    /// Pods of the API that there are in the beginning.
    pub fn pods(self, chance: &mut Chance) -> u64 {
        match self {
            Self::Small => 1,
            Self::Large => 1 + chance.below(3),
        }
    }

    /// Things that happen.
    pub fn happenings(self, chance: &mut Chance) -> u64 {
        match self {
            Self::Small => 1 + chance.below(5),
            Self::Large => 4 + chance.below(20),
        }
    }
}

/// A pod with something of everything, as the seed wants it.
pub fn pod_of(chance: &mut Chance, scale: Scale, name: &str, uid: &str) -> Pod {
    let mut pod = Pod::default();
    pod.metadata.uid = uid.into();
    pod.metadata.name = name.into();
    pod.metadata.namespace = "ns".into();
    pod.spec.restart_policy = chance.choose(&["Always", "OnFailure", "Never"]).into();
    pod.spec.termination_grace_period_seconds = Some(small(chance, 8));
    let volumes = chance.below(scale.pick(2, 4));
    pod.spec.volumes = (0..volumes).map(|n| volume_of(chance, n)).collect();
    let mounts: Vec<VolumeMount> = pod.spec.volumes.iter().map(mount_of).collect();
    let several = u64::from(chance.one_in(scale.pick(5, 2)));
    let rare = scale.pick(4, 2);
    pod.spec.containers =
        (0..=several).map(|n| serving(chance, rare, format!("main{n}"))).collect();
    for n in 0..chance.below(scale.pick(2, 4)) {
        let container = if chance.one_in(2) {
            Container {
                restart_policy: Some("Always".into()),
                ..serving(chance, rare, format!("side{n}"))
            }
        } else {
            Container { args: vec!["exit 0".into()], ..container(chance, format!("init{n}")) }
        };
        pod.spec.init_containers.push(container);
    }
    for container in pod.spec.init_containers.iter_mut().chain(&mut pod.spec.containers) {
        container.volume_mounts.clone_from(&mounts);
        let request = format!("{}m", chance.below(4) * 50);
        container.resources.requests.insert("cpu".into(), request.parse().expect("quantity"));
    }
    if chance.one_in(6) {
        pod.spec.active_deadline_seconds = Some(5 + small(chance, 60));
    }
    pod
}

/// A container to look into a pod with.
pub fn ephemeral(name: String) -> EphemeralContainer {
    let mut debug = EphemeralContainer::default();
    debug.ephemeral_container_common.name = name;
    debug.ephemeral_container_common.image = "image:1".into();
    debug
}

/// Marks a pod for deletion.
pub fn deleted(pod: &Pod, grace: i64) -> Pod {
    let mut pod = pod.clone();
    pod.metadata.deletion_timestamp = Some(Time::from_unix(1));
    pod.metadata.deletion_grace_period_seconds = Some(grace);
    pod
}

fn small(chance: &mut Chance, below: u64) -> i64 {
    i64::try_from(chance.below(below)).expect("small")
}

fn volume_of(chance: &mut Chance, n: u64) -> Volume {
    let mut volume = Volume { name: format!("v{n}"), ..Volume::default() };
    let source = &mut volume.volume_source;
    match chance.below(5) {
        0 | 1 => {
            let mut map = ConfigMapVolumeSource::default();
            map.local_object_reference.name = format!("map{}", chance.below(MAPS));
            source.config_map = Some(map);
        }
        2 => source.empty_dir = Some(EmptyDirVolumeSource::default()),
        3 => {
            let claim_name = format!("claim{}", chance.below(CLAIMS));
            source.persistent_volume_claim =
                Some(PersistentVolumeClaimVolumeSource { claim_name, ..Default::default() });
        }
        _ => source.csi = Some(CSIVolumeSource { driver: DRIVER.into(), ..Default::default() }),
    }
    volume
}

fn mount_of(volume: &Volume) -> VolumeMount {
    let (name, mount_path) = (volume.name.clone(), format!("/{}", volume.name));
    VolumeMount { name, mount_path, ..VolumeMount::default() }
}

fn container(chance: &mut Chance, name: String) -> Container {
    let image = chance.choose(&["image:1", "image:1", "image:1", "image:2"]).into();
    let image_pull_policy = chance.choose(&["IfNotPresent", "IfNotPresent", "Always"]).into();
    let termination_message_path = if chance.one_in(2) { "/dev/last" } else { "" }.into();
    let mut container = Container {
        name,
        image,
        image_pull_policy,
        termination_message_path,
        ..Container::default()
    };
    if chance.one_in(4) {
        let mut key = SecretKeySelector { key: "key".into(), ..SecretKeySelector::default() };
        key.local_object_reference.name = "sec".into();
        let value_from = Some(EnvVarSource { secret_key_ref: Some(key), ..Default::default() });
        container.env.push(EnvVar { name: "KEY".into(), value_from, ..EnvVar::default() });
    }
    container
}

/// A container that serves; it has each probe once in `rare` times.
fn serving(chance: &mut Chance, rare: u64, name: String) -> Container {
    let mut container = container(chance, name);
    let pre_stop = hook(chance, "pre");
    container.lifecycle = Some(Lifecycle { post_start: hook(chance, "post"), pre_stop });
    container.startup_probe = probe(chance, rare, "startup");
    container.readiness_probe = probe(chance, rare, "readiness");
    container.liveness_probe = probe(chance, rare, "liveness");
    container
}

/// A command that the simulation knows by this word.
pub fn exec(word: &str) -> Option<ExecAction> {
    Some(ExecAction { command: vec![word.to_owned()] })
}

fn hook(chance: &mut Chance, word: &str) -> Option<LifecycleHandler> {
    chance.one_in(3).then(|| LifecycleHandler { exec: exec(word), ..Default::default() })
}

fn probe(chance: &mut Chance, rare: u64, word: &str) -> Option<Probe> {
    chance.one_in(rare).then(|| {
        let initial_delay_seconds = i32::try_from(chance.below(3) * 4).expect("small");
        let failure_threshold = i32::try_from(1 + chance.below(3)).expect("small");
        let mut probe = Probe {
            period_seconds: 5,
            initial_delay_seconds,
            failure_threshold,
            ..Probe::default()
        };
        probe.probe_handler.exec = exec(word);
        probe
    })
}
