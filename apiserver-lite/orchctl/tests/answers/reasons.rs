//! `why` and `timeline` of real objects, with exit codes.

use crate::server::Server;

const POD: &str = "apiVersion: v1\nkind: Pod\nmetadata: {name: p, labels: {app: a}}\nspec: {containers: [{name: c, image: i}]}\n";
const SERVICE: &str = "apiVersion: v1\nkind: Service\nmetadata: {name: s}\nspec: {selector: {app: a}, ports: [{port: 80}]}\n";
const CLAIM: &str = "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: c}\n\
    spec: {storageClassName: none, accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}\n";
const NODE: &str = "apiVersion: v1\nkind: Node\nmetadata: {name: n1}\n";

async fn assert_why(server: &Server, object: &str, code: i32, wanted: &str) {
    let answer = server.ask(&["why", object]).await;
    assert_eq!(answer.code, Some(code), "{object}: {}{}", answer.out, answer.err);
    assert!(answer.out.contains(wanted), "{object}: {wanted:?} is not in {:?}", answer.out);
}

#[tokio::test(flavor = "multi_thread")]
async fn reasons_are_found_in_real_objects() {
    let server = Server::start().await;
    server.create(POD).await;
    server.create(SERVICE).await;
    server.create(CLAIM).await;
    assert_why(&server, "pod/p", 1, "no scheduler has looked at it yet - ").await;
    let unschedulable = r#"{"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable",
        "message": "0/1 nodes are available: 1 Insufficient cpu."}]}"#;
    server.set_status("pod/p", unschedulable).await;
    assert_why(&server, "pod/p", 1, "1 of 1 nodes: Insufficient cpu - ask for less").await;
    assert_why(&server, "service/s", 1, "pod p: nodes have too little left").await;
    assert_why(&server, "pvc/c", 1, "no volume of the class none fits it, and no storage class of this name exists to make one - ").await;

    server.create(&format!("---\n{NODE}")).await;
    server.run(&["delete", "pod", "p", "--now"]).await;
    server.create(&POD.replace("spec: {", "spec: {nodeName: n1, ")).await;
    let waiting = r#"{"containerStatuses": [{"name": "c", "image": "i", "imageID": "", "ready": false, "restartCount": 0,
        "state": {"waiting": {"reason": "ImagePullBackOff", "message": "Back-off"}}}]}"#;
    server.set_status("pod/p", waiting).await;
    let uid = server.uid("pod/p").await;
    server
        .create(&format!(
            "apiVersion: v1\nkind: Event\nmetadata: {{name: e, namespace: default}}\ntype: Warning\nreason: Failed\n\
             message: 'Failed to pull image \"i\": not found'\nfirstTimestamp: 2026-01-01T00:00:00Z\nlastTimestamp: 2026-01-01T00:00:00Z\n\
             involvedObject: {{kind: Pod, name: p, namespace: default, uid: {uid}, fieldPath: 'spec.containers{{c}}'}}\n"
        ))
        .await;
    // The worst first: a node without a condition, and what an event says of the image.
    let answer = server.ask(&["why", "p"]).await;
    let (findings, start) = answer.out.split_once("\n\n").expect("a timeline");
    let lines: Vec<&str> = findings.lines().collect();
    assert_eq!((answer.code, lines.len()), (Some(1), 2), "{}{}", answer.out, answer.err);
    assert!(lines[0].starts_with("its node n1 is not ready - "), "{}", answer.out);
    assert!(
        lines[1].contains("Failed to pull image \"i\": not found - check the name and tag"),
        "{}",
        answer.out
    );
    assert!(start.starts_with("How pod p started (only whole seconds are known: "), "{start}");
    assert!(start.contains("00:00:00"), "{start}");

    let ready = r#"{"phase": "Running", "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:05Z"}],
        "containerStatuses": [{"name": "c", "image": "i", "imageID": "", "ready": true, "restartCount": 0,
        "state": {"running": {"startedAt": "2026-01-01T00:00:04Z"}}}]}"#;
    server.set_status("pod/p", ready).await;
    assert_why(&server, "pod/p", 0, "nothing is wrong - it is ready since 2026-01-01T00:00:05Z")
        .await;
    let table = server.run(&["timeline", "pod/p"]).await;
    let wanted = [
        "00:00:00",
        "Failed to pull image",
        "00:00:04",
        "4s",
        "container c: started",
        "00:00:05",
        "1s",
        "Ready",
    ];
    let mut rest = table.as_str();
    for part in wanted {
        let (_, after) =
            rest.split_once(part).unwrap_or_else(|| panic!("{part:?} is not in {table}"));
        rest = after;
    }
    let trace = server.run(&["timeline", "p", "-o", "perfetto"]).await;
    assert!(trace.starts_with("{\"displayTimeUnit\":\"ms\",\"traceEvents\":["), "{trace}");
}

#[tokio::test(flavor = "multi_thread")]
async fn questions_that_cannot_be_answered_have_a_code_of_their_own() {
    let server = Server::start().await;
    for arguments in [
        &["why"][..],
        &["why", "pod/none"],
        &["why", "node/n"],
        &["why", "nonsense/n"],
        &["why", "pod/a", "pod/b"],
        &["why", "pod/a", "--nonsense"],
    ] {
        let answer = server.ask(arguments).await;
        assert_eq!(answer.code, Some(2), "{arguments:?}: {}{}", answer.out, answer.err);
        assert_eq!(answer.out, "", "{arguments:?}");
    }
    assert_eq!(server.ask(&["timeline", "service/s"]).await.code, Some(1));
}
