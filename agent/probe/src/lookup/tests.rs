//! Lookups that do not end, and those of others.

use std::sync::Condvar;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::task::JoinSet;

use super::*;

/// Long enough on a busy machine.
const PATIENT: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(20);

/// Name servers that do not answer for names that start with `slow`, until they are released.
#[derive(Default)]
struct Servers {
    are_silent: Mutex<bool>,
    changed: Condvar,
    calls: AtomicUsize,
}

impl Servers {
    fn silent() -> (Arc<Self>, NameLookups) {
        let servers = Arc::new(Self { are_silent: Mutex::new(true), ..Self::default() });
        let resolving = servers.clone();
        (servers, NameLookups::with(move |name| resolving.resolve(name)))
    }

    fn resolve(&self, name: &str) -> io::Result<Vec<SocketAddr>> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        if name.starts_with("slow") {
            let silent = self.are_silent.lock().expect("lock");
            drop(self.changed.wait_while(silent, |silent| *silent).expect("lock"));
        }
        match name.contains("none") {
            true => Err(io::Error::other("Name or service not known")),
            false => Ok(vec!["10.0.0.7:0".parse().expect("address")]),
        }
    }

    /// How often they were called, once it is at least `count`: the threads that call them may begin late.
    async fn calls(&self, count: usize) -> usize {
        let began = std::time::Instant::now();
        while self.calls.load(Ordering::SeqCst) < count && began.elapsed() < PATIENT {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        self.calls.load(Ordering::SeqCst)
    }

    fn answer(&self) {
        *self.are_silent.lock().expect("lock") = false;
        self.changed.notify_all();
    }
}

fn pod<'a>(namespace: &'a str, uid: &'a str) -> PodKey<'a> {
    PodKey { namespace, uid }
}

/// Looks `count` slow names up and gives up each time.
async fn ask_in_vain(lookups: &NameLookups, pod: PodKey<'static>, count: usize) {
    let mut all = JoinSet::new();
    for nth in 0..count {
        let lookups = lookups.clone();
        all.spawn(async move {
            let name = format!("slow-{nth}.{}.{}", pod.uid, pod.namespace);
            let found = lookups.addresses(&name, 80, pod, SHORT);
            tokio::time::timeout(SHORT, found).await.map(|found| found.is_ok())
        });
    }
    while let Some(ended) = all.join_next().await {
        assert_ne!(ended.expect("task"), Ok(true), "the servers are silent");
    }
}

#[tokio::test]
async fn names_that_are_not_answered_take_few_threads_and_leave_others_theirs() {
    let (servers, lookups) = Servers::silent();
    ask_in_vain(&lookups, pod("a", "1"), 64).await;
    assert_eq!(servers.calls(OF_POD_MAX).await, OF_POD_MAX, "of one pod");
    ask_in_vain(&lookups, pod("a", "2"), 8).await;
    ask_in_vain(&lookups, pod("a", "3"), 8).await;
    assert_eq!(servers.calls(IN_NAMESPACE_MAX).await, IN_NAMESPACE_MAX, "of one namespace");
    let found = lookups.addresses("quick.example", 80, pod("b", "1"), PATIENT).await;
    assert_eq!(
        found.expect("the namespace has a share"),
        ["10.0.0.7:80".parse().expect("address")]
    );
    // A lookup counts until its thread has ended, a moment after the answer.
    let ends = async {
        while lookups.0.lock().contains_key("quick.example") {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(PATIENT, ends).await.expect("it ends");
    for other in ["b", "c", "d"] {
        ask_in_vain(&lookups, pod(other, "1"), 8).await;
    }
    assert_eq!(lookups.0.lock().len(), ON_NODE_MAX, "of the node");
    let refused = lookups.addresses("quick.example", 80, pod("e", "1"), SHORT).await;
    assert!(refused.expect_err("no room").to_string().contains("not started"));
    servers.answer();
    let found = lookups.addresses("quick.example", 80, pod("e", "1"), PATIENT).await;
    found.expect("there is room again");
}

#[tokio::test]
async fn a_name_has_one_lookup_whose_answer_all_get() {
    let (servers, lookups) = Servers::silent();
    let mut all = JoinSet::new();
    for (name, uid) in [("slow-x", "1"), ("slow-x", "2"), ("SLOW-X", "3"), ("slow-none", "4")] {
        let lookups = lookups.clone();
        all.spawn(async move {
            lookups.addresses(name, 81, pod(uid, uid), PATIENT).await.map_err(|e| e.to_string())
        });
    }
    while servers.calls.load(Ordering::SeqCst) < 2 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    servers.answer();
    let mut found = all.join_all().await;
    found.sort();
    let address: SocketAddr = "10.0.0.7:81".parse().expect("address");
    let refused = "lookup slow-none: Name or service not known".to_owned();
    assert_eq!(found, [Ok(vec![address]), Ok(vec![address]), Ok(vec![address]), Err(refused)]);
    assert_eq!(servers.calls.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn an_address_needs_no_lookup_and_what_is_no_name_gets_none() {
    let (servers, lookups) = Servers::silent();
    for (host, expect) in [("10.0.0.1", "10.0.0.1:80"), ("fd00::1", "[fd00::1]:80")] {
        let found = lookups.addresses(host, 80, pod("a", "1"), SHORT).await.expect("an address");
        assert_eq!(found, [expect.parse().expect("address")]);
    }
    for host in ["", &"x".repeat(NAME_LEN_MAX + 1)] {
        let found = lookups.addresses(host, 80, pod("a", "1"), SHORT).await;
        assert!(matches!(found, Err(LookupError::Name(_))), "{host:?}");
    }
    assert_eq!(servers.calls.load(Ordering::SeqCst), 0);
}
