//! Validation of container probes and lifecycle hooks.

use super::numbers::{self, SECONDS_MAX};
use super::pod::check_port_number;
use super::{FieldErrors, names};
use crate::enums;
use crate::value::{Map, Path, Value};

const PROBES: &[&str] = &["livenessProbe", "readinessProbe", "startupProbe"];
const HANDLERS: &[&str] = &["exec", "httpGet", "tcpSocket", "grpc"];

/// Validates probes and lifecycle hooks of a container.
pub(super) fn check(container: &Map, path: &Path<'_>, errors: &mut FieldErrors) {
    for probe in PROBES {
        if let Some(map) = container.map(probe) {
            check_probe(map, probe, &path.field(probe), errors);
        }
    }
    for hook in ["postStart", "preStop"] {
        if let Some(map) = container.map("lifecycle").and_then(|lifecycle| lifecycle.map(hook)) {
            let lifecycle = path.field("lifecycle");
            let kinds = HANDLERS.get(..3).unwrap_or_default();
            check_handler(map, kinds, &lifecycle.field(hook), errors);
        }
    }
}

fn check_probe(probe: &Map, name: &str, path: &Path<'_>, errors: &mut FieldErrors) {
    check_handler(probe, HANDLERS, path, errors);
    for field in [
        "initialDelaySeconds",
        "timeoutSeconds",
        "periodSeconds",
        "successThreshold",
        "failureThreshold",
    ] {
        numbers::not_negative(probe, field, path, errors);
    }
    check_grace(probe, name, path, errors);
    if name != "readinessProbe"
        && let Some(number) = probe.int("successThreshold").filter(|&number| number != 1)
    {
        errors.invalid(&path.field("successThreshold"), number, "must be 1");
    }
}

/// Checks the grace period. Kubernetes has no upper bound; larger values overflow timestamps.
fn check_grace(probe: &Map, name: &str, path: &Path<'_>, errors: &mut FieldErrors) {
    let field = "terminationGracePeriodSeconds";
    let here = path.field(field);
    let Some(seconds) = probe.int(field) else { return };
    if name == "readinessProbe" {
        errors.invalid(&here, seconds, "must not be set for readinessProbes");
    } else if seconds <= 0 {
        errors.invalid(&here, seconds, "must be greater than 0");
    } else if seconds > SECONDS_MAX {
        let detail = format!("must be less than or equal to {SECONDS_MAX}");
        errors.invalid(&here, seconds, &detail);
    }
}

fn check_handler(handler: &Map, kinds: &[&str], path: &Path<'_>, errors: &mut FieldErrors) {
    let mut set = kinds.iter().filter(|kind| handler.contains(kind));
    match (set.next(), set.next()) {
        (None, _) => errors.required(path, "must specify a handler type"),
        (Some(_), Some(second)) => {
            errors.forbidden(&path.field(second), "may not specify more than 1 handler type");
        }
        _ => {}
    }
    if handler.map("exec").is_some_and(|exec| exec.list("command").is_empty()) {
        let here = path.field("exec");
        errors.required(&here.field("command"), "");
    }
    for kind in ["httpGet", "tcpSocket"] {
        let Some(action) = handler.map(kind) else { continue };
        let here = path.field(kind);
        if kind == "httpGet" {
            check_http(action, &here, errors);
        }
        check_named_port(action.get("port"), &here.field("port"), errors);
    }
    if let Some(grpc) = handler.map("grpc") {
        let here = path.field("grpc");
        check_port_number(grpc.int("port").unwrap_or(0), &here.field("port"), errors);
    }
}

fn check_http(action: &Map, path: &Path<'_>, errors: &mut FieldErrors) {
    if action.str("path").is_empty() {
        errors.required(&path.field("path"), "");
    }
    let scheme = action.str("scheme");
    if !enums::SCHEMES.contains(&scheme) {
        errors.not_supported(&path.field("scheme"), scheme, enums::SCHEMES);
    }
    let here = path.field("httpHeaders");
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    for header in action.maps("httpHeaders") {
        let name = header.str("name");
        if name.is_empty() || !name.bytes().all(plain) {
            let detail = "a valid HTTP header must consist of alphanumeric characters or '-' (e.g. 'X-Header-Name', \
                          regex used for validation is '[-A-Za-z0-9]+')";
            errors.invalid(&here, name, detail);
        }
    }
}

/// Checks a port that is a number or a container port's name.
pub(super) fn check_named_port(port: Option<&Value>, path: &Path<'_>, errors: &mut FieldErrors) {
    match port {
        Some(Value::String(name)) => errors.complaints(path, name, names::port_name(name)),
        port => check_port_number(port.and_then(Value::as_int).unwrap_or(0), path, errors),
    }
}
