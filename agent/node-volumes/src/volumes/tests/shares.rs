//! Work on the files of a pod takes a share of the blocking threads: what hangs keeps only its own pod waiting.

use std::sync::mpsc;

use agent_host::{PodWork, offload_for_pod};
use proto_api::core::v1::EmptyDirVolumeSource;
use tokio::sync::oneshot;

use super::*;

/// Calls of one pod that run at a time, and threads of the test: those, and a few.
const SHARE: usize = 2;
const THREADS: usize = 6;
/// How long a call is watched that has to wait.
const WATCHED: Duration = Duration::from_millis(200);

fn with_volume(uid: &str) -> Arc<Pod> {
    let mut pod = pod(uid);
    let mut volume = proto_api::core::v1::Volume { name: "v".into(), ..Default::default() };
    volume.volume_source.empty_dir = Some(EmptyDirVolumeSource::default());
    pod.spec.volumes = vec![volume];
    Arc::new(pod)
}

/// Takes the whole share of a pod, until the result is dropped.
async fn hang(pod: &Pod, kind: PodWork) -> Vec<mpsc::Sender<()>> {
    let mut hung = Vec::new();
    for _ in 0..SHARE {
        let (release, wait) = mpsc::channel();
        let (begun, begins) = oneshot::channel();
        let (namespace, uid) = (pod.metadata.namespace.clone(), pod.metadata.uid.clone());
        tokio::spawn(async move {
            let work = move || {
                let _ = begun.send(());
                let _ = wait.recv();
            };
            offload_for_pod((&namespace, &uid), kind, work).await
        });
        begins.await.expect("it begins");
        hung.push(release);
    }
    hung
}

async fn waits<T>(call: impl Future<Output = T>) -> bool {
    tokio::time::timeout(WATCHED, call).await.is_err()
}

#[test]
fn a_pod_whose_files_hang_keeps_no_other_pod_waiting() {
    let world = World::new(Arc::new(NodeHelpers::default()));
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().max_blocking_threads(THREADS).build().expect("runtime");
    runtime.block_on(async {
        let (volumes, sources) = (&world.volumes, PodObjects::default());
        let (stuck, well) = (with_volume("stuck"), with_volume("well"));
        let hung = hang(&stuck, PodWork::SetUp).await;
        assert!(waits(volumes.set_up(&stuck, &sources)).await);
        assert!(waits(volumes.bind_parts(&stuck, "c", Vec::new())).await);
        volumes.set_up(&well, &sources).await.expect("another pod");
        volumes.bind_parts(&well, "c", Vec::new()).await.expect("another pod");
        // It may be what ends the calls that hang.
        volumes.tear_down(&stuck).await.expect("not kept by set-ups");
        drop(hung);
        volumes.set_up(&stuck, &sources).await.expect("they have returned");
        let hung = hang(&stuck, PodWork::TearDown).await;
        assert!(waits(volumes.tear_down(&stuck)).await);
        volumes.tear_down(&well).await.expect("another pod");
        drop(hung);
        volumes.tear_down(&stuck).await.expect("they have returned");
    });
    assert!(!world.exists("stuck") && !world.exists("well"));
}
