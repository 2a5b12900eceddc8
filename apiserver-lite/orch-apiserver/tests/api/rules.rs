//! Rules over several requests: certificate signing requests, Services, autoscalers, logs, server-owned fields.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::Method;
use serde_json::{Value, json};

use crate::support::TestServer;

const REQUESTS: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
const SERVICES: &str = "/api/v1/namespaces/default/services";
const PODS: &str = "/api/v1/namespaces/default/pods";

/// A certificate request in PEM.
pub fn pem(organization: &str) -> String {
    let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(rcgen::DnType::OrganizationName, organization);
    params.distinguished_name.push(rcgen::DnType::CommonName, "system:node:me");
    let key = rcgen::KeyPair::generate().unwrap();
    params.serialize_request(&key).unwrap().pem().unwrap()
}

fn request(name: &str, pem: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {
        "request": STANDARD.encode(pem), "signerName": "example.org/mine",
        "usages": ["client auth"], "username": "system:admin", "groups": ["system:masters"], "uid": "0"}})
}

/// The validated and the signed request are the same: the only PEM block of the text.
#[tokio::test]
async fn a_certificate_request_is_one_signed_block() {
    let server = TestServer::start().await;
    let (good, evil) = (pem("system:nodes"), pem("system:masters"));
    for (what, text) in [
        ("a block hidden in the line before", format!("x{evil}\n{good}")),
        ("two blocks", format!("{good}{evil}")),
        ("text before", format!("text\n{good}")),
        ("text behind", format!("{good}text\n")),
        ("another label", good.replace("CERTIFICATE REQUEST", "CERTIFICATE")),
        ("a header", good.replacen('\n', "\nProc-Type: 4\n\n", 1)),
        ("nothing", String::new()),
        ("no PEM", "nonsense".to_owned()),
        ("a foreign signature", {
            let mut lines: Vec<&str> = good.lines().collect();
            let foreign: Vec<&str> = evil.lines().collect();
            let at = lines.len() - 2;
            lines[at] = foreign[foreign.len() - 2];
            lines.join("\n")
        }),
    ] {
        let body = request("r", &text).to_string();
        let refused = server.post(REQUESTS, body).await.expect(422);
        assert_eq!(refused["details"]["causes"][0]["field"], "spec.request", "{what}: {refused}");
    }
    let made = server.post(REQUESTS, request("r", &good).to_string()).await.expect(201);
    assert_ne!(made["spec"]["username"], "system:admin", "{made}");
    for (field, value, wrong) in [
        ("usages", json!([]), "spec.usages"),
        ("usages", json!(["flying"]), "spec.usages[0]"),
        ("signerName", json!("mine"), "spec.signerName"),
        ("expirationSeconds", json!(599), "spec.expirationSeconds"),
    ] {
        let mut body = request("s", &good);
        body["spec"][field] = value;
        let refused = server.post(REQUESTS, body.to_string()).await.expect(422);
        assert_eq!(refused["details"]["causes"][0]["field"], wrong, "{refused}");
    }
}

/// The spec of a request is immutable, and each subresource writes only its part.
#[tokio::test]
async fn a_certificate_request_does_not_change() {
    let server = TestServer::start().await;
    let path = format!("{REQUESTS}/r");
    let made = server.post(REQUESTS, request("r", &pem("a")).to_string()).await.expect(201);
    let mut other = made.clone();
    other["spec"] = request("r", &pem("b"))["spec"].clone();
    other["metadata"]["labels"] = json!({"a": "b"});
    let changed = server.put(&path, &other).await.expect(200);
    assert_eq!(changed["spec"], made["spec"]);
    assert_eq!(changed["metadata"]["labels"]["a"], "b");
    let patched = server.merge_patch(&path, r#"{"spec":{"username":"me"}}"#).await.expect(200);
    assert_eq!(patched["spec"], made["spec"]);

    let mut approved = patched.clone();
    approved["spec"]["username"] = json!("me");
    approved["status"] = json!({"certificate": STANDARD.encode("x"),
        "conditions": [{"type": "Approved", "status": "True", "reason": "r", "message": "m"}]});
    let approved = server.put(&format!("{path}/approval"), &approved).await.expect(200);
    assert_eq!(approved["spec"], made["spec"]);
    assert!(approved["status"].get("certificate").is_none(), "{approved}");
    let condition = &approved["status"]["conditions"][0];
    assert!(condition["lastTransitionTime"].is_string(), "{condition}");
    assert!(condition["lastUpdateTime"].is_string(), "{condition}");

    // The signer does not approve, and signs once.
    let status = format!("{path}/status");
    let undecided = server.merge_patch(&status, r#"{"status":{"conditions":null}}"#).await;
    assert_eq!(undecided.code(), 422);
    let denied =
        json!({"status": {"conditions": [{"type": "Denied", "status": "True"}]}}).to_string();
    assert_eq!(server.merge_patch(&format!("{path}/approval"), &denied).await.code(), 422);
    let key = rcgen::generate_simple_self_signed(vec!["a".to_owned()]).unwrap();
    let issued =
        |text: String| json!({"status": {"certificate": STANDARD.encode(text)}}).to_string();
    let junk = server.merge_patch(&status, &issued("junk".to_owned())).await;
    assert_eq!(junk.code(), 422);
    let first = server.merge_patch(&status, &issued(key.cert.pem())).await;
    assert_eq!(first.expect(200)["status"]["conditions"], approved["status"]["conditions"]);
    let again = rcgen::generate_simple_self_signed(vec!["b".to_owned()]).unwrap();
    let second = server.merge_patch(&status, &issued(again.cert.pem())).await;
    assert_eq!(second.code(), 422);
}

#[tokio::test]
async fn services_get_no_special_addresses() {
    let server = TestServer::start().await;
    let service = |extra: Value| {
        let mut spec = json!({"ports": [{"port": 80}]});
        spec.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        json!({"metadata": {"generateName": "s-"}, "spec": spec}).to_string()
    };
    for address in
        ["127.0.0.1", "0.0.0.0", "169.254.1.1", "224.0.0.1", "fe80::1", "::ffff:127.0.0.1", "x"]
    {
        let body = service(json!({"externalIPs": [address]}));
        let refused = server.post(SERVICES, body).await.expect(422);
        let field = &refused["details"]["causes"][0]["field"];
        assert_eq!(field, "spec.externalIPs[0]", "{address}");
    }
    for families in [json!(["IPv4", "IPv4"]), json!(["IPv5"])] {
        let refused = server.post(SERVICES, service(json!({"ipFamilies": families}))).await;
        assert_eq!(refused.code(), 422);
    }
    // The network and broadcast address of 10.96.0.0/12.
    for address in ["10.96.0.0", "10.111.255.255"] {
        let refused = server.post(SERVICES, service(json!({"clusterIP": address}))).await;
        assert_eq!(refused.code(), 422, "{address}");
    }
    // The health check node port is removed with the traffic policy that needs it.
    let local = json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local"});
    let made = server.post(SERVICES, service(local)).await.expect(201);
    assert!(made["spec"]["healthCheckNodePort"].is_number(), "{made}");
    let path = format!("{SERVICES}/{}", made["metadata"]["name"].as_str().unwrap());
    let mut changed = made.clone();
    changed["spec"]["externalTrafficPolicy"] = json!("Cluster");
    let changed = server.put(&path, &changed).await.expect(200);
    assert!(changed["spec"].get("healthCheckNodePort").is_none(), "{changed}");
}

#[tokio::test]
async fn an_autoscaler_without_metrics_aims_at_80_percent() {
    let server = TestServer::start().await;
    let body = json!({"metadata": {"name": "h"}, "spec": {"maxReplicas": 3,
        "scaleTargetRef": {"kind": "Deployment", "name": "d", "apiVersion": "apps/v1"}}});
    let (one, two) = ("/apis/autoscaling/v1", "/apis/autoscaling/v2");
    let list = "namespaces/default/horizontalpodautoscalers";
    let made = server.post(&format!("{one}/{list}"), body.to_string()).await.expect(201);
    assert_eq!(made["spec"]["targetCPUUtilizationPercentage"], 80, "{made}");
    let seen = server.get(&format!("{two}/{list}/h")).await.expect(200);
    assert_eq!(seen["spec"]["metrics"][0]["resource"]["target"]["averageUtilization"], 80);
}

#[tokio::test]
async fn log_options_are_validated_before_the_node_is_contacted() {
    let server = TestServer::start().await;
    let pod = json!({"metadata": {"name": "p"}, "spec": {"nodeName": "n",
        "containers": [{"name": "c", "image": "i"}]}});
    server.post(PODS, pod.to_string()).await.expect(201);
    for (query, code) in [
        ("sinceSeconds=5&sinceTime=2026-01-01T00:00:00Z", 422),
        ("sinceSeconds=0", 422),
        ("tailLines=-1", 422),
        ("limitBytes=x", 400),
    ] {
        let reply = server.get(&format!("{PODS}/p/log?{query}")).await;
        assert_eq!(reply.code(), code, "{query}");
    }
}

/// There is no server-side apply: `managedFields` from clients are not stored.
#[tokio::test]
async fn managed_fields_of_clients_are_not_stored() {
    let server = TestServer::start().await;
    let path = "/api/v1/namespaces/default/configmaps";
    let managed = json!([{"manager": "x", "operation": "Sideways", "fieldsV1": {"f:data": {}}}]);
    let object = json!({"metadata": {"name": "m", "managedFields": managed}});
    let mut made = server.post(path, object.to_string()).await.expect(201);
    assert!(made["metadata"].get("managedFields").is_none(), "{made}");
    made["metadata"]["managedFields"] = managed.clone();
    made["data"] = json!({"a": "b"});
    let put = server.put(&format!("{path}/m"), &made).await.expect(200);
    assert!(put["metadata"].get("managedFields").is_none(), "{put}");
    let patch = json!({"metadata": {"managedFields": managed}}).to_string();
    for kind in ["merge-patch", "strategic-merge-patch"] {
        let media = format!("application/{kind}+json");
        let body = patch.clone();
        let patched = server.call(Method::PATCH, &format!("{path}/m"), &media, body).await;
        assert!(patched.expect(200)["metadata"].get("managedFields").is_none());
    }
}
