//! The owners above an object and the dependents below it, as lines of a tree.
//!
//! References count by UID. An object that is reached again is not drawn again, so that cycles end; owners that are not there have a line that says so.

use std::collections::{HashMap, HashSet};

use serde_json::Value;

use crate::columns::{ColumnWidths, Row};
use crate::{age, objects, state};

/// Most lines; what is below is left out, which the last line says.
const LINES_MAX: usize = 2000;
/// Deepest level.
const DEPTH_MAX: usize = 64;

/// An object as far as trees need it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TreeObject {
    /// That it was read in, for example `apps/v1`.
    pub api_version: String,
    /// For example `Pod`.
    pub kind: String,
    /// Empty outside of namespaces.
    pub namespace: String,
    pub name: String,
    pub uid: String,
    /// What it names as its owners.
    pub owners: Vec<TreeOwner>,
}

/// A reference to an owner.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TreeOwner {
    /// For example `apps/v1`.
    pub api_version: String,
    /// For example `ReplicaSet`.
    pub kind: String,
    pub name: String,
    pub uid: String,
}

impl TreeObject {
    /// Of an object or its metadata; version and kind are those of its resource.
    pub fn from_object(object: &Value, api_version: &str, kind: &str) -> Self {
        let owner = |one: &Value| TreeOwner {
            api_version: objects::text_at(one, "/apiVersion").to_owned(),
            kind: objects::text_at(one, "/kind").to_owned(),
            name: objects::text_at(one, "/name").to_owned(),
            uid: objects::text_at(one, "/uid").to_owned(),
        };
        Self {
            api_version: api_version.to_owned(),
            kind: kind.to_owned(),
            namespace: objects::namespace(object).to_owned(),
            name: objects::name(object).to_owned(),
            uid: objects::text_at(object, "/metadata/uid").to_owned(),
            owners: objects::list_at(object, "/metadata/ownerReferences")
                .iter()
                .map(owner)
                .collect(),
        }
    }

    /// Whether an owner in `namespace` counts: one in another namespace does not.
    fn may_have_owner_in(&self, namespace: &str) -> bool {
        namespace.is_empty() || namespace == self.namespace
    }
}

/// A line of a tree.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Line {
    /// Branches before the name.
    pub branch: String,
    /// The object; without a UID if there is none to read.
    pub member: TreeObject,
    /// What there is to say of its place.
    pub note: String,
}

/// The tree of the object with the UID in `asked`. `absent` says of owners that are not among `members` why, by UID.
pub fn build(members: Vec<TreeObject>, asked: &str, absent: &HashMap<String, String>) -> Vec<Line> {
    let mut known: HashMap<String, TreeObject> = HashMap::new();
    for member in members {
        known.entry(member.uid.clone()).or_insert(member);
    }
    let above = ancestors(&mut known, asked);
    let mut below: HashMap<&str, Vec<&TreeObject>> = HashMap::new();
    for member in known.values() {
        let mut seen = HashSet::new();
        for owner in &member.owners {
            if seen.insert(&owner.uid) {
                below.entry(&owner.uid).or_default().push(member);
            }
        }
    }
    for dependents in below.values_mut() {
        dependents.sort_by_key(|one| (&one.kind, &one.namespace, &one.name, &one.uid));
    }
    let mut drawing = Drawing {
        below,
        above: above.iter().map(String::as_str).collect(),
        asked,
        absent,
        path: Vec::new(),
        drawn: HashSet::new(),
        lines: Vec::new(),
    };
    let is_top = |uid: &&String| {
        known.get(*uid).is_some_and(|member| !member.owners.iter().any(|one| one.uid != **uid))
    };
    // Those in a cycle have no top: they begin where the way up ended.
    let tops = above.iter().filter(is_top).chain(above.iter().rev());
    for uid in tops.map(String::as_str).chain([asked]) {
        if let Some(member) = known.get(uid)
            && !drawing.drawn.contains(uid)
        {
            drawing.draw(member, "", "", String::new());
        }
    }
    drawing.lines
}

/// UIDs of the owners above, the nearest first. Owners that are not known become members without owners.
fn ancestors(known: &mut HashMap<String, TreeObject>, asked: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    let mut at = 0;
    let mut next = Some(asked.to_owned());
    while let Some(uid) = next {
        let member = known.get(&uid).cloned().unwrap_or_default();
        for owner in member.owners {
            if owner.uid == asked || found.contains(&owner.uid) || found.len() >= LINES_MAX {
                continue;
            }
            found.push(owner.uid.clone());
            known.entry(owner.uid.clone()).or_insert_with(|| TreeObject {
                api_version: owner.api_version,
                kind: owner.kind,
                name: owner.name,
                uid: owner.uid,
                ..TreeObject::default()
            });
        }
        next = found.get(at).cloned();
        at += 1;
    }
    found
}

struct Drawing<'a> {
    /// Those that name an owner, by the owner's UID.
    below: HashMap<&'a str, Vec<&'a TreeObject>>,
    above: HashSet<&'a str>,
    asked: &'a str,
    absent: &'a HashMap<String, String>,
    /// UIDs from the top to the object that is drawn.
    path: Vec<&'a str>,
    drawn: HashSet<&'a str>,
    lines: Vec<Line>,
}

impl<'a> Drawing<'a> {
    /// Draws an object and what is below it; `indent` stands before its dependents.
    fn draw(&mut self, member: &'a TreeObject, branch: &str, indent: &str, note: String) {
        let note = self.note_of(member, note);
        let seen = !self.drawn.insert(&member.uid);
        if self.lines.len() >= LINES_MAX {
            return;
        }
        self.lines.push(Line { branch: branch.to_owned(), member: member.clone(), note });
        if self.lines.len() == LINES_MAX {
            let note = format!("more than {LINES_MAX} lines are not drawn");
            self.lines.extend([Line { note, ..Line::default() }]);
            return;
        }
        if seen || self.path.len() >= DEPTH_MAX {
            return;
        }
        let dependents = self.dependents(member);
        self.path.push(&member.uid);
        let last = dependents.len().saturating_sub(1);
        for (at, dependent) in dependents.into_iter().enumerate() {
            let (own, rest) = if at == last { ("└─", "  ") } else { ("├─", "│ ") };
            let foreign = !dependent.may_have_owner_in(&member.namespace);
            let note = match foreign {
                true => format!("does not count: its owner is in namespace {}", member.namespace),
                false => String::new(),
            };
            self.draw(dependent, &format!("{indent}{own}"), &format!("{indent}{rest}"), note);
        }
        self.path.pop();
    }

    /// Above the requested object only its ancestors.
    fn dependents(&self, member: &TreeObject) -> Vec<&'a TreeObject> {
        let mut dependents = self.below.get(member.uid.as_str()).cloned().unwrap_or_default();
        if member.uid != self.asked && self.above.contains(member.uid.as_str()) {
            dependents.retain(|one| one.uid == self.asked || self.above.contains(one.uid.as_str()));
        }
        dependents
    }

    fn note_of(&self, member: &TreeObject, note: String) -> String {
        let uid = member.uid.as_str();
        if self.path.contains(&uid) {
            return "a cycle: it is above".to_owned();
        }
        if self.drawn.contains(uid) {
            return "drawn above".to_owned();
        }
        if self.path.len() >= DEPTH_MAX && self.below.contains_key(uid) {
            return "what is below is not drawn".to_owned();
        }
        if let Some(reason) = self.absent.get(uid) {
            return reason.clone();
        }
        note
    }
}

/// Lines with what is ready, the state and the age of each object. `read` has the objects by UID.
pub fn render(lines: &[Line], read: &HashMap<String, Value>, now: i64) -> String {
    let mut namespaces = lines.iter().map(|line| &line.member.namespace);
    let namespace = namespaces.find(|namespace| !namespace.is_empty());
    let several = namespaces.any(|one| !one.is_empty() && Some(one) != namespace);
    let heads = ["NAME", "READY", "STATUS", "AGE"].map(str::to_owned);
    let head = several.then(|| "NAMESPACE".to_owned());
    let mut rows: Vec<Row> = vec![head.into_iter().chain(heads).collect()];
    for line in lines {
        let member = &line.member;
        let object = read.get(&member.uid);
        let state = object.map(state::read_state).unwrap_or_default();
        let age = object.map(|object| {
            let created = objects::text_at(object, "/metadata/creationTimestamp");
            age::since(Some(created), now)
        });
        let status: Vec<&str> = [state.status.as_str(), &line.note]
            .into_iter()
            .filter(|text| !text.is_empty())
            .collect();
        let name = match member.kind.as_str() {
            "" => "...".to_owned(),
            kind => format!("{}{kind}/{}", line.branch, member.name),
        };
        let cells = [name, state.ready, status.join(", "), age.unwrap_or_default()];
        let namespace = several.then(|| member.namespace.clone());
        rows.push(namespace.into_iter().chain(cells).collect());
    }
    let text = ColumnWidths::default().render(&rows);
    text.lines().map(|line| line.trim_end().to_owned() + "\n").collect()
}

#[cfg(test)]
mod tests;
