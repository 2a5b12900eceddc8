//! What the node's HTTPS endpoint serves, and what a client must be allowed to do for it. One
//! table: what is not in it does not exist. Pure.

use http::Method;

/// A page with what its path names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Route {
    /// Health, metrics and task status, answered by the pages that every program has.
    Admin,
    /// The pods bound to the node, with their status as the agent knows it.
    Pods,
    /// The pods that the runtime runs.
    RunningPods,
    /// A container's log.
    Logs(ContainerName),
    /// A command in a container, over an upgraded connection.
    Exec(ContainerName),
    /// A container's own streams, over an upgraded connection.
    Attach(ContainerName),
    /// Ports of a pod, over an upgraded connection.
    PortForward(PodName),
    /// A command in a container, answered with its output.
    Run(ContainerName),
    /// Usage of node, pods and containers.
    StatsSummary,
    /// The same as the metrics that autoscalers and `top` read.
    ResourceMetrics,
    /// The configuration in force.
    Configz,
}

/// A pod as a path names it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodName {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// UID, when the path has one: only that very pod is meant.
    pub uid: Option<String>,
}

/// A container as a path names it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerName {
    /// Its pod.
    pub pod: PodName,
    /// Its name in the pod.
    pub container: String,
}

/// What a request needs to be allowed: `verb` on `nodes/<subresource>` of this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Permission {
    /// `get`, `create`, `update`, `patch` or `delete`.
    pub verb: &'static str,
    /// `stats`, `metrics`, `log`, `spec` or `proxy`.
    pub subresource: &'static str,
}

/// Why a request has no route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoRoute {
    /// Nothing is there.
    NotFound,
    /// Something is, for another method.
    WrongMethod,
}

type Make = fn(&[&str]) -> Route;

const READ: &[Method] = &[Method::GET, Method::HEAD];
/// Upgrades come as POST from SPDY clients and as GET from WebSocket clients.
const UPGRADE: &[Method] = &[Method::GET, Method::POST];
const WRITE: &[Method] = &[Method::POST];

/// `*` takes one segment and hands it to the route.
const ROUTES: &[(&str, &[Method], Make)] = &[
    ("/healthz", READ, |_| Route::Admin),
    ("/healthz/*", READ, |_| Route::Admin),
    ("/livez", READ, |_| Route::Admin),
    ("/livez/*", READ, |_| Route::Admin),
    ("/readyz", READ, |_| Route::Admin),
    ("/readyz/*", READ, |_| Route::Admin),
    ("/statusz", READ, |_| Route::Admin),
    ("/metrics", READ, |_| Route::Admin),
    ("/metrics/resource", READ, |_| Route::ResourceMetrics),
    ("/stats/summary", READ, |_| Route::StatsSummary),
    ("/pods", READ, |_| Route::Pods),
    ("/runningpods", READ, |_| Route::RunningPods),
    ("/configz", READ, |_| Route::Configz),
    ("/containerLogs/*/*/*", READ, |names| Route::Logs(container(names))),
    ("/exec/*/*/*", UPGRADE, |names| Route::Exec(container(names))),
    ("/exec/*/*/*/*", UPGRADE, |names| Route::Exec(container(names))),
    ("/attach/*/*/*", UPGRADE, |names| Route::Attach(container(names))),
    ("/attach/*/*/*/*", UPGRADE, |names| Route::Attach(container(names))),
    ("/portForward/*/*", UPGRADE, |names| Route::PortForward(pod(names))),
    ("/portForward/*/*/*", UPGRADE, |names| Route::PortForward(pod(names))),
    ("/run/*/*/*", WRITE, |names| Route::Run(container(names))),
    ("/run/*/*/*/*", WRITE, |names| Route::Run(container(names))),
];

/// Finds the route of a request. A slash at the end does not matter.
pub fn route(method: &Method, path: &str) -> Result<Route, NoRoute> {
    let mut known = false;
    for (pattern, methods, make) in ROUTES {
        let Some(names) = matching(pattern, path) else { continue };
        if methods.contains(method) {
            return Ok(make(&names));
        }
        known = true;
    }
    Err(if known { NoRoute::WrongMethod } else { NoRoute::NotFound })
}

/// What a request needs to be allowed, whether or not it has a route: who may nothing here shall
/// not learn what is here.
pub fn permission(method: &Method, path: &str) -> Permission {
    let verb = match *method {
        Method::POST => "create",
        Method::PUT => "update",
        Method::PATCH => "patch",
        Method::DELETE => "delete",
        _ => "get",
    };
    let first = segments(path).next().unwrap_or_default();
    let subresource = match first {
        "stats" => "stats",
        "metrics" => "metrics",
        "logs" => "log",
        "spec" => "spec",
        _ => "proxy",
    };
    Permission { verb, subresource }
}

fn segments(path: &str) -> impl Iterator<Item = &str> {
    path.trim_matches('/').split('/')
}

fn matching<'a>(pattern: &str, path: &'a str) -> Option<Vec<&'a str>> {
    let mut names = Vec::new();
    let mut rest = segments(path);
    for want in segments(pattern) {
        let got = rest.next()?;
        match want {
            "*" if !got.is_empty() => names.push(got),
            _ if want == got => {}
            _ => return None,
        }
    }
    rest.next().is_none().then_some(names)
}

/// Namespace, pod, and perhaps a UID.
fn pod(names: &[&str]) -> PodName {
    let name = |at: usize| names.get(at).map(|name| (*name).to_owned());
    PodName {
        namespace: name(0).unwrap_or_default(),
        name: name(1).unwrap_or_default(),
        uid: name(2),
    }
}

/// Namespace, pod, perhaps a UID, and the container last.
fn container(names: &[&str]) -> ContainerName {
    let (container, before) =
        names.split_last().map_or(("", names), |(last, before)| (*last, before));
    ContainerName { pod: pod(before), container: container.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn web() -> PodName {
        PodName { namespace: "a".into(), name: "web".into(), uid: None }
    }

    #[test]
    fn paths_lead_to_pages() {
        let get = |path| route(&Method::GET, path);
        let container = ContainerName { pod: web(), container: "c".into() };
        assert_eq!(get("/healthz"), Ok(Route::Admin));
        assert_eq!(get("/pods/"), Ok(Route::Pods));
        assert_eq!(get("/metrics/resource"), Ok(Route::ResourceMetrics));
        assert_eq!(get("/containerLogs/a/web/c"), Ok(Route::Logs(container.clone())));
        assert_eq!(route(&Method::POST, "/exec/a/web/c"), Ok(Route::Exec(container.clone())));
        let uid = PodName { uid: Some("u-1".into()), ..web() };
        let exact = ContainerName { pod: uid.clone(), ..container };
        assert_eq!(get("/attach/a/web/u-1/c"), Ok(Route::Attach(exact)));
        assert_eq!(get("/portForward/a/web/u-1"), Ok(Route::PortForward(uid)));
        assert_eq!(get("/portForward/a/web"), Ok(Route::PortForward(web())));
    }

    #[test]
    fn nothing_else_exists() {
        for path in [
            "/",
            "",
            "/exec",
            "/exec/a//c",
            "/containerLogs/a/web",
            "/metrics/x",
            "/pods/a",
            "/debug/pprof",
        ] {
            assert_eq!(route(&Method::GET, path), Err(NoRoute::NotFound), "{path}");
        }
        assert_eq!(route(&Method::DELETE, "/pods"), Err(NoRoute::WrongMethod));
        assert_eq!(route(&Method::GET, "/run/a/web/c"), Err(NoRoute::WrongMethod));
    }

    #[test]
    fn permissions_follow_method_and_first_segment() {
        let check = |method: Method, path, verb, subresource| {
            assert_eq!(
                permission(&method, path),
                Permission { verb, subresource },
                "{method} {path}"
            );
        };
        check(Method::GET, "/stats/summary", "get", "stats");
        check(Method::HEAD, "/metrics", "get", "metrics");
        check(Method::GET, "/metrics/resource", "get", "metrics");
        check(Method::GET, "/logs/x", "get", "log");
        check(Method::PUT, "/spec/", "update", "spec");
        check(Method::POST, "/exec/a/b/c", "create", "proxy");
        check(Method::PATCH, "/metricsx", "patch", "proxy");
        check(Method::DELETE, "/", "delete", "proxy");
        check(Method::GET, "/healthz", "get", "proxy");
    }
}
