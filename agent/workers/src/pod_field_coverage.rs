//! Every field of a Pod is implemented, rejected by name, or documented as another component's: a
//! table over the API schema, so that a new field without a row fails the test.
//!
//! A row is `message, field, sample, answer`. The field is set to the sample in a pod, and the
//! node's whole result for that pod (admission, CRI configuration, desired state, environment,
//! files and limits) must differ from the result without the field and contain the row's text. A
//! sample that starts with `=` replaces the whole message instead of one field. Text after `!` must
//! be in the result without the field and not in that with it. An answer that starts with `@` names
//! the component that uses the field.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::OnceLock;

use agent_interfaces::objects::needs_of;
use agent_node::admission::{NodeLoad, admit};
use agent_node::cgroup::pod_limits;
use agent_node::qos::qos_class;
use agent_node::resources::{limits, requests};
use agent_node::unsupported_fields::{self, NodeFeatures};
use agent_pod::desired::{ConfigState, DesiredPod, PodSource, find_container};
use agent_pod::env::{
    ContainersByName, EnvInputs, ServiceEnv, environment, linked_services, links_services,
};
use agent_pod::node_facts::NodeFacts;
use agent_pod::security::ImageUser;
use agent_pod::translate::{self, ContainerInputs};
use agent_pod::volume_mounts::{VolumeOnHost, sub_paths};
use agent_pod::{dns, hosts};
use agent_resources::pod_environment::RuntimeClasses;
use futures_util::FutureExt as _;
use proto_api::core::v1::{ConfigMap, Node, Pod, Secret, Taint};
use serde_json::{Value, json};

const SCHEMA: &str = include_str!("../../../proto/api/schema/core_v1.tsv");
const TABLE: &str = include_str!("pod_field_coverage/table.tsv");

/// A field of the schema.
struct Field {
    name: String,
    /// The message type of the field, if any, and whether it is repeated.
    message: Option<(String, bool)>,
    inline: bool,
}

/// Fields by message.
fn schema() -> BTreeMap<String, Vec<Field>> {
    let lines: Vec<Vec<&str>> = SCHEMA.lines().skip(1).map(|l| l.split('\t').collect()).collect();
    let messages: BTreeSet<&str> =
        lines.iter().filter(|cells| cells[1] == "{}").map(|cells| cells[0]).collect();
    let mut all: BTreeMap<String, Vec<Field>> = BTreeMap::new();
    for cells in lines.iter().filter(|cells| cells[1] != "{}") {
        let kind = cells[3].trim_start_matches("[]").trim_start_matches('*');
        let message =
            messages.contains(kind).then(|| (kind.to_owned(), cells[3].starts_with("[]")));
        all.entry(cells[0].to_owned()).or_default().push(Field {
            name: cells[1].to_owned(),
            message,
            inline: cells[4] == "inline",
        });
    }
    all
}

#[derive(Clone, Debug)]
struct Row {
    sample: Option<Value>,
    whole: bool,
    answer: String,
}

impl Row {
    fn is_elsewhere(&self) -> bool {
        self.answer.starts_with('@')
    }
}

fn table() -> BTreeMap<(String, String), Row> {
    let mut rows = BTreeMap::new();
    for line in TABLE.lines().skip(1).filter(|line| !line.is_empty()) {
        let cells: Vec<&str> = line.split('\t').collect();
        let [message, field, sample, answer] = cells[..] else { panic!("not four cells: {line}") };
        let text = sample.trim_start_matches('=');
        let value = (!text.is_empty())
            .then(|| serde_json::from_str(text).unwrap_or_else(|e| panic!("{line}: {e}")));
        let row = Row { sample: value, whole: sample.starts_with('='), answer: answer.to_owned() };
        let known = rows.insert((message.to_owned(), field.to_owned()), row);
        assert!(known.is_none(), "two rows for {message}.{field}");
    }
    rows
}

/// A step from a message to a nested one.
#[derive(Clone, Debug)]
struct Step {
    message: String,
    field: String,
    in_list: bool,
}

/// The messages below a pod's spec, each with the first path to it. Fields of other components are
/// skipped.
fn reachable(
    schema: &BTreeMap<String, Vec<Field>>,
    table: &BTreeMap<(String, String), Row>,
) -> BTreeMap<String, Vec<Step>> {
    let mut found = BTreeMap::from([("PodSpec".to_owned(), Vec::new())]);
    let mut queue = VecDeque::from(["PodSpec".to_owned()]);
    while let Some(message) = queue.pop_front() {
        let way = found[&message].clone();
        // Containers first: only they can have every field.
        let (first, rest): (Vec<&Field>, Vec<&Field>) =
            schema[&message].iter().partition(|field| field.name == "containers");
        for field in first.into_iter().chain(rest) {
            let Some((child, in_list)) = &field.message else { continue };
            let row = table.get(&(message.clone(), field.name.clone()));
            if row.is_some_and(Row::is_elsewhere) || found.contains_key(child) {
                continue;
            }
            let mut way = way.clone();
            if !field.inline {
                let (message, field) = (message.clone(), field.name.clone());
                way.push(Step { message, field, in_list: *in_list });
            }
            found.insert(child.clone(), way);
            queue.push_back(child.clone());
        }
    }
    found
}

// === pods ===

/// A pod with one container of each kind and the objects that samples refer to.
fn base() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "p", "namespace": "ns", "uid": "u"},
        "spec": {
            "nodeName": "n",
            "containers": [{"name": "c", "image": "i:1"}],
            "initContainers": [{"name": "first", "image": "i:1"}],
            "ephemeralContainers": [{"name": "look", "image": "i:1"}],
            "volumes": [{"name": "v", "emptyDir": {}}],
        },
    })
}

/// The JSON value of a message in a pod, created if missing; fields on the way have their samples.
fn place<'a>(
    pod: &'a mut Value,
    way: &[Step],
    table: &BTreeMap<(String, String), Row>,
) -> &'a mut Value {
    let mut at = &mut pod["spec"];
    for step in way {
        if at.get(&step.field).is_none_or(Value::is_null) {
            let row = table.get(&(step.message.clone(), step.field.clone()));
            let empty = if step.in_list { json!([{}]) } else { json!({}) };
            match row.and_then(|row| Some((row.whole, row.sample.clone()?))) {
                Some((true, whole)) => *at = whole,
                Some((false, sample)) => at[&step.field] = sample,
                None => at[&step.field] = empty,
            }
        }
        at = &mut at[&step.field];
        if step.in_list {
            at = &mut at[0];
        }
    }
    at
}

struct Everything;

impl agent_pod::env::EnvObjects for Everything {
    fn config_map(&self, name: &str) -> Option<&ConfigMap> {
        static MAP: OnceLock<ConfigMap> = OnceLock::new();
        let made =
            || ConfigMap { data: [("k".into(), "from map".into())].into(), ..ConfigMap::default() };
        (name == "m").then(|| MAP.get_or_init(made))
    }

    fn secret(&self, name: &str) -> Option<&Secret> {
        static SECRET: OnceLock<Secret> = OnceLock::new();
        let data = || [("k".to_owned(), b"from secret".to_vec())].into();
        let made = || Secret { data: data(), ..Secret::default() };
        (name == "s").then(|| SECRET.get_or_init(made))
    }
}

fn facts() -> NodeFacts {
    NodeFacts {
        pod_logs_dir: "/logs".into(),
        seccomp_dir: "/seccomp".into(),
        cluster_dns: vec!["10.96.0.10".into()],
        cluster_domain: "cluster.local".into(),
        resolver: agent_pod::spec::DnsConfig {
            servers: vec!["192.0.2.53".into()],
            ..Default::default()
        },
        memory_bytes: 8 << 30,
        huge_page_sizes: vec![2 << 20],
        ..NodeFacts::default()
    }
}

fn node() -> Node {
    let mut node = Node::default();
    node.metadata.name = "n".into();
    for (name, amount) in [("cpu", "4"), ("memory", "8Gi"), ("pods", "10")] {
        node.status.allocatable.insert(name.into(), amount.parse().expect("quantity"));
    }
    node.spec.taints = vec![Taint {
        key: "dedicated".into(),
        value: "x".into(),
        effect: "NoExecute".into(),
        ..Taint::default()
    }];
    node
}

/// The node's whole result for a pod, as text.
fn answer(pod: &Value) -> String {
    let text = pod.to_string();
    let pod: Pod = serde_json::from_value(pod.clone()).unwrap_or_else(|e| panic!("{e}: {text}"));
    let facts = facts();
    let mut all = String::new();
    let mut say = |what: &str, value: &dyn std::fmt::Debug| {
        all.push_str(&format!("{what}: {value:?}\n"));
    };
    say("can", &unsupported_fields::check_supported(&pod, &NodeFeatures::default()));
    say("may", &admit(&pod, &node(), &NodeLoad::default(), false));
    say("class", &qos_class(&pod));
    say("asks", &(requests(&pod), limits(&pod), pod_limits(&pod, None)));
    let config = |_: &_| ConfigState::Ready;
    say("wants", &DesiredPod::from_pod(&pod, PodSource::Api, "", &["192.0.2.1".into()], config));
    say("sandbox", &translate::sandbox_config(&pod, &facts, "/pods", 0));
    say("hosts", &hosts::hosts_file(&pod, &facts, &["10.0.0.7".into()], ""));
    say("resolver", &dns::resolver(&pod, &facts));
    let classes = RuntimeClasses::default();
    say("handler", &classes.handler(&pod).now_or_never());
    say("volumes", &agent_volume::volumes(&pod));
    say("objects", &needs_of(&pod));
    let names = pod.spec.init_containers.iter().chain(&pod.spec.containers).map(|c| c.name.clone());
    let looking = pod.spec.ephemeral_containers.iter();
    let names = names.chain(looking.map(|c| c.ephemeral_container_common.name.clone()));
    for name in names.collect::<Vec<_>>() {
        let container = find_container(&pod, &name).expect("container");
        let services =
            ServiceEnv { name: "shop".into(), cluster_ip: "10.96.0.9".into(), ports: vec![] };
        let inputs = EnvInputs {
            pod: &pod,
            containers: ContainersByName::from_pod(&pod),
            host_ips: &["192.0.2.1".into()],
            pod_ips: &["10.0.0.7".into()],
            objects: &Everything,
            services: &linked_services(links_services(&pod).then_some(&services).into_iter(), None),
            allocatable: &node().status.allocatable,
        };
        let env = environment(&container, &inputs);
        let env = env.map_err(|e| e.to_string());
        say("env", &env);
        let on_host = VolumeOnHost { path: "/host/v".into(), ..VolumeOnHost::default() };
        let block =
            VolumeOnHost { path: "/dev/sdx".into(), block: true, ..VolumeOnHost::default() };
        let on_host: BTreeMap<_, _> = [("v".to_owned(), on_host), ("b".into(), block)].into();
        say("parts", &sub_paths(&container, env.as_deref().unwrap_or_default(), &on_host));
        let inputs = ContainerInputs {
            env: env.unwrap_or_default(),
            image_user: ImageUser { uid: Some(7), name: String::new() },
            volumes: on_host,
            sub_paths: [(0, "/bound/0".to_owned())].into(),
            ..ContainerInputs::default()
        };
        say("container", &translate::container_config(&pod, &container, &facts, inputs));
    }
    all
}

/// Calls everything else that computes with a pod's numbers.
fn figures(pod: &Pod) {
    use agent_node::{preempt, qos, resources};

    let (node, mut load) = (node(), NodeLoad::default());
    (0..3).for_each(|_| load.add(pod));
    let _ = admit(pod, &node, &load, true);
    let victims: Vec<_> = (0..3)
        .map(|_| preempt::PreemptionVictim {
            pod: std::sync::Arc::new(pod.clone()),
            is_static: false,
        })
        .collect();
    let _ = preempt::choose_victims(pod, true, &victims, &node.status.allocatable);
    let class = qos_class(pod);
    for container in pod.spec.init_containers.iter().chain(&pod.spec.containers) {
        for memory in [0, 1, u64::MAX] {
            let _ = qos::oom_score_adj(class, container, memory);
        }
        let _ = agent_node::cgroup::container_limits(container).cpu_weight();
    }
    let _ = agent_node::cgroup::pod_limits(pod, Some(u64::MAX)).cpu_weight();
    let asked = [agent_node::cgroup::cpu_request(pod); 3];
    let _ = agent_node::cgroup::class_limits(class, asked.into_iter());
    let _ = resources::limits(pod);
    ranks(pod);
    let groups = agent_node::shutdown::ShutdownGroups::new(
        &[],
        std::time::Duration::from_secs(u64::MAX),
        std::time::Duration::ZERO,
    );
    let _ = groups.plan([pod].into_iter());
    for volume in agent_volume::volumes(pod).unwrap_or_default() {
        if let agent_volume::sources::VolumeKind::Projected(projected) = &volume.kind {
            let inputs = agent_volume::PayloadInputs {
                pod,
                objects: &Everything,
                tokens: &BTreeMap::new(),
                allocatable: &node.status.allocatable,
                budget: &agent_volume::Budget::default(),
            };
            let _ = (projected.payload(&inputs), projected.ownership(pod));
        }
    }
    let memory = agent_pod::record::PodRecord::recover(None, &pod.status, &[]);
    let want = DesiredPod::from_pod(pod, PodSource::Api, "", &[], |_| ConfigState::Ready);
    for boot in [0, 1, u64::from(u32::MAX)] {
        for unix_seconds in [i64::MIN, -1, 0, i64::MAX] {
            let boot = std::time::Duration::from_secs(boot);
            let now = agent_pod::observed::Now { unix_seconds, boot };
            let _ = agent_pod::lifecycle::plan(&want, &Default::default(), &memory, now);
        }
    }
}

fn ranks(pod: &Pod) {
    use agent_node::eviction::{rank, storage};

    for uses in [0, 1, u64::MAX] {
        let container = |name: &String| rank::ContainerUse {
            name: name.clone(),
            memory: uses,
            layer: uses,
            logs: uses,
        };
        let volumes = pod.spec.volumes.iter().map(|v| (v.name.clone(), uses)).collect();
        let uses = rank::PodUse {
            memory: uses,
            volumes: uses,
            inodes: uses,
            tasks: uses,
            containers: pod.spec.containers.iter().map(|c| container(&c.name)).collect(),
        };
        let candidate = || rank::Candidate { pod, is_static: false, uses: Some(uses.clone()) };
        let candidates = [candidate(), candidate()];
        for signal in agent_node::eviction::Signal::ALL {
            if let Some(first) = rank::eviction_order(&candidates, signal).first() {
                let _ = rank::eviction_message(first, signal);
            }
        }
        let _ = storage::exceeded_limit(pod, &uses, &volumes);
    }
}

// === tests ===

/// Every number and quantity of a pod with all fields set, at its extremes.
#[test]
fn no_number_of_any_field_panics() {
    let filled: Value =
        serde_json::from_str(include_str!("../../../proto/api/testdata/core.v1.Pod.json"))
            .expect("json");
    let mut tried = 0;
    for pod in crate::extremes::pods_with_extremes(&filled) {
        tried += 1;
        let text = serde_json::to_value(&pod.1).expect("encode");
        let made = std::panic::catch_unwind(|| {
            let _ = answer(&text);
            figures(&pod.1);
        });
        assert!(made.is_ok(), "{}", pod.0);
    }
    assert!(tried >= 800, "{tried}");
}

#[test]
fn every_field_has_a_row_and_every_row_a_field() {
    let (schema, table) = (schema(), table());
    let reachable = reachable(&schema, &table);
    let fields = reachable.keys().flat_map(|message| {
        let own = schema[message].iter().filter(|field| !field.inline);
        own.map(|field| (message.clone(), field.name.clone())).collect::<Vec<_>>()
    });
    let fields: BTreeSet<(String, String)> = fields.collect();
    let rows: BTreeSet<(String, String)> = table.keys().cloned().collect();
    let missing: Vec<_> = fields.difference(&rows).collect();
    assert!(missing.is_empty(), "fields of the schema without a row: {missing:?}");
    let extra: Vec<_> = rows.difference(&fields).collect();
    assert!(extra.is_empty(), "rows for what no pod has: {extra:?}");
}

#[test]
fn every_field_that_is_the_nodes_changes_its_answer() {
    let (schema, table) = (schema(), table());
    let reachable = reachable(&schema, &table);
    let mut wrong = Vec::new();
    for ((message, field), row) in table.iter().filter(|(_, row)| !row.is_elsewhere()) {
        let Some(sample) = &row.sample else { panic!("{message}.{field} has no sample") };
        let way = &reachable[message];
        let mut with = base();
        let at = place(&mut with, way, &table);
        let initial = at.get(field).cloned();
        if row.whole {
            *at = sample.clone();
        } else {
            at[field] = sample.clone();
        }
        let mut without = with.clone();
        let at = place(&mut without, way, &table);
        match (way.is_empty() && !row.whole, initial, at.as_object_mut()) {
            // Restores the field's initial value.
            (true, Some(initial), _) => at[field] = initial,
            (_, _, Some(fields)) => drop(fields.remove(field)),
            (_, _, None) => {}
        }
        let (with, without) = (answer(&with), answer(&without));
        if with == without {
            wrong.push(format!("{message}.{field}: the node's answer does not change"));
            continue;
        }
        let (text, has, has_not) = match row.answer.strip_prefix('!') {
            Some(text) => (text, &without, &with),
            None => (row.answer.as_str(), &with, &without),
        };
        if !has.contains(text) || has_not.contains(text) {
            let changed: Vec<&str> =
                with.lines().filter(|line| !without.lines().any(|l| l == *line)).collect();
            wrong.push(format!("{message}.{field}: no {:?} in {changed:#?}", row.answer));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
