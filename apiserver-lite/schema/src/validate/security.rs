//! Validation of security contexts of pods and containers.

use std::collections::BTreeSet;

use super::volume_source::check_relative;
use super::{FieldErrors, names, numbers};
use crate::enums;
use crate::value::{Map, Path, Value};

/// Range of user and group IDs.
const IDS: (i64, i64) = (0, i32::MAX as i64);
/// Longest sysctl name.
const SYSCTL_LEN_MAX: usize = 253;

/// Validates the security context of a pod and its host namespace fields.
pub(super) fn check_pod(spec: &Map, path: &Path<'_>, errors: &mut FieldErrors) {
    if spec.is_true("shareProcessNamespace") && spec.is_true("hostPID") {
        let detail = "ShareProcessNamespace and HostPID cannot both be enabled";
        errors.invalid(&path.field("shareProcessNamespace"), true, detail);
    }
    let Some(context) = spec.map("securityContext") else { return };
    let path = path.field("securityContext");
    check_ids(context, &path, errors);
    numbers::between(context, "fsGroup", IDS, &path, errors);
    let list = path.field("supplementalGroups");
    for (at, group) in context.list("supplementalGroups").iter().enumerate() {
        if let Some(group) = group.as_int().filter(|group| !(IDS.0..=IDS.1).contains(group)) {
            let detail = format!("must be between {} and {}, inclusive", IDS.0, IDS.1);
            errors.invalid(&list.index(at), group, &detail);
        }
    }
    let policy = context.str("fsGroupChangePolicy");
    if context.contains("fsGroupChangePolicy") && !enums::FS_GROUP_CHANGE_POLICIES.contains(&policy)
    {
        let here = path.field("fsGroupChangePolicy");
        errors.not_supported(&here, policy, enums::FS_GROUP_CHANGE_POLICIES);
    }
    check_sysctls(context, &path, errors);
    check_seccomp(context, &path, errors);
    check_windows(context, &path, errors);
}

/// Longest credential specification of a pod for Windows, in bytes.
const CREDENTIAL_SPEC_LEN_MAX: usize = 64 << 10;

/// Checks the options that kubelets on Windows would read.
fn check_windows(context: &Map, path: &Path<'_>, errors: &mut FieldErrors) {
    let Some(options) = context.map("windowsOptions") else { return };
    let path = path.field("windowsOptions");
    let text = |field: &str| options.get(field).and_then(Value::as_str);
    if let Some(name) = text("gmsaCredentialSpecName") {
        let here = path.field("gmsaCredentialSpecName");
        errors.complaints(&here, name, names::dns_subdomain(name));
    }
    if let Some(spec) = text("gmsaCredentialSpec") {
        let here = path.field("gmsaCredentialSpec");
        if spec.is_empty() {
            errors.invalid(&here, spec, "gmsaCredentialSpec cannot be an empty string");
        } else if spec.len() > CREDENTIAL_SPEC_LEN_MAX {
            errors.too_long(&here, CREDENTIAL_SPEC_LEN_MAX);
        }
    }
    if let Some(name) = text("runAsUserName") {
        check_user_name(name, &path.field("runAsUserName"), errors);
    }
}

/// Longest name of a user of Windows, and of its domain.
const USER_NAME_LEN_MAX: usize = 104;
const DOMAIN_LEN_MAX: usize = 256;

/// Checks a user of Windows: `user`, or `domain\user`.
fn check_user_name(name: &str, path: &Path<'_>, errors: &mut FieldErrors) {
    let (domain, user) =
        name.split_once('\\').map_or((None, name), |(domain, user)| (Some(domain), user));
    let detail = if name.is_empty() {
        "runAsUserName cannot be an empty string"
    } else if name.chars().any(char::is_control) {
        "runAsUserName cannot contain control characters"
    } else if user.contains('\\') {
        "runAsUserName cannot contain more than one backslash"
    } else if domain.is_some_and(|domain| domain.is_empty() || domain.len() >= DOMAIN_LEN_MAX) {
        "runAsUserName's Domain must have between 1 and 255 characters"
    } else if user.is_empty() {
        "runAsUserName's User cannot be empty"
    } else if user.len() > USER_NAME_LEN_MAX {
        "runAsUserName's User length must not be longer than 104 characters"
    } else if user.chars().all(|letter| matches!(letter, '.' | ' ')) {
        "runAsUserName's User cannot contain only periods or spaces"
    } else if user.contains(|letter| r#"/:*?"<>|"#.contains(letter)) {
        r#"runAsUserName's User cannot contain the following characters: \ / : * ? " < > |"#
    } else {
        return;
    };
    errors.invalid(path, name, detail);
}

/// Fields of a pod, of its security context and of a container's that mean nothing on Windows.
const NOT_OF_WINDOWS: [&[&str]; 3] = [
    &["hostPID", "hostIPC", "shareProcessNamespace"],
    &[
        "seLinuxOptions",
        "seccompProfile",
        "fsGroup",
        "fsGroupChangePolicy",
        "sysctls",
        "runAsUser",
        "runAsGroup",
        "supplementalGroups",
    ],
    &[
        "seLinuxOptions",
        "seccompProfile",
        "capabilities",
        "readOnlyRootFilesystem",
        "privileged",
        "allowPrivilegeEscalation",
        "procMount",
        "runAsUser",
        "runAsGroup",
    ],
];

/// Refuses what the operating system in `os.name` does not have. Pod security relies on it: a pod for Windows need not restrict what it cannot use.
pub(super) fn check_operating_system(spec: &Map, path: &Path<'_>, errors: &mut FieldErrors) {
    let system = spec.map("os").map(|os| os.str("name")).unwrap_or_default();
    let [of_pod, of_context, of_container]: [&[&str]; 3] = match system {
        "windows" => NOT_OF_WINDOWS,
        "linux" => [&[], &["windowsOptions"], &["windowsOptions"]],
        "" if spec.contains("os") => {
            return errors.required(&path.field("os").field("name"), "cannot be empty");
        }
        "" => return,
        other => return errors.not_supported(&path.field("os"), other, &["linux", "windows"]),
    };
    let mut refuse = |map: &Map, fields: &[&'static str], path: &Path<'_>| {
        // What is switched off is not used.
        let is_used = |field: &&&str| map.get(field).is_some_and(|v| *v != Value::from(false));
        for field in fields.iter().filter(is_used) {
            errors.forbidden(&path.field(field), &format!("cannot be set for a {system} pod"));
        }
    };
    refuse(spec, of_pod, path);
    let context = "securityContext";
    if let Some(map) = spec.map(context) {
        refuse(map, of_context, &path.field(context));
    }
    for list in ["initContainers", "containers", "ephemeralContainers"] {
        let here = path.field(list);
        for (at, container) in spec.maps(list).enumerate() {
            if let Some(map) = container.map(context) {
                refuse(map, of_container, &here.index(at).field(context));
            }
        }
    }
}

/// Validates the security context of a container.
pub(super) fn check_container(container: &Map, path: &Path<'_>, errors: &mut FieldErrors) {
    let Some(context) = container.map("securityContext") else { return };
    let path = path.field("securityContext");
    check_ids(context, &path, errors);
    let mount = context.str("procMount");
    if context.contains("procMount") && !enums::PROC_MOUNTS.contains(&mount) {
        errors.not_supported(&path.field("procMount"), mount, enums::PROC_MOUNTS);
    }
    check_seccomp(context, &path, errors);
    check_windows(context, &path, errors);
    let escalates = context.get("allowPrivilegeEscalation").and_then(Value::as_bool);
    if escalates != Some(false) {
        return;
    }
    if context.is_true("privileged") {
        let detail = "cannot set `allowPrivilegeEscalation` to false and `privileged` to true";
        errors.invalid(&path, context.clone(), detail);
    }
    let added = context.map("capabilities").map_or(&[][..], |caps| caps.list("add"));
    if added.iter().any(|name| name.as_str() == Some("CAP_SYS_ADMIN")) {
        let detail =
            "cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` CAP_SYS_ADMIN";
        errors.invalid(&path, context.clone(), detail);
    }
}

fn check_ids(context: &Map, path: &Path<'_>, errors: &mut FieldErrors) {
    for field in ["runAsUser", "runAsGroup"] {
        numbers::between(context, field, IDS, path, errors);
    }
}

fn check_sysctls(context: &Map, path: &Path<'_>, errors: &mut FieldErrors) {
    let list = path.field("sysctls");
    let mut seen = BTreeSet::new();
    for (at, sysctl) in context.maps("sysctls").enumerate() {
        let here = list.index(at);
        let (name, here) = (sysctl.str("name"), here.field("name"));
        if name.is_empty() {
            errors.required(&here, "");
        } else if !is_sysctl_name(name) {
            let detail = format!(
                "must have at most {SYSCTL_LEN_MAX} characters and match regex \
                 ^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?$"
            );
            errors.invalid(&here, name, &detail);
        } else if !seen.insert(name) {
            errors.duplicate(&here, name);
        }
    }
}

fn is_sysctl_name(name: &str) -> bool {
    let end = |byte: Option<&u8>| {
        byte.is_some_and(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
    };
    let inner = |byte: u8| {
        byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'_')
    };
    let is_segment = |segment: &str| {
        let bytes = segment.as_bytes();
        end(bytes.first()) && end(bytes.last()) && segment.bytes().all(inner)
    };
    name.len() <= SYSCTL_LEN_MAX && name.split(['.', '/']).all(is_segment)
}

fn check_seccomp(context: &Map, path: &Path<'_>, errors: &mut FieldErrors) {
    const TYPES: &[&str] = enums::SECCOMP_TYPES;
    let Some(profile) = context.map("seccompProfile") else { return };
    let path = path.field("seccompProfile");
    let kind = profile.str("type");
    if kind.is_empty() {
        errors.required(&path.field("type"), "type is required when seccompProfile is set");
    } else if !TYPES.contains(&kind) {
        errors.not_supported(&path.field("type"), kind, TYPES);
    }
    let (file, here) = (profile.str("localhostProfile"), path.field("localhostProfile"));
    match (kind == "Localhost", profile.contains("localhostProfile")) {
        (true, false) => errors.required(&here, "must be set when seccomp type is Localhost"),
        (true, true) => check_relative(file, &here, errors),
        (false, true) => {
            errors.invalid(&here, file, "can only be set when seccomp type is Localhost");
        }
        (false, false) => {}
    }
}
