//! The groups of discovery: those of this server and those of others, in one order.

use std::collections::HashMap;

use apiserver_core::aggregation::priorities::{self, ListedGroup};
use apiserver_core::server::Server;
use serde_json::Value;

use super::aggregated::{self, ApiGroupDiscovery, ApiVersionDiscovery, CURRENT, STALE};
use super::rows::{self, DiscoveryRow};
use crate::server::HttpServer;

/// The groups except the core group, in their order; `rows` are the resources of this server.
#[must_use]
pub fn listed(core: &Server, rows: &[DiscoveryRow]) -> Vec<ListedGroup> {
    let own = rows.iter().map(|row| (row.group.as_str(), &*row.version));
    let mut all = priorities::listed(core.names, own, &core.api_services.all());
    all.retain(|group| !group.name.is_empty());
    all
}

/// The document of aggregated discovery: of the core group (`is_core`) or of all others.
#[must_use]
pub fn document(server: &HttpServer, version: &str, is_core: bool) -> Value {
    let (core, rows) = (&server.core, rows::list_rows(&server.core));
    let groups = match is_core {
        true => vec![ListedGroup { name: String::new(), versions: vec!["v1".to_owned()] }],
        false => listed(core, &rows),
    };
    let mut own: ByVersion<'_> = HashMap::new();
    for row in &rows {
        own.entry((&row.group, &row.version)).or_default().push(row);
    }
    let of_group = |ListedGroup { name, versions }: ListedGroup| {
        let versions = versions.into_iter().map(|version| of_version(server, &own, &name, version));
        ApiGroupDiscovery { versions: versions.collect(), name }
    };
    let groups: Vec<ApiGroupDiscovery> = groups.into_iter().map(of_group).collect();
    aggregated::document(core.names, &groups, version)
}

/// The resources of this server, by group and version.
type ByVersion<'a> = HashMap<(&'a str, &'a str), Vec<&'a DiscoveryRow>>;

fn of_version(
    server: &HttpServer,
    own: &ByVersion<'_>,
    group: &str,
    version: String,
) -> ApiVersionDiscovery {
    let core = &server.core;
    let Some(service) = core.api_services.remote(core.names, group, &version) else {
        let rows = own.get(&(group, version.as_str())).map(Vec::as_slice).unwrap_or_default();
        let resources = rows.iter().map(|row| aggregated::resource(row)).collect();
        return ApiVersionDiscovery { name: version, resources, freshness: CURRENT };
    };
    // The last known resources stay listed, as in Kubernetes.
    let list = server.aggregation.resources(&service.name);
    let freshness = if service.available && list.is_some() { CURRENT } else { STALE };
    let resources = list.map(|list| aggregated::resources_of_list(&list, group, &version));
    ApiVersionDiscovery { name: version, resources: resources.unwrap_or_default(), freshness }
}
