use proptest::prelude::*;
use proto_api::names::Profile;

use super::*;

fn names() -> &'static Names {
    Names::new(Profile::Kubernetes)
}

fn at(level: PodSecurityLevel, version: PodSecurityVersion) -> LevelVersion {
    LevelVersion { level, version }
}

const PRIVILEGED: LevelVersion =
    LevelVersion { level: PodSecurityLevel::Privileged, version: PodSecurityVersion::Latest };

fn label_map(labels: &[(&str, &str)]) -> BTreeMap<String, String> {
    let full = |(name, value): &(&str, &str)| {
        (format!("pod-security.kubernetes.io/{name}"), (*value).to_owned())
    };
    labels.iter().map(full).chain([("other".to_owned(), "label".to_owned())]).collect()
}

#[test]
fn versions_are_read_as_kubernetes_reads_them() {
    for (text, read) in [
        ("latest", Some(PodSecurityVersion::Latest)),
        ("v1.0", Some(PodSecurityVersion::V1(0))),
        ("v1.7", Some(PodSecurityVersion::V1(7))),
        ("v1.25", Some(PodSecurityVersion::V1(25))),
        ("v1.10000", Some(PodSecurityVersion::V1(10000))),
        ("v1.9223372036854775807", Some(PodSecurityVersion::V1(9_223_372_036_854_775_807))),
        ("v1.9223372036854775808", None),
        ("v1.99999999999999999999999999", None),
        ("", None),
        ("foo", None),
        ("Latest", None),
        ("latest ", None),
        ("v1", None),
        ("v1.", None),
        ("1.1", None),
        ("v2.0", None),
        ("v1.01", None),
        ("v1.00", None),
        ("v1.-1", None),
        ("v1.+1", None),
        ("v1.1.1", None),
        ("v1.1\n", None),
        ("v1.١", None),
    ] {
        assert_eq!(text.parse::<PodSecurityVersion>().ok(), read, "{text:?}");
    }
}

#[test]
fn levels_are_ordered_and_read_exactly() {
    for level in
        [PodSecurityLevel::Privileged, PodSecurityLevel::Baseline, PodSecurityLevel::Restricted]
    {
        assert_eq!(level.to_string().parse::<PodSecurityLevel>(), Ok(level));
    }
    for text in ["", "Baseline", "restricted ", "restricted:latest", "none"] {
        assert_eq!(text.parse::<PodSecurityLevel>(), Err(PolicyLabelError::Level), "{text:?}");
    }
    assert!(
        PodSecurityLevel::Privileged < PodSecurityLevel::Baseline
            && PodSecurityLevel::Baseline < PodSecurityLevel::Restricted
    );
    assert!(
        PodSecurityVersion::V1(9) < PodSecurityVersion::V1(10)
            && PodSecurityVersion::V1(u64::MAX) < PodSecurityVersion::Latest
    );
}

#[test]
fn levels_at_versions_are_written_with_a_colon() {
    assert_eq!(LevelVersion::default().to_string(), "privileged:latest");
    assert_eq!(
        at(PodSecurityLevel::Restricted, PodSecurityVersion::V1(25)).to_string(),
        "restricted:v1.25"
    );
}

/// Labels, and what is enforced, audited and warned of.
type Row<'a> = (&'a [(&'a str, &'a str)], LevelVersion, LevelVersion, LevelVersion);

#[test]
fn labels_make_a_policy() {
    let (v20, v21, v22) =
        (PodSecurityVersion::V1(20), PodSecurityVersion::V1(21), PodSecurityVersion::V1(22));
    let rows: [Row<'_>; 7] = [
        (&[], PRIVILEGED, PRIVILEGED, PRIVILEGED),
        // Kubernetes warns of what is enforced since 1.26 only.
        (
            &[("enforce", "baseline")],
            at(PodSecurityLevel::Baseline, PodSecurityVersion::Latest),
            PRIVILEGED,
            PRIVILEGED,
        ),
        (
            &[("warn", "restricted")],
            PRIVILEGED,
            PRIVILEGED,
            at(PodSecurityLevel::Restricted, PodSecurityVersion::Latest),
        ),
        (
            &[("audit", "baseline")],
            PRIVILEGED,
            at(PodSecurityLevel::Baseline, PodSecurityVersion::Latest),
            PRIVILEGED,
        ),
        (
            &[("enforce-version", "v1.20")],
            at(PodSecurityLevel::Privileged, v20),
            PRIVILEGED,
            PRIVILEGED,
        ),
        (
            &[
                ("enforce", "baseline"),
                ("enforce-version", "v1.20"),
                ("warn", "restricted"),
                ("warn-version", "v1.21"),
                ("audit", "restricted"),
                ("audit-version", "v1.22"),
            ],
            at(PodSecurityLevel::Baseline, v20),
            at(PodSecurityLevel::Restricted, v22),
            at(PodSecurityLevel::Restricted, v21),
        ),
        (&[("Enforce", "baseline"), ("enforce-", "x")], PRIVILEGED, PRIVILEGED, PRIVILEGED),
    ];
    for (labels, enforce, audit, warn) in rows {
        let (policy, problems) =
            read_policy(&label_map(labels), NamespacePolicy::default(), names());
        assert_eq!(policy, NamespacePolicy { enforce, audit, warn }, "{labels:?}");
        assert!(problems.is_empty(), "{labels:?}: {problems:?}");
    }
}

#[test]
fn namespaces_without_labels_have_the_default_policy() {
    let defaults = NamespacePolicy {
        enforce: at(PodSecurityLevel::Baseline, PodSecurityVersion::V1(10)),
        audit: at(PodSecurityLevel::Restricted, PodSecurityVersion::V1(11)),
        warn: at(PodSecurityLevel::Restricted, PodSecurityVersion::V1(12)),
    };
    assert_eq!(read_policy(&BTreeMap::new(), defaults, names()), (defaults, Vec::new()));
    let labels = label_map(&[("enforce", "privileged"), ("warn-version", "latest")]);
    let (policy, _) = read_policy(&labels, defaults, names());
    assert_eq!(policy.enforce, at(PodSecurityLevel::Privileged, PodSecurityVersion::V1(10)));
    assert_eq!(policy.audit, defaults.audit);
    assert_eq!(policy.warn, at(PodSecurityLevel::Restricted, PodSecurityVersion::Latest));
}

#[test]
fn invalid_labels_are_errors_and_only_enforcement_fails_closed() {
    let labels = label_map(&[
        ("enforce", "a\"b"),
        ("enforce-version", "v1.x"),
        ("audit", ""),
        ("audit-version", "25"),
        ("warn", "Restricted"),
        ("warn-version", "newest"),
    ]);
    let strict = at(PodSecurityLevel::Restricted, PodSecurityVersion::V1(3));
    let defaults = NamespacePolicy { enforce: strict, audit: strict, warn: strict };
    let (policy, problems) = read_policy(&labels, defaults, names());
    let enforce = at(PodSecurityLevel::Restricted, PodSecurityVersion::Latest);
    assert_eq!(policy, NamespacePolicy { enforce, audit: PRIVILEGED, warn: PRIVILEGED });
    let texts: Vec<String> = problems.iter().map(LabelProblem::to_string).collect();
    let level = "must be one of privileged, baseline, restricted";
    let version = "must be \"latest\" or \"v1.x\"";
    let line = |name: &str, value: &str, why: &str| {
        format!("metadata.labels[pod-security.kubernetes.io/{name}]: Invalid value: {value}: {why}")
    };
    assert_eq!(
        texts,
        [
            line("enforce", r#""a\"b""#, level),
            line("enforce-version", r#""v1.x""#, version),
            line("audit", r#""""#, level),
            line("audit-version", r#""25""#, version),
            line("warn", r#""Restricted""#, level),
            line("warn-version", r#""newest""#, version),
        ]
    );
    assert_eq!(problems[0].field(), "metadata.labels[pod-security.kubernetes.io/enforce]");
    assert_eq!((problems[0].value.as_str(), problems[0].error), ("a\"b", PolicyLabelError::Level));
}

#[test]
fn labels_have_the_names_of_the_profile() {
    let domain = "example.test".to_owned();
    let own = Names::new(Profile::Orch { domain });
    let kubernetes = label_map(&[("enforce", "restricted")]);
    assert_eq!(
        read_policy(&kubernetes, NamespacePolicy::default(), own).0,
        NamespacePolicy::default()
    );
    let label = "pod-security.example.test/enforce".to_owned();
    let labels = BTreeMap::from([(label.clone(), "baseline".to_owned())]);
    assert_eq!(
        read_policy(&labels, NamespacePolicy::default(), own).0.enforce.level,
        PodSecurityLevel::Baseline
    );
    let labels = BTreeMap::from([(label.clone(), "x".to_owned())]);
    assert_eq!(read_policy(&labels, NamespacePolicy::default(), own).1[0].label, label);
}

proptest! {
    #[test]
    fn a_version_that_is_read_is_written_the_same(text in "latest|v1\\.[0-9]{0,25}|\\PC{0,8}") {
        match text.parse::<PodSecurityVersion>() {
            Ok(version) => prop_assert_eq!(version.to_string(), text),
            Err(error) => prop_assert_eq!(error, PolicyLabelError::Version),
        }
    }

    #[test]
    fn every_minor_version_is_read(minor in 0..=i64::MAX) {
        let version = PodSecurityVersion::V1(minor.unsigned_abs());
        prop_assert_eq!(version.to_string().parse::<PodSecurityVersion>(), Ok(version));
    }

    #[test]
    fn each_invalid_label_is_one_problem(values in prop::array::uniform6("baseline|latest|\\PC{0,6}")) {
        let modes = ["enforce", "enforce-version", "audit", "audit-version", "warn", "warn-version"];
        let labels: Vec<(&str, &str)> =
            modes.into_iter().zip(values.iter().map(String::as_str)).collect();
        let (_, problems) = read_policy(&label_map(&labels), NamespacePolicy::default(), names());
        let is_invalid = |(mode, value): &&(&str, &str)| match mode.ends_with("version") {
            true => value.parse::<PodSecurityVersion>().is_err(),
            false => value.parse::<PodSecurityLevel>().is_err(),
        };
        prop_assert_eq!(problems.len(), labels.iter().filter(is_invalid).count());
    }
}
