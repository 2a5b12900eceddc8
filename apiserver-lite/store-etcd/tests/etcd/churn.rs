//! Writers, readers and watchers that use several stores on one etcd while its members fail, and what must hold of what they saw.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use apiserver_store::{
    Entry, Event, EventKind, Range, Revision, Store, WatchError, Write, WriteCondition, WriteError,
};
use bytes::Bytes;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::order::{Did, Operation, find_order};
use crate::support::Text;

/// Clients of the registers, which all of them change and read at the same time.
const CLIENTS: u64 = 5;
const REGISTERS: u64 = 3;
/// Writers of keys of their own.
const WRITERS: u64 = 3;
const WATCHERS: usize = 3;
/// Events after which a watcher goes on at another store.
const EVENTS_OF_A_STORE: usize = 60;

/// Key, value and revision of a change; of a deletion the value that it removed.
type Change = (String, EventKind, u64, Revision);
/// A key, its revision and its value.
type Live = (String, Revision, u64);

/// What all of them share.
struct Course {
    stores: Vec<Store<Text>>,
    /// Part of each key.
    round: u64,
    /// Counts moments, and the values that are written: none is written twice.
    moment: AtomicU64,
    acknowledged: AtomicU64,
    is_over: watch::Sender<bool>,
}

/// What one of them did.
#[derive(Default)]
struct Account {
    /// Writes that were answered.
    done: Vec<Change>,
    /// Values whose write was not answered.
    unknown: HashSet<u64>,
    /// Values whose write was refused.
    refused: HashSet<u64>,
    reads: u64,
    reads_refused: u64,
    operations: HashMap<String, Vec<Operation>>,
}

/// All of them, at work.
pub struct Churn {
    course: Arc<Course>,
    clients: Vec<JoinHandle<Account>>,
    watchers: Vec<JoinHandle<Watched>>,
    /// After which all values of the watchers have been written.
    last: watch::Sender<Option<Revision>>,
}

/// What was done in the end.
#[derive(Clone, Copy, Debug, Default)]
pub struct Totals {
    pub done: usize,
    pub unknown: usize,
    pub unknown_done: usize,
    pub refused: usize,
    pub reads: u64,
    pub reads_refused: u64,
    pub operations: usize,
    pub events: usize,
    pub resumed: usize,
}

impl Churn {
    pub fn start(stores: &[Store<Text>], round: u64) -> Self {
        let course = Arc::new(Course {
            stores: stores.to_vec(),
            round,
            moment: AtomicU64::new(1),
            acknowledged: AtomicU64::new(0),
            is_over: watch::Sender::new(false),
        });
        let from = stores.iter().map(Store::revision).min().unwrap();
        let last = watch::Sender::new(None);
        let watchers = (0..WATCHERS)
            .map(|nth| tokio::spawn(keep_watching(course.clone(), nth, from, last.subscribe())));
        let watchers = watchers.collect();
        let of_registers = (0..CLIENTS).map(|_| tokio::spawn(use_registers(course.clone())));
        let of_keys = (0..WRITERS).map(|nth| tokio::spawn(make_and_delete(course.clone(), nth)));
        let clients = of_registers.chain(of_keys).collect();
        Self { course, clients, watchers, last }
    }

    /// Waits until this many more writes were answered.
    pub async fn go_on(&self, writes: u64) {
        let until = self.course.acknowledged.load(Ordering::Acquire) + writes;
        while self.course.acknowledged.load(Ordering::Acquire) < until {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Ends them, once etcd answers, and judges.
    pub async fn stop(self) -> Totals {
        self.course.is_over.send_replace(true);
        let mut accounts = Vec::new();
        for client in self.clients {
            accounts.push(client.await.unwrap());
        }
        for store in &self.course.stores {
            while store.sync().await.is_err() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
        let last = self.course.stores.iter().map(Store::revision).max().unwrap();
        self.last.send_replace(Some(last));
        let mut watched = Vec::new();
        for watcher in self.watchers {
            watched.push(watcher.await.unwrap());
        }
        let resumed = watched.iter().map(|watched| watched.resumed).sum();
        let histories: Vec<_> = watched.into_iter().map(|watched| watched.seen).collect();
        let mut contents = Vec::new();
        for store in &self.course.stores {
            store.wait_for(last, Duration::from_secs(120)).await.unwrap();
            contents.push(self.course.content(store, last));
        }
        assert!(contents.windows(2).all(|pair| pair[0] == pair[1]), "the stores differ");
        Totals { resumed, ..judge(&accounts, &histories, contents.remove(0)) }
    }
}

impl Course {
    fn next(&self) -> u64 {
        self.moment.fetch_add(1, Ordering::AcqRel)
    }

    fn is_over(&self) -> bool {
        *self.is_over.borrow()
    }

    fn any_store(&self) -> &Store<Text> {
        &self.stores[rand::random_range(0..self.stores.len())]
    }

    /// Whether it is a key of these clients.
    fn is_own(&self, key: &str) -> bool {
        key.contains(&format!("/{}-", self.round))
    }

    /// The keys of these clients at a revision.
    fn content(&self, store: &Store<Text>, at: Revision) -> Vec<Live> {
        let page = store.range_at(at, Range::default()).unwrap();
        let own = page.entries.iter().filter(|entry| self.is_own(&entry.key));
        let one = |entry: &Entry<Text>| {
            (entry.key.to_string(), entry.stamp.modified, entry.record.number())
        };
        own.map(one).collect()
    }

    /// Puts `value`; returns what was there before if that was answered, and accounts for it.
    async fn put(
        &self,
        key: &str,
        expect: WriteCondition,
        value: u64,
        account: &mut Account,
    ) -> Result<Option<u64>, NotDone> {
        let draft = Bytes::from(value.to_string());
        let put = Write::Put { key: key.to_owned(), expect, draft };
        match self.any_store().write(put).await {
            Ok(done) => {
                self.acknowledged.fetch_add(1, Ordering::AcqRel);
                let kind =
                    if done.previous.is_none() { EventKind::Created } else { EventKind::Updated };
                account.done.push((key.to_owned(), kind, value, done.revision));
                Ok(done.previous.map(|previous| previous.number()))
            }
            Err(WriteError::NotDurable { .. }) => {
                account.unknown.insert(value);
                Err(NotDone::Unknown)
            }
            Err(WriteError::Conflict { .. } | WriteError::Exists { .. }) => {
                account.refused.insert(value);
                Err(NotDone::Refused)
            }
            Err(WriteError::NotWritten { .. }) => {
                account.refused.insert(value);
                tokio::time::sleep(Duration::from_millis(5)).await;
                Err(NotDone::Refused)
            }
            Err(error) => panic!("{error}"),
        }
    }
}

enum NotDone {
    Refused,
    Unknown,
}

/// Reads, writes and swaps registers.
async fn use_registers(course: Arc<Course>) -> Account {
    let mut account = Account::default();
    while !course.is_over() {
        let nth = rand::random_range(0..REGISTERS);
        let key = format!("/core/registers/{}-{nth}", course.round);
        let operation = if rand::random_range(0..3) == 0 {
            read(&course, &key, &mut account).await
        } else {
            write(&course, &key, &mut account).await
        };
        account.operations.entry(key).or_default().extend(operation);
    }
    account
}

async fn read(course: &Course, key: &str, account: &mut Account) -> Option<Operation> {
    let store = course.any_store();
    let began = course.next();
    if store.sync().await.is_err() {
        account.reads_refused += 1;
        tokio::time::sleep(Duration::from_millis(5)).await;
        return None;
    }
    let found = store.current(key).map(|entry| entry.record.number());
    account.reads += 1;
    Some(Operation { began, ended: Some(course.next()), did: Did::Read(found) })
}

async fn write(course: &Course, key: &str, account: &mut Account) -> Option<Operation> {
    let is_swap = rand::random::<bool>();
    let current = course.any_store().current(key);
    let expect = match &current {
        _ if !is_swap => WriteCondition::Anything,
        Some(current) => WriteCondition::At(current.stamp.modified),
        None => WriteCondition::Absent,
    };
    let (began, value) = (course.next(), course.next());
    let found = current.map(|current| current.record.number());
    let (ended, did) = match course.put(key, expect, value, account).await {
        Ok(previous) => {
            assert!(!is_swap || previous == found, "{key}: {previous:?}, expected {found:?}");
            (Some(course.next()), Did::Swap(previous, value))
        }
        Err(NotDone::Unknown) if is_swap => (None, Did::Swap(found, value)),
        Err(NotDone::Unknown) => (None, Did::Write(value)),
        Err(NotDone::Refused) => return None,
    };
    Some(Operation { began, ended, did })
}

/// Makes keys, and deletes some of them.
async fn make_and_delete(course: Arc<Course>, nth: u64) -> Account {
    let mut account = Account::default();
    while !course.is_over() {
        let value = course.next();
        let key = format!("/core/maps/{}-{nth}-{value}", course.round);
        let made = course.put(&key, WriteCondition::Absent, value, &mut account).await;
        if made.is_err() || rand::random_range(0..3) != 0 {
            continue;
        }
        let delete = Write::Delete { key: key.clone(), expect: WriteCondition::Present };
        if let Ok(done) = course.any_store().write(delete).await {
            account.done.push((key, EventKind::Deleted, value, done.revision));
        }
    }
    account
}

/// What a watcher saw.
#[derive(Default)]
struct Watched {
    seen: Vec<Change>,
    resumed: usize,
}

/// Watches one store, then another, each time after the last event, until the last revision.
async fn keep_watching(
    course: Arc<Course>,
    mut nth: usize,
    mut from: Revision,
    mut last: watch::Receiver<Option<Revision>>,
) -> Watched {
    let mut watched = Watched::default();
    loop {
        nth += 1;
        let store = &course.stores[nth % course.stores.len()];
        let mut watch = match store.watch("/core/", from) {
            Ok(watch) => watch,
            // The other one was ahead.
            Err(WatchError::Future { .. }) => {
                let _ = store.sync_to(from).await;
                tokio::time::sleep(Duration::from_millis(5)).await;
                continue;
            }
            Err(error) => panic!("{error}"),
        };
        watched.resumed += 1;
        let mut events: Vec<Event<Text>> = Vec::new();
        loop {
            tokio::select! {
                ended = watch.next_batch(&mut events) => ended.expect("no watch ends"),
                changed = last.changed() => changed.unwrap(),
            }
            if last
                .borrow()
                .is_some_and(|last| watch.delivered_revision() >= last && !watch.is_pending())
            {
                watched.seen.extend(events.iter().filter(|e| course.is_own(&e.key)).map(seen));
                return watched;
            }
            if events.len() >= EVENTS_OF_A_STORE || last.borrow().is_some() {
                break;
            }
        }
        from = events.last().map_or(from, |event| event.stamp.modified);
        watched.seen.extend(events.iter().filter(|e| course.is_own(&e.key)).map(seen));
    }
}

fn seen(event: &Event<Text>) -> Change {
    (event.key.to_string(), event.kind, event.record.number(), event.stamp.modified)
}

/// What must hold: all watchers saw the same, each event once; what was answered is there, what was refused is not, what was not answered is there once or not
/// at all; and the operations of each register have an order.
fn judge(accounts: &[Account], histories: &[Vec<Change>], content: Vec<Live>) -> Totals {
    let history = &histories[0];
    for other in histories {
        assert!(other == history, "watchers saw different histories");
    }
    assert!(history.windows(2).all(|pair| pair[0].3 < pair[1].3), "a revision came twice");
    let by_revision: HashMap<Revision, _> =
        history.iter().map(|(key, kind, value, at)| (*at, (key, *kind, *value))).collect();
    let mut written = HashSet::new();
    let mut live = BTreeMap::new();
    for (key, kind, value, at) in history {
        match kind {
            EventKind::Deleted => drop(live.remove(key)),
            _ => {
                assert!(written.insert(*value), "{key}: {value} was written twice");
                live.insert(key.clone(), (*at, *value));
            }
        }
    }
    let live: Vec<Live> = live.into_iter().map(|(key, (at, value))| (key, at, value)).collect();
    assert!(live == content, "what watchers saw leads to something else");
    let (mut totals, mut revisions) = (Totals::default(), HashSet::new());
    let mut registers: HashMap<&str, Vec<Operation>> = HashMap::new();
    for account in accounts {
        for (key, kind, value, at) in &account.done {
            assert!(revisions.insert(*at), "{key}: revision {at} was answered twice");
            assert_eq!(by_revision.get(at), Some(&(key, *kind, *value)), "answered at {at}");
        }
        let refused = account.refused.intersection(&written).next();
        assert_eq!(refused, None, "it was refused, and written");
        totals.done += account.done.len();
        totals.unknown += account.unknown.len();
        totals.unknown_done += account.unknown.intersection(&written).count();
        totals.refused += account.refused.len();
        totals.reads += account.reads;
        totals.reads_refused += account.reads_refused;
        for (key, operations) in &account.operations {
            registers.entry(key).or_default().extend(operations);
        }
    }
    for (key, operations) in &registers {
        totals.operations += operations.len();
        if let Err(broken) = find_order(operations) {
            panic!("{key}: {} operations have no order: {broken}", operations.len());
        }
    }
    Totals { events: history.len(), ..totals }
}
