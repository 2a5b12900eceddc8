//! Groups of Kubernetes itself: who adds kinds to them says in an annotation who has approved that.

use apiserver_schema::validate::Cause;
use apiserver_schema::{FieldError, Map};
use proto_api::names::Names;

use crate::accepted_names::Condition;
use crate::errors::{ErrorList, Path, quote};

/// Where the annotation is explained.
const EXPLAINED: &str = "see https://github.com/kubernetes/enhancements/pull/1111";

/// What the annotation says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Approval {
    Missing,
    Invalid,
    /// The definition is not approved, and its annotation says `unapproved`.
    Unapproved,
    Approved,
}

impl Approval {
    fn parse(annotation: &str) -> Self {
        match annotation {
            "" => Approval::Missing,
            text if text.starts_with("unapproved") => Approval::Unapproved,
            text if is_url(text) => Approval::Approved,
            _ => Approval::Invalid,
        }
    }

    fn reason(self) -> &'static str {
        match self {
            Approval::Missing => "MissingAnnotation",
            Approval::Invalid => "InvalidAnnotation",
            Approval::Unapproved => "UnapprovedAnnotation",
            Approval::Approved => "ApprovedAnnotation",
        }
    }
}

/// It has a scheme and a host.
fn is_url(text: &str) -> bool {
    let Some((scheme, rest)) = text.split_once("://") else { return false };
    let is_word = |c: char| c.is_ascii_alphanumeric() || "+-.".contains(c);
    let host = rest.split(['/', '?', '#']).next().unwrap_or_default();
    scheme.starts_with(|c: char| c.is_ascii_alphabetic())
        && scheme.chars().all(is_word)
        && !host.is_empty()
        && !text.contains(|c: char| c.is_control() || c == ' ')
}

/// Whether kinds of this group need an approval.
fn is_protected(group: &str, names: &Names) -> bool {
    [names.group_domain(), names.label_domain()].iter().any(|domain| {
        group.strip_suffix(domain).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
    })
}

fn message(approval: Approval, annotation: &str, key: &str) -> String {
    let must = format!("protected groups must have approval annotation {}", quote(key));
    match approval {
        Approval::Missing => format!("{must}, {EXPLAINED}"),
        Approval::Invalid => format!(
            "{must} with either a URL or a reason starting with \"unapproved\", {EXPLAINED}"
        ),
        Approval::Unapproved => format!("not approved: {}", quote(annotation)),
        Approval::Approved => format!("approved in {annotation}"),
    }
}

/// Annotation of a definition that says who has approved it.
fn key(names: &Names) -> String {
    format!("api-approved.{}", names.label_domain())
}

fn annotation<'a>(definition: &'a Map, key: &str) -> &'a str {
    definition.str_at(&["metadata", "annotations", key])
}

/// Checks that a definition of a protected group has the annotation; `old` is the stored one of an update, whose fault may stay.
pub fn validate_approval(new: &Map, old: Option<&Map>, names: &Names) -> Vec<FieldError> {
    let key = key(names);
    let mut errors = ErrorList::default();
    if !is_protected(new.str_at(&["spec", "group"]), names) {
        return errors.0;
    }
    let text = annotation(new, &key);
    let approval = Approval::parse(text);
    if old.is_some_and(|old| Approval::parse(annotation(old, &key)) == approval) {
        return errors.0;
    }
    let path = Path::ROOT.field("metadata.annotations");
    let why = message(approval, text, &key);
    match approval {
        Approval::Missing => errors.required(&path.key(&key), &why),
        Approval::Invalid => {
            errors.push(&path.key(&key), Cause::Invalid, Some(quote(text)), &why);
        }
        Approval::Unapproved | Approval::Approved => {}
    }
    errors.0
}

/// The condition of a definition of a protected group; `None` for other groups.
pub fn approval_condition(definition: &Map, names: &Names) -> Option<Condition> {
    if !is_protected(definition.str_at(&["spec", "group"]), names) {
        return None;
    }
    let key = key(names);
    let text = annotation(definition, &key);
    let approval = Approval::parse(text);
    let good = approval == Approval::Approved;
    Some(Condition {
        kind: "KubernetesAPIApprovalPolicyConformant",
        status: if good { "True" } else { "False" }.to_owned(),
        reason: approval.reason().to_owned(),
        message: message(approval, text, &key),
    })
}

#[cfg(test)]
mod tests {
    use proto_api::names::Profile;

    use super::*;
    use crate::testing::value;

    fn definition(group: &str, annotation: Option<&str>) -> Map {
        let annotation = annotation
            .map_or_else(String::new, |text| format!(r#""api-approved.kubernetes.io":"{text}","#));
        let text = format!(
            r#"{{"metadata":{{"annotations":{{{annotation}"a":"b"}}}},"spec":{{"group":"{group}"}}}}"#
        );
        value(&text).as_map().cloned().expect("a map")
    }

    const GROUP: &str = "things.k8s.io";

    #[test]
    fn protected_groups_need_the_annotation() {
        let names = Names::new(Profile::Kubernetes);
        let missing = "metadata.annotations[api-approved.kubernetes.io]: Required value: protected groups must have approval \
                       annotation \"api-approved.kubernetes.io\", see https://github.com/kubernetes/enhancements/pull/1111";
        let invalid = "metadata.annotations[api-approved.kubernetes.io]: Invalid value: \"x\": protected groups must have approval \
                       annotation \"api-approved.kubernetes.io\" with either a URL or a reason starting with \"unapproved\", \
                       see https://github.com/kubernetes/enhancements/pull/1111";
        for (group, annotation, expect, reason) in [
            ("example.com", None, "", ""),
            ("examplek8s.io", None, "", ""),
            (GROUP, None, missing, "MissingAnnotation"),
            ("k8s.io", Some(""), missing, "MissingAnnotation"),
            ("a.kubernetes.io", Some("x"), invalid, "InvalidAnnotation"),
            (GROUP, Some("https://"), "Invalid value: \"https://\"", "InvalidAnnotation"),
            (GROUP, Some("unapproved, for tests"), "", "UnapprovedAnnotation"),
            (GROUP, Some("https://example.com/1"), "", "ApprovedAnnotation"),
        ] {
            let made = definition(group, annotation);
            let errors = validate_approval(&made, None, names);
            let text: String = errors.iter().map(ToString::to_string).collect();
            assert!(text.contains(expect) && text.is_empty() == expect.is_empty(), "{text}");
            let condition = approval_condition(&made, names);
            let found = condition.as_ref().map_or("", |condition| condition.reason.as_str());
            assert_eq!(found, reason);
            let is_true = condition.is_some_and(|condition| condition.status == "True");
            assert_eq!(is_true, reason == "ApprovedAnnotation");
        }
    }

    #[test]
    fn a_fault_from_before_may_stay_but_none_is_made() {
        let names = Names::new(Profile::Kubernetes);
        for (old, new, count) in [
            (None, None, 0),
            (Some("x"), Some("y"), 0),
            (Some("x"), None, 1),
            (Some("https://a/"), None, 1),
            (None, Some("https://a/"), 0),
        ] {
            let (old, new) = (definition(GROUP, old), definition(GROUP, new));
            assert_eq!(validate_approval(&new, Some(&old), names).len(), count, "{old:?} {new:?}");
        }
    }
}
