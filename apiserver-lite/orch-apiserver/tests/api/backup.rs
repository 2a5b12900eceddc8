//! Backups while the server runs, and servers that start from them.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use http::Request;
use http_body_util::Full;
use orch_apiserver::Config;
use orch_apiserver::config::{AuthorizationMode, Storage};
use serde_json::{Value, json};

use crate::support::{Reply, TestServer, kubernetes};

const BACKUP: &str = "/store/backup";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";

fn config(data: &Path) -> Config {
    let mut config = Config::for_tests(kubernetes());
    config.storage = Storage::Directory(data.to_owned());
    config.cert_dir = Some(data.join("pki"));
    config
}

async fn create(server: &TestServer, name: &str) -> Value {
    let body = json!({"metadata": {"name": name}, "data": {"a": "b"}}).to_string();
    server.post(MAPS, body).await.expect(201)
}

fn number(of: &Value) -> u64 {
    of.as_str().expect("a text").parse().expect("a number")
}

#[tokio::test]
async fn a_backup_is_restored_into_a_new_server() {
    let dir = tempfile::tempdir().unwrap();
    let (old, new) = (dir.path().join("old"), dir.path().join("new"));
    let server = TestServer::with(config(&old)).await;
    let made = create(&server, "before").await;
    let backup = server.post(BACKUP, "").await.expect(201);
    let after = create(&server, "after").await;
    let path = PathBuf::from(backup["path"].as_str().unwrap());
    assert!(path.starts_with(old.join("backups")), "{backup}");
    assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    assert!(backup["objects"].as_u64().unwrap() > 5, "{backup}");
    assert_eq!(backup["encryptedObjects"], 0);
    assert_eq!(number(&backup["resourceVersion"]), number(&made["metadata"]["resourceVersion"]));
    server.post(BACKUP, "").await.expect(201);
    server.stop().await;

    let restored = orch_apiserver::restore(&config(&new), &path).unwrap();
    assert_eq!(restored.records, backup["objects"].as_u64().unwrap());
    let server = TestServer::with(config(&new)).await;
    assert_eq!(server.get(&format!("{MAPS}/before")).await.expect(200), made);
    server.get(&format!("{MAPS}/after")).await.expect(404);
    // A client of the old server, which has seen what came after the backup, lists again.
    for seen in [&made, &after] {
        let seen = &seen["metadata"]["resourceVersion"];
        let mut events =
            server.watch(&format!("{MAPS}?watch=true&resourceVersion={}", number(seen))).await;
        let event = events.next().await.expect("an event");
        assert_eq!((&event["type"], &event["object"]["code"]), (&json!("ERROR"), &json!(410)));
    }
    let next = create(&server, "next").await;
    assert!(number(&next["metadata"]["resourceVersion"]) > restored.revision.0);
    server.stop().await;
}

#[tokio::test]
async fn the_program_restores_and_ends() {
    let dir = tempfile::tempdir().unwrap();
    let server = TestServer::with(config(&dir.path().join("old"))).await;
    let backup = server.post(BACKUP, "").await.expect(201);
    server.stop().await;
    let run = |data: &Path, naming: &str| {
        let ran = Command::new(env!("CARGO_BIN_EXE_orch-apiserver"))
            .arg(format!("--naming={naming}"))
            .arg(format!("--data-dir={}", data.display()))
            .arg(format!("--restore={}", backup["path"].as_str().unwrap()))
            .output()
            .expect("started");
        let text = [ran.stdout, ran.stderr].concat();
        (ran.status.code(), String::from_utf8_lossy(&text).into_owned())
    };
    let new = dir.path().join("new");
    let (code, told) = run(&new, "orch");
    assert_eq!(code, Some(1), "{told}");
    assert!(told.contains("restore it with the profile of the backup"), "{told}");
    let (code, told) = run(&new, "kubernetes");
    assert_eq!(code, Some(0), "{told}");
    let count = format!("restored {} objects of revision", backup["objects"]);
    assert!(told.contains(&count), "{told}");
    let (code, told) = run(&new, "kubernetes");
    assert_eq!(code, Some(1), "{told}");
    assert!(told.contains("is not empty"), "{told}");
}

async fn post_as(server: &TestServer, user: &str, group: &str) -> Reply {
    let request = Request::post(BACKUP)
        .header("host", "test")
        .header("impersonate-user", user)
        .header("impersonate-group", group);
    server.send(request.body(Full::default()).unwrap()).await
}

#[tokio::test]
async fn a_backup_needs_a_permission() {
    let dir = tempfile::tempdir().unwrap();
    let roles = Config {
        authorization: vec![AuthorizationMode::Node, AuthorizationMode::Rbac],
        ..config(&dir.path().join("roles"))
    };
    let server = TestServer::with(roles).await;
    let refused = post_as(&server, "jane", "dev").await.expect(403);
    let text = refused["message"].as_str().unwrap_or_default();
    assert!(text.contains("User \"jane\" cannot post path \"/store/backup\""), "{text}");
    post_as(&server, "system:node:a", "system:nodes").await.expect(403);
    server.anonymous(BACKUP).await.expect(403);
    post_as(&server, "root", "system:masters").await.expect(201);
    server.get(BACKUP).await.expect(405);
    server.stop().await;
    // Where everything is allowed, kubelets still only read such paths.
    let server = TestServer::with(config(&dir.path().join("all"))).await;
    post_as(&server, "system:node:a", "system:nodes").await.expect(403);
    post_as(&server, "jane", "dev").await.expect(201);
    server.stop().await;
}

#[tokio::test]
async fn backups_have_a_bound() {
    let server = TestServer::start().await;
    let refused = server.post(BACKUP, "").await.expect(400);
    assert!(refused["message"].as_str().is_some_and(|text| text.contains("--data-dir")));
    let dir = tempfile::tempdir().unwrap();
    let server = TestServer::with(config(dir.path())).await;
    let backups = dir.path().join("backups");
    std::fs::create_dir(&backups).unwrap();
    (0..63).for_each(|nth| std::fs::write(backups.join(nth.to_string()), "").unwrap());
    server.post(BACKUP, "").await.expect(201);
    let refused = server.post(BACKUP, "").await.expect(507);
    assert!(refused["message"].as_str().is_some_and(|text| text.contains("move old ones")));
    std::fs::remove_file(backups.join("7")).unwrap();
    server.post(BACKUP, "").await.expect(201);
    server.stop().await;
}
