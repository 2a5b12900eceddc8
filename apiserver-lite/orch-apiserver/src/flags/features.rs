//! Flags that switch versions, features and metrics.

use std::collections::BTreeMap;
use std::time::Duration;

use apiserver_core::config::{AdmissionPlugin, AdmissionSettings, FieldGates, RuntimeConfig};
use proto_api::names::Names;
use proto_daemon::feature_gates::{self, ResolvedGates};
use proto_daemon::flags::FlagError;
use proto_daemon::go_duration;

/// The gate of the admission plugin PodSecurity.
const POD_SECURITY: &str = "PodSecurity";
/// The gate of priority and fairness.
const FAIRNESS: &str = "APIPriorityAndFairness";
/// The gate of the condition of evicted pods.
const DISRUPTION: &str = "PodDisruptionConditions";
/// The release whose hidden metrics may be shown.
const PREVIOUS_RELEASE: &str = "1.24";

/// The flags.
#[derive(clap::Args, Clone, Debug)]
pub struct FeatureFlags {
    /// Versions and resources that are served or not: api/all, api/ga, api/beta, api/alpha, GROUP/VERSION or GROUP/VERSION/RESOURCE, each with =true or =false.
    #[arg(long, value_name = "LIST", value_parser = str::parse::<RuntimeConfig>)]
    runtime_config: Vec<RuntimeConfig>,
    /// Features that are on or off: NAME=true or NAME=false.
    #[arg(long, value_name = "LIST", value_parser = feature_gates::parse)]
    feature_gates: Vec<BTreeMap<String, bool>>,
    /// Time after the start in which /livez does not fail for what has not started yet. No effect: this server starts everything before it answers.
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = go_duration::parse)]
    livez_grace_period: Duration,
    /// Shows the metrics that were hidden since this release. No effect: no metric of this server is hidden.
    #[arg(long, value_name = "RELEASE", value_parser = parse_release)]
    show_hidden_metrics_for_version: Option<String>,
}

/// What the flags say.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Features {
    /// The switched versions.
    pub runtime_config: RuntimeConfig,
    /// Whether priority and fairness may be on.
    pub has_fairness: bool,
    /// The gates of fields.
    pub field_gates: FieldGates,
    /// Whether evicted pods say why they end.
    pub disruption_conditions: bool,
    /// What the log says of flags without effect.
    pub warnings: Vec<String>,
}

impl FeatureFlags {
    /// What the flags say. A feature that is off takes its part from `admission`.
    ///
    /// # Errors
    /// A setting that cannot be.
    pub fn resolve_features(
        self,
        names: &Names,
        admission: &mut AdmissionSettings,
    ) -> Result<Features, FlagError> {
        let runtime_config = self.runtime_config.into_iter().collect::<RuntimeConfig>();
        let refused = |error| FlagError::new(format!("--runtime-config: {error}"));
        let runtime_config = runtime_config.checked(names).map_err(refused)?;
        // Of a setting that is given several times the last counts.
        let gates = self.feature_gates.into_iter().flatten().collect();
        let consulted = [&[POD_SECURITY, FAIRNESS, DISRUPTION][..], &FieldGates::names()].concat();
        let settled = feature_gates::resolve_gates(&[], &consulted, &gates);
        let ResolvedGates { gates, mut warnings } =
            settled.map_err(|errors| FlagError::new(errors.to_string()))?;
        let off = (!gates.is_on(POD_SECURITY)).then_some(AdmissionPlugin::PodSecurity);
        admission.disabled.extend(off);
        if !self.livez_grace_period.is_zero() {
            warnings.push("flag --livez-grace-period has no effect: this server answers once all of it has started".to_owned());
        }
        if self.show_hidden_metrics_for_version.is_some_and(|release| !release.is_empty()) {
            warnings.push("flag --show-hidden-metrics-for-version has no effect: no metric of this server is hidden".to_owned());
        }
        Ok(Features {
            runtime_config,
            has_fairness: gates.is_on(FAIRNESS),
            field_gates: FieldGates::from_names(|gate| gates.is_on(gate)),
            disruption_conditions: gates.is_on(DISRUPTION),
            warnings,
        })
    }
}

fn parse_release(text: &str) -> Result<String, FlagError> {
    match text {
        "" | PREVIOUS_RELEASE => Ok(text.to_owned()),
        _ => Err(FlagError::new(format!(
            "--show-hidden-metrics-for-version must be omitted or have the value '{PREVIOUS_RELEASE}'. Only the previous minor version is allowed"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use apiserver_core::config::FieldGate;
    use clap::Parser;
    use proto_api::names::Profile;

    use super::*;

    #[derive(Parser)]
    struct Alone {
        #[command(flatten)]
        flags: FeatureFlags,
    }

    fn settle(args: &[&str]) -> Result<(Features, bool), String> {
        let alone = Alone::try_parse_from([&["program"], args].concat());
        let flags = alone.map_err(|error| error.to_string())?.flags;
        let mut admission = AdmissionSettings::default();
        let features = flags.resolve_features(Names::new(Profile::Kubernetes), &mut admission);
        let features = features.map_err(|error| error.to_string())?;
        Ok((features, admission.runs(AdmissionPlugin::PodSecurity)))
    }

    #[test]
    fn gates_are_consulted_or_named_once() {
        let (features, pod_security) = settle(&[]).unwrap();
        assert_eq!((features.warnings, pod_security), (Vec::new(), true));
        let (features, pod_security) = settle(&["--feature-gates=PodSecurity=false"]).unwrap();
        assert_eq!((features.warnings, pod_security), (Vec::new(), false));
        let (features, pod_security) = settle(&["--feature-gates=AllBeta=false"]).unwrap();
        assert_eq!((features.warnings.len(), pod_security), (1, false));
        let (features, _) = settle(&["--feature-gates=APIServerTracing=true"]).unwrap();
        let expected = "Feature gate APIServerTracing=true has no effect in this program.";
        assert_eq!(features.warnings, [expected]);
        for (gates, expected) in
            [("PodSecurity=false", true), ("APIPriorityAndFairness=false", false)]
        {
            let (features, _) = settle(&[&format!("--feature-gates={gates}")]).unwrap();
            assert_eq!(features.has_fairness, expected, "{gates}");
            assert_eq!(features.field_gates, FieldGates::default(), "alpha");
        }
        for gate in FieldGate::ALL {
            let on = format!("--feature-gates={}=true", gate.name());
            let (features, _) = settle(&[&on]).unwrap();
            assert_eq!(
                (features.field_gates, features.warnings),
                ([gate].into_iter().collect(), Vec::new())
            );
        }
        assert!(!features.disruption_conditions, "alpha");
        let (features, _) = settle(&["--feature-gates=PodDisruptionConditions=true"]).unwrap();
        assert!(features.disruption_conditions && features.warnings.is_empty());
        for (gates, expected) in [
            (
                "ServerSideApply=false",
                "cannot set feature gate ServerSideApply to false, feature is locked to true",
            ),
            ("Nonsense=true", "unrecognized feature gate: Nonsense"),
            ("PodSecurity=maybe", "must be Name=true or Name=false"),
        ] {
            let error = settle(&[&format!("--feature-gates={gates}")]).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn lists_that_are_given_twice_are_joined() {
        let twice = ["--feature-gates=PodSecurity=false", "--feature-gates=AllAlpha=false"];
        assert!(!settle(&twice).unwrap().1);
        let twice = ["--feature-gates=PodSecurity=false", "--feature-gates=PodSecurity=true"];
        assert!(settle(&twice).unwrap().1, "the last counts");
        let twice = ["--runtime-config=batch/v1=false", "--runtime-config=apps/v1=false"];
        let config = settle(&twice).unwrap().0.runtime_config;
        assert!(
            !config.serves("batch", "v1", "jobs") && !config.serves("apps", "v1", "deployments")
        );
    }

    #[test]
    fn versions_releases_and_periods_are_checked() {
        let args = ["--runtime-config=api/beta=false", "--livez-grace-period=10s"];
        let (features, _) = settle(&args).unwrap();
        assert_eq!(features.warnings.len(), 1, "{:?}", features.warnings);
        assert!(!features.runtime_config.serves("storage", "v1beta1", "csistoragecapacities"));
        assert!(settle(&["--show-hidden-metrics-for-version=1.24"]).is_ok());
        for (arg, expected) in [
            (
                "--runtime-config=example.com/v1=true",
                "--runtime-config: unknown api groups example.com",
            ),
            ("--runtime-config=batch/v1=maybe", "invalid value of batch/v1=maybe"),
            (
                "--show-hidden-metrics-for-version=1.20",
                "Only the previous minor version is allowed",
            ),
            ("--livez-grace-period=soon", "--livez-grace-period"),
        ] {
            let error = settle(&[arg]).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }
}
