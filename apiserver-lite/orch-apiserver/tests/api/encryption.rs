//! Encryption at rest: what lies on disk, rotation of keys, and objects whose key is gone.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use orch_apiserver::Config;
use orch_apiserver::config::{EncryptionSettings, Storage};
use proto_daemon::exit::chain;
use serde_json::{Value, json};

use crate::support::{TestServer, kubernetes};

const SECRETS: &str = "/api/v1/namespaces/default/secrets";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";
/// What the tests look for on disk.
const KNOWN: &str = "a-known-text-of-a-secret";
/// Longest wait for a file to be noticed, reached only on failure.
const NOTICED_MAX: Duration = Duration::from_secs(60);

/// Replaces the file: `one,identity` are a key and clear text.
pub fn configure(file: &Path, resource: &str, providers: &str) {
    use base64::Engine as _;
    let provider = |name: &str| match name {
        "identity" => json!({"identity": {}}),
        name => {
            let secret = base64::engine::general_purpose::STANDARD.encode(format!("{name:*<32}"));
            json!({"aesgcm": {"keys": [{"name": name, "secret": secret}]}})
        }
    };
    let providers: Vec<Value> = providers.split(',').map(provider).collect();
    let text = json!({
        "apiVersion": "apiserver.config.k8s.io/v1", "kind": "EncryptionConfiguration",
        "resources": [{"resources": [resource], "providers": providers}],
    });
    let new = file.with_extension("new");
    std::fs::write(&new, text.to_string()).unwrap();
    std::fs::rename(new, file).unwrap();
}

/// A data directory with an encryption configuration beside it.
struct World(tempfile::TempDir);

impl World {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn file(&self) -> PathBuf {
        self.0.path().join("encryption.yaml")
    }

    fn data(&self) -> PathBuf {
        self.0.path().join("data")
    }

    fn configure(&self, resource: &str, providers: &str) {
        configure(&self.file(), resource, providers);
    }

    fn config(&self) -> Config {
        let mut config = Config::for_tests(kubernetes());
        config.storage = Storage::Directory(self.data());
        config.cert_dir = Some(self.data().join("pki"));
        config
    }

    async fn start_plain(&self) -> TestServer {
        TestServer::with(self.config()).await
    }

    async fn start(&self, providers: &str) -> TestServer {
        self.configure("secrets", providers);
        TestServer::with(self.encrypting(false)).await
    }

    fn encrypting(&self, reload: bool) -> Config {
        let mut config = self.config();
        config.encryption = Some(EncryptionSettings { file: self.file(), reload });
        config
    }

    /// The files of the store that have `what` in their bytes.
    fn files_with(&self, what: &str) -> Vec<String> {
        let mut found = Vec::new();
        for entry in std::fs::read_dir(self.data().join("store")).unwrap() {
            let path = entry.unwrap().path();
            let bytes = std::fs::read(&path).unwrap();
            if bytes.windows(what.len()).any(|part| part == what.as_bytes()) {
                found.push(path.file_name().unwrap().to_string_lossy().into_owned());
            }
        }
        found
    }
}

async fn create(server: &TestServer, name: &str) {
    let body = json!({"metadata": {"name": name}, "stringData": {"a": KNOWN}}).to_string();
    server.post(SECRETS, body).await.expect(201);
}

/// Replaces the object by itself, as `kubectl get -o json | kubectl replace -f -` does. Whether it was written.
pub async fn replace_by_itself(server: &TestServer, name: &str) -> bool {
    let path = format!("{SECRETS}/{name}");
    let before = server.get(&path).await.expect(200);
    let after = server.put(&path, &before).await.expect(200);
    let version = |of: &Value| of["metadata"]["resourceVersion"].clone();
    let mut same = after.clone();
    same["metadata"]["resourceVersion"] = version(&before);
    assert_eq!(same, before, "nothing else changes");
    version(&after) != version(&before)
}

fn data_of(secret: &Value) -> &str {
    secret["data"]["a"].as_str().unwrap_or_default()
}

const IN_BASE64: &str = "YS1rbm93bi10ZXh0LW9mLWEtc2VjcmV0";

#[tokio::test]
async fn secrets_are_not_on_disk_in_clear_text() {
    let world = World::new();
    let server = world.start("one,identity").await;
    create(&server, "s").await;
    let map = json!({"metadata": {"name": "m"}, "data": {"a": "a-known-setting"}}).to_string();
    server.post(MAPS, map).await.expect(201);
    server
        .merge_patch(&format!("{SECRETS}/s"), r#"{"metadata":{"labels":{"a":"b"}}}"#)
        .await
        .expect(200);
    server.stop().await;
    assert_eq!(world.files_with(KNOWN), [""; 0]);
    assert_eq!(world.files_with("k8s:enc:aesgcm:v1:one:").len(), 1);
    assert_eq!(world.files_with("a-known-setting").len(), 1, "the search finds clear text");
    let server = world.start("one,identity").await;
    let secret = server.get(&format!("{SECRETS}/s")).await.expect(200);
    assert_eq!(data_of(&secret), IN_BASE64);
    server.stop().await;
}

#[tokio::test]
async fn keys_are_rotated_by_writing_every_object_again() {
    let world = World::new();
    let server = world.start_plain().await;
    create(&server, "s").await;
    assert!(!replace_by_itself(&server, "s").await, "without encryption nothing is stale");
    server.stop().await;
    assert_eq!(world.files_with(KNOWN).len(), 1);
    // To a first key, to a second one, and back to clear text.
    for (providers, rest) in
        [("one,identity", "one"), ("two,one", "two"), ("identity,two", "identity")]
    {
        let server = world.start(providers).await;
        assert!(replace_by_itself(&server, "s").await, "{providers}");
        assert!(!replace_by_itself(&server, "s").await, "{providers}: written once");
        let patch = server.merge_patch(&format!("{SECRETS}/s"), "{}").await.expect(200);
        let now = server.get(&format!("{SECRETS}/s")).await.expect(200);
        assert_eq!(patch, now, "{providers}");
        server.stop().await;
        let server = world.start(rest).await;
        let secret = server.get(&format!("{SECRETS}/s")).await.expect(200);
        assert_eq!(data_of(&secret), IN_BASE64, "{rest} suffices");
        server.stop().await;
    }
    let server = world.start_plain().await;
    let secret = server.get(&format!("{SECRETS}/s")).await.expect(200);
    assert_eq!(data_of(&secret), IN_BASE64, "the flag can go again");
    server.stop().await;
}

/// Every way to read or change `lost` is answered 500 with its name and that of the key.
async fn check_lost(server: &TestServer, why: &str) {
    let lost = format!("{SECRETS}/lost");
    let some = json!({"metadata": {"name": "lost"}, "stringData": {"b": "c"}});
    let answers = [
        server.get(&lost).await,
        server.accept(&lost, "application/json;as=Table;g=meta.k8s.io;v=v1").await,
        server.accept(&lost, "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1").await,
        server.get(SECRETS).await,
        server.get("/api/v1/secrets").await,
        server.get(&format!("{SECRETS}?labelSelector=a%3Db")).await,
        server.get(&format!("{SECRETS}?fieldSelector=metadata.name%3Dlost")).await,
        server.put(&lost, &some).await,
        server.merge_patch(&lost, r#"{"metadata":{"labels":{"a":"b"}}}"#).await,
        server.merge_patch(&lost, "{}").await,
        server.delete(&lost).await,
        server.delete(SECRETS).await,
    ];
    for (nth, answer) in answers.iter().enumerate() {
        let text = answer.expect(500)["message"].as_str().unwrap_or_default().to_owned();
        assert!(text.contains("/core/secrets/default/lost"), "{nth}: {text}");
        assert!(text.contains(why), "{nth}: {text}");
    }
    server.post(SECRETS, some.to_string()).await.expect(409);
    let mut events = server.watch(&format!("{SECRETS}?watch=true&labelSelector=a%3Db")).await;
    let event = events.next().await.expect("an event");
    assert_eq!((&event["type"], &event["object"]["code"]), (&json!("ERROR"), &json!(500)));
}

/// The format that a backup says it has: older programs refuse what they would take for clear text.
fn format_of(path: &str) -> u32 {
    let bytes = std::fs::read(path).unwrap();
    let number = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    let after_text = |at: usize| at + 4 + usize::try_from(number(at)).unwrap();
    let profile = "orchback".len() + 4;
    number(after_text(after_text(profile)))
}

#[tokio::test]
async fn objects_with_a_missing_encryption_key_answer_500_and_others_are_served() {
    let world = World::new();
    let server = world.start("one,identity").await;
    create(&server, "lost").await;
    create(&server, "moved").await;
    server.stop().await;
    let server = world.start("two,one").await;
    replace_by_itself(&server, "moved").await;
    server.stop().await;

    let server = world.start("two,identity").await;
    check_lost(&server, "key \"one\" of aesgcm").await;
    let moved = server.get(&format!("{SECRETS}/moved")).await.expect(200);
    assert_eq!(data_of(&moved), IN_BASE64);
    let by_name = format!("{SECRETS}?fieldSelector=metadata.name%3Dmoved");
    let listed = server.get(&by_name).await.expect(200);
    assert_eq!(listed["items"].as_array().map(Vec::len), Some(1));
    let mut events = server.watch(&format!("{by_name}&watch=true")).await;
    assert_eq!(events.next_short().await, "ADDED moved");
    server.get(&MAPS.replace("default", "kube-system")).await.expect(200);
    create(&server, "new").await;
    server.stop().await;

    let server = world.start_plain().await;
    check_lost(&server, "there is no --encryption-provider-config").await;
    let backup = server.post("/store/backup", "").await.expect(201);
    assert_eq!(format_of(backup["path"].as_str().expect("a path")), 2, "it has encrypted values");
    server.stop().await;

    let server = world.start("two,one").await;
    let secret = server.get(&format!("{SECRETS}/lost")).await.expect(200);
    assert_eq!(data_of(&secret), IN_BASE64, "nothing was lost");
    server.get(SECRETS).await.expect(200);
    server.stop().await;
}

#[tokio::test]
async fn an_object_whose_key_is_lost_for_good_is_deleted_on_demand() {
    let world = World::new();
    let server = world.start("one").await;
    create(&server, "lost").await;
    server.stop().await;
    let server = world.start("two,identity").await;
    let lost = format!("{SECRETS}/lost");
    server.delete(&lost).await.expect(500);
    let flag = "ignoreStoreReadErrorWithClusterBreakingPotential=true";
    server.delete(&format!("{lost}?{flag}&dryRun=All")).await.expect(200);
    server.get(&lost).await.expect(500);
    server.delete(&format!("{lost}?{flag}")).await.expect(200);
    server.get(&lost).await.expect(404);
    server.get(SECRETS).await.expect(200);
    // Of others it changes nothing.
    create(&server, "other").await;
    server.delete(&format!("{SECRETS}/other?{flag}")).await.expect(200);
    server.get(&format!("{SECRETS}/other")).await.expect(404);
    server.stop().await;
}

#[tokio::test]
async fn a_changed_file_counts_without_a_restart_if_the_flag_says_so() {
    let world = World::new();
    world.configure("secrets", "one,identity");
    let server = TestServer::with(world.encrypting(true)).await;
    create(&server, "s").await;
    world.configure("secrets", "two,one");
    let deadline = Instant::now() + NOTICED_MAX;
    while !replace_by_itself(&server, "s").await {
        assert!(Instant::now() < deadline, "the new file was not noticed");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    server.stop().await;
    let server = world.start("two").await;
    assert_eq!(data_of(&server.get(&format!("{SECRETS}/s")).await.expect(200)), IN_BASE64);
    server.stop().await;
}

async fn refusal(config: Config) -> String {
    match orch_apiserver::build(config).await {
        Ok(_) => panic!("the server starts"),
        Err(error) => chain(&error),
    }
}

#[tokio::test]
async fn a_bad_file_refuses_the_start() {
    let world = World::new();
    for (resource, providers, why) in [
        ("secret", "one", "resources[0].resources[0]: \"secret\" is no resource of this server"),
        ("secrets", "a:b", "resources[0].providers[0].aesgcm.keys[0].name: must have"),
    ] {
        world.configure(resource, providers);
        let told = refusal(world.encrypting(false)).await;
        assert!(told.contains(why), "{told}");
    }
    std::fs::remove_file(world.file()).unwrap();
    let told = refusal(world.encrypting(false)).await;
    assert!(told.contains("cannot read configuration"), "{told}");
    assert!(!Path::new(&world.data()).join("store").exists(), "nothing was made");
}

/// What would stand for a namespace, service or quota allows what the object forbids.
#[tokio::test]
async fn the_server_does_not_start_without_what_it_decides_by() {
    let world = World::new();
    world.configure("namespaces", "one,identity");
    TestServer::with(world.encrypting(false)).await.stop().await;
    world.configure("namespaces", "two,identity");
    let told = refusal(world.encrypting(false)).await;
    assert!(told.contains("restore /core/namespaces/"), "{told}");
    assert!(told.contains("the server needs it to start") && told.contains("\"one\""), "{told}");
    world.configure("namespaces", "two,one,identity");
    TestServer::with(world.encrypting(false)).await.stop().await;
}
