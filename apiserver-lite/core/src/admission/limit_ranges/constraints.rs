//! Bounds on requests and limits: minimum, maximum, and the ratio of limit to request. Pure, with Kubernetes' precision and messages.

#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

use std::collections::BTreeMap;
use std::{fmt, slice};

use apiserver_schema::{Map, Object, Value};
use proto_api::Quantity;

/// Most violations that are collected of one LimitRange.
const VIOLATIONS_MAX: usize = 1000;
/// Amounts up to this one are compared in thousandths.
const MILLI_MAX: i64 = i64::MAX / 1000;

/// Amounts by resource.
type Amounts<'a> = BTreeMap<&'a str, Quantity>;

/// Requests and limits: of a container, of a pod in total, or of a claim.
#[derive(Default)]
pub struct Demand<'a> {
    requests: Amounts<'a>,
    limits: Amounts<'a>,
}

/// What is checked.
pub enum LimitedObject<'a> {
    Pod {
        /// Its containers, then its init containers.
        containers: Vec<Demand<'a>>,
        /// All of them together.
        total: Demand<'a>,
    },
    /// A claim; its limits mean nothing.
    Claim(Demand<'a>),
}

impl<'a> LimitedObject<'a> {
    /// Reads requests and limits of a pod, or the requests of a claim.
    pub fn from_object(object: &'a Object) -> Self {
        let spec = object.spec();
        if object.kind.is("", "PersistentVolumeClaim") {
            let claim = Demand::read(spec);
            return LimitedObject::Claim(Demand { limits: Amounts::new(), ..claim });
        }
        let read = |list: &str| -> Vec<Demand<'a>> {
            spec.into_iter()
                .flat_map(|spec| spec.maps(list))
                .map(|c| Demand::read(Some(c)))
                .collect()
        };
        let (mut containers, initial) = (read("containers"), read("initContainers"));
        let total = Demand::total(&containers, &initial);
        containers.extend(initial);
        LimitedObject::Pod { containers, total }
    }
}

impl<'a> Demand<'a> {
    /// The field `resources` of `owner`.
    fn read(owner: Option<&'a Map>) -> Self {
        let resources = owner.and_then(|owner| owner.map("resources"));
        let list = |field: &str| -> Amounts<'a> {
            amounts(resources.and_then(|resources| resources.map(field))).collect()
        };
        Demand { requests: list("requests"), limits: list("limits") }
    }

    /// What a pod demands: the sum of its containers, or the most that one of its init containers does. A resource has no sum unless
    /// every container names it.
    fn total(containers: &[Self], initial: &[Self]) -> Self {
        let of = |list: fn(&Self) -> &Amounts<'a>| {
            total(containers.iter().map(list), initial.iter().map(list))
        };
        Demand { requests: of(|demand| &demand.requests), limits: of(|demand| &demand.limits) }
    }
}

/// The amounts of a map; what is no quantity is left out.
fn amounts(map: Option<&Map>) -> impl Iterator<Item = (&str, Quantity)> {
    let amount = |value: &Value| value.as_str()?.parse::<Quantity>().ok();
    map.into_iter()
        .flat_map(Map::iter)
        .filter_map(move |(resource, value)| Some((resource, amount(value)?)))
}

/// One list of [`Demand::total`].
fn total<'a: 'b, 'b>(
    containers: impl ExactSizeIterator<Item = &'b Amounts<'a>>,
    initial: impl Iterator<Item = &'b Amounts<'a>>,
) -> Amounts<'a> {
    let count = containers.len();
    let mut sums: BTreeMap<&'a str, (i64, usize)> = BTreeMap::new();
    for (resource, amount) in containers.flatten() {
        let units = if *resource == "cpu" { amount.as_milli() } else { amount.value() };
        let (sum, named) = sums.entry(*resource).or_default();
        *sum = sum.saturating_add(units);
        *named = named.saturating_add(1);
    }
    let sums = sums.into_iter().filter(|(_, (_, named))| *named == count);
    let quantity = |resource: &str, sum: i64| match resource {
        "cpu" => Quantity::from_milli(sum),
        _ => Quantity::from_units(sum),
    };
    let mut totals: Amounts<'a> =
        sums.map(|(resource, (sum, _))| (resource, quantity(resource, sum))).collect();
    for (resource, amount) in initial.flatten() {
        let most = totals.entry(*resource).or_insert(*amount);
        if *amount > *most {
            *most = *amount;
        }
    }
    totals
}

/// A bound of a LimitRange.
struct Bound<'a> {
    kind: &'a str,
    resource: &'a str,
    amount: Quantity,
}

impl fmt::Display for Bound<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} usage per {} is {}", self.resource, self.kind, self.amount)
    }
}

/// Says how a demand violates a bound, if it does.
type Rule = fn(&Bound<'_>, &Demand<'_>) -> Option<String>;

/// The fields of a limit with their rules.
const RULES: &[(&str, Rule)] =
    &[("min", below_min), ("max", above_max), ("maxLimitRequestRatio", above_ratio)];
/// The same for claims.
const CLAIM_RULES: &[(&str, Rule)] = &[("min", below_min), ("max", request_above_max)];

/// What the spec `range` of a LimitRange has against `subject`: one violation, or several in brackets; `None` if there is none.
pub fn violations(range: &Map, subject: &LimitedObject<'_>) -> Option<String> {
    let mut found = Violations { texts: Vec::new(), left: VIOLATIONS_MAX };
    for limit in range.maps("limits") {
        match (limit.str("type"), subject) {
            ("Container", LimitedObject::Pod { containers, .. }) => {
                check(limit, RULES, containers, &mut found);
            }
            ("Pod", LimitedObject::Pod { total, .. }) => {
                check(limit, RULES, slice::from_ref(total), &mut found);
            }
            ("PersistentVolumeClaim", LimitedObject::Claim(claim)) => {
                check(limit, CLAIM_RULES, slice::from_ref(claim), &mut found);
            }
            _ => {}
        }
    }
    match found.texts.as_slice() {
        [] => None,
        [only] => Some(only.clone()),
        several => Some(format!("[{}]", several.join(", "))),
    }
}

/// Violations without duplicates.
struct Violations {
    texts: Vec<String>,
    /// How many more are collected, duplicates included.
    left: usize,
}

fn check(limit: &Map, rules: &[(&str, Rule)], demands: &[Demand<'_>], found: &mut Violations) {
    let kind = limit.str("type");
    let mut bounds: Vec<(Rule, Bound<'_>)> = Vec::new();
    for (field, rule) in rules {
        let amounts = amounts(limit.map(field));
        bounds.extend(amounts.map(|(resource, amount)| (*rule, Bound { kind, resource, amount })));
    }
    for demand in demands {
        for (rule, bound) in &bounds {
            if found.left == 0 {
                return;
            }
            let Some(text) = rule(bound, demand) else { continue };
            found.left = found.left.saturating_sub(1);
            if !found.texts.contains(&text) {
                found.texts.push(text);
            }
        }
    }
}

fn below_min(bound: &Bound<'_>, demand: &Demand<'_>) -> Option<String> {
    let (request, limit) = demand.requests_and_limits(bound.resource);
    let [request_value, limit_value, min] = comparable(request, limit, bound.amount);
    match (request, limit) {
        (None, _) => Some(format!("minimum {bound}.  No request is specified")),
        (Some(request), _) if request_value < min => {
            Some(format!("minimum {bound}, but request is {request}"))
        }
        (_, Some(limit)) if limit_value < min => {
            Some(format!("minimum {bound}, but limit is {limit}"))
        }
        _ => None,
    }
}

fn above_max(bound: &Bound<'_>, demand: &Demand<'_>) -> Option<String> {
    let (request, limit) = demand.requests_and_limits(bound.resource);
    let [request_value, limit_value, max] = comparable(request, limit, bound.amount);
    match (request, limit) {
        (_, None) => Some(format!("maximum {bound}.  No limit is specified")),
        (_, Some(limit)) if limit_value > max => {
            Some(format!("maximum {bound}, but limit is {limit}"))
        }
        (Some(request), _) if request_value > max => {
            Some(format!("maximum {bound}, but request is {request}"))
        }
        _ => None,
    }
}

/// The maximum of a claim, which has no limit.
fn request_above_max(bound: &Bound<'_>, demand: &Demand<'_>) -> Option<String> {
    let (request, _) = demand.requests_and_limits(bound.resource);
    let [request_value, _, max] = comparable(request, None, bound.amount);
    match request {
        None => Some(format!("maximum {bound}.  No request is specified")),
        Some(request) if request_value > max => {
            Some(format!("maximum {bound}, but request is {request}"))
        }
        Some(_) => None,
    }
}

fn above_ratio(bound: &Bound<'_>, demand: &Demand<'_>) -> Option<String> {
    let Bound { kind, resource, amount } = bound;
    let (request, limit) = demand.requests_and_limits(resource);
    let [request, limit, _] = comparable(request, limit, *amount);
    let said = |why: fmt::Arguments<'_>| {
        Some(format!("{resource} max limit to request ratio per {kind} is {amount}, but {why}"))
    };
    if request == 0 {
        return said(format_args!("no request is specified or request is 0"));
    }
    if limit == 0 {
        return said(format_args!("no limit is specified or limit is 0"));
    }
    let ratio = limit as f64 / request as f64;
    let exceeds = match amount.value() {
        value if value > MILLI_MAX => ratio > value as f64,
        _ => ratio * 1000.0 > amount.as_milli() as f64,
    };
    if exceeds { said(format_args!("provided ratio is {ratio:.6}")) } else { None }
}

impl Demand<'_> {
    /// Request and limit of a resource.
    fn requests_and_limits(&self, resource: &str) -> (Option<Quantity>, Option<Quantity>) {
        (self.requests.get(resource).copied(), self.limits.get(resource).copied())
    }
}

/// The amounts in one unit, thousandths if all fit, with 0 for missing ones.
fn comparable(request: Option<Quantity>, limit: Option<Quantity>, bound: Quantity) -> [i64; 3] {
    let all = [request.unwrap_or_default(), limit.unwrap_or_default(), bound];
    if all.iter().all(|amount| amount.value() <= MILLI_MAX) {
        all.map(Quantity::as_milli)
    } else {
        all.map(Quantity::value)
    }
}
