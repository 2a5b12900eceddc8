//! The rules that a user has, made ready for comparisons with others: a list of any length is asked in the time of a short one.

use std::collections::{BTreeSet, HashSet};
use std::ops::Bound;

use crate::rule::{ALL, Rule};

/// Most comparisons of an entry with a list, or of two rules, that one question may cost: below a second.
const COMPARISONS_MAX: usize = 10_000_000;
/// Longest list that is searched from its beginning to its end.
const SEARCHED_MAX: usize = 16;

/// Rules that are too many to be compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "the rules are too many to be compared with those that the user has ({COMPARISONS_MAX} comparisons at most)"
)]
pub struct ComparisonsExceeded;

/// How many comparisons are left.
pub(crate) struct ComparisonBudget(usize);

impl Default for ComparisonBudget {
    fn default() -> Self {
        Self(COMPARISONS_MAX)
    }
}

impl ComparisonBudget {
    fn spend(&mut self) -> Result<(), ComparisonsExceeded> {
        self.0 = self.0.checked_sub(1).ok_or(ComparisonsExceeded)?;
        Ok(())
    }

    /// Whether all of `wanted` are covered.
    fn all(
        &mut self,
        wanted: &[String],
        covered: impl Fn(&str) -> bool,
    ) -> Result<bool, ComparisonsExceeded> {
        for one in wanted {
            self.spend()?;
            if !covered(one) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// The rules that a user has.
pub(crate) struct OwnedRules<'a> {
    rules: Vec<OwnedRule<'a>>,
    /// The same, for rules that are granted as they are owned.
    whole: HashSet<&'a Rule>,
}

impl<'a> OwnedRules<'a> {
    pub(crate) fn from_rules(rules: &'a [Rule]) -> Self {
        Self {
            rules: rules.iter().map(OwnedRule::from_rule).collect(),
            whole: rules.iter().collect(),
        }
    }

    /// Whether one of the rules allows all that `part` allows.
    pub(crate) fn cover(
        &self,
        part: &Rule,
        budget: &mut ComparisonBudget,
    ) -> Result<bool, ComparisonsExceeded> {
        if self.whole.contains(part) {
            return Ok(true);
        }
        for own in &self.rules {
            budget.spend()?;
            if own.covers(part, budget)? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

struct OwnedRule<'a> {
    verbs: Words<'a>,
    groups: Words<'a>,
    resources: Words<'a>,
    names: Words<'a>,
    urls: Words<'a>,
    url_prefixes: UrlPrefixes<'a>,
}

impl<'a> OwnedRule<'a> {
    fn from_rule(rule: &'a Rule) -> Self {
        Self {
            verbs: Words::from_list(&rule.verbs),
            groups: Words::from_list(&rule.groups),
            resources: Words::from_list(&rule.resources),
            names: Words::from_list(&rule.names),
            urls: Words::from_list(&rule.urls),
            url_prefixes: UrlPrefixes::from_urls(&rule.urls),
        }
    }

    /// Whether the rule allows all that another one allows.
    fn covers(
        &self,
        part: &Rule,
        budget: &mut ComparisonBudget,
    ) -> Result<bool, ComparisonsExceeded> {
        // Without names a rule is of all objects.
        let has_names = match (self.names.is_empty(), part.names.is_empty()) {
            (true, _) => true,
            (false, true) => false,
            (false, false) => budget.all(&part.names, |name| self.names.have(name))?,
        };
        Ok(has_names
            && budget.all(&part.verbs, |verb| self.verbs.have_or_all(verb))?
            && budget.all(&part.groups, |group| self.groups.have_or_all(group))?
            && budget.all(&part.resources, |resource| self.has_resource(resource))?
            && budget.all(&part.urls, |url| self.urls.have(url) || self.url_prefixes.cover(url))?)
    }

    fn has_resource(&self, wanted: &str) -> bool {
        match wanted.split_once('/') {
            None => self.resources.have_or_all(wanted),
            Some((resource, "")) => self.resources.have_or_all(resource),
            Some((_, subresource)) => {
                self.resources.have_or_all(wanted)
                    || self.resources.have(&format!("{ALL}/{subresource}"))
            }
        }
    }
}

/// One list of a rule.
enum Words<'a> {
    Few(&'a [String]),
    Many(HashSet<&'a str>),
}

impl<'a> Words<'a> {
    fn from_list(list: &'a [String]) -> Self {
        match list.len() > SEARCHED_MAX {
            true => Self::Many(list.iter().map(String::as_str).collect()),
            false => Self::Few(list),
        }
    }

    fn is_empty(&self) -> bool {
        matches!(self, Self::Few([]))
    }

    fn have(&self, wanted: &str) -> bool {
        match self {
            Self::Few(list) => {
                proto_api::count_steps!(list.len());
                list.iter().any(|own| own == wanted)
            }
            Self::Many(set) => {
                proto_api::count_steps!(1);
                set.contains(wanted)
            }
        }
    }

    fn have_or_all(&self, wanted: &str) -> bool {
        self.have(wanted) || self.have(ALL)
    }
}

/// What paths that end in `*` begin with; of two of which one begins with the other only the shorter. A wanted `/a*` is more than an
/// owned `/a`: only an owned path that ends in `*` covers what begins alike.
struct UrlPrefixes<'a>(BTreeSet<&'a str>);

impl<'a> UrlPrefixes<'a> {
    fn from_urls(urls: &'a [String]) -> Self {
        let mut all: Vec<&str> = urls.iter().filter_map(|url| url.strip_suffix('*')).collect();
        all.sort_unstable();
        // In this order those that begin with another one follow it.
        all.dedup_by(|longer, shorter| longer.starts_with(*shorter));
        Self(all.into_iter().collect())
    }

    fn cover(&self, url: &str) -> bool {
        proto_api::count_steps!(1);
        // Nothing lies between a beginning of the path and the path but what begins with it too.
        let mut below = self.0.range::<str, _>((Bound::Unbounded, Bound::Included(url)));
        below.next_back().is_some_and(|start| url.starts_with(start))
    }
}
