//! Services as pods and hosts see them.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use anyhow::{Context as _, Result, ensure};
use cluster::demo::http_get;
use orch_tests::wait::until;
use proto_api::core::v1::{Pod, Service};
use proto_client::{DeleteParams, ListParams, Patch, WriteParams};
use serde_json::json;

use crate::context::{Context, PATIENCE};
use crate::pods::{WAIT, pod};

fn node_port(c: &Context, port: i32) -> Result<SocketAddr> {
    let node = c.spec.node_list().into_iter().next().context("a node")?;
    Ok(SocketAddr::from((node.address, u16::try_from(port)?)))
}

/// What is answered at an address, once something is.
async fn page(address: SocketAddr) -> Result<String> {
    until("an answer", PATIENCE, async || {
        http_get(address, "/").await.map_err(|error| format!("{error:#}"))
    })
    .await
}

pub async fn the_demo_answers_from_the_host_and_from_a_pod(c: &Context) -> Result<()> {
    let service = c.client.within::<Service>("demo").get("web").await?;
    let port = service.spec.ports.first().context("a port")?;
    let from_host = http_get(node_port(c, port.node_port)?, "/").await?;
    ensure!(from_host == "hello from the demo\n", "the host saw {from_host:?}");
    // And by its own loopback address, where nothing is routed.
    let url = format!("http://127.0.0.1:{}/", port.node_port);
    let from_loopback = c.on_node(&["curl", "-sS", "-m", "20", &url]).await?;
    ensure!(from_loopback == "hello from the demo\n", "the node saw {from_loopback:?}");
    let ns = c.namespace("client").await?;
    c.apply(&pod(&ns, "client", WAIT)).await?;
    let client = c.pod_ready(&ns, "client").await?;
    let url = format!("http://{}:{}/", service.spec.cluster_ip, port.port);
    let from_pod = c.in_pod_network(&client, &["curl", "-sS", "-m", "20", &url]).await?;
    ensure!(from_pod == "hello from the demo\n", "the pod saw {from_pod:?}");
    // A pod reaches itself through its Service too.
    let pods = c.client.within::<Pod>("demo").list(&ListParams::labels("app=web")).await?;
    let web = pods.items.into_iter().next().context("a pod of the demo")?;
    for _ in 0..8 {
        let answer = c.in_pod_network(&web, &["curl", "-sS", "-m", "20", &url]).await?;
        ensure!(answer == "hello from the demo\n", "a back-end saw {answer:?}");
    }
    c.discard(&ns).await
}

pub async fn an_endpoint_that_goes_away_gets_no_traffic(c: &Context) -> Result<()> {
    let ns = c.namespace("endpoints").await?;
    let mut manifests = format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: echo, namespace: {ns}}}\nspec:\n  type: NodePort\n  selector: {{role: echo}}\n  ports: [{{port: 80, targetPort: 8080}}]\n"
    );
    for name in ["one", "two"] {
        let script = format!(
            "mkdir /www; echo {name} > /www/index.html; exec busybox httpd -f -p 8080 -h /www"
        );
        let labelled = pod(&ns, name, &script).replace(&format!("app: {name}"), "role: echo");
        manifests.push_str("---\n");
        manifests.push_str(&labelled);
    }
    c.apply(&manifests).await?;
    c.pod_ready(&ns, "one").await?;
    c.pod_ready(&ns, "two").await?;
    let service = c.client.within::<Service>(&ns).get("echo").await?;
    let address = node_port(c, service.spec.ports.first().context("a port")?.node_port)?;
    let mut answered = BTreeSet::new();
    until("both answer", PATIENCE, async || {
        if let Ok(answer) = http_get(address, "/").await {
            answered.insert(answer);
        }
        if answered.len() == 2 { Ok(()) } else { Err(format!("{answered:?}")) }
    })
    .await?;
    let pods = c.client.within::<Pod>(&ns);
    pods.delete("one", &DeleteParams::default()).await?;
    until("only the other answers", PATIENCE, async || {
        for _ in 0..16 {
            match http_get(address, "/").await {
                Ok(answer) if answer == "two\n" => {}
                other => return Err(format!("{other:?}")),
            }
        }
        Ok(())
    })
    .await?;
    pods.delete("two", &DeleteParams::default()).await?;
    // No endpoints: refused at once, not left hanging.
    until("refused", PATIENCE, async || match tokio::net::TcpStream::connect(address).await {
        Err(e) if e.kind() == std::io::ErrorKind::ConnectionRefused => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await?;
    c.discard(&ns).await
}

pub async fn a_balancer_service_has_gates_affinity_and_a_health_check(c: &Context) -> Result<()> {
    let ns = c.namespace("balanced").await?;
    let mut manifests = format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: front, namespace: {ns}}}\nspec:\n  type: LoadBalancer\n  externalTrafficPolicy: Local\n  sessionAffinity: ClientIP\n  loadBalancerSourceRanges: [203.0.113.0/24]\n  selector: {{role: front}}\n  ports: [{{port: 80, targetPort: 8080}}]\n---\n"
    );
    for name in ["one", "two"] {
        let script = format!(
            "mkdir /www; echo {name} > /www/index.html; exec busybox httpd -f -p 8080 -h /www"
        );
        let labelled = pod(&ns, name, &script).replace(&format!("app: {name}"), "role: front");
        manifests.push_str(&format!("{labelled}---\n"));
    }
    manifests.push_str(&pod(&ns, "client", WAIT));
    c.apply(&manifests).await?;
    for name in ["one", "two", "client"] {
        c.pod_ready(&ns, name).await?;
    }
    let services = c.client.within::<Service>(&ns);
    let service = services.get("front").await?;
    let check = node_port(c, service.spec.health_check_node_port)?;
    until("the balancer hears of two endpoints", PATIENCE, async || {
        match http_get(check, "/").await {
            Ok(answer) if answer.contains("\"localEndpoints\": 2") => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await?;
    // The host comes from outside, and every time to the same endpoint.
    let port = service.spec.ports.first().context("a port")?.node_port;
    let first = page(node_port(c, port)?).await?;
    for _ in 0..8 {
        let again = http_get(node_port(c, port)?, "/").await?;
        ensure!(again == first, "first {first:?}, then {again:?}");
    }
    let ingress = json!({"status": {"loadBalancer": {"ingress": [{"ip": "198.51.100.77"}]}}});
    services.patch_status("front", &Patch::Merge(ingress), &WriteParams::default()).await?;
    let client = c.client.within::<Pod>(&ns).get("client").await?;
    let ask = async || {
        let url = "http://198.51.100.77/";
        c.in_pod_network(&client, &["curl", "-sS", "-m", "2", url]).await
    };
    let guard = async |ranges: &[&str]| {
        let ranges = json!({"spec": {"loadBalancerSourceRanges": ranges}});
        services.patch("front", &Patch::Merge(ranges), &WriteParams::default()).await
    };
    guard(&["203.0.113.0/24", &format!("{}/32", client.status.pod_ip)]).await?;
    let served = until("a pod in a range is served", PATIENCE, async || {
        ask().await.map_err(|error| format!("{error:#}"))
    })
    .await?;
    ensure!(["one\n", "two\n"].contains(&served.as_str()), "{served:?}");
    guard(&["203.0.113.0/24"]).await?;
    until("a pod in no range is not served", PATIENCE, async || match ask().await {
        Ok(answer) => Err(answer),
        Err(_) => Ok(()),
    })
    .await?;
    for name in ["one", "two"] {
        c.client.within::<Pod>(&ns).delete(name, &DeleteParams::default()).await?;
    }
    until("the balancer hears that there is none", PATIENCE, async || {
        match http_get(check, "/").await {
            Err(error) if format!("{error:#}").contains("503") => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await?;
    c.discard(&ns).await
}

pub async fn a_cluster_grows_and_pods_reach_each_other(c: &Context) -> Result<()> {
    c.grow(2).await?;
    let ns = c.namespace("far").await?;
    let script = "mkdir /www; echo far > /www/index.html; exec busybox httpd -f -p 8080 -h /www";
    let on = |node: &str, pod: String| {
        pod.replace(
            "spec:\n",
            &format!("spec:\n  nodeSelector: {{{}: {node}}}\n", c.names.label("hostname")),
        )
    };
    let service = format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: far, namespace: {ns}}}\nspec:\n  selector: {{app: far}}\n  ports: [{{port: 80, targetPort: 8080}}]\n"
    );
    let far = on("node-2", pod(&ns, "far", script));
    let near = on("node-1", pod(&ns, "near", WAIT));
    c.apply(&format!("{service}---\n{far}---\n{near}")).await?;
    let (far, near) = (c.pod_ready(&ns, "far").await?, c.pod_ready(&ns, "near").await?);
    ensure!((far.spec.node_name.as_str(), near.spec.node_name.as_str()) == ("node-2", "node-1"));
    let service = c.client.within::<Service>(&ns).get("far").await?;
    for host in [format!("{}:8080", far.status.pod_ip), service.spec.cluster_ip] {
        let url = format!("http://{host}/");
        // A route to a new node is made when its Node is seen, not when its pod is ready.
        let answer = until(&url, PATIENCE, async || {
            let asked = c.in_pod_network(&near, &["curl", "-sS", "-m", "20", &url]).await;
            asked.map_err(|e| format!("{e:#}"))
        })
        .await?;
        ensure!(answer == "far\n", "{url} said {answer:?}");
    }
    // What leaves the cluster comes back: the API server's own service leads to the host.
    let api = format!("https://{}/version", cluster::spec::Spec::API_SERVICE_ADDRESS);
    let version = c.in_pod_network(&near, &["curl", "-sSk", "-m", "20", &api]).await?;
    ensure!(version.contains("\"gitVersion\""), "the API said {version:?}");
    // A pod without credentials has nothing to ask of a node, nor has one node of another.
    let endpoint = format!("https://{}:10250/pods", c.spec.api_address());
    let ask = ["curl", "-sSk", "-m", "20", &endpoint];
    ensure!(c.in_pod_network(&near, &ask).await?.trim_end() == "Unauthorized");
    let file = |end: &str| c.spec.pki().join(format!("orchlet-node-2.{end}")).display().to_string();
    let (certificate, key) = (file("crt"), file("key"));
    let ask = [&ask[..], &["--cert", &certificate, "--key", &key]].concat();
    let forbidden = c.on_node(&ask).await?;
    ensure!(forbidden.starts_with("Forbidden (user=system:node:node-2"), "said {forbidden:?}");
    c.discard(&ns).await
}
