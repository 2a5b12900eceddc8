//! Sandboxes, containers and images in memory, by the rules of a real runtime: names with an attempt are unique, a container starts once, nothing is
//! created or started in a sandbox that is not ready, and the name of a sandbox stays reserved until it is removed.
//!
//! A container's process is its command: with `exit <n>` as last argument it exits at once with that code, otherwise it runs until something ends it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;

use agent_pod::observed::{Exit, InstanceState, ObservedContainer, ObservedSandbox};
use agent_pod::spec::{ContainerConfig, ContainerResources, NamespaceScope, SandboxConfig, labels};

use crate::runtime::{ExecOutput, Image, PodOnNode, RefusalKind, RuntimeRefusal};

/// Nanoseconds between two events without a clock.
const TICK: i64 = 1_000_000;

/// Everything that a runtime in memory has.
#[derive(Debug, Default)]
pub(crate) struct Objects {
    pub(crate) ticks: i64,
    /// Nanoseconds since 1970; without it each reading is a tick after the last.
    pub(crate) clock: Option<fn() -> i64>,
    pub(crate) ids: u64,
    /// Addresses of pods; without it they are made up.
    pub(crate) pod_range: Option<PodRange>,
    pub(crate) images: BTreeMap<String, Image>,
    pub(crate) sandboxes: BTreeMap<String, Sandbox>,
    pub(crate) containers: BTreeMap<String, Container>,
}

/// Addresses for the pods of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PodRange {
    network: u32,
    /// How many addresses it has, with those that no pod gets.
    len: u32,
}

impl PodRange {
    /// The range of a pod CIDR of IPv4, such as `10.244.3.0/24`; `None` if it is none or has no address for a pod.
    #[must_use]
    pub fn parse(cidr: &str) -> Option<Self> {
        let (address, bits) = cidr.split_once('/')?;
        let address = u32::from(address.parse::<Ipv4Addr>().ok()?);
        let bits: u32 = bits.parse().ok().filter(|bits| (1..=29).contains(bits))?;
        let len = 1_u32.checked_shl(32_u32.checked_sub(bits)?)?;
        Some(Self { network: address & !len.checked_sub(1)?, len })
    }

    /// The lowest address that is not taken. The network's own, the node's and the last are no pod's.
    fn free(self, taken: &BTreeSet<&str>) -> Option<String> {
        let offsets = 2..self.len.saturating_sub(1);
        let addresses = offsets.map(|n| Ipv4Addr::from(self.network.saturating_add(n)).to_string());
        addresses.into_iter().find(|address| !taken.contains(address.as_str()))
    }
}

#[derive(Debug)]
pub(crate) struct Sandbox {
    pub(crate) config: SandboxConfig,
    pub(crate) seen: ObservedSandbox,
}

#[derive(Debug)]
pub(crate) struct Container {
    pub(crate) config: ContainerConfig,
    pub(crate) seen: ObservedContainer,
}

impl Objects {
    fn now(&mut self) -> i64 {
        self.ticks = match self.clock {
            Some(now) => now(),
            None => self.ticks.saturating_add(TICK),
        };
        self.ticks
    }

    fn id(&mut self, kind: &str) -> String {
        self.ids = self.ids.saturating_add(1);
        format!("{kind}-{}", self.ids)
    }

    /// Ends a running container; returns the uid of its pod.
    pub(crate) fn end_container(&mut self, id: &str, code: i32) -> Option<String> {
        let now = self.now();
        let container = self.containers.get_mut(id)?;
        let InstanceState::Running { started_at } = container.seen.state else { return None };
        container.seen.state = InstanceState::Exited(Exit {
            code,
            reason: if code == 0 { "Completed" } else { "Error" }.into(),
            message: String::new(),
            started_at,
            finished_at: now,
        });
        let sandbox = self.sandboxes.get(&container.seen.sandbox_id)?;
        Some(sandbox.config.uid.clone())
    }

    /// The pods whose uid matches.
    pub(crate) fn pods(&self, of: impl Fn(&str) -> bool) -> Vec<PodOnNode> {
        let mut pods: BTreeMap<String, PodOnNode> = BTreeMap::new();
        for (id, sandbox) in self.sandboxes.iter().filter(|(_, s)| of(&s.config.uid)) {
            let config = &sandbox.config;
            let pod = pods.entry(config.uid.clone()).or_insert_with(|| PodOnNode {
                uid: config.uid.clone(),
                namespace: config.namespace.clone(),
                name: config.name.clone(),
                ..PodOnNode::default()
            });
            pod.sandboxes.push(sandbox.seen.clone());
            let own = self.containers.values().filter(|c| c.seen.sandbox_id == *id);
            pod.containers.extend(own.map(|c| c.seen.clone()));
        }
        pods.into_values().collect()
    }

    pub(crate) fn run_sandbox(
        &mut self,
        config: &SandboxConfig,
    ) -> Result<ObservedSandbox, RuntimeRefusal> {
        let same = |s: &&Sandbox| s.config.uid == config.uid && s.config.attempt == config.attempt;
        match self.sandboxes.values().find(same) {
            Some(sandbox) if sandbox.seen.ready => return Ok(sandbox.seen.clone()),
            Some(sandbox) => {
                let id = &sandbox.seen.id;
                return Err(refused(format!("the sandbox's name is reserved for {id}")));
            }
            None => {}
        }
        let id = self.id("sandbox");
        let ips = match config.namespaces.network {
            NamespaceScope::Node => Vec::new(),
            _ => vec![self.address()?],
        };
        let seen = ObservedSandbox { id: id.clone(), attempt: config.attempt, ready: true, ips };
        self.sandboxes.insert(id, Sandbox { config: config.clone(), seen: seen.clone() });
        Ok(seen)
    }

    fn address(&self) -> Result<String, RuntimeRefusal> {
        let Some(range) = self.pod_range else {
            return Ok(format!("10.0.0.{}", (self.ids % 250).saturating_add(2)));
        };
        let taken = self.sandboxes.values().flat_map(|s| &s.seen.ips).map(String::as_str).collect();
        range.free(&taken).ok_or_else(|| refused("no address of the pod range is free".to_owned()))
    }

    /// Creates a container, of whose configuration `keep` is kept: the command and the resources at least.
    pub(crate) fn create(
        &mut self,
        sandbox_id: &str,
        config: &ContainerConfig,
        keep: impl FnOnce(&ContainerConfig) -> ContainerConfig,
    ) -> Result<String, RuntimeRefusal> {
        let sandbox =
            self.sandboxes.get(sandbox_id).ok_or_else(|| no_such("sandbox", sandbox_id))?;
        let uid = sandbox.config.uid.clone();
        let ready = sandbox.seen.ready;
        let same = |c: &&Container| {
            let of_pod =
                self.sandboxes.get(&c.seen.sandbox_id).is_some_and(|s| s.config.uid == uid);
            of_pod && c.config.name == config.name && c.config.attempt == config.attempt
        };
        if let Some(container) = self.containers.values().find(same) {
            return Ok(container.seen.id.clone());
        }
        if !ready {
            return Err(refused(format!("sandbox {sandbox_id} is not ready")));
        }
        let image = self.find_image(&config.image).cloned();
        let image = image.ok_or_else(|| no_such("image", &config.image))?;
        let id = self.id("container");
        let seen = ObservedContainer {
            id: id.clone(),
            name: config.name.clone(),
            attempt: config.attempt,
            sandbox_id: sandbox_id.into(),
            image: config.image.clone(),
            image_id: image.id,
            hash: config.annotations.get(labels::DEFINITION_HASH).cloned().unwrap_or_default(),
            message_file: None,
            state: InstanceState::Created,
        };
        self.containers.insert(id.clone(), Container { config: keep(config), seen });
        Ok(id)
    }

    /// Starts a container; returns its exit code if it exits at once.
    pub(crate) fn start(&mut self, id: &str) -> Result<Option<i32>, RuntimeRefusal> {
        let now = self.now();
        let container = self.containers.get_mut(id).ok_or_else(|| no_such("container", id))?;
        if container.seen.state != InstanceState::Created {
            return Err(refused(format!("container {id} is not in created state")));
        }
        let sandbox = self.sandboxes.get(&container.seen.sandbox_id);
        if !sandbox.is_some_and(|sandbox| sandbox.seen.ready) {
            return Err(refused(format!("the sandbox of container {id} is not running")));
        }
        container.seen.state = InstanceState::Running { started_at: now };
        let last = container.config.args.last().or(container.config.command.last());
        Ok(last.and_then(|last| last.strip_prefix("exit ")).and_then(|code| code.parse().ok()))
    }

    pub(crate) fn stop_sandbox(&mut self, id: &str) {
        let running: Vec<String> = self
            .containers
            .values()
            .filter(|c| c.seen.sandbox_id == id)
            .map(|c| c.seen.id.clone())
            .collect();
        for container in running {
            self.end_container(&container, 137);
        }
        if let Some(sandbox) = self.sandboxes.get_mut(id) {
            sandbox.seen.ready = false;
            sandbox.seen.ips.clear();
        }
    }

    pub(crate) fn remove_sandbox(&mut self, id: &str) {
        self.stop_sandbox(id);
        self.containers.retain(|_, c| c.seen.sandbox_id != id);
        self.sandboxes.remove(id);
    }

    /// A pod; empty if nothing of it is there.
    pub(crate) fn pod(&self, uid: &str) -> PodOnNode {
        let found = self.pods(|of| of == uid).pop();
        found.unwrap_or_else(|| PodOnNode { uid: uid.into(), ..PodOnNode::default() })
    }

    pub(crate) fn resources(&self, id: &str) -> ContainerResources {
        self.containers.get(id).map(|c| c.config.resources.clone()).unwrap_or_default()
    }

    pub(crate) fn set_resources(
        &mut self,
        id: &str,
        resources: ContainerResources,
    ) -> Result<(), RuntimeRefusal> {
        let container = self.containers.get_mut(id).ok_or_else(|| no_such("container", id))?;
        container.config.resources = resources;
        Ok(())
    }

    /// Runs a command, which does what its last argument says.
    pub(crate) fn exec(&self, id: &str, command: &[String]) -> Result<ExecOutput, RuntimeRefusal> {
        let container = self.containers.get(id).ok_or_else(|| no_such("container", id))?;
        if !matches!(container.seen.state, InstanceState::Running { .. }) {
            return Err(refused(format!("container {id} is not running")));
        }
        let code = command.last().and_then(|last| last.strip_prefix("exit "));
        let code = code.and_then(|code| code.parse().ok()).unwrap_or(0);
        Ok(ExecOutput { code, ..ExecOutput::default() })
    }

    pub(crate) fn remove_image(&mut self, id: &str) {
        self.images.retain(|name, image| name != id && image.id != id);
    }

    pub(crate) fn find_image(&self, name: &str) -> Option<&Image> {
        self.images.get(name).or_else(|| self.images.values().find(|image| image.id == name))
    }
}

pub(crate) fn image_of(name: &str) -> Image {
    Image { id: format!("sha256:{name}"), tags: vec![name.into()], ..Image::default() }
}

pub(crate) fn no_such(kind: &str, name: &str) -> RuntimeRefusal {
    RuntimeRefusal { kind: RefusalKind::NotFound, message: format!("{kind} {name} not found") }
}

pub(crate) fn refused(message: String) -> RuntimeRefusal {
    RuntimeRefusal { kind: RefusalKind::Other, message }
}

/// Resources after an update: unset fields of an update keep their values, as CRI says.
pub(crate) fn updated(
    known: &ContainerResources,
    asked: &ContainerResources,
) -> ContainerResources {
    let of = |asked: i64, known: i64| if asked == 0 { known } else { asked };
    let text = |asked: &String, known: &String| match asked.is_empty() {
        true => known.clone(),
        false => asked.clone(),
    };
    ContainerResources {
        cpu_shares: of(asked.cpu_shares, known.cpu_shares),
        cpu_period_us: of(asked.cpu_period_us, known.cpu_period_us),
        cpu_quota_us: of(asked.cpu_quota_us, known.cpu_quota_us),
        memory_limit_bytes: of(asked.memory_limit_bytes, known.memory_limit_bytes),
        oom_score_adj: of(asked.oom_score_adj, known.oom_score_adj),
        cpuset_cpus: text(&asked.cpuset_cpus, &known.cpuset_cpus),
        cpuset_mems: text(&asked.cpuset_mems, &known.cpuset_mems),
        huge_page_limits: match asked.huge_page_limits.is_empty() {
            true => known.huge_page_limits.clone(),
            false => asked.huge_page_limits.clone(),
        },
    }
}
