//! What scripts and people do every day: some objects of many are wrong, files lie elsewhere, servers are busy, programs of the user take part.

use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use proto_client::testing::{StubRequest, StubServer, json_response};
use serde_json::json;

use crate::server::{Answer, Server};

const WEB: &str = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web}\nspec:\n\
    \x20 selector: {matchLabels: {app: web}}\n\
    \x20 template:\n    metadata: {labels: {app: web}}\n    spec:\n      containers:\n\
    \x20     - {name: web, image: i, ports: [{containerPort: 80}], env: [{name: MODE, value: fast}]}\n";

fn config_map(name: &str) -> String {
    format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}}}\n")
}

fn write(directory: &Path, name: &str, text: &str) -> String {
    let path = directory.join(name);
    std::fs::write(&path, text).expect("a file");
    path.display().to_string()
}

/// The lines that a command wrote, sorted, with its exit code.
fn lines(answer: &Answer) -> (Option<i32>, Vec<&str>) {
    let mut lines: Vec<&str> = answer.out.lines().collect();
    lines.sort_unstable();
    (answer.code, lines)
}

#[tokio::test]
async fn one_wrong_object_does_not_stop_the_others() {
    let server = Server::start().await;
    let files = server.path().join("files");
    std::fs::create_dir(&files).expect("a directory");
    write(&files, "1-values.yaml", "replicas: 3\n");
    write(&files, "2-good.yaml", &config_map("a"));
    write(&files, "3-broken.yaml", "a: [");
    let widget = "apiVersion: example.com/v1\nkind: Widget\nmetadata: {name: w}\n";
    write(&files, "4-bundle.yaml", &format!("{widget}---\n{}", config_map("b")));
    let files = files.display().to_string();

    let answer = server.ask(&["apply", "-f", &files]).await;
    assert_eq!(lines(&answer), (Some(1), vec!["configmap/a created", "configmap/b created"]));
    for part in ["Object 'Kind' is missing", "3-broken.yaml", "no matches for kind \"Widget\""] {
        assert!(answer.err.contains(part), "{part}: {}", answer.err);
    }

    for (verb, done) in [("label", "labeled"), ("annotate", "annotated")] {
        let answer = server.ask(&[verb, "configmap", "a", "missing", "b", "x=y"]).await;
        let wanted = [format!("configmap/a {done}"), format!("configmap/b {done}")];
        assert_eq!(lines(&answer), (Some(1), wanted.iter().map(String::as_str).collect()));
        assert!(answer.err.contains("configmaps \"missing\" not found"), "{}", answer.err);
    }

    let answer = server.ask(&["delete", "-f", &files]).await;
    let wanted = vec!["configmap \"a\" deleted", "configmap \"b\" deleted"];
    assert_eq!(lines(&answer), (Some(1), wanted), "{}", answer.err);
    assert!(answer.err.contains("no matches for kind \"Widget\""), "{}", answer.err);
    let answer = server.ask(&["create", "-f", &files]).await;
    assert_eq!(lines(&answer), (Some(1), vec!["configmap/a created", "configmap/b created"]));

    // A mistyped path stops a command before it changes anything.
    let answer = server.ask(&["delete", "-f", &files, "-f", "/no/such"]).await;
    assert_eq!(lines(&answer), (Some(1), vec![]));
    server.run(&["get", "configmap", "a", "b"]).await;
}

#[tokio::test]
async fn images_are_set_where_all_workloads_exist() {
    let server = Server::start().await;
    server.create(WEB).await;
    let answer = server.ask(&["set", "image", "deploy/missing", "deploy/web", "web=j"]).await;
    assert_eq!(lines(&answer), (Some(1), Vec::new()));
    assert!(answer.err.contains("\"missing\" not found"), "{}", answer.err);
    let answer = server.ask(&["set", "image", "deploy/web", "web=j"]).await;
    assert_eq!(lines(&answer), (Some(0), vec!["deployment.apps/web image updated"]));
}

#[tokio::test]
async fn redirects_of_urls_are_followed() {
    let server = Server::start().await;
    let elsewhere = |status, location: &str| {
        let mut response = json_response(status, &json!({}));
        response.headers_mut().insert("location", location.try_into().expect("a value"));
        response
    };
    let object =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "elsewhere"}});
    let other = StubServer::start(move |request: &StubRequest| {
        Some(match request.path.as_str() {
            "/files/cm.yaml" => json_response(200, &object),
            _ => json_response(404, &json!({})),
        })
    });
    let other = other.await.address;
    let first = StubServer::start(move |request: &StubRequest| {
        Some(match request.path.as_str() {
            "/latest.yaml" => elsewhere(302, "/v1/cm.yaml"),
            "/v1/cm.yaml" => elsewhere(308, &format!("http://{other}/files/cm.yaml")),
            "/gone.yaml" => elsewhere(301, &format!("http://{other}/none")),
            "/nowhere.yaml" => elsewhere(301, "ftp://x/y"),
            _ => elsewhere(303, "/loop.yaml"),
        })
    });
    let first = first.await.address;
    let create = |name: &str| format!("http://{first}/{name}.yaml");
    let made = server.run(&["create", "-f", &create("latest")]).await;
    assert_eq!(made, "configmap/elsewhere created\n");
    for (name, why) in [
        ("loop", "stopped after 10 redirects"),
        ("gone", "404 Not Found"),
        ("nowhere", "a redirect leads to \"ftp://x/y\", no URL"),
    ] {
        let answer = server.ask(&["create", "-f", &create(name)]).await;
        let wanted = format!("error: unable to read URL \"{}\": {why}\n", create(name));
        assert_eq!((answer.code, answer.err), (Some(1), wanted));
    }
}

/// A server that is busy for the first requests, each with a `Retry-After`, if any; and the count of requests.
async fn busy(
    status: u16,
    busy_count: usize,
    retry_after: Option<&'static str>,
) -> (String, Arc<AtomicUsize>) {
    let count = Arc::new(AtomicUsize::new(0));
    let counted = count.clone();
    let server = StubServer::start(move |_: &StubRequest| {
        if counted.fetch_add(1, Ordering::Relaxed) >= busy_count {
            return Some(json_response(200, &json!({"kind": "Thing"})));
        }
        let mut response = json_response(status, &json!({"kind": "Status", "message": "busy"}));
        if let Some(text) = retry_after {
            response.headers_mut().insert("retry-after", text.try_into().expect("a value"));
        }
        Some(response)
    });
    (format!("--server=http://{}", server.await.address), count)
}

#[tokio::test]
async fn a_busy_server_is_asked_again_when_it_says_so() {
    let home = tempfile::tempdir().expect("a directory");
    for (status, busy_count, retry_after, code, requests) in [
        (429, 2, Some("0"), Some(0), 3),
        (503, 1, Some("0"), Some(0), 2),
        (429, 100, Some("0"), Some(1), 11),
        (429, 1, Some("1000000"), Some(1), 1),
        (429, 1, None, Some(1), 1),
        (403, 1, Some("0"), Some(1), 1),
    ] {
        let (server, count) = busy(status, busy_count, retry_after).await;
        let answer = ask(home.path(), &[&server, "get", "--raw", "/x"]).await;
        let asked = count.load(Ordering::Relaxed);
        assert_eq!(
            (answer.code, asked),
            (code, requests),
            "{status} {retry_after:?}: {}",
            answer.err
        );
    }
}

/// The program with this home directory and nothing else of the environment that says where a server is.
async fn ask(home: &Path, arguments: &[&str]) -> Answer {
    let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_orchctl"));
    command.args(arguments).env("HOME", home).env_remove("KUBECONFIG");
    let output = command.stdin(std::process::Stdio::null()).output().await.expect("run");
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Answer { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
}

/// A server that answers who a request acts as.
async fn mirror() -> String {
    let server = StubServer::start(|request: &StubRequest| {
        let of = |name: &str| -> Vec<&str> {
            let all = request.headers.get_all(name).iter();
            all.filter_map(|value| value.to_str().ok()).collect()
        };
        let body = json!({"user": of("impersonate-user"), "groups": of("impersonate-group"),
            "uid": of("impersonate-uid"), "scopes": of("impersonate-extra-scopes")});
        Some(json_response(200, &body))
    });
    format!("http://{}", server.await.address)
}

#[tokio::test]
async fn the_user_of_the_configuration_may_act_as_another() {
    let home = tempfile::tempdir().expect("a directory");
    let server = mirror().await;
    let config = |user: &str| {
        format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{{name: c, context: {{cluster: k, user: u}}}}]\n\
             clusters: [{{name: k, cluster: {{server: '{server}'}}}}]\nusers: [{{name: u, user: {user}}}]\n"
        )
    };
    let user =
        "{token: t, as: viewer, as-uid: '7', as-groups: [g, h], as-user-extra: {scopes: [a, b]}}";
    let path = write(home.path(), "config", &config(user));
    let kubeconfig = format!("--kubeconfig={path}");
    for (flags, wanted) in [
        (
            &[][..],
            json!({"user": ["viewer"], "groups": ["g", "h"], "uid": ["7"], "scopes": ["a", "b"]}),
        ),
        (
            &["--as=other", "--as-group=i"],
            json!({"user": ["other"], "groups": ["i"], "uid": ["7"], "scopes": ["a", "b"]}),
        ),
    ] {
        let arguments = [&[kubeconfig.as_str()], flags, &["get", "--raw", "/x"]].concat();
        let answer = ask(home.path(), &arguments).await;
        let said: serde_json::Value = serde_json::from_str(&answer.out).expect("JSON");
        assert_eq!(said, wanted, "{flags:?}");
    }
    let set = ask(home.path(), &[&kubeconfig, "config", "set", "users.u.as", "set"]).await;
    assert_eq!(set.code, Some(0), "{}", set.err);
    let answer = ask(home.path(), &[&kubeconfig, "get", "--raw", "/x"]).await;
    assert!(answer.out.contains("\"set\""), "{}", answer.out);
    // Groups without a user are not dropped: the request would have the rights of the entry's own user.
    let path = write(home.path(), "config", &config("{token: t, as-groups: [g]}"));
    let answer = ask(home.path(), &["--kubeconfig", &path, "get", "--raw", "/x"]).await;
    assert_eq!((answer.code, answer.err.contains("without as")), (Some(1), true), "{}", answer.err);
}

#[tokio::test]
async fn a_closed_output_takes_no_failure_with_it() {
    let server = Server::start().await;
    server.create(&config_map("a")).await;
    for (objects, code, said) in [
        (
            &["cm/a", "cm/missing"][..],
            1,
            "Error from server (NotFound): configmaps \"missing\" not found\n",
        ),
        (&["cm/a"], 0, ""),
    ] {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let mut command = server.command();
        command.arg("label").args(objects).args(["x=y", "--overwrite"]);
        command.stdout(writer).stderr(Stdio::piped());
        let ended = command.spawn().expect("started").wait_with_output().await.expect("ended");
        let text = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert_eq!((ended.status.code(), text.as_str()), (Some(code), said), "{objects:?}");
    }
}

#[tokio::test]
async fn a_configuration_of_a_program_is_made_by_flags() {
    let home = tempfile::tempdir().expect("a directory");
    let server = StubServer::start(|request: &StubRequest| {
        let is_known = request.headers.get("authorization").is_some_and(|one| one == "Bearer t");
        Some(json_response(if is_known { 200 } else { 401 }, &json!({"kind": "Thing"})))
    });
    let server = format!("--server=http://{}", server.await.address);
    let credential = r#"echo '{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": {"token": "t"}}'"#;
    let script = format!("--exec-arg={credential}");
    for arguments in [
        &["config", "set-cluster", "k", &server][..],
        &[
            "config",
            "set-credentials",
            "u",
            "--exec-command=sh",
            "--exec-arg=-c",
            &script,
            "--exec-api-version=client.authentication.k8s.io/v1",
        ],
        &["config", "set-context", "c", "--cluster=k", "--user=u"],
        &["config", "use-context", "c"],
        &["get", "--raw", "/x"],
        &["config", "set", "users.u.exec.interactiveMode", "Never"],
        &["get", "--raw", "/x"],
    ] {
        let answer = ask(home.path(), arguments).await;
        assert_eq!(answer.code, Some(0), "{arguments:?}: {}", answer.err);
    }
    let mode = ["config", "view", "-o", "jsonpath={.users[0].user.exec.interactiveMode}"];
    assert_eq!(ask(home.path(), &mode).await.out, "Never");
    ask(home.path(), &["config", "unset", "users.u.exec.interactiveMode"]).await;
    assert_eq!(ask(home.path(), &mode).await.out, "");
}

#[tokio::test]
async fn another_program_shows_differences() {
    let server = Server::start().await;
    server.create(&format!("{}data: {{k: old}}\n", config_map("a"))).await;
    let script = "#!/bin/sh\necho \"$1\"\ncd \"$2\" && ls && grep k: *\ncd \"$3\" && ls && grep k: *\nexit $CODE\n";
    let program = write(server.path(), "program", script);
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&program, mode).expect("a program");
    let new =
        format!("{}data: {{k: new}}\n---\n{}data: {{k: b}}\n", config_map("a"), config_map("b"));
    let file = write(server.path(), "new.yaml", &new);
    for (code, wanted) in [("0", 0), ("1", 1), ("3", 2)] {
        let mut command = server.command();
        command.args(["diff", "-f", &file]).env("CODE", code);
        command.env("KUBECTL_EXTERNAL_DIFF", format!("{program} --flag"));
        let output = command.output().await.expect("run");
        assert_eq!(output.status.code(), Some(wanted), "{code}");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let (a, b) = ("v1.ConfigMap.default.a", "v1.ConfigMap.default.b");
        let shown = format!("--flag\n{a}\n  k: old\n{a}\n{b}\n{a}:  k: new\n{b}:  k: b\n");
        assert_eq!(said, shown, "{}", String::from_utf8_lossy(&output.stderr));
    }
}

#[tokio::test]
async fn files_may_be_named_by_a_quoted_pattern() {
    let server = Server::start().await;
    for (name, object) in [("1.yaml", "a"), ("2.yaml", "b"), ("3.txt", "c")] {
        write(server.path(), name, &config_map(object));
    }
    let pattern = server.path().join("[0-9].yaml").display().to_string();
    let made = server.run(&["create", "-f", &pattern]).await;
    assert_eq!(made, "configmap/a created\nconfigmap/b created\n");
    let none = server.path().join("*.json").display().to_string();
    let answer = server.ask(&["create", "-f", &none]).await;
    assert_eq!(answer.err, format!("error: the path \"{none}\" does not exist\n"));
}

#[tokio::test]
async fn variables_of_the_environment_get_into_config_maps() {
    let server = Server::start().await;
    let file = write(server.path(), "vars.env", "A=1\nTAKEN\n# TERM\nMISSING\n");
    let mut command = server.command();
    command.args(["create", "configmap", "e", "--from-env-file", &file]);
    let output =
        command.env("TAKEN", "two\nlines").env_remove("MISSING").output().await.expect("run");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let data = server.run(&["get", "configmap", "e", "-o", "jsonpath={.data}"]).await;
    let data: serde_json::Value = serde_json::from_str(&data).expect("JSON");
    assert_eq!(data, json!({"A": "1", "TAKEN": "two\nlines", "MISSING": ""}));
}

#[tokio::test]
async fn variables_are_listed_and_subjects_added() {
    let server = Server::start().await;
    server.create(WEB).await;
    let listed = server.run(&["set", "env", "deploy/web", "--list"]).await;
    assert_eq!(listed, "# deployments web, container web\nMODE=fast\n");
    let listed = server.run(&["set", "env", "deploy/web", "X=1", "--list"]).await;
    assert_eq!(listed, "# deployments web, container web\nMODE=fast\nX=1\n");
    assert!(!server.run(&["get", "deploy/web", "-o", "yaml"]).await.contains("name: X"));

    server.run(&["create", "rolebinding", "r", "--clusterrole=view", "--user=a"]).await;
    let set =
        ["set", "subject", "rolebinding", "r", "--user=a", "--user=b", "--serviceaccount=n:s"];
    assert_eq!(
        server.run(&set).await,
        "rolebinding.rbac.authorization.k8s.io/r subjects updated\n"
    );
    let names = ["get", "rolebinding", "r", "-o", "jsonpath={.subjects[*].name}"];
    assert_eq!(server.run(&names).await, "a b s");
    let answer = server.ask(&["set", "subject", "rolebinding", "r"]).await;
    assert!(
        answer.err.contains("at least one value of user, group or serviceaccount"),
        "{}",
        answer.err
    );
}

#[tokio::test]
async fn objects_are_recorded_and_edited_before_they_are_created() {
    let server = Server::start().await;
    server.create(WEB).await;
    server.run(&["expose", "deploy/web", "--save-config"]).await;
    server.run(&["autoscale", "deploy/web", "--max=3", "--save-config"]).await;
    server.run(&["expose", "deploy/web", "--name=plain"]).await;
    for (object, is_recorded) in
        [("service/web", true), ("hpa/web", true), ("service/plain", false)]
    {
        let record = server.run(&["get", object, "-o", "jsonpath={.metadata.annotations}"]).await;
        assert_eq!(
            record.contains("last-applied-configuration"),
            is_recorded,
            "{object}: {record}"
        );
    }
    let file = write(server.path(), "a.yaml", &config_map("before"));
    for (editor, made, said) in [
        ("sed -i s/before/after/", "configmap/after created\n", ""),
        ("true", "", "Edit cancelled, no changes made.\n"),
    ] {
        let mut command = server.command();
        let output = command.args(["create", "-f", &file, "--edit"]).env("KUBE_EDITOR", editor);
        let output = output.output().await.expect("run");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        assert_eq!((text(&output.stdout).as_str(), text(&output.stderr).as_str()), (made, said));
        assert!(output.status.success());
    }
}

#[tokio::test]
async fn requests_say_which_command_they_are_of() {
    let home = tempfile::tempdir().expect("a directory");
    let server = StubServer::start(|request: &StubRequest| {
        let of = |name: &str| {
            let value = request.headers.get(name).and_then(|value| value.to_str().ok());
            value.unwrap_or_default().to_owned()
        };
        let session = of("kubectl-session").len();
        Some(json_response(200, &json!({"command": of("kubectl-command"), "session": session})))
    });
    let server = format!("--server=http://{}", server.await.address);
    let answer = ask(home.path(), &[&server, "get", "--raw", "/x"]).await;
    assert!(answer.out.contains(r#""command":"orchctl get""#), "{}", answer.out);
    assert!(answer.out.contains(r#""session":36"#), "{}", answer.out);
}
