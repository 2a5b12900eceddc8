//! A snapshot of etcd that is restored under running servers: they notice it, and serve what etcd has at revisions that nobody has seen.

use apiserver_store::{Health, Revision, Store, Watch, WatchEnd, Write, WriteCondition};
use bytes::Bytes;

use crate::etcd_process::EtcdProcess;
use crate::line::Line;
use crate::support::{Text, content, events_until, raw, server, until_serving};

async fn set(store: &Store<Text>, key: &str, text: &str) -> Revision {
    let draft = Bytes::from(text.to_owned());
    let put = Write::Put { key: key.to_owned(), expect: WriteCondition::Anything, draft };
    store.write(put).await.unwrap().revision
}

/// Watches all records from now on.
fn watch(store: &Store<Text>) -> Watch<Text> {
    store.watch("/core/", store.revision()).unwrap()
}

async fn end(watch: &mut Watch<Text>) -> WatchEnd {
    loop {
        if let Err(end) = watch.next_batch(&mut Vec::new()).await {
            return end;
        }
    }
}

/// Restores a snapshot under stores that are reached without a line.
async fn restore(etcd: &mut EtcdProcess, file: &std::path::Path, stores: &[&Store<Text>]) {
    etcd.restore(file);
    for store in stores {
        until_serving(store, false).await;
    }
    etcd.restart();
    for store in stores {
        until_serving(store, true).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_older_state_takes_the_place_of_what_servers_have() {
    let name = "an_older_state_takes_the_place_of_what_servers_have";
    let Some(mut etcd) = EtcdProcess::start(name) else { return };
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("snapshot");
    let (one, other) = (server(&etcd.url()).await, server(&etcd.url()).await);
    set(&one, "/core/maps/a", "1").await;
    set(&one, "/core/maps/b", "1").await;
    other.sync().await.unwrap();
    let kept = content(&one);
    etcd.save(&file);
    for round in 0..300 {
        set(&one, "/core/maps/a", &format!("lost {round}")).await;
    }
    set(&one, "/core/maps/c", "lost").await;
    let delete = Write::Delete { key: "/core/maps/b".to_owned(), expect: WriteCondition::Present };
    let lost = other.write(delete).await.unwrap().revision;
    one.sync().await.unwrap();
    let mut watches = [watch(&one), watch(&other)];
    restore(&mut etcd, &file, &[&one, &other]).await;
    for (store, watch) in [&one, &other].into_iter().zip(&mut watches) {
        store.sync().await.unwrap();
        assert_eq!(content(store), kept);
        assert!(matches!(end(watch).await, WatchEnd::Lagged(_)), "its events never were");
        assert!(store.watch("/core/", lost).is_err(), "what clients have seen is too old");
        assert!(store.snapshot_at("", lost).is_err());
    }
    // No revision comes twice.
    let mut watch = watch(&other);
    let next = set(&one, "/core/maps/a", "2").await;
    assert!(next > lost, "{next} after {lost}");
    assert_eq!(events_until(&mut watch, next).await.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_returns_notices_what_others_wrote_at_its_revisions() {
    let name = "a_server_that_returns_notices_what_others_wrote_at_its_revisions";
    let Some(mut etcd) = EtcdProcess::start(name) else { return };
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("snapshot");
    let line = Line::to(etcd.port()).await;
    let far = server(&line.url()).await;
    set(&far, "/core/maps/a", "1").await;
    etcd.save(&file);
    let lost = set(&far, "/core/maps/a", "lost").await;
    let mut watch = watch(&far);
    line.set_whole(false);
    until_serving(&far, false).await;
    etcd.restore(&file);
    etcd.restart();
    let near = server(&etcd.url()).await;
    assert_eq!(content(&near).len(), 1);
    // The same key has the revision that it had in what is lost, with another value.
    let again = set(&near, "/core/maps/a", "2").await;
    assert_eq!(again, lost);
    for compacted in [false, true] {
        set(&near, "/core/maps/b", "1").await;
        if compacted {
            let last = i64::try_from(near.revision().0).unwrap();
            raw(&etcd.url()).await.compact(last, None).await.unwrap();
        }
        line.set_whole(true);
        until_serving(&far, true).await;
        far.sync().await.unwrap();
        assert_eq!(content(&far), content(&near));
        assert!(matches!(end(&mut watch).await, WatchEnd::Lagged(_)));
        // And the other way around: the history of `near` is compacted while `far` is away.
        watch = self::watch(&far);
        line.set_whole(false);
        until_serving(&far, false).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn revisions_that_were_raised_by_the_restore_hide_nothing() {
    let name = "revisions_that_were_raised_by_the_restore_hide_nothing";
    for compacted in [false, true] {
        let Some(mut etcd) = EtcdProcess::start(name) else { return };
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("snapshot");
        let line = Line::to(etcd.port()).await;
        let far = server(&line.url()).await;
        set(&far, "/core/maps/a", "1").await;
        let kept = content(&far);
        etcd.save(&file);
        let lost = set(&far, "/core/maps/a", "lost").await;
        set(&far, "/core/maps/b", "lost").await;
        let mut watch = watch(&far);
        line.set_whole(false);
        until_serving(&far, false).await;
        etcd.restore(&file);
        etcd.restart();
        // As `etcdutl snapshot restore --bump-revision --mark-compacted` does.
        let mut beside = raw(&etcd.url()).await;
        let mut raised = 0;
        while raised < i64::try_from(lost.0).unwrap() + 100 {
            let put = beside.put("/other/key", "x", None).await;
            raised = put.map_or(raised, |put| put.header().unwrap().revision());
        }
        if compacted {
            beside.compact(raised, None).await.unwrap();
        }
        line.set_whole(true);
        until_serving(&far, true).await;
        far.sync().await.unwrap();
        assert_eq!(content(&far), kept);
        assert!(matches!(end(&mut watch).await, WatchEnd::Lagged(_)));
        assert!(far.watch("/core/", lost).is_err());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restore_that_lost_nothing_ends_no_watch() {
    let name = "a_restore_that_lost_nothing_ends_no_watch";
    let Some(mut etcd) = EtcdProcess::start(name) else { return };
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("snapshot");
    let store = server(&etcd.url()).await;
    set(&store, "/core/maps/a", "1").await;
    let mut watch = watch(&store);
    etcd.save(&file);
    restore(&mut etcd, &file, &[&store]).await;
    let next = set(&store, "/core/maps/a", "2").await;
    assert_eq!(events_until(&mut watch, next).await.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_etcd_that_is_empty_takes_nothing_away() {
    let Some(mut etcd) = EtcdProcess::start("an_etcd_that_is_empty_takes_nothing_away") else {
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let (file, empty) = (directory.path().join("snapshot"), directory.path().join("empty"));
    while raw(&etcd.url()).await.status().await.is_err() {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    etcd.save(&empty);
    let store = server(&etcd.url()).await;
    set(&store, "/core/maps/a", "1").await;
    etcd.save(&file);
    let kept = content(&store);
    etcd.restore(&empty);
    until_serving(&store, false).await;
    etcd.restart();
    let mut health = store.health();
    let told = health.wait_for(|health| match health {
        Health::Refusing { reason } => reason.contains("/registry/.format"),
        _ => false,
    });
    told.await.unwrap();
    assert!(store.sync().await.is_err());
    assert_eq!(content(&store), kept, "it is read all the same");
    restore(&mut etcd, &file, &[&store]).await;
    store.sync().await.unwrap();
    assert_eq!(content(&store), kept);
}
