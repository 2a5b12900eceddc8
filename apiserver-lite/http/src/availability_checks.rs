//! Looks at other API servers again and again, and writes into their APIServices whether they are available.
//!
//! Stored objects are checked every second. A server that was available is probed every half minute, others every two seconds; few are probed at one
//! time, each for a few seconds.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use apiserver_core::aggregation::{ApiService, Backend, GROUP, RESOURCE, availability};
use apiserver_core::api_service_lifecycle::write_condition;
use apiserver_core::definitions::strategy::DefinitionCondition;
use apiserver_core::server::Server;
use futures_util::{StreamExt as _, stream};
use http::HeaderValue;
use http::header::ACCEPT;
use serde_json::Value;
use tokio::time::Instant;

use crate::aggregation::user_headers;
use crate::open_api_fetches;
use crate::server::HttpServer;

/// Time between two looks at the stored objects.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Interval between probes of a server that was available.
const AGAIN_AVAILABLE: Duration = Duration::from_secs(30);
/// Time after which another is.
const AGAIN_UNAVAILABLE: Duration = Duration::from_secs(2);
/// Servers that are probed at one time.
const ASKED_MAX: usize = 8;
/// Longest wait for an answer.
const ANSWER_WAIT_MAX: Duration = Duration::from_secs(5);
/// Largest list of resources.
const RESOURCES_LEN_MAX: usize = 1 << 20;
/// Largest size of all lists that are kept.
const RESOURCES_LEN_ALL: usize = 32 << 20;

/// When a server is probed again, unless its APIService changes.
struct NextCheck {
    uid: String,
    backend: Option<Backend>,
    available: bool,
    again: Instant,
    /// Size of its list of resources.
    len: usize,
}

/// Checks other API servers, and fetches what they publish, until this one stops.
pub async fn run(server: Arc<HttpServer>) {
    // Cancel safe: what a look has not done the next one does, and there is none after the stop.
    let looks = async { tokio::join!(check_all(&server), open_api_fetches::run(&server)) };
    server.stopping.run_until_cancelled(looks).await;
}

async fn check_all(server: &HttpServer) -> Infallible {
    let mut asked: HashMap<String, NextCheck> = HashMap::new();
    loop {
        check_due(server, &mut asked).await;
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

async fn check_due(server: &HttpServer, asked: &mut HashMap<String, NextCheck>) {
    let services = server.core.api_services.all_remote(server.core.names);
    forget(server, asked, &services);
    let mut due = Vec::new();
    for service in services {
        let Some(backend) = &service.backend else { continue };
        if let Some(problem) = problem_of(&server.core, backend) {
            asked.remove(&service.name);
            write(server, &service, problem).await;
        } else if is_due(asked, &service) {
            due.push(service);
        }
    }
    let ask = |service: Arc<ApiService>| async move {
        let answer = fetch_resources(server, &service).await;
        (service, answer)
    };
    let mut answers = stream::iter(due).map(ask).buffer_unordered(ASKED_MAX);
    while let Some((service, answer)) = answers.next().await {
        let available = answer.is_ok();
        let (condition, after, len) = match answer {
            Ok((list, len)) => {
                keep(server, asked, &service.name, list, len);
                (availability::passed(), AGAIN_AVAILABLE, len)
            }
            Err(NotAvailable(why)) => (availability::failed(why), AGAIN_UNAVAILABLE, 0),
        };
        let (uid, backend) = (service.uid.clone(), service.backend.clone());
        let next = NextCheck { uid, backend, available, again: Instant::now() + after, len };
        asked.insert(service.name.clone(), next);
        write(server, &service, condition).await;
    }
}

/// Drops what is known of APIServices that are gone.
fn forget(
    server: &HttpServer,
    asked: &mut HashMap<String, NextCheck>,
    services: &[Arc<ApiService>],
) {
    // They are sorted by name.
    let is_there = |name: &str| services.binary_search_by(|of| of.name.as_str().cmp(name)).is_ok();
    asked.retain(|name, _| is_there(name));
    server.aggregation.retain(is_there);
}

/// The availability according to stored objects.
fn problem_of(core: &Server, backend: &Backend) -> Option<DefinitionCondition> {
    let find = |resource: &str| core.find_in("", resource, &backend.namespace, &backend.name);
    let (service, endpoints) = (find("services"), find("endpoints"));
    let (service, endpoints) = (
        service.as_ref().map(|found| found.object()),
        endpoints.as_ref().map(|found| found.object()),
    );
    availability::without_server(backend, service, endpoints)
}

fn is_due(asked: &HashMap<String, NextCheck>, service: &ApiService) -> bool {
    let Some(last) = asked.get(&service.name) else { return true };
    let same = last.uid == service.uid && last.backend == service.backend;
    // What was found may not be what the APIService says any more: a state was put back, or a client wrote its status.
    !same || last.available != service.available || last.again <= Instant::now()
}

/// Keeps a list of resources for discovery, if there is room.
fn keep(
    server: &HttpServer,
    asked: &HashMap<String, NextCheck>,
    name: &str,
    list: Value,
    len: usize,
) {
    let others = asked.iter().filter(|(other, _)| *other != name).map(|(_, asked)| asked.len);
    let all = others.fold(len, usize::saturating_add);
    server.aggregation.set_resources(name, (all <= RESOURCES_LEN_ALL).then_some(list));
}

/// Why an API server is not available, as the condition of its APIService says it. It is asked again.
struct NotAvailable(String);

/// The resources of a group version, with the size of their list.
async fn fetch_resources(
    server: &HttpServer,
    service: &ApiService,
) -> Result<(Value, usize), NotAvailable> {
    let path = format!("/apis/{}/{}", service.group, service.version);
    let asked = async {
        let target = server.aggregation.target(&server.core, service, &path);
        let target = target.map_err(|error| NotAvailable(error.status().message.clone()))?;
        let url = format!("https://{}{path}", target.authority());
        let mut headers = user_headers::of_this_server(server.core.names);
        headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
        let got = server.nodes.get(&server.core, &target, headers, RESOURCES_LEN_MAX).await;
        let problem = match got {
            Ok((status, body)) if status.is_success() => {
                let list = serde_json::from_slice(&body).unwrap_or_default();
                return Ok((list, body.len()));
            }
            Ok((status, _)) => format!("bad status from {url}: {}", status.as_u16()),
            Err(error) => error.status().message.clone(),
        };
        Err(NotAvailable(format!("failing or missing response from {url}: {problem}")))
    };
    let late = |_| NotAvailable(format!("timed out waiting for {path} of {}", service.name));
    tokio::time::timeout(ANSWER_WAIT_MAX, asked).await.map_err(late)?
}

async fn write(server: &HttpServer, service: &ApiService, condition: DefinitionCondition) {
    let core = &server.core;
    let Some(kind) = core.kind(GROUP, RESOURCE) else { return };
    let Some(record) = core.find(kind, "", &service.name) else { return };
    // What was found out may be of an older one.
    if record.object().uid() != service.uid {
        return;
    }
    if let Err(error) = Box::pin(write_condition(core, kind, &record, condition)).await {
        let (error, api_service) = (error.to_string(), &service.name);
        tracing::warn!(
            error,
            api_service,
            "cannot write the condition Available of an APIService; retried"
        );
    }
}

#[cfg(test)]
mod tests {
    use apiserver_core::aggregation::priorities::CUSTOM;

    use super::*;

    #[test]
    fn a_changed_api_service_is_checked_again() {
        let mut service = ApiService {
            name: "v1.example.com".to_owned(),
            uid: "1".to_owned(),
            group: "example.com".to_owned(),
            version: "v1".to_owned(),
            priority: CUSTOM,
            backend: None,
            available: true,
        };
        let mut asked = HashMap::new();
        assert!(is_due(&asked, &service));
        let again = Instant::now() + AGAIN_AVAILABLE;
        let (uid, available) = (service.uid.clone(), true);
        asked.insert(
            service.name.clone(),
            NextCheck { uid, backend: None, available, again, len: 0 },
        );
        assert!(!is_due(&asked, &service));
        // As after a state was put back.
        service.available = false;
        assert!(is_due(&asked, &service));
        service.available = true;
        service.uid = "2".to_owned();
        assert!(is_due(&asked, &service));
    }
}
