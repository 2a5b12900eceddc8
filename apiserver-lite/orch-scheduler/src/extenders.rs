//! Calls of scheduler extenders.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use apiserver_scheduling::extenders::{
    Extender, ExtenderAnswerError, SentNode, build_binding_request,
};
use apiserver_scheduling::nodes::NodeLoad;
use apiserver_scheduling::pod_info::PodInfo;
use apiserver_scheduling::preemption::Candidate;
use apiserver_scheduling::select_node::FeasibleNodes;
use bytes::Bytes;
use futures_util::future::join_all;
use proto_api::core::v1::{Node, Pod};
use proto_api::{Collection, ObjectKey};
use proto_client::dynamic::Dynamic;
use proto_client::transport::ClientTlsError;
use proto_client::{Client, ClientError, ListParams, WriteParams, request};
use proto_daemon::exit::chain;
use serde_json::Value;

use crate::config::extenders::ExtenderSettings;

/// Most bytes of an answer that has names and messages, and of one that may have whole nodes.
const ANSWER_LEN_MAX: usize = 8 << 20;
const NODES_LEN_MAX: usize = 64 << 20;
/// Pods that are read at the same time.
const READS_MAX: usize = 32;
/// How long a list of whole nodes serves one pod after the other.
const NODES_AGE_MAX: Duration = Duration::from_secs(1);

/// The extenders of the configuration file.
pub struct Extenders {
    /// Of the API server, for the whole objects that extenders get.
    api: Client,
    all: Vec<ReachableExtender>,
    /// All nodes by name, and when they were listed.
    nodes: Option<(Instant, Arc<HashMap<String, Value>>)>,
}

struct ReachableExtender {
    extender: Extender,
    client: Client,
}

/// A call has failed, and so has the attempt to schedule the pod.
#[derive(Debug, thiserror::Error)]
pub enum ExtenderError {
    #[error("failed {verb} with extender at URL {url}")]
    Call {
        verb: String,
        url: String,
        #[source]
        cause: ClientError,
    },
    #[error("failed {verb} with extender at URL {url}: the answer is no JSON")]
    NoJson {
        verb: String,
        url: String,
        #[source]
        cause: serde_json::Error,
    },
    #[error(transparent)]
    Answer(#[from] ExtenderAnswerError),
    #[error("cannot read the {what} for an extender")]
    Read {
        what: &'static str,
        #[source]
        cause: ClientError,
    },
    #[error("pod {0} was deleted and created again")]
    AnotherPod(ObjectKey),
}

impl Extenders {
    /// Extenders that are called as `settings` say it.
    ///
    /// # Errors
    /// A certificate cannot be read.
    pub fn new(
        api: Client,
        settings: Vec<ExtenderSettings>,
        user_agent: &str,
    ) -> Result<Self, ClientTlsError> {
        let reachable = |settings: ExtenderSettings| {
            let client = Client::new(&settings.server, api.names(), user_agent)?;
            let len_max = match settings.extender.node_cache_capable {
                true => ANSWER_LEN_MAX,
                false => NODES_LEN_MAX,
            };
            let client = client.with_deadline(settings.timeout).with_body_len_max(len_max);
            Ok::<_, ClientTlsError>(ReachableExtender { extender: settings.extender, client })
        };
        let all = settings.into_iter().map(reachable).collect::<Result<_, _>>()?;
        Ok(Self { api, all, nodes: None })
    }

    /// Those that want this pod, and have the verb.
    fn interested(
        &self,
        pod: &PodInfo,
        verb: fn(&Extender) -> &str,
    ) -> impl Iterator<Item = &ReachableExtender> {
        let wants = move |of: &&ReachableExtender| {
            !verb(&of.extender).is_empty() && of.extender.is_interested(pod)
        };
        self.all.iter().filter(wants)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Whether the nodes of the pod depend on an extender.
    pub fn concern_nodes(&self, pod: &PodInfo) -> bool {
        self.interested(pod, |of| &of.verbs.filter).next().is_some()
            || self.interested(pod, |of| &of.verbs.prioritize).next().is_some()
    }

    /// Lets the extenders refuse feasible nodes, one after the other, and score those that are left. Returns the points of each node.
    ///
    /// # Errors
    /// An extender that is not ignorable fails to filter, or the pod cannot be read.
    pub async fn filter_and_score(
        &mut self,
        pod: &PodInfo,
        feasible: &mut FeasibleNodes,
        loads: &[NodeLoad],
    ) -> Result<BTreeMap<String, i64>, ExtenderError> {
        if feasible.names(loads).is_empty() {
            return Ok(BTreeMap::new());
        }
        let object = self.read_pod(pod).await?;
        let nodes = self.read_nodes(pod).await?;
        for of in self.interested(pod, |of| &of.verbs.filter) {
            let names = feasible.names(loads);
            if names.is_empty() {
                break;
            }
            let request = of.extender.build_nodes_request(&object, &send_nodes(&names, &nodes));
            let answer = of.call(&of.extender.verbs.filter, &request).await;
            let filtered =
                answer.and_then(|answer| Ok(of.extender.read_filtered(&answer, &names)?));
            match filtered {
                Ok(filtered) => feasible.keep(&filtered, loads),
                Err(error) if of.extender.is_ignorable => {
                    tracing::warn!(pod = %pod.key, uid = pod.uid, extender = of.extender.url, error = chain(&error), "an extender cannot filter nodes; it is ignorable, and skipped");
                }
                Err(error) => return Err(error),
            }
        }
        Ok(self.score(pod, &object, &feasible.names(loads), &nodes).await)
    }

    /// The points of all extenders by node. One that fails gives none, as in kube-scheduler.
    async fn score(
        &self,
        pod: &PodInfo,
        object: &Value,
        names: &[&str],
        nodes: &HashMap<String, Value>,
    ) -> BTreeMap<String, i64> {
        let mut points = BTreeMap::new();
        // One feasible node needs no scores.
        if names.len() <= 1 {
            return points;
        }
        let sent = send_nodes(names, nodes);
        let calls = self.interested(pod, |of| &of.verbs.prioritize).map(async |of| {
            let request = of.extender.build_nodes_request(object, &sent);
            (of, of.call(&of.extender.verbs.prioritize, &request).await)
        });
        for (of, answer) in join_all(calls).await {
            let added =
                answer.and_then(|answer| Ok(of.extender.add_points(&answer, &mut points)?));
            if let Err(error) = added {
                tracing::warn!(pod = %pod.key, uid = pod.uid, extender = of.extender.url, error = chain(&error), "an extender cannot score nodes; its points are missing");
            }
        }
        points
    }

    /// Lets the extenders choose among preemptions, one after the other.
    ///
    /// # Errors
    /// An extender that is not ignorable fails, or an object cannot be read.
    pub async fn choose_preemptions(
        &self,
        pod: &PodInfo,
        mut candidates: Vec<Candidate>,
        loads: &[NodeLoad],
    ) -> Result<Vec<Candidate>, ExtenderError> {
        if self.interested(pod, |of| &of.verbs.preempt).next().is_none() {
            return Ok(candidates);
        }
        let object = self.read_pod(pod).await?;
        for of in self.interested(pod, |of| &of.verbs.preempt) {
            if candidates.is_empty() {
                break;
            }
            let mut victims = HashMap::new();
            if !of.extender.node_cache_capable {
                victims = self.read_victims(&candidates).await;
                // Where one has ended meanwhile the node is looked at again with the next attempt.
                let is_known = |victim: &Arc<PodInfo>| victims.contains_key(&victim.uid);
                candidates.retain(|candidate| candidate.victims.iter().all(is_known));
            }
            let whole = |victim: &PodInfo| victims.get(&victim.uid);
            let request = of.extender.build_preemption_request(&object, &candidates, loads, whole);
            let answer = of.call(&of.extender.verbs.preempt, &request).await;
            let chosen =
                answer.and_then(|answer| Ok(of.extender.read_preemption(&answer, loads)?));
            match chosen {
                Ok(chosen) => candidates = chosen,
                Err(error) if of.extender.is_ignorable => {
                    tracing::warn!(pod = %pod.key, uid = pod.uid, extender = of.extender.url, error = chain(&error), "an extender cannot choose victims; it is ignorable, and skipped");
                }
                Err(error) => return Err(error),
            }
        }
        Ok(candidates)
    }

    /// Lets an extender bind the pod; none if none of them does.
    pub async fn bind(&self, pod: &PodInfo, node: &str) -> Option<Result<(), ExtenderError>> {
        let of = self.interested(pod, |of| &of.verbs.bind).next()?;
        let answer = of.call(&of.extender.verbs.bind, &build_binding_request(pod, node)).await;
        Some(answer.and_then(|answer| Ok(of.extender.check_error(&answer)?)))
    }

    /// The victims as they are stored, by uid, without those that are gone.
    async fn read_victims(&self, candidates: &[Candidate]) -> HashMap<String, Value> {
        let all = candidates.iter().flat_map(|candidate| &candidate.victims);
        let all: BTreeMap<&str, &Arc<PodInfo>> = all.map(|pod| (pod.uid.as_str(), pod)).collect();
        let victims: Vec<&Arc<PodInfo>> = all.into_values().collect();
        let mut read = HashMap::new();
        for some in victims.chunks(READS_MAX) {
            let found = join_all(some.iter().map(|victim| self.read_pod(victim))).await;
            let found = some.iter().zip(found);
            read.extend(found.filter_map(|(pod, found)| Some((pod.uid.clone(), found.ok()?))));
        }
        read
    }

    /// The whole pod, as it is stored.
    async fn read_pod(&self, pod: &PodInfo) -> Result<Value, ExtenderError> {
        let collection = Collection::for_type::<Pod>(self.api.names(), Some(&pod.key.namespace));
        let pods = Dynamic::new(self.api.clone(), collection);
        let found = pods.get(&pod.key.name).await.map_err(|cause| unreadable("pod", cause))?;
        let uid = found.pointer("/metadata/uid").and_then(Value::as_str);
        if uid != Some(&pod.uid) {
            return Err(ExtenderError::AnotherPod(pod.key.clone()));
        }
        Ok(found)
    }

    /// All nodes, if an extender gets them whole; the pods of a second share a list.
    async fn read_nodes(
        &mut self,
        pod: &PodInfo,
    ) -> Result<Arc<HashMap<String, Value>>, ExtenderError> {
        let asks = |of: &ReachableExtender| {
            let verbs = &of.extender.verbs;
            let asks = !verbs.filter.is_empty() || !verbs.prioritize.is_empty();
            asks && !of.extender.node_cache_capable && of.extender.is_interested(pod)
        };
        if !self.all.iter().any(asks) {
            return Ok(Arc::default());
        }
        if let Some((at, nodes)) = &self.nodes
            && at.elapsed() < NODES_AGE_MAX
        {
            return Ok(nodes.clone());
        }
        let nodes =
            Dynamic::new(self.api.clone(), Collection::for_type::<Node>(self.api.names(), None));
        let list = nodes.list(&ListParams::default()).await;
        let mut list = list.map_err(|cause| unreadable("nodes", cause))?;
        let items = list.get_mut("items").and_then(Value::as_array_mut).map(std::mem::take);
        let named = |node: Value| {
            let name = node.pointer("/metadata/name").and_then(Value::as_str)?.to_owned();
            Some((name, node))
        };
        let nodes: Arc<HashMap<_, _>> =
            Arc::new(items.into_iter().flatten().filter_map(named).collect());
        self.nodes = Some((Instant::now(), nodes.clone()));
        Ok(nodes)
    }
}

impl ReachableExtender {
    async fn call(&self, verb: &str, body: &Value) -> Result<Value, ExtenderError> {
        let body = Bytes::from(body.to_string());
        let path = format!("/{verb}");
        let request = request::create(path, &WriteParams::default(), request::JSON, body);
        let (verb, url) = (verb.to_owned(), self.extender.url.clone());
        let answer = match self.client.call(request).await {
            Ok(answer) => answer,
            Err(cause) => return Err(ExtenderError::Call { verb, url, cause }),
        };
        serde_json::from_slice(&answer.body).map_err(|cause| ExtenderError::NoJson {
            verb,
            url,
            cause,
        })
    }
}

fn send_nodes<'a>(names: &[&'a str], nodes: &'a HashMap<String, Value>) -> Vec<SentNode<'a>> {
    names.iter().map(|name| SentNode { name, object: nodes.get(*name) }).collect()
}

fn unreadable(what: &'static str, cause: ClientError) -> ExtenderError {
    ExtenderError::Read { what, cause }
}

#[cfg(test)]
mod tests;
