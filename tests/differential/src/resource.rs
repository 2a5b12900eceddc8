//! The resources that are compared: what Kubernetes' server says of them, and a valid object of each (`objects.json`).

use anyhow::{Context as _, Result, anyhow};
use proto_client::{Client, request};
use serde::Deserialize;
use serde_json::{Value as Json, json};

use crate::open_api::OpenApi;

/// The namespace of all objects.
pub const NAMESPACE: &str = "differential";

/// Versions of Kubernetes 1.20 that ours serves under the names of later ones.
const RENAMED: [(&str, &str); 5] = [
    ("autoscaling/v2beta2", "autoscaling/v2"),
    ("batch/v1beta1", "batch/v1"),
    ("discovery.k8s.io/v1beta1", "discovery.k8s.io/v1"),
    ("flowcontrol.apiserver.k8s.io/v1beta1", "flowcontrol.apiserver.k8s.io/v1beta2"),
    ("policy/v1beta1", "policy/v1"),
];

/// Whose server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    /// Kubernetes'.
    Theirs,
    Ours,
}

/// Both, in the order of pairs.
pub const BOTH: [Whose; 2] = [Whose::Theirs, Whose::Ours];

/// A row of `objects.json`.
#[derive(Deserialize)]
struct Row {
    version: String,
    resource: String,
    name: Option<String>,
    object: Json,
    /// A valid status, of kinds that have one.
    #[serde(default)]
    status: Json,
}

/// A resource with a valid object.
#[derive(Clone, Debug)]
pub struct Resource {
    /// Group and version at Kubernetes' server.
    pub version: String,
    pub plural: String,
    pub kind: String,
    /// Whether its objects lie in namespaces.
    pub is_namespaced: bool,
    /// Whether it is stored, or only answered as reviews are.
    pub is_stored: bool,
    /// The definition of its kind.
    pub definition: String,
    pub subresources: Vec<String>,
    /// The valid object, without a name where objects may have any.
    pub object: Json,
    /// A valid status, or null.
    pub status: Json,
    /// The name that all its objects have, if they may not have any.
    pub fixed_name: Option<String>,
}

impl Resource {
    /// The resources that both serve, and notes on those that are left out.
    pub async fn all(theirs: &Client, api: &OpenApi) -> Result<(Vec<Self>, Vec<String>)> {
        let rows: Vec<Row> = serde_json::from_str(include_str!("../objects.json"))
            .context("tests/differential/objects.json")?;
        let mut found = Vec::new();
        for row in rows {
            found.push(Self::from_row(row, theirs, api).await?);
        }
        let names = served(theirs).await?;
        let known = |name: &String| !found.iter().any(|one: &Self| one.full_name() == *name);
        Ok((found.clone(), names.into_iter().filter(known).collect()))
    }

    async fn from_row(row: Row, theirs: &Client, api: &OpenApi) -> Result<Self> {
        let list = get_json(theirs, &root(&row.version)).await?;
        let all = list["resources"].as_array().cloned().unwrap_or_default();
        let of = all.iter().find(|one| one["name"] == row.resource.as_str());
        let of = of.with_context(|| format!("{} is not served", row.resource))?;
        let kind = of["kind"].as_str().unwrap_or_default().to_owned();
        let definition = api.definition(&row.version, &kind);
        let below = format!("{}/", row.resource);
        let subresources = all.iter().filter_map(|one| one["name"].as_str()?.strip_prefix(&below));
        Ok(Self {
            definition: definition.context("the kind has no definition")?.to_owned(),
            is_namespaced: of["namespaced"] == true,
            is_stored: of["verbs"].as_array().is_some_and(|verbs| verbs.contains(&json!("get"))),
            subresources: subresources.map(str::to_owned).collect(),
            version: row.version,
            plural: row.resource,
            object: row.object,
            status: row.status,
            fixed_name: row.name,
            kind,
        })
    }

    /// With its version.
    pub fn full_name(&self) -> String {
        format!("{} {}", self.version, self.plural)
    }

    /// Its version at a server.
    pub fn version_of(&self, whose: Whose) -> &str {
        match whose {
            Whose::Theirs => &self.version,
            Whose::Ours => our_version(&self.version),
        }
    }

    /// The path of its objects.
    pub fn path(&self, whose: Whose) -> String {
        let root = root(self.version_of(whose));
        match self.is_namespaced {
            true => format!("{root}/namespaces/{NAMESPACE}/{}", self.plural),
            false => format!("{root}/{}", self.plural),
        }
    }

    /// The path of one object.
    pub fn path_of(&self, whose: Whose, name: &str) -> String {
        format!("{}/{name}", self.path(whose))
    }

    /// The name that a valid object has, `wanted` if it may have any.
    pub fn name<'a>(&'a self, wanted: &'a str) -> &'a str {
        self.fixed_name.as_deref().unwrap_or(wanted)
    }

    /// Whether its objects may have any name.
    pub fn has_any_name(&self) -> bool {
        self.fixed_name.is_none()
    }

    /// The valid object.
    pub fn object(&self, whose: Whose, name: &str) -> Json {
        let mut object = json!({"apiVersion": self.version_of(whose), "kind": self.kind});
        if self.is_stored {
            let name = self.name(name);
            object["metadata"] =
                json!({"name": name, "labels": {"a": "b"}, "annotations": {"a": "b"}});
        }
        for (field, value) in self.object.as_object().into_iter().flatten() {
            object[field] = value.clone();
        }
        object
    }
}

/// The version of Kubernetes 1.20 that has the objects which ours serves in `version`.
pub fn their_version<'a>(version: &'a str, plural: &str) -> &'a str {
    // Of these versions 1.20 has other resources.
    let is_there = matches!(plural, "jobs" | "podsecuritypolicies");
    let renamed = RENAMED.iter().find(|(_, ours)| *ours == version && !is_there);
    renamed.map_or(version, |(theirs, _)| theirs)
}

/// The version that ours serves the objects of a version of Kubernetes 1.20 as.
pub fn our_version(version: &str) -> &str {
    RENAMED.iter().find(|(theirs, _)| *theirs == version).map_or(version, |(_, ours)| ours)
}

/// The path of a version of a group.
pub fn root(version: &str) -> String {
    let root = if version.contains('/') { "apis" } else { "api" };
    format!("/{root}/{version}")
}

/// What Kubernetes' server serves, with versions.
async fn served(theirs: &Client) -> Result<Vec<String>> {
    let mut versions = vec!["v1".to_owned()];
    let groups = get_json(theirs, "/apis").await?;
    for group in groups["groups"].as_array().into_iter().flatten() {
        let all = group["versions"].as_array().into_iter().flatten();
        versions.extend(all.filter_map(|one| Some(one["groupVersion"].as_str()?.to_owned())));
    }
    let mut names = Vec::new();
    for version in versions {
        let list = get_json(theirs, &root(&version)).await?;
        for one in list["resources"].as_array().into_iter().flatten() {
            let name = one["name"].as_str().unwrap_or_default();
            if !name.contains('/') {
                names.push(format!("{version} {name}"));
            }
        }
    }
    Ok(names)
}

/// What a path shows.
pub async fn get_json(client: &Client, path: &str) -> Result<Json> {
    let answer = client.with_body_len_max(64 << 20).call(request::get(path.to_owned())).await;
    let answer = answer.map_err(|error| anyhow!(error)).with_context(|| path.to_owned())?;
    serde_json::from_slice(&answer.body).with_context(|| path.to_owned())
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// The resource of a row.
    pub fn resource(version: &str, plural: &str) -> Resource {
        let rows: Vec<Row> = serde_json::from_str(include_str!("../objects.json")).unwrap();
        let is_wanted = |row: &Row| row.version == version && row.resource == plural;
        let row = rows.into_iter().find(is_wanted).unwrap();
        Resource {
            version: row.version,
            plural: row.resource,
            kind: "Kind".to_owned(),
            is_namespaced: false,
            is_stored: true,
            definition: String::new(),
            subresources: Vec::new(),
            object: row.object,
            status: row.status,
            fixed_name: row.name,
        }
    }

    #[test]
    fn removed_api_versions_are_requested_by_their_successors() {
        let budget = resource("policy/v1beta1", "poddisruptionbudgets");
        assert_eq!(budget.path(Whose::Theirs), "/apis/policy/v1beta1/poddisruptionbudgets");
        assert_eq!(budget.path(Whose::Ours), "/apis/policy/v1/poddisruptionbudgets");
        assert_eq!(budget.object(Whose::Ours, "a")["apiVersion"], "policy/v1");
        assert_eq!(budget.object(Whose::Theirs, "a")["metadata"]["name"], "a");
        let definition = resource("apiextensions.k8s.io/v1", "customresourcedefinitions");
        assert_eq!(definition.name("a"), "things.differential.example.com");
    }
}
