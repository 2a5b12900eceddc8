//! A pod that makes its log a sparse file of terabytes, and clients that leave.

use super::*;
use crate::request_permits::PERMITS_MAX_PER_NAMESPACE;

/// How long a place may take to become free: far beyond what it takes, far below what it takes to
/// read the file.
const NONE: Duration = Duration::from_secs(120);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn places_of_logs_are_free_when_their_clients_have_left() {
    let bench = bench(Anonymous::Allowed, Authorization::AlwaysAllow).await;
    let log = std::fs::File::options().write(true).open(&bench.agent.log).expect("open");
    log.set_len(1 << 42).expect("a sparse file");
    bench.agent.running.store(true, Ordering::Relaxed);
    let ways = ["", "?follow=true", "?tailLines=1", "?sinceSeconds=1"];
    let mut open = Vec::new();
    for way in ways.iter().cycle().take(PERMITS_MAX_PER_NAMESPACE) {
        let request = request::get(format!("/containerLogs/a/web/c{way}"));
        let response = timeout(NONE, bench.client.open(request)).await.expect("an answer");
        open.push(response.expect(way));
    }
    drop(open);
    let next = async {
        loop {
            match bench.get("/containerLogs/a/web/c?limitBytes=3").await {
                Err(429) => tokio::time::sleep(Duration::from_millis(20)).await,
                answer => return answer,
            }
        }
    };
    assert_eq!(timeout(NONE, next).await.expect("a free place").as_deref(), Ok("one"));
}
