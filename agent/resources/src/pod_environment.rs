//! What the node provides to a pod besides images, volumes and a cgroup: names, a resolver, a runtime handler.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use agent_devices::DeviceError;
use agent_node::admission::AdmissionRefusal;
use agent_node::managers::devices;
use agent_node::unsupported_fields::NodeFeatures;
use agent_pod::hosts;
use agent_pod::node_facts::NodeFacts;
use agent_pod::spec::{DnsConfig, Mount};
use agent_pod::translate::GrantedResources;
use agent_volume::private_dirs;
use proto_api::core::v1::{Container, NodeStatus, Pod};
use proto_api::node::v1::RuntimeClass;
use proto_client::{Client, ClientError};
use proto_daemon::private_files;
use tokio::sync::watch;

use crate::allocator::Allocator;
use crate::resolver;

/// Largest file of the node that is taken over into pods, in bytes.
const FILE_LEN_MAX: u64 = 1 << 20;
/// Name of a pod's hosts file in its directory.
pub const HOSTS_FILE: &str = "etc-hosts";

/// Provides the host names, resolver configuration and runtime handler of pods.
#[derive(Default)]
pub struct PodEnvironment {
    /// What it can honour at all.
    pub abilities: NodeFeatures,
    /// The resolver configuration that pods inherit; `None` for none.
    pub resolv_conf: Option<PathBuf>,
    /// Runtime classes of the cluster.
    pub classes: RuntimeClasses,
    /// What containers have for themselves; `None` where nothing is given.
    pub allocator: Option<Arc<Allocator>>,
}

impl PodEnvironment {
    /// The facts with the node's resolver as it is now: it changes with the networks that the node joins.
    pub fn facts(&self, facts: &NodeFacts) -> NodeFacts {
        let resolver = self.resolv_conf.as_deref().map_or_else(DnsConfig::default, read_resolver);
        NodeFacts { resolver, ..facts.clone() }
    }
}

/// A pod's own share of processors, memory and devices.
impl PodEnvironment {
    /// Gives the pod its share.
    ///
    /// # Errors
    /// It cannot be had: the pod does not run here.
    pub async fn give(&self, pod: &Pod) -> Result<(), AdmissionRefusal> {
        match &self.allocator {
            Some(allocator) => allocator.admit(pod).await,
            None => Ok(()),
        }
    }

    /// What a container has, once its devices are prepared for it.
    ///
    /// # Errors
    /// A plugin refuses to prepare a device.
    pub async fn granted(
        &self,
        pod: &Pod,
        container: &str,
    ) -> Result<GrantedResources, DeviceError> {
        let Some(allocator) = &self.allocator else { return Ok(GrantedResources::default()) };
        allocator.prepare(pod, container).await?;
        Ok(allocator.granted(pod, container))
    }

    /// Notified of changes of the node's devices.
    pub fn devices(&self) -> Option<watch::Receiver<u64>> {
        self.allocator.as_ref().map(|allocator| allocator.plugins().subscribe())
    }

    /// Waits for the next change; never returns without devices. Cancel safe.
    pub async fn devices_changed(&self, devices: &mut Option<watch::Receiver<u64>>) {
        if let Some(changed) = devices
            && changed.changed().await.is_ok()
        {
            return;
        }
        std::future::pending().await
    }

    /// Shows the devices in the Node's status.
    pub fn show_devices(&self, status: &mut NodeStatus, before: &NodeStatus) {
        let inventory = self.allocator.as_ref().map(|allocator| allocator.plugins().inventory());
        devices::add_to_status(status, before, &inventory.unwrap_or_default());
    }

    /// Releases a pod's allocations.
    pub fn release(&self, uid: &str) {
        if let Some(allocator) = &self.allocator {
            allocator.release(uid);
        }
    }

    /// Releases allocations of unknown pods.
    pub fn retain(&self, is_known: impl Fn(&str) -> bool) {
        if let Some(allocator) = &self.allocator {
            allocator.retain(is_known);
        }
    }
}

fn read_resolver(path: &Path) -> DnsConfig {
    match read_bounded(path) {
        Ok(text) => resolver::parse(&text),
        Err(error) => {
            tracing::warn!(path = %path.display(), %error, "cannot read the resolver configuration; pods with dnsPolicy Default get none");
            DnsConfig::default()
        }
    }
}

fn read_bounded(path: &Path) -> std::io::Result<String> {
    let mut text = String::new();
    let file = std::fs::File::open(path)?;
    std::io::Read::read_to_string(&mut std::io::Read::take(file, FILE_LEN_MAX), &mut text)?;
    Ok(text)
}

// === /etc/hosts ===

/// The hosts file of a pod cannot be written; the container that mounts it is tried again.
#[derive(Debug, thiserror::Error)]
#[error("cannot write {}", path.display())]
pub struct HostsFileError {
    /// Path of the file.
    pub path: PathBuf,
    /// Cause.
    pub source: std::io::Error,
}

/// Updates a pod's `/etc/hosts` file and returns its mount for `container`; `None` if the container
/// mounts its own file there. `dir` is the pod's directory.
///
/// # Errors
/// The file cannot be written, with its path.
pub fn hosts_mount(
    dir: &Path,
    pod: &Pod,
    container: &Container,
    facts: &NodeFacts,
    pod_ips: &[String],
) -> Result<Option<Mount>, HostsFileError> {
    if container.volume_mounts.iter().any(|mount| mount.mount_path == hosts::PATH) {
        return Ok(None);
    }
    let of_node = if pod.spec.host_network {
        read_bounded(Path::new(hosts::PATH)).unwrap_or_default()
    } else {
        String::new()
    };
    let path = dir.join(HOSTS_FILE);
    let text = hosts::hosts_file(pod, facts, pod_ips, &of_node);
    if let Err(source) = write_in_place(&path, &text) {
        return Err(HostsFileError { path, source });
    }
    Ok(Some(Mount {
        container_path: hosts::PATH.to_owned(),
        host_path: path.to_string_lossy().into_owned(),
        selinux_relabel: true,
        ..Mount::default()
    }))
}

/// Updates the file in place, since it is mounted into running containers; an unchanged one is not
/// written.
fn write_in_place(path: &Path, text: &str) -> std::io::Result<()> {
    if read_bounded(path).is_ok_and(|known| known == text) {
        return Ok(());
    }
    if let Some(parent) = path.parent() {
        private_dirs::make(parent)?;
    }
    let mut file = private_files::open_shared(path, 0o644)?;
    file.write_all(text.as_bytes())?;
    file.set_len(text.len() as u64)
}

// === runtime classes ===

/// Why the handler of a runtime class is not known. The pod waits, and its sandbox is tried again.
#[derive(Debug, thiserror::Error)]
pub enum RuntimeClassError {
    /// There is no such class: it must be created.
    #[error("RuntimeClass {0:?} not found")]
    NotFound(String),
    /// It was never read, and cannot be read now.
    #[error("RuntimeClass {name:?}")]
    Unread {
        /// Name of the class.
        name: String,
        /// Cause.
        source: ClientError,
    },
}

/// RuntimeClasses of the cluster, with the last known handler of each.
#[derive(Default)]
pub struct RuntimeClasses {
    client: Option<Client>,
    /// Bounded by the existing classes that pods of this node have named.
    known: Mutex<BTreeMap<String, String>>,
}

impl RuntimeClasses {
    /// RuntimeClasses of the API server; none without it.
    pub fn new(client: Option<Client>) -> Self {
        Self { client, known: Mutex::default() }
    }

    /// The handler for a pod; empty for the runtime's default. While the API server is unreachable
    /// the last known handler is used.
    ///
    /// # Errors
    /// The class does not exist, or was never read and cannot be read now.
    pub async fn handler(&self, pod: &Pod) -> Result<String, RuntimeClassError> {
        let Some(name) = pod.spec.runtime_class_name.as_ref().filter(|name| !name.is_empty())
        else {
            return Ok(String::new());
        };
        let none = || RuntimeClassError::NotFound(name.clone());
        let client = self.client.as_ref().ok_or_else(none)?;
        let known = || self.known.lock().unwrap_or_else(PoisonError::into_inner);
        match client.all::<RuntimeClass>().get(name).await {
            Ok(class) => {
                known().insert(name.clone(), class.handler.clone());
                Ok(class.handler)
            }
            Err(error) if error.is_not_found() => {
                known().remove(name);
                Err(none())
            }
            Err(source) => {
                let last = known().get(name).cloned();
                last.ok_or_else(|| RuntimeClassError::Unread { name: name.clone(), source })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use proto_api::core::v1::VolumeMount;

    use super::*;

    #[test]
    fn a_hosts_file_stays_the_same_file() {
        let dir = tempfile::tempdir().expect("tempdir");
        let (pod, facts) = (Pod::default(), NodeFacts::default());
        let make = |ips: &[String]| {
            hosts_mount(dir.path(), &pod, &Container::default(), &facts, ips).expect("written")
        };
        let first = make(&["10.0.0.1".into(), "fd00::1".into()]).expect("mount");
        let inode = std::fs::metadata(&first.host_path).expect("file").ino();
        let second = make(&["10.0.0.2".into()]).expect("mount");
        assert_eq!(std::fs::metadata(&second.host_path).expect("file").ino(), inode);
        let text = std::fs::read_to_string(&second.host_path).expect("text");
        assert!(text.contains("10.0.0.2\t") && !text.contains("fd00::1"), "{text}");
        assert!(text.ends_with("10.0.0.2\t\n"), "nothing of the longer file is left: {text:?}");
    }

    #[test]
    fn a_containers_own_mount_wins() {
        let dir = tempfile::tempdir().expect("tempdir");
        let mount = VolumeMount { mount_path: "/etc/hosts".into(), ..VolumeMount::default() };
        let container = Container { volume_mounts: vec![mount], ..Container::default() };
        let facts = NodeFacts::default();
        let made = hosts_mount(dir.path(), &Pod::default(), &container, &facts, &[]);
        assert_eq!(made.expect("nothing to write"), None);
        assert!(!dir.path().join(HOSTS_FILE).exists());
    }

    #[tokio::test]
    async fn an_unknown_runtime_class_is_an_error() {
        let classes = RuntimeClasses::default();
        let mut pod = Pod::default();
        assert_eq!(classes.handler(&pod).await.expect("the default"), "");
        pod.spec.runtime_class_name = Some("gvisor".into());
        let error = classes.handler(&pod).await.expect_err("no such class");
        assert_eq!(error.to_string(), "RuntimeClass \"gvisor\" not found");
    }
}
