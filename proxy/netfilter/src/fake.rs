//! A fake kernel in memory, which accepts the same bytes as the real one and responds by its rules.
//!
//! It implements: atomic transactions, generations, existence, duplicates, set sizes, references that keep chains and
//! sets alive, owners of tables, lengths of keys. It does not: forward packets, expire elements, check that a chain
//! suits its hook or that chains form no loop.

use std::collections::BTreeMap;

use crate::ack::{Ack, errno};
use crate::nft::batch::{Answer, BATCH_BEGIN, BATCH_END, batch_generation};
use crate::nft::command::{Command, IfExists, message};
use crate::nft::numbers::{SetFlags, TableFlags};
use crate::nft::object::{Chain, Element, Elements, Generation, Rule, Set, Table};
use crate::nft::ruleset::{ChainRules, SetElements};
use crate::nft::{Data, Expr, Family, Ruleset, TableRules, Value};
use crate::wire::{self, Message, Messages, Writer, flags};

/// Length of one part of a dump, as the kernel's first buffer.
const PART_LEN: usize = 8192;

/// The fake kernel as one socket sees it.
#[derive(Clone, Debug, Default)]
pub struct FakeKernel {
    ruleset: Ruleset,
    generation: u32,
    foreign: Vec<(Family, String)>,
}

/// Error number.
type Errno = i32;

impl FakeKernel {
    /// The current ruleset.
    pub fn ruleset(&self) -> &Ruleset {
        &self.ruleset
    }

    /// The current generation.
    pub fn generation(&self) -> u32 {
        self.generation
    }

    /// Changes the ruleset as another program would; increments the generation.
    pub fn change_externally(&mut self, change: impl FnOnce(&mut Ruleset)) {
        change(&mut self.ruleset);
        self.generation = self.generation.wrapping_add(1);
    }

    /// Gives a table to another owner: changing it fails with `EPERM` from now on.
    pub fn give_away(&mut self, family: Family, table: &str) {
        self.foreign.push((family, table.to_owned()));
    }

    /// Processes one datagram and returns the response datagrams.
    pub fn send(&mut self, datagram: &[u8]) -> Vec<Vec<u8>> {
        match Messages::new(datagram).next() {
            Some(Ok(first)) if first.kind == BATCH_BEGIN => self.transact(datagram, &first),
            Some(Ok(first)) => self.query(&first),
            _ => Vec::new(),
        }
    }

    fn transact(&mut self, datagram: &[u8], begin: &Message<'_>) -> Vec<Vec<u8>> {
        let wanted = batch_generation(begin).ok().flatten();
        if wanted.is_some_and(|wanted| wanted != self.generation) {
            return vec![Ack::write(errno::ERESTART, begin.seq)];
        }
        let before = self.ruleset.clone();
        let (mut answers, mut failed) = (Vec::new(), false);
        for message in Messages::new(datagram).flatten() {
            if message.kind == BATCH_BEGIN || message.kind == BATCH_END {
                continue;
            }
            let result = Command::read(&message)
                .map_err(|_| errno::EINVAL)
                .and_then(|(family, command)| self.apply(family, command));
            failed |= result.is_err();
            if result.is_err() || message.flags & flags::ACK != 0 {
                answers.push(Ack::write(result.err().unwrap_or_default(), message.seq));
            }
        }
        if failed {
            self.ruleset = before;
        } else {
            self.generation = self.generation.wrapping_add(1);
        }
        answers
    }

    fn apply(&mut self, family: Family, command: Command) -> Result<(), Errno> {
        let table = match &command {
            Command::NewTable(table, existing) => return self.new_table(family, table, *existing),
            Command::DelTable(table) => {
                self.table(family, &table.name)?;
                self.ruleset.tables.remove(&(family, table.name.clone()));
                return Ok(());
            }
            Command::NewChain(chain, _) | Command::DelChain(chain) => &chain.table,
            Command::NewRule(rule) | Command::DelRule(rule) => &rule.table,
            Command::NewSet(set, _) | Command::DelSet(set) => &set.table,
            Command::NewElements(list, _) | Command::DelElements(list) => &list.table,
        };
        let table = self.table(family, table)?;
        match command {
            Command::NewTable(..) | Command::DelTable(_) => Ok(()),
            Command::NewChain(chain, existing) => new_chain(table, chain, existing),
            Command::DelChain(chain) => del_chain(table, &chain),
            Command::NewRule(rule) => new_rule(table, rule),
            Command::DelRule(rule) => del_rules(table, &rule),
            Command::NewSet(set, existing) => new_set(table, set, existing),
            Command::DelSet(set) => del_set(table, &set),
            Command::NewElements(list, existing) => new_elements(table, list, existing),
            Command::DelElements(list) => del_elements(table, list),
        }
    }

    fn table(&mut self, family: Family, name: &str) -> Result<&mut TableRules, Errno> {
        if self.foreign.iter().any(|(f, n)| *f == family && n == name) {
            return Err(errno::EPERM);
        }
        self.ruleset.tables.get_mut(&(family, name.to_owned())).ok_or(errno::ENOENT)
    }

    fn new_table(
        &mut self,
        family: Family,
        table: &Table,
        existing: IfExists,
    ) -> Result<(), Errno> {
        match self.table(family, &table.name) {
            Ok(_) if existing == IfExists::Fail => Err(errno::EEXIST),
            Ok(there) if table.flags.is_none_or(|flags| flags == there.flags) => Ok(()),
            Ok(_) => Err(errno::EOPNOTSUPP),
            Err(errno::ENOENT) => {
                let flags = table.flags.unwrap_or(TableFlags::NONE);
                let key = (family, table.name.clone());
                self.ruleset.tables.insert(key, TableRules::empty(flags));
                Ok(())
            }
            Err(other) => Err(other),
        }
    }

    fn query(&self, message: &Message<'_>) -> Vec<Vec<u8>> {
        let number = message.kind.to_be_bytes()[1];
        if number == message::GET_GENERATION {
            let generation =
                Generation { id: self.generation, pid: None, process: Some("fake".into()) };
            return datagrams(vec![Answer::Generation(generation)], message.seq, None);
        }
        let family = message.family().ok().and_then(Family::from_number);
        let mut names = message.attributes().into_iter().flatten().flatten();
        let mut name = || names.next().and_then(|n| n.name("name").ok().map(str::to_owned));
        let (table, set) = (name(), name());
        let answers = self
            .ruleset
            .tables
            .iter()
            .filter(|((f, _), _)| family.is_none_or(|family| family == *f))
            .filter(|((_, n), _)| table.as_ref().is_none_or(|table| table == n))
            .flat_map(|((f, n), rules)| answers(number, *f, n, rules, set.as_deref()))
            .collect();
        datagrams(answers, message.seq, Some(wire::NLMSG_DONE))
    }
}

/// Objects of one table that a dump of kind `number` contains.
fn answers(
    number: u8,
    family: Family,
    name: &str,
    table: &TableRules,
    set: Option<&str>,
) -> Vec<Answer> {
    match number {
        message::GET_TABLE => {
            vec![Answer::Table(family, Table { flags: Some(table.flags), ..Table::named(name) })]
        }
        message::GET_CHAIN => {
            table.chains.values().map(|c| Answer::Chain(family, c.chain.clone())).collect()
        }
        message::GET_RULE => {
            let rules = table.chains.values().flat_map(|chain| chain.rules.iter().cloned());
            rules.map(|rule| Answer::Rule(family, rule)).collect()
        }
        message::GET_SET => {
            table.sets.values().map(|s| Answer::Set(family, s.set.clone())).collect()
        }
        _ => {
            let elements = set.and_then(|set| table.sets.get(set)).map(|s| &s.elements);
            let elements: Vec<Element> =
                elements.into_iter().flat_map(|e| e.values().cloned()).collect();
            let part = |elements: &[Element]| Elements {
                table: name.to_owned(),
                set: set.unwrap_or_default().to_owned(),
                elements: elements.to_vec(),
            };
            elements.chunks(64).map(|chunk| Answer::Elements(family, part(chunk))).collect()
        }
    }
}

fn datagrams(answers: Vec<Answer>, seq: u32, end: Option<u16>) -> Vec<Vec<u8>> {
    let mut parts = Vec::new();
    let mut writer = Writer::default();
    for answer in answers {
        answer.write(&mut writer, seq);
        if writer.len() > PART_LEN {
            parts.extend(std::mem::take(&mut writer).finish());
        }
    }
    if let Some(kind) = end {
        let header = wire::Header { kind, flags: flags::MULTI, seq, family: 0, resource: 0 };
        writer.message(header, |_| {});
    }
    parts.extend(writer.finish());
    parts
}

fn new_chain(table: &mut TableRules, chain: Chain, existing: IfExists) -> Result<(), Errno> {
    match (table.chains.get(&chain.name), existing) {
        (Some(_), IfExists::Fail) => Err(errno::EEXIST),
        (Some(_), IfExists::Keep) => Ok(()),
        (None, _) => {
            let rules = ChainRules { chain: chain.clone(), rules: Vec::new() };
            table.chains.insert(chain.name, rules);
            Ok(())
        }
    }
}

fn del_chain(table: &mut TableRules, chain: &Chain) -> Result<(), Errno> {
    if !table.chains.contains_key(&chain.name) {
        return Err(errno::ENOENT);
    }
    // A rule of the chain that jumps to the chain itself counts as a reference too, as in the real kernel.
    let entered = verdict_chains(table).any(|target| target == chain.name);
    if entered {
        return Err(errno::EBUSY);
    }
    table.chains.remove(&chain.name);
    Ok(())
}

fn new_rule(table: &mut TableRules, rule: Rule) -> Result<(), Errno> {
    if !table.chains.contains_key(&rule.chain) {
        return Err(errno::ENOENT);
    }
    for expr in &rule.exprs {
        if let Some(chain) = expr_chain(expr)
            && !table.chains.contains_key(chain)
        {
            return Err(errno::ENOENT);
        }
        if let Some(set) = expr_set(expr)
            && !table.sets.contains_key(set)
        {
            return Err(errno::ENOENT);
        }
    }
    let chain = table.chains.get_mut(&rule.chain).ok_or(errno::ENOENT)?;
    chain.rules.push(Rule { handle: None, ..rule });
    Ok(())
}

fn del_rules(table: &mut TableRules, rule: &Rule) -> Result<(), Errno> {
    let chain = table.chains.get_mut(&rule.chain).ok_or(errno::ENOENT)?;
    match rule.handle {
        None => chain.rules.clear(),
        Some(_) => return Err(errno::ENOENT),
    }
    Ok(())
}

fn new_set(table: &mut TableRules, set: Set, existing: IfExists) -> Result<(), Errno> {
    let is_map = set.flags.contains(SetFlags::MAP);
    if set.id.is_none() || is_map != set.data_type.is_some() {
        return Err(errno::EINVAL);
    }
    match (table.sets.get(&set.name), existing) {
        (Some(_), IfExists::Fail) => Err(errno::EEXIST),
        (Some(there), IfExists::Keep) => {
            let same = Set { id: None, ..set } == there.set;
            if same { Ok(()) } else { Err(errno::EEXIST) }
        }
        (None, _) => {
            let name = set.name.clone();
            let set = SetElements { set: Set { id: None, ..set }, elements: BTreeMap::new() };
            table.sets.insert(name, set);
            Ok(())
        }
    }
}

fn del_set(table: &mut TableRules, set: &Set) -> Result<(), Errno> {
    if !table.sets.contains_key(&set.name) {
        return Err(errno::ENOENT);
    }
    let rules = table.chains.values().flat_map(|chain| &chain.rules);
    let used = rules.flat_map(|rule| &rule.exprs).any(|e| expr_set(e) == Some(&set.name));
    if used {
        return Err(errno::EBUSY);
    }
    table.sets.remove(&set.name);
    Ok(())
}

fn new_elements(table: &mut TableRules, list: Elements, existing: IfExists) -> Result<(), Errno> {
    for element in &list.elements {
        if let Some(chain) = element_chain(element)
            && !table.chains.contains_key(chain)
        {
            return Err(errno::ENOENT);
        }
    }
    let set = table.sets.get_mut(&list.set).ok_or(errno::ENOENT)?;
    for element in list.elements {
        check_shape(&set.set, &element)?;
        match set.elements.get(&element.key) {
            Some(_) if existing == IfExists::Fail => return Err(errno::EEXIST),
            Some(there) if there.data != element.data => return Err(errno::EEXIST),
            Some(_) => {}
            None => {
                let full = set.set.size.0.is_some_and(|size| set.elements.len() >= size as usize);
                if full {
                    return Err(errno::ENFILE);
                }
                let expr = element.expr.or_else(|| set.set.expr.clone().map(Box::new));
                let element = Element { expr, ..element };
                set.elements.insert(element.key.clone(), element);
            }
        }
    }
    Ok(())
}

fn del_elements(table: &mut TableRules, list: Elements) -> Result<(), Errno> {
    let set = table.sets.get_mut(&list.set).ok_or(errno::ENOENT)?;
    if list.elements.is_empty() {
        set.elements.clear();
    }
    for element in list.elements {
        check_key(&set.set, &element.key)?;
        set.elements.remove(&element.key).ok_or(errno::ENOENT)?;
    }
    Ok(())
}

fn check_key(set: &Set, key: &Value) -> Result<(), Errno> {
    if key.bytes().len() == set.key_len as usize { Ok(()) } else { Err(errno::EINVAL) }
}

/// Lengths of key and data must be those of the set.
fn check_shape(set: &Set, element: &Element) -> Result<(), Errno> {
    check_key(set, &element.key)?;
    match (&element.data, set.flags.contains(SetFlags::MAP)) {
        (None, false) | (Some(Data::Verdict(_)), true) => Ok(()),
        (Some(Data::Value(value)), true)
            if set.data_len.is_some_and(|len| len as usize == value.bytes().len()) =>
        {
            Ok(())
        }
        _ => Err(errno::EINVAL),
    }
}

/// Chains that rules and elements of the table jump to.
fn verdict_chains(table: &TableRules) -> impl Iterator<Item = &str> {
    let rules = table.chains.values().flat_map(|c| &c.rules).flat_map(|rule| &rule.exprs);
    let elements = table.sets.values().flat_map(|set| set.elements.values());
    rules.filter_map(expr_chain).chain(elements.filter_map(element_chain))
}

fn expr_chain(expr: &Expr) -> Option<&str> {
    match expr {
        Expr::Immediate(immediate) => data_chain(&immediate.data),
        _ => None,
    }
}

fn element_chain(element: &Element) -> Option<&str> {
    element.data.as_ref().and_then(data_chain)
}

fn data_chain(data: &Data) -> Option<&str> {
    match data {
        Data::Verdict(verdict) => verdict.chain(),
        Data::Value(_) => None,
    }
}

fn expr_set(expr: &Expr) -> Option<&str> {
    match expr {
        Expr::Lookup(lookup) => Some(&lookup.set),
        Expr::Dynset(dynset) => Some(&dynset.set),
        _ => None,
    }
}
