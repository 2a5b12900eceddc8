//! `describe`: objects in words, with what belongs to them.

use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;

use orchctl_client::manifests::{self, FileFlags};
use orchctl_client::names::{self, ResourceTuple};
use orchctl_client::{ApiResource, CommandError, Output, Session};
use orchctl_printers::describe::{self, Context, Related, ServiceWithEndpoints, Unread};
use orchctl_printers::objects;
use proto_api::Collection;
use proto_client::ListParams;
use proto_client::request;
use serde_json::Value;

use crate::{events, time};

/// Most services of an ingress that are read.
const BACKENDS_MAX: usize = 200;
/// Most pages of a list.
const PAGES_MAX: usize = 10_000;

/// Flags of the command.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// TYPE, TYPE NAME_PREFIX..., or TYPE/NAME...
    #[arg(value_name = "OBJECT")]
    args: Vec<String>,
    /// Files with the objects
    #[command(flatten)]
    files: FileFlags,
    /// Objects with these labels
    #[arg(
        long,
        short = 'l',
        value_name = "SELECTOR",
        default_value = "",
        hide_default_value = true
    )]
    selector: String,
    /// Objects of all namespaces
    #[arg(long, short = 'A')]
    all_namespaces: bool,
    /// With what happened to each object
    #[arg(long, value_name = "BOOL", action = clap::ArgAction::Set, num_args = 0..=1, require_equals = true, default_value_t = true, default_missing_value = "true")]
    show_events: bool,
    /// Objects of one request; 0 for all
    #[arg(long, value_name = "COUNT", default_value_t = 500)]
    chunk_size: u32,
}

/// Runs the command.
///
/// # Errors
/// When the server refuses, or there are no such objects.
pub async fn run(
    session: &Session,
    args: Args,
    output: &mut Output,
) -> Result<ExitCode, CommandError> {
    let context = Context { names: session.names().await?, now: time::now() };
    let (found, errors) = find(session, &args, output).await?;
    let is_empty = found.is_empty();
    for (at, object) in found.into_iter().enumerate() {
        if at > 0 {
            write!(output.out, "\n\n")?;
        }
        let related = related(session, &object, args.show_events).await;
        output.out.write_all(describe::describe(&object, &related, context).as_bytes())?;
    }
    output.out.flush()?;
    if is_empty && errors.is_empty() {
        let scope = if args.all_namespaces {
            String::new()
        } else {
            format!(" in {} namespace.", session.namespace()?)
        };
        writeln!(output.err, "No resources found{scope}")?;
    }
    CommandError::collect(errors).map(|()| ExitCode::SUCCESS)
}

/// An object in words, with what belongs to it.
///
/// # Errors
/// The server cannot be reached.
pub async fn text_of(session: &Session, object: &Value) -> Result<String, CommandError> {
    let context = Context { names: session.names().await?, now: time::now() };
    let related = related(session, object, true).await;
    Ok(describe::describe(object, &related, context))
}

type Found = (Vec<Value>, Vec<CommandError>);

async fn find(session: &Session, args: &Args, output: &mut Output) -> Result<Found, CommandError> {
    let discovery = session.discovery().await?;
    let current = session.namespace()?;
    let (mut found, mut errors) = (Vec::new(), Vec::new());
    let mut keep = |answer: Result<Vec<Value>, CommandError>| match answer {
        Ok(objects) => found.extend(objects),
        Err(error) => errors.push(error),
    };
    if !args.files.filename.is_empty() {
        for manifest in manifests::read(session, &args.files, output).await? {
            let resource = discovery.served_kind(manifest.api_version(), manifest.kind())?;
            let namespace = manifest.namespace().unwrap_or(current);
            let path = resource.collection(Some(namespace)).item(manifest.name(), None);
            keep(session.call_json(request::get(path)).await.map(|object| vec![object]));
        }
        return Ok((found, errors));
    }
    for ResourceTuple { resource, name } in names::parse(discovery, &args.args)? {
        let namespace = Some(current).filter(|_| !args.all_namespaces);
        let collection = resource.collection(namespace);
        match name {
            Some(_) if !args.selector.is_empty() => {
                return Err(CommandError::with_text(
                    "name cannot be provided when a selector is specified",
                ));
            }
            Some(name) => keep(by_name(session, &collection, &resource, &name, args).await),
            None => keep(list(session, &collection, &args.selector, args.chunk_size).await),
        }
    }
    Ok((found, errors))
}

/// The object of this name; without one those whose names begin so.
async fn by_name(
    session: &Session,
    collection: &Collection,
    resource: &ApiResource,
    name: &str,
    args: &Args,
) -> Result<Vec<Value>, CommandError> {
    let missing = match session.call_json(request::get(collection.item(name, None))).await {
        Ok(object) => return Ok(vec![object]),
        Err(error) if error.is_not_found() && resource.has_verb("list") => error,
        Err(error) => return Err(error),
    };
    let mut all = list(session, collection, &args.selector, args.chunk_size).await?;
    all.retain(|object| objects::name(object).starts_with(name));
    if all.is_empty() { Err(missing) } else { Ok(all) }
}

async fn list(
    session: &Session,
    collection: &Collection,
    selector: &str,
    chunk: u32,
) -> Result<Vec<Value>, CommandError> {
    let mut params = ListParams::labels(selector);
    params.limit = Some(chunk).filter(|chunk| *chunk > 0);
    let mut items = Vec::new();
    for _ in 0..PAGES_MAX {
        let page = session.call_json(request::list(collection.path(), &params)).await?;
        let next = objects::text_at(&page, "/metadata/continue").to_owned();
        items.extend(objects::into_items(page));
        if next.is_empty() {
            break;
        }
        params.continue_ = Some(next);
    }
    Ok(items)
}

fn collection(group: &str, version: &str, plural: &str, namespace: Option<&str>) -> Collection {
    Collection {
        group: group.to_owned(),
        version: version.to_owned(),
        plural: plural.to_owned(),
        namespace: namespace.map(str::to_owned),
    }
}

/// What belongs to the object. What the user may not read is left out.
async fn related(session: &Session, object: &Value, show_events: bool) -> Related {
    let mut related = Related::default();
    let namespace = Some(objects::namespace(object)).filter(|namespace| !namespace.is_empty());
    let kind = objects::text_at(object, "/kind");
    let name = objects::name(object);
    let group =
        objects::text_at(object, "/apiVersion").split_once('/').map_or("", |(group, _)| group);
    match (group, kind) {
        ("", "Node") => {
            let fields = format!("spec.nodeName={name}");
            let pods = collection("", "v1", "pods", None);
            let params = ListParams::fields(fields);
            if let Ok(list) = session.call_json(request::list(pods.path(), &params)).await {
                related.pods = objects::into_items(list);
            }
            related.lease = lease(session, name).await;
        }
        ("", "Service") => {
            let path = collection("", "v1", "endpoints", namespace).item(name, None);
            related.endpoints = session.call_json(request::get(path)).await.ok();
        }
        ("", "Namespace") => {
            for plural in ["resourcequotas", "limitranges"] {
                let collection = collection("", "v1", plural, Some(name));
                related.limits.extend(list(session, &collection, "", 0).await.unwrap_or_default());
            }
        }
        ("apps", "Deployment") => {
            let sets = collection("apps", "v1", "replicasets", namespace);
            related.replica_sets = owned(session, &sets, object).await;
        }
        ("apps", "ReplicaSet" | "StatefulSet" | "DaemonSet") | ("", "ReplicationController") => {
            let pods = collection("", "v1", "pods", namespace);
            related.pods = owned(session, &pods, object).await;
        }
        ("", "PersistentVolumeClaim") => {
            let pods = collection("", "v1", "pods", namespace);
            let mut pods = list(session, &pods, "", 0).await.unwrap_or_default();
            pods.retain(|pod| objects::claim_names(pod).iter().any(|claim| claim == name));
            related.pods = pods;
        }
        (_, "Ingress") => related.backends = backends(session, object).await,
        _ => {}
    }
    // Where kinds have no events of their own, or where data is all that counts.
    let without =
        matches!((group, kind), ("", "Secret" | "Namespace" | "ResourceQuota" | "LimitRange"))
            || kind == "NetworkPolicy"
            || group.starts_with("rbac.");
    if show_events && !without {
        related.events = events_of(session, object).await;
    }
    related
}

/// The services that an ingress names, with their endpoints.
async fn backends(
    session: &Session,
    ingress: &Value,
) -> BTreeMap<String, Result<ServiceWithEndpoints, Unread>> {
    let paths = objects::list_at(ingress, "/spec/rules").iter();
    let paths = paths.flat_map(|rule| objects::list_at(rule, "/http/paths"));
    let named = paths.map(|path| objects::text_at(path, "/backend/service/name"));
    let default = objects::text_at(ingress, "/spec/defaultBackend/service/name");
    let names: BTreeSet<&str> = named.chain([default]).filter(|name| !name.is_empty()).collect();
    let mut found = BTreeMap::new();
    for name in names.into_iter().take(BACKENDS_MAX) {
        let namespace = Some(objects::namespace(ingress));
        let read = |plural| {
            let path = collection("", "v1", plural, namespace).item(name, None);
            session.call_json(request::get(path))
        };
        let both = async {
            let endpoints = read("endpoints").await?;
            Ok(ServiceWithEndpoints { service: read("services").await?, endpoints })
        };
        found.insert(name.to_owned(), both.await.map_err(unread));
    }
    found
}

/// The server's own words.
fn unread(error: CommandError) -> Unread {
    let text = error.to_string();
    Unread(text.split_once(": ").map_or(text.clone(), |(_, message)| message.to_owned()))
}

/// Objects of a collection that belong to `owner`.
async fn owned(session: &Session, collection: &Collection, owner: &Value) -> Vec<Value> {
    let uid = objects::text_at(owner, "/metadata/uid");
    let selector = objects::pod_selector(owner).unwrap_or_default();
    let mut items = list(session, collection, &selector, 0).await.unwrap_or_default();
    items.retain(|item| {
        let mut owners = objects::list_at(item, "/metadata/ownerReferences").iter();
        owners.any(|owner| objects::text_at(owner, "/uid") == uid)
    });
    items
}

async fn lease(session: &Session, node: &str) -> Option<Result<Value, Unread>> {
    let names = session.names().await.ok()?;
    let group = names.group("coordination");
    let leases = collection(&group, "v1", "leases", Some(names.node_lease_namespace()));
    let answer = session.call_json(request::get(leases.item(node, None))).await;
    Some(answer.map_err(unread))
}

/// What happened to an object, the oldest first; nothing if that cannot be read.
pub async fn events_of(session: &Session, object: &Value) -> Option<Vec<Value>> {
    let mut fields = vec![
        format!("involvedObject.name={}", objects::name(object)),
        format!("involvedObject.kind={}", objects::text_at(object, "/kind")),
    ];
    let namespace = objects::namespace(object);
    match objects::text_at(object, "/kind") {
        // A node agent writes the node's name as its UID.
        "Node" => {}
        "Pod" => {
            let mirror = session.names().await.ok()?.label("config.mirror");
            fields.push(format!("involvedObject.uid={}", objects::uid_on_node(object, &mirror)));
        }
        _ => {
            let uid = objects::text_at(object, "/metadata/uid");
            fields.push(format!("involvedObject.uid={uid}"));
        }
    }
    let namespace = Some(namespace.to_owned()).filter(|namespace| !namespace.is_empty());
    events::list(session, namespace, &fields.join(",")).await.ok()
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::{Arc, Mutex, PoisonError};

    use orchctl_client::GlobalFlags;
    use proto_client::testing::{StubServer, json_response};
    use serde_json::json;

    use super::*;

    /// A kubelet's events of a static pod have the UID that the mirror has in an annotation.
    #[tokio::test]
    async fn events_of_a_mirror_are_those_of_its_static_pod() {
        let asked: Arc<Mutex<Vec<String>>> = Arc::default();
        let queries = Arc::clone(&asked);
        let server = StubServer::start(move |request| {
            if request.path.ends_with("/events") {
                let mut queries = queries.lock().unwrap_or_else(PoisonError::into_inner);
                queries.push(request.query.clone());
                return Some(json_response(200, &json!({"kind": "EventList", "items": []})));
            }
            Some(json_response(200, &json!({"groups": []})))
        })
        .await;
        let mut flags = GlobalFlags { request_timeout: "0".into(), ..GlobalFlags::default() };
        flags.server.server = Some(format!("http://{}", server.address));
        let session = Session::new(flags, Arc::new(|_| None), Box::new(io::sink()));
        let annotated = json!({"kubernetes.io/config.mirror": "hash"});
        for (kind, annotations, uid) in [
            ("Pod", &annotated, Some("hash")),
            ("Pod", &json!({}), Some("u")),
            ("Deployment", &annotated, Some("u")),
            ("Node", &json!({}), None),
        ] {
            let object = json!({"kind": kind, "metadata": {"name": "p", "namespace": "n", "uid": "u", "annotations": annotations}});
            events_of(&session, &object).await.expect("read");
            let query = asked.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let query = query.expect("a question");
            let part = uid.map(|uid| format!("involvedObject.uid%3D{uid}"));
            assert_eq!(query.contains("involvedObject.uid"), part.is_some(), "{query}");
            assert!(part.is_none_or(|part| query.contains(&part)), "{kind}: {query}");
        }
    }
}
