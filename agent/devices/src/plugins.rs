//! The registered device plugins, their devices, and calls to them.

mod connection;

use std::collections::BTreeMap;
use std::future::Future;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use agent_node::managers::devices::{
    ContainerEdits, DeviceChoice, DeviceHealth, Devices, Ids, Inventory,
};
use proto_api::names::Names;
use proto_grpc::device_plugin::v1beta1 as wire;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tonic::transport::Channel;
use wire::device_plugin_client::DevicePluginClient;

use crate::socket;

/// Most resources; registration of another one is rejected.
const RESOURCES_MAX: usize = 256;
/// Deadline of Allocate and PreStartContainer.
const CHANGE: Duration = Duration::from_secs(30);
/// Deadline of GetPreferredAllocation, whose result is optional.
const WISH: Duration = Duration::from_secs(5);

/// Why a call to a plugin failed.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// The resource has no running plugin.
    #[error("no plugin for {0} is running")]
    Gone(String),
    /// The plugin did not respond in time.
    #[error("{call} of the plugin for {resource}: no response within {} s", after.as_secs())]
    Deadline {
        call: &'static str,
        resource: String,
        /// The deadline.
        after: Duration,
    },
    /// The plugin returned an error.
    #[error("{call} of the plugin for {resource}: {message}")]
    Refused { call: &'static str, resource: String, message: String },
}

/// Why a registration was rejected. The texts are sent to the plugin.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegisterError {
    /// The resource name is invalid or not allowed for plugins.
    #[error("the ResourceName {0:?} is invalid")]
    Name(String),
    /// The plugin uses an unsupported API version.
    #[error("requested API version {0:?} is not supported; supported version is {1:?}")]
    Version(String, &'static str),
    /// The plugin's socket is not in the plugin directory.
    #[error("endpoint {0:?} is not the name of a socket in the plugins' directory")]
    Endpoint(String),
    /// There are too many resources.
    #[error("there are {RESOURCES_MAX} resources already")]
    TooMany,
}

/// Why a plugin of the plugin registry was not taken in. The texts are sent to the plugin.
#[derive(Debug, thiserror::Error)]
pub enum AdoptError {
    /// The plugin has to register otherwise.
    #[error(transparent)]
    Registration(#[from] RegisterError),
    /// The plugin did not respond; the call is retried.
    #[error(transparent)]
    Call(#[from] DeviceError),
}

/// The device plugins of this node. Clones share their state.
#[derive(Clone)]
pub struct Plugins {
    shared: Arc<Shared>,
}

struct Shared {
    directory: PathBuf,
    names: &'static Names,
    plugins: Mutex<BTreeMap<String, Plugin>>,
    version: watch::Sender<u64>,
}

#[derive(Default)]
struct Plugin {
    /// Number of registrations; distinguishes messages of earlier connections.
    generation: u64,
    /// `None` for a plugin known from before that has not registered again.
    running: Option<RunningPlugin>,
    devices: Devices,
}

struct RunningPlugin {
    channel: Channel,
    options: wire::DevicePluginOptions,
    task: AbortHandle,
}

impl Drop for RunningPlugin {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Plugins {
    /// Plugins with sockets in `directory`. `known` are resources that had a plugin before: until it registers again, the
    /// resource exists with no devices.
    pub fn new(
        directory: PathBuf,
        names: &'static Names,
        known: impl IntoIterator<Item = String>,
    ) -> Self {
        let known = known.into_iter().take(RESOURCES_MAX);
        let plugins = known.map(|resource| (resource, Plugin::default())).collect();
        let (version, _) = watch::channel(0);
        let plugins = Mutex::new(plugins);
        Self { shared: Arc::new(Shared { directory, names, plugins, version }) }
    }

    /// All devices by resource.
    pub fn inventory(&self) -> Inventory {
        self.lock().iter().map(|(name, plugin)| (name.clone(), plugin.devices.clone())).collect()
    }

    /// Number of registrations of each resource's plugin since the start.
    pub fn registrations(&self) -> BTreeMap<String, u64> {
        self.lock().iter().map(|(name, plugin)| (name.clone(), plugin.generation)).collect()
    }

    /// Notifies of changes to the inventory.
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.shared.version.subscribe()
    }

    /// Registers a plugin and follows its devices; replaces an earlier plugin for the same resource.
    ///
    /// # Errors
    /// The registration is invalid.
    pub(crate) fn register(&self, request: wire::RegisterRequest) -> Result<(), RegisterError> {
        let wire::RegisterRequest { version, endpoint, resource_name: resource, options } = request;
        if version != VERSION {
            return Err(RegisterError::Version(version, VERSION));
        }
        if !is_extended(&resource, self.shared.names) {
            return Err(RegisterError::Name(resource));
        }
        if endpoint.is_empty() || endpoint.contains('/') || endpoint.starts_with("..") {
            return Err(RegisterError::Endpoint(endpoint));
        }
        let channel = socket::call(self.shared.directory.join(endpoint));
        self.start_following(resource, channel, options.unwrap_or_default())
    }

    /// Registers a plugin that was found in the plugin registry, where it has a socket of its own.
    ///
    /// # Errors
    /// The registration is invalid, or the plugin does not respond.
    pub async fn adopt(
        &self,
        resource: &str,
        socket: PathBuf,
        versions: &[String],
    ) -> Result<(), AdoptError> {
        if !versions.iter().any(|version| version == VERSION) {
            return Err(RegisterError::Version(versions.join(", "), VERSION).into());
        }
        if !is_extended(resource, self.shared.names) {
            return Err(RegisterError::Name(resource.to_owned()).into());
        }
        let channel = socket::call(socket);
        let mut client = DevicePluginClient::new(channel.clone());
        let asked = client.get_device_plugin_options(wire::Empty {});
        let options = call("GetDevicePluginOptions", resource, WISH, asked).await?;
        Ok(self.start_following(resource.to_owned(), channel, options)?)
    }

    fn start_following(
        &self,
        resource: String,
        channel: Channel,
        options: wire::DevicePluginOptions,
    ) -> Result<(), RegisterError> {
        let mut plugins = self.lock();
        if !plugins.contains_key(&resource) && plugins.len() >= RESOURCES_MAX {
            return Err(RegisterError::TooMany);
        }
        let plugin = plugins.entry(resource.clone()).or_default();
        plugin.generation += 1;
        tracing::info!(resource, generation = plugin.generation, "device plugin registered");
        let follow = connection::follow(self.clone(), resource, plugin.generation, channel.clone());
        let task = tokio::spawn(follow).abort_handle();
        plugin.running = Some(RunningPlugin { channel, options, task });
        Ok(())
    }

    /// Applies a change to the devices of a plugin, unless another plugin replaced it.
    pub(crate) fn update_devices(
        &self,
        resource: &str,
        generation: u64,
        change: impl FnOnce(&mut Devices),
    ) {
        let mut plugins = self.lock();
        let plugin = plugins.get_mut(resource).filter(|plugin| plugin.generation == generation);
        let Some(plugin) = plugin else { return };
        let before = plugin.devices.clone();
        change(&mut plugin.devices);
        if plugin.devices != before {
            self.shared.version.send_modify(|version| *version += 1);
        }
    }

    /// The plugin's preferred devices; empty if it has no preference or does not respond.
    pub async fn prefer(&self, ask: &DeviceChoice) -> Vec<String> {
        let Ok((mut client, options)) = self.client(&ask.resource) else { return Vec::new() };
        if !options.get_preferred_allocation_available {
            return Vec::new();
        }
        let one = wire::ContainerPreferredAllocationRequest {
            available_device_ids: ask.available.iter().cloned().collect(),
            must_include_device_ids: ask.must.iter().cloned().collect(),
            allocation_size: i32::try_from(ask.number).unwrap_or(i32::MAX),
        };
        let request = wire::PreferredAllocationRequest { container_requests: vec![one] };
        let asked = client.get_preferred_allocation(request);
        match call("GetPreferredAllocation", &ask.resource, WISH, asked).await {
            Ok(answer) => {
                answer.container_responses.into_iter().flat_map(|c| c.device_ids).collect()
            }
            Err(error) => {
                tracing::warn!(%error, "GetPreferredAllocation of a device plugin failed; devices are chosen without it");
                Vec::new()
            }
        }
    }

    /// Allocates devices and returns the container edits for their use.
    ///
    /// # Errors
    /// The plugin is not running or refuses.
    pub async fn allocate(&self, resource: &str, ids: &Ids) -> Result<ContainerEdits, DeviceError> {
        let (mut client, _) = self.client(resource)?;
        let one = wire::ContainerAllocateRequest { device_ids: ids.iter().cloned().collect() };
        let request = wire::AllocateRequest { container_requests: vec![one] };
        let answer = call("Allocate", resource, CHANGE, client.allocate(request)).await?;
        let one = answer.container_responses.into_iter().next();
        one.map(container_edits).ok_or_else(|| DeviceError::Refused {
            call: "Allocate",
            resource: resource.to_owned(),
            message: "the answer has no container".to_owned(),
        })
    }

    /// Calls PreStartContainer if the plugin requires it.
    ///
    /// # Errors
    /// The plugin requires it, and is not running or refuses.
    pub async fn prepare(&self, resource: &str, ids: &Ids) -> Result<(), DeviceError> {
        // A plugin that is not running prepared its devices in Allocate, as far as is known.
        let Ok((mut client, options)) = self.client(resource) else { return Ok(()) };
        if !options.pre_start_required {
            return Ok(());
        }
        let request = wire::PreStartContainerRequest { device_ids: ids.iter().cloned().collect() };
        call("PreStartContainer", resource, CHANGE, client.pre_start_container(request))
            .await
            .map(|_| ())
    }

    fn client(
        &self,
        resource: &str,
    ) -> Result<(DevicePluginClient<Channel>, wire::DevicePluginOptions), DeviceError> {
        let plugins = self.lock();
        let running = plugins.get(resource).and_then(|plugin| plugin.running.as_ref());
        let running = running.ok_or_else(|| DeviceError::Gone(resource.to_owned()))?;
        Ok((DevicePluginClient::new(running.channel.clone()), running.options))
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Plugin>> {
        self.shared.plugins.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The supported API version.
pub const VERSION: &str = "v1beta1";

/// Whether the name is an extended resource: in a domain that is not the API's.
fn is_extended(resource: &str, names: &Names) -> bool {
    let plain = |text: &str| {
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        !text.is_empty() && text.len() <= 253 && text.chars().all(allowed)
    };
    match resource.split_once('/') {
        Some((domain, name)) => {
            let below = domain.strip_suffix(names.label_domain());
            let native = domain.starts_with("requests.")
                || below.is_some_and(|rest| rest.is_empty() || rest.ends_with('.'));
            plain(domain) && plain(name) && name.len() <= 63 && !native
        }
        None => false,
    }
}

async fn call<T>(
    name: &'static str,
    resource: &str,
    deadline: Duration,
    answer: impl Future<Output = Result<tonic::Response<T>, tonic::Status>>,
) -> Result<T, DeviceError> {
    let resource = || resource.to_owned();
    match tokio::time::timeout(deadline, answer).await {
        Ok(Ok(answer)) => Ok(answer.into_inner()),
        Ok(Err(status)) => {
            let message = status.message().to_owned();
            Err(DeviceError::Refused { call: name, resource: resource(), message })
        }
        Err(_) => Err(DeviceError::Deadline { call: name, resource: resource(), after: deadline }),
    }
}

fn container_edits(answer: wire::ContainerAllocateResponse) -> ContainerEdits {
    let mounts = answer.mounts.into_iter();
    let devices = answer.devices.into_iter();
    ContainerEdits {
        env: answer.envs.into_iter().collect(),
        mounts: mounts.map(|m| (m.container_path, m.host_path, m.read_only)).collect(),
        devices: devices.map(|d| (d.container_path, d.host_path, d.permissions)).collect(),
        annotations: answer.annotations.into_iter().collect(),
    }
}

/// Marks all devices of a disconnected plugin as unhealthy: containers keep their devices, new containers get none.
fn mark_unhealthy(devices: &mut Devices) {
    devices.values_mut().for_each(|device| device.health = DeviceHealth::Unhealthy);
}
