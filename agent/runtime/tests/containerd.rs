//! containerd passes the contract, runs the sandbox image and reports its events.
//!
//! Each test starts its own containerd with `hack/containerd-private` as root; if that is not possible, it prints SKIPPED.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stderr, reason = "a test")]

use std::process::Command;
use std::time::{Duration, Instant};

use agent_runtime::contract::Contract;
use agent_runtime::cri::CriRuntime;
use agent_runtime::events::{self, RuntimeEvent};
use agent_runtime::image::{ImageFile, ImageTar};
use agent_runtime::import::{self, ImageRetention};
use agent_runtime::{ContainerAccess as _, RuntimeStatus as _, SandboxRuntime as _};
use agent_runtime::{pause, test_containerd};
use futures_util::FutureExt as _;

const BUSYBOX: &str = "orch.local/busybox:1";

/// A containerd and the cgroup of its pods.
struct Containerd {
    private: test_containerd::Containerd,
    cgroup: String,
    runtime: CriRuntime,
}

impl Containerd {
    async fn start(test: &str) -> Option<Self> {
        let private = test_containerd::Containerd::start(test)?;
        let cgroup = format!("/agent-runtime-test-{}-{test}", std::process::id());
        Some(Self { runtime: private.runtime.clone(), private, cgroup })
    }

    async fn import(&self, tar: &ImageTar, name: &str, keep: ImageRetention) {
        let names = import::import_tar(self.runtime.channel(), "k8s.io", tar, keep).await.unwrap();
        assert_eq!(names, [name]);
        assert!(import::wait_until_listed(&self.runtime, name).await.unwrap());
    }

    fn contract<'a>(&'a self, logs: &'a str) -> Contract<'a> {
        Contract {
            runtime: &self.runtime,
            image: BUSYBOX,
            cgroup_parent: &self.cgroup,
            log_directory: logs,
        }
    }

    fn logs(&self) -> String {
        self.private.dir().join("logs").display().to_string()
    }
}

impl Drop for Containerd {
    fn drop(&mut self) {
        self.private.stop();
        // OCI runtimes create the parent cgroup in every hierarchy and leave it.
        let trees = std::fs::read_dir("/sys/fs/cgroup").into_iter().flatten().flatten();
        for tree in trees.map(|tree| tree.path()).chain(["/sys/fs/cgroup".into()]) {
            let _ = std::fs::remove_dir(tree.join(self.cgroup.trim_start_matches('/')));
        }
    }
}

fn busybox() -> ImageTar {
    let files = [
        ImageFile::Regular {
            path: "bin/busybox",
            mode: 0o755,
            data: std::fs::read("/bin/busybox").unwrap(),
        },
        ImageFile::Link { path: "bin/sh", target: "busybox" },
        ImageFile::Link { path: "bin/sleep", target: "busybox" },
    ];
    ImageTar::single_layer(BUSYBOX, &files, &["/bin/sh"])
}

#[tokio::test]
async fn containerd_keeps_the_contract() {
    let Some(containerd) = Containerd::start("containerd_keeps_the_contract").await else { return };
    containerd
        .import(&pause::image(pause::IMAGE).unwrap(), pause::IMAGE, ImageRetention::Pinned)
        .await;
    containerd.import(&busybox(), BUSYBOX, ImageRetention::WhileUsed).await;
    // Importing an existing image does nothing.
    containerd.import(&busybox(), BUSYBOX, ImageRetention::WhileUsed).await;
    let logs = containerd.logs();
    containerd.contract(&logs).check().await;
}

/// Output of commands is buffered neither in the response nor on the way.
#[tokio::test]
async fn commands_may_write_more_than_is_kept() {
    const MIB: usize = 1 << 20;
    const AT_ONCE: usize = 8;
    const WRITTEN: usize = 12;
    let Some(containerd) = Containerd::start("commands_may_write_more_than_is_kept").await else {
        return;
    };
    containerd
        .import(&pause::image(pause::IMAGE).unwrap(), pause::IMAGE, ImageRetention::Pinned)
        .await;
    containerd.import(&busybox(), BUSYBOX, ImageRetention::WhileUsed).await;
    let logs = containerd.logs();
    let (_, sandbox, id) = containerd.contract(&logs).running("writes", "sleep 1000").await;
    let shell = |script: &str| ["/bin/sh", "-c", script].map(String::from);
    let writes = shell(&format!("head -c {} /dev/zero; echo problem >&2; exit 3", WRITTEN * MIB));

    let before = peak(true);
    let patience = Duration::from_secs(120);
    let runs = (0..AT_ONCE).map(|_| containerd.runtime.exec(&id, &writes, patience, 1000));
    for ran in futures_util::future::join_all(runs).await {
        let ran = ran.unwrap();
        assert_eq!((ran.stdout.len(), ran.stderr.as_slice()), (1000, b"problem\n".as_slice()));
        assert_eq!(ran.code, 3);
    }
    let grown = peak(false).saturating_sub(before) / 1024;
    eprintln!("{AT_ONCE} commands wrote {WRITTEN} MiB each: {grown} MiB more at most");
    assert!(grown < AT_ONCE * WRITTEN / 2, "{grown} MiB");

    // Beyond the response limit the runtime returns an error, but the command completes.
    let floods = shell("head -c 20000000 /dev/zero; echo done > /flooded");
    let ran = containerd.runtime.exec(&id, &floods, patience, 1000).await;
    eprintln!("20 MB: {ran:?}");
    let looks = shell("cat /flooded");
    let looked = containerd.runtime.exec(&id, &looks, patience, 1000).await.unwrap();
    assert_eq!(looked.stdout, b"done\n");
    containerd.runtime.remove_sandbox(&sandbox).await.unwrap();
}

/// Peak resident memory of this process in KiB; `reset` sets it to the present use first.
fn peak(reset: bool) -> usize {
    if reset {
        std::fs::write("/proc/self/clear_refs", "5").unwrap();
    }
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[tokio::test]
async fn containerd_reports_container_events() {
    let Some(containerd) = Containerd::start("containerd_reports_container_events").await else {
        return;
    };
    containerd
        .import(&pause::image(pause::IMAGE).unwrap(), pause::IMAGE, ImageRetention::Pinned)
        .await;
    containerd.import(&busybox(), BUSYBOX, ImageRetention::WhileUsed).await;
    let logs = containerd.logs();
    let contract = containerd.contract(&logs);
    let events = events::watch(containerd.runtime.clone(), "k8s.io");
    let events = std::sync::Arc::new(tokio::sync::Mutex::new(events));
    let mut next = || {
        let events = std::sync::Arc::clone(&events);
        async move { events.lock().await.recv().await }.boxed()
    };
    contract.check_events(&mut next).await;

    // A SIGKILL from outside ends the sandbox's process; the event names the sandbox.
    let (config, sandbox, container) = contract.running("killed", "sleep 1000").await;
    let killed = kill_task(&containerd, &container);
    let told = loop {
        match next().await.unwrap() {
            RuntimeEvent::Container { container: seen, .. } if seen.id == container => {
                break killed.elapsed();
            }
            _ => {}
        }
    };
    eprintln!("kill to event: {:.1} ms", told.as_secs_f64() * 1e3);
    kill_task(&containerd, &sandbox);
    loop {
        match next().await.unwrap() {
            RuntimeEvent::Sandbox { pod_uid, sandbox: seen } if seen.id == sandbox => {
                assert_eq!((pod_uid, seen.ready), (config.uid.clone(), false));
                break;
            }
            _ => {}
        }
    }
    containerd.runtime.remove_sandbox(&sandbox).await.unwrap();
}

#[tokio::test]
async fn a_restarted_containerd_is_followed_again() {
    let test = "a_restarted_containerd_is_followed_again";
    let Some(containerd) = Containerd::start(test).await else { return };
    let mut events = events::watch(containerd.runtime.clone(), "k8s.io");
    assert_eq!(events.recv().await, Some(RuntimeEvent::Missed));
    containerd.private.stop();
    assert!(containerd.runtime.version().await.unwrap_err().is_unavailable());
    containerd.private.start_again();
    let again = tokio::time::timeout(Duration::from_secs(120), events.recv()).await.unwrap();
    assert_eq!(again, Some(RuntimeEvent::Missed));
    containerd.runtime.version().await.unwrap();
}

/// Kills a task's process by its pid, as the kernel or an operator would; returns when.
fn kill_task(containerd: &Containerd, id: &str) -> Instant {
    let socket = containerd.private.dir().join("containerd.sock");
    let listed = Command::new("ctr")
        .args(["--address", socket.to_str().unwrap(), "-n", "k8s.io", "tasks", "list"])
        .output()
        .unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    let row = listed.lines().find(|line| line.starts_with(id)).unwrap();
    let pid = row.split_whitespace().nth(1).unwrap();
    assert!(Command::new("kill").args(["-9", pid]).status().unwrap().success());
    Instant::now()
}
