//! Which questions `trace` has the node's proxy answer.

use std::os::unix::fs::PermissionsExt as _;

use crate::server::Server;

#[tokio::test(flavor = "multi_thread")]
async fn the_proxy_is_asked_of_each_address_and_port() {
    let server = Server::start().await;
    server
        .create(
            "apiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec: {clusterIP: 10.96.7.7, ports: [{name: a, port: 80}, {name: b, port: 81, protocol: UDP}]}\n",
        )
        .await;
    let printed = server.run(&["trace", "svc/web", "--print", "--from", "10.244.0.5"]).await;
    assert_eq!(
        printed,
        "orch-proxy trace tcp 10.96.7.7 80 --from 10.244.0.5\norch-proxy trace udp 10.96.7.7 81 --from 10.244.0.5\n"
    );
    let proxy = server.path().join("proxy");
    std::fs::write(&proxy, "#!/bin/sh\necho asked \"$@\"\n").expect("a file");
    let mode = std::fs::Permissions::from_mode(0o700);
    std::fs::set_permissions(&proxy, mode).expect("its mode");
    let proxy = proxy.display().to_string();
    let said = server.run(&["trace", "web", "--port=b", "--proxy", &proxy]).await;
    assert_eq!(said, "asked trace udp 10.96.7.7 81\n");
    let answer = server.ask(&["trace", "web", "--port=b", "--proxy=/nowhere"]).await;
    assert_eq!(answer.code, Some(1));
    assert!(answer.err.starts_with("error: cannot run /nowhere: "), "{}", answer.err);
    let answer = server.ask(&["trace", "pod/x"]).await;
    assert!(answer.err.starts_with("error: trace knows services, not "), "{}", answer.err);
}
