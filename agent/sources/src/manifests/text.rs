//! Parses a manifest into static pods. Pure.

use std::collections::BTreeSet;

use proto_api::core::v1::{Container, Pod, Toleration};
use proto_api::dns_names::{is_label, is_subdomain};
use proto_api::names::Names;
use proto_api::object::{self, DecodeObjectError};
use proto_api::sha256_hex;
use proto_api::yaml::{self, ParseYamlError};
use proto_daemon::config::FieldError;
use proto_daemon::exit::chain;
use serde_json::{Value, json};

use super::Origin;

/// Most bytes of a manifest.
pub const MANIFEST_BYTES_MAX: u64 = 1 << 20;

/// Kubernetes' default of `terminationMessagePath`.
const TERMINATION_MESSAGE_PATH: &str = "/dev/termination-log";

/// Where a manifest was found.
#[derive(Clone, Copy, Debug)]
pub struct Context<'a> {
    pub origin: Origin,
    /// Its path or URL.
    pub place: &'a str,
    /// Names of the naming profile.
    pub names: &'a Names,
    /// Name of the node.
    pub node: &'a str,
}

/// Why a manifest has no pods. It has to be changed.
#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    #[error("longer than {MANIFEST_BYTES_MAX} bytes")]
    TooLong,
    #[error(transparent)]
    Yaml(#[from] ParseYamlError),
    #[error("expected a Pod or a list of Pods, found an empty file")]
    Empty,
    #[error("expected one document with a Pod or a list of Pods, found several")]
    SeveralDocuments,
    #[error(transparent)]
    Object(#[from] DecodeObjectError),
    #[error(transparent)]
    Field(#[from] FieldError),
    /// A pod of a list. Its fault is part of the text: it continues the path.
    #[error("items[{number}].{}", chain(&**fault))]
    Item { number: usize, fault: Box<ManifestError> },
}

/// The pods of a manifest: a Pod or a list. A list with an invalid pod is rejected as a whole.
///
/// # Errors
/// What is invalid, with the field.
pub fn pods(text: &str, context: Context<'_>) -> Result<Vec<Pod>, ManifestError> {
    if text.len() as u64 > MANIFEST_BYTES_MAX {
        return Err(ManifestError::TooLong);
    }
    // Leading or trailing `---` makes empty documents.
    let mut documents = yaml::parse_all(text)?.into_iter();
    let value = documents.next().ok_or(ManifestError::Empty)?;
    if documents.next().is_some() {
        return Err(ManifestError::SeveralDocuments);
    }
    let kind = value.get("kind").and_then(Value::as_str).unwrap_or_default();
    if !matches!(kind, "PodList" | "List") {
        return pod(value, text, context).map(|pod| vec![pod]);
    }
    let items = value.get("items").and_then(Value::as_array).cloned().unwrap_or_default();
    let each = |(number, mut item): (usize, Value)| {
        // Items of a typed list have no `kind`.
        if let Some(item) = item.as_object_mut().filter(|_| kind == "PodList") {
            item.entry("kind").or_insert(json!("Pod"));
            item.entry("apiVersion").or_insert(json!("v1"));
        }
        let text = item.to_string();
        pod(item, &text, context)
            .map_err(|fault| ManifestError::Item { number, fault: Box::new(fault) })
    };
    items.into_iter().enumerate().map(each).collect()
}

/// Completes a static pod. Its uid is a hash of node, path and text: a changed manifest is another
/// pod.
fn pod(value: Value, text: &str, context: Context<'_>) -> Result<Pod, ManifestError> {
    let Context { origin, place, names, node } = context;
    let mut pod: Pod = object::from_json_value(value, names)?;
    let uid = format!("{:.32}", sha256_hex(format!("{node}\0{place}\0{text}\0").as_bytes()));
    let meta = &mut pod.metadata;
    if meta.name.is_empty() {
        return Err(FieldError::new("metadata.name", "must be set").into());
    }
    meta.name = format!("{}-{}", meta.name, node.to_lowercase());
    if meta.namespace.is_empty() {
        meta.namespace = "default".to_owned();
    }
    for (name, value) in [("config.hash", uid.as_str()), ("config.source", origin.word())] {
        meta.annotations.insert(names.label(name), value.to_owned());
    }
    meta.uid = uid;
    pod.spec.node_name = node.to_owned();
    // Static pods tolerate all NoExecute taints.
    pod.spec.tolerations.push(Toleration {
        operator: "Exists".to_owned(),
        effect: "NoExecute".to_owned(),
        ..Toleration::default()
    });
    if pod.spec.service_account_name.is_empty() {
        pod.spec.automount_service_account_token = Some(false);
    }
    check(&pod)?;
    let host_network = pod.spec.host_network;
    for container in pod.spec.init_containers.iter_mut().chain(&mut pod.spec.containers) {
        set_defaults(container, host_network);
    }
    Ok(pod)
}

/// Sets what the API server would and the agent relies on: requests, the file of the termination message, ports of the host.
fn set_defaults(container: &mut Container, host_network: bool) {
    for (name, limit) in &container.resources.limits {
        container.resources.requests.entry(name.clone()).or_insert(*limit);
    }
    let or_default = |field: &mut String, value: &str| {
        if field.is_empty() {
            value.clone_into(field);
        }
    };
    or_default(&mut container.termination_message_path, TERMINATION_MESSAGE_PATH);
    or_default(&mut container.termination_message_policy, "File");
    for port in &mut container.ports {
        or_default(&mut port.protocol, "TCP");
        if host_network && port.host_port == 0 {
            port.host_port = port.container_port;
        }
    }
}

/// Validates what the API server would: names used in paths, cgroups and CRI names, and unique
/// container names.
fn check(pod: &Pod) -> Result<(), FieldError> {
    let meta = &pod.metadata;
    named(is_subdomain(&meta.name), "metadata.name", &meta.name)?;
    named(is_label(&meta.namespace), "metadata.namespace", &meta.namespace)?;
    if pod.spec.containers.is_empty() {
        return Err(FieldError::new("spec.containers", "must not be empty"));
    }
    let mut volumes = BTreeSet::new();
    for (number, volume) in pod.spec.volumes.iter().enumerate() {
        let at = format!("spec.volumes[{number}].name");
        named(is_label(&volume.name), &at, &volume.name)?;
        if !volumes.insert(&volume.name) {
            return Err(FieldError::new(at, format!("{:?} is duplicate", volume.name)));
        }
    }
    let mut containers = BTreeSet::new();
    let lists =
        [("initContainers", &pod.spec.init_containers), ("containers", &pod.spec.containers)];
    for (list, all) in lists {
        for (number, container) in all.iter().enumerate() {
            let at = format!("spec.{list}[{number}]");
            let name = format!("{at}.name");
            named(is_label(&container.name), &name, &container.name)?;
            if !containers.insert(&container.name) {
                return Err(FieldError::new(name, format!("{:?} is duplicate", container.name)));
            }
            if container.image.is_empty() {
                return Err(FieldError::new(format!("{at}.image"), "must be set"));
            }
            let unknown = container.volume_mounts.iter().find(|m| !volumes.contains(&m.name));
            if let Some(mount) = unknown {
                return Err(FieldError::new(
                    format!("{at}.volumeMounts"),
                    format!("volume {:?} is not in spec.volumes", mount.name),
                ));
            }
        }
    }
    Ok(())
}

fn named(holds: bool, path: &str, value: &str) -> Result<(), FieldError> {
    let rule =
        "must be lower case letters, digits and '-', and begin and end with one of the former";
    if holds { Ok(()) } else { Err(FieldError::new(path, format!("{value:?} {rule}"))) }
}

#[cfg(test)]
pub mod tests {
    use proto_api::names::Profile;

    use super::*;

    pub const POD: &str = "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\n\
                       spec: {containers: [{name: c, image: i}]}\n";

    pub fn names() -> &'static Names {
        Names::new(Profile::Kubernetes)
    }

    fn read(text: &str) -> Result<Vec<Pod>, String> {
        let place = "/m/web.yaml";
        pods(text, Context { origin: Origin::File, place, names: names(), node: "Node-1" })
            .map_err(|error| chain(&error))
    }

    #[test]
    fn a_manifest_becomes_a_pod_of_the_node() {
        let pod = read(POD).expect("pod").remove(0);
        assert_eq!(pod.metadata.name, "web-node-1");
        assert_eq!(pod.metadata.namespace, "default");
        assert_eq!(pod.spec.node_name, "Node-1");
        assert_eq!(pod.metadata.annotations["kubernetes.io/config.source"], "file");
        assert_eq!(pod.metadata.annotations["kubernetes.io/config.hash"], pod.metadata.uid);
        let changed = read(&POD.replace("image: i", "image: j")).expect("pod").remove(0);
        assert_ne!(changed.metadata.uid, pod.metadata.uid);
    }

    #[test]
    fn a_static_pod_has_the_defaults_that_its_mirror_has() {
        let spec = |network: &str| {
            let container = "{name: c, image: i, ports: [{containerPort: 80}, {containerPort: 53, hostPort: 5353, protocol: UDP}], \
                 resources: {limits: {cpu: 1500m, memory: 64Mi}, requests: {cpu: 100m}}}";
            let other = "{name: d, image: i, terminationMessagePath: /m, terminationMessagePolicy: FallbackToLogsOnError}";
            format!("spec: {{{network}initContainers: [{other}], containers: [{container}]}}\n")
        };
        for (network, expect) in [("", [0, 5353]), ("hostNetwork: true, ", [80, 5353])] {
            let text = POD.replace("spec: {containers: [{name: c, image: i}]}\n", &spec(network));
            let pod = read(&text).expect("pod").remove(0);
            let (main, init) = (&pod.spec.containers[0], &pod.spec.init_containers[0]);
            let requests: Vec<String> =
                main.resources.requests.iter().map(|(name, q)| format!("{name} {q}")).collect();
            assert_eq!(requests, ["cpu 100m", "memory 64Mi"]);
            assert_eq!(main.ports.iter().map(|p| p.host_port).collect::<Vec<_>>(), expect);
            assert_eq!(main.ports.iter().map(|p| &*p.protocol).collect::<Vec<_>>(), ["TCP", "UDP"]);
            let message = |c: &Container| {
                (c.termination_message_path.clone(), c.termination_message_policy.clone())
            };
            assert_eq!(message(main), ("/dev/termination-log".into(), "File".into()));
            assert_eq!(message(init), ("/m".into(), "FallbackToLogsOnError".into()));
        }
    }

    #[test]
    fn a_list_becomes_its_pods() {
        let item = |name: &str| {
            format!(
                "- metadata: {{name: {name}}}\n  spec: {{containers: [{{name: c, image: i}}]}}\n"
            )
        };
        let list = format!("apiVersion: v1\nkind: PodList\nitems:\n{}{}", item("a"), item("b"));
        let pods = read(&list).expect("pods");
        let uids: BTreeSet<_> = pods.iter().map(|pod| &pod.metadata.uid).collect();
        assert_eq!((pods.len(), uids.len()), (2, 2));
        assert_eq!(pods[1].metadata.name, "b-node-1");
        let faulty = list.replace("name: b}", "name: B_}");
        assert!(read(&faulty).expect_err("faulty").starts_with("items[1].metadata.name"));
    }

    #[test]
    fn names_in_manifests_that_become_paths_are_validated() {
        let cases = [
            ("name: web", "name: ../x", "metadata.name"),
            ("name: web", "name: web..x", "metadata.name"),
            ("name: web", "name: web, namespace: a/b", "metadata.namespace"),
            ("name: c,", "name: ../c,", "spec.containers[0].name"),
            ("name: c,", "", "spec.containers[0].name"),
            ("image: i", "", "spec.containers[0].image"),
            ("}]", "}, {name: c, image: j}]", "spec.containers[1].name"),
            ("}]", "}], initContainers: [{name: c, image: j}]", "spec.containers[0].name"),
            ("}]", "}], volumes: [{name: ., emptyDir: {}}]", "spec.volumes[0].name"),
            (
                "image: i",
                "image: i, volumeMounts: [{name: v, mountPath: /v}]",
                "spec.containers[0].volumeMounts",
            ),
            ("[{name: c, image: i}]", "[]", "spec.containers"),
        ];
        for (from, to, field) in cases {
            let fault = read(&POD.replace(from, to)).expect_err(to);
            assert!(fault.starts_with(&format!("{field}: ")), "{to}: {fault}");
        }
        let two = read(&format!("{POD}---\n{POD}")).expect_err("two documents");
        assert!(two.starts_with("expected one document"), "{two}");
        assert_eq!(
            read("---\n"),
            Err("expected a Pod or a list of Pods, found an empty file".to_owned())
        );
        assert_eq!(read(&format!("---\n{POD}---\n")).map(|pods| pods.len()), Ok(1));
    }
}
