//! Links to container logs in the `containers` directory next to the pod logs directory. Log
//! collectors read pod, namespace, container and id from the name:
//! `/var/log/containers/<pod>_<namespace>_<container>-<id>.log`.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use agent_pod::observed::{InstanceState, ObservedContainer};
use agent_pod::translate::log_directory_path;
use agent_runtime::runtime::PodOnNode;
use proto_api::core::v1::Pod;

/// Longest file name on common file systems.
const NAME_MAX: usize = 255;
/// Most links examined.
const LINKS_MAX: usize = 100_000;

/// A container instance that has a log.
#[derive(Clone, Copy, Debug)]
pub struct LoggedContainer<'a> {
    /// Namespace, name and uid of the pod.
    pub pod: [&'a str; 3],
    /// Name of the container.
    pub container: &'a str,
    /// Number of the instance, from 0.
    pub attempt: u32,
    /// CRI id of the instance.
    pub id: &'a str,
}

impl<'a> LoggedContainer<'a> {
    /// An instance of a pod that has a source.
    pub fn new(pod: &'a Pod, container: &'a str, attempt: u32, id: &'a str) -> Self {
        let meta = &pod.metadata;
        Self { pod: [&meta.namespace, &meta.name, &meta.uid], container, attempt, id }
    }

    fn from_observed(pod: &'a PodOnNode, container: &'a ObservedContainer) -> Self {
        Self {
            pod: [&pod.namespace, &pod.name, &pod.uid],
            container: &container.name,
            attempt: container.attempt,
            id: &container.id,
        }
    }

    fn link(&self) -> String {
        let [namespace, name, _] = self.pod;
        cut(format!("{name}_{namespace}_{}-{}", self.container, self.id)) + ".log"
    }

    fn log(&self, logs: &Path) -> PathBuf {
        let [namespace, name, uid] = self.pod;
        let pod = log_directory_path(&logs.to_string_lossy(), namespace, name, uid);
        Path::new(&pod).join(self.container).join(format!("{}.log", self.attempt))
    }
}

/// Truncates a link's name. Names and ids are ASCII, so a character is a byte.
fn cut(mut name: String) -> String {
    name.truncate(NAME_MAX - ".log".len());
    name
}

/// Directory of the links for logs below `logs`.
fn directory(logs: &Path) -> PathBuf {
    logs.with_file_name("containers")
}

/// Creates the link of an instance if it is missing.
///
/// # Errors
/// The link cannot be created.
pub fn make(logs: &Path, instance: LoggedContainer<'_>) -> io::Result<()> {
    let directory = directory(logs);
    let (log, link) = (instance.log(logs), directory.join(instance.link()));
    let mut made = symlink(&log, &link);
    if made.as_ref().is_err_and(|error| error.kind() == ErrorKind::NotFound) {
        fs::create_dir_all(&directory)?;
        made = symlink(&log, &link);
    }
    match made {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

/// Removes the link of a removed instance. If this fails, the link dangles and is removed by
/// [`repair_links`].
pub fn remove(logs: &Path, instance: LoggedContainer<'_>) {
    let _ = fs::remove_file(directory(logs).join(instance.link()));
}

/// Removes the links of a deleted pod `[namespace, name, uid]`; those of a later pod with this name
/// stay. Links that cannot be removed dangle and are removed by [`repair_links`].
pub fn remove_all(logs: &Path, [namespace, name, uid]: [&str; 3]) {
    let of_name = cut(format!("{name}_{namespace}_"));
    let own = log_directory_path(&logs.to_string_lossy(), namespace, name, uid);
    for entry in entries(logs) {
        let named = entry.file_name().to_str().is_some_and(|link| link.starts_with(&of_name));
        if named && fs::read_link(entry.path()).is_ok_and(|log| log.starts_with(&own)) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

fn entries(logs: &Path) -> impl Iterator<Item = fs::DirEntry> {
    fs::read_dir(directory(logs)).into_iter().flatten().flatten().take(LINKS_MAX)
}

/// Creates missing links of running containers, and removes dangling links into `logs`. Returns how
/// many were removed. `found` lists the runtime's pods.
pub fn repair_links(logs: &Path, found: &[PodOnNode]) -> usize {
    let all = found.iter().flat_map(|pod| pod.containers.iter().map(move |c| (pod, c)));
    let mut expected = BTreeSet::new();
    for (pod, container) in all {
        let instance = LoggedContainer::from_observed(pod, container);
        expected.insert(instance.link());
        let runs = matches!(container.state, InstanceState::Running { .. });
        if runs && let Err(error) = make(logs, instance) {
            tracing::warn!(id = container.id, %error, "cannot link a container's log; retried at the next garbage collection");
        }
    }
    let leads_nowhere = |link: &Path| match fs::read_link(link) {
        Ok(log) => log.starts_with(logs) && !log.exists(),
        Err(_) => false,
    };
    let dead = |entry: &fs::DirEntry| {
        let known = entry.file_name().to_str().is_some_and(|name| expected.contains(name));
        !known && leads_nowhere(&entry.path())
    };
    entries(logs).filter(dead).filter(|entry| fs::remove_file(entry.path()).is_ok()).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(running: bool) -> PodOnNode {
        let state =
            if running { InstanceState::Running { started_at: 1 } } else { InstanceState::Created };
        let container = ObservedContainer {
            id: "abc".into(),
            name: "main".into(),
            attempt: 2,
            sandbox_id: String::new(),
            image: String::new(),
            image_id: String::new(),
            hash: Default::default(),
            message_file: None,
            state,
        };
        let (uid, namespace, name) = ("u".into(), "ns".into(), "web".into());
        PodOnNode { uid, namespace, name, containers: vec![container], ..PodOnNode::default() }
    }

    fn links(logs: &Path) -> Vec<String> {
        let mut names: Vec<String> =
            entries(logs).map(|entry| entry.file_name().into_string().expect("a name")).collect();
        names.sort();
        names
    }

    #[test]
    fn a_link_leads_to_the_log_and_goes_with_its_instance() {
        let dir = tempfile::tempdir().expect("tempdir");
        let logs = dir.path().join("pods");
        let (pod, container) = (&found(true), &found(true).containers[0]);
        let instance = LoggedContainer::from_observed(pod, container);
        make(&logs, instance).expect("made");
        make(&logs, instance).expect("there already");
        let link = directory(&logs).join("web_ns_main-abc.log");
        assert_eq!(fs::read_link(link).expect("a link"), logs.join("ns_web_u/main/2.log"));
        remove(&logs, instance);
        remove(&logs, instance);
        assert!(links(&logs).is_empty());
    }

    #[test]
    fn all_links_of_a_pod_go_with_it_and_no_other() {
        let dir = tempfile::tempdir().expect("tempdir");
        let logs = dir.path().join("pods");
        let long = "n".repeat(253);
        for (pod, id) in [
            (["ns", "web", "u"], "a"),
            (["ns", "web", "u"], "b"),
            (["ns", "web", "v"], "c"),
            (["ns", "web-1", "u"], "d"),
            (["ns", &long, "u"], "e"),
        ] {
            make(&logs, LoggedContainer { pod, container: "main", attempt: 0, id }).expect("made");
        }
        remove_all(&logs, ["ns", "web", "u"]);
        let cut = format!("{}.log", &format!("{long}_ns")[..NAME_MAX - 4]);
        assert_eq!(links(&logs), [&cut, "web-1_ns_main-d.log", "web_ns_main-c.log"]);
        remove_all(&logs, ["ns", &long, "u"]);
        assert_eq!(links(&logs), ["web-1_ns_main-d.log", "web_ns_main-c.log"]);
    }

    #[test]
    fn long_names_are_cut() {
        let (name, container) = ("n".repeat(253), "c".repeat(63));
        let instance =
            LoggedContainer { pod: ["ns", &name, "u"], container: &container, attempt: 0, id: "i" };
        assert_eq!(instance.link().len(), NAME_MAX);
        assert!(instance.link().ends_with(".log"));
    }

    #[test]
    fn missing_log_links_are_created_and_dangling_ones_removed() {
        let dir = tempfile::tempdir().expect("tempdir");
        let logs = dir.path().join("pods");
        let at = |name: &str| directory(&logs).join(name);
        assert_eq!(repair_links(&logs, &[found(false)]), 0);
        assert!(links(&logs).is_empty());
        // Its log comes when it starts: known instances keep their links.
        assert_eq!(repair_links(&logs, &[found(true)]), 0);
        assert_eq!(links(&logs), ["web_ns_main-abc.log"]);
        symlink(logs.join("ns_old_v/main/0.log"), at("old_ns_main-x.log")).expect("made");
        symlink("/nowhere/else", at("foreign.log")).expect("made");
        fs::write(at("file.log"), "").expect("written");
        assert_eq!(repair_links(&logs, &[found(true)]), 1);
        assert_eq!(links(&logs), ["file.log", "foreign.log", "web_ns_main-abc.log"]);
    }
}
