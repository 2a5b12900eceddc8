//! Short histories by hand, each of a failure that a seed has found once. A seed is another history after each change; these stay.

use std::collections::BTreeSet;
use std::time::Duration;

use proto_api::core::v1::{Container, Lifecycle, LifecycleHandler, Pod, Probe};

use super::random::exec;
use super::*;

/// Histories of each script: the same steps, with other pauses of calls between them.
const SEEDS: usize = 10;

/// Runs a script in worlds without trouble of their own.
fn play(script: impl AsyncFn(&mut Sim)) {
    let ground = Ground::new();
    let plain = (0..).filter(|seed| !extras::is_scrutinised(*seed));
    for seed in plain.take(SEEDS) {
        let root = ground.root();
        let runtime = one_thread();
        let failure = runtime.block_on(async {
            agent_clock::reset();
            let mut sim = Sim::new(seed, 0, BTreeSet::new(), &root);
            script(&mut sim).await;
            sim.kill().await;
            let world = lock(&sim.world);
            if world.failure.is_some() {
                world.print();
            }
            world.failure.clone()
        });
        volumes::end();
        assert_eq!(failure, None, "seed {seed}");
    }
}

fn hook(word: &str) -> Option<LifecycleHandler> {
    Some(LifecycleHandler { exec: exec(word), ..LifecycleHandler::default() })
}

/// A container that is asked whether it is ready, for the first time this many seconds after its start.
fn asked_after(name: &str, initial_delay_seconds: i32) -> Container {
    let mut probe = Probe {
        initial_delay_seconds,
        period_seconds: 5,
        failure_threshold: 1,
        ..Probe::default()
    };
    probe.probe_handler.exec = exec("readiness");
    let (name, image) = (name.into(), "image:1".into());
    Container { name, image, readiness_probe: Some(probe), ..Container::default() }
}

/// A pod of one container with these hooks.
fn pod(uid: &str, lifecycle: Lifecycle) -> Pod {
    let mut pod = Pod::default();
    (pod.metadata.uid, pod.metadata.name) = (uid.into(), uid.into());
    pod.metadata.namespace = "ns".into();
    pod.spec.restart_policy = "Always".into();
    pod.spec.termination_grace_period_seconds = Some(30);
    let (name, image, lifecycle) = ("main0".into(), "image:1".into(), Some(lifecycle));
    pod.spec.containers = vec![Container { name, image, lifecycle, ..Container::default() }];
    pod
}

/// Seed 500 with the death 139: a static pod was shown as running, the journal did not know that its hook was done, and the agent died.
/// What the mirror shows comes late here.
#[test]
fn a_static_pods_phase_is_not_taken_back_from_what_its_mirror_shows() {
    play(async |sim| {
        let lifecycle = Lifecycle { post_start: hook("post"), ..Lifecycle::default() };
        sim.add_static(pod("s1", lifecycle));
        sim.until("it has started", |sim| !sim.runtime.running().is_empty()).await;
        sim.fill_disk();
        let shown = |sim: &Sim| lock(&sim.world).books["s1"].shown.phase == "Running";
        sim.until("it is shown as running", shown).await;
        sim.kill().await;
        lock(&sim.world).api.away = true;
        lock(&sim.world).runtime_away = true;
        sim.pass(Duration::from_secs(1)).await;
        lock(&sim.world).api.away = false;
        lock(&sim.world).api_changed.notify_one();
        sim.pass(Duration::from_secs(10)).await;
    });
}

/// Seed 612: a pod that was being deleted was to go sooner, and the stop under way kept its own time.
#[test]
fn a_stop_under_way_heeds_a_sooner_end() {
    play(async |sim| {
        let lifecycle = Lifecycle { pre_stop: hook("pre"), ..Lifecycle::default() };
        sim.add(pod("u1", lifecycle));
        sim.until("it has started", |sim| !sim.runtime.running().is_empty()).await;
        sim.delete("u1", 30);
        let called = |sim: &Sim| lock(&sim.world).instances.values().any(|i| i.pre_called);
        sim.until("its hook is being run", called).await;
        sim.delete("u1", 5);
        sim.until("it is gone", |sim| lock(&sim.world).api.pods.is_empty()).await;
    });
}

/// Found by killing agents of a real node: one died after a container was shown as ready and before that was on disk. The pod's other
/// container keeps the conditions as they are, so that nothing but the record can tell.
#[test]
fn probe_results_are_durable_before_they_are_in_the_status() {
    play(async |sim| {
        let mut pod = pod("u1", Lifecycle::default());
        pod.spec.containers = vec![asked_after("main0", 2), asked_after("main1", 3600)];
        sim.add(pod);
        let shown = |sim: &Sim| {
            let world = lock(&sim.world);
            cluster::all(&world.books["u1"].shown).any(|c| c.name == "main0" && c.ready)
        };
        sim.until("it is shown as ready", shown).await;
        sim.kill().await;
        sim.pass(Duration::from_secs(10)).await;
    });
}
