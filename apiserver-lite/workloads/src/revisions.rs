//! ControllerRevisions: a history of pod templates. The data of a revision is a strategic merge patch that restores its template, as
//! `kubectl rollout undo` applies it.

use apiserver_controllers::api_writes::{ApiWrite, ObjectKind, Part};
use apiserver_controllers::name_hash::name_hash;
use proto_api::apps::v1::ControllerRevision;
use proto_api::core::v1::PodTemplateSpec;
use proto_api::meta::v1::{ObjectMeta, OwnerReference};
use proto_api::{ObjectKey, RawJson};
use serde_json::{Value, json};

/// Default of `revisionHistoryLimit`.
const HISTORY_LEN: i32 = 10;

/// The revisions of an owner, the oldest first.
pub(crate) struct History<'a> {
    /// Those of the owner's template.
    pub(crate) equal: Vec<&'a ControllerRevision>,
    /// The others.
    pub(crate) old: Vec<&'a ControllerRevision>,
}

impl<'a> History<'a> {
    /// Compares the revisions with a template's data. Both are canonical: there may be hundreds, of megabytes each.
    pub(crate) fn from_revisions(
        mut revisions: Vec<&'a ControllerRevision>,
        data: &RawJson,
    ) -> Self {
        revisions.sort_by(|a, b| order(a).cmp(&order(b)));
        let (equal, old) = revisions.into_iter().partition(|revision| revision.data == *data);
        Self { equal, old }
    }

    /// The number of a revision that follows the old ones.
    pub(crate) fn next_number(&self) -> i64 {
        let newest = self.old.iter().map(|revision| revision.revision).max();
        newest.unwrap_or(0).max(0).saturating_add(1)
    }
}

fn order(revision: &ControllerRevision) -> impl Ord + '_ {
    let metadata = &revision.metadata;
    (revision.revision, metadata.creation_timestamp.unix(), &metadata.name)
}

/// Characters that Go escapes in JSON, so that its text is safe in HTML.
const ESCAPED: [(char, &str); 5] = [
    ('<', "\\u003c"),
    ('>', "\\u003e"),
    ('&', "\\u0026"),
    ('\u{2028}', "\\u2028"),
    ('\u{2029}', "\\u2029"),
];

/// The revision with canonical data: plans compare it byte by byte, whatever wrote it. Caches keep this form, so that each revision is parsed once.
pub fn canonical_revision(revision: ControllerRevision) -> ControllerRevision {
    match parse(&revision.data) {
        Some(data) => ControllerRevision { data: canonical(data), ..revision },
        // It is no template's.
        None => revision,
    }
}

fn parse(data: &RawJson) -> Option<Value> {
    proto_api::count_steps!(data.raw.len());
    data.parse().ok()
}

/// Keys are sorted, and no character is escaped that need not be.
fn canonical(mut data: Value) -> RawJson {
    data.sort_all_objects();
    RawJson { raw: data.to_string().into_bytes() }
}

/// The canonical data of a template's revision.
pub(crate) fn data_of(template: &PodTemplateSpec) -> RawJson {
    let mut template = serde_json::to_value(template).unwrap_or_default();
    if let Some(fields) = template.as_object_mut() {
        fields.insert("$patch".into(), json!("replace"));
    }
    canonical(json!({ "spec": { "template": template } }))
}

/// The data of a new revision, byte for byte as Kubernetes writes it: clients compare it with what they make of the template themselves.
fn escape_html(canonical: &RawJson) -> RawJson {
    let mut text = String::from_utf8_lossy(&canonical.raw).into_owned();
    for (character, escaped) in ESCAPED {
        // They stand in strings only.
        if text.contains(character) {
            text = text.replace(character, escaped);
        }
    }
    RawJson { raw: text.into_bytes() }
}

/// The template of a revision; none if its data is something else.
pub(crate) fn template_of(revision: &ControllerRevision) -> Option<PodTemplateSpec> {
    let mut data = parse(&revision.data)?;
    let template = data.pointer_mut("/spec/template")?;
    template.as_object_mut()?.remove("$patch");
    serde_json::from_value(template.take()).ok()
}

/// The revision of a template.
pub(crate) enum CurrentRevision<'a> {
    /// It is there.
    Found(&'a ControllerRevision),
    /// It is there once this is written.
    After(Box<ApiWrite>),
    /// Another revision has its name: its owner counts the collision, which gives another name.
    NameTaken,
}

/// The revision of the history's template, which has this data; `make` from its number if there is none. `all` are the revisions of the namespace.
pub(crate) fn current<'a, R: AsRef<ControllerRevision>>(
    history: &History<'a>,
    all: &'a [R],
    data: &RawJson,
    make: impl FnOnce(i64) -> ControllerRevision,
) -> CurrentRevision<'a> {
    let number = history.next_number();
    // Duplicates come from adoption; the newest stays.
    if let Some(current) = history.equal.last().copied() {
        return match current.revision < number {
            true => CurrentRevision::After(Box::new(renumber(current, number))),
            false => CurrentRevision::Found(current),
        };
    }
    let new = make(number);
    let key = ObjectKey::from_metadata(&new.metadata);
    let mut others = all.iter().map(AsRef::as_ref);
    match others.find(|other| ObjectKey::from_metadata(&other.metadata) == key) {
        None => CurrentRevision::After(Box::new(ApiWrite::Create(new.into()))),
        // That of an earlier set of this name, which the garbage collector deletes.
        Some(equal) if equal.data == *data => CurrentRevision::Found(equal),
        Some(_) => CurrentRevision::NameTaken,
    }
}

/// The count of collisions after one more.
pub(crate) fn one_more(collisions: Option<i32>) -> Option<i32> {
    Some(collisions.unwrap_or(0).checked_add(1).unwrap_or(0))
}

/// A new revision without labels of its owner's kind, and its hash.
pub(crate) fn new_revision(
    owner: &ObjectMeta,
    template: &PodTemplateSpec,
    data: &RawJson,
    (revision, collisions): (i64, Option<i32>),
    reference: OwnerReference,
) -> (ControllerRevision, String) {
    let data = escape_html(data);
    let collisions = collisions.map(|count| count.to_string()).unwrap_or_default();
    let hash = name_hash(&[&data.raw, collisions.as_bytes()]);
    let metadata = ObjectMeta {
        name: format!("{}-{hash}", owner.name),
        namespace: owner.namespace.clone(),
        labels: template.metadata.labels.clone(),
        annotations: owner.annotations.clone(),
        owner_references: vec![reference],
        ..ObjectMeta::default()
    };
    (ControllerRevision { metadata, data, revision }, hash)
}

/// Gives a revision a new number; conditional on its version.
fn renumber(revision: &ControllerRevision, number: i64) -> ApiWrite {
    let metadata = &revision.metadata;
    let metadata_patch =
        json!({ "uid": metadata.uid, "resourceVersion": metadata.resource_version });
    ApiWrite::Patch {
        kind: ObjectKind::ControllerRevision,
        key: ObjectKey::from_metadata(metadata),
        part: Part::Main,
        patch: json!({ "metadata": metadata_patch, "revision": number }),
    }
}

/// The oldest revisions beyond the limit. Those in use do not count and stay.
pub(crate) fn excess<'a>(
    old: &[&'a ControllerRevision],
    limit: Option<i32>,
    is_live: impl Fn(&ControllerRevision) -> bool,
    live_count: LiveCount,
) -> Vec<&'a ControllerRevision> {
    let limit = usize::try_from(limit.unwrap_or(HISTORY_LEN)).unwrap_or(0);
    let unused: Vec<&ControllerRevision> =
        old.iter().copied().filter(|revision| !is_live(revision)).collect();
    let counted = match live_count {
        LiveCount::Counted => old.len(),
        LiveCount::Exempt => unused.len(),
    };
    unused.into_iter().take(counted.saturating_sub(limit)).collect()
}

/// Whether the limit of a history counts revisions that pods have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LiveCount {
    /// It does, as for DaemonSets.
    Counted,
    /// It does not, as for StatefulSets.
    Exempt,
}

#[cfg(test)]
mod tests {
    use proto_api::core::v1::{Container, ContainerPort, PodSpec};

    use super::*;

    #[test]
    fn data_is_what_kubernetes_writes() {
        let mut template = PodTemplateSpec::default();
        template.metadata.labels.insert("b".into(), "2".into());
        template.metadata.labels.insert("a".into(), "1".into());
        let port = ContainerPort {
            container_port: 9376,
            protocol: "TCP".into(),
            ..ContainerPort::default()
        };
        let container = Container {
            name: "app".into(),
            image: "web:1".into(),
            args: vec!["a<b && c>d\u{2028}".into()],
            ports: vec![port],
            ..Container::default()
        };
        template.spec = PodSpec { containers: vec![container], ..PodSpec::default() };
        let expect = concat!(
            r#"{"spec":{"template":{"$patch":"replace","metadata":{"creationTimestamp":null,"labels":{"a":"1","b":"2"}},"#,
            r#""spec":{"containers":[{"args":["a\u003cb \u0026\u0026 c\u003ed\u2028"],"image":"web:1","name":"app","#,
            r#""ports":[{"containerPort":9376,"protocol":"TCP"}],"resources":{}}]}}}}"#,
        );
        let canonical = data_of(&template);
        let data = escape_html(&canonical);
        assert_eq!(String::from_utf8(data.raw.clone()).unwrap(), expect);
        let revision = ControllerRevision { data, ..ControllerRevision::default() };
        assert_eq!(template_of(&revision).unwrap(), template);
        assert_eq!(canonical_revision(revision).data, canonical);
    }

    #[test]
    fn a_revision_has_one_form_whatever_wrote_it() {
        let form = |text: &str| {
            let data = RawJson { raw: text.into() };
            canonical_revision(ControllerRevision { data, ..Default::default() }).data.raw
        };
        let expect = r#"{"a":{"b":"<é","c":[1,2.5]},"d":null}"#;
        for text in [
            expect,
            r#"{"d":null,"a":{"c":[1,2.5],"b":"\u003c\u00e9"}}"#,
            "{ \"a\": {\"c\": [1, 25e-1], \"b\": \"<é\"},\n\"d\": null}",
        ] {
            assert_eq!(form(text), expect.as_bytes(), "{text}");
        }
        assert_ne!(form(r#"{"a":{"b":"<é","c":[2.5,1]},"d":null}"#), expect.as_bytes());
        assert_eq!(form("no JSON"), b"no JSON");
    }

    /// A user has as many as `revisionHistoryLimit` says.
    #[test]
    fn a_history_is_made_without_parsing_revisions() {
        let template = |nth: usize| {
            let mut template = PodTemplateSpec::default();
            template.spec.scheduler_name = format!("{nth}");
            template
        };
        let revision = |nth: usize| {
            let data = escape_html(&data_of(&template(nth)));
            canonical_revision(ControllerRevision { data, ..Default::default() })
        };
        let revisions: Vec<_> = (0..300).map(revision).collect();
        for nth in [7, 300] {
            let data = data_of(&template(nth));
            let mut found = None;
            let work = || found = Some(History::from_revisions(revisions.iter().collect(), &data));
            assert_eq!(proto_api::steps::count_during(work), 0, "bytes parsed");
            let equal = usize::from(nth < 300);
            let found = found.map(|history| (history.equal.len(), history.old.len()));
            assert_eq!(found, Some((equal, 300 - equal)));
        }
    }
}
