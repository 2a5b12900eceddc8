//! Random histories of a namespace that is deleted and made again: a server with Kubernetes' rules for finalizers, grace periods and terminating
//! namespaces, kinds that come and go, lists, deletions and discovery that fail, objects that are created late, a stale cache, and a controller that is
//! lost between two requests. The namespace goes when nothing is left, and its conditions say what there is.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use proto_api::meta::v1::{ListMeta, ObjectMeta, PartialObjectMetadata};
use proto_api::names::{Names, Profile};
use proto_api::{Collection, List};
use serde_json::{Value, json};

use super::content::{ContentAnswer, ContentRequest, ContentRound, RequestFailure};
use super::*;

const OURS: &str = "kubernetes";

/// Group, plural, and what serves them: the server itself, definitions, or another server.
const KINDS: [(&str, &str, Source); 6] = [
    ("", "pods", Source::BuiltIn),
    ("", "services", Source::BuiltIn),
    ("a.example", "apples", Source::Definition),
    ("a.example", "pears", Source::Definition),
    ("o.example", "lamps", Source::OtherServer),
    // Its server deletes no collections.
    ("o.example", "chairs", Source::OtherServer),
];
const PODS: usize = 0;
/// The server's pages are small, so that there are several.
const PAGE_LEN: usize = 2;
/// The kinds whose collections cannot be deleted: Services in 1.20, which the server finds out, and one of another server.
const ONE_BY_ONE: [usize; 2] = [1, 5];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    BuiltIn,
    Definition,
    OtherServer,
}

/// What does not work for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Obstacle {
    Definitions,
    ApiServices,
    /// The other server is not asked for what it serves.
    Discovery,
    /// Lists of a group fail.
    Lists(&'static str),
    /// Objects of a kind are not deleted.
    Deletions(usize),
}

#[derive(Clone, Copy, Debug)]
enum Step {
    /// A user makes an object, with a finalizer of its own or none.
    Make(usize, bool),
    /// A request that was admitted before the namespace was deleted makes an object.
    MakeLate(usize),
    /// The finalizers of all objects of a kind are removed.
    Release(usize),
    /// A kind is served or not.
    Serve(usize, bool),
    Obstruct(Obstacle, bool),
    /// A user makes the namespace, or deletes it.
    MakeNamespace(bool),
    DeleteNamespace,
    /// Another controller is done with the namespace.
    ReleaseNamespace,
    CatchUp,
    /// This many requests of a round, which begins if there is none.
    Requests(u8),
    Round,
    /// The controller is lost.
    Crash,
    Later(u8),
}

fn step() -> impl Strategy<Value = Step> {
    let kind = || 0..KINDS.len();
    let obstacle = prop_oneof![
        Just(Obstacle::Definitions),
        Just(Obstacle::ApiServices),
        Just(Obstacle::Discovery),
        prop_oneof![Just(""), Just("a.example"), Just("o.example")].prop_map(Obstacle::Lists),
        kind().prop_map(Obstacle::Deletions),
    ];
    prop_oneof![
        8 => (kind(), proptest::bool::weighted(0.2)).prop_map(|(of, held)| Step::Make(of, held)),
        1 => kind().prop_map(Step::MakeLate),
        2 => kind().prop_map(Step::Release),
        2 => (2..KINDS.len(), any::<bool>()).prop_map(|(of, on)| Step::Serve(of, on)),
        2 => (obstacle, any::<bool>()).prop_map(|(of, on)| Step::Obstruct(of, on)),
        3 => any::<bool>().prop_map(Step::MakeNamespace),
        2 => Just(Step::DeleteNamespace),
        1 => Just(Step::ReleaseNamespace),
        4 => Just(Step::CatchUp),
        4 => (1..20u8).prop_map(Step::Requests),
        4 => Just(Step::Round),
        1 => Just(Step::Crash),
        3 => (0..20u8).prop_map(Step::Later),
    ]
}

#[derive(Clone, Debug)]
struct Stored {
    finalizers: Vec<String>,
    /// Since when it is there and can be read.
    readable: u64,
    /// When the kubelet has ended a pod that is deleted.
    ends: Option<i64>,
    is_deleted: bool,
}

/// What has come of the controller's round.
enum Round {
    Content {
        uid: String,
        content: Box<ContentRound>,
    },
    /// The next request reads the namespace and writes it.
    Write {
        uid: String,
        remains: RemainingContent,
    },
}

struct History {
    now: i64,
    /// Counts steps and requests.
    tick: u64,
    uids: u64,
    namespace: Option<Namespace>,
    objects: BTreeMap<(usize, String), Stored>,
    served: BTreeSet<usize>,
    obstacles: BTreeSet<Obstacle>,
    cache: Option<Namespace>,
    round: Option<Round>,
    began: u64,
    /// Whether something was left when the finalizer went that came in the last round.
    is_late: bool,
}

fn names() -> &'static Names {
    Names::new(Profile::Kubernetes)
}

fn failure<T>(code: Option<u16>) -> Result<T, RequestFailure> {
    Err(RequestFailure { code, message: "it fails".into() })
}

fn kind_of(collection: &Collection) -> Option<usize> {
    let is =
        |kind: &(&str, &str, Source)| collection.group == kind.0 && collection.plural == kind.1;
    KINDS.iter().position(is)
}

impl History {
    fn new(is_held: bool) -> Self {
        let mut history = Self {
            now: 1000,
            tick: 0,
            uids: 0,
            namespace: None,
            objects: BTreeMap::new(),
            served: (0..KINDS.len()).collect(),
            obstacles: BTreeSet::new(),
            cache: None,
            round: None,
            began: 0,
            is_late: false,
        };
        history.make_namespace(is_held);
        history
    }

    fn has(&self, obstacle: Obstacle) -> bool {
        self.obstacles.contains(&obstacle)
    }

    fn is_terminating(&self) -> bool {
        self.namespace.as_ref().is_some_and(|found| found.metadata.deletion_timestamp.is_some())
    }

    /// Whether the namespace still waits for us.
    fn is_ours(&self) -> bool {
        self.namespace.as_ref().is_some_and(|found| is_due(found, OURS))
    }

    fn make_namespace(&mut self, is_held: bool) {
        if self.namespace.is_some() {
            return;
        }
        let mut made = Namespace::default();
        self.uids += 1;
        made.metadata.name = "ns".into();
        made.metadata.uid = format!("u{}", self.uids);
        made.metadata.resource_version = self.tick.to_string();
        made.spec.finalizers = vec![OURS.into()];
        if is_held {
            made.spec.finalizers.push("example.com/hold".into());
        }
        self.namespace = Some(made);
    }

    fn make(&mut self, kind: usize, is_held: bool) {
        if self.namespace.is_none() || !self.served.contains(&kind) {
            return;
        }
        self.uids += 1;
        let finalizers = is_held.then(|| "example.com/hold".to_owned()).into_iter().collect();
        let stored = Stored { finalizers, readable: self.tick, ends: None, is_deleted: false };
        self.objects.insert((kind, format!("o{}", self.uids)), stored);
    }

    fn apply_step(&mut self, step: Step) {
        self.tick += 1;
        match step {
            // Nothing new is admitted to a terminating namespace.
            Step::Make(kind, is_held) if !self.is_terminating() => self.make(kind, is_held),
            Step::Make(..) => {}
            Step::MakeLate(kind) => {
                if self.is_ours() {
                    self.make(kind, false);
                }
            }
            Step::Release(kind) => {
                let of_kind = |key: &(usize, String)| key.0 == kind;
                let objects = self.objects.iter_mut().filter(|(key, _)| of_kind(key));
                objects.for_each(|(_, object)| object.finalizers.clear());
                self.end_objects();
            }
            Step::Serve(kind, on) => self.serve(kind, on),
            Step::Obstruct(obstacle, true) => drop(self.obstacles.insert(obstacle)),
            Step::Obstruct(obstacle, false) => drop(self.obstacles.remove(&obstacle)),
            Step::MakeNamespace(is_held) => self.make_namespace(is_held),
            Step::DeleteNamespace => {
                let now = Time::from_unix(self.now);
                self.edit_namespace(|found| {
                    found.metadata.deletion_timestamp.get_or_insert(now);
                });
            }
            Step::ReleaseNamespace => {
                self.edit_namespace(|found| found.spec.finalizers.retain(|other| other == OURS));
                self.end_namespace();
            }
            Step::CatchUp => self.cache = self.namespace.clone(),
            Step::Requests(count) => (0..count).for_each(|_| self.request()),
            Step::Round => self.run_round(),
            Step::Crash => {
                self.round = None;
                self.cache = self.namespace.clone();
            }
            Step::Later(seconds) => {
                self.now += i64::from(seconds);
                self.end_objects();
            }
        }
    }

    fn serve(&mut self, kind: usize, on: bool) {
        let changed = if on { self.served.insert(kind) } else { self.served.remove(&kind) };
        if changed && on {
            let of_kind = self.objects.iter_mut().filter(|(key, _)| key.0 == kind);
            of_kind.for_each(|(_, object)| object.readable = self.tick);
        }
    }

    fn edit_namespace(&mut self, edit: impl FnOnce(&mut Namespace)) {
        if let Some(found) = &mut self.namespace {
            edit(found);
            found.metadata.resource_version = self.tick.to_string();
        }
    }

    /// A deleted object goes when its pod has ended and no finalizer is left.
    fn end_objects(&mut self) {
        let now = self.now;
        let ends = |object: &Stored| object.ends.is_none_or(|at| at <= now);
        self.objects.retain(|_, object| {
            !object.is_deleted || !object.finalizers.is_empty() || !ends(object)
        });
    }

    fn end_namespace(&mut self) {
        let is_over = |found: &Namespace| {
            found.metadata.deletion_timestamp.is_some() && found.spec.finalizers.is_empty()
        };
        if self.namespace.as_ref().is_some_and(is_over) {
            self.namespace = None;
            // What was left can no longer be read by the next namespace's users.
            self.objects.clear();
        }
    }

    /// What the server answers.
    fn answer(&mut self, request: &ContentRequest) -> Result<ContentAnswer, RequestFailure> {
        match request {
            ContentRequest::Definitions { from } => match self.has(Obstacle::Definitions) {
                true => failure(Some(500)),
                false => Ok(ContentAnswer::Document(self.definitions(from.as_deref()))),
            },
            ContentRequest::ApiServices if self.has(Obstacle::ApiServices) => failure(Some(403)),
            ContentRequest::ApiServices => {
                let spec = json!({"group": "o.example", "version": "v1", "service": {"name": "s"}});
                Ok(ContentAnswer::Document(json!({"items": [{"spec": spec}]})))
            }
            ContentRequest::Resources(version) => {
                assert_eq!(version.group, "o.example");
                match self.has(Obstacle::Discovery) {
                    true => failure(Some(503)),
                    false => Ok(ContentAnswer::Document(self.resources())),
                }
            }
            ContentRequest::List { collection, limit, from } => {
                let Some(kind) = kind_of(collection) else {
                    // Of kinds that the history does not have there are none.
                    return Ok(ContentAnswer::Objects(List::default()));
                };
                self.check_readable(kind, Obstacle::Lists(KINDS[kind].0))?;
                Ok(ContentAnswer::Objects(self.list(kind, *limit, from.as_deref())))
            }
            ContentRequest::DeleteAll(collection) => {
                let kind = kind_of(collection).expect("it has objects");
                self.check_readable(kind, Obstacle::Deletions(kind))?;
                if ONE_BY_ONE.contains(&kind) {
                    assert_ne!(KINDS[kind].2, Source::OtherServer, "its server has said so");
                    return failure(Some(405));
                }
                let keys = self.objects.keys().filter(|key| key.0 == kind);
                let keys: Vec<String> = keys.map(|key| key.1.clone()).collect();
                keys.into_iter().for_each(|name| self.delete(kind, name));
                Ok(ContentAnswer::Deleted)
            }
            ContentRequest::Delete { collection, name } => {
                let kind = kind_of(collection).expect("it has objects");
                self.check_readable(kind, Obstacle::Deletions(kind))?;
                if !self.objects.contains_key(&(kind, name.clone())) {
                    return failure(Some(404));
                }
                self.delete(kind, name.clone());
                Ok(ContentAnswer::Deleted)
            }
        }
    }

    fn check_readable(&self, kind: usize, obstacle: Obstacle) -> Result<(), RequestFailure> {
        match (self.served.contains(&kind), self.has(obstacle)) {
            (false, _) => failure(Some(404)),
            (_, true) if matches!(obstacle, Obstacle::Deletions(_)) => failure(Some(403)),
            (_, true) => failure(None),
            _ => Ok(()),
        }
    }

    fn delete(&mut self, kind: usize, name: String) {
        assert!(self.is_terminating(), "{name} is in a namespace that lives");
        let ends = self.now + 10;
        if let Some(object) = self.objects.get_mut(&(kind, name)) {
            object.is_deleted = true;
            if kind == PODS {
                object.ends.get_or_insert(ends);
            }
        }
        self.end_objects();
    }

    fn list(&self, kind: usize, limit: u32, from: Option<&str>) -> List<PartialObjectMetadata> {
        let objects = self
            .objects
            .iter()
            .filter(|((of, name), _)| *of == kind && from.is_none_or(|from| name.as_str() > from));
        let (limit, all) =
            (usize::try_from(limit).expect("a number").min(PAGE_LEN), objects.collect::<Vec<_>>());
        let (page, rest) = all.split_at(limit.min(all.len()));
        let item = |((_, name), object): &(&(usize, String), &Stored)| {
            let (name, finalizers) = (name.clone(), object.finalizers.clone());
            let metadata = ObjectMeta { name, finalizers, ..ObjectMeta::default() };
            PartialObjectMetadata { metadata }
        };
        let items: Vec<_> = page.iter().map(item).collect();
        let last = items.last().map(|last| last.metadata.name.clone()).filter(|_| !rest.is_empty());
        let remaining = (!rest.is_empty()).then(|| i64::try_from(rest.len()).expect("a number"));
        let metadata = ListMeta {
            continue_: last.unwrap_or_default(),
            remaining_item_count: remaining,
            ..ListMeta::default()
        };
        List { metadata, items }
    }

    fn served_by(&self, source: Source) -> Vec<usize> {
        self.served.iter().copied().filter(|kind| KINDS[*kind].2 == source).collect()
    }

    /// A page of one definition.
    fn definitions(&self, from: Option<&str>) -> Value {
        let kinds = self.served_by(Source::Definition);
        let at: usize = from.map_or(0, |from| from.parse().expect("a number"));
        let item = |kind: &usize| {
            let (group, plural, _) = KINDS[*kind];
            json!({
                "spec": {
                    "group": group, "scope": "Namespaced", "names": {"plural": plural, "kind": "Fruit"},
                    "versions": [{"name": "v1", "served": true, "storage": true}],
                },
                "status": {"conditions": [{"type": "Established", "status": "True"}]},
            })
        };
        let items: Vec<Value> = kinds.get(at).map(item).into_iter().collect();
        let next = if at + 1 < kinds.len() { (at + 1).to_string() } else { String::new() };
        json!({"metadata": {"continue": next}, "items": items})
    }

    fn resources(&self) -> Value {
        let item = |kind: &usize| {
            let mut verbs = vec!["list", "delete"];
            if !ONE_BY_ONE.contains(kind) {
                verbs.push("deletecollection");
            }
            json!({"name": KINDS[*kind].1, "kind": "Thing", "namespaced": true, "verbs": verbs})
        };
        json!({"resources": self.served_by(Source::OtherServer).iter().map(item).collect::<Vec<_>>()})
    }

    /// The next request of the controller's round, which begins if there is none. As the controller manager does.
    fn request(&mut self) {
        self.tick += 1;
        let due = |found: &Option<Namespace>| found.clone().filter(|found| is_due(found, OURS));
        match self.round.take() {
            None if due(&self.cache).is_none() => {}
            None => {
                let Some(found) = due(&self.namespace) else { return };
                self.began = self.tick;
                let content = Box::new(ContentRound::new(names(), "ns"));
                self.round = Some(Round::Content { uid: found.metadata.uid, content });
            }
            Some(Round::Content { uid, mut content }) => match content.next_request() {
                Some(request) => {
                    let answer = self.answer(&request);
                    content.take_answer(answer);
                    self.round = Some(Round::Content { uid, content });
                }
                None => {
                    self.round = Some(Round::Write { uid, remains: content.into_remains() });
                }
            },
            Some(Round::Write { uid, remains }) => {
                let found = due(&self.namespace).filter(|found| found.metadata.uid == uid);
                let Some(found) = found else { return };
                match plan(&found, OURS, &remains, Time::from_unix(self.now)) {
                    NamespaceStep::Finalize(done) => self.finalize(*done),
                    NamespaceStep::Report(next) => {
                        self.edit_namespace(|found| found.status = next.status);
                        self.round = Some(Round::Write { uid, remains });
                    }
                    NamespaceStep::Wait => {}
                }
            }
        }
    }

    fn finalize(&mut self, done: Namespace) {
        // What could be read during the whole round is gone. Nothing keeps what comes in it.
        let began = self.began;
        let readable = |(key, object): &(&(usize, String), &Stored)| {
            self.served.contains(&key.0) && object.readable < began
        };
        let left: Vec<_> = self.objects.iter().filter(readable).collect();
        assert!(left.is_empty(), "{left:?} is left");
        self.is_late = !self.objects.is_empty();
        self.edit_namespace(|found| found.spec.finalizers = done.spec.finalizers);
        self.end_namespace();
    }

    /// A round from its begin to its end, with a cache that shows the namespace.
    fn run_round(&mut self) {
        self.round = None;
        self.cache = self.namespace.clone();
        let was_ours = self.is_ours();
        self.request();
        while self.round.is_some() {
            self.request();
        }
        if was_ours {
            self.check_conditions();
        }
    }

    /// After a round that nothing has disturbed.
    fn check_conditions(&self) {
        let Some(found) = self.namespace.as_ref().filter(|_| self.is_terminating()) else { return };
        let mut left: BTreeMap<usize, usize> = BTreeMap::new();
        let mut is_held = false;
        let undiscovered = [Obstacle::Definitions, Obstacle::ApiServices, Obstacle::Discovery];
        let is_unknown = |kind: usize| match KINDS[kind].2 {
            Source::BuiltIn => false,
            Source::Definition => self.has(Obstacle::Definitions),
            Source::OtherServer => self.has(Obstacle::ApiServices) || self.has(Obstacle::Discovery),
        };
        let is_seen = |kind: usize| {
            let lists = !self.has(Obstacle::Lists(KINDS[kind].0));
            self.served.contains(&kind) && !is_unknown(kind) && lists
        };
        for ((kind, _), object) in self.objects.iter().filter(|((kind, _), _)| is_seen(*kind)) {
            let is_tried = object.is_deleted || self.has(Obstacle::Deletions(*kind));
            assert!(is_tried, "an object of {} is not deleted", KINDS[*kind].1);
            let count = left.entry(*kind).or_default();
            *count += 1;
            // Only the objects of the first page are looked at.
            is_held |= *count <= PAGE_LEN && !object.finalizers.is_empty();
        }
        let list_fails = |kind: usize| {
            let lists = self.has(Obstacle::Lists(KINDS[kind].0));
            self.served.contains(&kind) && !is_unknown(kind) && lists
        };
        let is_refused = |kind: &usize| self.has(Obstacle::Deletions(*kind));
        let fails = (0..KINDS.len()).any(list_fails) || left.keys().any(is_refused);
        // Without the APIServices the other server is not asked.
        let unasked = |obstacle: &Obstacle| {
            let is_hidden = *obstacle == Obstacle::Discovery && self.has(Obstacle::ApiServices);
            self.has(*obstacle) && !is_hidden
        };
        let expected = [
            (
                "NamespaceDeletionDiscoveryFailure",
                undiscovered.iter().any(unasked),
                "DiscoveryFailed",
                "ResourcesDiscovered",
            ),
            ("NamespaceDeletionGroupVersionParsingFailure", false, "", "ParsedGroupVersions"),
            ("NamespaceDeletionContentFailure", fails, "ContentDeletionFailed", "ContentDeleted"),
            (
                "NamespaceContentRemaining",
                !left.is_empty(),
                "SomeResourcesRemain",
                "ContentRemoved",
            ),
            (
                "NamespaceFinalizersRemaining",
                is_held,
                "SomeFinalizersRemain",
                "ContentHasNoFinalizers",
            ),
        ];
        for (kind, holds, held, not_held) in expected {
            let condition = found.status.conditions.iter().find(|other| other.type_ == kind);
            let condition = condition.expect("a condition");
            let (status, reason) = if holds { ("True", held) } else { ("False", not_held) };
            let said = (condition.status.as_str(), condition.reason.as_str());
            assert_eq!(said, (status, reason), "{kind}: {}", condition.message);
            if kind == "NamespaceContentRemaining" {
                for (kind, count) in &left {
                    let text = format!("{}.{} has {count} ", KINDS[*kind].1, KINDS[*kind].0);
                    assert!(condition.message.contains(&text), "{text}: {}", condition.message);
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn a_namespace_goes_when_nothing_is_left_and_says_what_it_waits_for(
        is_held in any::<bool>(),
        steps in proptest::collection::vec(step(), 1..100),
    ) {
        let mut history = History::new(is_held);
        for step in steps {
            history.apply_step(step);
        }
        history.apply_step(Step::DeleteNamespace);
        (0..2).for_each(|_| history.run_round());
        // The obstacles go.
        history.obstacles.clear();
        (0..KINDS.len()).for_each(|kind| history.apply_step(Step::Serve(kind, true)));
        history.run_round();
        (0..KINDS.len()).for_each(|kind| history.apply_step(Step::Release(kind)));
        history.apply_step(Step::Later(20));
        history.run_round();
        if let Some(found) = &history.namespace {
            prop_assert_eq!(&found.spec.finalizers, &["example.com/hold"]);
            prop_assert!(history.is_late || history.objects.is_empty(), "{:?}", history.objects);
        }
        history.apply_step(Step::ReleaseNamespace);
        prop_assert_eq!(&history.namespace, &None);
    }
}
