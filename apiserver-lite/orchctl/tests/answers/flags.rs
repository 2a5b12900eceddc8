//! Flags of every command and credentials of programs, against a server that answers what a test wants.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Stdio;

use proto_client::testing::{StubProxy, StubRequest, StubServer, json_response};
use serde_json::json;
use tokio::process::Command;

/// Exit code, output and errors of the program.
async fn ask(home: &Path, arguments: &[&str]) -> (Option<i32>, String, String) {
    ask_with(home, &[], arguments).await
}

/// As [`ask`], with these variables.
async fn ask_with(
    home: &Path,
    variables: &[(&str, &str)],
    arguments: &[&str],
) -> (Option<i32>, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_orchctl"));
    command.args(arguments).env("HOME", home).env_remove("KUBECONFIG").stdin(Stdio::null());
    for name in ["HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"] {
        command.env_remove(name).env_remove(name.to_lowercase());
    }
    command.envs(variables.iter().copied());
    let output = command.output().await.expect("run");
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

/// A server of this release whose answers below `/warned` have a warning.
async fn start(release: &'static str) -> String {
    let server = StubServer::start(move |request: &StubRequest| {
        let body = match request.path.as_str() {
            "/version" => json!({"gitVersion": format!("v1.25.0+orch-{release}")}),
            _ => json!({"kind": "Thing"}),
        };
        let mut response = json_response(200, &body);
        if request.path.contains("/warned") {
            let warning = "299 - \"an old version\"".try_into().expect("a value");
            response.headers_mut().insert("warning", warning);
        }
        Some(response)
    });
    format!("--server=http://{}", server.await.address)
}

#[tokio::test]
async fn warnings_are_errors_where_that_is_wanted() {
    let server = start(env!("CARGO_PKG_VERSION")).await;
    let home = tempfile::tempdir().expect("a directory");
    for (path, flag, code, last) in [
        ("/warned", "--warnings-as-errors", Some(1), "error: 1 warning received"),
        ("/warned", "--warnings-as-errors=false", Some(0), "Warning: an old version"),
        ("/plain", "--warnings-as-errors", Some(0), ""),
    ] {
        let (given, out, said) = ask(home.path(), &[&server, flag, "get", "--raw", path]).await;
        assert_eq!(given, code, "{path} {flag}: {said}");
        assert_eq!(said.lines().last().unwrap_or_default(), last, "{path} {flag}");
        // What was done is printed all the same.
        assert_eq!(out, "{\"kind\":\"Thing\"}", "{path} {flag}");
    }
}

#[tokio::test]
async fn servers_of_another_version_are_refused_where_that_is_wanted() {
    let home = tempfile::tempdir().expect("a directory");
    let get = ["get", "--raw", "/x"];
    for (release, flag, code) in [
        (env!("CARGO_PKG_VERSION"), "--match-server-version", Some(0)),
        ("0.0.0", "--match-server-version", Some(1)),
        ("0.0.0", "--match-server-version=false", Some(0)),
    ] {
        let server = start(release).await;
        let arguments: Vec<&str> = [&server, flag].into_iter().chain(get).collect();
        let (given, out, said) = ask(home.path(), &arguments).await;
        assert_eq!(given, code, "{release} {flag}: {said}");
        let is_refused = said.contains("server version (v1.25.0+orch-0.0.0) differs from client");
        assert_eq!((is_refused, out.is_empty()), (code == Some(1), code == Some(1)), "{said}");
    }
}

/// A server that lets in who has the token, a configuration with a program that prints it, and a file in which the program counts its runs.
async fn with_program(directory: &Path, status: &str) -> String {
    let server = StubServer::start(|request: &StubRequest| {
        let is_known =
            request.headers.get("authorization").is_some_and(|one| one == "Bearer right");
        let refusal = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Unauthorized", "code": 401});
        Some(match is_known {
            true => json_response(200, &json!({"groups": [], "versions": []})),
            false => json_response(401, &refusal),
        })
    });
    let server = server.await.address;
    let script = format!(
        "#!/bin/sh\necho run >> \"$COUNT\"\necho '{{\"apiVersion\": \"client.authentication.k8s.io/v1\", \"kind\": \"ExecCredential\", \"status\": {status}}}'\n"
    );
    let program = directory.join("login");
    std::fs::write(&program, script).expect("a file");
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).expect("a program");
    let count = directory.join("count");
    let config = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{{name: c, context: {{cluster: k, user: u}}}}]\n\
         clusters: [{{name: k, cluster: {{server: 'http://{server}'}}}}]\n\
         users: [{{name: u, user: {{exec: {{apiVersion: client.authentication.k8s.io/v1, command: ./login, interactiveMode: Never,\n\
         \x20 env: [{{name: COUNT, value: {}}}]}}}}}}]\n",
        count.display()
    );
    let path = directory.join("config");
    std::fs::write(&path, config).expect("a file");
    format!("--kubeconfig={}", path.display())
}

#[tokio::test]
async fn a_program_gives_the_credentials_and_is_run_again_when_they_end() {
    for (status, at_least, at_most) in [
        (r#"{"token": "right", "expirationTimestamp": "2999-01-01T00:00:00Z"}"#, 1, 1),
        (r#"{"token": "right"}"#, 1, 1),
        (r#"{"token": "right", "expirationTimestamp": "1970-01-01T00:00:00Z"}"#, 3, 9),
    ] {
        let home = tempfile::tempdir().expect("a directory");
        let config = with_program(home.path(), status).await;
        // The discovery of what is served takes two requests.
        let (code, _, said) = ask(home.path(), &[&config, "api-resources"]).await;
        assert_eq!(code, Some(0), "{said}");
        let runs = std::fs::read_to_string(home.path().join("count")).expect("it ran");
        let runs = runs.lines().count();
        assert!((at_least..=at_most).contains(&runs), "{status}: {runs} runs");
    }
    let home = tempfile::tempdir().expect("a directory");
    let config = with_program(home.path(), r#"{"token": "wrong"}"#).await;
    let (code, _, said) = ask(home.path(), &[&config, "get", "--raw", "/x"]).await;
    assert_eq!((code, said.contains("(Unauthorized)")), (Some(1), true), "{said}");
    // A token of the command line counts first.
    let (code, _, said) = ask(home.path(), &[&config, "--token=right", "get", "--raw", "/x"]).await;
    assert_eq!(code, Some(0), "{said}");
}

#[tokio::test]
async fn servers_are_reached_through_the_proxy_of_the_environment_or_of_the_cluster() {
    let server = StubServer::start(|_| Some(json_response(200, &json!({"kind": "Thing"})))).await;
    let (proxy, other) = (StubProxy::start(None).await, StubProxy::start(None).await);
    let socks = StubProxy::start(None).await;
    let socks_url = format!("socks5://u:p@{}", socks.address);
    let home = tempfile::tempdir().expect("a directory");
    let port = server.address.port();
    let config = home.path().join("config");
    let text = format!(
        "clusters: [{{name: c, cluster: {{server: 'http://api.test:{port}', proxy-url: 'http://{}'}}}}]\n",
        other.address
    );
    std::fs::write(&config, text).expect("a file");
    let kubeconfig = format!("--kubeconfig={}", config.display());
    // Only the proxies know this name.
    let named = format!("--server=http://api.test:{port}");
    let local = format!("--server=http://{}", server.address);
    let (url, closed) = (format!("http://{}", proxy.address), "http://127.0.0.1:1");
    let manifest = format!("http://api.test:{port}/x.yaml");
    let get = ["get", "--raw", "/x"];
    for (variables, arguments, code) in [
        (vec![("HTTP_PROXY", url.as_str())], [&[named.as_str()], &get[..]].concat(), 0),
        (vec![("http_proxy", &url), ("NO_PROXY", "api.test")], [&[&*named], &get[..]].concat(), 1),
        (vec![("HTTPS_PROXY", &url)], [&[&*named], &get[..]].concat(), 1),
        (vec![("HTTP_PROXY", closed)], [&[&*local], &get[..]].concat(), 0),
        (vec![("HTTP_PROXY", closed)], [&[&*kubeconfig, "--cluster=c"], &get[..]].concat(), 0),
        (vec![("HTTP_PROXY", &url)], vec!["label", "--local", "-f", &manifest, "a=b"], 1),
        (vec![("HTTP_PROXY", &socks_url)], [&[&*named], &get[..]].concat(), 0),
    ] {
        let (given, out, said) = ask_with(home.path(), &variables, &arguments).await;
        assert_eq!(given, Some(code), "{variables:?} {arguments:?}: {out}{said}");
    }
    let lines = |proxy: &StubProxy| {
        let heads = proxy.heads();
        heads.iter().filter_map(|head| head.lines().next().map(str::to_owned)).collect::<Vec<_>>()
    };
    let line = |path: &str| format!("GET http://api.test:{port}{path} HTTP/1.1");
    assert_eq!(lines(&proxy), [line("/x"), line("/x.yaml")]);
    assert_eq!(lines(&other), [line("/x")]);
    assert_eq!(socks.heads(), [format!("SOCKS api.test:{port} u:p")]);
    // A proxy of the configuration, which a command sets.
    let set = format!("--proxy-url={}", socks_url.replace("u:p@", ""));
    for (arguments, code) in [
        (vec![&*kubeconfig, "config", "set-cluster", "c", &set], 0),
        (vec![&*kubeconfig, "--cluster=c", "get", "--raw", "/x"], 0),
        (vec![&*kubeconfig, "config", "set-cluster", "c", "--proxy-url="], 0),
        (vec![&*kubeconfig, "--cluster=c", "get", "--raw", "/x"], 1),
    ] {
        let (given, out, said) = ask(home.path(), &arguments).await;
        assert_eq!(given, Some(code), "{arguments:?}: {out}{said}");
    }
    assert_eq!(socks.heads().last(), Some(&format!("SOCKS api.test:{port}")));
}

#[tokio::test]
async fn without_a_configuration_that_is_said() {
    if tokio::net::TcpStream::connect("localhost:8080").await.is_ok() {
        println!("SKIPPED without_a_configuration_that_is_said: port 8080 is in use here");
        return;
    }
    let home = tempfile::tempdir().expect("a directory");
    let hint = "There is no client configuration: name one with --kubeconfig or KUBECONFIG";
    let (code, _, said) = ask(home.path(), &["get", "pods"]).await;
    assert_eq!(code, Some(1), "{said}");
    let lines: Vec<&str> = said.lines().collect();
    let refused = "The connection to the server localhost:8080 was refused - did you specify the right host or port?";
    assert!(
        matches!(lines.as_slice(), [first, .., last] if *first == refused && last.starts_with(hint)),
        "{said}"
    );
    let (_, _, said) = ask(home.path(), &["get", "pods", "--server=http://localhost:8080"]).await;
    assert!(said.contains("was refused") && !said.contains(hint), "{said}");
}

#[tokio::test]
async fn a_program_of_the_path_is_a_command() {
    let home = tempfile::tempdir().expect("a directory");
    for name in ["kubectl-my_tool", "orchctl-get", "kubectl-rollout-mine"] {
        let program = home.path().join(name);
        std::fs::write(&program, "#!/bin/sh\necho \"$@\"\nexit 7\n").expect("a file");
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).expect("a mode");
    }
    let path = format!("{}:/usr/bin:/bin", home.path().display());
    let variables = [("PATH", path.as_str())];
    let answer = ask_with(home.path(), &variables, &["my-tool", "a", "--b", "c d"]).await;
    assert_eq!(answer, (Some(7), "a --b c d\n".to_owned(), String::new()));
    // Commands of the program itself count first.
    for line in [&["get", "--no-such-flag"][..], &["rollout", "mine"], &["no-such-tool"]] {
        let (code, out, said) = ask_with(home.path(), &variables, line).await;
        assert_eq!((code, out.as_str()), (Some(1), ""), "{line:?}: {said}");
    }
}
