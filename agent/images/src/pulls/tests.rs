//! Pulls on the runtime in memory.

use agent_runtime::fake::FakeRuntime;
use agent_telemetry::metrics::AgentMetrics;

use super::*;
use crate::{Providers, STANDSTILL, import_dir};

fn pull_bounds() -> PullBounds {
    PullBounds { parallel: 2, qps: 0, burst: 0, standstill: STANDSTILL }
}

/// A node without pods.
struct OnlySandbox(&'static str);

impl PodImages for OnlySandbox {
    fn image_names(&self) -> Vec<String> {
        vec![self.0.to_owned()]
    }

    fn wake_pods(&self) {}
}

fn images(runtime: &Arc<FakeRuntime>) -> Arc<Images> {
    Images::new(runtime.clone(), CredentialSources::default(), pull_bounds())
}

#[tokio::test]
async fn pods_that_want_the_same_share_a_pull() {
    let (runtime, _) = FakeRuntime::new();
    runtime.offer_image("reg.io/app:1");
    let runtime = Arc::new(runtime);
    let images = images(&runtime);
    // No pull can begin until all three want one.
    let take = |name: &str| {
        let origin = PullOrigin { registry: name.to_owned(), namespace: name.to_owned() };
        images.slots.take(origin, Rank::new(0))
    };
    let slots = (take("a").await, take("b").await);
    let (pod, objects) = (Pod::default(), PodObjects::default());
    let pull = || images.pull("reg.io/app:1", &pod, &objects);
    let all_wait = async {
        let waiting = || {
            let under_way = lock(&images.under_way);
            under_way.values().next().and_then(|(pull, _)| pull.strong_count())
        };
        // The three, and the one in the map.
        while waiting() != Some(4) {
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
        drop(slots);
    };
    let (a, b, c, ()) = tokio::join!(pull(), pull(), pull(), all_wait);
    assert!(a.is_ok() && a == b && b == c);
    let pulls = runtime.changes().iter().filter(|change| change.call == "PullImage").count();
    assert_eq!(pulls, 1);
    assert!(images.list_protected().is_empty());
}

#[tokio::test]
async fn failures_say_what_they_are() {
    let (runtime, _) = FakeRuntime::new();
    let images = images(&Arc::new(runtime));
    let (pod, objects) = (Pod::default(), PodObjects::default());
    let invalid = images.pull("Up/Case", &pod, &objects).await.expect_err("invalid");
    assert_eq!(invalid.reason, "InvalidImageName");
    let absent = images.pull("reg.io/none:1", &pod, &objects).await.expect_err("absent");
    assert_eq!(absent.reason, "ErrImagePull");
    assert!(lock(&images.under_way).is_empty(), "a failed pull can be tried again");
}

#[tokio::test]
async fn a_pull_that_panicked_can_be_tried_again() {
    let (runtime, _) = FakeRuntime::new();
    runtime.offer_image("reg.io/app:1");
    runtime.panic_next("PullImage");
    let images = images(&Arc::new(runtime));
    let (pod, objects) = (Pod::default(), PodObjects::default());
    let broken = images.pull("reg.io/app:1", &pod, &objects).await.expect_err("it panicked");
    assert!(broken.message.starts_with("the pull panicked: "), "{}", broken.message);
    assert!(images.list_protected().is_empty());
    images.pull("reg.io/app:1", &pod, &objects).await.expect("pulled");
}

#[tokio::test]
async fn registry_messages_and_pull_attempts_are_bounded() {
    let (runtime, _) = FakeRuntime::new();
    for n in 0..1000 {
        let said = format!("{n} {}", "ü".repeat(5000));
        runtime.fail_next("PullImage", agent_runtime::runtime::RefusalKind::Other, &said);
    }
    let runtime = Arc::new(runtime);
    let images = images(&runtime);
    let auths = (0..500).map(|n| {
        format!(r#""{}.io": {{"username": "u{n}", "password": "p"}}"#, "?".repeat(n % 4) + "*")
    });
    let entries: Vec<String> = auths.collect();
    // Keys that differ in how often they say the same.
    let entries = entries
        .iter()
        .enumerate()
        .map(|(n, entry)| entry.replacen('"', &format!("\"{}", "https://".repeat(n / 4)), 1));
    let json = format!("{{\"auths\": {{{}}}}}", entries.collect::<Vec<_>>().join(","));
    let mut secret = Secret::default();
    secret.data.insert(".dockerconfigjson".into(), json.into_bytes());
    let mut pod = Pod::default();
    pod.spec.image_pull_secrets = vec![LocalObjectReference { name: "s".into() }];
    let mut objects = PodObjects::default();
    objects.secrets.insert("s".into(), Some(Arc::new(secret)));
    let failed = images.pull("long.io/app:1", &pod, &objects).await.expect_err("refused");
    assert!((4000..=4096).contains(&failed.message.len()), "{}", failed.message.len());
    let asked = runtime.changes().iter().filter(|change| change.call == "PullImage").count();
    assert_eq!(asked, LOGINS_MAX);
}

mod registry;

use agent_node::image_gc::ImageGcLimits;
use agent_runtime::image::{ImageFile, ImageTar};
use agent_runtime::import::{self, ImageRetention};
use agent_runtime::test_containerd::Containerd;
use proto_api::core::v1::{LocalObjectReference, Secret};
use registry::{PASSWORD, PRIVATE, PUBLIC, Registry, USER};

use crate::image_gc::ReclaimGoal;

fn tar(name: &str, content: u8) -> ImageTar {
    let data = vec![content; 1 << 20];
    let file = ImageFile::Regular { path: "data", mode: 0o644, data };
    ImageTar::single_layer(name, &[file], &["/data"])
}

/// A pod with a pull secret, and what it refers to.
fn with_secret(address: &str, password: &str) -> (Pod, PodObjects) {
    use base64::Engine as _;
    let auth = base64::engine::general_purpose::STANDARD.encode(format!("{USER}:{password}"));
    let json = format!(r#"{{"auths": {{"http://{address}/v2/": {{"auth": "{auth}"}}}}}}"#);
    let mut secret = Secret::default();
    secret.data.insert(".dockerconfigjson".into(), json.into_bytes());
    let mut pod = Pod::default();
    pod.spec.image_pull_secrets = vec![LocalObjectReference { name: "s".into() }];
    let mut objects = PodObjects::default();
    objects.secrets.insert("s".into(), Some(Arc::new(secret)));
    (pod, objects)
}

#[tokio::test]
async fn a_registry_is_shown_the_right_credentials() {
    let test = "a_registry_is_shown_the_right_credentials";
    let Some(containerd) = Containerd::start(test) else { return };
    let registry = Registry::start(&tar("x:1", 1)).await;
    let runtime = Arc::new(containerd.runtime.clone());
    let root = containerd.dir().join("agent");
    std::fs::create_dir_all(&root).expect("mkdir");
    let bounds = PullBounds { parallel: 4, ..pull_bounds() };
    let plain = Images::new(runtime.clone(), CredentialSources::default(), bounds);
    let (pod, objects) = (Pod::default(), PodObjects::default());
    let public = format!("{}/{PUBLIC}:1", registry.address);
    let private = format!("{}/{PRIVATE}:1", registry.address);

    // Pods that want the same at the same time fetch it once.
    let pull = || plain.pull(&public, &pod, &objects);
    let (a, b, c) = tokio::join!(pull(), pull(), pull());
    assert!(a.is_ok() && a == b && b == c, "{a:?}");
    assert_eq!(registry.fetched("blobs"), 2, "the layer and the configuration, once each");
    runtime.remove_image(&a.expect("id")).await.expect("removed");

    // A private repository is refused to strangers and to a wrong password.
    let stranger = plain.pull(&private, &pod, &objects).await.expect_err("refused");
    assert_eq!(stranger.reason, "ErrImagePull");
    let (pod, wrong) = with_secret(&registry.address, "guess");
    plain.pull(&private, &pod, &wrong).await.expect_err("refused");
    let (pod, right) = with_secret(&registry.address, PASSWORD);
    let id = plain.pull(&private, &pod, &right).await.expect("with the pod's secret");
    runtime.remove_image(&id).await.expect("removed");

    // What the node itself knows comes after the pod's secrets, and is read again when it changes.
    let logins = CredentialSources::new(&root, Providers::default());
    let node = Images::new(runtime.clone(), logins, bounds);
    node.pull(&private, &pod, &wrong).await.expect_err("the node knows nothing yet");
    let config = format!(
        r#"{{"auths": {{"{}": {{"username": "{USER}", "password": "{PASSWORD}"}}}}}}"#,
        registry.address
    );
    std::fs::write(root.join("config.json"), config).expect("write");
    let id = node.pull(&private, &pod, &wrong).await.expect("with the node's file");
    runtime.remove_image(&id).await.expect("removed");

    // A plugin is asked once for what it says is good for a while.
    let providers = plugin(&root, &registry.address);
    let asked =
        Images::new(runtime.clone(), CredentialSources::new(&root.join("none"), providers), bounds);
    for _ in 0..2 {
        let id = asked.pull(&private, &pod, &objects).await.expect("with the plugin's answer");
        runtime.remove_image(&id).await.expect("removed");
    }
    let asked = std::fs::read_to_string(root.join("asked")).expect("asked");
    assert_eq!(asked.lines().count(), 1, "{asked}");
    assert!(asked.contains(&format!("\"image\":\"{}/{PRIVATE}\"", registry.address)), "{asked}");
}

fn plugin(root: &std::path::Path, address: &str) -> Providers {
    let bin = root.join("bin");
    std::fs::create_dir_all(&bin).expect("mkdir");
    let group = "credentialprovider.kubelet.k8s.io";
    let answer = format!(
        r#"{{"apiVersion":"{group}/v1beta1","kind":"CredentialProviderResponse","cacheKeyType":"Registry","cacheDuration":"10m","auth":{{"{address}":{{"username":"{USER}","password":"{PASSWORD}"}}}}}}"#
    );
    let script = format!(
        "#!/bin/sh\ncat >> {0}/asked\necho >> {0}/asked\n[ \"$MODE\" = test ] && echo '{answer}'\n",
        root.display()
    );
    let (text, program) = (root.join("script"), bin.join("plugin"));
    std::fs::write(&text, script).expect("write");
    // By another process: a fork in another test would have a copy of the open file, and the kernel executes no file that is open for writing.
    let mut install = std::process::Command::new("install");
    let installed = install.args(["-m", "755"]).args([&text, &program]).status();
    assert!(installed.expect("it begins").success());
    let config = format!(
        "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: CredentialProviderConfig\nproviders:\n\
         - name: plugin\n  apiVersion: {group}/v1beta1\n  matchImages: ['{address}']\n  \
         defaultCacheDuration: 1m\n  env: [{{name: MODE, value: test}}]\n"
    );
    let path = root.join("providers.yaml");
    std::fs::write(&path, config).expect("write");
    Providers::load(&path, &bin, &AgentMetrics::default().operations).expect("providers")
}

#[tokio::test]
async fn a_stalled_pull_is_reported_cancelled_and_retried() {
    let Some(containerd) = Containerd::start("a_pull_stands_still") else { return };
    let (data, path, mode) = (vec![1; 4 << 20], "data", 0o644);
    let file = ImageFile::Regular { path, mode, data };
    let registry = Registry::start(&ImageTar::single_layer("x:1", &[file], &["/data"])).await;
    // More than half of the layer comes, and then nothing more. containerd writes a mebibyte at a time.
    registry.let_through(5 << 19);
    let image = format!("{}/{PUBLIC}:1", registry.address);
    let runtime = Arc::new(containerd.runtime.clone());
    // On a busy machine too what the registry lets through comes before.
    let standstill = Duration::from_secs(6);
    let bounds = PullBounds { standstill, ..pull_bounds() };
    let images = Images::new(runtime.clone(), CredentialSources::default(), bounds);
    let pod = Pod::default();
    let objects = PodObjects::default();
    let pull = || images.pull(&image, &pod, &objects);
    let said_after = Duration::from_millis(500);
    let told = Mutex::new(Vec::new());
    let given_up = images
        .report_progress(&image, said_after, pull(), |message| lock(&told).push(message))
        .await;
    let message = given_up.expect_err("the registry has stopped").message;
    assert!(message.ends_with("was cancelled: no progress for 6s"), "{message}");
    let told = lock(&told).clone();
    assert!(
        told.iter().any(|text| text.ends_with(": 2.0 of 4.0 MiB received of 1 layers")),
        "{told:?}"
    );

    registry.let_through(usize::MAX);
    // On a busy machine the rest too may stand still for a while.
    let stands_still = |error: &PullError| error.message.ends_with("no progress for 6s");
    let mut rest = pull().await;
    for _ in 0..10 {
        if rest.as_ref().is_err_and(stands_still) {
            rest = pull().await;
        }
    }
    rest.expect("the rest");
    // Whether the runtime has kept what had come is its own business.
    assert!(registry.begun().len() >= 2);
}

#[tokio::test]
async fn unused_images_are_garbage_collected() {
    let Some(containerd) = Containerd::start("unused_images_are_garbage_collected") else { return };
    let runtime = Arc::new(containerd.runtime.clone());
    let dir = containerd.dir().join("agent");
    std::fs::create_dir_all(&dir).expect("mkdir");
    let images = Images::new(runtime.clone(), CredentialSources::default(), pull_bounds());
    let pods: Arc<dyn PodImages> = Arc::new(OnlySandbox("pause:1"));
    let archives = dir.join("archives");
    std::fs::create_dir_all(&archives).expect("mkdir");
    // The sandbox image, one that is imported for the node, one that nobody wants.
    for (name, content) in [("pause:1", 1), ("unused.test/a:1", 2)] {
        let full = ImageName::parse(name).expect("name").full();
        let tar = tar(&full, content);
        import::import_tar(runtime.channel(), "k8s.io", &tar, ImageRetention::WhileUsed)
            .await
            .expect("import");
        assert!(import::wait_until_listed(&*runtime, &full).await.expect("shown"));
    }
    let importing = tokio::spawn(
        import_dir::ImportDir {
            dir: archives.clone(),
            state: dir.join("imported.json"),
            runtime: containerd.runtime.clone(),
            namespace: "k8s.io",
            images: images.clone(),
            pods: pods.clone(),
        }
        .run(),
    );
    std::fs::write(archives.join("part.tar"), b"no archive").expect("write");
    let kept = "kept.test/b:1";
    let new = std::fs::File::create(archives.join(".new")).expect("create");
    let mut new = flate2::write::GzEncoder::new(new, flate2::Compression::fast());
    std::io::Write::write_all(&mut new, tar(kept, 3).bytes()).expect("write");
    new.finish().expect("write");
    std::fs::rename(archives.join(".new"), archives.join("b.tar.gz")).expect("rename");
    let is_there = || async { runtime.image(kept).await.expect("image").is_some() };
    for _ in 0..600 {
        if images.is_imported(kept) && is_there().await {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(is_there().await && images.is_imported(kept));

    let limits = ImageGcLimits { min_age: Duration::ZERO, ..ImageGcLimits::default() };
    let freed = images.collect(&*pods, ReclaimGoal::Everything, limits).await.expect("collect");
    assert_eq!(freed.images, 1);
    let left = |name: &'static str| async { runtime.image(name).await.expect("image").is_some() };
    assert!(left("docker.io/library/pause:1").await && left("kept.test/b:1").await);
    assert!(!left("unused.test/a:1").await);

    // Without its archive it is an image like any other.
    std::fs::remove_file(archives.join("b.tar.gz")).expect("remove");
    for _ in 0..600 {
        if !images.is_imported(kept) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let freed = images.collect(&*pods, ReclaimGoal::Everything, limits).await.expect("collect");
    assert_eq!(freed.images, 1);
    assert!(!left("kept.test/b:1").await);
    importing.abort();
}
