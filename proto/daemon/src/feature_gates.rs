//! `--feature-gates`: features switched on or off by name. Names and maturity of gates are data ([`known`]); each program declares which of them it
//! consults.

mod kubernetes_gates;

use std::collections::BTreeMap;

pub use kubernetes_gates::KNOWN;

/// How mature a feature is, which decides its default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Off unless switched on.
    Alpha,
    /// On unless switched off.
    Beta,
    /// Off unless switched on, although it is beta: a new API, or a risk to running systems.
    BetaOff,
    /// Always on; setting it is reported with a warning.
    Stable,
    /// To be removed; setting it is reported with a warning. Off unless switched on.
    Deprecated,
}

/// A feature that can be switched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gate {
    pub name: &'static str,
    /// How mature it is.
    pub stage: Stage,
}

impl Gate {
    /// A gate.
    pub const fn new(name: &'static str, stage: Stage) -> Self {
        Self { name, stage }
    }

    /// Whether it is on by default.
    pub const fn by_itself(&self) -> bool {
        matches!(self.stage, Stage::Beta | Stage::Stable)
    }

    /// The gate that switches it along with others.
    const fn group(&self) -> Option<&'static str> {
        match self.stage {
            Stage::Alpha => Some(ALL_ALPHA),
            Stage::Beta | Stage::BetaOff => Some(ALL_BETA),
            Stage::Stable | Stage::Deprecated => None,
        }
    }
}

/// Switches every alpha gate that is not set by name.
pub const ALL_ALPHA: &str = "AllAlpha";
/// Switches every beta gate that is not set by name.
pub const ALL_BETA: &str = "AllBeta";

/// Which features are on in this process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FeatureGates {
    on: BTreeMap<&'static str, bool>,
}

/// What is wrong with one setting.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GateError {
    /// No gate of that name.
    #[error("unrecognized feature gate: {0}")]
    Unknown(String),
    /// A stable feature cannot be switched off.
    #[error("cannot set feature gate {0} to false, feature is locked to true")]
    Locked(String),
    /// It is not `Name=true` or `Name=false`.
    #[error("{0:?} must be Name=true or Name=false")]
    Malformed(String),
}

/// All invalid settings of the flag.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("--feature-gates: {}", join(.0))]
pub struct GateErrors(pub Vec<GateError>);

fn join(errors: &[GateError]) -> String {
    let lines: Vec<String> = errors.iter().map(ToString::to_string).collect();
    lines.join("; ")
}

/// The features, and what to warn of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResolvedGates {
    /// The features.
    pub gates: FeatureGates,
    /// A line for each setting of a gate that is deprecated, stable or not consulted by this program, and of a group with such gates.
    pub warnings: Vec<String>,
}

/// Reads `A=true,B=false`, the form of the flag.
pub fn parse(text: &str) -> Result<BTreeMap<String, bool>, GateError> {
    let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
    parts
        .map(|part| {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            match value.trim() {
                "true" | "True" | "TRUE" | "t" | "T" | "1" => Ok((name.trim().to_owned(), true)),
                "false" | "False" | "FALSE" | "f" | "F" | "0" => {
                    Ok((name.trim().to_owned(), false))
                }
                _ => Err(GateError::Malformed(part.to_owned())),
            }
        })
        .collect()
}

/// Decides which features are on. `own` are gates of this program in addition to the [`KNOWN`] ones, `consulted` the names that change its behaviour.
///
/// # Errors
/// All invalid settings.
pub fn resolve_gates(
    own: &'static [Gate],
    consulted: &[&str],
    settings: &BTreeMap<String, bool>,
) -> Result<ResolvedGates, GateErrors> {
    let gates = || KNOWN.iter().chain(own);
    let mut settled = ResolvedGates::default();
    let mut faults = Vec::new();
    let all = |name: &str| settings.get(name).copied();
    for gate in gates() {
        let group = gate.group().and_then(all);
        settled.gates.on.insert(gate.name, group.unwrap_or(gate.by_itself()));
    }
    for (name, on) in settings {
        if name == ALL_ALPHA || name == ALL_BETA {
            let is_idle = |gate: &&Gate| {
                gate.group() == Some(name.as_str())
                    && *on != gate.by_itself()
                    && !consulted.contains(&gate.name)
            };
            let idle = gates().filter(is_idle).count();
            if idle > 0 {
                settled.warnings.push(format!(
                    "Feature gate {name}={on} has no effect in this program on {idle} of its features."
                ));
            }
            continue;
        }
        let Some(gate) = gates().find(|gate| gate.name == name) else {
            faults.push(GateError::Unknown(name.clone()));
            continue;
        };
        if gate.stage == Stage::Stable && !on {
            faults.push(GateError::Locked(name.clone()));
            continue;
        }
        settled.gates.on.insert(gate.name, *on);
        settled.warnings.extend(warning(gate, *on, consulted));
    }
    if faults.is_empty() { Ok(settled) } else { Err(GateErrors(faults)) }
}

fn warning(gate: &Gate, on: bool, consulted: &[&str]) -> Option<String> {
    let name = gate.name;
    match gate.stage {
        Stage::Stable => Some(format!(
            "Setting GA feature gate {name}={on}. It will be removed in a future release."
        )),
        Stage::Deprecated => Some(format!(
            "Setting deprecated feature gate {name}={on}. It will be removed in a future release."
        )),
        _ if on != gate.by_itself() && !consulted.contains(&name) => {
            Some(format!("Feature gate {name}={on} has no effect in this program."))
        }
        _ => None,
    }
}

impl FeatureGates {
    /// Whether a feature is on; an unknown one is off.
    pub fn is_on(&self, name: &str) -> bool {
        self.on.get(name).copied().unwrap_or(false)
    }

    /// All gates by name, for `/configz` and metrics.
    pub fn all(&self) -> impl Iterator<Item = (&'static str, bool)> {
        self.on.iter().map(|(name, on)| (*name, *on))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: &[Gate] =
        &[Gate::new("OwnAlpha", Stage::Alpha), Gate::new("OwnOld", Stage::Deprecated)];

    fn settled(text: &str) -> Result<ResolvedGates, Vec<String>> {
        let settings = parse(text).map_err(|error| vec![error.to_string()])?;
        resolve_gates(OWN, &["SeccompDefault"], &settings)
            .map_err(|faults| faults.0.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn maturity_decides_unless_a_setting_does() {
        let on = |text, name| settled(text).expect("valid").gates.is_on(name);
        for (text, name, expected) in [
            ("", "SeccompDefault", true),
            ("", "APIServerIdentity", false),
            ("", "ServerSideApply", true),
            ("", "Nothing", false),
            ("SeccompDefault=false", "SeccompDefault", false),
            ("AllAlpha=true", "APIServerIdentity", true),
            ("AllAlpha=true", "OwnAlpha", true),
            ("AllAlpha=true,OwnAlpha=false", "OwnAlpha", false),
            ("AllAlpha=true", "OwnOld", false),
            ("AllBeta=false", "SeccompDefault", false),
            ("AllBeta=false", "ServerSideApply", true),
            ("AllBeta=false,SeccompDefault=true", "SeccompDefault", true),
        ] {
            assert_eq!(on(text, name), expected, "{text} {name}");
        }
    }

    #[test]
    fn every_error_is_reported() {
        let faults =
            settled("Nonsense=true,ServerSideApply=false,Other=false").expect_err("faults");
        assert_eq!(faults.len(), 3, "{faults:?}");
        assert!(faults.iter().any(|fault| fault.contains("unrecognized feature gate: Nonsense")));
        assert!(faults.iter().any(|fault| fault.contains("locked to true")));
        assert!(settled("SeccompDefault").is_err());
    }

    #[test]
    fn unused_and_deprecated_feature_gates_have_warnings() {
        let warnings = |text| settled(text).expect("valid").warnings.len();
        assert_eq!(warnings("SeccompDefault=false"), 0, "consulted");
        assert_eq!(warnings("ReadWriteOncePod=true"), 1, "not consulted");
        assert_eq!(warnings("ReadWriteOncePod=false"), 0, "as it is");
        assert_eq!(warnings("ServerSideApply=true"), 1, "stable");
        assert_eq!(warnings("OwnOld=true"), 1, "deprecated");
        assert_eq!(warnings("AllAlpha=true"), 1, "most are not consulted");
        assert_eq!(warnings("AllAlpha=false"), 0, "as it is");
        let all = settled("AllBeta=false").expect("valid").warnings;
        assert!(
            all[0].starts_with("Feature gate AllBeta=false has no effect in this program on "),
            "{all:?}"
        );
    }

    #[test]
    fn no_gate_stands_twice() {
        let mut names: Vec<_> = KNOWN.iter().map(|gate| gate.name).collect();
        names.sort_unstable();
        let all = names.len();
        names.dedup();
        assert_eq!(names.len(), all);
    }

    #[test]
    fn gates_of_release_1_25_have_their_stage() {
        let stages = [
            (
                Stage::Alpha,
                "APIServerIdentity APIServerTracing CSINodeExpandSecret JobPodFailurePolicy PodDisruptionConditions
                 NodeOutOfServiceVolumeDetach ReadWriteOncePod RecoverVolumeExpansionFailure",
            ),
            (
                Stage::Beta,
                "APIListChunking APIPriorityAndFairness APIResponseCompression AnyVolumeDataSource RemainingItemCount
                 ServerSideFieldValidation OpenAPIV3 OpenAPIEnums LegacyServiceAccountTokenNoAutoGeneration PodSecurity
                 SeccompDefault CustomResourceValidationExpressions CronJobTimeZone",
            ),
            (
                Stage::Stable,
                "ServerSideApply DryRun WatchBookmark EfficientWatchResumption WarningHeaders TokenRequest
                 TokenRequestProjection BoundServiceAccountTokenVolume RootCAConfigMap ServiceAccountIssuerDiscovery
                 CSIStorageCapacity CSIServiceAccountToken CSIVolumeFSGroupPolicy CSIDriverRegistry CSINodeInfo
                 CSIInlineVolume CSIMigration ExpandCSIVolumes ExpandPersistentVolumes ExpandInUsePersistentVolumes
                 GenericEphemeralVolume PersistentLocalVolumes StorageObjectInUseProtection EndpointSlice",
            ),
        ];
        for (stage, names) in stages {
            for name in names.split_whitespace() {
                let found = KNOWN.iter().find(|gate| gate.name == name).map(|gate| gate.stage);
                assert_eq!(found, Some(stage), "{name}");
            }
        }
        assert!(KNOWN.iter().all(|gate| gate.name != "DynamicKubeletConfig"), "it is removed");
    }
}
