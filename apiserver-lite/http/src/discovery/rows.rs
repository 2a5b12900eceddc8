//! The served resources as discovery shows them, built-in and custom ones.

use std::borrow::Cow;

use apiserver_core::server::Server;
use apiserver_schema::Kind;
use proto_api::names::Names;
use proto_api::schema::{self, ResourceDescriptor};

type Text = Cow<'static, str>;

/// A resource in one version.
#[derive(Clone, Debug)]
pub struct DiscoveryRow {
    /// Group, domain included; empty for the core group.
    pub group: String,
    pub version: Text,
    pub plural: Text,
    pub singular: Text,
    pub kind: Text,
    pub namespaced: bool,
    pub short_names: Vec<Text>,
    pub categories: Vec<Text>,
    pub verbs: Vec<&'static str>,
    pub subresources: Vec<SubresourceRow>,
}

/// A subresource in a discovery document.
#[derive(Clone, Debug)]
pub struct SubresourceRow {
    pub name: &'static str,
    /// Group of its kind, domain included.
    pub group: String,
    pub version: Text,
    pub kind: Text,
    pub verbs: &'static [&'static str],
}

/// All resources that are served and switched on, built-in ones first.
#[must_use]
pub fn list_rows(server: &Server) -> Vec<DiscoveryRow> {
    let switches = &server.config.runtime_config;
    let is_on = |row: &&ResourceDescriptor| switches.serves(row.group, row.version, row.plural);
    let built_in = schema::resources().iter().chain(schema::optional_resources()).filter(is_on);
    let mut rows: Vec<DiscoveryRow> = built_in.map(|row| built_in_row(server.names, row)).collect();
    let defined = server.definitions.served_kinds();
    // Another server's APIService goes before a definition.
    let is_own = |kind: &&std::sync::Arc<Kind>| {
        server.api_services.remote(server.names, &kind.group, kind.version()).is_none()
    };
    rows.extend(defined.iter().filter(is_own).filter_map(|kind| custom(kind)));
    rows
}

/// The built-in resources.
#[cfg(test)]
pub fn built_in(names: &Names) -> Vec<DiscoveryRow> {
    schema::resources().iter().map(|resource| built_in_row(names, resource)).collect()
}

fn built_in_row(names: &Names, resource: &ResourceDescriptor) -> DiscoveryRow {
    let texts = |all: &[&'static str]| all.iter().copied().map(Text::from).collect();
    let subresources = resource.subresources.iter().map(|subresource| SubresourceRow {
        name: subresource.name,
        group: names.group(subresource.group),
        version: subresource.version.into(),
        kind: subresource.kind.into(),
        verbs: subresource.verbs,
    });
    DiscoveryRow {
        group: names.group(resource.group),
        version: resource.version.into(),
        plural: resource.plural.into(),
        singular: resource.singular.into(),
        kind: resource.kind.into(),
        namespaced: resource.namespaced,
        short_names: texts(resource.short_names),
        categories: texts(resource.categories),
        verbs: resource.verbs.to_vec(),
        subresources: subresources.collect(),
    }
}

/// The row of a custom kind; `None` if its definition has just gone.
fn custom(kind: &Kind) -> Option<DiscoveryRow> {
    let version = kind.custom_version()?;
    let own = |text: &str| Text::from(text.to_owned());
    let texts = |all: &[String]| all.iter().map(|text| own(text)).collect();
    let subresource = |name: &'static str| {
        let (group, at, shown) = match name {
            "scale" => ("autoscaling", "v1", "Scale"),
            _ => (kind.group.as_str(), kind.version(), kind.kind()),
        };
        let verbs = kind.verbs(name)?;
        let (group, version, kind) = (group.to_owned(), own(at), own(shown));
        Some(SubresourceRow { name, group, version, kind, verbs })
    };
    // As in Kubernetes nothing new is advertised for a definition that is being deleted.
    let stays =
        |verb: &&str| !version.terminating || !matches!(*verb, "create" | "patch" | "update");
    Some(DiscoveryRow {
        group: kind.group.clone(),
        version: own(kind.version()),
        plural: own(kind.plural()),
        singular: own(&version.singular),
        kind: own(kind.kind()),
        namespaced: kind.namespaced(),
        short_names: texts(&version.short_names),
        categories: texts(&version.categories),
        verbs: kind.verbs("")?.iter().copied().filter(stays).collect(),
        subresources: ["status", "scale"].into_iter().filter_map(subresource).collect(),
    })
}
