//! An object of a custom kind as its readers see it: in the version that they ask for, pruned and defaulted by the rules that its definition has now.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use apiserver_schema::custom::CustomVersion;
use apiserver_schema::{Kind, Object};

use super::StoredObject;
use crate::versions;

/// The views of a record, one for each version that readers have asked for. Those that only a webhook can make are put here by who has asked it.
#[derive(Default)]
pub struct Views(Mutex<Vec<View>>);

struct View {
    kind: Arc<Kind>,
    /// [`CustomVersion::number`] of the rules that made it.
    rules: u64,
    /// `None` where the object is shown as it is stored, as most are.
    record: Option<Arc<StoredObject>>,
}

impl Views {
    /// `record` as an object of `kind`, whose rules are `version`; `None` if only a webhook can make it one.
    pub fn get_or_convert(
        &self,
        record: &Arc<StoredObject>,
        kind: &Arc<Kind>,
        version: &CustomVersion,
    ) -> Option<Arc<StoredObject>> {
        if let Some(found) = self.find(record, kind, version.number) {
            return Some(found);
        }
        let stored = record.object();
        let is_own = Arc::ptr_eq(&stored.kind, kind);
        if version.has_webhook && !is_own {
            return None;
        }
        let object = versions::read_custom(stored, kind, version);
        let made = (!is_own || object != *stored).then_some(object);
        Some(self.put(record, kind, version.number, made))
    }

    /// The view as an object of `kind` by these rules, if it was made.
    fn find(
        &self,
        record: &Arc<StoredObject>,
        kind: &Arc<Kind>,
        rules: u64,
    ) -> Option<Arc<StoredObject>> {
        find(&self.lock(), record, kind, rules)
    }

    /// Keeps the view as an object of `kind`: `object`, or the record as it is stored.
    pub fn put(
        &self,
        record: &Arc<StoredObject>,
        kind: &Arc<Kind>,
        rules: u64,
        object: Option<Object>,
    ) -> Arc<StoredObject> {
        let made = object.map(|object| Arc::new(record.showing(object)));
        let mut views = self.lock();
        // Another reader may have made it meanwhile: all readers share one.
        if let Some(found) = find(&views, record, kind, rules) {
            return found;
        }
        let view = View { kind: kind.clone(), rules, record: made };
        let shown = view.shown_record(record);
        views.retain(|other| !Arc::ptr_eq(&other.kind, kind));
        views.push(view);
        shown
    }

    fn lock(&self) -> MutexGuard<'_, Vec<View>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl View {
    fn shown_record(&self, record: &Arc<StoredObject>) -> Arc<StoredObject> {
        self.record.as_ref().unwrap_or(record).clone()
    }
}

fn find(
    views: &[View],
    record: &Arc<StoredObject>,
    kind: &Arc<Kind>,
    rules: u64,
) -> Option<Arc<StoredObject>> {
    let view = views.iter().find(|view| Arc::ptr_eq(&view.kind, kind))?;
    (view.rules == rules).then(|| view.shown_record(record))
}

#[cfg(test)]
mod tests {
    use apiserver_schema::custom::{CustomNames, CustomRules};
    use apiserver_schema::{Engine, FieldErrors, Map, Value};
    use apiserver_store::{Record as _, Revision, Stamp};
    use proto_api::names::{Names, Profile};

    use super::*;
    use crate::record::Draft;

    /// Sets the field `level`.
    struct Rules(i64);

    impl CustomRules for Rules {
        fn prune(&self, fields: &mut Map, _: &mut Vec<String>) {
            fields.remove("gone");
        }

        fn default(&self, fields: &mut Map) {
            if self.0 > 0 && !fields.contains("level") {
                fields.insert("level", self.0);
            }
        }

        fn validate(&self, _: &Object, _: Option<&Object>) -> FieldErrors {
            FieldErrors::default()
        }

        fn cells(&self, _: &Object, _: i64) -> Vec<Value> {
            Vec::new()
        }

        fn open_api(&self, _: bool) -> Option<Map> {
            None
        }
    }

    fn kind(engine: &Engine, version: &str) -> Arc<Kind> {
        let (group, kind, plural) = ("example.com", "Backup", "backups");
        let names = CustomNames { group, version, kind, plural, namespaced: true };
        engine.custom_kind(&names).expect("a kind")
    }

    fn set(kind: &Kind, number: u64, level: i64) {
        set_rules(kind, number, level, false);
    }

    fn set_rules(kind: &Kind, number: u64, level: i64, has_webhook: bool) {
        let current = CustomVersion {
            number,
            storage_version: "v1".to_owned(),
            has_webhook,
            terminating: false,
            singular: String::new(),
            list_kind: String::new(),
            short_names: Vec::new(),
            categories: Vec::new(),
            has_status: false,
            scale: None,
            columns: Vec::new(),
            selectable_fields: Vec::new(),
            deprecation: None,
            rules: Box::new(Rules(level)),
        };
        kind.custom().expect("custom").set(Some(Arc::new(current)));
    }

    #[test]
    fn readers_share_a_view_until_the_rules_change() {
        let engine = Engine::new(Names::new(Profile::Kubernetes));
        let (first, second) = (kind(&engine, "v1"), kind(&engine, "v2"));
        set(&first, 1, 0);
        set(&second, 2, 3);
        let mut object = Object::new(first.clone());
        object.set_meta_str("name", "a");
        let stamp = Stamp { created: Revision(1), modified: Revision(7) };
        let record = Arc::new(StoredObject::stamp(Draft::new(&engine, object), stamp));
        assert!(Arc::ptr_eq(&record.as_version(&first), &record), "shown as it is stored");
        let view = record.as_version(&second);
        assert_eq!(view.object().fields.int("level"), Some(3));
        assert_eq!((view.revision(), view.object().kind.version()), (Revision(7), "v2"));
        assert!(Arc::ptr_eq(&record.as_version(&second), &view), "made once");
        assert_eq!((record.is_outdated(), view.is_outdated()), (false, false));
        set(&first, 3, 4);
        set(&second, 4, 5);
        let next = record.as_version(&second);
        assert_eq!(next.object().fields.int("level"), Some(5));
        assert_eq!(record.as_version(&first).object().fields.int("level"), Some(4));
        assert!(!record.object().fields.contains("level"), "nothing is written");
        let kept = record.views.get().expect("views").0.lock().unwrap().len();
        assert_eq!(kept, 2, "old views are dropped");
    }

    #[test]
    fn objects_of_webhook_conversion_are_not_only_relabeled() {
        let engine = Engine::new(Names::new(Profile::Kubernetes));
        let (first, second) = (kind(&engine, "v1"), kind(&engine, "v2"));
        set_rules(&first, 1, 0, true);
        set_rules(&second, 2, 0, true);
        let mut object = Object::new(second.clone());
        object.set_meta_str("name", "a");
        let stamp = Stamp { created: Revision(1), modified: Revision(7) };
        let record = Arc::new(StoredObject::stamp(Draft::new(&engine, object), stamp));
        assert!(Arc::ptr_eq(&record.object().kind, &second), "it was not converted to v1");
        assert!(record.is_outdated());
        assert!(record.view_of(&first).is_none());
        assert!(Arc::ptr_eq(&record.as_version(&first), &record));
        let mut converted = Object::new(first.clone());
        converted.set_meta_str("name", "converted");
        let view = record.put_view(&first, 1, converted);
        assert!(Arc::ptr_eq(&record.as_version(&first), &view), "as the webhook has made it");
        assert!(Arc::ptr_eq(&view.as_version(&first), &view));
        assert!(view.is_outdated());
        // Another webhook may convert otherwise.
        set_rules(&first, 3, 0, true);
        assert!(record.view_of(&first).is_none());
    }
}
