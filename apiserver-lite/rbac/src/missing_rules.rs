//! The rules that a user lacks to grant others.

use std::collections::{BTreeMap, HashSet};

use crate::owned_rules::{ComparisonBudget, ComparisonsExceeded, OwnedRules};
use crate::rule::Rule;

/// Most combinations of verb, group, resource and name that rules are taken apart into. What goes beyond has to be covered whole, by
/// one rule.
const PARTS_MAX: usize = 10_000;
/// Most rules that a message lists.
const LISTED_MAX: usize = 100;
/// Longest text of one rule in a message, in characters.
const RULE_LEN_MAX: usize = 1000;

/// The parts of `wanted` that `owned` does not allow, each a rule of one verb, group, resource and name; none if everything is
/// covered. As in Kubernetes, one owned rule has to allow the whole part.
///
/// # Errors
/// The rules are so many that comparing them would take too long.
pub fn missing_rules(owned: &[Rule], wanted: &[Rule]) -> Result<Vec<Rule>, ComparisonsExceeded> {
    let owned = OwnedRules::from_rules(owned);
    let mut comparisons = ComparisonBudget::default();
    let mut missing = Vec::new();
    let mut budget = PARTS_MAX;
    for rule in wanted {
        if owned.cover(rule, &mut comparisons)? {
            continue;
        }
        let Some(left) = budget.checked_sub(count_parts(rule)) else {
            missing.push(rule.clone());
            continue;
        };
        budget = left;
        for part in split_rule(rule) {
            if !owned.cover(&part, &mut comparisons)? {
                missing.push(part);
            }
        }
    }
    Ok(missing)
}

/// What has to be added to `owned` so that it allows all of `wanted`. Where the rules are too many to be compared, those that `owned` does not have as
/// they stand.
#[must_use]
pub fn rules_to_add(owned: &[Rule], wanted: &[Rule]) -> Vec<Rule> {
    missing_rules(owned, wanted).unwrap_or_else(|ComparisonsExceeded| {
        let owned: HashSet<&Rule> = owned.iter().collect();
        wanted.iter().filter(|rule| !owned.contains(rule)).cloned().collect()
    })
}

/// Rules as Kubernetes writes them in the message of a refusal: one a line, sorted, those that differ by their verb alone in one.
#[must_use]
pub fn rules_text(rules: &[Rule]) -> String {
    let mut verbs_by_target: BTreeMap<Rule, (Vec<String>, HashSet<&str>)> = BTreeMap::new();
    for rule in rules {
        let target = Rule { verbs: Vec::new(), ..rule.clone() };
        let (verbs, seen) = verbs_by_target.entry(target).or_default();
        verbs.extend(rule.verbs.iter().filter(|verb| seen.insert(verb)).cloned());
    }
    let text = |rule: Rule| -> String { rule.to_string().chars().take(RULE_LEN_MAX).collect() };
    let targets = verbs_by_target.into_iter();
    let mut lines: Vec<String> =
        targets.map(|(target, (verbs, _))| text(Rule { verbs, ..target })).collect();
    lines.sort_unstable();
    let more = lines.len().saturating_sub(LISTED_MAX);
    lines.truncate(LISTED_MAX);
    if more > 0 {
        lines.push(format!("and {more} more"));
    }
    lines.join("\n")
}

fn count_parts(rule: &Rule) -> usize {
    let resources = [rule.groups.len(), rule.resources.len(), rule.names.len().max(1)];
    let resources = resources.into_iter().fold(1, usize::saturating_mul);
    rule.verbs.len().saturating_mul(resources.saturating_add(rule.urls.len()))
}

/// A rule as rules of one verb and one target each, in the order of Kubernetes: by group, resource and verb, then paths.
fn split_rule(rule: &Rule) -> Vec<Rule> {
    let one = |text: &String| vec![text.clone()];
    let mut parts = Vec::new();
    for group in &rule.groups {
        for resource in &rule.resources {
            for verb in &rule.verbs {
                let part = Rule {
                    verbs: one(verb),
                    groups: one(group),
                    resources: one(resource),
                    ..Rule::default()
                };
                if rule.names.is_empty() {
                    parts.push(part);
                    continue;
                }
                let named = rule.names.iter().map(|name| Rule { names: one(name), ..part.clone() });
                parts.extend(named);
            }
        }
    }
    for url in &rule.urls {
        let of_url = |verb| Rule { verbs: one(verb), urls: one(url), ..Rule::default() };
        parts.extend(rule.verbs.iter().map(of_url));
    }
    parts
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use proto_api::steps::count_during;

    use super::*;
    use crate::Access;

    /// Of rules that are few.
    fn missing_rules(owned: &[Rule], wanted: &[Rule]) -> Vec<Rule> {
        super::missing_rules(owned, wanted).expect("they are few")
    }

    fn rule(verbs: &[&str], groups: &[&str], resources: &[&str], names: &[&str]) -> Rule {
        let list = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
        Rule {
            verbs: list(verbs),
            groups: list(groups),
            resources: list(resources),
            names: list(names),
            urls: Vec::new(),
        }
    }

    #[test]
    fn only_rules_that_the_user_has_can_be_granted() {
        let admin = [rule(&["*"], &["*"], &["*"], &[])];
        let pods = [rule(&["get", "list"], &[""], &["pods"], &[])];
        let one = [rule(&["get"], &[""], &["pods"], &["a"])];
        assert!(missing_rules(&admin, &pods).is_empty());
        assert!(missing_rules(&pods, &one).is_empty());
        assert_eq!(missing_rules(&one, &pods).len(), 2);
        let missing =
            missing_rules(&pods, &[rule(&["get", "delete"], &[""], &["pods", "secrets"], &[])]);
        let texts: Vec<_> = missing.iter().map(|r| (&*r.verbs[0], &*r.resources[0])).collect();
        assert_eq!(texts, [("delete", "pods"), ("get", "secrets"), ("delete", "secrets")]);
        // Parts may come from several rules, one part must not.
        let split = [rule(&["get"], &[""], &["pods"], &[]), rule(&["list"], &[""], &["pods"], &[])];
        assert!(missing_rules(&split, &pods).is_empty());
        assert!(!missing_rules(&pods, &admin).is_empty());
        assert!(missing_rules(&pods, &[rule(&["get"], &[""], &["*"], &[])]).len() == 1);
        let log = [rule(&["get"], &[""], &["*/log"], &[])];
        assert!(missing_rules(&log, &[rule(&["get"], &[""], &["pods/log"], &[])]).is_empty());
    }

    #[test]
    fn paths_are_covered_by_their_beginnings() {
        let urls = |urls: &[&str]| {
            let urls = urls.iter().map(|url| (*url).to_owned()).collect();
            [Rule { verbs: vec!["get".into()], urls, ..Rule::default() }]
        };
        assert!(missing_rules(&urls(&["/api/*"]), &urls(&["/api/v1"])).is_empty());
        assert!(missing_rules(&urls(&["/api/*"]), &urls(&["/api/*"])).is_empty());
        assert!(missing_rules(&urls(&["*"]), &urls(&["/api/*", "/x"])).is_empty());
        assert_eq!(missing_rules(&urls(&["/api/v1"]), &urls(&["/api/*"])).len(), 1);
        assert_eq!(missing_rules(&urls(&["/version"]), &urls(&["/version*"])).len(), 1);
        assert_eq!(missing_rules(&urls(&[""]), &urls(&["*"])).len(), 1);
        assert_eq!(missing_rules(&urls(&["/api/v1/*"]), &urls(&["/api/*"])).len(), 1);
    }

    #[test]
    fn a_refusal_lists_what_is_missing() {
        let wanted = [
            rule(&["get", "list"], &[""], &["secrets"], &[]),
            rule(&["update"], &["apps"], &["deployments"], &["web"]),
        ];
        let paths =
            Rule { verbs: vec!["get".into()], urls: vec!["/metrics".into()], ..Rule::default() };
        let missing = missing_rules(&[], &[&wanted[..], &[paths]].concat());
        assert_eq!(
            rules_text(&missing),
            "{APIGroups:[\"\"], Resources:[\"secrets\"], Verbs:[\"get\" \"list\"]}\n\
             {APIGroups:[\"apps\"], Resources:[\"deployments\"], ResourceNames:[\"web\"], Verbs:[\"update\"]}\n\
             {NonResourceURLs:[\"/metrics\"], Verbs:[\"get\"]}"
        );
    }

    #[test]
    fn a_rule_of_very_many_combinations_costs_no_more_than_its_size() {
        let many: Vec<String> = (0..2000).map(|number| format!("x{number}")).collect();
        let huge = Rule {
            verbs: many.clone(),
            groups: many.clone(),
            resources: many.clone(),
            names: many,
            urls: Vec::new(),
        };
        let all = [rule(&["*"], &["*"], &["*"], &[])];
        assert!(missing_rules(&all, std::slice::from_ref(&huge)).is_empty());
        assert_eq!(missing_rules(&[], std::slice::from_ref(&huge)).len(), 1);
        assert!(rules_text(&[huge]).len() <= RULE_LEN_MAX);
        // Rules that are each below the bound share it.
        let some: Vec<String> = (0..20).map(|number| format!("x{number}")).collect();
        let rule =
            Rule { verbs: some.clone(), groups: some.clone(), resources: some, ..Rule::default() };
        assert!(missing_rules(&[], &vec![rule; 100]).len() < PARTS_MAX + 100);
    }

    /// A rule with a list of each kind of this many entries. Names differ with `other`.
    fn long_rule(size: usize, other: &str) -> Rule {
        let list = |word: &str| (0..size).map(|nth| format!("{word}{nth}")).collect();
        Rule {
            verbs: list("v"),
            groups: list("g"),
            resources: (0..size).map(|nth| format!("r{nth}/s{nth}")).collect(),
            names: list(&format!("n{other}")),
            urls: (0..size).map(|nth| format!("/u{nth}/*")).collect(),
        }
    }

    #[test]
    fn long_lists_cost_their_length() {
        let steps = |size: usize, other: &str| {
            let (owned, wanted) = ([long_rule(size, "")], [long_rule(size, other)]);
            count_during(|| {
                let missing = missing_rules(&owned, &wanted);
                assert_eq!(missing.is_empty(), other.is_empty());
            })
        };
        for other in ["", "x"] {
            let costs: Vec<u64> = (0..4).map(|power| steps(250 << power, other)).collect();
            for pair in costs.windows(2) {
                assert!(pair[1] <= pair[0] * 2 + 100, "{other}: {costs:?}");
            }
        }
    }

    #[test]
    fn very_many_rules_are_not_compared() {
        let one =
            |nth: usize, word: &str| rule(&["get"], &[""], &["pods"], &[&format!("{word}{nth}")]);
        let all = |word: &str| -> Vec<Rule> { (0..10_000).map(|nth| one(nth, word)).collect() };
        let (owned, wanted) = (all("a"), all("b"));
        let mut result = Ok(Vec::new());
        let steps = count_during(|| result = super::missing_rules(&owned, &wanted));
        let why = result.expect_err("they are too many").to_string();
        assert_eq!(
            why,
            "the rules are too many to be compared with those that the user has (10000000 comparisons at most)"
        );
        assert!(steps < 3 * 10_000_000, "{steps}");
        // What is owned as it stands needs no comparisons.
        assert_eq!(super::missing_rules(&owned, &owned), Ok(Vec::new()));
        let both = [&owned[..], &wanted[..1]].concat();
        assert_eq!(rules_to_add(&owned, &[&wanted[..], &owned[..]].concat()), wanted);
        assert_eq!(rules_to_add(&both, &both), []);
    }

    fn words(all: &'static [&'static str]) -> impl Strategy<Value = Vec<String>> {
        let word = prop::sample::select(all).prop_map(str::to_owned);
        prop::collection::vec(word, 0..3)
    }

    fn any_rule() -> impl Strategy<Value = Rule> {
        let verbs = words(&["get", "list", "*"]);
        let groups = words(&["", "apps", "*"]);
        let resources = words(&["pods", "pods/log", "*/log", "*"]);
        (verbs, groups, resources, words(&["a", "b"])).prop_map(
            |(verbs, groups, resources, names)| Rule {
                verbs,
                groups,
                resources,
                names,
                urls: Vec::new(),
            },
        )
    }

    proptest! {
        /// Covered rules allow nothing that the owned ones do not.
        #[test]
        fn covered_rules_allow_no_more(
            owned in prop::collection::vec(any_rule(), 0..4),
            wanted in prop::collection::vec(any_rule(), 0..3),
        ) {
            if missing_rules(&owned, &wanted).is_empty() {
                for verb in ["get", "list", "delete"] {
                    for group in ["", "apps", "batch"] {
                        for (resource, subresource) in [("pods", ""), ("pods", "log"), ("nodes", "")] {
                            for name in ["a", "b", "c", ""] {
                                let request = Access::Resource { verb, group, resource, subresource, namespace: "n", name };
                                let allows = |rules: &[Rule]| rules.iter().any(|rule| rule.allows(&request));
                                prop_assert!(!allows(&wanted) || allows(&owned), "{request:?}");
                            }
                        }
                    }
                }
            }
        }
    }
}
