//! `optionalOldSelf`: rules that see a stored value, and run without one; and the optionals of all rules.

use super::{definition, definition_with, value, verdict};

/// What a rule of `spec.n` says, with the members of the rule.
fn verdict_of_n(members: &str, new: &str, old: Option<&str>) -> Vec<String> {
    let schema = format!(
        r#"{{"type":"object","properties":{{"spec":{{"type":"object","properties":{{
            "n":{{"type":"integer","x-kubernetes-validations":[{{{members}}}]}}}}}}}}}}"#
    );
    let definition = crate::read_definition(&definition_with(&schema)).expect("a definition");
    let version = definition.versions.first().expect("a version");
    let old = old.map(value);
    version.schema.validate(&value(new), old.as_ref()).iter().map(ToString::to_string).collect()
}

fn object(n: &str) -> String {
    format!(r#"{{"apiVersion":"e.com/v1","kind":"W","metadata":{{"name":"w"}},"spec":{{{n}}}}}"#)
}

#[test]
fn a_rule_with_an_optional_old_value_runs_when_the_object_is_made() {
    let rule = r#""rule":"oldSelf.hasValue() ? self >= oldSelf.value() : self == 1","optionalOldSelf":true,"message":"up from 1""#;
    let (none, one, two) = (object(""), object(r#""n":1"#), object(r#""n":2"#));
    for (new, old, refused) in [
        (&one, None, false),
        (&two, None, true),
        // Not stored yet.
        (&one, Some(&none), false),
        (&two, Some(&none), true),
        (&two, Some(&one), false),
        (&one, Some(&two), true),
        (&none, Some(&two), false),
    ] {
        let found = verdict_of_n(rule, new, old.map(String::as_str));
        assert_eq!(!found.is_empty(), refused, "{new} {old:?}: {found:?}");
    }
    // Without it the rule is one of updates, and its old value no optional.
    let plain = r#""rule":"self >= oldSelf","optionalOldSelf":false"#;
    assert_eq!(verdict_of_n(plain, &one, None), Vec::<String>::new());
    assert_eq!(verdict_of_n(plain, &one, Some(&two)).len(), 1);
}

#[test]
fn messages_see_the_optional() {
    let rule = r#""rule":"self == oldSelf.orValue(self)","optionalOldSelf":true,
        "messageExpression":"'was ' + string(oldSelf.orValue(0))""#;
    let found = verdict_of_n(rule, &object(r#""n":1"#), Some(&object(r#""n":2"#)));
    assert!(found.len() == 1 && found[0].ends_with("was 2"), "{found:?}");
}

#[test]
fn what_no_rule_can_be_is_refused() {
    for (members, expected) in [
        (
            r#""rule":"self == 1","optionalOldSelf":true"#,
            "optionalOldSelf: Invalid value: true: may not be set if oldSelf is not used in rule",
        ),
        (
            r#""rule":"self == 1","optionalOldSelf":false"#,
            "optionalOldSelf: Invalid value: false: may not be set if oldSelf is not used in rule",
        ),
        (
            r#""rule":"self >= oldSelf","optionalOldSelf":true"#,
            "found no matching overload for '_>=_' applied to '(int, optional_type(int))'",
        ),
        (
            r#""rule":"oldSelf.hasValue()""#,
            "found no matching overload for 'hasValue' applied to 'int.()'",
        ),
    ] {
        let schema =
            format!(r#"{{"n":{{"type":"integer","x-kubernetes-validations":[{{{members}}}]}}}}"#);
        let found = crate::validate_definition(&definition(&schema), None);
        let found: Vec<String> = found.iter().map(ToString::to_string).collect();
        assert!(found.iter().any(|error| error.contains(expected)), "{members}: {found:?}");
    }
}

#[test]
fn optionals_are_values_of_all_rules() {
    for rule in [
        "self.spec.?n.orValue(0) == 3 && self.spec.?none.orValue(9) == 9",
        "!self.spec.?none.hasValue() && self.?spec.none == optional.none()",
        "self.?spec.inner.v.value() == 1 && has(self.?spec.inner)",
        "self.spec.list[?0] == optional.of(1) && !self.spec.list[?7].hasValue() && !self.spec.list[?-1].hasValue()",
        "self.spec.map[?'k'].orValue(7) == 1 && self.spec.map[?'zz'].orValue(7) == 7",
        "self.spec.?a__dot__b__dash__c.value() == 7",
        "optional.ofNonZeroValue('').or(optional.of('x')).value() == 'x'",
        "optional.ofNonZeroValue(3) == optional.of(3) && optional.none() != optional.of(3)",
        "self.spec.?n.optMap(n, n + 1).value() == 4 && !self.spec.?none.optMap(n, n + 1).hasValue()",
        "self.spec.?n.optFlatMap(n, optional.ofNonZeroValue(n - 3)) == optional.none()",
        "type(optional.none()) == type(optional.of(1))",
        "true ? self.spec.b : false",
    ] {
        assert_eq!(verdict(rule, None), Vec::<String>::new(), "{rule}");
        assert_eq!(verdict(&format!("!({rule})"), None).len(), 1, "{rule}");
    }
    for (rule, expected) in [
        ("self.spec.?none.value() == 1", "optional.none() dereference evaluating rule"),
        ("self.spec.?zz.hasValue()", "undefined field 'zz'"),
        ("self.spec.?n.orValue('a') == 3", "found no matching overload for 'orValue'"),
        ("self.spec.?n.or(optional.of('a')).hasValue()", "found no matching overload for 'or'"),
        ("self.spec.n.optMap(n, n) == 1", "found no matching overload for 'optMap'"),
        ("self.spec.?n.optFlatMap(n, n) == 1", "found no matching overload for 'optFlatMap'"),
        ("self.spec.?b", "must evaluate to a bool"),
    ] {
        let found = verdict(rule, None);
        assert!(found.len() == 1 && found[0].contains(expected), "{rule}: {found:?}");
    }
}

#[test]
fn what_stands_for_a_missing_value_counts() {
    let errors = |rule: &str| {
        let list = |most: u32, items: &str| {
            format!(r#"{{"type":"array","maxItems":{most},"items":{items}}}"#)
        };
        let text = r#"{"type":"string","maxLength":1}"#;
        let (small, big) = (list(1, text), list(1_000_000, text));
        let (smalls, bigs) = (list(1, &small), list(1, &big));
        let schema = format!(
            r#"{{"o":{{"type":"object","properties":{{"small":{small},"big":{big},"smalls":{smalls},"bigs":{bigs}}},
            "x-kubernetes-validations":[{{"rule":"{rule}"}}]}}}}"#
        );
        let found = crate::validate_definition(&definition(&schema), None);
        found.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    for list in [
        "self.?small.orValue(self.BIG)",
        "self.?small.or(self.?BIG).value()",
        "self.?small.or(optional.of(self.BIG)).orValue([])",
        "optional.of(self.small).orValue(self.BIG)",
        "self.?smalls.orValue(self.BIGs)[0]",
        "self.?smalls.or(self.?BIGs).value()[0]",
        "(has(self.small) ? self.smalls : self.BIGs)[0]",
        "(has(self.small) ? self.BIGs : self.smalls)[0]",
    ] {
        let rule = format!("{list}.all(a, {list}.all(b, a == b || a != b))");
        assert_eq!(errors(&rule.replace("BIG", "small")), Vec::<String>::new(), "{rule}");
        let found = errors(&rule.replace("BIG", "big"));
        let exceeds = |error: &String| error.contains("estimated rule cost exceeds budget");
        assert!(found.iter().any(exceeds), "{rule}: {found:?}");
    }
    // An empty list takes nothing from the type of the items.
    for list in ["self.?small.orValue([])", "(has(self.small) ? [] : self.small)"] {
        let search = |part: &str| format!("{list}.all(a, {list}.all(b, {part}))");
        assert_eq!(errors(&search("a.contains(b)")), Vec::<String>::new());
        let found = errors(&search("a == 1"));
        assert!(found.iter().any(|error| error.contains("no matching overload")), "{found:?}");
    }
}
