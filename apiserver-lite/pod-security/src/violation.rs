//! A violation, and the texts that users read of violations.

use std::fmt;

use crate::policy::LevelVersion;

/// What a pod may not do at a level, in Kubernetes' words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The check that found it, by Kubernetes' name: `runAsNonRoot`.
    pub check: &'static str,
    /// What is wrong, the same for all pods: `runAsNonRoot != true`.
    pub reason: &'static str,
    /// Which containers, volumes and values: `pod must not set securityContext.runAsNonRoot=false`.
    pub detail: String,
}

/// The reason, and the detail in parentheses.
impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.detail.as_str() {
            "" => f.write_str(self.reason),
            detail => write!(f, "{} ({detail})", self.reason),
        }
    }
}

/// All violations with their details, separated by commas.
#[must_use]
pub fn describe_violations(violations: &[Violation]) -> String {
    let texts: Vec<String> = violations.iter().map(Violation::to_string).collect();
    texts.join(", ")
}

/// The reasons of all violations, separated by commas.
#[must_use]
pub fn list_reasons(violations: &[Violation]) -> String {
    let reasons: Vec<&str> = violations.iter().map(|violation| violation.reason).collect();
    reasons.join(", ")
}

/// Why a pod is forbidden, the part of the 403 after `pods "<name>" is forbidden: `.
#[must_use]
pub fn describe_refusal(policy: LevelVersion, violations: &[Violation]) -> String {
    format!("violates PodSecurity \"{policy}\": {}", describe_violations(violations))
}

/// The warning for a pod or a template that is admitted all the same; also the value of the audit annotation.
#[must_use]
pub fn describe_warning(policy: LevelVersion, violations: &[Violation]) -> String {
    format!("would violate PodSecurity \"{policy}\": {}", describe_violations(violations))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{PodSecurityLevel, PodSecurityVersion};

    fn violation(reason: &'static str, detail: &str) -> Violation {
        Violation { check: "", reason, detail: detail.to_owned() }
    }

    #[test]
    fn violations_are_joined_as_in_kubernetes() {
        let policy =
            LevelVersion { level: PodSecurityLevel::Baseline, version: PodSecurityVersion::V1(25) };
        let two = [violation("privileged", ""), violation("hostPort", "violates 80")];
        for (violations, described, reasons) in [
            (&two[..0], "", ""),
            (&two[..1], "privileged", "privileged"),
            (&two[..], "privileged, hostPort (violates 80)", "privileged, hostPort"),
        ] {
            assert_eq!(describe_violations(violations), described);
            assert_eq!(list_reasons(violations), reasons);
            assert_eq!(
                describe_refusal(policy, violations),
                format!("violates PodSecurity \"baseline:v1.25\": {described}")
            );
            assert_eq!(
                describe_warning(policy, violations),
                format!("would violate PodSecurity \"baseline:v1.25\": {described}")
            );
        }
    }
}
