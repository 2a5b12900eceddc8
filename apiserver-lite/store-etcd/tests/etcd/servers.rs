//! Several servers on one etcd: no write is lost, all see one history, and what etcd did not answer is not told as done or failed.

use std::collections::HashMap;

use crate::etcd_process::EtcdProcess;
use crate::line::Line;
use crate::support::{Text, config, content, events_until, open_with, raw, server, until_serving};
use apiserver_store::{Health, Revision, Store, WatchEnd, Write, WriteCondition, WriteError};
use bytes::Bytes;

fn put(key: &str, expect: WriteCondition, text: &str) -> Write<Text> {
    Write::Put { key: key.to_owned(), expect, draft: Bytes::from(text.to_owned()) }
}

async fn set(store: &Store<Text>, key: &str, text: &str) -> Revision {
    store.write(put(key, WriteCondition::Anything, text)).await.unwrap().revision
}

/// What became of the increments of one counter.
#[derive(Debug, Default, PartialEq, Eq)]
struct Increments {
    done: u64,
    unknown: u64,
    refused: u64,
}

/// Adds one to a counter, again after a conflict.
async fn increment(store: &Store<Text>, key: &str, counted: &mut Increments) {
    loop {
        let current = store.current(key);
        let (expect, next) = match &current {
            Some(entry) => (WriteCondition::At(entry.stamp.modified), entry.record.number() + 1),
            None => (WriteCondition::Absent, 1),
        };
        match store.write(put(key, expect, &next.to_string())).await {
            Ok(committed) => {
                assert_eq!(committed.record.number(), next);
                assert_eq!(committed.record.stamp.modified, committed.revision);
                let before = committed.previous.map(|previous| previous.number());
                assert_eq!(before, current.map(|entry| entry.record.number()));
                let read = store.current(key).unwrap();
                assert!(read.stamp.modified >= committed.revision, "own writes are read");
                counted.done += 1;
                return;
            }
            Err(WriteError::Conflict { .. } | WriteError::Exists { .. }) => {}
            Err(WriteError::NotWritten { .. }) => {
                counted.refused += 1;
                tokio::task::yield_now().await;
                return;
            }
            Err(WriteError::NotDurable { .. }) => {
                counted.unknown += 1;
                return;
            }
            Err(error) => panic!("{error}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_writers_of_the_same_keys_lose_nothing() {
    let Some(etcd) = EtcdProcess::start("concurrent_writers_of_the_same_keys_lose_nothing") else {
        return;
    };
    const ROUNDS: usize = 40;
    const KEYS: usize = 3;
    let stores = [server(&etcd.url()).await, server(&etcd.url()).await];
    let start = stores[0].revision().min(stores[1].revision());
    let mut watches = stores.each_ref().map(|store| store.watch("/core/", start).unwrap());
    let writers = (0..8).map(|nth| {
        let store = stores[nth % 2].clone();
        tokio::spawn(async move {
            let mut counted = Increments::default();
            for round in 0..ROUNDS {
                let key = format!("/core/counters/{}", (nth + round) % KEYS);
                increment(&store, &key, &mut counted).await;
            }
            counted
        })
    });
    for writer in writers.collect::<Vec<_>>() {
        assert_eq!(
            writer.await.unwrap(),
            Increments { done: ROUNDS as u64, ..Increments::default() }
        );
    }
    for store in &stores {
        store.sync().await.unwrap();
    }
    assert_eq!(content(&stores[0]), content(&stores[1]));
    let sum: u64 =
        content(&stores[0]).iter().map(|(_, _, text)| text.parse::<u64>().unwrap()).sum();
    assert_eq!(sum, 8 * ROUNDS as u64);
    let last = Revision(content(&stores[0]).iter().map(|(_, at, _)| *at).max().unwrap());
    let histories =
        [events_until(&mut watches[0], last).await, events_until(&mut watches[1], last).await];
    assert_eq!(histories[0], histories[1]);
    assert_eq!(histories[0].len(), 8 * ROUNDS);
    assert!(
        histories[0].windows(2).all(|pair| pair[0].1 < pair[1].1),
        "in order, with gaps or not"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn writes_of_one_server_are_at_another_after_a_sync() {
    let Some(etcd) = EtcdProcess::start("writes_of_one_server_are_at_another_after_a_sync") else {
        return;
    };
    let (one, other) = (server(&etcd.url()).await, server(&etcd.url()).await);
    for round in 0..200 {
        let written = set(&one, "/core/maps/a", &round.to_string()).await;
        other.sync().await.unwrap();
        let read = other.current("/core/maps/a").unwrap();
        assert_eq!((read.record.number(), read.stamp.modified), (round, written));
        // Decided on what the other server has written, though memory may lack it.
        let key = format!("/core/maps/{round}");
        set(&one, &key, "x").await;
        let created = other.write(put(&key, WriteCondition::Absent, "y")).await;
        assert!(matches!(created, Err(WriteError::Exists { .. })));
        let gone = Write::Delete { key: key.clone(), expect: WriteCondition::Present };
        let deleted = other.write(gone).await.unwrap();
        assert_eq!(deleted.record.as_str(), "x");
        let again = one.write(Write::Delete { key, expect: WriteCondition::Anything }).await;
        assert!(matches!(again, Err(WriteError::NotFound { .. })));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn all_of_several_writes_are_done_or_none_at_one_revision() {
    let Some(etcd) = EtcdProcess::start("all_of_several_writes_are_done_or_none_at_one_revision")
    else {
        return;
    };
    let (one, other) = (server(&etcd.url()).await, server(&etcd.url()).await);
    let start = other.revision();
    let mut watch = other.watch("/core/", start).unwrap();
    let pair = |text: &str, expect| {
        vec![put("/core/a", WriteCondition::Anything, text), put("/core/b", expect, text)]
    };
    let both = one.write_all(pair("1", WriteCondition::Absent)).await.unwrap();
    assert_eq!(both[0].revision, both[1].revision);
    let refused = one.write_all(pair("2", WriteCondition::Absent)).await;
    assert!(matches!(refused, Err(WriteError::Exists { .. })));
    assert_eq!(one.current("/core/a").unwrap().record.as_str(), "1");
    let at = both[0].revision.0;
    let created = |key: &str| (key.to_owned(), at, "Created 1".to_owned());
    let seen = events_until(&mut watch, both[0].revision).await;
    assert_eq!(seen, [created("/core/a"), created("/core/b")]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_etcd_loses_no_answered_write_and_writes_go_on_by_themselves() {
    let name = "a_killed_etcd_loses_no_answered_write_and_writes_go_on_by_themselves";
    let Some(mut etcd) = EtcdProcess::start(name) else { return };
    let stores = [server(&etcd.url()).await, server(&etcd.url()).await];
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let writers = (0..8).map(|nth| {
        let (store, stopped) = (stores[nth % 2].clone(), stopped.clone());
        tokio::spawn(async move {
            // One writer a counter: what it does not know of may be in it or not.
            let (key, mut counted) = (format!("/core/counters/{nth}"), Increments::default());
            while !*stopped.borrow() {
                increment(&store, &key, &mut counted).await;
            }
            (key, counted)
        })
    });
    let writers: Vec<_> = writers.collect();
    for _ in 0..3 {
        let mut watch = stores[0].watch("/core/counters/", stores[0].revision()).unwrap();
        watch.next_batch(&mut Vec::new()).await.unwrap();
        etcd.kill();
        until_serving(&stores[0], false).await;
        until_serving(&stores[1], false).await;
        let refused = stores[0].write(put("/core/x", WriteCondition::Anything, "1")).await;
        assert!(matches!(refused, Err(WriteError::NotWritten { .. })), "{refused:?}");
        assert!(stores[0].sync().await.is_err(), "nothing is called current without etcd");
        assert!(!content(&stores[0]).is_empty(), "memory is read all the same");
        etcd.restart();
        until_serving(&stores[0], true).await;
        until_serving(&stores[1], true).await;
        set(&stores[1], "/core/after", "1").await;
    }
    stop.send(true).unwrap();
    let mut counted = HashMap::new();
    for writer in writers {
        let (key, increments) = writer.await.unwrap();
        counted.insert(key, increments);
    }
    for store in &stores {
        store.sync().await.unwrap();
    }
    assert_eq!(content(&stores[0]), content(&stores[1]));
    let mut refused = 0;
    for (key, Increments { done, unknown, refused: of_key }) in counted {
        let found = stores[0].current(&key).unwrap().record.number();
        assert!(
            (done..=done + unknown).contains(&found),
            "{key}: {found}, answered {done}, unknown {unknown}"
        );
        refused += of_key;
    }
    assert!(refused > 0, "writes were tried while etcd was away");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_etcd_that_hangs_leaves_writes_unknown_and_refuses_the_next() {
    let Some(etcd) =
        EtcdProcess::start("an_etcd_that_hangs_leaves_writes_unknown_and_refuses_the_next")
    else {
        return;
    };
    let store = server(&etcd.url()).await;
    set(&store, "/core/a", "1").await;
    etcd.signal("-STOP");
    let unknown = store.write(put("/core/a", WriteCondition::Anything, "2")).await;
    assert!(matches!(unknown, Err(WriteError::NotDurable { .. })), "{unknown:?}");
    until_serving(&store, false).await;
    let refused = store.write(put("/core/a", WriteCondition::Anything, "3")).await;
    assert!(matches!(refused, Err(WriteError::NotWritten { .. })), "{refused:?}");
    etcd.signal("-CONT");
    until_serving(&store, true).await;
    store.sync().await.unwrap();
    let found = store.current("/core/a").unwrap().record.number();
    assert!([1, 2].contains(&found), "{found}");
    set(&store, "/core/a", "4").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_behind_a_compaction_lists_all_keys_again() {
    let Some(etcd) = EtcdProcess::start("a_server_behind_a_compaction_lists_all_keys_again") else {
        return;
    };
    let line = Line::to(etcd.port()).await;
    let (near, far) = (server(&etcd.url()).await, server(&line.url()).await);
    set(&near, "/core/maps/kept", "1").await;
    set(&near, "/core/maps/deleted", "1").await;
    far.sync().await.unwrap();
    let kept = far.current("/core/maps/kept").unwrap().record;
    let mut watch = far.watch("/core/", far.revision()).unwrap();
    line.set_whole(false);
    until_serving(&far, false).await;
    for round in 0..1200 {
        set(&near, &format!("/core/maps/{:03}", round % 600), &round.to_string()).await;
    }
    let delete =
        Write::Delete { key: "/core/maps/deleted".to_owned(), expect: WriteCondition::Present };
    let last = near.write(delete).await.unwrap().revision;
    let compacted = i64::try_from(last.0).unwrap();
    raw(&etcd.url()).await.compact(compacted, None).await.unwrap();
    assert!(far.current("/core/maps/deleted").is_some(), "cut off");
    line.set_whole(true);
    until_serving(&far, true).await;
    far.sync().await.unwrap();
    assert_eq!(content(&far), content(&near), "more than a page");
    let ended = loop {
        if let Err(ended) = watch.next_batch(&mut Vec::new()).await {
            break ended;
        }
    };
    assert!(matches!(ended, WatchEnd::Lagged(_)), "its events are lost");
    assert_eq!(far.current("/core/maps/kept").unwrap().stamp, kept.stamp);
    let mut watch = far.watch("/core/", far.revision()).unwrap();
    let next = set(&near, "/core/maps/next", "1").await;
    assert_eq!(events_until(&mut watch, next).await.len(), 1);
    // A snapshot of before is gone, one of now is not.
    assert!(far.snapshot_at("", Revision(last.0 - 1)).is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn history_that_others_made_and_compacted_ends_no_watch() {
    let Some(etcd) = EtcdProcess::start("history_that_others_made_and_compacted_ends_no_watch")
    else {
        return;
    };
    let line = Line::to(etcd.port()).await;
    let (near, far) = (server(&etcd.url()).await, server(&line.url()).await);
    let seen = set(&near, "/core/maps/a", "1").await;
    far.sync().await.unwrap();
    let mut watch = far.watch("/core/", seen).unwrap();
    line.set_whole(false);
    until_serving(&far, false).await;
    let mut others = raw(&etcd.url()).await;
    let mut last = 0;
    for _ in 0..20 {
        last = others.put("/other/key", "x", None).await.unwrap().header().unwrap().revision();
    }
    others.compact(last, None).await.unwrap();
    line.set_whole(true);
    until_serving(&far, true).await;
    let next = set(&near, "/core/maps/b", "1").await;
    far.sync().await.unwrap();
    let expected = ("/core/maps/b".to_owned(), next.0, "Created 1".to_owned());
    assert_eq!(events_until(&mut watch, next).await, [expected], "nothing was missed");
}

#[tokio::test(flavor = "multi_thread")]
async fn revisions_that_others_made_are_reached() {
    let Some(etcd) = EtcdProcess::start("revisions_that_others_made_are_reached") else { return };
    let store = server(&etcd.url()).await;
    set(&store, "/core/a", "1").await;
    let mut others = raw(&etcd.url()).await;
    let put = others.put("/other/key", "x", None).await.unwrap();
    let at = Revision(u64::try_from(put.header().unwrap().revision()).unwrap());
    assert!(store.revision() < at, "another prefix is not followed");
    // A server that started after it would answer lists with it.
    let late = server(&etcd.url()).await;
    assert_eq!(late.revision(), at);
    store.sync_to(at).await.unwrap();
    assert!(store.revision() >= at);
    store.sync_to(Revision(at.0 + 1_000_000)).await.unwrap();
    assert!(store.revision() < Revision(at.0 + 1_000_000), "not in the future");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_is_one_records_at_a_time() {
    let Some(etcd) = EtcdProcess::start("a_claim_is_one_records_at_a_time") else { return };
    let stores = [server(&etcd.url()).await, server(&etcd.url()).await];
    for round in 0..20 {
        let writers = (0..8).map(|nth| {
            let store = stores[nth % 2].clone();
            let key = format!("/core/services/{round}-{nth}");
            tokio::spawn(async move {
                let outcome = store
                    .write(put(&key, WriteCondition::Absent, &format!("x +{round} +n{nth}")))
                    .await;
                (key, outcome)
            })
        });
        let mut winner = Vec::new();
        for writer in writers.collect::<Vec<_>>() {
            match writer.await.unwrap() {
                (key, Ok(_)) => winner.push(key),
                (_, Err(WriteError::Claimed { claim, .. })) => {
                    assert_eq!(claim, format!("+{round}"))
                }
                (_, Err(error)) => panic!("{error}"),
            }
        }
        assert_eq!(winner.len(), 1, "round {round}: {winner:?}");
        // Given up by an update or by a deletion, it is free again.
        let key = winner.remove(0);
        if round % 2 == 0 {
            set(&stores[0], &key, "x").await;
        } else {
            let gone = Write::Delete { key: key.clone(), expect: WriteCondition::Present };
            stores[1].write(gone).await.unwrap();
        }
        set(&stores[1], &format!("/core/services/{round}-again"), &format!("+{round}")).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_of_the_servers_compacts_the_history_of_etcd() {
    let Some(etcd) = EtcdProcess::start("one_of_the_servers_compacts_the_history_of_etcd") else {
        return;
    };
    let short = || {
        let mut config = config(&etcd.url());
        config.compaction_interval = std::time::Duration::from_millis(300);
        open_with(config)
    };
    let (one, other) = (short().await.unwrap(), short().await.unwrap());
    let old = set(&one, "/core/a", "0").await;
    let old = i64::try_from(old.0).unwrap();
    let mut beside = raw(&etcd.url()).await;
    let mut watch = other.watch("/core/", other.revision()).unwrap();
    let mut round = 0;
    loop {
        round += 1;
        let last = set(&one, "/core/a", &round.to_string()).await;
        other.sync().await.unwrap();
        events_until(&mut watch, last).await;
        let at_old = etcd_client::GetOptions::new().with_revision(old);
        match beside.get("/registry/core/a", Some(at_old)).await {
            Ok(_) => tokio::time::sleep(std::time::Duration::from_millis(50)).await,
            Err(error) => {
                assert!(error.to_string().contains("compacted"), "{error}");
                break;
            }
        }
    }
    assert_eq!(one.health().borrow().clone(), Health::Serving);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_closed_store_ends_its_watches_and_refuses_writes() {
    let Some(etcd) = EtcdProcess::start("a_closed_store_ends_its_watches_and_refuses_writes")
    else {
        return;
    };
    let store = server(&etcd.url()).await;
    set(&store, "/core/a", "1").await;
    let mut watch = store.watch("/core/", store.revision()).unwrap();
    store.close().await;
    assert!(matches!(watch.next_batch(&mut Vec::new()).await, Err(WatchEnd::Closed)));
    let refused = store.write(put("/core/a", WriteCondition::Anything, "2")).await;
    assert!(matches!(refused, Err(WriteError::Closed)));
    assert!(store.sync().await.is_err());
    assert!(store.current("/core/a").is_some());
    let again = server(&etcd.url()).await;
    assert_eq!(content(&again), content(&store));
}

#[tokio::test(flavor = "multi_thread")]
async fn writes_that_etcd_refuses_are_errors() {
    let Some(etcd) = EtcdProcess::start("writes_that_etcd_refuses_are_errors") else { return };
    let store = server(&etcd.url()).await;
    // More than etcd takes, and more than gRPC does.
    for (len, why) in [(1_800_000, "request is too large"), (2 << 20, "larger than max")] {
        let refused = store.write(put("/core/a", WriteCondition::Absent, &"x".repeat(len))).await;
        let Err(WriteError::NotWritten { reason }) = refused else { panic!("{refused:?}") };
        assert!(reason.contains(why), "{reason}");
    }
    // etcd's --max-txn-ops: the record, the mark of the write, and 126 claims.
    let claims = |count: usize| (0..count).map(|nth| format!("+{nth} ")).collect::<String>();
    let refused = store.write(put("/core/a", WriteCondition::Absent, &claims(127))).await;
    let Err(WriteError::NotWritten { reason }) = refused else { panic!("{refused:?}") };
    assert!(reason.contains("too many operations"), "{reason}");
    set(&store, "/core/a", &claims(126)).await;
    let refused = store.write(put("no-slash", WriteCondition::Absent, "x")).await;
    assert!(matches!(refused, Err(WriteError::NotWritten { .. })));
    set(&store, "/core/a", "1").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn large_records_are_read_in_pages() {
    let Some(etcd) = EtcdProcess::start("large_records_are_read_in_pages") else { return };
    let store = server(&etcd.url()).await;
    // Many small ones before them, so that the page after those would be a large one.
    for nth in 0..100 {
        set(&store, &format!("/core/maps/{nth}"), "1").await;
    }
    for nth in 0..24 {
        set(&store, &format!("/core/secrets/{nth}"), &"x".repeat(1 << 20)).await;
    }
    let again = server(&etcd.url()).await;
    assert_eq!(content(&again).len(), 124);
    assert!(content(&again) == content(&store));
}
