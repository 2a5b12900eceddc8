//! `debug` of nodes and by copies: the pod that it makes, and what it says.

use serde_json::{Value, json};

use crate::server::Server;

const NODE: &str = "apiVersion: v1\nkind: Node\nmetadata: {name: n1}\n";

#[tokio::test(flavor = "multi_thread")]
async fn a_node_is_debugged_by_a_pod_that_sees_all_of_it() {
    let server = Server::start().await;
    server.create(NODE).await;
    let arguments = ["debug", "nodes/n1", "-t", "--image=i", "--env=A=b", "--target=x"];
    let said = server.run(&[&arguments[..], &["--", "sh", "-l"]].concat()).await;
    let found = server.run(&["get", "pods", "-o", "json"]).await;
    let pods: Value = serde_json::from_str(&found).expect("JSON");
    assert_eq!(pods["items"].as_array().map(Vec::len), Some(1), "{pods}");
    let pod = &pods["items"][0];
    let name = pod["metadata"]["name"].as_str().expect("a name");
    let suffix = name.strip_prefix("node-debugger-n1-").expect("the name of the node");
    assert_eq!(suffix.len(), 5, "{name}");
    let expected = format!("Creating debugging pod {name} with container debugger on node n1.\n");
    assert_eq!(said, expected);

    let spec = &pod["spec"];
    for (field, value) in [
        ("nodeName", json!("n1")),
        ("hostIPC", json!(true)),
        ("hostNetwork", json!(true)),
        ("hostPID", json!(true)),
        ("restartPolicy", json!("Never")),
    ] {
        assert_eq!(spec[field], value, "{field}");
    }
    let container = &spec["containers"][0];
    assert_eq!(container["command"], json!(["sh", "-l"]));
    assert_eq!((&container["tty"], &container["image"]), (&json!(true), &json!("i")));
    assert_eq!(container["env"], json!([{"name": "A", "value": "b"}]));
    let mounts = container["volumeMounts"].as_array().expect("mounts");
    let host = mounts.iter().find(|mount| mount["mountPath"] == "/host").expect("a mount");
    let volumes = spec["volumes"].as_array().expect("volumes");
    let root = volumes.iter().find(|volume| volume["name"] == host["name"]).expect("its volume");
    assert_eq!(root["hostPath"]["path"], "/");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_of_a_node_s_pod_can_be_named_and_a_node_has_to_be_there() {
    let server = Server::start().await;
    server.create(NODE).await;
    let quiet = ["debug", "node/n1", "-q", "-c", "shell", "--image=i", "--arguments-only"];
    let said = server.run(&[&quiet[..], &["--", "a"]].concat()).await;
    assert_eq!(said, "");
    let fields =
        "jsonpath={.items[*].spec.containers[*].name} {.items[*].spec.containers[*].args[0]}";
    assert_eq!(server.run(&["get", "pods", "-o", fields]).await, "shell a");
    let absent = server.ask(&["debug", "node/n2", "--image=i"]).await;
    assert_eq!(absent.code, Some(1));
    assert!(absent.err.contains("nodes \"n2\" not found"), "{}", absent.err);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_is_debugged_by_a_changed_copy() {
    let server = Server::start().await;
    server
        .create(
            "apiVersion: v1\nkind: Pod\nmetadata: {name: p, labels: {app: web}}\nspec: {nodeName: n1, containers: [{name: app, image: i, command: [serve]}]}\n",
        )
        .await;
    let said = server.ask(&["debug", "p", "--copy-to=c", "--image=d", "--set-image=app=i:2"]).await;
    assert_eq!((said.code, said.out.as_str()), (Some(0), ""), "{}", said.err);
    assert_eq!(said.err, "Defaulting debug container name to debugger-1.\n");
    let shown = "jsonpath={.metadata.labels} {.spec.nodeName} {.spec.shareProcessNamespace} {.spec.containers[*].name} {.spec.containers[*].image}";
    assert_eq!(server.run(&["get", "pod", "c", "-o", shown]).await, "   app debugger-1 i:2 d");
    for refused in [&["-c", "new", "--", "sh"][..], &["--image=d", "--set-image=app"]] {
        let said =
            server.ask(&[&["debug", "p", "--copy-to=e", "--replace"][..], refused].concat()).await;
        assert_eq!(said.code, Some(1), "{}", said.err);
    }
    let said = server.ask(&["debug", "p", "--copy-to=c", "--replace", "--image=d"]).await;
    assert!(said.err.contains("already exists"), "{}", said.err);
    assert_eq!(
        server.run(&["get", "pod", "p", "-o", "name"]).await,
        "pod/p\n",
        "it is still there"
    );
    let replaced = [
        "debug",
        "pod/p",
        "--copy-to=d",
        "--replace",
        "--same-node",
        "--share-processes=false",
        "-c",
        "app",
        "--",
        "sh",
    ];
    let said = server.ask(&replaced).await;
    assert_eq!(said.code, Some(0), "{}", said.err);
    let shown =
        "jsonpath={.spec.nodeName} {.spec.shareProcessNamespace} {.spec.containers[*].command}";
    assert_eq!(server.run(&["get", "pod", "d", "-o", shown]).await, "n1 false [\"sh\"]");
    assert_eq!(server.ask(&["get", "pod", "p"]).await.code, Some(1), "it is replaced");
    for (flags, expected) in [
        (&["--copy-to=e"][..], "you must specify --image, --set-image or command arguments."),
        (
            &["--copy-to=e", "--", "sh"],
            "you must specify an existing container or a new image when specifying args.",
        ),
        (
            &["--copy-to=e", "--image=d", "--target=app"],
            "--target is incompatible with --copy-to. Use --share-processes instead.",
        ),
        (&["-c", "x"], "you must specify --image when not using --copy-to."),
        (&["--image=X Y"], "Invalid image name \"X Y\": invalid reference format"),
    ] {
        let said = server.ask(&[&["debug", "c"][..], flags].concat()).await;
        assert_eq!((said.code, said.err), (Some(1), format!("error: {expected}\n")), "{flags:?}");
    }
}
