//! `tree` over deployments, custom resources, and owners that are not there or may not be read.

use orch_apiserver::Config;
use orch_apiserver::config::AuthorizationMode;
use proto_api::names::{Names, Profile};

use crate::server::Server;

const WIDGETS: &str = "\
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.example.com}
spec:
  group: example.com
  scope: Namespaced
  names: {plural: widgets, singular: widget, kind: Widget, listKind: WidgetList}
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
";

fn owned(
    api_version: &str,
    kind: &str,
    name: &str,
    owner: (&str, &str, &str),
    uid: &str,
) -> String {
    let (owner_version, owner_kind, owner_name) = owner;
    format!(
        "apiVersion: {api_version}\nkind: {kind}\nmetadata:\n  name: {name}\n  ownerReferences:\n  \
         - {{apiVersion: {owner_version}, kind: {owner_kind}, name: {owner_name}, uid: {uid}}}\n"
    )
}

const TEMPLATE: &str = "  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: c, image: i}]}
";

/// A deployment with its replica set, a pod and a widget, each owned by the one before.
async fn create_web(server: &Server) {
    let deployment =
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web}\nspec:\n  replicas: 2\n";
    server.create(&format!("{deployment}{TEMPLATE}")).await;
    let uid = server.uid("deployment/web").await;
    let set = owned("apps/v1", "ReplicaSet", "web-1", ("apps/v1", "Deployment", "web"), &uid);
    server.create(&format!("{set}spec:\n  replicas: 2\n{TEMPLATE}")).await;
    let uid = server.uid("replicaset/web-1").await;
    let pod = owned("v1", "Pod", "web-1-a", ("apps/v1", "ReplicaSet", "web-1"), &uid);
    server.create(&format!("{pod}spec: {{containers: [{{name: c, image: i}}]}}\n")).await;
}

/// The lines of a tree without ages.
fn lines(text: &str) -> Vec<String> {
    let cells = |line: &str| {
        line.split("   ")
            .map(str::trim_end)
            .filter(|cell| !cell.is_empty())
            .map(str::trim_start)
            .collect::<Vec<_>>()
            .join("|")
    };
    let age = regex::Regex::new(r"\|\d+s$").expect("valid");
    text.lines().map(|line| age.replace(&cells(line), "").into_owned()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn trees_have_what_the_server_has() {
    let server = Server::start().await;
    create_web(&server).await;
    server.create(WIDGETS).await;
    server.run(&["wait", "--for=condition=Established", "crd/widgets.example.com"]).await;
    let uid = server.uid("pod/web-1-a").await;
    server.create(&owned("example.com/v1", "Widget", "w", ("v1", "Pod", "web-1-a"), &uid)).await;
    server.create("apiVersion: v1\nkind: Namespace\nmetadata: {name: other}\n").await;
    let foreign = owned("v1", "ConfigMap", "foreign", ("v1", "Pod", "web-1-a"), &uid);
    server.create(&foreign.replace("metadata:\n", "metadata:\n  namespace: other\n")).await;
    let whole = [
        "NAME|READY|STATUS|AGE",
        "Deployment/web|0/2",
        "└─ReplicaSet/web-1|0/2",
        "└─Pod/web-1-a|0/1|Pending",
        "└─Widget/w",
    ];
    // From the top, from the bottom and from the middle.
    for arguments in
        [&["tree", "deployment/web"][..], &["tree", "widget", "w"], &["tree", "web-1-a"]]
    {
        let answer = server.ask(arguments).await;
        assert_eq!(answer.code, Some(0), "{}", answer.err);
        assert_eq!(lines(&answer.out), whole, "{arguments:?}: {}", answer.out);
        assert_eq!(answer.err, "", "{arguments:?}");
    }
    let gone = "00000000-0000-0000-0000-000000000000";
    server.create(&owned("v1", "ConfigMap", "lost", ("v1", "Pod", "web-1-a"), gone)).await;
    let text = server.run(&["tree", "cm/lost"]).await;
    let another = "Pod/web-1-a|does not exist: the object of this name is another one";
    assert_eq!(lines(&text)[1..], [another, "└─ConfigMap/lost"], "{text}");
    let text = server.run(&["tree", "-n", "other", "cm/foreign"]).await;
    assert_eq!(lines(&text)[1..], ["Pod/web-1-a|does not exist", "└─ConfigMap/foreign"], "{text}");
    let answer = server.ask(&["tree", "pod/none"]).await;
    assert_eq!(answer.code, Some(1), "{}", answer.out);
}

#[tokio::test(flavor = "multi_thread")]
async fn kinds_without_list_permission_are_reported_and_left_out() {
    let config = Config::for_tests(Names::new(Profile::Kubernetes));
    let server =
        Server::with(Config { authorization: vec![AuthorizationMode::Rbac], ..config }).await;
    create_web(&server).await;
    server
        .run(&["create", "role", "some", "--verb=get,list", "--resource=deployments.apps,pods"])
        .await;
    server.run(&["create", "rolebinding", "some", "--role=some", "--user=jane"]).await;
    let answer = server.ask(&["tree", "deployment/web", "--as=jane"]).await;
    assert_eq!(answer.code, Some(0), "{}", answer.err);
    assert_eq!(lines(&answer.out)[1..], ["Deployment/web|0/2"], "{}", answer.out);
    assert!(answer.err.contains("replicasets.apps are left out: "), "{}", answer.err);
    assert!(!answer.err.contains("pods are left out"), "{}", answer.err);
    let answer = server.ask(&["tree", "pod/web-1-a", "--as=jane"]).await;
    let set = lines(&answer.out)[1].clone();
    assert!(set.starts_with("ReplicaSet/web-1|") && set.contains("cannot get"), "{}", answer.out);
    assert_eq!(lines(&answer.out)[2..], ["└─Pod/web-1-a|0/1|Pending"], "{}", answer.out);
}
