//! Descriptors of every message, kind and resource of the API, as static tables made from `schema/`.
//!
//! Code for *any* kind uses them: decoding with errors that name fields, pruning, patches, field ownership, tables, discovery. The typed messages of this
//! crate are made from the same tables, so both agree on every name, number and order.
//!
//! ```
//! use proto_api::schema;
//!
//! let pods = schema::resource("", "v1", "pods").unwrap();
//! let pod = pods.message.get();
//! let spec = pod.field("spec").unwrap();
//! let schema::Value::Message(spec) = spec.value else { panic!() };
//! assert_eq!(spec.get().field("nodeName").unwrap().number, 10);
//! ```
//!
//! Groups stand without the API domain: empty for core, `apps`, `coordination`,
//! `rbac.authorization`. [`crate::names::Names`] translates.

use crate::names::Names;

include!(concat!(env!("OUT_DIR"), "/tables.rs"));

/// The number of a message: its index in the table. Recursive messages refer to each other by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MessageId(u16);

/// A Protobuf message of the API, with its fields in JSON order.
#[derive(Debug)]
pub struct MessageDescriptor {
    /// The group without the API domain; `meta` for what all groups share.
    pub group: &'static str,
    /// The version, for example `v1`.
    pub version: &'static str,
    /// The name, for example `PodSpec`.
    pub name: &'static str,
    /// Whether it is a kind: then `apiVersion` and `kind` precede its fields in JSON (`kind` is written first) and are in the envelope of Protobuf. Neither is
    /// in `fields`.
    pub is_kind: bool,
    /// Whether its JSON is not an object but the JSON of one of its fields; see [`MessageDescriptor::union`].
    pub union: bool,
    /// Whether apply owns and replaces it as a whole (`structType=atomic`).
    pub atomic: bool,
    /// The fields in the order of declaration, which is the order in JSON. Protobuf orders them by
    /// number.
    pub fields: &'static [FieldDescriptor],
}

/// A field of a message.
#[derive(Debug)]
pub struct FieldDescriptor {
    /// The name in JSON; for an inlined message the name of its type.
    pub json: &'static str,
    /// The number in Protobuf; 0 in messages that have no Protobuf form (tables).
    pub number: u32,
    /// The type of its value, or of its elements or map values.
    pub value: Value,
    /// The number of values, and the meaning of absence.
    pub shape: Shape,
    /// JSON omits it when empty: false, 0, an empty string, list, map or bytes, or absent. A plain message, `Time`, `Quantity`, `IntOrString` or raw value is
    /// never empty.
    pub omit_empty: bool,
    /// Its fields are in the JSON object of its owner. In Protobuf it is an ordinary field.
    pub inline: bool,
    /// An object without it is valid.
    pub optional: bool,
    /// How apply splits ownership of it.
    pub topology: Topology,
    /// A strategic merge patch merges the list by `patch_merge_key` (or, of scalars, as a set)
    /// instead of replacing it.
    pub patch_merge: bool,
    /// A strategic merge patch may list in `$retainKeys` which keys stay.
    pub patch_retain_keys: bool,
    /// The field that identifies list entries in a strategic merge patch.
    pub patch_merge_key: Option<&'static str>,
    /// The default that the schema itself states.
    pub default: Option<&'static str>,
    /// The name of the closed set of strings of its values.
    pub enum_name: Option<&'static str>,
}

/// How many values a field has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Exactly one. Protobuf always writes it, even when empty (bytes: only when not); JSON leaves
    /// it out when empty only with `omit_empty`.
    Plain,
    /// None or one; an empty value differs from none.
    Pointer,
    /// A list. Protobuf repeats the field and never packs. Empty without `omit_empty`: `null`.
    List,
    /// A map from strings. Protobuf writes an entry message a key, sorted. Empty without
    /// `omit_empty`: `null`.
    Map,
}

/// The type of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value {
    String,
    /// A boolean.
    Bool,
    /// A 32-bit integer; a negative one takes ten bytes in Protobuf.
    Int32,
    /// A 64-bit integer.
    Int64,
    /// A 64-bit float.
    Double,
    /// Base64 in JSON.
    Bytes,
    /// RFC 3339 to the second, or `null` when unset; message `{1: int64 seconds, 2: int32 nanos}`,
    /// empty when unset.
    Time,
    /// RFC 3339 with six digits; the same message.
    MicroTime,
    /// A length of time such as `15.2s`; message `{1: int64 nanos}`.
    Duration,
    /// A string in canonical form; message `{1: string}`.
    Quantity,
    /// An integer or a string; message `{1: int64 type (0 int, 1 string), 2: int32, 3: string}`,
    /// all three always written.
    IntOrString,
    /// Any JSON object, kept as it is; message `{1: bytes}`. `null` in JSON when empty.
    Raw,
    /// A list of strings in JSON; message `{1: repeated string}`.
    StringList,
    /// Any JSON value; has no Protobuf form.
    Any,
    /// A Protobuf message of the API, with its fields in JSON order.
    Message(MessageId),
}

/// How apply splits ownership of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Topology {
    /// By the rules for its shape: messages and maps by key, lists as a whole.
    Default,
    /// As a whole.
    Atomic,
    /// By key, also where the message of the field is [`MessageDescriptor::atomic`].
    Granular,
    /// A list of scalars, each owned separately.
    ListSet,
    /// A list of messages, each owned separately, identified by these fields.
    ListMap(&'static [&'static str]),
}

/// A kind: a message with `apiVersion` and `kind`.
#[derive(Debug)]
pub struct KindDescriptor {
    /// The group without the API domain.
    pub group: &'static str,
    pub version: &'static str,
    /// The kind, for example `Pod` or `PodList`.
    pub kind: &'static str,
    /// The message. It may be in another group: `v1 Status` is a message of `meta`.
    pub message: MessageId,
}

/// A resource of the API.
#[derive(Debug)]
pub struct ResourceDescriptor {
    /// The group without the API domain.
    pub group: &'static str,
    pub version: &'static str,
    /// The name in paths, for example `pods`.
    pub plural: &'static str,
    /// The name for one, for example `pod`.
    pub singular: &'static str,
    /// The kind of its objects.
    pub kind: &'static str,
    /// The message of its objects.
    pub message: MessageId,
    /// Whether it is namespaced.
    pub namespaced: bool,
    /// Short names, for example `po`.
    pub short_names: &'static [&'static str],
    /// Categories, for example `all`.
    pub categories: &'static [&'static str],
    /// Its verbs, sorted.
    pub verbs: &'static [&'static str],
    pub subresources: &'static [Subresource],
    /// The columns of its table; empty for resources that cannot be listed.
    pub columns: &'static [Column],
}

/// A subresource that the API server serves, such as `status` or `scale`.
#[derive(Debug)]
pub struct Subresource {
    /// The last part of the path, for example `status`.
    pub name: &'static str,
    /// The group of its kind, which may differ from that of the resource (`Scale`, `Eviction`).
    pub group: &'static str,
    /// The version of its kind.
    pub version: &'static str,
    /// The kind of its requests and responses.
    pub kind: &'static str,
    /// The message of that kind.
    pub message: MessageId,
    /// Its verbs, sorted.
    pub verbs: &'static [&'static str],
}

/// A column of a resource's table.
#[derive(Debug)]
pub struct Column {
    /// The heading.
    pub name: &'static str,
    /// `string`, `integer`, `boolean`, `date` or `number`.
    pub value: &'static str,
    /// `name` for the column with the object's name, or empty.
    pub format: &'static str,
    /// 0 always shown, 1 with `-o wide`.
    pub priority: i32,
}

/// The three messages whose JSON is that of one of their fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Union {
    /// A schema (field 2) or, without one, the boolean (field 1).
    SchemaOrBool,
    /// A list (field 2) if not empty, or a schema (field 1).
    SchemaOrList,
}

impl MessageId {
    /// The message.
    pub fn get(self) -> &'static MessageDescriptor {
        &MESSAGES[usize::from(self.0)]
    }
}

impl MessageDescriptor {
    /// The field with this name in JSON, among its own fields and those of inlined messages.
    pub fn field(&self, json: &str) -> Option<&'static FieldDescriptor> {
        let own = self.fields.iter().find(|f| !f.inline && f.json == json);
        own.or_else(|| self.inlined().find_map(|message| message.field(json)))
    }

    /// The messages whose fields are in this message's JSON object.
    pub fn inlined(&self) -> impl Iterator<Item = &'static MessageDescriptor> {
        self.fields.iter().filter(|f| f.inline).filter_map(|f| f.value.message())
    }

    /// The field with this number in Protobuf.
    pub fn field_by_number(&self, number: u32) -> Option<&'static FieldDescriptor> {
        self.fields.iter().find(|f| f.number == number)
    }

    /// How to read a message marked `union`.
    pub fn union(&self) -> Option<Union> {
        let [first, _] = self.fields else { return None };
        match (self.union, first.value) {
            (false, _) => None,
            (true, Value::Bool) => Some(Union::SchemaOrBool),
            (true, _) => Some(Union::SchemaOrList),
        }
    }
}

impl Value {
    /// The message, if it is one.
    pub fn message(self) -> Option<&'static MessageDescriptor> {
        match self {
            Value::Message(id) => Some(id.get()),
            _ => None,
        }
    }
}

impl FieldDescriptor {
    /// The default of a field in the generated tables.
    const PLAIN: FieldDescriptor = FieldDescriptor {
        json: "",
        number: 0,
        value: Value::String,
        shape: Shape::Plain,
        omit_empty: false,
        inline: false,
        optional: false,
        topology: Topology::Default,
        patch_merge: false,
        patch_retain_keys: false,
        patch_merge_key: None,
        default: None,
        enum_name: None,
    };
}

impl ResourceDescriptor {
    /// The subresource with this name.
    pub fn subresource(&self, name: &str) -> Option<&'static Subresource> {
        self.subresources.iter().find(|s| s.name == name)
    }
}

/// All messages, in the order of their numbers.
pub fn messages() -> &'static [MessageDescriptor] {
    &MESSAGES
}

/// All kinds, sorted by group, version and kind.
pub fn kinds() -> &'static [KindDescriptor] {
    &KINDS
}

/// All resources of release 1.25, the preferred version of a group before others.
pub fn resources() -> &'static [ResourceDescriptor] {
    &RESOURCES
}

/// Versions of resources that are served on request only: Kubernetes 1.25 has them no more, programs of older releases use them.
pub fn optional_resources() -> &'static [ResourceDescriptor] {
    &OPTIONAL_RESOURCES
}

/// The number of the message with this group (without the API domain), version and name.
pub fn message_id(group: &str, version: &str, name: &str) -> Option<MessageId> {
    let fits = |m: &MessageDescriptor| (m.group, m.version, m.name) == (group, version, name);
    MESSAGES.iter().position(fits).and_then(|at| u16::try_from(at).ok()).map(MessageId)
}

/// The kind with this group (without the API domain), version and name.
///
/// Option kinds (`DeleteOptions`, `ListOptions` ...) are found under every group version that the
/// schema knows, as clients send them.
pub fn kind(group: &str, version: &str, kind: &str) -> Option<&'static KindDescriptor> {
    let find = |group, version| {
        KINDS.binary_search_by(|k| (k.group, k.version, k.kind).cmp(&(group, version, kind))).ok()
    };
    let own = find(group, version);
    let shared = || {
        let known = KINDS.iter().any(|k| (k.group, k.version) == (group, version));
        if known && kind.ends_with("Options") { find("", "v1") } else { None }
    };
    own.or_else(shared).and_then(|at| KINDS.get(at))
}

/// The resource with this group (without the API domain), version and plural name.
pub fn resource(group: &str, version: &str, plural: &str) -> Option<&'static ResourceDescriptor> {
    let fits = |r: &&ResourceDescriptor| (r.group, r.version, r.plural) == (group, version, plural);
    RESOURCES.iter().find(fits)
}

/// The resource of [`optional_resources`] with this group (without the API domain), version and plural name.
pub fn optional_resource(
    group: &str,
    version: &str,
    plural: &str,
) -> Option<&'static ResourceDescriptor> {
    let fits = |r: &&ResourceDescriptor| (r.group, r.version, r.plural) == (group, version, plural);
    OPTIONAL_RESOURCES.iter().find(fits)
}

/// The group of resource metrics, without its domain. Unlike other groups it may be given to another server (metrics-server).
pub const METRICS_GROUP: &str = "metrics";

/// Whether a full group is reserved for this server in every version: each of release 1.25 but [`METRICS_GROUP`].
pub fn is_built_in_group(names: &Names, group: &str) -> bool {
    let short = names.short_group(group).filter(|short| *short != METRICS_GROUP);
    short.is_some_and(has_group)
}

/// Whether release 1.25 has resources of this group (without the API domain).
pub fn has_group(group: &str) -> bool {
    RESOURCES.iter().any(|row| row.group == group)
}

/// The resource whose objects have this kind.
pub fn resource_of_kind(
    group: &str,
    version: &str,
    kind: &str,
) -> Option<&'static ResourceDescriptor> {
    RESOURCES.iter().find(|r| (r.group, r.version, r.kind) == (group, version, kind))
}

/// The resource of [`optional_resources`] whose objects, or lists of them, have this kind.
pub fn optional_resource_of_kind(
    group: &str,
    version: &str,
    kind: &str,
) -> Option<&'static ResourceDescriptor> {
    let item = kind.strip_suffix("List").unwrap_or(kind);
    OPTIONAL_RESOURCES.iter().find(|r| (r.group, r.version, r.kind) == (group, version, item))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_has_a_number_of_its_own_and_every_kind_is_found() {
        for message in messages() {
            let mut numbers: Vec<u32> = message.fields.iter().map(|f| f.number).collect();
            numbers.sort_unstable();
            numbers.dedup();
            let untyped = numbers == [0];
            assert!(untyped || numbers.len() == message.fields.len(), "{message:?}");
        }
        for k in kinds() {
            assert_eq!(kind(k.group, k.version, k.kind).unwrap().message, k.message, "{k:?}");
        }
    }

    #[test]
    fn resources_point_at_their_kinds() {
        for r in resources().iter().chain(optional_resources()) {
            let k = kind(r.group, r.version, r.kind).unwrap_or_else(|| panic!("{r:?}"));
            assert_eq!(k.message, r.message);
            assert!(r.columns.is_empty() != r.verbs.contains(&"list"), "{}", r.plural);
            for s in r.subresources {
                assert_eq!(kind(s.group, s.version, s.kind).unwrap().message, s.message);
            }
        }
        let pods = resource("", "v1", "pods").unwrap();
        assert_eq!(pods.short_names, ["po"]);
        assert_eq!(pods.subresource("eviction").unwrap().group, "policy");
        assert_eq!(pods.subresource("ephemeralcontainers").unwrap().kind, "Pod");
        assert!(resource("batch", "v1", "cronjobs").is_some());
    }

    #[test]
    fn optional_resources_are_other_versions_of_served_ones() {
        for optional in optional_resources() {
            let ResourceDescriptor { group, version, plural, kind, .. } = optional;
            assert!(resource(group, version, plural).is_none(), "{group}/{version} {plural}");
            assert!(resource(group, "v1", plural).is_some_and(|served| served.kind == *kind));
            let list = format!("{kind}List");
            for kind in [kind, list.as_str()] {
                let found = optional_resource_of_kind(group, version, kind);
                assert!(found.is_some_and(|found| std::ptr::eq(found, optional)), "{kind}");
            }
        }
        assert!(optional_resource("batch", "v1beta1", "cronjobs").is_some());
        assert!(optional_resource("batch", "v1beta1", "jobs").is_none());
    }

    #[test]
    fn fields_of_inlined_messages_are_found_in_their_owner() {
        let volume = message_id("", "v1", "Volume").unwrap().get();
        assert_eq!(volume.field("configMap").unwrap().number, 19);
        assert!(volume.field("VolumeSource").is_none());
        assert_eq!(volume.field_by_number(2).unwrap().json, "VolumeSource");
    }

    #[test]
    fn merge_rules_of_containers_and_ports() {
        let spec = message_id("", "v1", "PodSpec").unwrap().get();
        let containers = spec.field("containers").unwrap();
        assert!(containers.patch_merge && containers.shape == Shape::List);
        assert_eq!(containers.patch_merge_key, Some("name"));
        let container = containers.value.message().unwrap();
        let ports = container.field("ports").unwrap();
        assert_eq!(ports.topology, Topology::ListMap(&["containerPort", "protocol"]));
        let port = ports.value.message().unwrap();
        assert_eq!(port.field("protocol").unwrap().default, Some("TCP"));
        let volumes = spec.field("volumes").unwrap();
        assert!(volumes.patch_merge && volumes.patch_retain_keys);
    }

    #[test]
    fn option_kinds_are_found_under_every_group() {
        let own = kind("", "v1", "DeleteOptions").unwrap().message;
        assert_eq!(kind("apps", "v1", "DeleteOptions").unwrap().message, own);
        assert!(kind("example.com", "v1", "DeleteOptions").is_none());
        assert!(kind("apps", "v1", "Pod").is_none());
    }

    #[test]
    fn unions_of_the_schema_have_their_form() {
        let of = |name| message_id("apiextensions", "v1", name).unwrap().get().union();
        assert_eq!(of("JSONSchemaPropsOrBool"), Some(Union::SchemaOrBool));
        assert_eq!(of("JSONSchemaPropsOrStringArray"), Some(Union::SchemaOrList));
        assert_eq!(of("JSONSchemaProps"), None);
    }
}
