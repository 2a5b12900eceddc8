//! Scheduler extenders: HTTP services that filter and score nodes, choose victims and bind pods besides the scheduler. What is sent to them, and what their
//! answers change. Messages are kube-scheduler's `extender/v1`; as in Go, fields of answers are read in any case.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use crate::nodes::NodeLoad;
use crate::pod_info::PodInfo;
use crate::preemption::Candidate;
use crate::profile::MAX_POINTS;
use crate::refusal::Refusal;
use crate::select_node::FilteredNodes;

/// Points of the best node of an extender (`MaxExtenderPriority`).
const EXTENDER_POINTS_MAX: i64 = 10;
/// Longest message of an extender that is passed on, in bytes.
const MESSAGE_LEN_MAX: usize = 512;

/// An extender of the configuration file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Extender {
    /// Where its verbs are, and its name in messages.
    pub url: String,
    /// The verbs; empty if it does not do that.
    pub verbs: ExtenderVerbs,
    /// What one of its points is worth.
    pub weight: i64,
    /// It knows the nodes: only names and uids are sent.
    pub node_cache_capable: bool,
    /// Only pods that request one of these are sent to it; all if there are none.
    pub managed_resources: BTreeSet<String>,
    /// Scheduling goes on without it where it fails.
    pub is_ignorable: bool,
}

/// The last parts of the URLs of an extender.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExtenderVerbs {
    pub filter: String,
    pub prioritize: String,
    pub preempt: String,
    pub bind: String,
}

/// A node that is sent to an extender: by name, and whole to one that has no cache of nodes.
#[derive(Clone, Copy, Debug)]
pub struct SentNode<'a> {
    pub name: &'a str,
    pub object: Option<&'a Value>,
}

/// Why the answer of an extender is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExtenderAnswerError {
    /// The extender says so.
    #[error("the extender reports: {0}")]
    Reported(String),
    #[error(
        "extender {url:?} claims a filtered node {node:?} which is not found in the input node list"
    )]
    UnknownNode { url: String, node: String },
    #[error("extender {url:?}: expected {expected}")]
    Malformed { url: String, expected: &'static str },
    #[error("extender {url:?} claims to preempt on node {node:?}: {why}")]
    Preemption { url: String, node: String, why: &'static str },
}

impl Extender {
    /// Whether pods like this one are sent to it.
    pub fn is_interested(&self, pod: &PodInfo) -> bool {
        self.managed_resources.is_empty()
            || pod.requests.keys().any(|resource| self.managed_resources.contains(resource))
    }

    /// The request to filter or score nodes.
    pub fn build_nodes_request(&self, pod: &Value, nodes: &[SentNode<'_>]) -> Value {
        if self.node_cache_capable {
            let names: Vec<&str> = nodes.iter().map(|node| node.name).collect();
            return json!({ "Pod": pod, "Nodes": null, "NodeNames": names });
        }
        let items: Vec<&Value> = nodes.iter().filter_map(|node| node.object).collect();
        json!({ "Pod": pod, "Nodes": { "metadata": {}, "items": items }, "NodeNames": null })
    }

    /// The request to choose among preemptions. `object` gives a victim as a whole object, for an extender that knows no nodes.
    pub fn build_preemption_request<'a>(
        &self,
        pod: &Value,
        candidates: &[Candidate],
        loads: &[NodeLoad],
        object: impl Fn(&PodInfo) -> Option<&'a Value>,
    ) -> Value {
        let mut by_node = Map::new();
        for candidate in candidates {
            let Some(load) = loads.get(candidate.nth) else { continue };
            let victim = |victim: &PodInfo| match self.node_cache_capable {
                true => json!({ "UID": victim.uid }),
                false => object(victim).cloned().unwrap_or_default(),
            };
            let victims: Vec<Value> = candidate.victims.iter().map(|pod| victim(pod)).collect();
            let victims = json!({ "Pods": victims, "NumPDBViolations": candidate.violations });
            by_node.insert(load.node.name.clone(), victims);
        }
        let (whole, named) = match self.node_cache_capable {
            true => (Value::Null, Value::Object(by_node)),
            false => (Value::Object(by_node), Value::Null),
        };
        json!({ "Pod": pod, "NodeNameToVictims": whole, "NodeNameToMetaVictims": named })
    }

    /// Reads the answer to a request to filter the nodes `sent`.
    ///
    /// # Errors
    /// The extender reports an error, or names a node that was not sent.
    pub fn read_filtered(
        &self,
        answer: &Value,
        sent: &[&str],
    ) -> Result<FilteredNodes, ExtenderAnswerError> {
        self.check_error(answer)?;
        let listed: Vec<Option<&str>> = match field(answer, "NodeNames") {
            Some(names) if self.node_cache_capable => {
                let names = names.as_array().ok_or_else(|| self.malformed("a list of names"))?;
                names.iter().map(Value::as_str).collect()
            }
            _ => match field(answer, "Nodes").map(|list| field(list, "items")) {
                Some(Some(Value::Array(nodes))) => nodes.iter().map(node_name).collect(),
                None | Some(None) => Vec::new(),
                Some(Some(_)) => return Err(self.malformed("a list of nodes")),
            },
        };
        let kept: Option<BTreeSet<&str>> = listed.into_iter().collect();
        let kept = kept.ok_or_else(|| self.malformed("names of nodes"))?;
        let sent: BTreeSet<&str> = sent.iter().copied().collect();
        if let Some(unknown) = kept.difference(&sent).next() {
            return Err(ExtenderAnswerError::UnknownNode {
                url: self.url.clone(),
                node: shorten(unknown),
            });
        }
        let mut refused = BTreeMap::new();
        for (list, refusal) in [
            ("FailedNodes", Refusal::Extender as fn(String) -> Refusal),
            ("FailedAndUnresolvableNodes", Refusal::ExtenderUnresolvable),
        ] {
            for (node, why) in field(answer, list).and_then(Value::as_object).into_iter().flatten()
            {
                refused.insert(node.clone(), refusal(shorten(why.as_str().unwrap_or_default())));
            }
        }
        Ok(FilteredNodes { kept: kept.into_iter().map(str::to_owned).collect(), refused })
    }

    /// Adds the points of an answer to those of all extenders, by node, on the scale of the scheduler's own.
    ///
    /// # Errors
    /// The answer is no list.
    pub fn add_points(
        &self,
        answer: &Value,
        points: &mut BTreeMap<String, i64>,
    ) -> Result<(), ExtenderAnswerError> {
        let Some(list) = answer.as_array() else {
            return Err(self.malformed("a list of scores"));
        };
        let scale = self.weight.saturating_mul(MAX_POINTS / EXTENDER_POINTS_MAX);
        for entry in list {
            let host = field(entry, "Host").and_then(Value::as_str);
            let score = field(entry, "Score").and_then(Value::as_i64);
            let (Some(host), Some(score)) = (host, score) else {
                return Err(self.malformed("a host and a score"));
            };
            let sum = points.entry(host.to_owned()).or_default();
            *sum = sum.saturating_add(score.saturating_mul(scale));
        }
        Ok(())
    }

    /// The candidates that an extender left, with the victims that it chose.
    ///
    /// # Errors
    /// It names a node or pod that is not there, or no victim for a node and is not ignorable.
    pub fn read_preemption(
        &self,
        answer: &Value,
        loads: &[NodeLoad],
    ) -> Result<Vec<Candidate>, ExtenderAnswerError> {
        let chosen = field(answer, "NodeNameToMetaVictims").and_then(Value::as_object);
        let mut candidates = Vec::new();
        for (node, victims) in chosen.into_iter().flatten() {
            let unknown = |why: &'static str| ExtenderAnswerError::Preemption {
                url: self.url.clone(),
                node: shorten(node),
                why,
            };
            let nth = loads.iter().position(|load| load.node.name == *node);
            let Some((nth, load)) = nth.and_then(|nth| Some((nth, loads.get(nth)?))) else {
                return Err(unknown("the node is not found"));
            };
            let uids = field(victims, "Pods").into_iter().flat_map(array);
            let uids = uids.filter_map(|pod| field(pod, "UID").and_then(Value::as_str));
            let mut ended = Vec::new();
            for uid in uids {
                match load.pods.iter().find(|pod| pod.uid == uid) {
                    Some(pod) => ended.push(pod.clone()),
                    None => return Err(unknown("the pod is not found on that node")),
                }
            }
            if ended.is_empty() {
                match self.is_ignorable {
                    true => continue,
                    false => return Err(unknown("expected at least one victim pod")),
                }
            }
            let violations = field(victims, "NumPDBViolations").and_then(Value::as_u64);
            let violations = violations.and_then(|count| usize::try_from(count).ok()).unwrap_or(0);
            candidates.push(Candidate { nth, victims: ended, violations });
        }
        Ok(candidates)
    }
}

impl Extender {
    /// Reads the `Error` of an answer.
    ///
    /// # Errors
    /// It is set, or the answer is no object.
    pub fn check_error(&self, answer: &Value) -> Result<(), ExtenderAnswerError> {
        if !answer.is_object() {
            return Err(self.malformed("an object"));
        }
        match field(answer, "Error").and_then(Value::as_str).unwrap_or_default() {
            "" => Ok(()),
            error => Err(ExtenderAnswerError::Reported(shorten(error))),
        }
    }

    fn malformed(&self, expected: &'static str) -> ExtenderAnswerError {
        ExtenderAnswerError::Malformed { url: self.url.clone(), expected }
    }
}

/// The request to bind a pod.
pub fn build_binding_request(pod: &PodInfo, node: &str) -> Value {
    json!({
        "PodName": pod.key.name, "PodNamespace": pod.key.namespace, "PodUID": pod.uid, "Node": node,
    })
}

/// A field of an object that is not null.
fn field<'a>(value: &'a Value, name: &str) -> Option<&'a Value> {
    let object = value.as_object()?;
    let named = || object.iter().find(|(key, _)| key.eq_ignore_ascii_case(name));
    object.get(name).or_else(|| named().map(|(_, value)| value)).filter(|value| !value.is_null())
}

fn array(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn node_name(node: &Value) -> Option<&str> {
    node.pointer("/metadata/name").and_then(Value::as_str)
}

fn shorten(text: &str) -> String {
    let end = text.floor_char_boundary(MESSAGE_LEN_MAX);
    text.get(..end).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::examples::{node, pod};

    fn extender(node_cache_capable: bool) -> Extender {
        Extender { url: "http://e".into(), weight: 2, node_cache_capable, ..Extender::default() }
    }

    #[test]
    fn pods_that_request_a_managed_resource_are_sent() {
        let mut managed = extender(true);
        let mut wanting = pod("p", 1, 1);
        assert!(managed.is_interested(&wanting), "all without a list");
        managed.managed_resources.insert("example.org/fpga".into());
        assert!(!managed.is_interested(&wanting));
        wanting.requests.insert("example.org/fpga".into(), 1);
        assert!(managed.is_interested(&wanting));
    }

    #[test]
    fn nodes_are_sent_by_name_or_whole() {
        let (pod, a) =
            (json!({ "metadata": { "name": "p" } }), json!({ "metadata": {"name": "a"} }));
        let sent = [SentNode { name: "a", object: Some(&a) }];
        assert_eq!(
            extender(true).build_nodes_request(&pod, &sent),
            json!({ "Pod": pod, "Nodes": null, "NodeNames": ["a"] })
        );
        let whole = extender(false).build_nodes_request(&pod, &sent);
        assert_eq!(whole.pointer("/Nodes/items"), Some(&json!([a])));
        assert_eq!(whole["NodeNames"], Value::Null);
    }

    #[test]
    fn answers_to_filters_keep_and_refuse_nodes_that_were_sent() {
        let sent = ["a", "b", "c"];
        // The case of the fields is the extender's, as it is for Go.
        let answer = json!({ "nodenames": ["a"], "failedNodes": { "b": "full" },
            "FailedAndUnresolvableNodes": { "c": "no such device" } });
        let filtered = extender(true).read_filtered(&answer, &sent).unwrap();
        assert_eq!(filtered.kept, ["a".to_owned()].into());
        let refused = [
            ("b".to_owned(), Refusal::Extender("full".into())),
            ("c".to_owned(), Refusal::ExtenderUnresolvable("no such device".into())),
        ];
        assert_eq!(filtered.refused, refused.into());
        let whole = json!({ "Nodes": { "items": [{ "metadata": { "name": "b" } }] } });
        let filtered = extender(false).read_filtered(&whole, &sent).unwrap();
        assert_eq!((filtered.kept, filtered.refused.len()), (["b".to_owned()].into(), 0));
        let nothing = extender(true).read_filtered(&json!({}), &sent).unwrap();
        assert!(nothing.kept.is_empty());
        for malformed in [
            json!([]),
            json!(null),
            json!({ "NodeNames": "a" }),
            json!({ "NodeNames": [1] }),
            json!({ "Nodes": { "items": 1 } }),
        ] {
            let error = extender(true).read_filtered(&malformed, &sent).unwrap_err();
            assert!(matches!(error, ExtenderAnswerError::Malformed { .. }), "{malformed}: {error}");
        }
        let error = extender(true).read_filtered(&json!({ "Error": "out of order" }), &sent);
        assert_eq!(error, Err(ExtenderAnswerError::Reported("out of order".into())));
        let unknown = json!({ "NodeNames": ["d"] });
        let error = extender(true).read_filtered(&unknown, &sent).unwrap_err();
        assert_eq!(
            error,
            ExtenderAnswerError::UnknownNode { url: "http://e".into(), node: "d".into() }
        );
        let long = json!({ "Error": "é".repeat(1000) });
        let ExtenderAnswerError::Reported(short) = extender(true).check_error(&long).unwrap_err()
        else {
            panic!()
        };
        assert_eq!(short.len(), MESSAGE_LEN_MAX);
    }

    #[test]
    fn points_are_weighed_and_added() {
        let mut points = BTreeMap::from([("a".to_owned(), 5)]);
        let answer = json!([{ "Host": "a", "Score": 10 }, { "host": "b", "score": 1 }]);
        extender(true).add_points(&answer, &mut points).unwrap();
        assert_eq!(points, BTreeMap::from([("a".to_owned(), 205), ("b".to_owned(), 20)]));
        let most = json!([{ "Host": "a", "Score": i64::MAX }]);
        extender(true).add_points(&most, &mut points).unwrap();
        assert_eq!(points["a"], i64::MAX);
        for malformed in
            [json!({}), json!([{ "Host": "a" }]), json!([{ "Host": "a", "Score": "1" }])]
        {
            assert!(extender(true).add_points(&malformed, &mut points).is_err(), "{malformed}");
        }
    }

    #[test]
    fn preemptions_are_chosen_among_pods_of_the_node() {
        let mut load = NodeLoad::empty(Arc::new(node("a")));
        let victims = [pod("x", 1, 1), pod("y", 1, 1)].map(Arc::new);
        victims.iter().for_each(|victim| load.add(victim.clone()));
        let loads = [load];
        let all = [Candidate { nth: 0, victims: victims.to_vec(), violations: 1 }];
        let request = extender(true).build_preemption_request(&json!({}), &all, &loads, |_| None);
        let uids = json!([{ "UID": victims[0].uid }, { "UID": victims[1].uid }]);
        assert_eq!(request.pointer("/NodeNameToMetaVictims/a/Pods"), Some(&uids));
        assert_eq!(request.pointer("/NodeNameToMetaVictims/a/NumPDBViolations"), Some(&json!(1)));
        let whole = json!({ "metadata": { "name": "x" } });
        let request =
            extender(false).build_preemption_request(&json!({}), &all, &loads, |_| Some(&whole));
        assert_eq!(request.pointer("/NodeNameToVictims/a/Pods/1"), Some(&whole));

        let answer = |node: &str, uid: &str| json!({ "NodeNameToMetaVictims": { node: { "Pods": [{ "UID": uid }] } } });
        let read = |answer: &Value| extender(true).read_preemption(answer, &loads);
        let one = read(&answer("a", &victims[1].uid)).unwrap();
        let expected = Candidate { nth: 0, victims: vec![victims[1].clone()], violations: 0 };
        assert_eq!(one, [expected]);
        assert_eq!(read(&json!({})), Ok(Vec::new()));
        for wrong in [
            answer("b", &victims[1].uid),
            answer("a", "another"),
            json!({ "NodeNameToMetaVictims": { "a": {} } }),
        ] {
            assert!(read(&wrong).is_err(), "{wrong}");
        }
        let ignorable = Extender { is_ignorable: true, ..extender(true) };
        let none = json!({ "NodeNameToMetaVictims": { "a": {} } });
        assert_eq!(ignorable.read_preemption(&none, &loads), Ok(Vec::new()));
    }
}
