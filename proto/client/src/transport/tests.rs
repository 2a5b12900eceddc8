//! Connections, certificates and tokens against a server whose every answer is given by hand.

use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt as _;
use http::{Request, header};
use proto_api::core::v1::{ConfigMap, Pod};
use proto_api::object;
use serde_json::json;
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpListener;

use crate::client::Client;
use crate::config::{Credential, Identity, Pem};
use crate::error::ClientError;
use crate::params::{DeleteParams, ListParams, WriteParams};
use crate::request;
use crate::testing::{
    Authority, PATIENCE, Relay, Server, StubProxy, StubServer, json_response, names, skip,
};
use crate::transport::ProxyServer;

fn get(path: &str) -> Request<Bytes> {
    request::get(path.to_owned())
}

#[tokio::test]
async fn a_token_is_read_again_when_its_file_changes() {
    let mut server = Server::plain().await;
    let directory = tempfile::tempdir().expect("tempdir");
    let path = directory.path().join("token");
    std::fs::write(&path, "one\n").expect("written");
    let client = server.client_with(Credential::TokenFile(path.clone()));
    // Of different lengths: two writes within a tick of the clock have the same time.
    for token in ["one", "second"] {
        std::fs::write(&path, token).expect("written");
        skip(Duration::from_secs(2)).await;
        let call = tokio::spawn({
            let client = client.clone();
            async move { client.call(get("/version")).await }
        });
        let asked = server.asked().await;
        assert_eq!(asked.headers[header::AUTHORIZATION], format!("Bearer {token}"));
        assert_eq!(asked.headers[header::USER_AGENT], "test/1");
        asked.reply(200, &json!({}));
        call.await.expect("ended").expect("answered");
    }
    let none = server.client_with(Credential::TokenFile(directory.path().join("none")));
    let error = none.call(get("/version")).await.expect_err("no token");
    assert_eq!(error.to_string(), "GET /version: cannot read the token");
}

#[tokio::test]
async fn new_certificates_get_a_new_connection_and_the_old_one_lives_on() {
    let authority = Authority::new();
    let mut server = Server::start(Some(authority.server_config())).await;
    let relay = Relay::to(server.address).await;
    let directory = tempfile::tempdir().expect("tempdir");
    let (certificate, key) = (directory.path().join("c.pem"), directory.path().join("k.pem"));
    // Of different lengths: two writes within a tick of the clock have the same time.
    let renew = |end: &str| {
        let signed = authority.sign("client");
        std::fs::write(&certificate, signed.certificate + end).expect("written");
        std::fs::write(&key, signed.key + end).expect("written");
    };
    renew("");
    let mut config = authority.client_config(relay.address);
    config.tls.identity =
        Some(Identity { certificate: Pem::File(certificate.clone()), key: Pem::File(key.clone()) });
    let client = Client::new(&config, names(), "test/1").expect("valid");
    let open = |path: &'static str| {
        let client = client.clone();
        tokio::spawn(async move { client.open(get(path)).await })
    };

    let watch = open("/old");
    let first = server.asked().await;
    let old = first.peer.clone().expect("client certificate");
    let stream = first.stream();
    let mut watch = watch.await.expect("ended").expect("answered");
    let again = open("/same");
    server.asked().await.reply(200, &json!({}));
    again.await.expect("ended").expect("answered");
    assert_eq!(relay.connections(), 1, "requests share a connection");

    renew("\n");
    skip(Duration::from_secs(2)).await;
    let after = open("/new");
    let asked = server.asked().await;
    assert_ne!(asked.peer.clone().expect("client certificate"), old);
    asked.reply(200, &json!({}));
    after.await.expect("ended").expect("answered");
    assert_eq!(relay.connections(), 2);

    stream.event("ADDED", &json!({}));
    let frame = http_body_util::BodyExt::frame(&mut watch).await;
    assert!(frame.expect("open").is_ok(), "the watch on the old connection goes on");

    std::fs::write(&key, "half written").expect("written");
    skip(Duration::from_secs(2)).await;
    let still = open("/still");
    server.asked().await.reply(200, &json!({}));
    still.await.expect("ended").expect("the last good pair is kept");
    assert_eq!(relay.connections(), 2);
}

#[tokio::test]
async fn a_dead_connection_is_noticed_and_replaced() {
    let authority = Authority::new();
    let mut server = Server::start(Some(authority.server_config())).await;
    let relay = Relay::to(server.address).await;
    // A machine that is busy for a while answers in time.
    let pings = super::Pings { every: Duration::from_millis(50), timeout: Duration::from_secs(3) };
    let config = authority.client_config(relay.address);
    let client = Client::with_pings(&config, names(), "test/1", pings).expect("valid");
    let watch = tokio::spawn({
        let client = client.clone();
        async move { client.open(get("/watch")).await }
    });
    let _stream = server.asked().await.stream();
    let mut watch = watch.await.expect("ended").expect("answered");
    relay.freeze();
    let end = tokio::time::timeout(PATIENCE, http_body_util::BodyExt::frame(&mut watch)).await;
    assert!(end.expect("noticed").expect("an error, not an end").is_err());
    let next = tokio::spawn(async move { client.call(get("/next")).await });
    server.asked().await.reply(200, &json!({}));
    next.await.expect("ended").expect("answered");
    assert_eq!(relay.connections(), 2);
}

#[tokio::test]
async fn a_refused_connection_is_an_error_with_its_causes() {
    let client = {
        let server = Server::plain().await;
        let mut config = server.config();
        config.server = "http://127.0.0.1:1".parse().expect("valid");
        Client::new(&config, names(), "test/1").expect("valid")
    };
    let error = client.call(get("/version")).await.expect_err("no listener");
    assert!(error.is_retryable());
    let shown = proto_daemon::exit::chain(&error);
    assert!(
        shown.starts_with(
            "GET /version: no response: cannot connect to 127.0.0.1:1: TCP connection failed: "
        ),
        "{shown}"
    );
}

#[tokio::test]
async fn calls_that_wait_for_a_connection_share_it_or_its_error() {
    let authority = Authority::new();
    let mut server = Server::start(Some(authority.server_config())).await;
    let relay = Relay::to(server.address).await;
    let client =
        Client::new(&authority.client_config(relay.address), names(), "t/1").expect("valid");
    let calls = |client: &Client| {
        let client = client.clone();
        futures_util::future::join_all((0..8).map(move |_| {
            let client = client.clone();
            async move { client.call(get("/version")).await }
        }))
    };
    let all = tokio::spawn(calls(&client));
    for _ in 0..8 {
        server.asked().await.reply(200, &json!({}));
    }
    assert!(all.await.expect("ended").iter().all(Result::is_ok));
    assert_eq!(relay.connections(), 1);

    let stranger = Authority::new().client_config(relay.address);
    let stranger = Client::new(&stranger, names(), "t/1").expect("valid");
    assert!(calls(&stranger).await.iter().all(Result::is_err));
    assert_eq!(relay.connections(), 2);
}

/// A server allows so many streams of a connection (here hyper's 200). Beyond them requests waited for as long as the watches before them lasted.
#[tokio::test]
async fn more_streams_than_a_server_allows_get_another_connection() {
    let authority = Authority::new();
    let mut server = Server::start(Some(authority.server_config())).await;
    let relay = Relay::to(server.address).await;
    let client =
        Client::new(&authority.client_config(relay.address), names(), "t/1").expect("valid");
    let mut open = Vec::new();
    for opened in 0..450 {
        if opened == 300 {
            open.drain(100..250);
        }
        let client = client.clone();
        let opening = tokio::spawn(async move { client.open(get("/watch")).await });
        let stream = server.asked().await.stream();
        open.push((stream, opening.await.expect("ended").expect("answered")));
    }
    assert_eq!(relay.connections(), 2, "places of ended streams are used again");
    assert_eq!(open.len(), 300);
}

#[tokio::test]
async fn certificates_of_unknown_authorities_are_refused_unless_verification_is_skipped() {
    let (ours, theirs) = (Authority::new(), Authority::new());
    let mut server = Server::start(Some(theirs.server_config())).await;
    let mut config = ours.client_config(server.address);
    let client = Client::new(&config, names(), "test/1").expect("valid");
    let error = client.call(get("/version")).await.expect_err("unknown authority");
    assert!(proto_daemon::exit::chain(&error).contains("TLS handshake failed"), "{error:?}");

    config.tls.verification = crate::config::Verification::Skipped;
    let client = Client::new(&config, names(), "test/1").expect("valid");
    let call = tokio::spawn(async move { client.call(get("/version")).await });
    server.asked().await.reply(200, &json!({}));
    call.await.expect("ended").expect("answered");
}

#[tokio::test]
async fn requests_are_counted_by_code() {
    let mut server = Server::plain().await;
    let build = proto_daemon::metrics::BuildInfo { version: "1", commit: "c" };
    let metrics = proto_daemon::metrics::Metrics::new("x", build).expect("valid names");
    let counted = crate::metrics::RequestMetrics::register(&metrics).expect("registered");
    let client = server.client().with_metrics(counted);
    let call = tokio::spawn(async move { client.call(get("/version")).await });
    server.asked().await.refuse(404, "NotFound");
    call.await.expect("ended").expect_err("refused");
    let line = format!(
        "rest_client_requests_total{{code=\"404\",host=\"{}\",method=\"GET\"}} 1\n",
        server.address
    );
    assert!(metrics.text().contains(&line), "{}", metrics.text());
}

#[tokio::test]
async fn no_answer_in_time_is_an_error_and_nothing_is_sent_twice() {
    let mut server = Server::plain().await;
    let deadline = Duration::from_secs(3600);
    let client = server.client().with_deadline(deadline);
    let call = |path| {
        let client = client.clone();
        tokio::spawn(async move { client.call(get(path)).await })
    };
    for path in ["/version", "/healthz"] {
        let late = call(path);
        let unanswered = server.asked().await;
        assert_eq!(unanswered.line, format!("GET {path}"));
        skip(deadline).await;
        let error = late.await.expect("ended").expect_err("late");
        assert!(matches!(error, ClientError::Deadline { .. }), "{error:?}");
    }
    let last = call("/last");
    let asked = server.asked().await;
    assert_eq!(asked.line, "GET /last", "nothing was sent twice");
    asked.reply(200, &json!({}));
    last.await.expect("ended").expect("answered");
    assert!(server.asked().now_or_never().is_none(), "nothing was sent twice");
}

#[tokio::test]
async fn protobuf_is_tried_first_and_a_refusal_remembered() {
    let mut server = Server::plain().await;
    let client = server.client();
    let map = ConfigMap {
        metadata: proto_api::meta::v1::ObjectMeta { name: "m".into(), ..Default::default() },
        ..ConfigMap::default()
    };
    let create = tokio::spawn({
        let (client, map) = (client.clone(), map.clone());
        async move { client.within::<ConfigMap>("a").create(&map, &WriteParams::default()).await }
    });
    let asked = server.asked().await;
    assert_eq!(asked.line, "POST /api/v1/namespaces/a/configmaps");
    assert_eq!(asked.headers[header::CONTENT_TYPE], "application/vnd.kubernetes.protobuf");
    assert_eq!(
        asked.headers[header::ACCEPT],
        "application/vnd.kubernetes.protobuf,application/json"
    );
    assert_eq!(
        object::from_protobuf_envelope::<ConfigMap>(&asked.body, names()).expect("Protobuf"),
        map
    );
    asked.refuse(415, "UnsupportedMediaType");
    let asked = server.asked().await;
    assert_eq!(asked.headers[header::CONTENT_TYPE], "application/json");
    let body: serde_json::Value = serde_json::from_slice(&asked.body).expect("JSON");
    asked.reply(201, &body);
    assert_eq!(create.await.expect("ended").expect("created"), map);

    let get = tokio::spawn({
        let client = client.clone();
        async move { client.within::<Pod>("a").get("p").await }
    });
    let asked = server.asked().await;
    assert_eq!(asked.headers[header::ACCEPT], "application/json");
    asked.reply_bytes(200, "text/html", b"<p>".to_vec());
    let error = get.await.expect("ended").expect_err("no object");
    let shown = proto_daemon::exit::chain(&error);
    assert_eq!(
        shown,
        "GET /api/v1/namespaces/a/pods/p: cannot decode the response: unexpected content type \"text/html\""
    );
}

#[tokio::test]
async fn protobuf_answers_are_decoded_and_wrong_ones_named() {
    let mut server = Server::plain().await;
    let client = server.client();
    let pod = Pod {
        metadata: proto_api::meta::v1::ObjectMeta { name: "p".into(), ..Default::default() },
        ..Pod::default()
    };
    let bytes = object::to_protobuf_envelope(&pod, names());
    for (body, good) in
        [(bytes.clone(), true), (bytes[4..].to_vec(), false), (b"k8s\0\xff".to_vec(), false)]
    {
        let get = tokio::spawn({
            let client = client.clone();
            async move { client.within::<Pod>("a").get("p").await }
        });
        server.asked().await.reply_bytes(200, "application/vnd.kubernetes.protobuf", body);
        match get.await.expect("ended") {
            Ok(read) => assert!(good && read == pod),
            Err(error) => {
                let shown = proto_daemon::exit::chain(&error);
                assert!(
                    !good
                        && shown.starts_with(
                            "GET /api/v1/namespaces/a/pods/p: cannot decode the response: "
                        ),
                    "{shown}"
                );
            }
        }
    }
}

#[tokio::test]
async fn errors_carry_what_the_server_said() {
    let mut server = Server::plain().await;
    let client = server.client();
    let delete = tokio::spawn({
        let client = client.clone();
        async move { client.within::<Pod>("a").delete("p", &DeleteParams::now("u-1")).await }
    });
    let asked = server.asked().await;
    assert_eq!(asked.line, "DELETE /api/v1/namespaces/a/pods/p");
    let options: serde_json::Value = serde_json::from_slice(&asked.body).expect("JSON");
    assert_eq!(options, json!({"gracePeriodSeconds": 0, "preconditions": {"uid": "u-1"}}));
    asked.refuse(409, "Conflict");
    let error = delete.await.expect("ended").expect_err("refused");
    assert!(error.is_conflict());
    assert_eq!(error.to_string(), "DELETE /api/v1/namespaces/a/pods/p: refused: Conflict (409)");

    let list = tokio::spawn(async move { client.all::<Pod>().list(&ListParams::default()).await });
    server.asked().await.reply_bytes(503, "text/plain", b"overloaded".to_vec());
    let error = list.await.expect("ended").expect_err("refused");
    assert_eq!((error.code(), error.reason()), (Some(503), "ServiceUnavailable"));
    assert_eq!(error.to_string(), "GET /api/v1/pods: overloaded (503)");
}

#[tokio::test]
async fn a_proxy_passes_encrypted_connections_on() {
    let authority = Authority::new();
    let mut server = Server::start(Some(authority.server_config())).await;
    let proxy = StubProxy::start(None).await;
    let mut config = authority.client_config(server.address);
    let name = format!("server:{}", server.address.port());
    config.server = format!("https://{name}").parse().expect("a URL");
    let through = ProxyServer::parse(&format!("http://u:p@{}", proxy.address)).expect("a proxy");
    let client = Client::through(Some(&through), &config, names(), "test/1").expect("valid");
    for client in [client.clone(), client.separate().expect("valid")] {
        let call = tokio::spawn(async move { client.call(get("/version")).await });
        let asked = server.asked().await;
        assert_eq!(asked.headers.get(header::PROXY_AUTHORIZATION), None, "it is for the proxy");
        asked.reply(200, &json!({}));
        call.await.expect("ended").expect("answered");
    }
    let head = format!(
        "CONNECT {name} HTTP/1.1\r\nhost: {name}\r\nproxy-authorization: Basic dTpw\r\n\r\n"
    );
    assert_eq!(proxy.heads(), [head.clone(), head]);
}

#[tokio::test]
async fn a_proxy_takes_plain_requests_whole_and_passes_upgrades_on() {
    let server = StubServer::start(|request| {
        assert!(request.headers.contains_key(header::HOST));
        let code = if request.path == "/version" { 200 } else { 400 };
        Some(json_response(code, &json!({"path": request.path})))
    })
    .await;
    let proxy = StubProxy::start(None).await;
    let name = format!("api.test:{}", server.address.port());
    let config = crate::ClientConfig::direct(format!("http://{name}/").parse().expect("a URL"));
    let through = ProxyServer::parse(&format!("http://u@{}", proxy.address)).expect("a proxy");
    let client = Client::through(Some(&through), &config, names(), "test/1").expect("valid");
    let answer = client.call(get("/version?a=b")).await.expect("answered");
    assert_eq!(answer.body, r#"{"path":"/version"}"#);
    let upgrade = Request::get("/exec").header(header::UPGRADE, "x").body(Bytes::new());
    client.upgrade(upgrade.expect("a request")).await.expect_err("refused by the server");
    let heads = proxy.heads();
    assert!(
        heads[0].starts_with(&format!("GET http://{name}/version?a=b HTTP/1.1\r\n")),
        "{heads:?}"
    );
    assert!(heads[0].contains("proxy-authorization: Basic dTo=\r\n"), "{heads:?}");
    assert!(heads[1].starts_with(&format!("CONNECT {name} HTTP/1.1\r\n")), "{heads:?}");
    assert_eq!(heads.len(), 2);
}

#[tokio::test]
async fn a_proxy_of_socks_passes_all_connections_on() {
    let authority = Authority::new();
    let mut server = Server::start(Some(authority.server_config())).await;
    let proxy = StubProxy::start(None).await;
    let mut config = authority.client_config(server.address);
    let name = format!("server:{}", server.address.port());
    config.server = format!("https://{name}").parse().expect("a URL");
    let through = ProxyServer::parse(&format!("socks5://u:p@{}", proxy.address)).expect("a proxy");
    let client = Client::through(Some(&through), &config, names(), "test/1").expect("valid");
    let call = tokio::spawn(async move { client.call(get("/version")).await });
    server.asked().await.reply(200, &json!({}));
    call.await.expect("ended").expect("answered");
    // Plain requests go to the server too, in the form for a server.
    let plain = StubServer::start(|request| Some(json_response(200, &json!(request.path)))).await;
    let plain_name = format!("api.test:{}", plain.address.port());
    let url = format!("http://{plain_name}/").parse().expect("a URL");
    let config = crate::ClientConfig::direct(url);
    let through = ProxyServer::parse(&format!("socks5h://{}", proxy.address)).expect("a proxy");
    let client = Client::through(Some(&through), &config, names(), "test/1").expect("valid");
    let answer = client.call(get("/version")).await.expect("answered");
    assert_eq!(answer.body, r#""/version""#);
    assert_eq!(proxy.heads(), [format!("SOCKS {name} u:p"), format!("SOCKS {plain_name}")]);
    // What is no proxy of SOCKS is named.
    let through = ProxyServer::parse(&format!("socks5://{}", plain.address)).expect("a proxy");
    let client = Client::through(Some(&through), &config, names(), "test/1").expect("valid");
    let error = client.call(get("/version")).await.expect_err("no connection");
    let error = proto_daemon::exit::chain(&error);
    let named = format!("the connection through the proxy {} failed: SOCKS failed", plain.address);
    assert!(error.contains(&named), "{error}");
}

#[tokio::test]
async fn what_a_proxy_says_is_in_the_error() {
    let proxy = StubProxy::start(Some("407 Proxy Authentication Required")).await;
    let closed = StubServer::start(|_| None).await.address;
    let config = crate::ClientConfig::direct("https://api.test".parse().expect("a URL"));
    let call = async |address: String| {
        let through = ProxyServer::parse(&format!("http://{address}")).expect("a proxy");
        let client = Client::through(Some(&through), &config, names(), "test/1").expect("valid");
        let error = client.call(get("/version")).await.expect_err("no connection");
        proto_daemon::exit::chain(&error)
    };
    let error = call(proxy.address.to_string()).await;
    let wanted = format!(
        "cannot connect to api.test:443: the proxy {} refused the connection: 407 Proxy Authentication Required",
        proxy.address
    );
    assert!(error.contains(&wanted), "{error}");
    let unused = format!("127.0.0.2:{}", closed.port());
    let error = call(unused.clone()).await;
    assert!(error.contains(&format!("the proxy {unused} cannot be reached: ")), "{error}");
}

/// A proxy that takes connections and answers nothing.
async fn silent_proxy() -> (TcpListener, ProxyServer) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let url = format!("http://{}", listener.local_addr().expect("bound"));
    (listener, ProxyServer::parse(&url).expect("a proxy"))
}

#[tokio::test]
async fn a_proxy_that_ends_connections_or_is_silent_is_named() {
    let (listener, proxy) = silent_proxy().await;
    let call = async |server: &'static str| {
        let config = crate::ClientConfig::direct(server.parse().expect("a URL"));
        let client = Client::through(Some(&proxy), &config, names(), "test/1").expect("valid");
        let error = client.call(get("/version")).await.expect_err("no answer");
        proto_daemon::exit::chain(&error)
    };
    let take = async || {
        let (mut socket, _) = listener.accept().await.expect("a connection");
        socket.read_u8().await.expect("a request");
        socket
    };
    let (error, ()) = tokio::join!(call("https://api.test"), async { drop(take().await) });
    let named = format!("api.test:443: the connection through the proxy {proxy} failed: ");
    assert!(error.contains(&named), "{error}");
    let (error, ()) = tokio::join!(call("http://api.test"), async { drop(take().await) });
    let wanted = format!("connection to api.test:80 through the proxy {proxy} failed: ");
    assert!(error.contains(&wanted), "{error}");
    let (error, _socket) = tokio::join!(call("https://api.test"), async {
        let socket = take().await;
        skip(Duration::from_secs(11)).await;
        socket
    });
    assert!(error.contains(&format!("{named}its answer took more than 10 s")), "{error}");
}

#[tokio::test]
async fn a_user_of_a_url_is_sent_as_a_header() {
    let server = StubServer::start(|request| {
        let header = |name| request.headers.get(name).and_then(|value| value.to_str().ok());
        let seen = json!([header(header::HOST), header(header::AUTHORIZATION), request.path]);
        Some(json_response(200, &seen))
    })
    .await;
    let place = format!("127.0.0.1:{}", server.address.port());
    let url = format!("http://user:p%40w@{place}/below");
    let mut config = crate::ClientConfig::direct(url.parse().expect("a URL"));
    let proxy = StubProxy::start(None).await;
    let through = ProxyServer::parse(&format!("http://{}", proxy.address)).expect("a proxy");
    let basic = json!([place, "Basic dXNlcjpwQHc=", "/below/version"]);
    let client = Client::new(&config, names(), "test/1").expect("valid");
    let anonymous = client.anonymous().expect("valid");
    for (client, wanted) in [
        (Client::through(Some(&through), &config, names(), "test/1").expect("valid"), &basic),
        (client.separate().expect("valid"), &basic),
        (client, &basic),
        (anonymous, &json!([place, null, "/below/version"])),
    ] {
        let answer = client.call(get("/version")).await.expect("answered");
        assert_eq!(answer.body, wanted.to_string());
        assert!(!format!("{client:?}").contains("p%40w"), "{client:?}");
    }
    let line = format!("GET http://{place}/below/version HTTP/1.1");
    assert_eq!(proxy.heads()[0].lines().next(), Some(&*line));
    config.credential = Credential::Token("t".to_owned());
    let client = Client::new(&config, names(), "test/1").expect("valid");
    let answer = client.call(get("/version")).await.expect("answered");
    assert_eq!(answer.body, json!([place, "Bearer t", "/below/version"]).to_string());
}
