//! Files and a runtime in memory.

use std::io::{Read as _, Write as _};

use agent_pod::spec::{ContainerConfig, SandboxConfig};
use agent_runtime::fake::FakeRuntime;
use agent_runtime::runtime::RefusalKind;
use agent_runtime::{ContainerRuntime as _, ImageRuntime as _, SandboxRuntime as _};
use proto_api::core::v1::{ContainerState, ContainerStateRunning, ContainerStatus};

use super::*;

const LIMITS: Limits = Limits { size: 10, files: 3 };

struct Bench {
    runtime: FakeRuntime,
    instance: String,
    logs: tempfile::TempDir,
    pod: Pod,
}

impl Bench {
    async fn new() -> Self {
        let runtime = FakeRuntime::new().0;
        runtime.add_image("image");
        let sandbox = SandboxConfig {
            name: "web".into(),
            namespace: "a".into(),
            uid: "u".into(),
            ..SandboxConfig::default()
        };
        let id = runtime.run_sandbox(&sandbox).await.expect("sandbox").id;
        let image = runtime.image("image").await.expect("asked").expect("there").id;
        let container = ContainerConfig { name: "c".into(), image, ..ContainerConfig::default() };
        let instance = runtime.create_container(&id, &container, &sandbox).await.expect("created");
        runtime.start_container(&instance).await.expect("started");
        let mut pod = Pod::default();
        pod.metadata.name = "web".into();
        pod.metadata.namespace = "a".into();
        pod.metadata.uid = "u".into();
        let state = ContainerState {
            running: Some(ContainerStateRunning::default()),
            ..ContainerState::default()
        };
        let status = ContainerStatus {
            name: "c".into(),
            state,
            container_id: format!("x://{instance}"),
            ..ContainerStatus::default()
        };
        pod.status.container_statuses = vec![status];
        let logs = tempfile::tempdir().expect("tempdir");
        std::fs::create_dir_all(logs.path().join("a_web_u/c")).expect("made");
        Self { runtime, instance, logs, pod }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.logs.path().join("a_web_u/c").join(name)
    }

    /// The runtime writes, to a new file when there is none.
    fn write(&self, text: &str) {
        let mut file = std::fs::OpenOptions::new()
            .append(true)
            .create(true)
            .open(self.file("0.log"))
            .expect("open");
        file.write_all(text.as_bytes()).expect("written");
    }

    /// Whether the log was rotated.
    async fn pass(&self) -> Result<bool, String> {
        self.pass_until(Instant::now() + Duration::from_secs(600)).await
    }

    async fn pass_until(&self, until: Instant) -> Result<bool, String> {
        let mut found = logs(&self.logs.path().to_string_lossy(), std::slice::from_ref(&self.pod));
        let kept = keep(&self.runtime, found.pop().expect("a log"), LIMITS).await;
        let kept = kept.map_err(|error| chain(&error))?;
        let is_rotated = matches!(kept, Kept::Rotated(_));
        compress_all(kept.uncompressed(), LIMITS, until).await;
        Ok(is_rotated)
    }

    fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.file("")).expect("read").flatten();
        let mut names: Vec<_> =
            entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    fn reopened(&self) -> usize {
        self.runtime.changes().iter().filter(|change| change.call == "ReopenContainerLog").count()
    }
}

fn unpacked(path: &Path) -> String {
    let mut text = String::new();
    let file = std::fs::File::open(path).expect("open");
    flate2::read::GzDecoder::new(file).read_to_string(&mut text).expect("whole");
    text
}

#[tokio::test]
async fn a_log_is_rotated_and_older_files_are_compressed() {
    let bench = Bench::new().await;
    bench.write("short");
    assert_eq!(bench.pass().await, Ok(false));
    for round in 0..4 {
        bench.write(&format!("round {round}: a long line"));
        assert_eq!(bench.pass().await, Ok(true), "{round}");
    }
    bench.write("after");
    let names = bench.names();
    assert_eq!(names.len(), 3, "{names:?}");
    assert_eq!(names[0], "0.log");
    assert!(names[1].ends_with(".gz") && !names[2].ends_with(".gz"), "{names:?}");
    assert_eq!(unpacked(&bench.file(&names[1])), "round 2: a long line");
    assert_eq!(
        std::fs::read_to_string(bench.file(&names[2])).expect("read"),
        "round 3: a long line"
    );
}

#[tokio::test]
async fn a_runtime_that_does_not_listen_gets_its_file_back() {
    let bench = Bench::new().await;
    bench.write("a line that is too long");
    bench.runtime.fail_next("ReopenContainerLog", RefusalKind::Unavailable, "away");
    let error = bench.pass().await.expect_err("not told");
    assert!(error.contains("away"), "{error}");
    assert_eq!(bench.names(), ["0.log"]);
    assert_eq!(bench.pass().await, Ok(true));
}

#[tokio::test]
async fn a_rotation_that_a_crash_cut_off_is_finished() {
    let bench = Bench::new().await;
    bench.write("moved");
    std::fs::rename(bench.file("0.log"), bench.file("0.log.20240101-000000")).expect("moved");
    std::fs::write(bench.file("0.log.20230101-000000.tmp"), "half").expect("written");
    let before = bench.reopened();
    assert_eq!(bench.pass().await, Ok(false));
    assert_eq!(bench.reopened(), before + 1);
    assert_eq!(bench.names(), ["0.log.20240101-000000"]);
    bench.runtime.end(&bench.instance, 0);
}

#[tokio::test]
async fn rotation_neither_follows_links_nor_blocks_on_fifos() {
    use std::os::unix::fs::symlink;
    let bench = Bench::new().await;
    let secret = bench.logs.path().join("secret");
    std::fs::write(&secret, "the secret, which is long enough").expect("written");
    let untouched = || {
        let text = std::fs::read_to_string(&secret).expect("there");
        assert_eq!(text, "the secret, which is long enough");
        for name in bench.names().iter().filter(|name| name.ends_with(".gz")) {
            assert!(!unpacked(&bench.file(name)).contains("secret"), "{name}");
        }
    };
    // In place of the file that is written: a runtime that opens it again would write to where it leads.
    symlink(&secret, bench.file("0.log")).expect("linked");
    let before = bench.reopened();
    let refused = bench.pass().await.expect_err("refused");
    assert!(refused.contains("0.log is not a regular file"), "{refused}");
    assert_eq!(bench.reopened(), before);
    untouched();
    std::fs::remove_file(bench.file("0.log")).expect("removed");
    // As a rotated file that is to be compressed, and where the compressed one is made.
    let (kind, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::from_raw_mode(0o600));
    for plant in ["link", "FIFO", "temporary"] {
        bench.write("a line that is too long");
        let stamp = "0.log.20240101-000000";
        match plant {
            "link" => symlink(&secret, bench.file(stamp)).expect("linked"),
            "FIFO" => rustix::fs::mknodat(rustix::fs::CWD, bench.file(stamp), kind, mode, 0)
                .expect("a FIFO"),
            _ => {
                std::fs::write(bench.file(stamp), "rotated").expect("written");
                symlink(&secret, bench.file(&format!("{stamp}.tmp"))).expect("linked");
            }
        }
        assert_eq!(bench.pass().await, Ok(true), "{plant}");
        untouched();
        bench.names().iter().for_each(|name| std::fs::remove_file(bench.file(name)).expect(name));
    }
    // Another name of a file is no way to change it.
    std::fs::hard_link(&secret, bench.file("0.log")).expect("linked");
    assert_eq!(bench.pass().await, Ok(true));
    assert_eq!(std::fs::read(&secret).expect("there"), b"the secret, which is long enough");
}

#[tokio::test]
async fn a_compressed_log_may_be_read_as_what_it_was_made_of() {
    use std::os::unix::fs::PermissionsExt as _;
    let bench = Bench::new().await;
    let name = "0.log.20240101-000000";
    std::fs::write(bench.file(name), "rotated").expect("written");
    std::fs::set_permissions(bench.file(name), std::fs::Permissions::from_mode(0o640))
        .expect("set");
    bench.write("a line that is too long");
    assert_eq!(bench.pass().await, Ok(true));
    let packed = std::fs::metadata(bench.file(&format!("{name}.gz"))).expect("there");
    assert_eq!(packed.permissions().mode() & 0o7777, 0o640);
}

#[tokio::test]
async fn a_planted_file_without_end_is_not_compressed() {
    let bench = Bench::new().await;
    let planted = "0.log.20990101-000000";
    std::fs::File::create(bench.file(planted)).expect("made").set_len(1 << 42).expect("sparse");
    bench.write("a line that is too long");
    let pass = tokio::time::timeout(Duration::from_secs(120), bench.pass()).await;
    assert_eq!(pass.expect("soon"), Ok(true));
    assert_eq!(bench.names(), [planted, "0.log.20990101-000001"], "nothing is left of an attempt");
    // It is not kept beyond its time.
    for _ in 0..2 {
        bench.write("a line that is too long");
        assert_eq!(bench.pass().await, Ok(true));
    }
    assert!(!bench.names().iter().any(|name| name == planted), "{:?}", bench.names());
}

#[tokio::test]
async fn a_log_is_rotated_although_no_time_is_left_to_compress() {
    let bench = Bench::new().await;
    let name = "0.log.20240101-000000";
    std::fs::write(bench.file(name), "rotated").expect("written");
    bench.write("a line that is too long");
    assert_eq!(bench.pass_until(Instant::now()).await, Ok(true));
    let names = bench.names();
    assert_eq!((names.len(), names[0].as_str()), (2, name), "{names:?}");
    // The next rotation has the time.
    bench.write("a line that is too long");
    assert_eq!(bench.pass().await, Ok(true));
    assert!(bench.names().iter().any(|name| name.ends_with(".gz")), "{:?}", bench.names());
}
