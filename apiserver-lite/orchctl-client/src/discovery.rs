//! What the server serves: groups, versions and resources, and which of them a word of the command line means.

use futures_util::future::join_all;
use proto_api::Collection;
use serde::Deserialize;

use crate::{CommandError, Session};

/// Most group versions that are read.
const VERSIONS_MAX: usize = 2000;

/// A resource of one version.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ApiResource {
    /// The full group; empty for core.
    pub group: String,
    /// For example `v1`.
    pub version: String,
    /// For example `pods`.
    pub plural: String,
    /// For example `pod`.
    pub singular: String,
    /// For example `Pod`.
    pub kind: String,
    /// For example `po`.
    pub short_names: Vec<String>,
    /// For example `all`.
    pub categories: Vec<String>,
    /// Whether objects lie in namespaces.
    pub namespaced: bool,
    /// For example `get`, `list`.
    pub verbs: Vec<String>,
}

impl ApiResource {
    /// `v1`, `apps/v1`.
    pub fn api_version(&self) -> String {
        api_version(&self.group, &self.version)
    }

    /// `pods`, `deployments.apps`.
    pub fn full_name(&self) -> String {
        with_group(&self.plural, &self.group)
    }

    /// What objects are called in messages: `pod`, `deployment.apps`.
    pub fn word(&self) -> String {
        let singular =
            if self.singular.is_empty() { self.kind.to_lowercase() } else { self.singular.clone() };
        with_group(&singular, &self.group)
    }

    /// Whether requests of this verb exist.
    pub fn has_verb(&self, verb: &str) -> bool {
        self.verbs.iter().any(|known| known == verb)
    }

    /// Its objects in `namespace`, in all namespaces without one; cluster-scoped resources ignore it.
    pub fn collection(&self, namespace: Option<&str>) -> Collection {
        Collection {
            group: self.group.clone(),
            version: self.version.clone(),
            plural: self.plural.clone(),
            namespace: namespace.filter(|_| self.namespaced).map(str::to_owned),
        }
    }

    fn is_called(&self, word: &str) -> bool {
        self.plural == word || self.singular == word || self.kind.to_lowercase() == word
    }

    fn is_short(&self, word: &str) -> bool {
        self.short_names.iter().any(|short| short == word)
    }
}

/// Versions of a group, the preferred one first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Group {
    /// The full group; empty for core.
    pub name: String,
    /// Its versions, the preferred one first.
    pub versions: Vec<String>,
}

/// What the server serves.
#[derive(Clone, Debug, Default)]
pub struct ServerResources {
    /// The core group, then the others in the server's order.
    pub groups: Vec<Group>,
    /// Resources without subresources, in the order of groups and versions.
    pub resources: Vec<ApiResource>,
    /// Group versions that the server lists and cannot describe, with the reason.
    pub unavailable: Vec<(String, String)>,
}

#[derive(Deserialize)]
struct Versions {
    #[serde(default)]
    versions: Vec<String>,
}

#[derive(Deserialize)]
struct Groups {
    #[serde(default)]
    groups: Vec<GroupEntry>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct GroupEntry {
    name: String,
    #[serde(default)]
    versions: Vec<VersionEntry>,
    preferred_version: Option<VersionEntry>,
}

#[derive(Deserialize)]
struct VersionEntry {
    version: String,
}

#[derive(Deserialize)]
struct Resources {
    #[serde(default)]
    resources: Option<Vec<ResourceEntry>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[derive(Default)]
struct ResourceEntry {
    name: String,
    singular_name: String,
    namespaced: bool,
    kind: String,
    group: String,
    version: String,
    verbs: Vec<String>,
    short_names: Option<Vec<String>>,
    categories: Option<Vec<String>>,
}

impl ServerResources {
    /// Reads the discovery documents of the server.
    ///
    /// # Errors
    /// When its lists of groups cannot be had.
    pub async fn read(session: &Session) -> Result<Self, CommandError> {
        let (core, named) = tokio::join!(session.get_json("/api"), session.get_json("/apis"));
        let core: Versions = read_document(core?, "/api")?;
        let named: Groups = read_document(named?, "/apis")?;
        let mut groups = vec![Group { name: String::new(), versions: core.versions }];
        groups.extend(named.groups.into_iter().map(|entry| {
            let preferred = entry.preferred_version.map(|version| version.version);
            let mut versions: Vec<String> = preferred.into_iter().collect();
            for version in entry.versions {
                if !versions.contains(&version.version) {
                    versions.push(version.version);
                }
            }
            Group { name: entry.name, versions }
        }));
        let all = groups.iter().flat_map(|group| {
            group.versions.iter().map(move |version| (group.name.as_str(), version.as_str()))
        });
        let reads = all.take(VERSIONS_MAX).map(|(group, version)| async move {
            (group, version, session.get_json(&version_path(group, version)).await)
        });
        let mut resources = Vec::new();
        let mut unavailable = Vec::new();
        for (group, version, answer) in join_all(reads).await {
            let path = version_path(group, version);
            match answer.and_then(|tree| read_document::<Resources>(tree, &path)) {
                Ok(list) => resources.extend(
                    list.resources
                        .unwrap_or_default()
                        .into_iter()
                        .filter(|entry| !entry.name.contains('/'))
                        .map(|entry| resource(entry, group, version)),
                ),
                Err(error) => unavailable.push((api_version(group, version), error.to_string())),
            }
        }
        Ok(Self { groups, resources, unavailable })
    }

    /// The resource that a word means: plural, singular, kind or short name, with or without version and group (`deployments.v1.apps`, `deployments.apps`).
    ///
    /// # Errors
    /// When there is none.
    pub fn resource(&self, word: &str) -> Result<&ApiResource, CommandError> {
        let lower = word.to_lowercase();
        let unknown = || {
            let similar = self.similar_name(&lower);
            let hint =
                similar.map(|name| format!("; did you mean \"{name}\"?")).unwrap_or_default();
            let why = format!("the server doesn't have a resource type \"{word}\"{hint}");
            CommandError::with_text(why)
        };
        let mut parts = lower.splitn(3, '.');
        let (name, second, third) = (parts.next().unwrap_or_default(), parts.next(), parts.next());
        if let (Some(version), Some(group)) = (second, third)
            && let Some(found) =
                self.find(name, |resource| resource.group == group && resource.version == version)
        {
            return Ok(found);
        }
        let Some((_, group)) = lower.split_once('.') else {
            return self.find(name, |_| true).ok_or_else(unknown);
        };
        self.find(name, |resource| resource.group == group)
            .or_else(|| self.find(name, |resource| resource.group.starts_with(group)))
            .ok_or_else(unknown)
    }

    /// The plural of the resource that a word was probably meant to be.
    fn similar_name(&self, word: &str) -> Option<&str> {
        let edits_max = if word.chars().count() < 6 { 1 } else { 2 };
        let distance = |resource: &ApiResource| {
            count_edits(word, &resource.plural).min(count_edits(word, &resource.singular))
        };
        let similar = self.resources.iter().filter(|resource| distance(resource) <= edits_max);
        let nearest = similar.min_by_key(|resource| distance(resource))?;
        Some(&nearest.plural)
    }

    /// The resources of a category such as `all`, each in one version; empty for a word that is no category.
    pub fn category(&self, word: &str) -> Vec<&ApiResource> {
        let of = |resource: &&ApiResource| resource.categories.iter().any(|known| known == word);
        let mut found: Vec<&ApiResource> = Vec::new();
        for resource in self.resources.iter().filter(of) {
            let same = |known: &&ApiResource| {
                known.plural == resource.plural && known.group == resource.group
            };
            if !found.iter().any(same) {
                found.push(resource);
            }
        }
        found
    }

    /// The resource of a kind as manifests name it.
    pub fn of_kind(&self, api_version: &str, kind: &str) -> Option<&ApiResource> {
        let same = |resource: &&ApiResource| {
            resource.kind == kind && resource.api_version() == api_version
        };
        self.resources.iter().find(same)
    }

    /// As [`ServerResources::of_kind`].
    ///
    /// # Errors
    /// When the server does not serve it.
    pub fn served_kind(&self, api_version: &str, kind: &str) -> Result<&ApiResource, CommandError> {
        self.of_kind(api_version, kind).ok_or_else(|| {
            CommandError::with_text(format!(
                "resource mapping not found: no matches for kind \"{kind}\" in version \"{api_version}\""
            ))
        })
    }

    /// Names count before short names, groups and versions in the server's order.
    fn find(&self, name: &str, is: impl Fn(&ApiResource) -> bool) -> Option<&ApiResource> {
        let mut fit = self.resources.iter().filter(|resource| is(resource));
        fit.clone().find(|one| one.is_called(name)).or_else(|| fit.find(|one| one.is_short(name)))
    }
}

fn resource(entry: ResourceEntry, group: &str, version: &str) -> ApiResource {
    let or = |own: String, outer: &str| if own.is_empty() { outer.to_owned() } else { own };
    // Group and version of an entry are those of the kind in bodies, if they differ.
    let _ = (&entry.group, &entry.version);
    ApiResource {
        group: group.to_owned(),
        version: version.to_owned(),
        singular: or(entry.singular_name, &entry.kind.to_lowercase()),
        plural: entry.name,
        kind: entry.kind,
        short_names: entry.short_names.unwrap_or_default(),
        categories: entry.categories.unwrap_or_default(),
        namespaced: entry.namespaced,
        verbs: entry.verbs,
    }
}

fn read_document<T: serde::de::DeserializeOwned>(
    tree: serde_json::Value,
    path: &str,
) -> Result<T, CommandError> {
    serde_json::from_value(tree).map_err(|error| {
        CommandError::with_text(format!("{path} is not a discovery document: {error}"))
    })
}

fn version_path(group: &str, version: &str) -> String {
    let encode = |text| proto_api::uri::encode(text, proto_api::uri::COMPONENT);
    match group {
        "" => format!("/api/{}", encode(version)),
        group => format!("/apis/{}/{}", encode(group), encode(version)),
    }
}

fn api_version(group: &str, version: &str) -> String {
    if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") }
}

fn with_group(name: &str, group: &str) -> String {
    if group.is_empty() { name.to_owned() } else { format!("{name}.{group}") }
}

/// Longest word that is compared with others.
const SIMILAR_LEN_MAX: usize = 63;

/// How many characters have to be inserted, removed or replaced to make one word of another; very many for long words.
fn count_edits(one: &str, other: &str) -> usize {
    if one.len() > SIMILAR_LEN_MAX || other.len() > SIMILAR_LEN_MAX || other.is_empty() {
        return usize::MAX;
    }
    let other: Vec<char> = other.chars().collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (at, c) in one.chars().enumerate() {
        let mut next = vec![at + 1];
        for ((known, above), pair) in other.iter().zip(row.iter().skip(1)).zip(row.iter()) {
            let left = next.last().copied().unwrap_or_default();
            let replaced = pair + usize::from(*known != c);
            next.push(replaced.min(above + 1).min(left + 1));
        }
        row = next;
    }
    row.last().copied().unwrap_or_default()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn sample() -> ServerResources {
        let one = |group: &str, version: &str, plural: &str, kind: &str, short: &str| ApiResource {
            group: group.into(),
            version: version.into(),
            plural: plural.into(),
            singular: kind.to_lowercase(),
            kind: kind.into(),
            short_names: vec![short.into()],
            categories: if plural == "events" { Vec::new() } else { vec!["all".into()] },
            namespaced: true,
            verbs: vec!["get".into()],
        };
        ServerResources {
            groups: Vec::new(),
            resources: vec![
                one("", "v1", "pods", "Pod", "po"),
                one("", "v1", "events", "Event", "ev"),
                one("apps", "v1", "deployments", "Deployment", "deploy"),
                one("apps", "v1beta1", "deployments", "Deployment", "deploy"),
                one("events.k8s.io", "v1", "events", "Event", "ev"),
                one("example.com", "v1", "po", "Po", "deployments"),
            ],
            unavailable: Vec::new(),
        }
    }

    #[test]
    fn resource_names_kinds_and_short_names_are_resolved() {
        let discovery = sample();
        for (word, wanted) in [
            ("pods", "pods"),
            ("Pod", "pods"),
            ("po", "po.example.com"),
            ("deploy", "deployments.apps"),
            ("deployments", "deployments.apps"),
            ("deployments.apps", "deployments.apps"),
            ("deployments.v1.apps", "deployments.apps"),
            ("Deployment.v1.apps", "deployments.apps"),
            ("events", "events"),
            ("events.events.k8s.io", "events.events.k8s.io"),
            ("events.events", "events.events.k8s.io"),
            ("ev.v1.events.k8s.io", "events.events.k8s.io"),
        ] {
            let found = discovery.resource(word).map(ApiResource::full_name);
            assert_eq!(found.ok().as_deref(), Some(wanted), "{word}");
        }
        for (word, hint) in [
            ("podz", "; did you mean \"pods\"?"),
            ("pds", "; did you mean \"pods\"?"),
            ("deploymet", "; did you mean \"deployments\"?"),
            ("nodes", ""),
            ("", ""),
        ] {
            let error = discovery.resource(word).expect_err("unknown").to_string();
            let wanted = format!("error: the server doesn't have a resource type \"{word}\"{hint}");
            assert_eq!(error, wanted);
        }
        let error = discovery.resource("foo").expect_err("unknown");
        assert_eq!(error.to_string(), "error: the server doesn't have a resource type \"foo\"");
        assert!(discovery.resource("pods.apps").is_err());
        assert_eq!(discovery.resource("deployments.v1beta1.apps").expect("it").version, "v1beta1");
    }

    #[test]
    fn a_category_has_each_resource_once() {
        let discovery = sample();
        let found: Vec<String> =
            discovery.category("all").into_iter().map(ApiResource::full_name).collect();
        assert_eq!(found, ["pods", "deployments.apps", "po.example.com"]);
        assert!(discovery.category("pods").is_empty());
    }
}
