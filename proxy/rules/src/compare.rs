//! Compares the kernel's table with the one that a new proxy would load, for `orch-proxy diff`.
//!
//! Unlike [`crate::diff`], which repairs a running proxy's tables, this does not depend on their history: endpoints
//! may have other slots, maps other sizes, and chains of unused classes may remain. None of these is a difference.

use std::collections::{BTreeMap, BTreeSet};

use proxy_netfilter::nft::expr::Expr;
use proxy_netfilter::nft::numbers::TableFlags;
use proxy_netfilter::nft::ruleset::{ChainRules, SetElements};
use proxy_netfilter::nft::{Data, Family, Rule, TableRules, Value};

use crate::layout::{HERE_FIRST_SLOT, Map, SOURCE_RANGES, source_range};
use crate::trace::text;

/// Differences of a table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Comparison {
    /// Rules, chains and sets that differ.
    pub shape: Vec<String>,
    /// Elements that only the kernel has.
    pub surplus: Vec<String>,
    /// Elements that the kernel lacks.
    pub missing: Vec<String>,
}

impl Comparison {
    /// Whether nothing differs.
    pub fn is_empty(&self) -> bool {
        self.shape.is_empty() && self.surplus.is_empty() && self.missing.is_empty()
    }
}

/// Compares a table, if it exists, with the desired one.
pub fn compare(family: Family, is: Option<&TableRules>, should: &TableRules) -> Comparison {
    let mut found = Comparison::default();
    let Some(is) = is else {
        found.shape.push("the table is missing".to_owned());
        return found;
    };
    let flags = |table: &TableRules| table.flags.0 & !TableFlags::OWNER.0;
    if flags(is) != flags(should) {
        found.shape.push(format!("flags are {:#x}, not {:#x}", flags(is), flags(should)));
    }
    compare_chains(family, is, should, &mut found.shape);
    compare_sets(is, should, &mut found.shape);
    for (name, set) in &should.sets {
        let Some(map) = Map::from_name(name).filter(|map| !map.is_learned()) else { continue };
        let there = is.sets.get(name);
        let (have, want) = (facts(map, there), facts(map, Some(set)));
        // The chain of a class that is no longer used stays until the next load.
        let surplus =
            have.iter().filter(|(fact, _)| map != Map::Classes && !want.contains_key(*fact));
        let missing = want.iter().filter(|(fact, _)| !have.contains_key(*fact));
        let line = |(_, (key, data)): (&Fact, &(Value, Option<Data>))| {
            text::element(family, name, key, data.as_ref())
        };
        found.surplus.extend(surplus.map(line));
        found.missing.extend(missing.map(line));
    }
    found
}

fn compare_chains(family: Family, is: &TableRules, should: &TableRules, shape: &mut Vec<String>) {
    for (name, chain) in &should.chains {
        match is.chains.get(name) {
            None => shape.push(format!("chain {name} is missing")),
            Some(there) if !is_same(family, name, there, chain) => {
                shape.push(format!("chain {name} differs"));
            }
            Some(_) => {}
        }
    }
    // Base chains, or chains that another program added.
    let classes: BTreeSet<&str> = is
        .sets
        .get(Map::Classes.name())
        .into_iter()
        .flat_map(|set| set.elements.values())
        .filter_map(|element| match &element.data {
            Some(Data::Verdict(verdict)) => verdict.chain(),
            _ => None,
        })
        .collect();
    let foreign =
        |name: &&String| !should.chains.contains_key(*name) && !classes.contains(name.as_str());
    shape.extend(
        is.chains
            .keys()
            .filter(foreign)
            .map(|name| format!("chain {name} does not belong to the proxy")),
    );
}

/// Whether a chain has the desired rules. Rules for unused prefix lengths and for seldom-used maps stay until the next
/// load.
fn is_same(family: Family, name: &str, there: &ChainRules, chain: &ChainRules) -> bool {
    if name != SOURCE_RANGES {
        let stays = |rule: &&Rule| chain.rules.contains(rule) || !asks_seldom_used(rule);
        let rules = there.rules.iter().filter(stays);
        return there.chain == chain.chain && rules.eq(&chain.rules);
    }
    let longest = if family == Family::Ip6 { 128 } else { 32 };
    let is_length =
        |rule: &Rule| (0..=longest).any(|bits| rule.exprs == source_range(family, bits).exprs);
    there.chain == chain.chain
        && chain.rules.iter().all(|rule| there.rules.contains(rule))
        && there.rules.iter().all(|rule| chain.rules.contains(rule) || is_length(rule))
}

fn asks_seldom_used(rule: &Rule) -> bool {
    let is_seldom = |set: &str| Map::SELDOM.iter().any(|map| map.name() == set);
    rule.exprs.iter().any(|expr| matches!(expr, Expr::Lookup(lookup) if is_seldom(&lookup.set)))
}

fn compare_sets(is: &TableRules, should: &TableRules, shape: &mut Vec<String>) {
    for (name, set) in &should.sets {
        let kind = |s: &SetElements| (s.set.flags, s.set.key_type, s.set.data_type);
        match is.sets.get(name) {
            None => shape.push(format!("map {name} is missing")),
            Some(there) if kind(there) != kind(set) => shape.push(format!("map {name} differs")),
            Some(_) => {}
        }
    }
    let foreign = is.sets.keys().filter(|name| !should.sets.contains_key(*name));
    shape.extend(foreign.map(|name| format!("map {name} does not belong to the proxy")));
}

/// An element without its slot: key and data.
type Fact = (Vec<u8>, Vec<u8>);

/// The facts of a map, each with its element.
fn facts(map: Map, set: Option<&SetElements>) -> BTreeMap<Fact, (Value, Option<Data>)> {
    let has_slots = matches!(map, Map::Endpoints | Map::NodePortEndpoints);
    let fact = |key: &Value, data: &Option<Data>| {
        let bytes = key.bytes();
        let key = match bytes.split_last_chunk::<4>() {
            Some((frontend, slot)) if has_slots => {
                let here = u32::from_ne_bytes(*slot) >= HERE_FIRST_SLOT;
                [frontend, &[u8::from(here)]].concat()
            }
            _ => bytes.to_vec(),
        };
        let data = match data {
            Some(Data::Value(value)) => value.bytes().to_vec(),
            Some(Data::Verdict(verdict)) => format!("{verdict:?}").into_bytes(),
            None => Vec::new(),
        };
        (key, data)
    };
    let elements = set.into_iter().flat_map(|set| set.elements.values());
    elements.map(|e| (fact(&e.key, &e.data), (e.key.clone(), e.data.clone()))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Dataplane;
    use crate::layout::{FAMILIES, Layout};
    use crate::model::{
        EndpointState, LocalEndpoint, LocalPort, LocalService, LocalSlice, Locality, Protocol,
        ServiceId, Settings, SlicePort,
    };
    use std::sync::Arc;

    fn slice(endpoints: &[u8]) -> Arc<LocalSlice> {
        let endpoint = |n: &u8| LocalEndpoint {
            address: [10, 244, 0, *n].into(),
            state: EndpointState::Ready,
            place: Locality::Here,
        };
        let port = SlicePort { name: "".into(), protocol: Protocol::Tcp, port: 8080 };
        Arc::new(LocalSlice {
            service: ServiceId::new("ns", "web"),
            ports: [port].into(),
            endpoints: endpoints.iter().map(endpoint).collect(),
            ..LocalSlice::default()
        })
    }

    fn layout() -> Layout {
        Layout {
            table: "t".into(),
            flags: TableFlags::NONE,
            families: FAMILIES.to_vec(),
            settings: Settings::default(),
        }
    }

    /// The IPv4 table after these lists of endpoints, one after another.
    fn table(histories: &[&[u8]]) -> TableRules {
        let mut plane = Dataplane::new(layout());
        let port =
            LocalPort { name: "".into(), protocol: Protocol::Tcp, port: 80, node_port: None };
        let service = LocalService {
            cluster_ips: [[10, 96, 0, 1].into()].into(),
            ports: [port].into(),
            ..LocalService::default()
        };
        plane.service_changed(&ServiceId::new("ns", "web"), Some(Arc::new(service)));
        let mut old = None;
        for endpoints in histories {
            let new = slice(endpoints);
            plane.slice_changed("s", old.as_deref(), Some(new.clone()));
            old = Some(new);
            let _ = plane.load();
        }
        plane.tables().into_iter().find(|(family, _)| *family == Family::Ip).unwrap().1
    }

    #[test]
    fn elements_of_past_classes_are_no_difference() {
        let fresh = table(&[&[3, 4, 5]]);
        let old = table(&[&[1, 2, 5], &[2, 4, 5, 3], &[3, 4, 5]]);
        assert_eq!(compare(Family::Ip, Some(&old), &fresh), Comparison::default());
    }

    #[test]
    fn a_length_of_source_ranges_stays_and_another_rule_may_not() {
        let should = table(&[&[1]]);
        let mut is = should.clone();
        layout().add_prefix(Family::Ip, &mut is, 24);
        assert_eq!(compare(Family::Ip, Some(&is), &should), Comparison::default());
        assert!(!compare(Family::Ip, Some(&should), &is).is_empty(), "one that is needed");
        if let Some(rule) = is.chains.get_mut(SOURCE_RANGES).and_then(|c| c.rules.last_mut()) {
            rule.exprs.pop();
        }
        assert_eq!(compare(Family::Ip, Some(&is), &should).shape, ["chain source-ranges differs"]);
    }

    #[test]
    fn missing_and_surplus_elements_are_listed() {
        let (is, should) = (table(&[&[1, 2]]), table(&[&[2, 3]]));
        let found = compare(Family::Ip, Some(&is), &should);
        let endpoint = |lines: &[String]| {
            lines.iter().filter(|l| l.starts_with("endpoints")).cloned().collect::<Vec<_>>()
        };
        assert_eq!(found.shape, Vec::<String>::new());
        assert_eq!(
            endpoint(&found.surplus),
            ["endpoints: 10.96.0.1 . tcp . 80 . 0 -> 10.244.0.1 . 8080"]
        );
        assert_eq!(
            endpoint(&found.missing),
            ["endpoints: 10.96.0.1 . tcp . 80 . 1 -> 10.244.0.3 . 8080"]
        );
    }

    #[test]
    fn foreign_chains_and_changed_rules_are_reported() {
        let should = table(&[&[1]]);
        let mut is = should.clone();
        let mut chain = is.chains["services"].clone();
        chain.rules.pop();
        is.chains.insert("services".into(), chain.clone());
        chain.chain.name = "mine".into();
        is.chains.insert("mine".into(), chain);
        is.sets.remove("hairpin");
        let found = compare(Family::Ip, Some(&is), &should);
        assert_eq!(
            found.shape,
            [
                "chain services differs",
                "chain mine does not belong to the proxy",
                "map hairpin is missing"
            ]
        );
        assert_eq!(compare(Family::Ip, None, &should).shape, ["the table is missing"]);
    }
}
