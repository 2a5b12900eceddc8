//! Compiles marked Services and computes the changes of the tables.

use std::collections::{BTreeMap, BTreeSet};

use super::{Dataplane, ElementChanges, Mark};
use crate::budget::{Budget, WORK_MAX};
use crate::compile::{CompiledService, SetElement, compile};
use crate::frontend_owners::{Claim, Rank};
use crate::health::{HealthCheck, local_endpoints};
use crate::model::{Protocol, ServiceId};
use crate::transaction::{ElementsByMap, Transaction};

impl Dataplane {
    /// The elements of all Services, as of the last pass.
    pub(super) fn entries(&self) -> ElementsByMap {
        let mut entries = ElementsByMap::default();
        for (id, record) in &self.services {
            record.compiled.entries(id, &self.claims, &mut entries);
        }
        entries.sort();
        entries
    }

    /// Compiles the marked Services; returns the elements of all Services.
    pub(super) fn compile_all(&mut self) -> ElementsByMap {
        let marked = std::mem::take(&mut self.pending.marked);
        // At the first load each Service is visited once, in the order of memory.
        let first = marked.len() == self.services.len();
        self.claims.reserve(marked.len().saturating_mul(2));
        let mut entries = ElementsByMap::default();
        for id in &marked {
            let Some(new) = self.compiled(id) else { continue };
            if first {
                new.entries(id, &self.claims, &mut entries);
            }
            self.install(id, new);
        }
        // Elements created before another Service's claim was known may belong to that Service.
        if !first || self.claims.contested() > 0 {
            return self.entries();
        }
        entries.sort();
        entries
    }

    /// Compiles the marked Services; returns the changes.
    pub(super) fn compile_marked(&mut self) -> Transaction {
        let mut transaction = Transaction::default();
        let mut claimants = Vec::new();
        let (mut before, mut after) = (Vec::new(), Vec::new());
        for id in std::mem::take(&mut self.pending.marked) {
            let Some(new) = self.compiled(&id) else { continue };
            let Some(record) = self.services.get(&id) else { continue };
            if !record.compiled.claims().eq(new.claims()) {
                claimants.push((id, new));
                continue;
            }
            // No other Service is affected: the usual case, which needs no map of all elements.
            record.compiled.entries(&id, &self.claims, &mut before);
            new.entries(&id, &self.claims, &mut after);
            transaction.add_difference(&mut before, &mut after);
            self.install(&id, new);
        }
        if !claimants.is_empty() {
            let mut difference = ElementChanges::new();
            let removed = transaction.removed.drain(..).map(|entry| (entry, 0));
            for (entry, side) in removed.chain(transaction.added.drain(..).map(|entry| (entry, 1)))
            {
                let pair = difference.entry(entry.place()).or_insert((None, None));
                *(if side == 0 { &mut pair.0 } else { &mut pair.1 }) = Some(entry);
            }
            self.reclaim(claimants, &mut difference);
            // Another Service may have taken what would have stayed.
            transaction.kept.retain(|entry| {
                let changed = difference.get(&entry.place());
                changed.is_none_or(|(_, after)| after.as_ref() == Some(entry))
            });
            for (before, after) in difference.into_values() {
                if before == after {
                    let leads_on = |entry: &SetElement| entry.endpoint().is_some();
                    transaction.kept.extend(after.filter(leads_on));
                } else {
                    transaction.removed.extend(before);
                    transaction.added.extend(after);
                }
            }
        }
        transaction.removed.sort_unstable();
        transaction.added.sort_unstable();
        transaction.classes = self.tables.new_classes(&transaction.added);
        transaction.prefixes = self.tables.new_prefixes(&transaction.added);
        transaction
    }

    /// Installs Services whose claims changed; records the elements of all affected Services in `difference`.
    fn reclaim(
        &mut self,
        claimants: Vec<(ServiceId, CompiledService)>,
        difference: &mut ElementChanges,
    ) {
        let touched = self.touched(&claimants);
        for entry in self.entries_of(&touched) {
            let place = entry.place();
            difference.entry(place).or_insert_with(|| (Some(entry), None)).1 = None;
        }
        for (id, new) in claimants {
            self.install(&id, new);
        }
        for entry in self.entries_of(&touched) {
            let pair = difference.entry(entry.place()).or_insert((None, None));
            pair.1 = Some(entry);
        }
    }

    /// These Services and all that gain or lose a frontend by their new claims: the owner of each claim that is added
    /// or removed, and the next in line for each that may become free.
    fn touched(&self, claimants: &[(ServiceId, CompiledService)]) -> BTreeSet<ServiceId> {
        let mut changes: BTreeMap<Claim, usize> = BTreeMap::new();
        for (id, new) in claimants {
            let compiled = self.services.get(id).map(|record| &record.compiled);
            let had: BTreeSet<(Claim, Rank)> =
                compiled.into_iter().flat_map(CompiledService::claims).collect();
            let has: BTreeSet<(Claim, Rank)> = new.claims().collect();
            for (claim, _) in had.symmetric_difference(&has) {
                let count = changes.entry(*claim).or_default();
                *count = count.saturating_add(1);
            }
        }
        let mut touched: BTreeSet<ServiceId> = claimants.iter().map(|(id, _)| id.clone()).collect();
        for (claim, count) in changes {
            let contenders = self.claims.contenders(&claim).take(count.saturating_add(1));
            touched.extend(contenders.inspect(|_| proto_api::count_steps!(1)).cloned());
        }
        touched
    }

    /// Compiles a marked Service and clears the mark.
    fn compiled(&mut self, id: &ServiceId) -> Option<CompiledService> {
        let record = self.services.get_mut(id)?;
        let mark = std::mem::take(&mut record.mark);
        let port = record.service.as_ref().and_then(|service| service.health_check_port);
        let port = port.filter(|port| !self.layout.settings.uses_port(*port, Protocol::Tcp));
        let was = match port {
            Some(port) => {
                let slices = record.slices.iter();
                let check = HealthCheck { port, local_endpoints: local_endpoints(slices) };
                let was = self.health_checks.all.insert(id.clone(), check);
                (was != Some(check)).then_some(())
            }
            None => self.health_checks.all.remove(id).map(drop),
        };
        self.health_checks.changed |= was.is_some();
        self.published.node_ports.record_compiled(id, record.service.as_deref());
        let before = record.compiled.work();
        let allowance = self.budgets.allowance(id, before);
        let new = match &record.service {
            None => CompiledService::default(),
            Some(service) => {
                let (zone, mut made) = (self.zone.as_deref(), None);
                let whole = (self.isolate)(&mut || {
                    let (slices, old) = (record.slices.iter(), &record.compiled);
                    let budget = Budget::new(allowance);
                    made = Some(compile(service, slices, &self.layout, old, zone, budget));
                });
                made.filter(|_| whole).unwrap_or_else(CompiledService::failed)
            }
        };
        let too_little = (new.is_over_budget() && allowance < WORK_MAX).then_some(allowance);
        let has_changed = mark == Mark::Changed;
        self.budgets.record(id, (before, new.work()), too_little, has_changed);
        if let Some(next) = self.budgets.next_waiting(id)
            && let Some(record) = self.services.get_mut(&next)
        {
            record.mark_as(Mark::Turn, &next, &mut self.pending.marked);
        }
        Some(new)
    }

    fn install(&mut self, id: &ServiceId, new: CompiledService) {
        let Some(record) = self.services.get_mut(id) else { return };
        let old = std::mem::replace(&mut record.compiled, new);
        self.published.announced.set(id, record.compiled.announced());
        let (before, now) =
            (old.without_local_endpoints(), record.compiled.without_local_endpoints());
        match (old.is_over_budget(), record.compiled.is_over_budget()) {
            (false, true) => drop(self.budgets.exceeded.insert(id.clone())),
            (true, false) => drop(self.budgets.exceeded.remove(id)),
            _ => {}
        }
        for ((sum, before), now) in self.without_local_endpoints.iter_mut().zip(before).zip(now) {
            *sum = sum.saturating_add(now).saturating_sub(before);
        }
        if !old.claims().eq(record.compiled.claims()) {
            old.claims().for_each(|(claim, rank)| self.claims.remove(&claim, rank, id));
            record.compiled.claims().for_each(|(claim, rank)| self.claims.add(claim, rank, id));
        }
        if record.service.is_none() && record.slices.is_empty() {
            self.services.remove(id);
        }
    }

    fn entries_of(&self, ids: &BTreeSet<ServiceId>) -> Vec<SetElement> {
        let mut entries = Vec::new();
        for (id, record) in ids.iter().filter_map(|id| Some((id, self.services.get(id)?))) {
            record.compiled.entries(id, &self.claims, &mut entries);
        }
        entries
    }
}
