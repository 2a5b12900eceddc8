//! What other API servers publish in OpenAPI: their part of the v2 document is fetched in the background, so that none of this server's documents waits for
//! another server; their v3 documents are passed on.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use apiserver_core::aggregation::{ApiService, Backend};
use apiserver_core::status::ApiError;
use apiserver_schema::openapi::{OtherApi, part_of};
use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use http::header::{ACCEPT, ETAG, IF_NONE_MATCH};
use http::{HeaderValue, Response, StatusCode};
use proto_daemon::panics;
use tokio::time::Instant;

use crate::aggregation::user_headers;
use crate::server::HttpServer;

/// Time between two looks at which servers are due.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Time after which the documents of a server are fetched again if they have changed.
const AGAIN: Duration = Duration::from_secs(60);
/// Documents that are fetched and read at one time: each takes several times its size.
const AT_ONCE: usize = 2;
/// Longest wait for a document.
const ANSWER_WAIT_MAX: Duration = Duration::from_secs(10);
/// Largest document of a server.
const DOCUMENT_LEN_MAX: usize = 4 << 20;
/// Largest index of v3 documents.
const INDEX_LEN_MAX: usize = 1 << 20;
/// Largest size of all parts that are kept.
const PARTS_LEN_ALL: usize = 16 << 20;
/// Longest hash that is shown.
const HASH_LEN_MAX: usize = 128;

/// What was fetched of a server, and when it is again.
struct Fetched {
    uid: String,
    backend: Option<Backend>,
    again: Instant,
    etag: Option<HeaderValue>,
    /// Size of its part.
    len: usize,
}

/// What a server answers for its v2 document.
enum Older {
    /// It has not changed, or could not be read.
    Same,
    /// The part of the group version, if there is any.
    Part(Option<Vec<u8>>, Option<HeaderValue>),
}

/// Fetches the documents of other servers, for ever. Cancel safe.
pub async fn run(server: &HttpServer) -> Infallible {
    let mut known = HashMap::new();
    loop {
        fetch_due(server, &mut known).await;
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

async fn fetch_due(server: &HttpServer, known: &mut HashMap<String, Fetched>) {
    let services = server.core.api_services.all_remote(server.core.names);
    // They are sorted by name.
    let is_there = |name: &str| services.binary_search_by(|of| of.name.as_str().cmp(name)).is_ok();
    known.retain(|name, _| is_there(name));
    server.aggregation.change_open_api(|all| all.retain(|name, _| is_there(name)));
    let mut due = Vec::new();
    for service in services.iter().filter(|service| service.available) {
        match known.get(&service.name) {
            Some(last) if last.uid != service.uid || last.backend != service.backend => {
                due.push((Arc::clone(service), None));
            }
            Some(last) if last.again > Instant::now() => {}
            last => due.push((Arc::clone(service), last.and_then(|last| last.etag.clone()))),
        }
    }
    let ask = |(service, etag): (Arc<ApiService>, Option<HeaderValue>)| async move {
        let older = fetch_v2(server, &service, etag.as_ref()).await;
        let hash = fetch_v3_hash(server, &service).await;
        (service, older, hash)
    };
    let mut answers = stream::iter(due).map(ask).buffer_unordered(AT_ONCE);
    while let Some((service, older, hash)) = answers.next().await {
        keep(server, known, &service, older, hash);
    }
}

/// Keeps what a server has answered, if there is room. What it has not answered stays as it was, unless it is of another server.
fn keep(
    server: &HttpServer,
    known: &mut HashMap<String, Fetched>,
    service: &ApiService,
    older: Older,
    v3_hash: Option<Option<String>>,
) {
    let (uid, backend) = (service.uid.clone(), service.backend.clone());
    let before = known.remove(&service.name);
    let before = before.filter(|last| (&last.uid, &last.backend) == (&uid, &backend));
    let others = known.values().map(|one| one.len).fold(0, usize::saturating_add);
    let path = format!("apis/{}/{}", service.group, service.version);
    let (len, etag) = server.aggregation.change_open_api(|all| {
        let last = all.get(&service.name).filter(|_| before.is_some());
        let (v2, etag) = match older {
            Older::Same => (
                last.and_then(|last| last.v2.clone()),
                before.as_ref().and_then(|before| before.etag.clone()),
            ),
            Older::Part(part, etag) => (part, etag),
        };
        let v3_hash = v3_hash.unwrap_or_else(|| last.and_then(|last| last.v3_hash.clone()));
        let had_part = v2.is_some();
        let has_room = |part: &Vec<u8>| others.saturating_add(part.len()) <= PARTS_LEN_ALL;
        let shown = OtherApi { path, v3_hash, v2: v2.filter(has_room) };
        let len = shown.v2.as_ref().map_or(0, Vec::len);
        // What had no room is fetched again, changed or not.
        let etag = etag.filter(|_| shown.v2.is_some() || !had_part);
        // Documents are shared while they have the same parts.
        if last.is_none_or(|last| **last != shown) {
            all.insert(service.name.clone(), Arc::new(shown));
        }
        (len, etag)
    });
    let again = Instant::now() + AGAIN;
    known.insert(service.name.clone(), Fetched { uid, backend, again, etag, len });
}

async fn fetch_v2(server: &HttpServer, service: &ApiService, etag: Option<&HeaderValue>) -> Older {
    let answer = match get(server, service, "/openapi/v2", etag, DOCUMENT_LEN_MAX).await {
        Ok(answer) => answer,
        Err(error) => {
            let (error, api_service) = (error.status().message.clone(), &service.name);
            tracing::info!(
                error,
                api_service,
                "cannot fetch the OpenAPI document of another API server; what it last published stays; retried"
            );
            return Older::Same;
        }
    };
    match answer.status() {
        StatusCode::OK => {}
        StatusCode::NOT_FOUND | StatusCode::NOT_ACCEPTABLE => return Older::Part(None, None),
        _ => return Older::Same,
    }
    let etag = answer.headers().get(ETAG).cloned();
    let path = format!("apis/{}/{}", service.group, service.version);
    let part = panics::spawn_blocking(move || part_of(answer.body(), &path)).await;
    Older::Part(part.unwrap_or_default(), etag)
}

/// The hash of the v3 document of a group version, or that the server has none; `None` if it does not say.
async fn fetch_v3_hash(server: &HttpServer, service: &ApiService) -> Option<Option<String>> {
    let answer = get(server, service, "/openapi/v3", None, INDEX_LEN_MAX).await.ok()?;
    match answer.status() {
        StatusCode::OK => {}
        StatusCode::NOT_FOUND => return Some(None),
        _ => return None,
    }
    let index: serde_json::Value = serde_json::from_slice(answer.body()).ok()?;
    Some(hash_in(&index, &format!("apis/{}/{}", service.group, service.version)))
}

fn hash_in(index: &serde_json::Value, path: &str) -> Option<String> {
    let address = index["paths"][path]["serverRelativeURL"].as_str()?;
    let (_, hash) = address.split_once("hash=")?;
    let is_plain = !hash.is_empty() && hash.bytes().all(|byte| byte.is_ascii_alphanumeric());
    (is_plain && hash.len() <= HASH_LEN_MAX).then(|| hash.to_owned())
}

/// # Errors
/// 503 if the server is not available.
pub fn check_available(service: &ApiService) -> Result<(), ApiError> {
    let (group, version) = (&service.group, &service.version);
    let why = || {
        let name = &service.name;
        format!(
            "cannot get /openapi/v3/apis/{group}/{version} of {name}: the APIService is not available"
        )
    };
    if service.available { Ok(()) } else { Err(ApiError::unavailable(why())) }
}

/// The v3 document of another server's group version.
///
/// # Errors
/// 503 if the server does not answer; 404 if it has none.
pub async fn v3_document(server: &HttpServer, service: &ApiService) -> Result<Bytes, ApiError> {
    let path = format!("/openapi/v3/apis/{}/{}", service.group, service.version);
    let unavailable = |why: String| {
        ApiError::unavailable(format!("cannot get {path} of {}: {why}", service.name))
    };
    let answer = get(server, service, &path, None, DOCUMENT_LEN_MAX).await;
    let answer = answer.map_err(|error| unavailable(error.status().message.clone()))?;
    match answer.status() {
        StatusCode::OK => Ok(answer.into_body()),
        StatusCode::NOT_FOUND => Err(ApiError::no_such_resource()),
        status => Err(unavailable(format!("the answer is {status}"))),
    }
}

/// Gets a document in JSON from the server of an APIService.
async fn get(
    server: &HttpServer,
    service: &ApiService,
    path: &str,
    etag: Option<&HeaderValue>,
    len_max: usize,
) -> Result<Response<Bytes>, ApiError> {
    let target = server.aggregation.target(&server.core, service, path)?;
    let mut headers = user_headers::of_this_server(server.core.names);
    headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
    etag.into_iter().for_each(|etag| drop(headers.insert(IF_NONE_MATCH, etag.clone())));
    let answer = server.nodes.fetch(&server.core, &target, headers, len_max);
    let late = |_| ApiError::unavailable(format!("no answer within {ANSWER_WAIT_MAX:?}"));
    tokio::time::timeout(ANSWER_WAIT_MAX, answer).await.map_err(late)?
}
