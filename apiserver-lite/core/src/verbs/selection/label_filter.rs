//! A label selector made ready for many objects (pure).

use std::collections::BTreeMap;

use apiserver_schema::{Map, Value};
use proto_api::selectors::{Operator, Requirement, Selector};

use super::sorted::SortedTexts;

/// A label selector with one condition for each key. An object costs what its labels and the logarithm of the selector's length cost, or one look for each
/// key of a short selector: a selector may have thousands of requirements, and a watch compares it with every write.
#[derive(Clone, Debug)]
pub(super) struct LabelFilter {
    /// Sorted by key.
    conditions: Box<[(Box<str>, Condition)]>,
    /// Conditions of labels that must exist.
    required: usize,
}

/// What all requirements on one label have in common.
#[derive(Clone, Debug, Default)]
struct Condition {
    is_required: bool,
    is_forbidden: bool,
    /// The values that every `in` has.
    allowed: Option<SortedTexts>,
    /// The values of all `notin`.
    denied: SortedTexts,
    /// The largest bound of `>`.
    above: Option<i64>,
    /// The smallest bound of `<`.
    below: Option<i64>,
}

impl LabelFilter {
    /// Matches what `selector` matches.
    pub(super) fn new(selector: &Selector) -> Self {
        let mut by_key: BTreeMap<&str, Vec<&Requirement>> = BTreeMap::new();
        for requirement in selector.requirements() {
            by_key.entry(requirement.key()).or_default().push(requirement);
        }
        let conditions: Box<[_]> = by_key
            .into_iter()
            .map(|(key, requirements)| (Box::from(key), Condition::new(&requirements)))
            .collect();
        let required = conditions.iter().filter(|(_, condition)| condition.is_required).count();
        Self { conditions, required }
    }

    /// Whether an object with these labels matches.
    pub(super) fn matches(&self, labels: Option<&Map>) -> bool {
        let Some(labels) = labels else { return self.required == 0 };
        if self.conditions.len() <= labels.len() {
            return self.conditions.iter().all(|(key, condition)| {
                let value = labels.get(key).and_then(Value::as_str);
                value.map_or(!condition.is_required, |value| condition.allows(value))
            });
        }
        let mut left = self.required;
        for (key, value) in labels.iter() {
            let Some(value) = value.as_str() else { continue };
            let Some(condition) = self.condition(key) else { continue };
            if !condition.allows(value) {
                return false;
            }
            left = left.saturating_sub(usize::from(condition.is_required));
        }
        left == 0
    }

    fn condition(&self, key: &str) -> Option<&Condition> {
        let at = self.conditions.binary_search_by(|(one, _)| (**one).cmp(key)).ok()?;
        self.conditions.get(at).map(|(_, condition)| condition)
    }
}

impl Condition {
    fn new(requirements: &[&Requirement]) -> Self {
        let of = |operator| requirements.iter().filter(move |one| one.operator() == operator);
        let values = |operator| of(operator).flat_map(|one| one.values());
        // Numbers, as the selector was parsed; the bound that no number is above or below otherwise.
        let bounds = |operator, otherwise| {
            values(operator).map(move |text| text.parse::<i64>().unwrap_or(otherwise))
        };
        let is_forbidden = of(Operator::DoesNotExist).next().is_some();
        let needs_label = |operator| !matches!(operator, Operator::NotIn | Operator::DoesNotExist);
        let is_required = requirements.iter().any(|one| needs_label(one.operator()));
        let sets = of(Operator::In).count();
        Self {
            is_required,
            is_forbidden,
            allowed: (sets > 0).then(|| SortedTexts::in_all(values(Operator::In), sets)),
            denied: SortedTexts::in_any(values(Operator::NotIn)),
            above: bounds(Operator::GreaterThan, i64::MAX).max(),
            below: bounds(Operator::LessThan, i64::MIN).min(),
        }
    }

    /// Whether the label may have this value.
    fn allows(&self, value: &str) -> bool {
        let number = || value.parse::<i64>().ok();
        !self.is_forbidden
            && self.allowed.as_ref().is_none_or(|allowed| allowed.has(value))
            && !self.denied.has(value)
            && self.above.is_none_or(|bound| number().is_some_and(|number| number > bound))
            && self.below.is_none_or(|bound| number().is_some_and(|number| number < bound))
    }
}

#[cfg(test)]
mod tests {
    use rand::rngs::StdRng;
    use rand::seq::IndexedRandom as _;
    use rand::{RngExt as _, SeedableRng as _};

    use super::*;

    const KEYS: [&str; 4] = ["a", "b", "c", "example.com/d"];
    const VALUES: [&str; 6] = ["", "1", "2", "10", "x", "y"];

    fn requirement(rng: &mut StdRng) -> String {
        let key = KEYS.choose(rng).unwrap();
        let values = |rng: &mut StdRng| {
            let count = rng.random_range(1..4);
            VALUES.sample(rng, count).copied().collect::<Vec<_>>().join(",")
        };
        match rng.random_range(0..7) {
            0 => format!("{key} in ({})", values(rng)),
            1 | 2 => format!("{key} notin ({})", values(rng)),
            3 => (*key).to_owned(),
            4 => format!("!{key}"),
            5 => format!("{key}>{}", rng.random_range(0..12)),
            _ => format!("{key}<{}", rng.random_range(0..12)),
        }
    }

    fn labels(rng: &mut StdRng) -> Map {
        let count = rng.random_range(0..=KEYS.len());
        let entries = KEYS.sample(rng, count).map(|key| {
            let value = VALUES.choose(rng).unwrap();
            ((*key).into(), Value::from(*value))
        });
        Map::from_entries(entries.collect::<Vec<_>>())
    }

    #[test]
    fn a_filter_matches_what_its_selector_matches() {
        let rng = &mut StdRng::seed_from_u64(18);
        let mut matching = 0;
        for _ in 0..20_000 {
            let count = rng.random_range(0..5);
            let text = (0..count).map(|_| requirement(rng)).collect::<Vec<_>>().join(",");
            let selector = Selector::parse(&text).unwrap();
            let labels = labels(rng);
            let get = |key: &str| labels.get(key).and_then(Value::as_str);
            let expected = selector.matches_with(get);
            let filter = LabelFilter::new(&selector);
            assert_eq!(filter.matches(Some(&labels)), expected, "{text}: {labels:?}");
            let without = selector.matches_with(|_| None);
            assert_eq!(filter.matches(None), without, "{text}, without labels");
            matching += usize::from(expected);
        }
        assert!((2_000..18_000).contains(&matching), "{matching} of them match");
    }

    /// Work is counted by the conditions that are left, since a test has no clock.
    #[test]
    fn requirements_on_one_label_are_one_condition() {
        let text = (0..5_000).map(|n| format!("a!=v{n},a in (x,w{n})")).collect::<Vec<_>>();
        let filter = LabelFilter::new(&Selector::parse(&text.join(",")).unwrap());
        assert_eq!(filter.conditions.len(), 1);
        let (_, condition) = &filter.conditions[0];
        assert_eq!(condition.allowed.as_ref().map(SortedTexts::len), Some(1));
        assert_eq!(condition.denied.len(), 5_000);
        let labels = |value: &str| Map::from_entries(vec![("a".into(), Value::from(value))]);
        assert!(filter.matches(Some(&labels("x"))));
        assert!(!filter.matches(Some(&labels("w1"))));
    }
}
