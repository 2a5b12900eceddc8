//! The requests of `recorded.jsonl`, which clients of others have sent, to both servers, in their order.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::Result;
use http::Method;
use orch_differential::recording::{Recorded, ResourcePath, UID, VERSION, parse};
use proto_client::Client;
use serde_json::{Value as Json, json};

use crate::case::{self, Case, JSON, Pair};
use crate::resource::{BOTH, Whose, get_json, root, their_version};
use crate::{Run, write};

/// Time after a definition in which a server begins to serve its objects.
const DEFINITION_WAIT: Duration = Duration::from_secs(3);
/// Parameters of requests that never end.
const ENDLESS: [&str; 4] =
    ["timeoutSeconds", "follow", "sendInitialEvents", "resourceVersionMatch"];

impl Run<'_> {
    /// Sends the recorded requests, one after the other.
    pub async fn replay(&mut self) -> Result<()> {
        let recorded = parse(include_str!("../recorded.jsonl"))?;
        create_namespaces(self.clients, &recorded).await?;
        let mut kinds = Kinds::default();
        for request in &recorded {
            let Some(path) = ResourcePath::parse(&request.path) else { continue };
            let version = their_version(path.version(), path.plural).to_owned();
            let kind = kinds.of(&self.clients[0], &version, path.plural).await;
            let definition = kind.and_then(|kind| self.api.definition(&version, &kind));
            let case = Case {
                resource: path.plural.to_owned(),
                operation: "recorded",
                field: format!("{} {}", request.client, request.method),
                value: request.path.clone(),
                definition: definition.map(str::to_owned),
                steps: vec![self.pair(request, &path).await?],
            };
            let theirs = case::send(&self.clients[0], Whose::Theirs, &case);
            let ours = case::send(&self.clients[1], Whose::Ours, &case);
            let (theirs, ours) = tokio::join!(theirs, ours);
            let answers = [theirs, ours].map(|answers| answers.into_iter().map(plain).collect());
            self.report.count(self.api, self.table, &case, &answers);
            if path.plural == "customresourcedefinitions" && request.method != "GET" {
                tokio::time::sleep(DEFINITION_WAIT).await;
                kinds = Kinds::default();
            }
        }
        Ok(())
    }

    async fn pair(&self, request: &Recorded, path: &ResourcePath<'_>) -> Result<Pair> {
        let method: Method = request.method.parse()?;
        let mut bodies = [String::new(), String::new()];
        for whose in BOTH {
            let at = usize::from(whose == Whose::Ours);
            bodies[at] = self.body(request, path, whose).await;
        }
        let kind = |text: &str| if text.is_empty() { JSON.to_owned() } else { text.to_owned() };
        let pair = Pair::new(method, |whose| path_of(request, path, whose)).texts(bodies);
        Ok(pair.of(&kind(&request.content_type)).accepting(&kind(&request.accept)))
    }

    /// The body, with the version and the uid that the object has at this server.
    async fn body(&self, request: &Recorded, path: &ResourcePath<'_>, whose: Whose) -> String {
        let mut body = request.body.clone();
        if whose == Whose::Theirs {
            let theirs = their_version(path.version(), path.plural);
            for (ours, theirs) in [
                ("\"apiVersion\":\"", theirs),
                ("\"apiVersion\": \"", theirs),
                ("apiVersion: ", theirs),
            ] {
                body = body.replacen(
                    &format!("{ours}{}", path.version()),
                    &format!("{ours}{theirs}"),
                    1,
                );
            }
        }
        if !body.contains(VERSION) && !body.contains(UID) {
            return body;
        }
        let name = match path.name {
            "" => serde_json::from_str::<Json>(&body).unwrap_or_default()["metadata"]["name"]
                .as_str()
                .unwrap_or_default()
                .to_owned(),
            name => name.to_owned(),
        };
        let collection =
            path_of(request, &ResourcePath { name: "", subresource: "", ..path.clone() }, whose);
        let collection = collection.split_once('?').map_or(collection.as_str(), |(path, _)| path);
        let collection = match path.name {
            "" => collection,
            name => {
                collection.rsplit_once(&format!("/{name}")).map_or(collection, |(path, _)| path)
            }
        };
        let shown =
            get_json(self.client(whose), &format!("{collection}/{name}")).await.unwrap_or_default();
        let text = |field: &str| shown["metadata"][field].as_str().unwrap_or("1").to_owned();
        body.replace(VERSION, &text("resourceVersion")).replace(UID, &text("uid"))
    }
}

/// The namespaces of all requests.
async fn create_namespaces(clients: &[Client; 2], recorded: &[Recorded]) -> Result<()> {
    let paths = recorded.iter().filter_map(|request| ResourcePath::parse(&request.path));
    let names: BTreeSet<&str> = paths.map(|path| path.namespace).collect();
    for name in names
        .into_iter()
        .filter(|name| !name.is_empty() && *name != "default" && !name.starts_with("kube-"))
    {
        for client in clients {
            let namespace = json!({"metadata": {"name": name}});
            write(client, Method::POST, "/api/v1/namespaces", &namespace).await?;
        }
    }
    Ok(())
}

/// The path at a server; watches end after a second, and begin with what is there.
fn path_of(request: &Recorded, path: &ResourcePath<'_>, whose: Whose) -> String {
    let (plain, query) = request.path.split_once('?').unwrap_or((&request.path, ""));
    let plain = match whose {
        Whose::Ours => plain.to_owned(),
        Whose::Theirs => plain.replacen(
            &format!("/{}", path.root),
            &root(their_version(path.version(), path.plural)),
            1,
        ),
    };
    let is_watch =
        query.split('&').any(|part| ["watch=true", "watch=1", "watch=True"].contains(&part))
            || plain.contains("/watch/");
    let parts = query.split('&').filter_map(|part| {
        let (name, value) = part.split_once('=').unwrap_or((part, ""));
        match name {
            "" => None,
            name if is_watch && ENDLESS.contains(&name) => None,
            "follow" => None,
            "resourceVersion" if value.len() > 1 => Some("resourceVersion=0".to_owned()),
            _ => Some(part.to_owned()),
        }
    });
    let mut parts: Vec<String> = parts.collect();
    if is_watch {
        parts.push("timeoutSeconds=1".to_owned());
    }
    if parts.is_empty() { plain } else { format!("{plain}?{}", parts.join("&")) }
}

/// A table's cells are compared by other tests.
fn plain(answer: case::Answer) -> case::Answer {
    let object = answer.object.filter(|object| object["kind"] != "Table");
    case::Answer { object, ..answer }
}

/// Kinds by version and plural, as Kubernetes' server lists them.
#[derive(Default)]
struct Kinds(BTreeMap<String, Json>);

impl Kinds {
    async fn of(&mut self, theirs: &Client, version: &str, plural: &str) -> Option<String> {
        if !self.0.contains_key(version) {
            let list = get_json(theirs, &root(version)).await.unwrap_or_default();
            self.0.insert(version.to_owned(), list);
        }
        let resources = self.0.get(version)?["resources"].as_array()?;
        let found = resources.iter().find(|one| one["name"] == plural)?;
        Some(found["kind"].as_str()?.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(path: &str) -> Recorded {
        Recorded {
            client: "kubectl v1.31.0".to_owned(),
            method: "GET".to_owned(),
            path: path.to_owned(),
            accept: String::new(),
            content_type: String::new(),
            body: String::new(),
        }
    }

    #[test]
    fn paths_are_those_of_each_server_and_watches_end() {
        let paths = |path: &str| {
            let parts = ResourcePath::parse(path).unwrap();
            BOTH.map(|whose| path_of(&request(path), &parts, whose))
        };
        assert_eq!(
            paths("/apis/batch/v1/namespaces/n/cronjobs?limit=500"),
            [
                "/apis/batch/v1beta1/namespaces/n/cronjobs?limit=500",
                "/apis/batch/v1/namespaces/n/cronjobs?limit=500"
            ]
        );
        assert_eq!(paths("/apis/batch/v1/jobs"), ["/apis/batch/v1/jobs", "/apis/batch/v1/jobs"]);
        let watch = paths("/api/v1/pods?watch=true&resourceVersion=812&timeoutSeconds=290");
        assert_eq!(watch[0], "/api/v1/pods?watch=true&resourceVersion=0&timeoutSeconds=1");
        assert_eq!(paths("/api/v1/pods?resourceVersion=0")[0], "/api/v1/pods?resourceVersion=0");
    }

    #[test]
    fn the_recorded_requests_can_be_read_and_are_bounded() {
        let text = include_str!("../recorded.jsonl");
        assert!(text.len() <= orch_differential::recording::LEN_MAX);
        let recorded = parse(text).unwrap();
        let mut again = orch_differential::recording::Recording::default();
        for request in recorded {
            let path = request.path.clone();
            assert!(again.add(request), "{path} is no resource, or there twice");
        }
    }
}
