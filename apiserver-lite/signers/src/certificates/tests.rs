//! What the controllers do with requests, against an API server whose reviews answer as a test says.

use std::sync::Mutex;

use proto_api::Kind;
use proto_api::names::{Names, Profile};
use proto_api::object::{from_protobuf_envelope, to_json_value};
use proto_client::testing::{StubServer, json_response};
use serde_json::{Value, json};

use super::signer_policy::tests::request;
use super::*;

const NODES: &str = "system:nodes";
const REQUEST: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests/r";
const REVIEWS: &str = "POST /apis/authorization.k8s.io/v1/subjectaccessreviews";

fn names() -> &'static Names {
    Names::new(Profile::Kubernetes)
}

/// The JSON of an object that a client has sent as Protobuf.
fn json_of<T: Kind>(body: &[u8]) -> Value {
    let object: T = from_protobuf_envelope(body, names()).expect("an object");
    to_json_value(&object, names()).expect("JSON")
}

/// What the controllers send about a request of the user `system:node:n1`, and when they look at it again. Reviews answer `allowed`.
async fn reconcile(
    mut request: CertificateSigningRequest,
    allowed: bool,
) -> (Vec<(String, Value)>, Option<Duration>) {
    let sent = Arc::new(Mutex::new(Vec::new()));
    let log = sent.clone();
    let server = StubServer::start(move |request| {
        let is_review = request.path.ends_with("reviews");
        let mut body = match is_review {
            true => json_of::<SubjectAccessReview>(&request.body),
            false => json_of::<CertificateSigningRequest>(&request.body),
        };
        log.lock()
            .expect("not poisoned")
            .push((format!("{} {}", request.method, request.path), body.clone()));
        if is_review {
            body["status"] = json!({"allowed": allowed});
        }
        Some(json_response(200, &body))
    })
    .await;
    request.metadata.name = "r".to_owned();
    request.spec.groups = vec![NODES.to_owned()];
    let dir = tempfile::tempdir().expect("a directory");
    let (certificate, key) = (dir.path().join("ca.crt"), dir.path().join("ca.key"));
    let pair = authority::tests::pair();
    std::fs::write(&certificate, pair.0).expect("written");
    std::fs::write(&key, pair.1).expect("written");
    let files = AuthorityFiles::open(&certificate, &key, Duration::from_secs(3600));
    let controllers = Certificates {
        client: server.client(),
        authority: Some(Arc::new(files.expect("a CA"))),
        enabled: CsrControllers { approving: true, signing: true, cleaner: false },
        metrics: WorkQueueMetrics::new().expect("metrics"),
    };
    let again = controllers.reconcile(&request).await.expect("reconciled");
    let sent = sent.lock().expect("not poisoned").clone();
    (sent, again)
}

fn node_client(name: &str) -> CertificateSigningRequest {
    request(&names().node_client_signer(), NODES, name, &[], "client auth")
}

fn approved(mut request: CertificateSigningRequest) -> CertificateSigningRequest {
    request.status.conditions.push(condition("Approved", "Test", String::new()));
    request
}

fn lines(sent: &[(String, Value)]) -> Vec<&str> {
    sent.iter().map(|(line, _)| line.as_str()).collect()
}

/// A node that wants the certificate of another one: who may not have it is reviewed as who has sent the request.
#[tokio::test]
async fn a_node_s_request_for_another_node_is_left_pending() {
    for (name, subresource) in
        [("system:node:n2", "nodeclient"), ("system:node:n1", "selfnodeclient")]
    {
        let (sent, again) = reconcile(node_client(name), false).await;
        assert_eq!(lines(&sent), [REVIEWS], "{name}: neither approved nor signed");
        assert_eq!(again, Some(REVIEW_INTERVAL));
        let spec = &sent.first().expect("a review").1["spec"];
        assert_eq!((&spec["user"], &spec["groups"]), (&json!("system:node:n1"), &json!([NODES])));
        let attributes = &spec["resourceAttributes"];
        assert_eq!(attributes["subresource"], subresource);
        assert_eq!(attributes["verb"], "create");
    }
    let (sent, again) = reconcile(node_client("system:node:n1"), true).await;
    assert_eq!(lines(&sent), [REVIEWS, &format!("PUT {REQUEST}/approval")]);
    assert_eq!(sent.last().expect("an approval").1["status"]["conditions"][0]["type"], "Approved");
    assert_eq!(again, None);
}

#[tokio::test]
async fn only_approved_requests_are_signed() {
    let (sent, _) = reconcile(approved(node_client("system:node:n1")), false).await;
    assert_eq!(lines(&sent), [format!("PUT {REQUEST}/status")]);
    assert!(sent.last().expect("a status").1["status"]["certificate"].is_string());
}

/// No approval makes the signer certify another node's names.
#[tokio::test]
async fn a_serving_certificate_for_another_node_is_never_signed() {
    let signer = names().node_serving_signer();
    let other = request(&signer, NODES, "system:node:n2", &["n2"], "server auth");
    let (sent, _) = reconcile(other.clone(), true).await;
    assert!(sent.is_empty(), "{sent:?}");
    let (sent, _) = reconcile(approved(other), true).await;
    assert_eq!(lines(&sent), [format!("PUT {REQUEST}/status")]);
    let status = &sent.last().expect("a status").1["status"];
    assert_eq!(status["conditions"][1]["type"], "Failed");
    assert_eq!(status["certificate"], Value::Null);
}
