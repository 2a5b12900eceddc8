//! The contract of every [`Runtime`], as executable checks. The in-memory and the real runtime pass the same ones, so tests on
//! the in-memory one are meaningful.
//!
//! Needs an image with `/bin/sh` and a runtime that nothing else uses meanwhile. Panics on the first violation.
#![allow(clippy::unwrap_used, clippy::panic, clippy::expect_used, reason = "this file is a test")]

use std::collections::BTreeSet;
use std::time::Duration;

use agent_pod::observed::{InstanceState, ObservedContainer};
use agent_pod::spec::{ContainerConfig, NamespaceScope, Namespaces, SandboxConfig, labels};

use crate::events::RuntimeEvent;
use crate::runtime::{Runtime, RuntimeError, StreamRequest, Streams};

/// Time after which an expected event counts as missing.
const PATIENCE: Duration = Duration::from_secs(120);
/// Bytes of command output to keep.
const KEPT: usize = 100;

/// Waits for the next event.
pub type ContractEvent<'a> =
    &'a mut (dyn FnMut() -> futures_util::future::BoxFuture<'static, Option<RuntimeEvent>> + Send);

/// A run of the contract.
#[derive(Debug)]
pub struct Contract<'a> {
    /// The runtime under test.
    pub runtime: &'a dyn Runtime,
    /// Name of a present image with `/bin/sh`.
    pub image: &'a str,
    /// Parent cgroup of the pods.
    pub cgroup_parent: &'a str,
    pub log_directory: &'a str,
}

impl std::fmt::Debug for dyn Runtime {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("dyn Runtime")
    }
}

impl Contract<'_> {
    /// Checks every rule with a pod of its own, which is removed afterwards.
    pub async fn check(&self) {
        self.knows_itself().await;
        self.images_are_found_by_name_and_id().await;
        self.a_pod_that_is_not_there_is_empty().await;
        self.creating_twice_creates_once().await;
        self.a_container_starts_once().await;
        self.an_exit_code_is_kept().await;
        self.stopping_and_removing_can_be_repeated().await;
        self.nothing_is_created_without_image_or_sandbox().await;
        self.a_sandbox_takes_its_containers_along().await;
        self.commands_run_in_running_containers().await;
        self.a_stopped_sandbox_starts_nothing_and_keeps_its_name().await;
    }

    async fn a_stopped_sandbox_starts_nothing_and_keeps_its_name(&self) {
        let config = self.sandbox("stopped");
        let sandbox = self.runtime.run_sandbox(&config).await.unwrap();
        let id = self.create(&sandbox.id, &self.shell("sleep 1000"), &config).await.unwrap();
        self.runtime.stop_sandbox(&sandbox.id).await.unwrap();
        self.runtime.start_container(&id).await.unwrap_err();
        assert!(!matches!(self.observe(&id).await.state, InstanceState::Running { .. }));
        self.runtime.run_sandbox(&config).await.unwrap_err();
        self.runtime.remove_sandbox(&sandbox.id).await.unwrap();
        let again = self.runtime.run_sandbox(&config).await.unwrap();
        self.runtime.remove_sandbox(&again.id).await.unwrap();
    }

    async fn knows_itself(&self) {
        assert!(!self.runtime.version().await.unwrap().name.is_empty());
        assert_eq!(self.runtime.health().await.unwrap().runtime, Ok(()));
    }

    async fn images_are_found_by_name_and_id(&self) {
        let by_name = self.runtime.image(self.image).await.unwrap().expect("the image is there");
        let by_id = self.runtime.image(&by_name.id).await.unwrap();
        assert_eq!(by_id.map(|image| image.id), Some(by_name.id.clone()));
        assert!(self.runtime.images().await.unwrap().iter().any(|image| image.id == by_name.id));
        assert_eq!(self.runtime.image("orch.local/nothing:1").await.unwrap(), None);
    }

    async fn a_pod_that_is_not_there_is_empty(&self) {
        let pod = self.runtime.pod("unknown").await.unwrap();
        assert_eq!((pod.sandboxes.len(), pod.containers.len()), (0, 0));
    }

    async fn creating_twice_creates_once(&self) {
        let config = self.sandbox("twice");
        let sandbox = self.runtime.run_sandbox(&config).await.unwrap();
        assert!(sandbox.ready);
        assert_eq!(self.runtime.run_sandbox(&config).await.unwrap(), sandbox);

        let container = self.shell("sleep 1000");
        let id = self.create(&sandbox.id, &container, &config).await.unwrap();
        assert_eq!(self.create(&sandbox.id, &container, &config).await.unwrap(), id);

        let pod = self.runtime.pod(&config.uid).await.unwrap();
        assert_eq!((pod.namespace.as_str(), pod.name.as_str()), ("default", "twice"));
        assert_eq!(pod.sandboxes, std::slice::from_ref(&sandbox));
        let [seen] = pod.containers.as_slice() else { panic!("{pod:?}") };
        assert_eq!((&seen.id, &seen.sandbox_id), (&id, &sandbox.id));
        assert_eq!((seen.name.as_str(), seen.attempt), ("main", 3));
        assert_eq!(seen.hash, "cafe0123");
        assert_eq!(seen.state, InstanceState::Created);
        assert!(self.runtime.list().await.unwrap().contains(&pod));
        assert!(self.runtime.list_unmanaged(&BTreeSet::new()).await.unwrap().contains(&pod));
        let known = BTreeSet::from([pod.uid.clone()]);
        let unmanaged = self.runtime.list_unmanaged(&known).await.unwrap();
        assert!(unmanaged.iter().all(|unknown| unknown.uid != pod.uid));
        self.runtime.remove_sandbox(&sandbox.id).await.unwrap();
    }

    async fn a_container_starts_once(&self) {
        let (config, sandbox, id) = self.running("once", "sleep 1000").await;
        let InstanceState::Running { started_at } = self.observe(&id).await.state else {
            panic!("not running")
        };
        assert!(started_at > 0);
        self.runtime.start_container(&id).await.unwrap_err();
        assert_eq!(self.observe(&id).await.state, InstanceState::Running { started_at });
        let error = self.runtime.start_container("nothing").await.unwrap_err();
        assert!(error.is_not_found(), "{error:?}");
        drop(config);
        self.runtime.remove_sandbox(&sandbox).await.unwrap();
    }

    async fn an_exit_code_is_kept(&self) {
        for (code, reason) in [(0, "Completed"), (7, "Error")] {
            let (_, sandbox, id) = self.running("exits", &format!("exit {code}")).await;
            let exit = self.ended(&id).await;
            assert_eq!((exit.code, exit.reason.as_str()), (code, reason));
            // A process that exits at once may exit before its start is recorded.
            assert!(exit.started_at > 0 && exit.finished_at > 0);
            self.cleared(&sandbox).await;
        }
    }

    async fn stopping_and_removing_can_be_repeated(&self) {
        let (_, sandbox, id) = self.running("stops", "sleep 1000").await;
        for _ in 0..2 {
            self.runtime.stop_container(&id, Duration::ZERO).await.unwrap();
        }
        assert_eq!(self.ended(&id).await.code, 137);
        for _ in 0..2 {
            self.runtime.remove_container(&id).await.unwrap();
        }
        assert_eq!(self.runtime.container(&id).await.unwrap(), None);
        self.runtime.stop_container(&id, Duration::ZERO).await.unwrap();
        for _ in 0..2 {
            self.runtime.stop_sandbox(&sandbox).await.unwrap();
        }
        for _ in 0..2 {
            self.runtime.remove_sandbox(&sandbox).await.unwrap();
        }
        self.runtime.stop_sandbox(&sandbox).await.unwrap();
    }

    async fn nothing_is_created_without_image_or_sandbox(&self) {
        let config = self.sandbox("refuses");
        let container = self.shell("sleep 1000");
        self.create("nothing", &container, &config).await.unwrap_err();

        let sandbox = self.runtime.run_sandbox(&config).await.unwrap();
        let unknown = ContainerConfig { image: "orch.local/nothing:1".into(), ..container.clone() };
        self.create(&sandbox.id, &unknown, &config).await.unwrap_err();

        self.runtime.stop_sandbox(&sandbox.id).await.unwrap();
        self.create(&sandbox.id, &container, &config).await.unwrap_err();
        let pod = self.runtime.pod(&config.uid).await.unwrap();
        assert_eq!(pod.containers, []);
        assert!(!pod.sandboxes[0].ready);
        self.runtime.remove_sandbox(&sandbox.id).await.unwrap();
    }

    async fn a_sandbox_takes_its_containers_along(&self) {
        let (config, sandbox, id) = self.running("along", "sleep 1000").await;
        self.runtime.stop_sandbox(&sandbox).await.unwrap();
        assert_eq!(self.ended(&id).await.code, 137);
        self.runtime.remove_sandbox(&sandbox).await.unwrap();
        let pod = self.runtime.pod(&config.uid).await.unwrap();
        assert_eq!((pod.sandboxes.len(), pod.containers.len()), (0, 0));
    }

    async fn commands_run_in_running_containers(&self) {
        let (_, sandbox, id) = self.running("execs", "sleep 1000").await;
        let command = ["/bin/sh", "-c", "exit 3"].map(String::from);
        let output = self.runtime.exec(&id, &command, PATIENCE, KEPT).await.unwrap();
        assert_eq!(output.code, 3);
        let streams = Streams { stdin: true, stdout: true, stderr: true, tty: true };
        let both = StreamRequest::Attach { container: id.clone(), streams };
        let refused = self.runtime.stream(&both).await.unwrap_err().message();
        assert!(refused.ends_with("tty and stderr cannot both be true"), "{refused}");
        self.runtime.stop_container(&id, Duration::ZERO).await.unwrap();
        self.runtime.exec(&id, &command, PATIENCE, KEPT).await.unwrap_err();
        self.runtime.remove_sandbox(&sandbox).await.unwrap();
    }

    /// Checks the events: first [`RuntimeEvent::Missed`], then the exit of a container.
    pub async fn check_events(&self, next: ContractEvent<'_>) {
        assert_eq!(next().await, Some(RuntimeEvent::Missed));
        let (config, sandbox, id) = self.running("events", "exit 5").await;
        loop {
            let happened = next().await.expect("events go on");
            if let RuntimeEvent::Container { pod_uid, container } = happened
                && container.id == id
            {
                assert_eq!(pod_uid, config.uid);
                // A later status does not contradict the event.
                assert_eq!(container, self.observe(&id).await);
                let pod = self.runtime.pod(&config.uid).await.unwrap();
                assert_eq!(pod.containers, std::slice::from_ref(&container));
                let InstanceState::Exited(exit) = container.state else { panic!("{container:?}") };
                assert_eq!((exit.code, exit.reason.as_str()), (5, "Error"));
                assert!(exit.started_at > 0 && exit.finished_at > 0);
                break;
            }
        }
        self.cleared(&sandbox).await;
    }

    /// Configuration of a sandbox on the host network, so that no CNI plugin is needed.
    #[must_use]
    pub fn sandbox(&self, name: &str) -> SandboxConfig {
        SandboxConfig {
            name: name.into(),
            uid: format!("uid-{name}"),
            namespace: "default".into(),
            log_directory: format!("{}/{name}", self.log_directory),
            labels: pod_labels(name),
            cgroup_parent: self.cgroup_parent.into(),
            namespaces: Namespaces { network: NamespaceScope::Node, ..Namespaces::default() },
            ..SandboxConfig::default()
        }
    }

    /// A container that runs a shell command.
    #[must_use]
    pub fn shell(&self, script: &str) -> ContainerConfig {
        ContainerConfig {
            name: "main".into(),
            attempt: 3,
            image: self.image.into(),
            command: vec!["/bin/sh".into(), "-c".into(), script.into()],
            labels: [(labels::CONTAINER_NAME.to_owned(), "main".to_owned())].into(),
            annotations: [(labels::DEFINITION_HASH.to_owned(), "cafe0123".to_owned())].into(),
            log_path: "main/3.log".into(),
            ..ContainerConfig::default()
        }
    }

    /// Runs a pod with one container; returns the configuration and the ids of sandbox and container.
    pub async fn running(&self, name: &str, script: &str) -> (SandboxConfig, String, String) {
        let config = self.sandbox(name);
        let sandbox = self.runtime.run_sandbox(&config).await.unwrap();
        let id = self.create(&sandbox.id, &self.shell(script), &config).await.unwrap();
        self.runtime.start_container(&id).await.unwrap();
        (config, sandbox.id, id)
    }

    async fn create(
        &self,
        sandbox_id: &str,
        container: &ContainerConfig,
        sandbox: &SandboxConfig,
    ) -> Result<String, RuntimeError> {
        let mut container = container.clone();
        container.labels.extend(pod_labels(&sandbox.name));
        self.runtime.create_container(sandbox_id, &container, sandbox).await
    }

    async fn observe(&self, id: &str) -> ObservedContainer {
        self.runtime.container(id).await.unwrap().expect("the container is there")
    }

    /// Removes the sandbox of a container that has just exited. Its shim may still be exiting and refuse; callers retry.
    async fn cleared(&self, sandbox: &str) {
        let poll = async {
            while let Err(refused) = self.runtime.remove_sandbox(sandbox).await {
                println!("asked again: {refused:?}");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        tokio::time::timeout(PATIENCE, poll).await.expect("the sandbox goes");
    }

    async fn ended(&self, id: &str) -> agent_pod::observed::Exit {
        let poll = async {
            loop {
                if let InstanceState::Exited(exit) = self.observe(id).await.state {
                    return exit;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(PATIENCE, poll).await.expect("the container ends")
    }
}

fn pod_labels(name: &str) -> std::collections::BTreeMap<String, String> {
    [
        (labels::POD_NAME.to_owned(), name.to_owned()),
        (labels::POD_NAMESPACE.to_owned(), "default".to_owned()),
        (labels::POD_UID.to_owned(), format!("uid-{name}")),
    ]
    .into()
}
