//! The words that complete a command line, from the server and the client configuration.

use std::time::Duration;

use orchctl_client::{CommandError, Session};
use orchctl_plans::completion::Candidates;
use orchctl_printers::objects;
use proto_client::{ListParams, request};
use serde_json::Value;

/// Most objects whose names are offered.
const NAMES_MAX: u32 = 1000;

/// How long a shell waits for a server.
pub const DEADLINE: Duration = Duration::from_secs(3);

/// The words, in any order.
///
/// # Errors
/// The server does not answer, or the client configuration cannot be read.
pub async fn words(session: &Session, wanted: &Candidates) -> Result<Vec<String>, CommandError> {
    match wanted {
        Candidates::Types => types(session).await,
        Candidates::Names { type_word, prefix, given } => {
            let names = names(session, type_word).await?;
            let names = names.into_iter().filter(|name| !given.contains(name));
            Ok(names.map(|name| format!("{prefix}{name}")).collect())
        }
        Candidates::Containers { pod } => containers(session, pod).await,
        Candidates::Configured(list) => {
            let merged = session.kubeconfig()?.merged();
            Ok(names_of(objects::list_at(&merged, &format!("/{list}")), "/name"))
        }
    }
}

async fn types(session: &Session) -> Result<Vec<String>, CommandError> {
    let resources = &session.discovery().await?.resources;
    let mut plurals: Vec<&str> = resources.iter().map(|one| one.plural.as_str()).collect();
    plurals.sort_unstable();
    let is_one = |plural: &str| {
        let at = plurals.partition_point(|other| *other < plural);
        plurals.get(at.saturating_add(1)) != Some(&plural)
    };
    // A name that several groups have means the first of them.
    let read = resources.iter().filter(|one| one.has_verb("get"));
    Ok(read
        .map(|one| if is_one(&one.plural) { one.plural.clone() } else { one.full_name() })
        .collect())
}

async fn names(session: &Session, type_word: &str) -> Result<Vec<String>, CommandError> {
    let resource = session.discovery().await?.resource(type_word)?;
    let namespace = session.namespace()?;
    let params = ListParams { limit: Some(NAMES_MAX), ..ListParams::default() };
    let mut request = request::list(resource.collection(Some(namespace)).path(), &params);
    let group = session.names().await?.group("meta");
    let accept =
        format!("application/json;as=PartialObjectMetadataList;v=v1;g={group},application/json");
    if let Ok(accept) = accept.parse() {
        request.headers_mut().insert(http::header::ACCEPT, accept);
    }
    let list = session.call_json(request).await?;
    Ok(names_of(objects::list_at(&list, "/items"), "/metadata/name"))
}

async fn containers(session: &Session, pod: &str) -> Result<Vec<String>, CommandError> {
    let resource = session.discovery().await?.resource("pods")?;
    let pods = resource.collection(Some(session.namespace()?));
    let pod = session.get_json(&pods.item(pod, None)).await?;
    let lists = ["containers", "initContainers", "ephemeralContainers"];
    Ok(lists
        .iter()
        .flat_map(|list| names_of(objects::list_at(&pod, &format!("/spec/{list}")), "/name"))
        .collect())
}

fn names_of(list: &[Value], pointer: &str) -> Vec<String> {
    let names = list.iter().map(|one| objects::text_at(one, pointer).to_owned());
    names.filter(|name| !name.is_empty()).collect()
}
