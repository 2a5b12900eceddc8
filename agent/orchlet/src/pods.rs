//! Which pods this node has, one task each: brings what sources and the runtime say to the right task, makes tasks for new pods
//! and for remains that nobody wants any more.

pub mod act;
mod admit;
pub mod busy;
pub mod effect;
pub mod hooks;
pub mod last_words;
pub mod parts;
pub mod probing;
pub mod publish;
pub mod seams;
pub mod worker;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use agent_pod::want::Source;
use agent_runtime::events::Happened;
use agent_runtime::runtime::PodOnNode;
use proto_api::core::v1::{Container, Pod};
use proto_daemon::statusz::StatusBoard;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use crate::journal::Record;
use parts::Parts;
use worker::{Held, Order, Start, Worker};

/// News of one pod's runtime objects that wait for its task. More than a pod has containers; a full queue becomes one look.
const NEWS_LEN: usize = 64;

/// What a source says of its pods.
#[derive(Clone, Debug)]
pub enum Said {
    /// The pod is wanted as it is now, or marked for deletion.
    Wants(Source, Arc<Pod>),
    /// The pod of this uid is not wanted any more.
    Dropped(String),
    /// Everything that the source has has been said once.
    Synced(Source),
}

/// All pods of the node.
pub struct Pods {
    parts: Arc<Parts>,
    board: StatusBoard,
    tasks: BTreeMap<String, Task>,
    ended: JoinSet<String>,
    /// Pods found in the runtime at the start that no source has asked for yet.
    unclaimed: BTreeMap<String, PodOnNode>,
    /// Journal records that no source has asked for yet.
    records: BTreeMap<String, Record>,
    /// Sources that have not said everything yet.
    silent: Vec<Source>,
}

struct Task {
    order: watch::Sender<Order>,
    news: mpsc::Sender<Happened>,
    missed: Arc<AtomicBool>,
}

impl Pods {
    /// `found` is what the runtime has, `records` what the journal has, `sources` whom to hear before remains are removed.
    pub fn new(
        parts: Arc<Parts>,
        board: StatusBoard,
        found: Vec<PodOnNode>,
        records: BTreeMap<String, Record>,
        sources: Vec<Source>,
    ) -> Self {
        let unclaimed = found.into_iter().map(|pod| (pod.uid.clone(), pod)).collect();
        let (tasks, ended) = (BTreeMap::new(), JoinSet::new());
        Self { parts, board, tasks, ended, unclaimed, records, silent: sources }
    }

    /// Takes what sources say and what happens until both are gone.
    pub async fn run(
        mut self,
        mut said: mpsc::Receiver<Said>,
        mut happened: mpsc::Receiver<Happened>,
    ) {
        loop {
            // All arms are cancel safe: a message not taken now is taken in the next turn.
            tokio::select! {
                Some(ended) = self.ended.join_next(), if !self.ended.is_empty() => {
                    if let Ok(uid) = ended {
                        self.tasks.remove(&uid);
                    }
                }
                Some(said) = said.recv() => self.hear(said),
                Some(happened) = happened.recv() => self.pass_on(happened),
                else => return,
            }
        }
    }

    fn hear(&mut self, said: Said) {
        match said {
            Said::Wants(source, pod) => self.wants(Order { pod, source, held: Held::Yes }),
            Said::Dropped(uid) => {
                if let Some(task) = self.tasks.get(&uid) {
                    task.order.send_modify(|order| order.held = Held::No);
                }
            }
            Said::Synced(source) => {
                self.silent.retain(|s| *s != source);
                if self.silent.is_empty() {
                    self.remove_remains();
                }
            }
        }
    }

    fn wants(&mut self, order: Order) {
        let uid = order.pod.metadata.uid.clone();
        match self.tasks.get(&uid) {
            Some(task) => {
                task.order.send_if_modified(|known| {
                    let news = *known.pod != *order.pod || known.held != order.held;
                    if news {
                        *known = order;
                    }
                    news
                });
            }
            None => self.begin(order),
        }
    }

    fn begin(&mut self, order: Order) {
        let uid = order.pod.metadata.uid.clone();
        let start = Start {
            on_node: self.unclaimed.remove(&uid).unwrap_or_default(),
            memory: self.records.remove(&uid).map(|record| record.memory),
            missed: Arc::default(),
        };
        let missed = start.missed.clone();
        let meta = &order.pod.metadata;
        let page = self.board.task(format!("pod {}/{}", meta.namespace, meta.name));
        page.started("order");
        let (order, orders) = watch::channel(order);
        let (news, receive) = mpsc::channel(NEWS_LEN);
        let worker = Worker::new(self.parts.clone(), orders, receive, page, start);
        let done = uid.clone();
        self.ended.spawn(async move {
            worker.run().await;
            done
        });
        self.tasks.insert(uid, Task { order, news, missed });
    }

    /// What the runtime or the journal has of pods that no source wants is taken down like a pod that was dropped.
    fn remove_remains(&mut self) {
        let mut remains: BTreeMap<String, Pod> = BTreeMap::new();
        for (uid, record) in &self.records {
            remains.insert(uid.clone(), remains_of(uid, &record.namespace, &record.name, &[]));
        }
        for (uid, found) in &self.unclaimed {
            let pod = remains_of(uid, &found.namespace, &found.name, &container_names(found));
            remains.insert(uid.clone(), pod);
        }
        for (uid, pod) in remains {
            tracing::info!(uid, name = pod.metadata.name, "nobody wants this pod any more");
            self.begin(Order { pod: Arc::new(pod), source: Source::Api, held: Held::No });
        }
        self.parts.provision.retain(|uid| self.tasks.contains_key(uid));
    }

    fn pass_on(&mut self, happened: Happened) {
        let uid = match &happened {
            Happened::Missed => {
                self.tasks.values().for_each(|task| tell(task, Happened::Missed));
                return;
            }
            Happened::Container { pod_uid, .. } | Happened::Sandbox { pod_uid, .. } => pod_uid,
        };
        if let Some(task) = self.tasks.get(uid) {
            tell(task, happened);
        }
    }
}

/// News that a full queue does not take are lost; the task looks at everything when it gets to what the queue holds.
fn tell(task: &Task, news: Happened) {
    if let Err(mpsc::error::TrySendError::Full(_)) = task.news.try_send(news) {
        task.missed.store(true, Ordering::Relaxed);
    }
}

fn container_names(found: &PodOnNode) -> Vec<String> {
    let mut names: Vec<String> = found.containers.iter().map(|c| c.name.clone()).collect();
    names.sort();
    names.dedup();
    names
}

/// What is known of a pod whose object is gone.
fn remains_of(uid: &str, namespace: &str, name: &str, containers: &[String]) -> Pod {
    let mut pod = Pod::default();
    pod.metadata.uid = uid.to_owned();
    pod.metadata.namespace = namespace.to_owned();
    pod.metadata.name = name.to_owned();
    pod.spec.containers =
        containers.iter().map(|n| Container { name: n.clone(), ..Container::default() }).collect();
    pod
}
