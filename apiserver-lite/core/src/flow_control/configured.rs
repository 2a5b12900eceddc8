//! What is kept of the flow schemas and priority levels in the store, and the table that requests are looked up in, which is made when it is needed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use apiserver_flow_control::{
    CATCH_ALL, EXEMPT, FLOW_SCHEMAS, FlowSchema, FlowSchemaUsage, FlowSchemas, Limit,
    LimitResponse, PriorityLevel, RequestDigest, built_in_objects, divide, read_flow_schema,
    read_priority_level,
};
use apiserver_schema::Object;
use http::HeaderValue;
use proto_api::names::Names;

use super::level::{Level, Schema};
use super::metrics::FlowMetrics;
use crate::auth::ObjectIndex;

/// Most levels that are used.
const LEVELS_MAX: usize = 256;
/// Shares of the level of what no other schema takes.
const CATCH_ALL_SHARES: u32 = 5;

/// The objects, and what they are to requests.
pub(super) struct FlowControlObjects {
    /// Of all levels together.
    seats: u32,
    metrics: FlowMetrics,
    built_in: Arc<BuiltInNames>,
    schemas: BTreeMap<String, Arc<FlowSchema>>,
    levels: BTreeMap<String, Arc<PriorityLevel>>,
    live: Arc<Mutex<Live>>,
    table: OnceLock<Table>,
}

/// Names of the objects that every server has: they are the last to be left out.
struct BuiltInNames {
    schemas: BTreeSet<String>,
    levels: BTreeSet<String>,
}

/// What outlives a change of the configuration.
#[derive(Default)]
struct Live {
    levels: BTreeMap<String, LiveLevel>,
    /// Level and flow schema, of those with metrics.
    measured: BTreeSet<(String, String)>,
}

/// A level of which requests have seats, or may have them.
#[derive(Clone)]
struct LiveLevel {
    level: Arc<Level>,
    limit: Limit,
}

/// The flow schemas in matching order, each with its level.
pub(super) struct Table {
    schemas: FlowSchemas,
    /// Of each of them.
    entries: Vec<Arc<Schema>>,
    /// Of a request that has none: it cannot be.
    last: Arc<Schema>,
    /// The levels that are used.
    levels: BTreeMap<String, Arc<PriorityLevel>>,
    /// Flow schemas that are not used though their level is.
    left_out: BTreeSet<String>,
}

impl BuiltInNames {
    fn new(names: &Names) -> Self {
        let (mut schemas, mut levels) = (BTreeSet::new(), BTreeSet::new());
        for of in built_in_objects(names) {
            let own = if of.resource == FLOW_SCHEMAS { &mut schemas } else { &mut levels };
            own.insert(of.name().to_owned());
        }
        Self { schemas, levels }
    }
}

impl Table {
    /// The schema that takes a request, and the number of its flow.
    pub(super) fn find(&self, request: &RequestDigest<'_>) -> (Arc<Schema>, u64) {
        let at = self.schemas.find(request);
        let flow = self.schemas.ordered().get(at).map_or(0, |schema| schema.flow(request));
        (self.entries.get(at).unwrap_or(&self.last).clone(), flow)
    }

    /// What becomes of a flow schema whose level is there.
    pub(super) fn usage(&self, schema: &str, level: &str) -> FlowSchemaUsage {
        if [EXEMPT, CATCH_ALL].contains(&schema) {
            return FlowSchemaUsage::Used;
        }
        if !self.levels.contains_key(level) {
            return FlowSchemaUsage::LevelLeftOut;
        }
        if self.left_out.contains(schema) {
            FlowSchemaUsage::LeftOut
        } else {
            FlowSchemaUsage::Used
        }
    }
}

impl FlowControlObjects {
    pub(super) fn new(seats: u32, names: &Names, metrics: FlowMetrics) -> Self {
        Self::of_no_object(seats, Arc::new(BuiltInNames::new(names)), metrics)
    }

    fn of_no_object(seats: u32, built_in: Arc<BuiltInNames>, metrics: FlowMetrics) -> Self {
        let (schemas, levels, live, table) = Default::default();
        Self { seats, metrics, built_in, schemas, levels, live, table }
    }

    /// The table of the current objects.
    pub(super) fn table(&self) -> &Table {
        self.table.get_or_init(|| self.make_table())
    }

    fn make_table(&self) -> Table {
        let mut live = self.live.lock().unwrap_or_else(PoisonError::into_inner);
        let levels = self.used_levels();
        self.set_levels(&mut live, &levels);
        let (schemas, left_out) = FlowSchemas::new(
            self.schemas.values().cloned(),
            |level| levels.contains_key(level),
            |schema| self.built_in.schemas.contains(schema),
        );
        self.warn(&levels, &left_out);
        let uid = |uid: &str| HeaderValue::from_str(uid).ok().filter(|uid| !uid.is_empty());
        let entry = |schema: &Arc<FlowSchema>| {
            let of = live.levels.get(&schema.level)?;
            let level_uid = levels.get(&schema.level).and_then(|level| uid(&level.uid));
            Some(Arc::new(Schema {
                level: of.level.clone(),
                uids: [uid(&schema.uid), level_uid],
                metrics: self.metrics.for_schema(&schema.level, &schema.name),
            }))
        };
        // Every schema in the table has a level, so that there are as many entries.
        let entries: Vec<Arc<Schema>> = schemas.ordered().iter().filter_map(entry).collect();
        let last = entries.last().cloned().unwrap_or_else(|| self.unlimited());
        let measured = schemas.ordered().iter().map(|of| (of.level.clone(), of.name.clone()));
        let measured: BTreeSet<(String, String)> = measured.collect();
        for (level, schema) in live.measured.difference(&measured) {
            self.metrics.remove(level, schema);
        }
        live.measured = measured;
        Table { schemas, entries, last, levels, left_out: left_out.into_iter().collect() }
    }

    fn warn(&self, used: &BTreeMap<String, Arc<PriorityLevel>>, left_out: &[String]) {
        if let Some(first) = left_out.first() {
            let count = left_out.len();
            tracing::warn!(
                count,
                first,
                "some flow schemas are ignored: there are too many, or they are too large"
            );
        }
        let unused = self.levels.keys().filter(|name| !used.contains_key(*name)).count();
        if unused > 0 {
            tracing::warn!(unused, "some priority levels are ignored: there are too many");
        }
    }

    /// The levels that are used: those that every server has, then those of flow schemas, then others. Of the mandatory ones only the identity counts.
    fn used_levels(&self) -> BTreeMap<String, Arc<PriorityLevel>> {
        let reject = LimitResponse::Reject;
        let mandatory = [
            (EXEMPT, Limit::Exempt),
            (CATCH_ALL, Limit::Limited { shares: CATCH_ALL_SHARES, response: reject }),
        ];
        let mut used: BTreeMap<String, Arc<PriorityLevel>> = BTreeMap::new();
        for (name, limit) in mandatory {
            let uid = self.levels.get(name).map(|level| level.uid.clone()).unwrap_or_default();
            let level = PriorityLevel { name: name.to_owned(), uid, limit };
            used.insert(name.to_owned(), Arc::new(level));
        }
        let mut schemas: Vec<&FlowSchema> = self.schemas.values().map(AsRef::as_ref).collect();
        schemas.sort_by_key(|of| (!self.built_in.schemas.contains(&of.name), of.precedence));
        let of_schemas = schemas.into_iter().map(|schema| &schema.level);
        for name in self.built_in.levels.iter().chain(of_schemas).chain(self.levels.keys()) {
            if used.len() >= LEVELS_MAX {
                break;
            }
            if let Some(level) = self.levels.get(name)
                && !used.contains_key(name)
            {
                used.insert(name.clone(), level.clone());
            }
        }
        used
    }

    /// Brings the live levels up to date. One that is no longer wanted keeps its shares until the last of its requests has ended, as in Kubernetes.
    fn set_levels(&self, live: &mut Live, wanted: &BTreeMap<String, Arc<PriorityLevel>>) {
        let Live { levels, .. } = live;
        levels.retain(|name, of| {
            let stays = wanted.contains_key(name) || !of.level.is_idle();
            if !stays {
                self.metrics.set_limit(name, None);
            }
            stays
        });
        let lingering = levels.iter().filter(|(name, _)| !wanted.contains_key(*name));
        let mut limits: BTreeMap<String, Limit> =
            lingering.map(|(name, of)| (name.clone(), of.limit)).collect();
        limits.extend(wanted.values().map(|level| (level.name.clone(), level.limit)));
        let sum = limits.values().filter_map(Limit::shares).map(u64::from).sum();
        for (name, limit) in limits {
            let Limit::Limited { shares, response } = limit else {
                let level = || LiveLevel { level: Arc::new(Level::exempt()), limit };
                levels.entry(name).or_insert_with(level);
                continue;
            };
            let seats = divide(self.seats, shares, sum);
            self.metrics.set_limit(&name, Some(seats));
            match levels.get_mut(&name) {
                Some(of) => {
                    of.limit = limit;
                    of.level.reconfigure(seats, response);
                }
                None => {
                    let level = Arc::new(Level::limited(seats, response));
                    levels.insert(name, LiveLevel { level, limit });
                }
            }
        }
    }

    fn unlimited(&self) -> Arc<Schema> {
        let metrics = self.metrics.for_schema(EXEMPT, EXEMPT);
        Arc::new(Schema { level: Arc::new(Level::exempt()), uids: [None, None], metrics })
    }

    /// Distributes the seats again once the last request of a removed level has ended.
    pub(super) fn redistribute_seats(&self) {
        let wanted = &self.table().levels;
        let mut live = self.live.lock().unwrap_or_else(PoisonError::into_inner);
        let is_over =
            |(name, of): (&String, &LiveLevel)| !wanted.contains_key(name) && of.level.is_idle();
        if live.levels.iter().any(is_over) {
            self.set_levels(&mut live, wanted);
        }
    }
}

impl ObjectIndex for FlowControlObjects {
    const PREFIX: &'static str = "/flowcontrol.apiserver/";

    fn emptied(&self) -> Self {
        let built_in = self.built_in.clone();
        let empty = Self::of_no_object(self.seats, built_in, self.metrics.clone());
        Self { live: self.live.clone(), ..empty }
    }

    fn set(&mut self, object: &Object) {
        let name = object.name().to_owned();
        let is_new = if object.kind.kind() == "FlowSchema" {
            let schema = Arc::new(read_flow_schema(object));
            self.schemas.insert(name, schema.clone()) != Some(schema)
        } else {
            match read_priority_level(object) {
                Ok(level) => {
                    let level = Arc::new(level);
                    self.levels.insert(name, level.clone()) != Some(level)
                }
                Err(error) => {
                    tracing::warn!(%error, name, "a priority level is invalid and ignored");
                    self.levels.remove(&name).is_some()
                }
            }
        };
        // A status makes no difference.
        if is_new {
            self.table = OnceLock::new();
        }
    }

    fn remove(&mut self, object: &Object) {
        match object.kind.kind() {
            "FlowSchema" => drop(self.schemas.remove(object.name())),
            _ => drop(self.levels.remove(object.name())),
        }
        self.table = OnceLock::new();
    }
}
