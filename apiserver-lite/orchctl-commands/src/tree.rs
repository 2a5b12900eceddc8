//! `tree`: the owners above an object and the dependents below it.

use std::collections::{BTreeSet, HashMap};
use std::process::ExitCode;

use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use http::{Request, header};
use orchctl_client::names;
use orchctl_client::{ApiResource, CommandError, Output, ServerResources, Session};
use orchctl_printers::describe::Unread;
use orchctl_printers::objects;
use orchctl_printers::tree::{self, Line, TreeObject, TreeOwner};
use proto_api::Collection;
use proto_client::ListParams;
use proto_client::request;
use serde_json::Value;

use crate::time;

/// Requests at one time.
const REQUESTS_MAX: usize = 8;
/// Objects of one request.
const PAGE: u32 = 500;
/// Most pages of a kind.
const PAGES_MAX: usize = 200;
/// Most owners above that are read.
const OWNERS_MAX: usize = 100;

/// Flags of the command.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// TYPE/NAME or TYPE NAME
    #[arg(value_name = "OBJECT", required = true)]
    args: Vec<String>,
}

/// Runs the command.
///
/// # Errors
/// The object does not exist, or the server cannot be reached.
pub async fn run(
    session: &Session,
    args: Args,
    output: &mut Output,
) -> Result<ExitCode, CommandError> {
    let discovery = session.discovery().await?;
    let selection = names::parse_one(discovery, &args.args, "pods")?;
    let collection = selection.resource.collection(Some(session.namespace()?));
    let path = collection.item(selection.name.as_deref().unwrap_or_default(), None);
    let asked = session.call_json(request::get(path)).await?;
    let uid = objects::text_at(&asked, "/metadata/uid").to_owned();
    let mut members = vec![member(&asked, &selection.resource)];
    let mut read = HashMap::from([(uid.clone(), asked)]);
    let absent = read_owners(session, discovery, &mut members, &mut read).await;
    let namespace = members.first().map(|member| member.namespace.clone()).unwrap_or_default();
    members.extend(read_dependents(session, discovery, &namespace, output).await?);
    let lines = tree::build(members, &uid, &absent);
    read_drawn(session, discovery, &lines, &mut read).await;
    output.out.write_all(tree::render(&lines, &read, time::now()).as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

/// Reads owners, their owners and so on. What is returned says why some are not there, by UID.
async fn read_owners(
    session: &Session,
    discovery: &ServerResources,
    members: &mut Vec<TreeObject>,
    read: &mut HashMap<String, Value>,
) -> HashMap<String, String> {
    let mut absent = HashMap::new();
    let mut at = 0;
    while let Some(member) = members.get(at).cloned() {
        at += 1;
        for owner in &member.owners {
            if read.contains_key(&owner.uid) || absent.contains_key(&owner.uid) {
                continue;
            }
            if members.len() + absent.len() >= OWNERS_MAX {
                absent.insert(owner.uid.clone(), "not read: there are too many owners".to_owned());
                continue;
            }
            match read_owner(session, discovery, owner, &member.namespace).await {
                Ok(object) => {
                    members.push(TreeObject::from_object(&object, &owner.api_version, &owner.kind));
                    read.insert(owner.uid.clone(), object);
                }
                Err(Unread(reason)) => {
                    absent.insert(owner.uid.clone(), reason);
                }
            }
        }
    }
    absent
}

async fn read_owner(
    session: &Session,
    discovery: &ServerResources,
    owner: &TreeOwner,
    namespace: &str,
) -> Result<Value, Unread> {
    let Some(resource) = resource_of(discovery, &owner.api_version, &owner.kind) else {
        return Err(Unread(format!("the server does not serve {}", owner.api_version)));
    };
    let path = resource.collection(Some(namespace)).item(&owner.name, None);
    match session.call_json(request::get(path)).await {
        Ok(object) if objects::text_at(&object, "/metadata/uid") == owner.uid => Ok(object),
        Ok(_) => Err(Unread("does not exist: the object of this name is another one".to_owned())),
        Err(error) if error.is_not_found() => Err(Unread("does not exist".to_owned())),
        Err(error) => Err(Unread(message_of(&error))),
    }
}

/// The resource of a kind in this version, else in another one of the group.
fn resource_of<'a>(
    discovery: &'a ServerResources,
    api_version: &str,
    kind: &str,
) -> Option<&'a ApiResource> {
    let group = api_version.split_once('/').map_or("", |(group, _)| group);
    let of_group = |one: &&ApiResource| one.group == group && one.kind == kind;
    discovery.of_kind(api_version, kind).or_else(|| discovery.resources.iter().find(of_group))
}

/// Everything in the namespace that has owners; everywhere for an object outside of namespaces. What cannot be listed is said and left out.
async fn read_dependents(
    session: &Session,
    discovery: &ServerResources,
    namespace: &str,
    output: &mut Output,
) -> Result<Vec<TreeObject>, CommandError> {
    for (version, reason) in &discovery.unavailable {
        writeln!(output.err, "{version} is left out: {reason}")?;
    }
    let scope = Some(namespace).filter(|namespace| !namespace.is_empty());
    let lists = listable(discovery)
        .into_iter()
        // Owners of objects outside of namespaces are outside of them too.
        .filter(|resource| resource.namespaced || scope.is_none())
        .map(|resource| async move { (resource, list(session, resource, scope).await) });
    let mut lists = stream::iter(lists).buffered(REQUESTS_MAX);
    let mut members = Vec::new();
    while let Some((resource, (found, ended))) = lists.next().await {
        members.extend(found);
        if let Err(reason) = ended {
            writeln!(output.err, "{} are left out: {reason}", resource.full_name())?;
        }
    }
    Ok(members)
}

/// Every resource that can be listed, in the preferred version, without those that [`is_omitted`] names.
fn listable(discovery: &ServerResources) -> Vec<&ApiResource> {
    let mut seen = BTreeSet::new();
    discovery
        .resources
        .iter()
        .filter(|resource| resource.has_verb("list") && !is_omitted(resource))
        .filter(|resource| seen.insert(resource.full_name()))
        .collect()
}

/// Events belong to objects in another way. Component statuses have no owners, and a list of them makes the server warn that they are deprecated; a custom kind
/// may have their name.
fn is_omitted(resource: &ApiResource) -> bool {
    match resource.kind.as_str() {
        "Event" => true,
        "ComponentStatus" => resource.group.is_empty(),
        _ => false,
    }
}

/// Those of a kind that have owners, as far as they can be listed.
async fn list(
    session: &Session,
    resource: &ApiResource,
    namespace: Option<&str>,
) -> (Vec<TreeObject>, Result<(), Unread>) {
    let mut members = Vec::new();
    let mut params = ListParams { limit: Some(PAGE), ..ListParams::default() };
    for _ in 0..PAGES_MAX {
        let page = list_page(session, &resource.collection(namespace), &params).await;
        let page = match page {
            Ok(page) => page,
            // Some resources say that they can be listed and are not there.
            Err(error) if error.is_not_found() => return (members, Ok(())),
            Err(error) => return (members, Err(Unread(message_of(&error)))),
        };
        let items = objects::list_at(&page, "/items").iter();
        let items = items.map(|item| member(item, resource));
        members.extend(items.filter(|member| !member.owners.is_empty()));
        let next = objects::text_at(&page, "/metadata/continue").to_owned();
        if next.is_empty() {
            return (members, Ok(()));
        }
        params.continue_ = Some(next);
    }
    let why = format!("there are more than {PAGES_MAX} pages; the first ones are drawn");
    (members, Err(Unread(why)))
}

/// A page with the metadata of objects, or whole objects from servers that cannot leave out the rest.
async fn list_page(
    session: &Session,
    collection: &Collection,
    params: &ListParams,
) -> Result<Value, CommandError> {
    let request = request::list(collection.path(), params);
    ask_metadata(session, request, "PartialObjectMetadataList").await
}

async fn ask_metadata(
    session: &Session,
    mut request: Request<Bytes>,
    form: &str,
) -> Result<Value, CommandError> {
    let group = session.names().await?.group("meta");
    let accept = format!("application/json;as={form};v=v1;g={group},application/json");
    if let Ok(accept) = accept.parse() {
        request.headers_mut().insert(header::ACCEPT, accept);
    }
    session.call_json(request).await
}

/// Reads the objects of the lines, for their states. Those that cannot be read have none.
async fn read_drawn(
    session: &Session,
    discovery: &ServerResources,
    lines: &[Line],
    read: &mut HashMap<String, Value>,
) {
    let mut wanted = BTreeSet::new();
    let reads: Vec<_> = lines
        .iter()
        .map(|line| &line.member)
        .filter(|member| !read.contains_key(&member.uid) && wanted.insert(&member.uid))
        .filter_map(|member| {
            let resource = discovery.of_kind(&member.api_version, &member.kind)?;
            let collection = resource.collection(Some(&member.namespace));
            Some((member, collection.item(&member.name, None)))
        })
        .collect();
    let reads = reads.into_iter().map(|(member, path)| async move {
        let request = request::get(path);
        // Contents have no state, and those of Secrets should stay where they are.
        let answer = match (member.api_version.as_str(), member.kind.as_str()) {
            ("v1", "Secret" | "ConfigMap") => {
                ask_metadata(session, request, "PartialObjectMetadata").await
            }
            _ => session.call_json(request).await,
        };
        (member.uid.clone(), answer)
    });
    let mut answers = stream::iter(reads).buffer_unordered(REQUESTS_MAX);
    while let Some((uid, answer)) = answers.next().await {
        if let Ok(object) = answer {
            read.insert(uid, object);
        }
    }
}

fn member(object: &Value, resource: &ApiResource) -> TreeObject {
    TreeObject::from_object(object, &resource.api_version(), &resource.kind)
}

/// What went wrong, without the words that a program's last line has.
fn message_of(error: &CommandError) -> String {
    match error {
        CommandError::Client(error) => error.server_message(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_is_listed_once_without_events_and_component_statuses() {
        let one = |group: &str, version: &str, kind: &str, verb: &str| ApiResource {
            group: group.into(),
            version: version.into(),
            plural: format!("{}s", kind.to_lowercase()),
            kind: kind.into(),
            verbs: vec![verb.into()],
            ..ApiResource::default()
        };
        let discovery = ServerResources {
            resources: vec![
                one("", "v1", "Pod", "list"),
                one("", "v1", "Event", "list"),
                one("", "v1", "Binding", "create"),
                one("", "v1", "ComponentStatus", "list"),
                one("example.com", "v1", "Pod", "list"),
                one("example.com", "v1", "ComponentStatus", "list"),
                one("example.com", "v1", "Widget", "list"),
                one("example.com", "v1beta1", "Widget", "list"),
            ],
            ..ServerResources::default()
        };
        let names: Vec<String> = listable(&discovery)
            .into_iter()
            .map(|one| format!("{} {}", one.full_name(), one.version))
            .collect();
        assert_eq!(
            names,
            [
                "pods v1",
                "pods.example.com v1",
                "componentstatuss.example.com v1",
                "widgets.example.com v1"
            ]
        );
        let found = resource_of(&discovery, "example.com/v2", "Widget").expect("another version");
        assert_eq!(found.version, "v1");
        assert!(resource_of(&discovery, "example.com/v1", "Gadget").is_none());
    }
}
