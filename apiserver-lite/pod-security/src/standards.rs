//! Which checks a level has at a version, and what they find.

use proto_api::core::v1::PodSpec;
use proto_api::meta::v1::ObjectMeta;
use proto_api::names::Names;

use crate::checks::{Finding, baseline, capabilities, restricted, seccomp};
use crate::pod_view::PodView;
use crate::policy::{LevelVersion, PodSecurityLevel};
use crate::violation::Violation;

type CheckPod = fn(PodView<'_>) -> Option<Finding>;

/// A check and its revisions.
struct Check {
    /// Kubernetes' name.
    id: &'static str,
    /// Minor versions of policies, ascending, and what is checked from each on. Older policies do not have the check.
    revisions: &'static [(u64, CheckPod)],
    /// The first minor version of policies that admits every pod for Windows.
    windows_exempt_since: Option<u64>,
    /// The check of the lower level that this one replaces.
    overrides: Option<&'static str>,
}

const PLAIN: Check = Check { id: "", revisions: &[], windows_exempt_since: None, overrides: None };

/// In the order of messages, which is that of the names.
static BASELINE: [Check; 11] = [
    Check { id: "appArmorProfile", revisions: &[(0, baseline::check_app_armor_profile)], ..PLAIN },
    Check { id: "capabilities_baseline", revisions: &[(0, capabilities::check_added)], ..PLAIN },
    Check { id: "hostNamespaces", revisions: &[(0, baseline::check_host_namespaces)], ..PLAIN },
    Check { id: "hostPathVolumes", revisions: &[(0, baseline::check_host_path_volumes)], ..PLAIN },
    Check { id: "hostPorts", revisions: &[(0, baseline::check_host_ports)], ..PLAIN },
    Check { id: "privileged", revisions: &[(0, baseline::check_privileged)], ..PLAIN },
    Check { id: "procMount", revisions: &[(0, baseline::check_proc_mount)], ..PLAIN },
    Check { id: "seLinuxOptions", revisions: &[(0, baseline::check_selinux_options)], ..PLAIN },
    Check {
        id: "seccompProfile_baseline",
        revisions: &[(0, seccomp::check_annotations), (19, seccomp::check_fields)],
        ..PLAIN
    },
    Check { id: "sysctls", revisions: &[(0, baseline::check_sysctls)], ..PLAIN },
    Check {
        id: "windowsHostProcess",
        revisions: &[(0, baseline::check_windows_host_process)],
        ..PLAIN
    },
];

/// In the order of messages, after those of the level baseline.
static RESTRICTED: [Check; 6] = [
    Check {
        id: "allowPrivilegeEscalation",
        revisions: &[(8, restricted::check_privilege_escalation)],
        windows_exempt_since: Some(25),
        overrides: None,
    },
    Check {
        id: "capabilities_restricted",
        revisions: &[(22, capabilities::check_dropped)],
        windows_exempt_since: Some(25),
        overrides: Some("capabilities_baseline"),
    },
    Check {
        id: "restrictedVolumes",
        revisions: &[(0, restricted::check_volumes)],
        overrides: Some("hostPathVolumes"),
        ..PLAIN
    },
    Check { id: "runAsNonRoot", revisions: &[(0, restricted::check_run_as_non_root)], ..PLAIN },
    Check { id: "runAsUser", revisions: &[(23, restricted::check_run_as_user)], ..PLAIN },
    Check {
        id: "seccompProfile_restricted",
        revisions: &[(19, seccomp::check_required)],
        windows_exempt_since: Some(25),
        overrides: Some("seccompProfile_baseline"),
    },
];

impl Check {
    /// The revision for a minor version of policies, if they have the check.
    fn revision(&self, minor: u64) -> Option<CheckPod> {
        let applying = self.revisions.iter().rev().find(|(since, _)| *since <= minor);
        applying.map(|(_, check)| *check)
    }

    fn find_violation(&self, pod: PodView<'_>, minor: u64) -> Option<Violation> {
        let check = self.revision(minor)?;
        if pod.is_windows() && self.windows_exempt_since.is_some_and(|since| since <= minor) {
            return None;
        }
        let Finding { reason, detail } = check(pod)?;
        Some(Violation { check: self.id, reason, detail })
    }
}

/// What a pod, or a pod template of another object, violates of a level at a version, in the order of Kubernetes' messages. Takes the
/// metadata (for its annotations) and the spec with defaults; gives nothing if the pod is allowed.
#[must_use]
pub fn find_violations(
    policy: LevelVersion,
    metadata: &ObjectMeta,
    spec: &PodSpec,
    names: &Names,
) -> Vec<Violation> {
    let pod = PodView { annotations: &metadata.annotations, spec, names };
    let minor = policy.version.minor();
    let restricted: &[Check] = match policy.level {
        PodSecurityLevel::Privileged => return Vec::new(),
        PodSecurityLevel::Baseline => &[],
        PodSecurityLevel::Restricted => &RESTRICTED,
    };
    let is_overridden = |id: &str| {
        restricted
            .iter()
            .any(|check| check.overrides == Some(id) && check.revision(minor).is_some())
    };
    let baseline = BASELINE.iter().filter(|check| !is_overridden(check.id));
    baseline.chain(restricted).filter_map(|check| check.find_violation(pod, minor)).collect()
}

#[cfg(test)]
mod tests;
