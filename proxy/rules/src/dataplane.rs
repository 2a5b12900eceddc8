//! The state of one node's forwarding, and what each change does to it.
//!
//! Changes only mark services; [`Dataplane::pass`] compiles those that are marked, once each, however many
//! changes there were, and compares their elements with what they had before. The cost follows the services
//! that changed, never the number of services.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use proxy_netfilter::nft::{Family, TableRules, Value};

use crate::claims::{Claim, Claims, Rank};
use crate::compile::{Compiled, Entry, compile};
use crate::layout::{Class, Layout, Map};
use crate::model::{LocalService, LocalSlice, ServiceId};
use crate::transaction::{Load, Transaction};

/// Room of a map that is nearly empty.
const ROOM_MIN: usize = 256;

/// The services that this node forwards, compiled.
#[derive(Clone, Debug)]
pub struct Dataplane {
    layout: Arc<Layout>,
    services: HashMap<ServiceId, Record>,
    /// Number of records with a service.
    services_len: usize,
    marked: HashSet<ServiceId>,
    claims: Claims,
    classes: BTreeSet<(Family, Class)>,
    fill: BTreeMap<(Family, Map), Fill>,
    /// Whether the tables have been loaded once.
    loaded: bool,
}

/// What is known of a service.
#[derive(Clone, Debug, Default)]
struct Record {
    service: Option<Arc<LocalService>>,
    slices: Vec<(Box<str>, Arc<LocalSlice>)>,
    compiled: Compiled,
}

/// How full a map is.
#[derive(Clone, Copy, Debug, Default)]
struct Fill {
    elements: usize,
    room: usize,
}

/// What a pass asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pass {
    /// Nothing but these elements changes.
    Change(Transaction),
    /// The tables have to be made anew, by [`Dataplane::load`]: they never were, or a map is full.
    Reload,
}

/// Data of an element before and after; none where it is not there.
type Difference = BTreeMap<(Family, Map, Value), (Option<Entry>, Option<Entry>)>;

impl Dataplane {
    /// A node without services.
    pub fn new(layout: Layout) -> Self {
        Self {
            layout: Arc::new(layout),
            services: HashMap::new(),
            services_len: 0,
            marked: HashSet::new(),
            claims: Claims::default(),
            classes: BTreeSet::new(),
            fill: BTreeMap::new(),
            loaded: false,
        }
    }

    /// What the tables look like.
    pub fn layout(&self) -> &Arc<Layout> {
        &self.layout
    }

    /// Asks for the tables to be made anew: nobody knows what the kernel holds.
    pub fn invalidate(&mut self) {
        self.loaded = false;
    }

    /// Number of services that are forwarded.
    pub fn services_len(&self) -> usize {
        self.services_len
    }

    /// Notes a service as it is now, or that there is none.
    pub fn service_changed(&mut self, id: &ServiceId, service: Option<Arc<LocalService>>) {
        if service.is_none() && !self.services.contains_key(id) {
            return;
        }
        self.services_len += usize::from(service.is_some());
        let record = self.services.entry(id.clone()).or_default();
        self.services_len -= usize::from(record.service.is_some());
        record.service = service;
        self.marked.insert(id.clone());
    }

    /// Notes a slice as it is now, or that there is none. `old` is what it was before; it may have belonged
    /// to another service. `name` tells the slices of a service apart.
    pub fn slice_changed(
        &mut self,
        name: &str,
        old: Option<&LocalSlice>,
        new: Option<Arc<LocalSlice>>,
    ) {
        if let Some(old) = old
            && let Some(record) = self.services.get_mut(&old.service)
        {
            record.slices.retain(|(slice, _)| **slice != *name);
            self.marked.insert(old.service.clone());
        }
        if let Some(new) = new {
            let record = self.services.entry(new.service.clone()).or_default();
            record.slices.retain(|(slice, _)| **slice != *name);
            self.marked.insert(new.service.clone());
            record.slices.push((name.into(), new));
        }
    }

    /// Compiles what is marked and says what the kernel has to change.
    pub fn pass(&mut self) -> Pass {
        if !self.loaded {
            return Pass::Reload;
        }
        let mut difference = Difference::new();
        for id in std::mem::take(&mut self.marked) {
            self.recompile(&id, &mut difference);
        }
        let transaction = self.transaction(difference);
        for (entries, grows) in [(&transaction.removed, false), (&transaction.added, true)] {
            for entry in entries {
                let fill = self.fill.entry((entry.family, entry.map)).or_default();
                fill.elements =
                    if grows { fill.elements + 1 } else { fill.elements.saturating_sub(1) };
            }
        }
        if self.fill.values().any(|fill| fill.elements > fill.room) {
            self.loaded = false;
            return Pass::Reload;
        }
        self.classes.extend(transaction.classes.iter().copied());
        Pass::Change(transaction)
    }

    /// Compiles what is marked and says what the tables are as a whole. Maps get room to grow to twice what
    /// they hold.
    pub fn load(&mut self) -> Load {
        for id in std::mem::take(&mut self.marked) {
            self.recompile_unseen(&id);
        }
        let records = self.services.iter();
        let mut entries: Vec<Entry> =
            records.flat_map(|(id, record)| record.compiled.entries(id, &self.claims)).collect();
        entries.sort_unstable_by_key(|entry| (entry.family, entry.map));
        self.classes =
            entries.iter().filter_map(|e| e.class().map(|class| (e.family, class))).collect();
        self.fill.clear();
        for entry in &entries {
            self.fill.entry((entry.family, entry.map)).or_default().elements += 1;
        }
        let families = self.layout.families.iter();
        for place in families.flat_map(|family| Map::ALL.map(|map| (*family, map))) {
            let fill = self.fill.entry(place).or_default();
            fill.room = (fill.elements * 2).next_multiple_of(ROOM_MIN).max(ROOM_MIN);
        }
        self.loaded = true;
        Load { tables: self.skeletons(), entries }
    }

    /// The tables as they should be, compiled as of the last pass.
    pub fn tables(&self) -> Vec<(Family, TableRules)> {
        let records = self.services.iter();
        let entries = records.flat_map(|(id, r)| r.compiled.entries(id, &self.claims)).collect();
        Load { tables: self.skeletons(), entries }.into_tables(&self.layout)
    }

    fn skeletons(&self) -> Vec<(Family, TableRules)> {
        self.layout.families.iter().map(|family| (*family, self.skeleton(*family))).collect()
    }

    fn skeleton(&self, family: Family) -> TableRules {
        let room = |map| self.fill.get(&(family, map)).map_or(ROOM_MIN, |fill| fill.room);
        let size = |map| u32::try_from(room(map)).unwrap_or(u32::MAX);
        let mut table = self.layout.skeleton(family, size);
        for (_, class) in self.classes.iter().filter(|(f, _)| *f == family) {
            self.layout.add_class(family, &mut table, *class);
        }
        table
    }

    /// Compiles one service; the elements of all services that this touches go into `difference`.
    fn recompile(&mut self, id: &ServiceId, difference: &mut Difference) {
        let Some((had, new)) = self.compiled(id) else { return };
        let has = new.claims();
        // Whoever has a claim that comes or goes may lose or win it.
        let mut touched = BTreeSet::from([id.clone()]);
        if had != has {
            let (before, after): (BTreeSet<_>, BTreeSet<_>) =
                (had.iter().collect(), has.iter().collect());
            for (claim, _) in before.symmetric_difference(&after) {
                touched.extend(self.claims.rivals(claim).chain(self.claims.owner(claim)).cloned());
            }
        }
        for (key, entry) in self.entries_of(&touched) {
            difference.entry(key).or_insert_with(|| (Some(entry), None)).1 = None;
        }
        self.install(id, &had, &has, new);
        for (key, entry) in self.entries_of(&touched) {
            difference.entry(key).or_insert((None, None)).1 = Some(entry);
        }
    }

    /// The same without asking what changes by it.
    fn recompile_unseen(&mut self, id: &ServiceId) {
        if let Some((had, new)) = self.compiled(id) {
            let has = new.claims();
            self.install(id, &had, &has, new);
        }
    }

    /// What a service claims as it was compiled last, and the service as it compiles now.
    fn compiled(&self, id: &ServiceId) -> Option<(Vec<(Claim, Rank)>, Compiled)> {
        let record = self.services.get(id)?;
        let new = match &record.service {
            Some(service) => {
                let slices = record.slices.iter().map(|(_, slice)| &**slice);
                compile(service, slices, &self.layout.families, &record.compiled)
            }
            None => Compiled::default(),
        };
        Some((record.compiled.claims(), new))
    }

    fn install(
        &mut self,
        id: &ServiceId,
        had: &[(Claim, Rank)],
        has: &[(Claim, Rank)],
        new: Compiled,
    ) {
        if had != has {
            had.iter().for_each(|(claim, rank)| self.claims.remove(claim, *rank, id));
            has.iter().for_each(|(claim, rank)| self.claims.add(*claim, *rank, id));
        }
        if let Some(record) = self.services.get_mut(id) {
            record.compiled = new;
            if record.service.is_none() && record.slices.is_empty() {
                self.services.remove(id);
            }
        }
    }

    fn entries_of(&self, ids: &BTreeSet<ServiceId>) -> Vec<((Family, Map, Value), Entry)> {
        let records = ids.iter().filter_map(|id| Some((id, self.services.get(id)?)));
        let entries = records.flat_map(|(id, record)| record.compiled.entries(id, &self.claims));
        entries.map(|entry| ((entry.family, entry.map, entry.key.clone()), entry)).collect()
    }

    fn transaction(&self, difference: Difference) -> Transaction {
        let mut transaction = Transaction::default();
        let mut classes = BTreeSet::new();
        for (before, after) in difference.into_values().filter(|(before, after)| before != after) {
            transaction.removed.extend(before);
            if let Some(after) = after {
                classes.extend(after.class().map(|class| (after.family, class)));
                transaction.added.push(after);
            }
        }
        classes.retain(|(_, class)| matches!(class, Class::Balance(..)));
        transaction.classes = classes.difference(&self.classes).copied().collect();
        transaction
    }
}

#[cfg(test)]
mod tests;
