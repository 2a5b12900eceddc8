//! Levels and versions of the standards, and the policy of a namespace: which level is enforced, audited and warned of.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use proto_api::names::Names;

use crate::text::quote;

/// How much a pod may do. A greater level allows less.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PodSecurityLevel {
    /// Everything.
    #[default]
    Privileged,
    /// What is not known to escalate privileges.
    Baseline,
    /// What follows the practices of hardening.
    Restricted,
}

impl fmt::Display for PodSecurityLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PodSecurityLevel::Privileged => "privileged",
            PodSecurityLevel::Baseline => "baseline",
            PodSecurityLevel::Restricted => "restricted",
        })
    }
}

impl FromStr for PodSecurityLevel {
    type Err = PolicyLabelError;

    fn from_str(text: &str) -> Result<Self, PolicyLabelError> {
        match text {
            "privileged" => Ok(PodSecurityLevel::Privileged),
            "baseline" => Ok(PodSecurityLevel::Baseline),
            "restricted" => Ok(PodSecurityLevel::Restricted),
            _ => Err(PolicyLabelError::Level),
        }
    }
}

/// The version of Kubernetes whose checks apply. A greater one is newer; one that does not exist yet has the newest checks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PodSecurityVersion {
    /// `v1.N`.
    V1(u64),
    #[default]
    Latest,
}

impl PodSecurityVersion {
    /// The minor version, the greatest for `latest`.
    pub(crate) fn minor(self) -> u64 {
        match self {
            PodSecurityVersion::V1(minor) => minor,
            PodSecurityVersion::Latest => u64::MAX,
        }
    }
}

impl fmt::Display for PodSecurityVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PodSecurityVersion::V1(minor) => write!(f, "v1.{minor}"),
            PodSecurityVersion::Latest => f.write_str("latest"),
        }
    }
}

impl FromStr for PodSecurityVersion {
    type Err = PolicyLabelError;

    fn from_str(text: &str) -> Result<Self, PolicyLabelError> {
        if text == "latest" {
            return Ok(PodSecurityVersion::Latest);
        }
        let digits = text.strip_prefix("v1.").ok_or(PolicyLabelError::Version)?;
        let padded = digits.len() > 1 && digits.starts_with('0');
        if padded || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(PolicyLabelError::Version);
        }
        // Go reads it as a signed integer.
        let minor = digits.parse::<i64>().map_err(|_| PolicyLabelError::Version)?;
        Ok(PodSecurityVersion::V1(minor.unsigned_abs()))
    }
}

/// Why a label is refused, in Kubernetes' words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PolicyLabelError {
    /// It is no level.
    #[error("must be one of privileged, baseline, restricted")]
    Level,
    /// It is no version.
    #[error("must be \"latest\" or \"v1.x\"")]
    Version,
}

/// A level at a version, written as `restricted:latest`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct LevelVersion {
    pub level: PodSecurityLevel,
    /// The version of its checks.
    pub version: PodSecurityVersion,
}

impl fmt::Display for LevelVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.level, self.version)
    }
}

/// The policy of a namespace. The default is that of a cluster without configuration: `privileged:latest` for all three.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct NamespacePolicy {
    /// Pods that violate it are refused.
    pub enforce: LevelVersion,
    /// Violations of it are noted in the audit log.
    pub audit: LevelVersion,
    /// Violations of it are answered with a warning.
    pub warn: LevelVersion,
}

/// A label with a value that is no level or no version. Its text is that of the field's error in a 422.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("metadata.labels[{label}]: Invalid value: {}: {error}", quote(.value))]
pub struct LabelProblem {
    /// The label's key.
    pub label: String,
    /// The label's value.
    pub value: String,
    /// What is wrong with it.
    pub error: PolicyLabelError,
}

impl LabelProblem {
    /// The label's path in the namespace, `metadata.labels[<key>]`.
    #[must_use]
    pub fn field(&self) -> String {
        format!("metadata.labels[{}]", self.label)
    }
}

/// The policy that the labels of a namespace ask for, and the labels that are invalid. What has no label is as in `defaults`. The
/// policy holds even if labels are invalid: a level is then `restricted` if enforced and `privileged` if not, a version `latest`.
#[must_use]
pub fn read_policy(
    labels: &BTreeMap<String, String>,
    defaults: NamespacePolicy,
    names: &Names,
) -> (NamespacePolicy, Vec<LabelProblem>) {
    let mut reader = LabelReader { labels, names, problems: Vec::new() };
    let policy = NamespacePolicy {
        enforce: reader.read_mode("enforce", defaults.enforce, PodSecurityLevel::Restricted),
        audit: reader.read_mode("audit", defaults.audit, PodSecurityLevel::Privileged),
        warn: reader.read_mode("warn", defaults.warn, PodSecurityLevel::Privileged),
    };
    (policy, reader.problems)
}

struct LabelReader<'a> {
    labels: &'a BTreeMap<String, String>,
    names: &'a Names,
    problems: Vec<LabelProblem>,
}

impl LabelReader<'_> {
    fn read_mode(
        &mut self,
        mode: &str,
        absent: LevelVersion,
        invalid: PodSecurityLevel,
    ) -> LevelVersion {
        let level = self.read_label(mode, absent.level, invalid);
        let version = format!("{mode}-version");
        LevelVersion {
            level,
            version: self.read_label(&version, absent.version, PodSecurityVersion::Latest),
        }
    }

    fn read_label<T: FromStr<Err = PolicyLabelError>>(
        &mut self,
        name: &str,
        absent: T,
        invalid: T,
    ) -> T {
        let labels = self.labels;
        let label = self.names.sub_label("pod-security", name);
        let Some(value) = labels.get(&label) else { return absent };
        match value.parse() {
            Ok(read) => read,
            Err(error) => {
                self.problems.push(LabelProblem { label, value: value.clone(), error });
                invalid
            }
        }
    }
}

#[cfg(test)]
mod tests;
