//! Containers of a pod or of a template of pods.

use proto_api::Quantity;
use serde_json::Value;

use super::Page;
use super::common::{number, seccomp, texts, time, word};
use crate::objects;

/// Where containers stand on the page, and what is known of their pod.
pub(super) struct ContainerSection<'a> {
    /// What stands before names.
    pub(super) space: &'a str,
    /// Level of indentation.
    pub(super) level: usize,
    /// Whether they belong to a pod, and not to a template.
    pub(super) is_pod: bool,
    /// The pod or the template.
    pub(super) owner: &'a Value,
}

/// The containers of a field of the specification.
pub(super) fn list(page: &mut Page, field: &str, statuses: &str, place: &ContainerSection<'_>) {
    let containers = objects::list_at(place.owner, &format!("/spec/{field}"));
    let statuses = objects::list_at(place.owner, &format!("/status/{statuses}"));
    for container in containers {
        let name = objects::text_at(container, "/name");
        let status = statuses.iter().find(|status| objects::text_at(status, "/name") == name);
        describe(page, container, status, place);
    }
}

fn describe(
    page: &mut Page,
    container: &Value,
    status: Option<&Value>,
    place: &ContainerSection<'_>,
) {
    let level = place.level;
    let inner = "  ";
    let text = |pointer: &str| objects::text_at(container, pointer);
    page.line(level, format!("{}{}:", place.space, text("/name")));
    let nested = level + 1;
    let field = |page: &mut Page, name: &str, value: &str| {
        page.line(nested, format!("{name}:\t{value}"));
    };
    if let Some(status) = status {
        field(page, "Container ID", objects::text_at(status, "/containerID"));
    }
    field(page, "Image", text("/image"));
    if let Some(status) = status {
        field(page, "Image ID", objects::text_at(status, "/imageID"));
    }
    ports(page, container, nested);
    seccomp(page, nested, container);
    for (title, pointer) in [("Command", "/command"), ("Args", "/args")] {
        let words = texts(container, pointer);
        if !words.is_empty() {
            page.line(nested, format!("{title}:"));
        }
        for word in words {
            for line in word.split('\n') {
                page.line(nested, format!("{inner}{line}"));
            }
        }
    }
    if let Some(status) = status {
        states(page, status, nested);
    }
    for (title, pointer) in [("Limits", "/resources/limits"), ("Requests", "/resources/requests")] {
        let amounts = objects::map_at(container, pointer);
        if amounts.is_some_and(|amounts| !amounts.is_empty()) {
            page.line(nested, format!("{title}:"));
        }
        for (name, amount) in sorted(amounts) {
            page.line(nested, format!("{inner}{name}:\t{}", crate::jsonpath::text_of(amount)));
        }
    }
    for (title, pointer) in [
        ("Liveness", "/livenessProbe"),
        ("Readiness", "/readinessProbe"),
        ("Startup", "/startupProbe"),
    ] {
        if let Some(probe) = container.pointer(pointer) {
            field(page, title, &describe_probe(probe));
        }
    }
    environment(page, container, nested, place);
    mounts(page, container, nested);
}

fn sorted(map: Option<&serde_json::Map<String, Value>>) -> Vec<(&String, &Value)> {
    let mut pairs: Vec<_> = map.into_iter().flatten().collect();
    pairs.sort_by_key(|(key, _)| *key);
    pairs
}

fn ports(page: &mut Page, container: &Value, level: usize) {
    let ports = objects::list_at(container, "/ports");
    let list = |field: &str| {
        let one = |port: &Value| {
            let protocol = objects::text_at(port, "/protocol");
            let protocol = if protocol.is_empty() { "TCP" } else { protocol };
            format!("{}/{protocol}", number(port, field))
        };
        let all: Vec<String> = ports.iter().map(one).collect();
        if all.is_empty() { "<none>".to_owned() } else { all.join(", ") }
    };
    let plural = if ports.len() > 1 { "s" } else { "" };
    page.line(level, format!("Port{plural}:\t{}", list("/containerPort")));
    page.line(level, format!("Host Port{plural}:\t{}", list("/hostPort")));
}

fn states(page: &mut Page, status: &Value, level: usize) {
    state(page, "State", status.get("state"), level);
    let last = status.get("lastState").filter(|state| state.get("terminated").is_some());
    if last.is_some() {
        state(page, "Last State", last, level);
    }
    let ready = if status.get("ready") == Some(&Value::Bool(true)) { "True" } else { "False" };
    page.line(level, format!("Ready:\t{ready}"));
    page.line(level, format!("Restart Count:\t{}", number(status, "/restartCount")));
}

fn state(page: &mut Page, title: &str, state: Option<&Value>, level: usize) {
    let empty = Value::Null;
    let state = state.unwrap_or(&empty);
    let field = |page: &mut Page, name: &str, value: &str| {
        page.line(level, format!("  {name}:\t{value}"));
    };
    let reason = |page: &mut Page, of: &Value| {
        for (name, pointer) in [("Reason", "/reason"), ("Message", "/message")] {
            let text = objects::text_at(of, pointer);
            if !text.is_empty() {
                field(page, name, text);
            }
        }
    };
    if let Some(running) = state.get("running") {
        page.line(level, format!("{title}:\tRunning"));
        field(page, "Started", &time(running, "/startedAt"));
    } else if let Some(ended) = state.get("terminated") {
        page.line(level, format!("{title}:\tTerminated"));
        reason(page, ended);
        field(page, "Exit Code", &number(ended, "/exitCode").to_string());
        let signal = number(ended, "/signal");
        if signal > 0 {
            field(page, "Signal", &signal.to_string());
        }
        field(page, "Started", &time(ended, "/startedAt"));
        field(page, "Finished", &time(ended, "/finishedAt"));
    } else {
        page.line(level, format!("{title}:\tWaiting"));
        if let Some(waiting) = state.get("waiting") {
            let text = objects::text_at(waiting, "/reason");
            if !text.is_empty() {
                field(page, "Reason", text);
            }
        }
    }
}

fn describe_probe(probe: &Value) -> String {
    let numbers = format!(
        "delay={}s timeout={}s period={}s #success={} #failure={}",
        number(probe, "/initialDelaySeconds"),
        number(probe, "/timeoutSeconds"),
        number(probe, "/periodSeconds"),
        number(probe, "/successThreshold"),
        number(probe, "/failureThreshold")
    );
    let what = if probe.get("exec").is_some() {
        format!("exec [{}]", texts(probe, "/exec/command").join(" "))
    } else if let Some(get) = probe.get("httpGet") {
        let scheme = objects::text_at(get, "/scheme").to_lowercase();
        let scheme = if scheme.is_empty() { "http".to_owned() } else { scheme };
        let (host, path) = (objects::text_at(get, "/host"), objects::text_at(get, "/path"));
        let slash = if path.starts_with('/') || path.is_empty() { "" } else { "/" };
        format!("http-get {scheme}://{host}:{}{slash}{path}", word(get, "/port", ""))
    } else if let Some(socket) = probe.get("tcpSocket") {
        format!("tcp-socket {}:{}", objects::text_at(socket, "/host"), word(socket, "/port", ""))
    } else if let Some(grpc) = probe.get("grpc") {
        format!("grpc <pod>:{} {}", word(grpc, "/port", ""), objects::text_at(grpc, "/service"))
    } else {
        "unknown".to_owned()
    };
    format!("{what} {numbers}")
}

fn environment(page: &mut Page, container: &Value, level: usize, place: &ContainerSection<'_>) {
    let from = objects::list_at(container, "/envFrom");
    if !from.is_empty() {
        page.line(level, "Environment Variables from:");
    }
    for one in from {
        let (kind, source) = match one.get("secretRef") {
            Some(source) => ("Secret", source),
            None => ("ConfigMap", one.get("configMapRef").unwrap_or(&Value::Null)),
        };
        let prefix = objects::text_at(one, "/prefix");
        let prefix =
            if prefix.is_empty() { String::new() } else { format!(" with prefix '{prefix}'") };
        let name = objects::text_at(source, "/name");
        let optional = word(source, "/optional", "false");
        page.line(level, format!("  {name}\t{kind}{prefix}\tOptional: {optional}"));
    }
    let variables = objects::list_at(container, "/env");
    if variables.is_empty() {
        page.line(level, "Environment:\t<none>");
        return;
    }
    page.line(level, "Environment:");
    for variable in variables {
        let name = objects::text_at(variable, "/name");
        let Some(source) = variable.get("valueFrom") else {
            let mut lines = objects::text_at(variable, "/value").split('\n');
            let first = lines.next().unwrap_or_default();
            page.line(level, format!("  {name}:\t{first}"));
            for line in lines {
                page.line(level, format!("  \t{line}"));
            }
            continue;
        };
        page.line(level, format!("  {name}:\t{}", describe_source(source, container, place)));
    }
}

fn describe_source(source: &Value, container: &Value, place: &ContainerSection<'_>) -> String {
    let key_of = |within: &str, reference: &Value| {
        format!(
            "<set to the key '{}' {within} '{}'>\tOptional: {}",
            objects::text_at(reference, "/key"),
            objects::text_at(reference, "/name"),
            word(reference, "/optional", "false")
        )
    };
    if let Some(field) = source.get("fieldRef") {
        let path = objects::text_at(field, "/fieldPath");
        let version = objects::text_at(field, "/apiVersion");
        format!("{} ({version}:{path})", field_value(path, place).unwrap_or_default())
    } else if let Some(resource) = source.get("resourceFieldRef") {
        format!("{} ({})", amount(resource, container), objects::text_at(resource, "/resource"))
    } else if let Some(reference) = source.get("secretKeyRef") {
        key_of("in secret", reference)
    } else if let Some(reference) = source.get("configMapKeyRef") {
        key_of("of config map", reference)
    } else {
        String::new()
    }
}

/// An amount of the container's limits or requests, in units of the divisor, rounded up; 0 if the container has none.
fn amount(reference: &Value, container: &Value) -> i64 {
    let (kind, name) = objects::text_at(reference, "/resource").split_once('.').unwrap_or_default();
    let amounts = objects::map_at(container, &format!("/resources/{kind}"));
    let quantity = |value: Option<&Value>| -> Quantity {
        let text = value.map(crate::jsonpath::text_of).unwrap_or_default();
        text.parse().unwrap_or_default()
    };
    let (all, unit) =
        (quantity(amounts.and_then(|map| map.get(name))), quantity(reference.get("divisor")));
    // Processors are counted by the thousandth, everything else by whole units.
    let (all, unit, one) = match name {
        "cpu" => (all.as_milli(), unit.as_milli(), 1000),
        _ => (all.value(), unit.value(), 1),
    };
    let unit = if unit > 0 { unit } else { one };
    let whole = all.checked_div(unit).unwrap_or_default();
    let rest = all.checked_rem(unit).unwrap_or_default();
    whole.saturating_add(i64::from(rest > 0))
}

/// The value of a field that is known from the object alone.
fn field_value<'a>(path: &str, place: &ContainerSection<'a>) -> Option<&'a str> {
    let pod = Some(place.owner).filter(|_| place.is_pod)?;
    let labelled = |kind: &str| {
        let key = path.strip_prefix(kind)?.strip_prefix("['")?.strip_suffix("']")?;
        objects::map_at(pod, &format!("/{}", kind.replace('.', "/")))?.get(key)?.as_str()
    };
    match path {
        "metadata.name" => Some(objects::name(pod)),
        "metadata.namespace" => Some(objects::namespace(pod)),
        "metadata.uid" => Some(objects::text_at(pod, "/metadata/uid")),
        _ => labelled("metadata.labels").or_else(|| labelled("metadata.annotations")),
    }
}

fn mounts(page: &mut Page, container: &Value, level: usize) {
    let mounts = objects::list_at(container, "/volumeMounts");
    if mounts.is_empty() {
        page.line(level, "Mounts:\t<none>");
    } else {
        page.line(level, "Mounts:");
    }
    let mut lines: Vec<(&str, String)> = mounts
        .iter()
        .map(|mount| {
            let read_only = mount.get("readOnly") == Some(&Value::Bool(true));
            let mut flags = vec![if read_only { "ro" } else { "rw" }.to_owned()];
            let sub_path = objects::text_at(mount, "/subPath");
            if !sub_path.is_empty() {
                flags.push(format!("path=\"{sub_path}\""));
            }
            let path = objects::text_at(mount, "/mountPath");
            let name = objects::text_at(mount, "/name");
            (path, format!("{path} from {name} ({})", flags.join(",")))
        })
        .collect();
    lines.sort();
    for (_, line) in lines {
        page.line(level, format!("  {line}"));
    }
    let devices = objects::list_at(container, "/volumeDevices")
        .iter()
        .map(|device| (objects::text_at(device, "/devicePath"), objects::text_at(device, "/name")));
    let mut devices: Vec<(&str, &str)> = devices.collect();
    devices.sort_unstable();
    if !devices.is_empty() {
        page.line(level, "Devices:");
    }
    for (path, name) in devices {
        page.line(level, format!("  {path} from {name}"));
    }
}
