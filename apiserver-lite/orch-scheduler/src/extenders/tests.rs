use std::sync::Mutex;

use apiserver_scheduling::examples::{names, node, pod, profile};
use apiserver_scheduling::nominations::NominatedLoads;
use apiserver_scheduling::pod_affinity::NamespaceLabels;
use apiserver_scheduling::select_node::{
    NodeView, SelectionRules, StorageView, find_feasible, select_feasible,
};
use apiserver_scheduling::selected_counts::SelectedCounts;
use apiserver_scheduling::volumes::{BindingAnnotations, StorageSnapshot};
use proto_client::ClientConfig;
use proto_client::testing::{StubRequest, StubServer, json_response};
use serde_json::json;

use super::*;

const NODES: [&str; 3] = ["a", "b", "c"];

fn loads() -> Vec<NodeLoad> {
    NODES.iter().map(|name| NodeLoad::empty(Arc::new(node(name)))).collect()
}

/// An API server and an extender in one: the extender's verbs are answered by `answer`. Their requests are kept.
async fn serve(
    answer: fn(&str, &Value) -> (u16, Value),
) -> (StubServer, Arc<Mutex<Vec<(String, Value)>>>) {
    let requests = Arc::new(Mutex::new(Vec::new()));
    let kept = requests.clone();
    let uid = pod("p", 1, 1).uid;
    let server = StubServer::start(move |request: &StubRequest| {
        let path = request.path.as_str();
        if let Some(name) = path.strip_prefix("/api/v1/namespaces/ns/pods/") {
            let metadata = json!({ "name": name, "namespace": "ns", "uid": uid });
            return Some(json_response(200, &json!({ "metadata": metadata })));
        }
        if path == "/api/v1/nodes" {
            let items = NODES.map(|name| json!({ "metadata": { "name": name } }));
            return Some(json_response(200, &json!({ "items": items })));
        }
        let body: Value = serde_json::from_slice(&request.body).unwrap_or_default();
        let (code, response) = answer(path, &body);
        kept.lock().unwrap().push((path.to_owned(), body));
        Some(json_response(code, &response))
    });
    (server.await, requests)
}

fn extenders(server: &StubServer, all: Vec<Extender>) -> Extenders {
    let api = server.client();
    let settings = |extender: Extender| {
        let url = format!("http://{}{}", server.address, extender.url).parse().unwrap();
        let timeout = Duration::from_secs(20);
        ExtenderSettings { extender, server: ClientConfig::direct(url), timeout }
    };
    let settings = all.into_iter().map(settings).collect();
    Extenders::new(api, settings, "test").unwrap()
}

fn extender(node_cache_capable: bool) -> Extender {
    let mut extender = Extender {
        url: "/scheduler/".into(),
        weight: 1,
        node_cache_capable,
        ..Extender::default()
    };
    extender.verbs.filter = "filter".into();
    extender.verbs.prioritize = "prioritize".into();
    extender
}

/// The node of the pod `p`, among three that are alike.
async fn place(extenders: &mut Extenders) -> Result<String, ExtenderError> {
    let (pod, mut loads, mut nominated) = (pod("p", 1, 1), loads(), NominatedLoads::default());
    let mut selected = SelectedCounts::default();
    let annotations = BindingAnnotations::new(names());
    let storage = StorageSnapshot::default();
    let storage_view = StorageView { storage: &storage, annotations: &annotations };
    let (namespaces, profile) = (NamespaceLabels::new(), profile());
    let rules = SelectionRules { profile: &profile, namespaces: &namespaces };
    let mut nodes =
        NodeView { loads: &mut loads, nominated: &mut nominated, selected: &mut selected };
    assert!(extenders.concern_nodes(&pod));
    let mut feasible = find_feasible(&pod, &mut nodes, rules, storage_view).unwrap();
    let points = extenders.filter_and_score(&pod, &mut feasible, nodes.loads).await?;
    Ok(match select_feasible(&pod, nodes, feasible, rules, &points) {
        Ok(choice) => loads[choice.nth].node.name.clone(),
        Err(error) => format!("{error:?}"),
    })
}

#[tokio::test]
async fn an_extender_filters_and_scores() {
    let (server, requests) = serve(|path, body| match path {
        "/scheduler/filter" => {
            (200, json!({ "NodeNames": ["b", "c"], "FailedNodes": { "a": "no" } }))
        }
        _ => {
            assert_eq!(body["NodeNames"], json!(["b", "c"]));
            (200, json!([{ "Host": "b", "Score": 1 }, { "Host": "c", "Score": 9 }]))
        }
    })
    .await;
    let mut extenders = extenders(&server, vec![extender(true)]);
    assert_eq!(place(&mut extenders).await.unwrap(), "c");
    let requests = requests.lock().unwrap();
    let [(filter, sent), (prioritize, _)] = &requests[..] else { panic!("{requests:?}") };
    assert_eq!((&**filter, &**prioritize), ("/scheduler/filter", "/scheduler/prioritize"));
    assert_eq!(sent["NodeNames"], json!(NODES));
    assert_eq!(sent.pointer("/Pod/metadata/name"), Some(&json!("p")));
}

#[tokio::test]
async fn whole_nodes_are_sent_to_an_extender_that_knows_none() {
    let (server, requests) = serve(|path, body| match path {
        "/scheduler/filter" => {
            (200, json!({ "nodes": { "items": [body.pointer("/Nodes/items/1")] } }))
        }
        path => panic!("one node needs no scores: {path}"),
    })
    .await;
    let mut extenders = extenders(&server, vec![extender(false)]);
    assert_eq!(place(&mut extenders).await.unwrap(), "b");
    let sent = requests.lock().unwrap()[0].1.clone();
    let all = NODES.map(|name| json!({ "metadata": { "name": name } }));
    assert_eq!(sent.pointer("/Nodes/items"), Some(&json!(all)));
}

#[tokio::test]
async fn a_failing_extender_fails_the_pod_unless_it_is_ignorable() {
    let (server, _) = serve(|_, _| (500, json!({}))).await;
    let mut required = extenders(&server, vec![extender(true)]);
    let error = place(&mut required).await.unwrap_err().to_string();
    assert_eq!(error, "failed filter with extender at URL /scheduler/");
    let ignorable = Extender { is_ignorable: true, ..extender(true) };
    let mut ignorable = extenders(&server, vec![ignorable]);
    assert_eq!(place(&mut ignorable).await.unwrap(), "a", "without points either");
}

#[tokio::test]
async fn a_pod_whose_nodes_are_refused_gets_the_reasons() {
    let (server, _) = serve(|_, _| {
        (200, json!({ "NodeNames": [], "FailedNodes": { "a": "busy", "b": "busy", "c": "old" } }))
    })
    .await;
    let message = place(&mut extenders(&server, vec![extender(true)])).await.unwrap();
    assert!(
        message.contains("Extender(\"busy\")") && message.contains("Extender(\"old\")"),
        "{message}"
    );
}

#[tokio::test]
async fn an_extender_binds_and_chooses_victims() {
    let (server, requests) = serve(|path, _| match path {
        "/scheduler/bind" => (200, json!({ "Error": "not now" })),
        _ => (200, json!({ "NodeNameToMetaVictims": {} })),
    })
    .await;
    let mut binder = extender(true);
    binder.verbs.bind = "bind".into();
    binder.verbs.preempt = "preempt".into();
    let (pod, loads) = (pod("p", 1, 1), loads());
    let extenders = extenders(&server, vec![extender(true), binder]);
    let error = extenders.bind(&pod, "a").await.unwrap().unwrap_err();
    assert_eq!(error.to_string(), "the extender reports: not now");
    let candidate = Candidate { nth: 0, victims: vec![Arc::new(pod.clone())], violations: 0 };
    let left = extenders.choose_preemptions(&pod, vec![candidate], &loads).await.unwrap();
    assert_eq!(left, []);
    let requests = requests.lock().unwrap();
    let expected = json!({ "PodName": "p", "PodNamespace": "ns", "PodUID": pod.uid, "Node": "a" });
    assert_eq!(requests[0].1, expected);
    let victims = requests[1].1.pointer("/NodeNameToMetaVictims/a/Pods");
    assert_eq!(victims, Some(&json!([{ "UID": pod.uid }])));
}
