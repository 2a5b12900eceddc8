//! Volumes of the pods of a hollow node: their objects are waited for, their tokens requested and renewed and their files made, as on any node, but nothing
//! is written or mounted.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use agent_interfaces::{
    AttachedVolumes, BindError, MountedVolumes, PodObjects, PodVolumes, UnmountError, VolumeError,
    VolumeUsage, WantedPart,
};
use agent_pod::volume_mounts::VolumeOnHost;
use agent_volume::sources::{PayloadInputs, SourceError, VolumeKind};
use agent_volume::{VolumeRequirements, VolumesOnDisk};
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use proto_api::core::v1::{Node, Pod};
use proto_api::names::Names;
use proto_daemon::exit::chain;
use tokio::sync::watch;

use crate::volumes::{IssuedToken, Issuer, Tokens};

/// Directory of the volumes in the mounts of containers; nothing is there.
const PLACE: &str = "/memory";

/// The volumes of a hollow node.
pub struct VolumesInMemory {
    tokens: Tokens,
    node: watch::Receiver<Option<Arc<Node>>>,
    /// Uids of pods whose volumes are set up.
    mounted: Mutex<BTreeSet<String>>,
}

impl VolumesInMemory {
    /// Tokens are `issuer`'s.
    pub fn new(
        issuer: Arc<dyn Issuer>,
        node: watch::Receiver<Option<Arc<Node>>>,
        names: &'static Names,
    ) -> Self {
        // Nothing is there to be found from an earlier process.
        let none = VolumesOnDisk::new(Path::new(PLACE), names);
        let tokens = Tokens::new(Some(issuer), none, String::new());
        Self { tokens, node, mounted: Mutex::default() }
    }

    async fn set_up_all(
        &self,
        pod: &Pod,
        sources: &PodObjects,
    ) -> Result<MountedVolumes, VolumeError> {
        let failed = |error: &SourceError| VolumeError::mount(chain(error));
        let volumes = agent_volume::volumes(pod).map_err(|error| failed(&error))?;
        let mut needs = VolumeRequirements::default();
        volumes.iter().for_each(|volume| volume.add_needs(&mut needs));
        let (tokens, outcome) = self.tokens.get(pod, &volumes, &needs.tokens).await;
        outcome.map_err(|e| VolumeError::mount(chain(&e)))?;
        let refresh_at = tokens.values().map(IssuedToken::next_check).min();
        let tokens = tokens.into_iter().map(|(want, token)| (want, token.text)).collect();
        let allocatable = self.node.borrow().as_ref().map(|node| node.status.allocatable.clone());
        let inputs = PayloadInputs {
            pod,
            objects: sources,
            tokens: &tokens,
            allocatable: &allocatable.unwrap_or_default(),
            budget: &agent_volume::Budget::default(),
        };
        let mut on_host = BTreeMap::new();
        for volume in volumes {
            let read_only = match &volume.kind {
                VolumeKind::Projected(projected) => {
                    projected.payload(&inputs).map_err(|error| failed(&error))?;
                    true
                }
                VolumeKind::Persistent => {
                    let name = &volume.name;
                    let line = format!("volume {name}: a hollow node has no persistent volumes");
                    return Err(VolumeError::mount(line));
                }
                _ => false,
            };
            let path = format!("{PLACE}/{}/{}", pod.metadata.uid, volume.name);
            on_host
                .insert(volume.name, VolumeOnHost { path, read_only, ..VolumeOnHost::default() });
        }
        self.lock().insert(pod.metadata.uid.clone());
        Ok(MountedVolumes { on_host, refresh_at })
    }

    fn lock(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.mounted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PodVolumes for VolumesInMemory {
    fn set_up<'a>(
        &'a self,
        pod: &'a Arc<Pod>,
        sources: &'a PodObjects,
    ) -> BoxFuture<'a, Result<MountedVolumes, VolumeError>> {
        self.set_up_all(pod, sources).boxed()
    }

    fn bind_parts<'a>(
        &'a self,
        _: &'a Pod,
        _: &'a str,
        parts: Vec<WantedPart>,
    ) -> BoxFuture<'a, Result<BTreeMap<usize, String>, BindError>> {
        let path = |part: WantedPart| (part.index, format!("{}/{}", part.volume.path, part.path));
        std::future::ready(Ok(parts.into_iter().map(path).collect())).boxed()
    }

    fn exist(&self, pod: &Pod) -> bool {
        self.lock().contains(&pod.metadata.uid)
    }

    fn tear_down<'a>(&'a self, pod: &'a Pod) -> BoxFuture<'a, Result<(), UnmountError>> {
        self.tokens.forget(&pod.metadata.uid);
        self.lock().remove(&pod.metadata.uid);
        std::future::ready(Ok(())).boxed()
    }
}

impl AttachedVolumes for VolumesInMemory {}

impl VolumeUsage for VolumesInMemory {}

#[cfg(test)]
mod tests {
    use proto_api::authentication::v1::TokenRequest;
    use proto_api::core::v1::{
        ConfigMap, ConfigMapVolumeSource, PersistentVolumeClaimVolumeSource, Volume, VolumeSource,
    };
    use std::time::Duration;

    use proto_api::names::Profile;
    use proto_client::ClientError;

    use super::*;

    struct NoTokens;

    impl Issuer for NoTokens {
        fn issue<'a>(
            &'a self,
            _: &'a str,
            _: &'a str,
            _: &'a TokenRequest,
        ) -> BoxFuture<'a, Result<TokenRequest, ClientError>> {
            let refused =
                ClientError::Deadline { request: String::new(), deadline: Duration::ZERO };
            std::future::ready(Err(refused)).boxed()
        }
    }

    fn pod(source: VolumeSource) -> Arc<Pod> {
        let mut pod = Pod::default();
        pod.metadata.uid = "u".to_owned();
        pod.spec.volumes = vec![Volume { name: "v".to_owned(), volume_source: source }];
        Arc::new(pod)
    }

    fn volumes() -> VolumesInMemory {
        let names = Names::new(Profile::Orch { domain: "orch.io".to_owned() });
        VolumesInMemory::new(Arc::new(NoTokens), watch::channel(None).1, names)
    }

    #[tokio::test]
    async fn a_config_map_is_waited_for() {
        let mut source = ConfigMapVolumeSource::default();
        source.local_object_reference.name = "m".to_owned();
        let pod = pod(VolumeSource { config_map: Some(source), ..VolumeSource::default() });
        let volumes = volumes();
        let mut objects = PodObjects::default();
        objects.config_maps.insert("m".to_owned(), None);
        let error = volumes.set_up(&pod, &objects).await.expect_err("it does not exist");
        assert!(error.message.contains('m'), "{error}");
        assert!(!volumes.exist(&pod));
        objects.config_maps.insert("m".to_owned(), Some(Arc::new(ConfigMap::default())));
        let mounted = volumes.set_up(&pod, &objects).await.expect("it exists");
        assert!(mounted.on_host["v"].read_only);
        assert!(volumes.exist(&pod));
        volumes.tear_down(&pod).await.expect("torn down");
        assert!(!volumes.exist(&pod));
    }

    #[tokio::test]
    async fn a_claim_is_refused_with_the_name_of_the_volume() {
        let source = PersistentVolumeClaimVolumeSource::default();
        let pod =
            pod(VolumeSource { persistent_volume_claim: Some(source), ..VolumeSource::default() });
        let error = volumes().set_up(&pod, &PodObjects::default()).await.expect_err("a claim");
        assert!(error.message.contains("volume v:"), "{error}");
    }
}
