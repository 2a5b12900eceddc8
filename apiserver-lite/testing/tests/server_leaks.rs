//! What is left of a hundred servers: no thread, descriptor or port. Alone in its process, whose threads and descriptors it counts.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::time::{Duration, Instant};

use apiserver_testing::Cluster;
use bytes::Bytes;
use http::Request;
use procfs::process::Process;

/// Threads and descriptors of this process.
fn held() -> (usize, usize) {
    let own = Process::myself().unwrap();
    (own.tasks().unwrap().count(), own.fd_count().unwrap())
}

async fn use_one(nth: usize) {
    let cluster = Cluster::start().await.unwrap();
    let client = cluster.client().unwrap();
    let get = Request::get("/api/v1/namespaces").body(Bytes::new()).unwrap();
    client.call(get).await.unwrap();
    if nth.is_multiple_of(2) {
        cluster.kubeconfig().await.unwrap();
    }
    cluster.stop().await;
}

#[tokio::test]
async fn nothing_is_left_of_a_hundred() {
    use_one(0).await;
    let before = held();
    for nth in 0..100 {
        use_one(nth).await;
    }
    let began = Instant::now();
    let mut after = held();
    // One store's thread may be about to end; a hundred are not. Those that wait for work end after some seconds without it.
    let is_over = |after: (usize, usize)| after.0 <= before.0 + 1 && after.1 <= before.1;
    while !is_over(after) && began.elapsed() < Duration::from_secs(60) {
        tokio::time::sleep(Duration::from_millis(100)).await;
        after = held();
    }
    assert!(is_over(after), "{before:?}, {after:?}");
}
