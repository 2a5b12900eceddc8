//! The OpenAPI documents.

use std::sync::Arc;

use apiserver_core::aggregation::ApiService;
use apiserver_core::server::Server;
use apiserver_core::status::ApiError;
use apiserver_schema::openapi::{self, Described};
use bytes::Bytes;
use http::{Request, Response};
use proto_api::schema::ResourceDescriptor;
use proto_daemon::panics;

use crate::body::{self, ResponseBody, set_type};
use crate::compress::{
    is_accepted as accepts_gzip, pack, packed_response, response as large_response,
};
use crate::open_api_documents::{DocumentName, Parts};
use crate::open_api_fetches::{check_available, v3_document};
use crate::other_documents::OtherDocumentName;
use crate::server::HttpServer;

/// Media type of OpenAPI v2 in Protobuf. Clients request it with `@` instead of the last dot; older ones cannot parse that in a
/// response, because media types may not contain the character.
const OPENAPI_V2_PROTOBUF: &str = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";

/// Serves the document at `rest` below `/openapi/v2` or `/openapi/v3`.
///
/// # Errors
/// 404 if there is none; 503 if it is another server's, which does not answer.
pub async fn serve<B>(
    server: &Arc<HttpServer>,
    request: &Request<B>,
    version: &str,
    rest: &str,
) -> Result<Response<ResponseBody>, ApiError> {
    let accept = request.headers().get(http::header::ACCEPT).and_then(|value| value.to_str().ok());
    let protobuf = accept.is_some_and(|accept| accept.contains("proto-openapi.spec.v2"));
    let is_v2 = version == "v2";
    let media_type = match is_v2 && protobuf {
        true => OPENAPI_V2_PROTOBUF,
        false => "application/json",
    };
    let packed = accepts_gzip(request.headers());
    let mut response = match served_elsewhere(&server.core, rest).filter(|_| !is_v2) {
        Some(service) => of_other_server(server, &service, packed).await?,
        None => {
            let (shared, rest) = (server.clone(), rest.to_owned());
            let made = panics::spawn_blocking(move || own(&shared, (is_v2, protobuf, rest)));
            let made = made.await.map_err(ApiError::internal)?;
            large_response(vec![made.ok_or_else(ApiError::no_such_resource)?], packed).await
        }
    };
    set_type(&mut response, media_type);
    Ok(response)
}

/// The v3 document of another server's group version.
async fn of_other_server(
    server: &HttpServer,
    service: &ApiService,
    packed: bool,
) -> Result<Response<ResponseBody>, ApiError> {
    let document = |packed| {
        let hash = server.aggregation.v3_hash(&service.name);
        let name = OtherDocumentName { service: service.uid.clone(), hash, packed };
        server.aggregation.documents.get(name, async move {
            let plain = v3_document(server, service).await?;
            if !packed {
                return Ok(plain);
            }
            let packed = pack(vec![plain]).await;
            Ok(packed.ok_or_else(|| ApiError::internal("the server stops"))?.into())
        })
    };
    check_available(service)?;
    Ok(match packed {
        true => packed_response(document(true).await?),
        false => Response::new(body::parts(vec![document(false).await?])),
    })
}

/// The APIService of another server whose group version the path `apis/GROUP/VERSION` is.
fn served_elsewhere(core: &Server, path: &str) -> Option<Arc<ApiService>> {
    let (group, version) = path.strip_prefix("apis/")?.split_once('/')?;
    core.api_services.remote(core.names, group, version)
}

/// A document of this server. Versions that another serves are not described as built-in or custom ones.
fn own(server: &HttpServer, name: DocumentName) -> Option<Bytes> {
    let core = &server.core;
    let is_own =
        |group: &str, version: &str| core.api_services.remote(core.names, group, version).is_none();
    let mut custom = core.definitions.served_kinds();
    custom.retain(|kind| is_own(&kind.group, kind.version()));
    let switches = &core.config.runtime_config;
    let serves = |resource: &ResourceDescriptor| {
        switches.serves(resource.group, resource.version, resource.plural)
            && is_own(&core.names.group(resource.group), resource.version)
    };
    let (is_v2, protobuf, rest) = name.clone();
    server.open_api.get(name, Parts { custom, others: server.aggregation.open_api() }, |parts| {
        let Parts { custom, others } = parts;
        let described = Described { engine: &core.engine, serves: &serves, custom, others };
        match (is_v2, rest.as_str()) {
            (true, "") if protobuf => Some(openapi::v2_protobuf(described)),
            (true, "") => Some(openapi::v2_json(described)),
            (true, _) => None,
            (false, "") => Some(openapi::v3_index(described)),
            (false, path) => openapi::v3_document(described, path),
        }
    })
}
