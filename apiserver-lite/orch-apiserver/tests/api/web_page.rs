//! The web page: a constant document, shown where a flag says so, to browsers without credentials unless anonymous requests are refused.

mod browser;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;

use apiserver_core::config::{Anonymous, AnonymousAccess};
use browser::Browser;
use bytes::Bytes;
use http::{Response, header};
use orch_apiserver::Config;
use proto_api::yaml;
use proto_client::testing::{StubRequest, StubServer};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::sync::Notify;

use crate::etcd::etcd_process::free_port;
use crate::support::{TestServer, kubernetes};
use crate::tls;

fn config(web_page: bool, anonymous: Anonymous) -> Config {
    Config { web_page, anonymous, ..Config::for_tests(kubernetes()) }
}

#[tokio::test]
async fn the_web_page_is_the_same_for_all_users_and_the_api_requires_credentials() {
    for anonymous in [Anonymous::HealthOnly, Anonymous::Served(AnonymousAccess::Public)] {
        let server = TestServer::with(config(true, anonymous)).await;
        let page = server.anonymous("/ui/").await;
        assert_eq!(page.code(), 200, "{anonymous:?}");
        assert_eq!(page.headers[header::CONTENT_TYPE], "text/html; charset=utf-8");
        assert_eq!(page.headers[header::X_CONTENT_TYPE_OPTIONS], "nosniff");
        assert_eq!(page.headers[header::X_FRAME_OPTIONS], "DENY");
        let policy = page.headers[header::CONTENT_SECURITY_POLICY].to_str().expect("text");
        assert!(policy.starts_with("default-src 'none'; script-src 'sha256-"), "{policy}");
        assert_eq!(server.get("/ui/").await.body, page.body);
        assert_eq!(server.get("/ui").await.body, page.body);
        for path in ["/ui/x", "/api/v1/pods", "/metrics"] {
            let code = server.anonymous(path).await.code();
            assert!(matches!(code, 401 | 403), "{path}: {code}");
        }
        server.post("/ui/", "{}").await.expect(405);
    }
}

#[tokio::test]
async fn without_the_flag_there_is_no_page() {
    let server = TestServer::with(config(false, Anonymous::HealthOnly)).await;
    server.anonymous("/ui/").await.expect(401);
    server.get("/ui/").await.expect(404);
}

#[tokio::test]
async fn where_anonymous_requests_are_refused_the_page_needs_credentials() {
    let server = TestServer::with(config(true, Anonymous::Refused)).await;
    server.anonymous("/ui/").await.expect(401);
    assert_eq!(server.get("/ui/").await.code(), 200);
}

#[tokio::test]
async fn requests_that_pages_of_other_origins_make_are_refused() {
    let server = TestServer::with(config(true, Anonymous::HealthOnly)).await;
    let send = async |method: &str, path: &str, site: &str| {
        let request = http::Request::builder()
            .method(method)
            .uri(path)
            .header("host", "test")
            .header("sec-fetch-site", site)
            .body(http_body_util::Full::from(r#"{"metadata": {"name": "made"}}"#))
            .unwrap();
        server.send(request).await
    };
    // As a form or a script without CORS sends it: no content type, and the user's certificate.
    let refused = send("POST", "/api/v1/namespaces", "cross-site").await.expect(403);
    assert!(refused["message"].as_str().unwrap().contains("another origin"), "{refused}");
    let exec = "/api/v1/namespaces/default/pods/p/exec?command=sh&stdout=1";
    send("GET", exec, "same-site").await.expect(403);
    server.get("/api/v1/namespaces/made").await.expect(404);
    // A link to the page is followed from anywhere.
    assert_eq!(send("GET", "/ui/", "cross-site").await.code(), 200);
    send("POST", "/api/v1/namespaces", "same-origin").await.expect(201);
}

/// A page names any token it likes when it asks for a WebSocket: the certificate that the browser adds does not count then.
#[tokio::test]
async fn a_page_that_names_a_token_is_the_user_of_the_token() {
    let dir = tempfile::tempdir().unwrap();
    let tokens = dir.path().join("tokens.csv");
    std::fs::write(&tokens, "tested,alice,1").unwrap();
    let config = Config { token_auth_file: Some(tokens), ..Config::for_tests(kubernetes()) };
    let server = TestServer::with(config).await;
    let open = async |protocols: &str| {
        let request = http::Request::get("/api/v1/namespaces?watch=true")
            .header("host", "test")
            .header("sec-fetch-site", "cross-site")
            .header("connection", "Upgrade")
            .header("upgrade", "websocket")
            .header("sec-websocket-version", "13")
            .header("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==")
            .header("sec-websocket-protocol", protocols);
        server.open(request.body(http_body_util::Full::default()).unwrap()).await
    };
    assert_eq!(open("binary.k8s.io").await.status(), 403, "it names none");
    // `other`, and no base64.
    for wrong in ["b3RoZXI", "*"] {
        let protocols = format!("binary.k8s.io, base64url.bearer.authorization.k8s.io.{wrong}");
        assert_eq!(open(&protocols).await.status(), 401, "{wrong}");
    }
    // `tested`.
    let named = "base64url.bearer.authorization.k8s.io.dGVzdGVk, binary.k8s.io";
    let opened = open(named).await;
    assert_eq!(opened.status(), 101);
    assert_eq!(opened.headers()["sec-websocket-protocol"], "binary.k8s.io");
}

/// A workload that answers each request with a page that wants to stay.
async fn serve_workload(ip: std::net::IpAddr) -> SocketAddr {
    let answer = |_: &StubRequest| {
        let response = Response::builder()
            .header("content-type", "text/html")
            .header("set-cookie", "a=b")
            .header("service-worker-allowed", "/")
            .header("content-security-policy", "img-src 'self'");
        Some(response.body(Bytes::from("hi")).unwrap())
    };
    StubServer::start_at(ip, None, answer).await.address
}

#[tokio::test]
async fn pages_of_workloads_are_not_of_the_server_s_origin_where_there_is_a_web_page() {
    let Some(ip) = crate::proxy::routed() else {
        println!(
            "SKIPPED pages_of_workloads_are_not_of_the_server_s_origin_where_there_is_a_web_page: only loopback here"
        );
        return;
    };
    let port = serve_workload(ip).await.port();
    for (web_page, forwarded, isolated) in
        [(true, false, true), (true, true, false), (false, false, false)]
    {
        let server = TestServer::with(config(web_page, Anonymous::HealthOnly)).await;
        let account = json!({"metadata": {"name": "default"}}).to_string();
        server.post("/api/v1/namespaces/default/serviceaccounts", account).await.expect(201);
        let pods = "/api/v1/namespaces/default/pods";
        let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
        server.post(pods, pod.to_string()).await.expect(201);
        let status = json!({"status": {"podIP": ip, "podIPs": [{"ip": ip}]}});
        server.merge_patch(&format!("{pods}/p/status"), &status.to_string()).await.expect(200);
        let mut request =
            http::Request::get(format!("{pods}/p:{port}/proxy/")).header("host", "test");
        if forwarded {
            request = request.header("x-forwarded-for", "127.0.0.1");
        }
        let page = server.send(request.body(http_body_util::Full::default()).unwrap()).await;
        assert_eq!((page.code(), &page.body[..]), (200, &b"hi"[..]));
        let policies: Vec<_> =
            page.headers.get_all(header::CONTENT_SECURITY_POLICY).iter().collect();
        assert_eq!(policies[0], "img-src 'self'");
        let case = format!("page {web_page}, forwarded {forwarded}");
        assert_eq!(
            policies.iter().any(|p| p.as_bytes().starts_with(b"sandbox")),
            isolated,
            "{case}"
        );
        assert_eq!(page.headers.contains_key("set-cookie"), !isolated, "{case}");
        assert_eq!(page.headers.contains_key("service-worker-allowed"), !isolated, "{case}");
    }
}

/// A node agent that answers logs: a line at once, and another when it is told to.
async fn start_node(more: Arc<Notify>) -> SocketAddr {
    let (acceptor, _) = tls::self_signed(&["127.0.0.1"], None);
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a listener");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            let (acceptor, more) = (acceptor.clone(), more.clone());
            tokio::spawn(async move {
                let Ok(mut stream) = acceptor.accept(socket).await else { return };
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    let Ok(byte) = stream.read_u8().await else { return };
                    head.push(byte);
                }
                let begin = "HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\nconnection: close\r\n\r\n\
                    listening on :8080\n";
                stream.write_all(begin.as_bytes()).await.expect("written");
                stream.flush().await.expect("written");
                more.notified().await;
                let line = "\u{1b}[31m<b>GET</b> /cart 200\u{202e}\n";
                stream.write_all(line.as_bytes()).await.expect("written");
                stream.shutdown().await.expect("closed");
            });
        }
    });
    address
}

/// Markup that would act, had the page a place where text becomes markup.
const MARKUP: &str =
    "Back-off <script>window.owned=1</script><img src=x onerror='window.owned=1'>\u{202e}";

/// What the full screen shows, too.
const OBJECTS: &str = include_str!("../../../orchctl/tests/screen/objects.yaml");

/// Makes the objects; the agent of all nodes is at `node`, and texts of some have markup.
async fn fill(server: &TestServer, node: SocketAddr) {
    let create = async |path: &str, object: &Value| {
        server.post(path, object.to_string()).await.expect(201);
    };
    for mut object in yaml::parse_all(OBJECTS).expect("valid") {
        let text = |pointer: &str| {
            object.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned()
        };
        let (kind, name) = (text("/kind"), text("/metadata/name"));
        let within = match text("/metadata/namespace").as_str() {
            "" => String::new(),
            namespace => format!("namespaces/{namespace}/"),
        };
        let path = format!("/api/v1/{within}{}s", kind.to_lowercase());
        if kind == "Node" {
            object["metadata"]["annotations"] = json!({"note": MARKUP});
            object["status"]["addresses"] = json!([{"type": "InternalIP", "address": node.ip()}]);
            object["status"]["daemonEndpoints"] = json!({"kubeletEndpoint": {"Port": node.port()}});
        }
        create(&path, &object).await;
        if kind == "Pod" {
            let path = format!("{path}/{name}/status");
            let status = json!({"status": object["status"]}).to_string();
            server.merge_patch(&path, &status).await.expect(200);
        }
    }
    let event = json!({
        "metadata": {"name": "markup"}, "type": "Warning", "reason": "BackOff", "message": MARKUP,
        "involvedObject": {"apiVersion": "v1", "kind": "Pod", "namespace": "shop", "name": "search-1"},
        "lastTimestamp": "2026-11-26T08:00:00Z",
    });
    create("/api/v1/namespaces/shop/events", &event).await;
}

const TABLE: &str = "document.querySelector('#rows tbody').innerText";

async fn show(browser: &mut Browser, view: &str) {
    let click = format!(
        "[...document.querySelectorAll('#views button')].find((one) => one.textContent === '{view}').click(); true"
    );
    browser.value(&click).await;
}

/// Keeps a picture where the one who runs the test wants it.
async fn keep(browser: &mut Browser, name: &str) {
    if let Some(directory) = std::env::var_os("ORCH_PICTURES") {
        let picture = browser.picture().await;
        std::fs::write(Path::new(&directory).join(name), picture).expect("a file");
    }
}

/// No script but the page's own ran or runs, and the token is kept nowhere.
async fn assert_page_is_closed(browser: &mut Browser) {
    assert_eq!(browser.complaints(), &[] as &[String]);
    assert_eq!(browser.value("document.scripts.length + document.images.length").await, 1);
    assert_eq!(browser.value("typeof window.owned").await, "undefined");
    let traces = "localStorage.length + sessionStorage.length + document.cookie.length + (location.href + document.body.innerText).split('a-token').length";
    assert_eq!(browser.value(traces).await, 1, "the token leaves traces");
    // Not even script that gets into the page is run.
    let inject = "(() => { const one = document.createElement('script'); try { one.textContent = 'window.owned = 1'; document.body.append(one); } catch {} return typeof window.owned; })()";
    assert_eq!(browser.value(inject).await, "undefined");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_browser_shows_the_objects_of_the_api() {
    let Some(program) = browser::find() else {
        println!("SKIPPED a_browser_shows_the_objects_of_the_api: there is no chromium here");
        return;
    };
    let directory = tempfile::tempdir().expect("a directory");
    let tokens = directory.path().join("tokens.csv");
    std::fs::write(&tokens, "a-token-of-alice,alice,1\n").expect("a file");
    let config = Config { token_auth_file: Some(tokens), ..config(true, Anonymous::HealthOnly) };
    let server = TestServer::with(config).await;
    let more = Arc::new(Notify::new());
    fill(&server, start_node(more.clone()).await).await;

    let mut browser = Browser::start(program, 1200, 600).await;
    browser.go(&format!("https://{}/ui/", server.address())).await;
    browser
        .wait_for("document.getElementById('notice').innerText.includes('give a bearer token')")
        .await;
    assert_eq!(browser.value(TABLE).await, "");
    let type_token = "document.getElementById('token').value = 'a-token-of-alice'; document.getElementById('use').click(); true";
    browser.value(type_token).await;

    browser
        .wait_for(&format!("{TABLE}.includes('search-1') && {TABLE}.includes('CrashLoopBackOff')"))
        .await;
    let counts = "document.getElementById('state').innerText";
    browser.wait_for(&format!("{counts} === '17 pods, 3 failing, 5 not ready'")).await;
    // An object, with what happened to it.
    browser.value("[...document.querySelectorAll('#rows tbody tr')].find((one) => one.innerText.includes('payment')).click(); true").await;
    let happened = "document.querySelector('#object ul').innerText";
    browser.wait_for(&format!("{happened}.includes('Failed: Failed to pull image')")).await;
    keep(&mut browser, "web-page.png").await;
    browser.value("document.getElementById('close').click(); true").await;
    let pod = json!({"metadata": {"name": "late"}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    server.post("/api/v1/namespaces/shop/pods", pod.to_string()).await.expect(201);
    browser.wait_for(&format!("{TABLE}.includes('late')")).await;
    server.delete("/api/v1/namespaces/shop/pods/late?gracePeriodSeconds=0").await.expect(200);
    browser.wait_for(&format!("!{TABLE}.includes('late')")).await;

    show(&mut browser, "events").await;
    browser
        .wait_for(&format!(
            "{TABLE}.includes('Back-off <script>window.owned=1</script><img src=x')"
        ))
        .await;
    browser.wait_for(&format!("{TABLE}.includes('\\\\u{{202e}}')")).await;
    show(&mut browser, "nodes").await;
    browser
        .wait_for(&format!("{TABLE}.includes('worker-2') && {TABLE}.includes('NotReady')"))
        .await;
    browser.value("document.querySelector('#rows tbody tr').click(); true").await;
    browser
        .wait_for(
            "document.querySelector('#object pre').innerText.includes('<script>window.owned=1')",
        )
        .await;

    show(&mut browser, "pods").await;
    browser.wait_for(&format!("{TABLE}.includes('cart-1')")).await;
    browser.value("document.querySelector('#rows tbody tr').click(); true").await;
    browser.wait_for("!document.getElementById('object').hidden").await;
    browser.value("document.getElementById('show-log').click(); true").await;
    let log = "document.getElementById('log').innerText";
    browser.wait_for(&format!("{log}.includes('listening on :8080')")).await;
    more.notify_one();
    browser
        .wait_for(&format!("{log}.includes('\\\\u{{1b}}[31m<b>GET</b> /cart 200\\\\u{{202e}}')"))
        .await;
    browser.wait_for("document.getElementById('state').innerText.includes('ended')").await;

    assert_page_is_closed(&mut browser).await;
    let handler = "(() => { try { document.body.innerHTML = '<img src=x onerror=\"window.owned=1\">'; return 'markup'; } catch { return 'refused'; } })()";
    assert_eq!(browser.value(handler).await, "refused");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_comes_back_to_a_server_that_was_away() {
    let Some(program) = browser::find() else {
        println!(
            "SKIPPED the_page_comes_back_to_a_server_that_was_away: there is no chromium here"
        );
        return;
    };
    let directory = tempfile::tempdir().expect("a directory");
    let tokens = directory.path().join("tokens.csv");
    std::fs::write(&tokens, "a-token-of-alice,alice,1\n").expect("a file");
    // No other socket gets this port while the server is away.
    let bind = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()));
    let config = config(true, Anonymous::HealthOnly);
    let config = Config { token_auth_file: Some(tokens), bind, ..config };
    let server = TestServer::with(config.clone()).await;
    let address = server.address();
    let mut browser = Browser::start(program, 800, 600).await;
    browser.go(&format!("https://{address}/ui/")).await;
    let type_token = "document.getElementById('token').value = 'a-token-of-alice'; document.getElementById('use').click(); true";
    browser.value(type_token).await;
    show(&mut browser, "nodes").await;
    browser.wait_for("document.getElementById('state').innerText === '0 nodes'").await;
    server.stop().await;
    browser.wait_for("!document.getElementById('notice').hidden").await;
    let server = TestServer::with(config).await;
    let node = json!({"metadata": {"name": "worker-9"}});
    server.post("/api/v1/nodes", node.to_string()).await.expect(201);
    browser.wait_for(&format!("{TABLE}.includes('worker-9')")).await;
    browser.wait_for("document.getElementById('notice').hidden").await;
}
