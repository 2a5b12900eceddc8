//! Which questions `trace` has the node's proxy answer.

use crate::server::Server;

#[tokio::test(flavor = "multi_thread")]
async fn trace_runs_the_proxy_for_each_address_and_port() {
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
    let (text, proxy) = (server.path().join("script"), server.path().join("proxy"));
    std::fs::write(&text, "#!/bin/sh\necho asked \"$@\"\n").expect("a file");
    // By another process: a fork in another test would have a copy of the open file, and the kernel executes no file that is open for writing.
    let mut install = std::process::Command::new("install");
    let installed = install.args(["-m", "700"]).args([&text, &proxy]).status();
    assert!(installed.expect("it begins").success());
    let proxy = proxy.display().to_string();
    let said = server.run(&["trace", "web", "--port=b", "--proxy", &proxy]).await;
    assert_eq!(said, "asked trace udp 10.96.7.7 81\n");
    let answer = server.ask(&["trace", "web", "--port=b", "--proxy=/nowhere"]).await;
    assert_eq!(answer.code, Some(1));
    assert!(answer.err.starts_with("error: cannot run /nowhere: "), "{}", answer.err);
    let answer = server.ask(&["trace", "pod/x"]).await;
    assert!(answer.err.starts_with("error: trace knows services, not "), "{}", answer.err);
}
