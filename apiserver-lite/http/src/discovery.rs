//! Non-resource paths: discovery, OpenAPI, version, health, and what verifies service account tokens.

mod aggregated;
mod groups;
mod open_api;
mod rows;
mod token_issuer;

use std::sync::Arc;

use apiserver_core::request::{Accepted, Encoding, Query, Representation};
use apiserver_core::server::Server;
use apiserver_core::status::ApiError;
use apiserver_schema::{Format, Strictness};
use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use serde_json::{Value, json};

use apiserver_core::aggregation::priorities::ListedGroup;
use rows::DiscoveryRow;

use crate::body::{BoxError, ResponseBody, bytes_response};
use crate::server::HttpServer;
use crate::web_page::WebPage;
use crate::{indent, negotiate};

/// Kubernetes release (major, minor) whose API is served.
const RELEASE: (&str, &str) = ("1", "25");

/// Serves a request to a non-resource path.
///
/// # Errors
/// 404 for an unknown path, 405 for methods other than GET and HEAD.
pub async fn serve(
    server: &Arc<HttpServer>,
    request: &Request<Incoming>,
    path: &str,
) -> Result<Response<ResponseBody>, ApiError> {
    if let Some(page) = server.web_page.as_ref().filter(|_| WebPage::is_at(path)) {
        return page.serve(request.method());
    }
    if let Some(page) = server.pages.answer(request) {
        return Ok(
            page.map(|body| body.map_err(|never| -> BoxError { match never {} }).boxed_unsync())
        );
    }
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        return Err(ApiError::method_not_allowed());
    }
    let segments: Vec<&str> = path.split('/').filter(|segment| !segment.is_empty()).collect();
    if let ["openapi", version, rest @ ..] = segments.as_slice()
        && matches!(*version, "v2" | "v3")
    {
        return open_api::serve(server, request, version, &rest.join("/")).await;
    }
    let names = server.core.names;
    if let (["api" | "apis"], Some(version)) =
        (segments.as_slice(), aggregated::requested_version(request.headers(), names))
    {
        let document = groups::document(server, version, segments == ["api"]);
        let media_type = aggregated::media_type(names, version);
        return Ok(bytes_response(200, &media_type, Bytes::from(document.to_string())));
    }
    if let Some(answer) = token_issuer::answer(&server.core, &segments) {
        return Ok(answer);
    }
    let rows = rows::list_rows(&server.core);
    let groups = || groups::listed(&server.core, &rows);
    let found = match segments.as_slice() {
        [] => Some(paths(&groups())),
        ["version"] => Some(version()),
        ["api"] => Some(core_versions(&server.core)),
        ["apis"] => {
            let groups: Vec<Value> = groups().iter().map(group_json).collect();
            Some(json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}))
        }
        ["api", version] => resources(&rows, "", version),
        ["apis", group] => groups().iter().find(|found| found.name == *group).map(|found| {
            let mut found = group_json(found);
            found["kind"] = json!("APIGroup");
            found["apiVersion"] = json!("v1");
            found
        }),
        ["apis", group, version] => resources(&rows, group, version),
        _ => None,
    };
    let found = found.ok_or_else(ApiError::no_such_resource)?;
    // As in Kubernetes these two are for people in any case.
    if matches!(segments.as_slice(), [] | ["version"]) {
        let text = format!("{found:#}");
        return Ok(bytes_response(200, "application/json", Bytes::from(text)));
    }
    let indented = indent::is_wanted(request.headers(), &query_of(request));
    Ok(negotiated(&server.core, request.headers(), &found, indented))
}

fn query_of<B>(request: &Request<B>) -> Query {
    Query::parse(request.uri().query().unwrap_or_default())
}

/// A document in the encoding that the client prefers; JSON where it accepts none of those that are served.
fn negotiated(
    core: &Server,
    headers: &HeaderMap,
    document: &Value,
    indented: bool,
) -> Response<ResponseBody> {
    let accepted = negotiate::accepted(headers, core.names, false);
    let encoding = match accepted {
        Ok(Accepted { encoding, representation: Representation::Object }) => encoding,
        _ => Encoding::Json,
    };
    let protobuf = || {
        let kind = core.engine.kind("", "v1", document["kind"].as_str()?)?;
        let text = document.to_string();
        let decoded =
            core.engine.decode(kind, Format::Json, text.as_bytes(), Strictness::Ignore).ok()?;
        Some(core.engine.encode_protobuf(&decoded.object))
    };
    let (media_type, bytes) = match encoding {
        Encoding::Protobuf if let Some(bytes) = protobuf() => {
            (encoding.media_type(core.names), bytes)
        }
        Encoding::Yaml => {
            (encoding.media_type(core.names), proto_api::yaml::to_string(document).into_bytes())
        }
        _ if indented => ("application/json", format!("{document:#}").into_bytes()),
        _ => ("application/json", document.to_string().into_bytes()),
    };
    bytes_response(200, media_type, Bytes::from(bytes))
}

/// The list of served paths.
fn paths(groups: &[ListedGroup]) -> Value {
    let mut paths = vec![
        "/.well-known/openid-configuration".to_owned(),
        "/api".to_owned(),
        "/api/v1".to_owned(),
        "/apis".to_owned(),
    ];
    for ListedGroup { name, versions } in groups {
        paths.push(format!("/apis/{name}"));
        paths.extend(versions.iter().map(|version| format!("/apis/{name}/{version}")));
    }
    paths.extend(
        [
            "/healthz",
            "/livez",
            "/metrics",
            "/openapi/v2",
            "/openapi/v3",
            "/openid/v1/jwks",
            "/readyz",
            "/statusz",
            crate::backup::PATH,
            "/version",
        ]
        .map(str::to_owned),
    );
    json!({ "paths": paths })
}

/// Commit shown by a build without a known commit, because clients expect a hash.
const NO_COMMIT: &str = "0000000000000000000000000000000000000000";

/// `/version`. `hack/lib.sh` sets the commit, its time and the tree state at build time; without them the values are those of a
/// Kubernetes build without version information.
fn version() -> Value {
    let (major, minor) = RELEASE;
    let compiler = env!("ORCH_RUSTC_VERSION");
    json!({
        "major": major,
        "minor": minor,
        "gitVersion": format!("v{major}.{minor}.0+orch-{}", env!("CARGO_PKG_VERSION")),
        "gitCommit": option_env!("ORCH_COMMIT").unwrap_or(NO_COMMIT),
        "gitTreeState": option_env!("ORCH_TREE_STATE").unwrap_or_default(),
        "buildDate": option_env!("ORCH_BUILD_DATE").unwrap_or("1970-01-01T00:00:00Z"),
        "goVersion": format!("rustc{compiler}"),
        "compiler": "rustc",
        "platform": format!("{}/{}", std::env::consts::OS, platform()),
    })
}

/// The architecture as Go names it (`GOARCH`).
fn platform() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

fn core_versions(server: &Server) -> Value {
    let address = apiserver_core::config::advertised(&server.config);
    json!({
        "kind": "APIVersions",
        "versions": ["v1"],
        "serverAddressByClientCIDRs": [{
            "clientCIDR": "0.0.0.0/0",
            "serverAddress": std::net::SocketAddr::new(address, server.config.bind.port()).to_string(),
        }],
    })
}

fn group_json(group: &ListedGroup) -> Value {
    let name = &group.name;
    let version_json =
        |version: &String| json!({"groupVersion": format!("{name}/{version}"), "version": version});
    let versions: Vec<Value> = group.versions.iter().map(version_json).collect();
    json!({"name": name, "versions": versions, "preferredVersion": versions.first()})
}

fn resources(rows: &[DiscoveryRow], group: &str, version: &str) -> Option<Value> {
    let served = rows.iter().filter(|row| row.group == group && row.version == version);
    let rows: Vec<Value> = served.flat_map(resource_rows).collect();
    if rows.is_empty() {
        return None;
    }
    let group_version =
        if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
    Some(json!({
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": group_version,
        "resources": rows,
    }))
}

fn resource_rows(row: &DiscoveryRow) -> Vec<Value> {
    let mut main = json!({
        "name": row.plural,
        "singularName": row.singular,
        "namespaced": row.namespaced,
        "kind": row.kind,
        "verbs": row.verbs,
    });
    if !row.short_names.is_empty() {
        main["shortNames"] = json!(row.short_names);
    }
    if !row.categories.is_empty() {
        main["categories"] = json!(row.categories);
    }
    let mut rows = vec![main];
    rows.extend(row.subresources.iter().map(|sub| {
        let mut entry = json!({
            "name": format!("{}/{}", row.plural, sub.name),
            "singularName": "",
            "namespaced": row.namespaced,
            "kind": sub.kind,
            "verbs": sub.verbs,
        });
        if (&sub.group, &sub.version) != (&row.group, &row.version) {
            entry["group"] = json!(sub.group);
            entry["version"] = json!(sub.version);
        }
        entry
    }));
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto_api::names::{Names, Profile};

    #[test]
    fn subresources_name_their_own_group() {
        let served = rows::built_in(Names::new(Profile::Kubernetes));
        let list = resources(&served, "apps", "v1").unwrap();
        let rows = list["resources"].as_array().unwrap();
        let scale = rows.iter().find(|row| row["name"] == "deployments/scale").unwrap();
        assert_eq!(
            (scale["group"].as_str(), scale["version"].as_str()),
            (Some("autoscaling"), Some("v1"))
        );
        assert!(resources(&served, "apps", "v9").is_none());
    }
}
