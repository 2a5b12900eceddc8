//! `why`: what is wrong with an object, from what the server says of it and of what it depends on, and how the pod started that is concerned.
//!
//! Exits with 0 if nothing is wrong, with 1 if a reason was found, and with 2 if the question cannot be answered.

use std::collections::{BTreeMap, HashMap};
use std::process::ExitCode;

use futures_util::{StreamExt as _, stream};
use orchctl_client::{ApiResource, CommandError, Output, Session, names};
use orchctl_printers::why::{self, Case, Lookup, PodCase, Verdict};
use orchctl_printers::{objects, terminal, timeline as moments};
use proto_api::Collection;
use proto_client::ListParams;
use proto_client::request;
use serde_json::Value;

use crate::{describe, time, timeline};

/// The exit code if a reason was found.
const FOUND: u8 = 1;
/// The exit code if the question cannot be answered.
pub const NO_ANSWER: u8 = 2;
/// Most pods of a workload that are looked at.
const PODS_MAX: usize = 20;
/// Most nodes of a service's pods that are looked at.
const NODES_MAX: usize = 500;
/// Most pods that are listed to find those.
const LISTED_MAX: u32 = 5000;
/// Most claims of a pod.
const CLAIMS_MAX: usize = 50;
/// Requests at one time.
const REQUESTS_MAX: usize = 8;

/// Flags of the command.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// TYPE/NAME, TYPE NAME, or the name of a pod
    #[arg(value_name = "OBJECT", required = true)]
    args: Vec<String>,
}

/// Runs the command.
///
/// # Errors
/// When the answer cannot be written.
pub async fn run(
    session: &Session,
    args: Args,
    output: &mut Output,
) -> Result<ExitCode, CommandError> {
    let Explanation { verdict, notes, start } = match answer(session, &args).await {
        Ok(answer) => answer,
        Err(error) => {
            writeln!(output.err, "{error}")?;
            return Ok(ExitCode::from(NO_ANSWER));
        }
    };
    for note in notes {
        writeln!(output.err, "{note}")?;
    }
    output.out.write_all(format!("{}{start}", why::render(&verdict)).as_bytes())?;
    Ok(match verdict {
        Verdict::Well(_) => ExitCode::SUCCESS,
        Verdict::Wrong(_) => ExitCode::from(FOUND),
    })
}

/// The answer.
struct Explanation {
    verdict: Verdict,
    /// What could not be read for it.
    notes: Vec<String>,
    /// How the pod started that something is wrong with; empty if nothing is.
    start: String,
}

async fn answer(session: &Session, args: &Args) -> Result<Explanation, CommandError> {
    let discovery = session.discovery().await?;
    let selection = names::parse_one(discovery, &args.args, "pods")?;
    let resource = &selection.resource;
    check(resource)?;
    let collection = resource.collection(Some(session.namespace()?));
    let path = collection.item(selection.name.as_deref().unwrap_or_default(), None);
    let object = session.call_json(request::get(path)).await?;
    Ok(explain(session, object).await)
}

/// Refuses a kind that no rules are known of.
///
/// # Errors
/// When there are none.
pub fn check(resource: &ApiResource) -> Result<(), CommandError> {
    if why::supports_kind(&resource.group, &resource.kind) {
        return Ok(());
    }
    Err(CommandError::with_text(format!(
        "why has no rules for {}; look at it with describe",
        resource.full_name()
    )))
}

async fn explain(session: &Session, object: Value) -> Explanation {
    let mut reading = Reading { session, nodes: HashMap::new(), notes: Vec::new() };
    let case = reading.case(object).await;
    let verdict = why::explain(&case, time::now());
    let start = match &verdict {
        Verdict::Wrong(_) => start_of(session, &case).await,
        Verdict::Well(_) => String::new(),
    };
    Explanation { verdict, notes: reading.notes, start }
}

fn is_ready(pod: &Value) -> bool {
    orchctl_printers::state::condition_status(pod, "Ready") == "True"
}

/// How the first pod that is not ready started: of a workload one stands for the others.
async fn start_of(session: &Session, case: &Case) -> String {
    let Some(worst) = case.pods.iter().find(|one| !is_ready(&one.pod)) else {
        return String::new();
    };
    let (history, unknown) = timeline::history(session, worst.pod.clone()).await;
    let unknown = terminal::visible(&unknown.join("; ")).replace('\n', " ");
    let known = if unknown.is_empty() { unknown } else { format!(" ({unknown})") };
    let table = moments::render(&moments::moments(&history));
    format!("\nHow pod {} started{known}:\n{table}", objects::name(&worst.pod))
}

/// What is wrong with an object, and what could not be read for the answer.
pub async fn text_of(session: &Session, object: Value) -> String {
    let Explanation { verdict, notes, start } = explain(session, object).await;
    let notes: String = notes.iter().map(|note| format!("\n{note}\n")).collect();
    format!("{}{notes}{start}", why::render(&verdict))
}

/// Reads what an object depends on.
struct Reading<'a> {
    session: &'a Session,
    /// Nodes by name: pods share them.
    nodes: HashMap<String, Lookup>,
    /// What could not be read.
    notes: Vec<String>,
}

impl Reading<'_> {
    async fn case(&mut self, object: Value) -> Case {
        let namespace = objects::namespace(&object).to_owned();
        let core = |plural: &str| core(plural, Some(&namespace));
        let mut case = Case { events: self.events(&object).await, ..Case::default() };
        match objects::text_at(&object, "/kind") {
            "Pod" => {
                let (pod, events) = (object.clone(), std::mem::take(&mut case.events));
                case.pods = vec![self.pod(pod, events).await];
            }
            "Service" => {
                let path = core("endpoints").item(objects::name(&object), None);
                case.endpoints = Some(self.look_up(path).await);
                let selector = objects::map_at(&object, "/spec/selector");
                if selector.is_some_and(|selector| !selector.is_empty()) {
                    let pods = self.list(&core("pods"), &objects::pairs(selector)).await;
                    case.left_out = self.ready_pods_of_missing_nodes(&pods).await;
                    case.pods = self.pods(pods).await;
                }
            }
            "PersistentVolumeClaim" => self.of_claim(&object, &mut case).await,
            "PodDisruptionBudget" => {
                // An empty selector selects all pods of the namespace, none selects none.
                if object.pointer("/spec/selector").is_some_and(|selector| !selector.is_null()) {
                    let selector = objects::label_selector(&object, "/spec/selector");
                    let pods = self.list(&core("pods"), &selector.unwrap_or_default()).await;
                    case.pods = self.pods(pods).await;
                }
            }
            "PersistentVolume" | "Node" | "Namespace" | "HorizontalPodAutoscaler" => {}
            "Deployment" => {
                let sets = Collection { group: "apps".to_owned(), ..core("replicasets") };
                let sets = self.owned(&sets, &object).await;
                let mut pods = Vec::new();
                for set in sets.into_iter().take(PODS_MAX) {
                    if is_empty(&set) {
                        continue;
                    }
                    case.events.extend(self.events(&set).await);
                    pods.extend(self.owned(&core("pods"), &set).await);
                }
                case.pods = self.pods(pods).await;
            }
            _ => {
                let pods = self.owned(&core("pods"), &object).await;
                case.pods = self.pods(pods).await;
            }
        }
        Case { object, ..case }
    }

    /// Volume and class of a claim, and the pods that name it.
    async fn of_claim(&mut self, claim: &Value, case: &mut Case) {
        let volume = objects::text_at(claim, "/spec/volumeName");
        if !volume.is_empty() {
            let path = core("persistentvolumes", None).item(volume, None);
            case.volume = Some(self.look_up(path).await);
        }
        let class = objects::text_at(claim, "/spec/storageClassName");
        if !class.is_empty() {
            let group = self.session.names().await.map(|names| names.group("storage"));
            let group = group.unwrap_or_default();
            let classes = Collection { group, ..core("storageclasses", None) };
            case.class = Some(self.look_up(classes.item(class, None)).await);
        }
        let namespace = Some(objects::namespace(claim));
        let mut pods = self.list(&core("pods", namespace), "").await;
        pods.retain(|pod| {
            objects::claim_names(pod).iter().any(|name| name == objects::name(claim))
        });
        let pods = pods.into_iter().take(PODS_MAX);
        case.pods = pods.map(|pod| PodCase { pod, ..PodCase::default() }).collect();
    }

    /// Pods with what they depend on; those that are not ready count.
    async fn pods(&mut self, mut pods: Vec<Value>) -> Vec<PodCase> {
        pods.sort_by_key(is_ready);
        if pods.len() > PODS_MAX {
            self.notes.push(format!("of {} pods {PODS_MAX} were looked at", pods.len()));
            pods.truncate(PODS_MAX);
        }
        let session = self.session;
        let events = pods.iter().map(|pod| describe::events_of(session, pod));
        let events: Vec<Option<Vec<Value>>> =
            stream::iter(events).buffered(REQUESTS_MAX).collect().await;
        let mut cases = Vec::new();
        for (pod, events) in pods.into_iter().zip(events) {
            if events.is_none() {
                self.note_events();
            }
            cases.push(self.pod(pod, events.unwrap_or_default()).await);
        }
        cases
    }

    /// Their names: of all pods, as those that are looked at are mostly not ready.
    async fn ready_pods_of_missing_nodes(&mut self, pods: &[Value]) -> Vec<String> {
        let mut by_node: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for pod in pods.iter().filter(|pod| is_ready(pod)) {
            let node = objects::text_at(pod, "/spec/nodeName");
            by_node.entry(node).or_default().push(objects::name(pod));
        }
        if by_node.len() > NODES_MAX {
            self.notes.push(format!("of {} nodes {NODES_MAX} were looked at", by_node.len()));
        }
        let mut names = Vec::new();
        for (node, pods) in by_node.into_iter().take(NODES_MAX) {
            if self.node(node).await == Lookup::Missing {
                names.extend(pods.into_iter().map(str::to_owned));
            }
        }
        names
    }

    async fn pod(&mut self, pod: Value, events: Vec<Value>) -> PodCase {
        let node = objects::text_at(&pod, "/spec/nodeName");
        let node = match node {
            "" => None,
            name => Some(self.node(name).await),
        };
        let mut claims = Vec::new();
        for name in objects::claim_names(&pod).into_iter().take(CLAIMS_MAX) {
            let all = core("persistentvolumeclaims", Some(objects::namespace(&pod)));
            let claim = self.look_up(all.item(&name, None)).await;
            claims.push((name, claim));
        }
        PodCase { pod, events, node, claims }
    }

    async fn node(&mut self, name: &str) -> Lookup {
        if let Some(known) = self.nodes.get(name) {
            return known.clone();
        }
        let node = self.look_up(core("nodes", None).item(name, None)).await;
        self.nodes.insert(name.to_owned(), node.clone());
        node
    }

    async fn look_up(&mut self, path: String) -> Lookup {
        match self.session.call_json(request::get(path)).await {
            Ok(object) => Lookup::Found(object),
            Err(error) if error.is_not_found() => Lookup::Missing,
            Err(error) => {
                self.notes.push(error.to_string());
                Lookup::Unread
            }
        }
    }

    async fn events(&mut self, object: &Value) -> Vec<Value> {
        let events = describe::events_of(self.session, object).await;
        if events.is_none() {
            self.note_events();
        }
        events.unwrap_or_default()
    }

    fn note_events(&mut self) {
        let note = "events could not be read: some reasons are known from them alone";
        if !self.notes.iter().any(|known| known == note) {
            self.notes.push(note.to_owned());
        }
    }

    async fn list(&mut self, collection: &Collection, selector: &str) -> Vec<Value> {
        let params = ListParams { limit: Some(LISTED_MAX), ..ListParams::labels(selector) };
        match self.session.call_json(request::list(collection.path(), &params)).await {
            Ok(page) => objects::into_items(page),
            Err(error) => {
                self.notes.push(error.to_string());
                Vec::new()
            }
        }
    }

    /// Objects that belong to `owner`.
    async fn owned(&mut self, collection: &Collection, owner: &Value) -> Vec<Value> {
        let selector = objects::pod_selector(owner).unwrap_or_default();
        let uid = objects::text_at(owner, "/metadata/uid");
        let mut items = self.list(collection, &selector).await;
        items.retain(|item| {
            let mut owners = objects::list_at(item, "/metadata/ownerReferences").iter();
            owners.any(|one| objects::text_at(one, "/uid") == uid)
        });
        items
    }
}

/// Whether a replica set neither has pods nor wants any.
fn is_empty(set: &Value) -> bool {
    let count = |pointer| orchctl_printers::state::number(set, pointer, 0);
    count("/spec/replicas") == 0 && count("/status/replicas") == 0
}

fn core(plural: &str, namespace: Option<&str>) -> Collection {
    Collection {
        group: String::new(),
        version: "v1".to_owned(),
        plural: plural.to_owned(),
        namespace: namespace.map(str::to_owned),
    }
}
