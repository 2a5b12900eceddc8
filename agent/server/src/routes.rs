//! The routes of the HTTPS endpoint and the permissions they need, as one table. Pure.

use http::Method;

/// A page with the parameters of its path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Route {
    /// Health and task status, shared by all programs.
    Admin,
    /// The agent's metrics.
    Metrics,
    /// cAdvisor's metrics.
    ContainerMetrics,
    ProbeMetrics,
    /// The machine's description.
    Spec,
    /// A file or directory of system logs, by path.
    SystemLogs(String),
    /// The timeline of a pod, and why it is not ready.
    Explain(PodName),
    /// A checkpoint of a container.
    Checkpoint(ContainerName),
    /// Profiles of the process.
    Profile,
    /// The log verbosity.
    Verbosity,
    /// The node's pods with the agent's status.
    Pods,
    /// The pods running in the runtime.
    RunningPods,
    /// A container's log.
    Logs(ContainerName),
    /// A command in a container, over an upgraded connection.
    Exec(ContainerName),
    /// The streams of a container's main process, over an upgraded connection.
    Attach(ContainerName),
    /// Ports of a pod, over an upgraded connection.
    PortForward(PodName),
    /// A command in a container, with its output as the response.
    Run(ContainerName),
    /// Usage of node, pods and containers.
    StatsSummary,
    /// Resource metrics for autoscalers and `kubectl top`.
    ResourceMetrics,
    /// The effective configuration.
    Configz,
}

/// A pod named in a path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodName {
    pub namespace: String,
    pub name: String,
    /// UID if the path has one; then only this pod matches.
    pub uid: Option<String>,
}

/// A container named in a path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerName {
    pub pod: PodName,
    /// Its name in the pod.
    pub container: String,
}

/// The permission that a request needs: `verb` on `nodes/<subresource>` of this node.
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
    /// No such page.
    NotFound,
    /// The page has no such method.
    WrongMethod,
    /// The page is disabled.
    SwitchedOff(Switch),
}

type Make = fn(&[&str]) -> Route;

/// The setting that enables a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Switch {
    /// Always enabled.
    Always,
    /// `enableDebuggingHandlers`: access to pods.
    Debugging,
    /// `enableSystemLogHandler` and `enableDebuggingHandlers`.
    SystemLogs,
    /// `enableProfilingHandler`, and `enableDebuggingHandlers`.
    Profiling,
    /// `enableDebugFlagsHandler`, and `enableDebuggingHandlers`.
    Flags,
    /// The feature gate `ContainerCheckpoint`.
    Checkpoint,
}

const READ: &[Method] = &[Method::GET, Method::HEAD];
/// Upgrades come as POST from SPDY clients and as GET from WebSocket clients.
const UPGRADE: &[Method] = &[Method::GET, Method::POST];
const WRITE: &[Method] = &[Method::POST];
const SET: &[Method] = &[Method::PUT];

/// Pattern, methods, setting, route. `*` matches one segment and passes it to the route, `**` at
/// the end matches the rest.
const ROUTES: &[(&str, &[Method], Switch, Make)] = &[
    ("/healthz", READ, Always, |_| Route::Admin),
    ("/healthz/*", READ, Always, |_| Route::Admin),
    ("/livez", READ, Always, |_| Route::Admin),
    ("/livez/*", READ, Always, |_| Route::Admin),
    ("/readyz", READ, Always, |_| Route::Admin),
    ("/readyz/*", READ, Always, |_| Route::Admin),
    ("/statusz", READ, Always, |_| Route::Admin),
    ("/metrics", READ, Always, |_| Route::Metrics),
    ("/metrics/cadvisor", READ, Always, |_| Route::ContainerMetrics),
    ("/metrics/probes", READ, Always, |_| Route::ProbeMetrics),
    ("/metrics/resource", READ, Always, |_| Route::ResourceMetrics),
    ("/stats/summary", READ, Always, |_| Route::StatsSummary),
    ("/spec", READ, Always, |_| Route::Spec),
    ("/pods", READ, Always, |_| Route::Pods),
    ("/configz", READ, Always, |_| Route::Configz),
    ("/checkpoint/*/*/*", WRITE, Checkpoint, |names| Route::Checkpoint(container(names))),
    ("/runningpods", READ, Debugging, |_| Route::RunningPods),
    ("/containerLogs/*/*/*", READ, Debugging, |names| Route::Logs(container(names))),
    ("/exec/*/*/*", UPGRADE, Debugging, |names| Route::Exec(container(names))),
    ("/exec/*/*/*/*", UPGRADE, Debugging, |names| Route::Exec(container(names))),
    ("/attach/*/*/*", UPGRADE, Debugging, |names| Route::Attach(container(names))),
    ("/attach/*/*/*/*", UPGRADE, Debugging, |names| Route::Attach(container(names))),
    ("/portForward/*/*", UPGRADE, Debugging, |names| Route::PortForward(pod(names))),
    ("/portForward/*/*/*", UPGRADE, Debugging, |names| Route::PortForward(pod(names))),
    ("/run/*/*/*", WRITE, Debugging, |names| Route::Run(container(names))),
    ("/run/*/*/*/*", WRITE, Debugging, |names| Route::Run(container(names))),
    ("/debug/pods/*/*", READ, Debugging, |names| Route::Explain(pod(names))),
    ("/debug/flags/v", SET, Flags, |_| Route::Verbosity),
    ("/debug/pprof/**", UPGRADE, Profiling, |_| Route::Profile),
    ("/logs/**", READ, SystemLogs, |rest| Route::SystemLogs(rest.join("/"))),
];

use Switch::{Always, Checkpoint, Debugging, Flags, Profiling, SystemLogs};

/// Finds the route of a request. A trailing slash is ignored.
pub fn route(
    method: &Method,
    path: &str,
    is_on: impl Fn(Switch) -> bool,
) -> Result<Route, NoRoute> {
    let mut known = false;
    for (pattern, methods, switch, make) in ROUTES {
        let Some(names) = matching(pattern, path) else { continue };
        if !is_on(*switch) {
            return Err(NoRoute::SwitchedOff(*switch));
        }
        if methods.contains(method) {
            return Ok(make(&names));
        }
        known = true;
    }
    Err(if known { NoRoute::WrongMethod } else { NoRoute::NotFound })
}

/// The permission that a request needs, whether or not it has a route: unauthorized clients learn
/// nothing about routes.
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
        if want == "**" {
            names.extend(rest.filter(|segment| !segment.is_empty()));
            return Some(names);
        }
        let got = rest.next()?;
        match want {
            "*" if !got.is_empty() => names.push(got),
            _ if want == got => {}
            _ => return None,
        }
    }
    rest.next().is_none().then_some(names)
}

/// The label of a path in metrics: its first segment, with the second below `/metrics`; never a
/// name chosen by a client.
pub fn page_name(path: &str) -> &'static str {
    let known =
        |pattern: &&(&'static str, &[Method], Switch, Make)| matching(pattern.0, path).is_some();
    let pattern = ROUTES.iter().find(known).map_or("", |row| row.0);
    let end = pattern.find("/*").unwrap_or(pattern.len());
    pattern.get(1..end).unwrap_or_default()
}

/// The label of a method in metrics; never a word chosen by a client.
pub fn method_name(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::HEAD => "HEAD",
        Method::POST => "POST",
        Method::PUT => "PUT",
        Method::PATCH => "PATCH",
        Method::DELETE => "DELETE",
        _ => "other",
    }
}

/// Namespace, pod and optional UID.
fn pod(names: &[&str]) -> PodName {
    let name = |at: usize| names.get(at).map(|name| (*name).to_owned());
    PodName {
        namespace: name(0).unwrap_or_default(),
        name: name(1).unwrap_or_default(),
        uid: name(2),
    }
}

/// Namespace, pod, optional UID, and container.
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
        let get = |path| route(&Method::GET, path, |_| true);
        let container = ContainerName { pod: web(), container: "c".into() };
        assert_eq!(get("/healthz"), Ok(Route::Admin));
        assert_eq!(get("/pods/"), Ok(Route::Pods));
        assert_eq!(get("/metrics/resource"), Ok(Route::ResourceMetrics));
        assert_eq!(get("/containerLogs/a/web/c"), Ok(Route::Logs(container.clone())));
        let exec = route(&Method::POST, "/exec/a/web/c", |_| true);
        assert_eq!(exec, Ok(Route::Exec(container.clone())));
        assert_eq!(get("/runningpods/"), Ok(Route::RunningPods));
        assert_eq!(get("/logs/"), Ok(Route::SystemLogs(String::new())));
        assert_eq!(get("/logs/pods/x.log"), Ok(Route::SystemLogs("pods/x.log".into())));
        assert_eq!(get("/debug/pods/a/web"), Ok(Route::Explain(web())));
        assert_eq!(get("/spec/"), Ok(Route::Spec));
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
            "/debug/flags/x",
        ] {
            assert_eq!(route(&Method::GET, path, |_| true), Err(NoRoute::NotFound), "{path}");
        }
        assert_eq!(route(&Method::DELETE, "/pods", |_| true), Err(NoRoute::WrongMethod));
        assert_eq!(route(&Method::GET, "/run/a/web/c", |_| true), Err(NoRoute::WrongMethod));
    }

    #[test]
    fn disabled_handlers_are_not_routed() {
        let only = |on: Switch| move |switch| switch == Always || switch == on;
        let get = |path, on| route(&Method::GET, path, only(on));
        assert_eq!(get("/exec/a/web/c", Always), Err(NoRoute::SwitchedOff(Debugging)));
        assert!(get("/exec/a/web/c", Debugging).is_ok() && get("/pods", Always).is_ok());
        assert_eq!(get("/debug/pprof/heap", Debugging), Err(NoRoute::SwitchedOff(Profiling)));
        assert_eq!(get("/logs/syslog", Debugging), Err(NoRoute::SwitchedOff(SystemLogs)));
    }

    #[test]
    fn a_gate_makes_a_page() {
        let only = |on: Switch| move |switch| switch == on;
        let write = |on| route(&Method::POST, "/checkpoint/a/web/c", only(on));
        assert_eq!(write(Always), Err(NoRoute::SwitchedOff(Checkpoint)));
        assert!(matches!(write(Checkpoint), Ok(Route::Checkpoint(_))));
        let set = |on| route(&Method::PUT, "/debug/flags/v", only(on));
        assert_eq!((set(Flags), set(Debugging).is_ok()), (Ok(Route::Verbosity), false));
    }

    #[test]
    fn pages_are_counted_by_names_of_the_table() {
        for (path, name) in [
            ("/pods/", "pods"),
            ("/metrics/cadvisor", "metrics/cadvisor"),
            ("/exec/a/b/c", "exec"),
            ("/debug/pods/a/b", "debug/pods"),
            ("/logs/x/y", "logs"),
            ("/made/up", ""),
        ] {
            assert_eq!(page_name(path), name);
        }
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
