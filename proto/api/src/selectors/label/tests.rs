//! Tables and properties of label selectors.

use super::*;
use crate::meta::v1::LabelSelectorRequirement;
use proptest::prelude::*;

fn labels(text: &str) -> BTreeMap<String, String> {
    text.split(',')
        .filter_map(|pair| pair.split_once('='))
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .collect()
}

#[test]
fn selectors_match_labels() {
    let cases = [
        ("", "a=1", true),
        ("a=1", "a=1,b=2", true),
        ("a==1", "a=1", true),
        ("a = 1 , b = 2", "a=1,b=2", true),
        ("a=1", "a=2", false),
        ("a=1", "", false),
        ("a=", "a=", true),
        ("a=", "", false),
        ("a!=1", "a=2", true),
        ("a!=1", "", true),
        ("a!=1", "a=1", false),
        ("a", "a=1", true),
        ("a", "b=1", false),
        ("!a", "b=1", true),
        ("!a", "a=1", false),
        ("a in (1,2)", "a=2", true),
        ("a in (1, 2)", "a=3", false),
        ("a in (,1)", "a=", true),
        ("a notin (1,2)", "a=3", true),
        ("a notin (1,2)", "b=1", true),
        ("a notin (1,2)", "a=1", false),
        ("a>3", "a=4", true),
        ("a>3", "a=3", false),
        ("a<3", "a=2", true),
        ("a<3", "a=x", false),
        ("a<3", "", false),
        ("in in (in)", "in=in", true),
        ("x.io/a=1,!b", "x.io/a=1", true),
    ];
    for (text, given, matches) in cases {
        let selector = Selector::parse(text).unwrap_or_else(|e| panic!("{text}: {e}"));
        assert_eq!(selector.matches(&labels(given)), matches, "{text:?} on {given:?}");
    }
}

#[test]
fn malformed_texts_are_refused() {
    let texts = [
        ",",
        "a,",
        "a=1,,b",
        "=1",
        "a in 1",
        "a in (1",
        "a in (1,2",
        "a b",
        "(a)",
        "!",
        "!a=1",
        "a!",
        "a>x",
        "-a",
        "a/b/c",
        "/a",
        "UPPER/a",
        "a=b/c",
        "a=-",
    ];
    for text in texts {
        assert!(Selector::parse(text).is_err(), "{text:?}");
    }
    let long = "a".repeat(64);
    assert!(Selector::parse(&long).is_err());
    assert!(Selector::parse(&format!("a={long}")).is_err());
}

#[test]
fn typed_selectors_name_the_wrong_field() {
    let requirement = |key: &str, operator: &str, values: &[&str]| LabelSelectorRequirement {
        key: key.to_owned(),
        operator: operator.to_owned(),
        values: values.iter().map(|v| (*v).to_owned()).collect(),
    };
    let read = |expressions: Vec<LabelSelectorRequirement>| {
        let selector =
            LabelSelector { match_labels: labels("a=1"), match_expressions: expressions };
        Selector::from_label_selector(&selector, "spec.selector")
    };
    let good = read(vec![
        requirement("b", "In", &["y", "x"]),
        requirement("c", "Exists", &[]),
        requirement("d", "DoesNotExist", &[]),
        requirement("e", "NotIn", &["z"]),
    ]);
    assert_eq!(good.unwrap().to_string(), "a=1,b in (x,y),c,!d,e!=z");

    let error = read(vec![requirement("b", "Is", &[])]).unwrap_err();
    let text = "spec.selector.matchExpressions[0].operator: \"Is\" is not a valid label selector \
                operator";
    assert_eq!(error.to_string(), text);
    let error = read(vec![requirement("b", "In", &[])]).unwrap_err().to_string();
    assert!(
        error.starts_with("spec.selector.matchExpressions[0]: values must be given"),
        "{error}"
    );
    assert!(read(vec![requirement("b", "Exists", &["x"])]).is_err());
    assert!(read(vec![requirement("-", "Exists", &[])]).is_err());
}

fn any_selector() -> impl Strategy<Value = Selector> {
    let operator = prop_oneof![
        Just(Operator::In),
        Just(Operator::NotIn),
        Just(Operator::Exists),
        Just(Operator::DoesNotExist),
        Just(Operator::GreaterThan),
        Just(Operator::LessThan),
    ];
    let words = prop::collection::btree_set("[a-z0-9]{0,3}", 1..4);
    let requirement =
        ("[a-z]{1,3}", operator, words, any::<i64>()).prop_map(|(key, operator, words, number)| {
            let values = match operator {
                Operator::In | Operator::NotIn => words,
                Operator::Exists | Operator::DoesNotExist => BTreeSet::new(),
                Operator::GreaterThan | Operator::LessThan => {
                    BTreeSet::from([(number & i64::MAX).to_string()])
                }
            };
            Requirement { key, operator, values }
        });
    prop::collection::vec(requirement, 0..4).prop_map(Selector::sorted)
}

proptest! {
    #[test]
    fn formatted_label_selectors_parse_back(selector in any_selector()) {
        prop_assert_eq!(Selector::parse(&selector.to_string()).unwrap(), selector);
    }

    #[test]
    fn any_text_is_read_or_refused(text in "[a1 ,=!<>()/.-]{0,16}") {
        let _ = Selector::parse(&text);
    }

    #[test]
    fn a_map_is_the_conjunction_of_its_pairs(
        wanted in prop::collection::btree_map("[ab]", "[xy]", 0..3),
        given in prop::collection::btree_map("[ab]", "[xy]", 0..3),
    ) {
        let all = wanted.iter().all(|(key, value)| given.get(key) == Some(value));
        prop_assert_eq!(Selector::from_map(&wanted).matches(&given), all);
    }
}
