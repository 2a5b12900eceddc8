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
    server.run(&["set", "image", "deploy/web", "c=i:3"]).await;
    let image = "jsonpath={.spec.template.spec.containers[0].image} {.spec.replicas}";
    assert_eq!(server.run(&["get", "deploy/web", "-o", image]).await, "i:3 2");
}
