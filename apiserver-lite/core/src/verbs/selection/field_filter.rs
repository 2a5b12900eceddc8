//! A field selector made ready for many objects (pure).

use std::borrow::Cow;
use std::collections::BTreeMap;

use proto_api::selectors::{FieldRequirement, FieldSelector};

use super::sorted::SortedTexts;

/// A field selector with one condition for each field. A kind has few selectable fields, so an object costs a look at each of them, however long the
/// selector is.
#[derive(Clone, Debug)]
pub(super) struct FieldFilter {
    conditions: Box<[(Box<str>, Condition)]>,
}

/// What all requirements on one field have in common.
#[derive(Clone, Debug)]
struct Condition {
    /// The value that the field must have; none if two are required, which it cannot have.
    allowed: Option<SortedTexts>,
    /// Values that it must not have.
    denied: SortedTexts,
}

impl FieldFilter {
    /// Matches what `selector` matches.
    pub(super) fn new(selector: &FieldSelector) -> Self {
        let mut by_field: BTreeMap<&str, Vec<&FieldRequirement>> = BTreeMap::new();
        for requirement in selector.requirements() {
            by_field.entry(&requirement.field).or_default().push(requirement);
        }
        let conditions = by_field
            .into_iter()
            .map(|(field, requirements)| (Box::from(field), Condition::new(&requirements)));
        Self { conditions: conditions.collect() }
    }

    /// Whether an object matches whose fields `value_of` reads; a field without a value is empty.
    pub(super) fn matches<'a>(&self, value_of: impl Fn(&str) -> Option<Cow<'a, str>>) -> bool {
        self.conditions.iter().all(|(field, condition)| {
            let value = value_of(field).unwrap_or_default();
            condition.allowed.as_ref().is_none_or(|allowed| allowed.has(&value))
                && !condition.denied.has(&value)
        })
    }

    /// The only value of `field` that matches, if there is one.
    pub(super) fn exact(&self, field: &str) -> Option<&str> {
        let (_, condition) = self.conditions.iter().find(|(one, _)| **one == *field)?;
        condition.allowed.as_ref()?.first()
    }
}

impl Condition {
    fn new(requirements: &[&FieldRequirement]) -> Self {
        let of = |equal| requirements.iter().filter(move |one| one.equal == equal);
        let values = |equal| of(equal).map(|one| one.value.as_str());
        let required = of(true).count();
        Self {
            allowed: (required > 0).then(|| SortedTexts::in_all(values(true), required)),
            denied: SortedTexts::in_any(values(false)),
        }
    }
}

#[cfg(test)]
mod tests {
    use rand::rngs::StdRng;
    use rand::seq::IndexedRandom as _;
    use rand::{RngExt as _, SeedableRng as _};

    use super::*;

    #[test]
    fn a_filter_matches_what_its_selector_matches() {
        let rng = &mut StdRng::seed_from_u64(18);
        let mut matching = 0;
        for _ in 0..5_000 {
            let requirement = |rng: &mut StdRng| {
                let (field, value) = (["a", "b", "c"].choose(rng), ["", "x", "y"].choose(rng));
                let operator = if rng.random_ratio(1, 3) { "=" } else { "!=" };
                format!("{}{operator}{}", field.unwrap(), value.unwrap())
            };
            let count = rng.random_range(0..5);
            let text = (0..count).map(|_| requirement(rng)).collect::<Vec<_>>().join(",");
            let selector = FieldSelector::parse(&text).unwrap();
            let values = [["", "x", "y"], ["x", "y", ""], ["y", "x", "z"]].choose(rng).unwrap();
            // The last field has no value.
            let value_of = |field: &str| match field {
                "a" => Some(values[0]),
                "b" => Some(values[1]),
                _ => None,
            };
            let expected = selector.matches(value_of);
            let filter = FieldFilter::new(&selector);
            let found = filter.matches(|field| value_of(field).map(Cow::Borrowed));
            assert_eq!(found, expected, "{text}: {values:?}");
            if expected {
                assert_eq!(filter.exact("a"), selector.exact("a"), "{text}");
            }
            matching += usize::from(expected);
        }
        assert!((500..4_500).contains(&matching), "{matching} of them match");
    }

    #[test]
    fn requirements_on_one_field_are_one_condition() {
        let text = (0..5_000).map(|n| format!("metadata.name!=v{n}")).collect::<Vec<_>>();
        let filter = FieldFilter::new(&FieldSelector::parse(&text.join(",")).unwrap());
        assert_eq!(filter.conditions.len(), 1);
        assert!(!filter.matches(|_| Some(Cow::Borrowed("v17"))));
        assert!(filter.matches(|_| Some(Cow::Borrowed("other"))));
        let twice = FieldFilter::new(&FieldSelector::parse("a=x,a=y").unwrap());
        assert!(!twice.matches(|_| Some(Cow::Borrowed("x"))));
    }
}
