//! Names as pods use them: every node answers at the address of the cluster's DNS Service.

use anyhow::{Result, ensure};
use cluster::spec::Spec;
use orch_tests::wait::until;
use proto_api::core::v1::{Pod, Service};
use proto_client::DeleteParams;

use crate::context::{Context, PATIENCE};

/// A service with an address, a headless one, another name, and the pod behind them.
fn manifest(ns: &str) -> String {
    format!(
        r#"apiVersion: v1
kind: Service
metadata: {{name: web, namespace: {ns}}}
spec:
  selector: {{app: one}}
  ports: [{{name: http, port: 80, targetPort: 8080}}]
---
apiVersion: v1
kind: Service
metadata: {{name: nodes, namespace: {ns}}}
spec:
  clusterIP: None
  selector: {{app: one}}
  ports: [{{name: http, port: 8080}}]
---
apiVersion: v1
kind: Service
metadata: {{name: alias, namespace: {ns}}}
spec: {{type: ExternalName, externalName: web.{ns}.svc.{domain}}}
---
apiVersion: v1
kind: Pod
metadata: {{name: one, namespace: {ns}, labels: {{app: one}}}}
spec:
  terminationGracePeriodSeconds: 0
  hostname: first
  subdomain: nodes
  containers:
  - name: c
    image: orch.local/demo:1
    args: [sh, -c, "mkdir /www; echo it is one > /www/index.html; exec busybox httpd -f -p 8080 -h /www"]
"#,
        domain = Spec::DOMAIN
    )
}

/// What the resolver of a pod says to a question, also when it says that there is nothing.
async fn ask(c: &Context, pod: &Pod, words: &[&str]) -> String {
    match c.in_container(pod, &[&["nslookup"], words].concat()).await {
        Ok(text) => text,
        Err(error) => format!("{error:#}"),
    }
}

/// Asks until the answer has a line that ends so.
async fn says(c: &Context, pod: &Pod, words: &[&str], line: &str) -> Result<()> {
    until(&format!("{words:?} -> {line}"), PATIENCE, async || {
        let said = ask(c, pod, words).await;
        let found = said.lines().any(|said| said.trim_end().ends_with(line));
        if found { Ok(()) } else { Err(said) }
    })
    .await
}

pub async fn a_pod_resolves_names_of_the_cluster(c: &Context) -> Result<()> {
    let ns = c.namespace("names").await?;
    c.apply(&manifest(&ns)).await?;
    let pod = c.pod_ready(&ns, "one").await?;
    let (ip, domain) = (pod.status.pod_ip.clone(), Spec::DOMAIN);
    let address = c.client.within::<Service>(&ns).get("web").await?.spec.cluster_ip;
    let below = |name: &str| format!("{name}.{ns}.svc.{domain}");
    let config = c.read_in_container(&pod, &["cat", "/etc/resolv.conf"]).await?;
    let server = format!("nameserver {}", Spec::DNS_SERVICE_ADDRESS);
    ensure!(config.contains(&server), "resolv.conf is {config:?}");

    says(c, &pod, &[&below("web")], &format!("Address: {address}")).await?;
    says(c, &pod, &[&below("nodes")], &format!("Address: {ip}")).await?;
    says(c, &pod, &[&below("first.nodes")], &format!("Address: {ip}")).await?;
    says(c, &pod, &[&below("alias")], &format!("Address: {address}")).await?;
    let target = format!("80 {}", below("web"));
    says(c, &pod, &["-type=srv", &below("_http._tcp.web")], &target).await?;
    let target = format!("8080 {}", below("first.nodes"));
    says(c, &pod, &["-type=srv", &below("_http._tcp.nodes")], &target).await?;
    says(c, &pod, &[&address], &below("web")).await?;
    says(c, &pod, &[&ip], &below("first.nodes")).await?;
    let dashed = format!("{}.{ns}.pod.{domain}", ip.replace('.', "-"));
    says(c, &pod, &[&dashed], &format!("Address: {ip}")).await?;
    for missing in [below("nobody"), "www.example.invalid".to_owned()] {
        says(c, &pod, &[&missing], "NXDOMAIN").await?;
    }
    // By the search list and the C library, as programs do it.
    for host in ["web", &format!("web.{ns}"), "alias"] {
        let page = c.read_in_container(&pod, &["wget", "-qO-", &format!("http://{host}/")]).await?;
        ensure!(page == "it is one\n", "{host} said {page:?}");
    }
    // From the node itself too.
    let server = Spec::DNS_SERVICE_ADDRESS.to_string();
    let said = c.on_node(&["busybox", "nslookup", &below("web"), &server]).await?;
    ensure!(said.contains(&address), "{said}");

    // Names follow what is.
    c.client.within::<Pod>(&ns).delete("one", &DeleteParams::default()).await?;
    let other = manifest(&ns).replace("name: one, namespace", "name: two, namespace");
    let other = other.replace("hostname: first", "hostname: second");
    c.apply(&other).await?;
    let pod = c.pod_ready(&ns, "two").await?;
    says(c, &pod, &[&below("second.nodes")], &format!("Address: {}", pod.status.pod_ip)).await?;
    says(c, &pod, &[&below("first.nodes")], "NXDOMAIN").await?;
    c.discard(&ns).await
}

pub async fn names_are_answered_again_after_a_kill(c: &Context) -> Result<()> {
    let ns = c.namespace("names-again").await?;
    c.apply(&manifest(&ns)).await?;
    let pod = c.pod_ready(&ns, "one").await?;
    let name = format!("web.{ns}.svc.{}", Spec::DOMAIN);
    let address = c.client.within::<Service>(&ns).get("web").await?.spec.cluster_ip;
    says(c, &pod, &[&name], &format!("Address: {address}")).await?;
    c.kill("orch-proxy-node-1").await?;
    // The first answer after the kill is already a right one: never that there is no such name.
    until("an answer", PATIENCE, async || {
        let said = ask(c, &pod, &[&name]).await;
        match (said.contains(&address), said.contains("NXDOMAIN")) {
            (true, _) => Ok(Ok(())),
            (false, true) => Ok(Err(anyhow::anyhow!("denied a name: {said}"))),
            (false, false) => Err(said),
        }
    })
    .await??;
    c.discard(&ns).await
}
