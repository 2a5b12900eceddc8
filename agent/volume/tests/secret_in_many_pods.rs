//! One Secret in many pods: `AGENT_VOLUME_PODS` sets the number.
#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "a test")]

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt as _;

use agent_pod::env::EnvObjects;
use agent_volume::VolumesOnDisk;
use agent_volume::sources::{PayloadInputs, Volume, volumes};
use agent_volume::tree::TreeWrite;
use proto_api::core::v1::{ConfigMap, Pod, Secret, SecretVolumeSource};
use proto_api::names::{Names, Profile};

/// A thousand take about ten seconds, most of it for mounting and unmounting.
fn pods_wanted() -> usize {
    std::env::var("AGENT_VOLUME_PODS").ok().and_then(|n| n.parse().ok()).unwrap_or(100)
}

struct One(Secret);

impl EnvObjects for One {
    fn config_map(&self, _: &str) -> Option<&ConfigMap> {
        None
    }

    fn secret(&self, _: &str) -> Option<&Secret> {
        Some(&self.0)
    }
}

fn pod(number: usize) -> (Pod, Volume) {
    let mut pod = Pod::default();
    pod.metadata.uid = format!("u{number}");
    let mut volume = proto_api::core::v1::Volume { name: "v".into(), ..Default::default() };
    let source = SecretVolumeSource { secret_name: "s".into(), ..Default::default() };
    volume.volume_source.secret = Some(source);
    pod.spec.volumes.push(volume);
    let volume = volumes(&pod).unwrap().remove(0);
    (pod, volume)
}

/// Removes everything at the end of the test.
struct Pods(tempfile::TempDir, VolumesOnDisk, usize);

impl Drop for Pods {
    fn drop(&mut self) {
        for number in 0..self.2 {
            let _ = self.1.tear_down(&format!("u{number}"));
        }
        let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let left = table.contains(self.0.path().to_str().unwrap());
        assert!(std::thread::panicking() || !left, "a mount is left");
    }
}

#[test]
fn many_mounts_follow_one_update_in_one_pass() {
    let dir = tempfile::tempdir().unwrap();
    if dir.path().metadata().unwrap().uid() != 0 {
        eprintln!("SKIPPED many_mounts_follow_one_update_in_one_pass: needs root");
        return;
    }
    let on_disk = VolumesOnDisk::new(dir.path(), Names::new(Profile::Kubernetes));
    let wanted = pods_wanted();
    let here = Pods(dir, on_disk, wanted);
    let pods: Vec<(Pod, Volume)> = (0..wanted).map(pod).collect();
    let nothing = BTreeMap::new();
    let pass = |value: &str| {
        let mut secret = Secret::default();
        secret.data.insert("key".into(), value.as_bytes().to_vec());
        let objects = One(secret);
        let mut switched = 0;
        for (pod, volume) in &pods {
            let inputs = PayloadInputs {
                pod,
                objects: &objects,
                tokens: &BTreeMap::new(),
                allocatable: &nothing,
                budget: &agent_volume::Budget::default(),
            };
            let done = here.1.set_up(&inputs, volume).unwrap();
            assert_eq!(std::fs::read_to_string(done.path.join("key")).unwrap(), value);
            switched += usize::from(done.written == Some(TreeWrite::Switched));
        }
        switched
    };
    assert_eq!(pass("one"), wanted);
    let began = std::time::Instant::now();
    assert_eq!(pass("two"), wanted);
    eprintln!("{wanted} mounts followed an update in {:?}", began.elapsed());
    assert_eq!(pass("two"), 0, "nothing is written twice");
}
