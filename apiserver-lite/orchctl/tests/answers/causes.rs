//! `--record`, deprecated and still in many scripts: the history of rollouts shows the commands.

use crate::server::Server;

#[tokio::test(flavor = "multi_thread")]
async fn recorded_commands_are_the_causes_of_changes() {
    let server = Server::start().await;
    let file = server.path().join("web.yaml");
    let manifest = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web}\n\
        spec: {selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: i}]}}}\n";
    std::fs::write(&file, manifest).expect("a file");
    let file = file.display().to_string();
    for (arguments, end) in [
        (vec!["apply", "-f", &file, "--record"], "web.yaml --record=true"),
        (vec!["set", "image", "deploy/web", "c=i:2", "--record"], "c=i:2 --record=true"),
        (vec!["scale", "deploy/web", "--replicas=2", "--record=true"], "=2 --record=true"),
        (vec!["create", "deploy", "other", "--image=i", "--record"], "=i --record=true"),
    ] {
        let answer = server.ask(&arguments).await;
        assert_eq!(answer.code, Some(0), "{arguments:?}: {}", answer.err);
        let warnings = answer.err.matches("Flag --record has been deprecated").count();
        assert_eq!(warnings, 1, "{}", answer.err);
        let object = if arguments[0] == "create" { "deploy/other" } else { "deploy/web" };
        let path = "jsonpath={.metadata.annotations.kubernetes\\.io/change-cause}";
        let cause = server.run(&["get", object, "-o", path]).await;
        assert!(cause.starts_with("orchctl --kubeconfig ") && cause.ends_with(end), "{cause}");
    }
    // What others have annotated is no difference.
    let plain = manifest.replace("name: web", "name: plain");
    std::fs::write(&file, plain).expect("a file");
    server.run(&["apply", "-f", &file]).await;
    server.run(&["annotate", "deploy/plain", "who=me"]).await;
    let answer = server.ask(&["diff", "-f", &file]).await;
    assert_eq!((answer.code, answer.out.as_str()), (Some(0), ""), "{}", answer.err);
    server.run(&["set", "image", "deploy/web", "c=i:3"]).await;
    let image = "jsonpath={.spec.template.spec.containers[0].image} {.spec.replicas}";
    assert_eq!(server.run(&["get", "deploy/web", "-o", image]).await, "i:3 2");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cause_that_is_refused_is_a_warning_and_loses_no_error() {
    let server = Server::start().await;
    // So long that a cause does not fit.
    let long = "x".repeat(262_000);
    let map = |name: &str, metadata: &str| {
        format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}, {metadata}}}\n")
    };
    let labels = "labels: {a: b}";
    let big = map("big", &format!("{labels}, annotations: {{a: {long}}}"));
    let maps = [map("refused", "labels: {a: c}"), big, map("small", labels)];
    server.create(&maps.join("---\n")).await;
    let patch = r#"[{"op": "test", "path": "/metadata/labels/a", "value": "b"}, {"op": "add", "path": "/data", "value": {"k": "v"}}]"#;
    let arguments =
        ["patch", "cm", "refused", "big", "small", "--type=json", "-p", patch, "--record"];
    let answer = server.ask(&arguments).await;
    assert_eq!(answer.code, Some(1), "{}", answer.err);
    assert_eq!(answer.out, "configmap/big patched\nconfigmap/small patched\n");
    assert!(answer.err.contains("refused") && answer.err.contains("Too long"), "{}", answer.err);
    let alone = ["patch", "cm", "big", "--type=json", "-p", patch, "--record"];
    let answer = server.ask(&alone).await;
    assert_eq!(answer.code, Some(0), "{}", answer.err);
    assert!(answer.err.contains("its cause of change was not recorded"), "{}", answer.err);
    let data = "jsonpath={.items[*].data.k}";
    assert_eq!(server.run(&["get", "cm", "big", "small", "-o", data]).await, "v v");
}
