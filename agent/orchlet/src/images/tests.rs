//! Pulls on the runtime in memory.

use agent_runtime::fake::FakeRuntime;

use super::*;

fn images(runtime: &Arc<FakeRuntime>) -> Arc<Images> {
    let bounds = PullBounds { parallel: 2, qps: 0, burst: 0 };
    Images::new(runtime.clone(), Logins::default(), bounds)
}

#[tokio::test]
async fn pods_that_want_the_same_share_a_pull() {
    let (runtime, _) = FakeRuntime::new();
    runtime.offer_image("reg.io/app:1");
    let runtime = Arc::new(runtime);
    let images = images(&runtime);
    let (pod, sources) = (Pod::default(), Sources::default());
    let pull = || images.pull("reg.io/app:1", &pod, &sources);
    let (a, b, c) = tokio::join!(pull(), pull(), pull());
    assert!(a.is_ok() && a == b && b == c);
    let pulls = runtime.changes().iter().filter(|change| change.call == "PullImage").count();
    assert_eq!(pulls, 1);
    assert!(images.held().is_empty());
}

#[tokio::test]
async fn failures_say_what_they_are() {
    let (runtime, _) = FakeRuntime::new();
    let images = images(&Arc::new(runtime));
    let (pod, sources) = (Pod::default(), Sources::default());
    let invalid = images.pull("Up/Case", &pod, &sources).await.expect_err("invalid");
    assert_eq!(invalid.reason, "InvalidImageName");
    let absent = images.pull("reg.io/none:1", &pod, &sources).await.expect_err("absent");
    assert_eq!(absent.reason, "ErrImagePull");
    assert!(lock(&images.under_way).is_empty(), "a failed pull can be tried again");
}
