//! Every resource with every verb, and every path, that the server itself lists.

use anyhow::{Context as _, Result, ensure};
use proto_client::{Client, request};
use serde_json::{Value, json};

use super::Attempt;

/// A resource or subresource of one version.
pub struct Resource {
    /// Path of the version, `/api/v1` for example.
    version: String,
    /// Plural name, with that of the subresource behind a slash.
    name: String,
    namespaced: bool,
    verbs: Vec<String>,
}

async fn page(client: &Client, path: &str) -> Result<Value> {
    let answer =
        client.call(request::get(path.to_owned())).await.with_context(|| path.to_owned())?;
    Ok(serde_json::from_slice(&answer.body)?)
}

/// The resources of all versions, as discovery lists them.
pub async fn served(client: &Client) -> Result<Vec<Resource>> {
    let mut versions = vec!["/api/v1".to_owned()];
    for group in page(client, "/apis").await?["groups"].as_array().into_iter().flatten() {
        let of_group = group["versions"].as_array().into_iter().flatten();
        let name = of_group.filter_map(|version| version["groupVersion"].as_str());
        versions.extend(name.map(|name| format!("/apis/{name}")));
    }
    let mut all = Vec::new();
    for version in versions {
        for found in page(client, &version).await?["resources"].as_array().into_iter().flatten() {
            let verbs = found["verbs"].as_array().into_iter().flatten();
            all.push(Resource {
                version: version.clone(),
                name: found["name"].as_str().context("a name")?.to_owned(),
                namespaced: found["namespaced"] == true,
                verbs: verbs.filter_map(Value::as_str).map(str::to_owned).collect(),
            });
        }
    }
    ensure!(all.len() > 100, "only {} resources", all.len());
    Ok(all)
}

/// Each verb of each resource, on objects that are not there, must be refused, but for those that `has` knows by resource and verb. A resource has the first
/// part of its group in front: `pods`, `apps/deployments`.
pub fn attempts(
    ns: &str,
    all: &[Resource],
    has: impl Fn(&str, &str) -> bool,
) -> Vec<Attempt<'static>> {
    let mut attempts = Vec::new();
    for resource in all {
        for verb in resource.verbs.iter().filter(|verb| !has(&resource.id(), verb)) {
            let (method, path) = resource.request(ns, verb);
            let body = if matches!(method, "GET" | "DELETE") { Value::Null } else { json!({}) };
            attempts.push((method, path, body, 403));
        }
    }
    attempts
}

impl Resource {
    fn id(&self) -> String {
        let group = self.version.strip_prefix("/apis/").and_then(|group| group.split('.').next());
        match group {
            None => self.name.clone(),
            Some(group) => format!("{}/{}", group.split('/').next().unwrap_or(group), self.name),
        }
    }

    fn request(&self, ns: &str, verb: &str) -> (&'static str, String) {
        let (plural, subresource) = match self.name.split_once('/') {
            Some((plural, subresource)) => (plural, format!("/{subresource}")),
            None => (self.name.as_str(), String::new()),
        };
        let within = if self.namespaced { format!("/namespaces/{ns}") } else { String::new() };
        let collection = format!("{}{within}/{plural}", self.version);
        let one = format!("{collection}/absent{subresource}");
        match verb {
            "list" => ("GET", collection),
            "watch" => ("GET", format!("{collection}?watch=1&timeoutSeconds=1")),
            "deletecollection" => ("DELETE", collection),
            "create" if subresource.is_empty() => ("POST", collection),
            "create" => ("POST", one),
            "update" => ("PUT", one),
            "patch" => ("PATCH", one),
            "delete" => ("DELETE", one),
            _ => ("GET", one),
        }
    }
}

/// Every path of the server's list, which only those for everybody answer.
pub async fn paths(client: &Client) -> Result<Vec<Attempt<'static>>> {
    let list = page(client, "/").await?["paths"].as_array().cloned().unwrap_or_default();
    ensure!(list.len() > 20, "only {} paths", list.len());
    let public = |path: &str| {
        let first = path.split('/').nth(1).unwrap_or_default();
        matches!(first, "healthz" | "livez" | "readyz" | "version")
    };
    let paths = list.into_iter().filter_map(|path| path.as_str().map(str::to_owned));
    Ok(paths
        .map(|path| {
            let status = if public(&path) { 200 } else { 403 };
            ("GET", path, Value::Null, status)
        })
        .collect())
}
