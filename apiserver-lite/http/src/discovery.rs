//! Non-resource paths: discovery, OpenAPI, version, health, and what verifies service account tokens.

mod aggregated;
mod groups;
mod rows;
mod token_issuer;

use std::sync::Arc;

use apiserver_core::server::Server;
use apiserver_core::status::ApiError;
use apiserver_schema::openapi::{self, Described};
use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use proto_daemon::panics;
use serde_json::{Value, json};

use apiserver_core::aggregation::priorities::ListedGroup;
use rows::Row;

use crate::body::{BoxError, ResponseBody, bytes_response, set_type};
use crate::compress::{is_accepted as accepts_gzip, response as large_response};
use crate::server::HttpServer;
use crate::web_page::WebPage;

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
        return openapi(server, request, version, &rest.join("/")).await;
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
    let rows = rows::served(&server.core);
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
    Ok(bytes_response(200, "application/json", Bytes::from(found.to_string())))
}

/// Media type of OpenAPI v2 in Protobuf. Clients request it with `@` instead of the last dot; older ones cannot parse that in a
/// response, because media types may not contain the character.
const OPENAPI_V2_PROTOBUF: &str = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";

/// Serves the OpenAPI documents.
async fn openapi(
    server: &Arc<HttpServer>,
    request: &Request<Incoming>,
    version: &str,
    rest: &str,
) -> Result<Response<ResponseBody>, ApiError> {
    let accept = request.headers().get(http::header::ACCEPT).and_then(|value| value.to_str().ok());
    let protobuf = accept.is_some_and(|accept| accept.contains("proto-openapi.spec.v2"));
    let (shared, rest, is_v2) = (server.clone(), rest.to_owned(), version == "v2");
    let media_type = match is_v2 && protobuf {
        true => OPENAPI_V2_PROTOBUF,
        false => "application/json",
    };
    let made = panics::spawn_blocking(move || {
        let custom = shared.core.definitions.served();
        shared.open_api.get((is_v2, protobuf, rest.clone()), custom, |custom| {
            let described = Described { engine: &shared.core.engine, custom };
            match (is_v2, rest.as_str()) {
                (true, "") if protobuf => Some(openapi::v2_protobuf(described)),
                (true, "") => Some(openapi::v2_json(described)),
                (true, _) => None,
                (false, "") => Some(openapi::v3_index(described)),
                (false, path) => openapi::v3_document(described, path),
            }
        })
    });
    let document =
        made.await.map_err(ApiError::internal)?.ok_or_else(ApiError::no_such_resource)?;
    let packed = accepts_gzip(request.headers());
    let mut response = large_response(vec![document], packed).await;
    set_type(&mut response, media_type);
    Ok(response)
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

fn resources(rows: &[Row], group: &str, version: &str) -> Option<Value> {
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

fn resource_rows(row: &Row) -> Vec<Value> {
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
