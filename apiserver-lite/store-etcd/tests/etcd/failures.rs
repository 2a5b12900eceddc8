//! Members of etcd that are killed or hang: two stores lose nothing, refuse in time what they cannot do, and go on.

use apiserver_store::{Health, Store, Write, WriteCondition, WriteError};
use apiserver_store_etcd::EtcdConfig;
use bytes::Bytes;

use crate::churn::Churn;
use crate::members::Members;
use crate::support::{Text, content, open_with, until_serving};

async fn two(members: &Members) -> [Store<Text>; 2] {
    let open = || async { open_with(EtcdConfig::new(members.urls())).await.unwrap() };
    [open().await, open().await]
}

fn put(key: &str, text: &str) -> Write<Text> {
    let draft = Bytes::from(text.to_owned());
    Write::Put { key: key.to_owned(), expect: WriteCondition::Anything, draft }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_leader_costs_no_write_and_no_event() {
    let name = "a_killed_leader_costs_no_write_and_no_event";
    let Some(mut members) = Members::start(name, 3) else { return };
    let stores = two(&members).await;
    let churn = Churn::start(&stores, 0);
    for _ in 0..2 {
        churn.go_on(50).await;
        let leader = members.leader(None).await;
        members.0[leader].kill();
        members.leader(Some(leader)).await;
        churn.go_on(100).await;
        members.0[leader].restart();
    }
    let totals = churn.stop().await;
    assert!(totals.done > 300 && totals.reads > 0 && totals.operations > 0, "{totals:?}");
    assert!(totals.events >= totals.done && totals.resumed > 3, "{totals:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_hangs_is_left_and_costs_no_write_and_no_event() {
    let name = "a_leader_that_hangs_is_left_and_costs_no_write_and_no_event";
    let Some(members) = Members::start(name, 3) else { return };
    let stores = two(&members).await;
    let churn = Churn::start(&stores, 0);
    churn.go_on(50).await;
    let leader = members.leader(None).await;
    members.0[leader].signal("-STOP");
    members.leader(Some(leader)).await;
    churn.go_on(200).await;
    members.0[leader].signal("-CONT");
    churn.go_on(200).await;
    let totals = churn.stop().await;
    assert!(totals.done > 400 && totals.reads > 0, "{totals:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_quorum_all_is_refused_and_watches_go_on_afterwards() {
    let name = "without_a_quorum_all_is_refused_and_watches_go_on_afterwards";
    let Some(mut members) = Members::start(name, 3) else { return };
    let stores = two(&members).await;
    let churn = Churn::start(&stores, 0);
    churn.go_on(50).await;
    let mut watch = stores[0].watch("/core/after", stores[0].revision()).unwrap();
    let leader = members.leader(None).await;
    members.0[leader].kill();
    members.0[(leader + 1) % 3].kill();
    for store in &stores {
        until_serving(store, false).await;
        // What the churn's last questions may wait for.
        let refused = store.write(put("/core/refused", "1")).await;
        assert!(
            matches!(refused, Err(WriteError::NotWritten { .. } | WriteError::NotDurable { .. })),
            "{refused:?}"
        );
        assert!(store.sync().await.is_err(), "nothing is called current");
        assert_ne!(store.health().borrow().clone(), Health::Serving);
        assert!(!content(store).is_empty(), "memory is read all the same");
    }
    members.restart_all();
    for store in &stores {
        until_serving(store, true).await;
    }
    churn.go_on(100).await;
    let after = stores[1].write(put("/core/after", "1")).await;
    let mut events = Vec::new();
    if after.is_ok() {
        watch.next_batch(&mut events).await.unwrap();
        assert_eq!(events[0].key.as_ref(), "/core/after");
    }
    let totals = churn.stop().await;
    assert!(totals.refused > 0 && totals.reads_refused > 0, "{totals:?}");
}
