//! One round of deleting the content of a terminating namespace, as requests and their answers: which kinds there are, which have objects, their deletion, and
//! what is left. What sends the requests decides nothing.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use proto_api::meta::v1::PartialObjectMetadata;
use proto_api::names::Names;
use proto_api::{Collection, List, schema};
use serde_json::Value;

use super::RemainingContent;
use crate::custom_resources;
use crate::other_servers::{self, OtherResource, OtherVersion};

/// Objects or definitions that are read at a time. Only the first this many objects of a kind are looked at for their finalizers.
pub const PAGE_LEN: u32 = 500;

/// Most pages of objects that are deleted one by one in a round: the next round goes on.
const PAGES_MAX: usize = 40;

/// A request to the API server.
#[derive(Clone, Debug, PartialEq)]
pub enum ContentRequest {
    /// A page of the CustomResourceDefinitions.
    Definitions {
        from: Option<String>,
    },
    ApiServices,
    /// The resources of a version that another server serves.
    Resources(OtherVersion),
    /// A page of the metadata of objects.
    List {
        collection: Collection,
        limit: u32,
        from: Option<String>,
    },
    /// The deletion of all objects by one request.
    DeleteAll(Collection),
    /// That of one.
    Delete {
        collection: Collection,
        name: String,
    },
}

/// What the server has answered.
#[derive(Clone, Debug, PartialEq)]
pub enum ContentAnswer {
    /// Definitions, APIServices or resources.
    Document(Value),
    Objects(List<PartialObjectMetadata>),
    Deleted,
}

/// Why there is no such answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct RequestFailure {
    /// The HTTP status, if there was a response.
    pub code: Option<u16>,
    pub message: String,
}

impl RequestFailure {
    fn is_not_found(&self) -> bool {
        self.code == Some(404)
    }

    /// Whether the server refuses this one request, and not because it fails as a whole or has too much to do.
    fn is_refusal(&self) -> bool {
        self.code.is_some_and(|code| code < 500 && code != 408 && code != 429)
    }
}

/// The objects of one kind in the namespace.
#[derive(Clone, Debug)]
struct Target {
    collection: Collection,
    deletes: Deletes,
}

/// How the objects of a collection are deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Deletes {
    /// By one request.
    All,
    /// One by one: the server knows no deletions of collections.
    Each,
}

/// The deletion of objects one by one.
#[derive(Clone, Debug, Default)]
struct EachDeletion {
    /// Where the next page begins.
    from: Option<String>,
    pages: usize,
    /// Objects of this page that are not deleted yet.
    names: VecDeque<String>,
    /// The first object that the server refuses to delete.
    refused: Option<RequestFailure>,
}

/// What the next request is for.
#[derive(Clone, Debug)]
enum Step {
    Definitions {
        from: Option<String>,
    },
    ApiServices,
    /// Of the first of these versions the resources are read.
    Resources(VecDeque<OtherVersion>),
    /// Whether there is an object: most resources have none in a namespace.
    First(Target),
    DeleteAll(Target),
    Page(Target, EachDeletion),
    DeleteNext(Target, EachDeletion),
    /// What is left, after this refusal.
    Left(Target, Option<RequestFailure>),
    Over,
}

/// What is done and still to do in a round.
#[derive(Clone, Debug)]
pub struct ContentRound {
    namespace: String,
    /// Kinds that are not looked at yet.
    targets: VecDeque<Target>,
    /// Group and plural of those that are. Other versions of a resource have the same objects: they are read only if the server does not serve those before.
    done: BTreeSet<(String, String)>,
    step: Step,
    remains: RemainingContent,
    api_services: Collection,
    definitions: Collection,
}

impl ContentRound {
    /// The round of the namespace with this name.
    pub fn new(names: &Names, namespace: &str) -> Self {
        let built_in = built_in(names, namespace);
        let targets = built_in.map(|collection| Target { collection, deletes: Deletes::All });
        Self {
            namespace: namespace.to_owned(),
            targets: targets.collect(),
            done: BTreeSet::new(),
            step: Step::Definitions { from: None },
            remains: RemainingContent::default(),
            api_services: other_servers::api_services(names),
            definitions: custom_resources::definitions(names),
        }
    }

    /// The next request; none at the end.
    pub fn next_request(&self) -> Option<ContentRequest> {
        let list = |target: &Target, limit, from: &Option<String>| {
            let (collection, from) = (target.collection.clone(), from.clone());
            ContentRequest::List { collection, limit, from }
        };
        match &self.step {
            Step::Definitions { from } => Some(ContentRequest::Definitions { from: from.clone() }),
            Step::ApiServices => Some(ContentRequest::ApiServices),
            Step::Resources(versions) => versions.front().cloned().map(ContentRequest::Resources),
            Step::First(target) => Some(list(target, 1, &None)),
            Step::DeleteAll(target) => Some(ContentRequest::DeleteAll(target.collection.clone())),
            Step::Page(target, each) => Some(list(target, PAGE_LEN, &each.from)),
            Step::DeleteNext(target, each) => {
                let collection = target.collection.clone();
                let next = each.names.front().cloned();
                next.map(|name| ContentRequest::Delete { collection, name })
            }
            Step::Left(target, _) => Some(list(target, PAGE_LEN, &None)),
            Step::Over => None,
        }
    }

    /// Takes the answer to the last request.
    pub fn take_answer(&mut self, answer: Result<ContentAnswer, RequestFailure>) {
        self.step = match std::mem::replace(&mut self.step, Step::Over) {
            Step::Definitions { .. } => self.note_definitions(answer),
            Step::ApiServices => self.note_services(answer),
            Step::Resources(versions) => self.note_resources(versions, answer),
            Step::First(target) => match answer {
                Err(failure) => self.fail(&target, failure),
                Ok(ContentAnswer::Objects(list)) if list.items.is_empty() => self.finish(&target),
                Ok(_) => match target.deletes {
                    Deletes::All => Step::DeleteAll(target),
                    Deletes::Each => Step::Page(target, EachDeletion::default()),
                },
            },
            Step::DeleteAll(target) => match answer {
                Ok(_) => Step::Left(target, None),
                // Of a release before it knows this one, as of Services in 1.20. Some servers answer 404, and there is an object.
                Err(failure) if matches!(failure.code, Some(404 | 405)) => {
                    Step::Page(target, EachDeletion::default())
                }
                Err(failure) => self.list_refused(target, failure),
            },
            Step::Page(target, each) => match answer {
                Ok(ContentAnswer::Objects(list)) => delete_page(target, each, list),
                Ok(_) => Step::Left(target, each.refused),
                Err(failure) => self.fail(&target, each.refused.unwrap_or(failure)),
            },
            Step::DeleteNext(target, each) => self.note_deletion(target, each, answer),
            Step::Left(target, refusal) => self.note_left(&target, refusal, answer),
            Step::Over => Step::Over,
        };
    }

    /// What is left at the end.
    pub fn into_remains(self) -> RemainingContent {
        self.remains
    }

    fn note_definitions(&mut self, answer: Result<ContentAnswer, RequestFailure>) -> Step {
        match answer {
            Ok(ContentAnswer::Document(page)) => {
                let found = custom_resources::within(&page, &self.namespace).into_iter();
                let targets = found.map(|collection| Target { collection, deletes: Deletes::All });
                self.targets.extend(targets);
                let next = page.pointer("/metadata/continue").and_then(Value::as_str);
                if let Some(token) = next.filter(|token| !token.is_empty()) {
                    return Step::Definitions { from: Some(token.to_owned()) };
                }
            }
            Ok(_) => {}
            // A server without definitions has no custom objects.
            Err(failure) if failure.is_not_found() => {}
            Err(failure) => self.note_unknown(&self.definitions.plural.clone(), &failure),
        }
        Step::ApiServices
    }

    fn note_services(&mut self, answer: Result<ContentAnswer, RequestFailure>) -> Step {
        match answer {
            Ok(ContentAnswer::Document(list)) => {
                self.ask_for_resources(other_servers::versions(&list).into())
            }
            Ok(_) => self.begin_next(),
            // A server without APIServices passes nothing on.
            Err(failure) if failure.is_not_found() => self.begin_next(),
            Err(failure) => {
                self.note_unknown(&self.api_services.plural.clone(), &failure);
                self.begin_next()
            }
        }
    }

    /// What cannot be asked for its resources may have objects, for which the namespace waits.
    fn note_resources(
        &mut self,
        mut versions: VecDeque<OtherVersion>,
        answer: Result<ContentAnswer, RequestFailure>,
    ) -> Step {
        if let Some(version) = versions.pop_front() {
            match answer {
                Ok(ContentAnswer::Document(list)) => {
                    let all = other_servers::resources(&list, &version);
                    self.targets
                        .extend(all.iter().filter_map(|one| deletable(one, &self.namespace)));
                }
                Ok(_) => {}
                Err(failure) => {
                    let of = format!("{}/{}", version.group, version.version);
                    self.note_unknown(&of, &failure);
                }
            }
        }
        self.ask_for_resources(versions)
    }

    fn ask_for_resources(&mut self, versions: VecDeque<OtherVersion>) -> Step {
        if versions.is_empty() { self.begin_next() } else { Step::Resources(versions) }
    }

    fn note_unknown(&mut self, what: &str, failure: &RequestFailure) {
        self.remains.undiscovered.push(format!("{what}: {failure}"));
    }

    fn begin_next(&mut self) -> Step {
        while let Some(target) = self.targets.pop_front() {
            if !self.done.contains(&resource(&target)) {
                return Step::First(target);
            }
        }
        Step::Over
    }

    fn finish(&mut self, target: &Target) -> Step {
        self.done.insert(resource(target));
        self.begin_next()
    }

    /// Goes on with the next kind. A resource that the server does not serve has no objects.
    fn fail(&mut self, target: &Target, failure: RequestFailure) -> Step {
        if failure.is_not_found() {
            return self.begin_next();
        }
        self.remains.failures.push(format!("{}: {failure}", target.collection.plural));
        self.finish(target)
    }

    /// What is refused is left: it is counted, unless the server does not answer or fails, which would take its time again.
    fn list_refused(&mut self, target: Target, failure: RequestFailure) -> Step {
        match failure.is_refusal() && !failure.is_not_found() {
            true => Step::Left(target, Some(failure)),
            false => self.fail(&target, failure),
        }
    }

    /// One that is refused stops none of the others.
    fn note_deletion(
        &mut self,
        target: Target,
        mut each: EachDeletion,
        answer: Result<ContentAnswer, RequestFailure>,
    ) -> Step {
        each.names.pop_front();
        match answer {
            Err(failure) if !failure.is_refusal() => {
                return self.fail(&target, each.refused.unwrap_or(failure));
            }
            Err(failure) if !failure.is_not_found() => {
                each.refused.get_or_insert(failure);
            }
            _ => {}
        }
        delete_next(target, each)
    }

    fn note_left(
        &mut self,
        target: &Target,
        refusal: Option<RequestFailure>,
        answer: Result<ContentAnswer, RequestFailure>,
    ) -> Step {
        match answer {
            Ok(ContentAnswer::Objects(left)) if !left.items.is_empty() => {
                let more = left.metadata.remaining_item_count;
                let more = more.and_then(|more| usize::try_from(more).ok()).unwrap_or_default();
                let Collection { plural, group, .. } = &target.collection;
                // Resource and group; of the core group, which is empty, the dot remains.
                let count = left.items.len().saturating_add(more);
                self.remains.objects.insert(format!("{plural}.{group}"), count);
                let finalizers = left.items.iter().flat_map(|object| &object.metadata.finalizers);
                count_each(finalizers, &mut self.remains.finalizers);
            }
            Ok(_) => {}
            Err(failure) => return self.fail(target, refusal.unwrap_or(failure)),
        }
        match refusal {
            Some(refusal) => self.fail(target, refusal),
            None => self.finish(target),
        }
    }
}

fn resource(target: &Target) -> (String, String) {
    (target.collection.group.clone(), target.collection.plural.clone())
}

/// Begins to delete the objects of a page.
fn delete_page(target: Target, mut each: EachDeletion, list: List<PartialObjectMetadata>) -> Step {
    each.pages = each.pages.saturating_add(1);
    let token = list.metadata.continue_;
    each.from = (!token.is_empty() && each.pages < PAGES_MAX).then_some(token);
    each.names = list.items.into_iter().map(|object| object.metadata.name).collect();
    delete_next(target, each)
}

/// The next object of the page, the next page, or what is left.
fn delete_next(target: Target, each: EachDeletion) -> Step {
    match (each.names.is_empty(), each.from.is_some()) {
        (false, _) => Step::DeleteNext(target, each),
        (true, true) => Step::Page(target, each),
        (true, false) => Step::Left(target, each.refused),
    }
}

/// The namespace's collections of built-in kinds that can be deleted.
fn built_in(names: &Names, namespace: &str) -> impl Iterator<Item = Collection> {
    let namespaced = schema::resources().iter().filter(|resource| resource.namespaced);
    let deletable = |r: &&schema::ResourceDescriptor| {
        ["deletecollection", "list"].iter().all(|verb| r.verbs.contains(verb))
    };
    namespaced.filter(deletable).map(move |resource| Collection {
        group: names.group(resource.group),
        version: resource.version.to_owned(),
        plural: resource.plural.to_owned(),
        namespace: Some(namespace.to_owned()),
    })
}

/// The collection of a namespaced resource, if its objects can be listed and deleted.
fn deletable(other: &OtherResource, namespace: &str) -> Option<Target> {
    let is_meant = other.resource.namespaced && other.has(&["list", "delete"]);
    let deletes = if other.has(&["deletecollection"]) { Deletes::All } else { Deletes::Each };
    let collection = other.resource.collection(Some(namespace));
    is_meant.then_some(Target { collection, deletes })
}

fn count_each<'a>(
    finalizers: impl Iterator<Item = &'a String>,
    counts: &mut BTreeMap<String, usize>,
) {
    for finalizer in finalizers {
        let count = counts.entry(finalizer.clone()).or_default();
        *count = count.saturating_add(1);
    }
}
