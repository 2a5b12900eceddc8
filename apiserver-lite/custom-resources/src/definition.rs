//! A definition as typed value.

use std::sync::Arc;

use apiserver_schema::{Map, Value};

use crate::columns::Column;
use crate::field_path::SchemaFieldPath;
use crate::pattern::Patterns;
use crate::read::{DefinitionReadError, texts};
use crate::scale::ScalePaths;
use crate::structural::Structural;

/// A CustomResourceDefinition.
#[derive(Clone, Debug)]
pub struct Definition {
    /// Group of its kinds.
    pub group: String,
    /// The requested names.
    pub names: Names,
    /// Where its objects live.
    pub scope: Scope,
    /// Its versions, in the order of the definition.
    pub versions: Vec<DefinitionVersion>,
    /// How objects get from one version to another.
    pub conversion: Conversion,
    /// Whether unknown fields of all versions are kept, whatever the schemas say.
    pub preserve_unknown_fields: bool,
}

/// Names of a custom kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Names {
    /// Name of the resource in paths.
    pub plural: String,
    /// Name for one.
    pub singular: String,
    /// Further names.
    pub short_names: Vec<String>,
    /// The kind of objects.
    pub kind: String,
    pub list_kind: String,
    /// Groups of resources, such as `all`.
    pub categories: Vec<String>,
}

/// Where objects live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    Namespaced,
    Cluster,
}

/// One of `spec.versions` of a CustomResourceDefinition.
#[derive(Clone, Debug)]
pub struct DefinitionVersion {
    /// Name, such as `v1`.
    pub name: String,
    /// Whether it is served.
    pub served: bool,
    /// Whether objects are stored in it.
    pub storage: bool,
    /// Whether users are warned.
    pub deprecated: bool,
    /// The warning, instead of the usual one.
    pub deprecation_warning: Option<String>,
    /// The schema of its objects.
    pub schema: Arc<Structural>,
    pub subresources: Subresources,
    /// Columns of its table besides the name; the age, if the definition names none.
    pub columns: Vec<Column>,
    /// Fields that field selectors may use besides the name and namespace.
    pub selectable_fields: Vec<SchemaFieldPath>,
}

/// Subresources of a version.
#[derive(Clone, Debug, Default)]
pub struct Subresources {
    /// Whether it has `status`.
    pub status: bool,
    /// Where `scale` finds its values, if the version has it.
    pub scale: Option<ScalePaths>,
}

impl DefinitionVersion {
    /// The warning for users of a deprecated version, of objects of `kind` in `group`.
    pub fn warning(&self, group: &str, kind: &str) -> Option<String> {
        if !self.deprecated {
            return None;
        }
        let usual = || format!("{group}/{} {kind} is deprecated", self.name);
        Some(self.deprecation_warning.clone().unwrap_or_else(usual))
    }
}

/// How objects get from one version to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Conversion {
    /// Only `apiVersion` changes.
    None,
    /// A webhook converts them.
    Webhook(ConversionWebhook),
}

/// A webhook that converts objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConversionWebhook {
    /// Where it listens.
    pub target: WebhookTarget,
    /// Certificates that its own is checked against, in base64; empty for those of the host.
    pub ca_bundle: String,
    /// Versions of ConversionReview that it understands, the preferred one first.
    pub review_versions: Vec<String>,
}

/// Where a webhook listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WebhookTarget {
    /// At an address.
    Url(String),
    Service {
        /// Namespace of the service.
        namespace: String,
        name: String,
        /// The path of the request.
        path: String,
        port: u16,
    },
}

impl Definition {
    /// The version in which objects are stored.
    pub fn storage_version(&self) -> Option<&DefinitionVersion> {
        self.versions.iter().find(|version| version.storage)
    }

    /// The version of this name.
    pub fn version(&self, name: &str) -> Option<&DefinitionVersion> {
        self.versions.iter().find(|version| version.name == name)
    }
}

/// Reads a stored definition. One that [`validate_definition`](crate::validate_definition) accepts can be read.
pub fn read_definition(tree: &Value) -> Result<Definition, DefinitionReadError> {
    let spec = tree.as_map().and_then(|root| root.map("spec"));
    let spec = spec.ok_or(DefinitionReadError::Missing { field: "spec" })?;
    let names = spec.map("names").ok_or(DefinitionReadError::Missing { field: "spec.names" })?;
    let preserve_unknown_fields = spec.is_true("preserveUnknownFields");
    let mut patterns = Patterns::default();
    let versions = spec.maps("versions");
    let versions: Result<Vec<DefinitionVersion>, DefinitionReadError> = versions
        .map(|version| read_version(version, preserve_unknown_fields, &mut patterns))
        .collect();
    Ok(Definition {
        group: spec.str("group").to_owned(),
        names: read_names(names),
        scope: if spec.str("scope") == "Cluster" { Scope::Cluster } else { Scope::Namespaced },
        versions: versions?,
        conversion: read_conversion(spec),
        preserve_unknown_fields,
    })
}

/// Names of `spec.names` or `status.acceptedNames`.
pub(crate) fn read_names(names: &Map) -> Names {
    Names {
        plural: names.str("plural").to_owned(),
        singular: names.str("singular").to_owned(),
        short_names: texts(names.list("shortNames")),
        kind: names.str("kind").to_owned(),
        list_kind: names.str("listKind").to_owned(),
        categories: texts(names.list("categories")),
    }
}

fn read_version(
    version: &Map,
    preserve_unknown: bool,
    patterns: &mut Patterns,
) -> Result<DefinitionVersion, DefinitionReadError> {
    let name = version.str("name").to_owned();
    let empty = Map::new();
    let schema = version.map("schema").and_then(|schema| schema.map("openAPIV3Schema"));
    let has_schema = schema.is_some();
    let schema =
        Structural::read(schema.unwrap_or(&empty), preserve_unknown || !has_schema, patterns)
            .map_err(|error| DefinitionReadError::Schema {
                version: name.clone(),
                error: Box::new(error),
            })?;
    let subresources = version.map("subresources");
    let status = subresources.is_some_and(|map| map.contains("status"));
    let scale = subresources.and_then(|map| map.map("scale")).map(ScalePaths::read);
    Ok(DefinitionVersion {
        served: version.is_true("served"),
        storage: version.is_true("storage"),
        deprecated: version.is_true("deprecated"),
        deprecation_warning: version
            .get("deprecationWarning")
            .and_then(Value::as_str)
            .map(str::to_owned),
        schema: Arc::new(schema),
        subresources: Subresources { status, scale: scale.transpose()? },
        columns: read_columns(version),
        selectable_fields: version
            .maps("selectableFields")
            .map(|field| read_path(field.str("jsonPath")))
            .collect::<Result<_, DefinitionReadError>>()?,
        name,
    })
}

fn read_path(text: &str) -> Result<SchemaFieldPath, DefinitionReadError> {
    SchemaFieldPath::parse(text).map_err(|_| DefinitionReadError::JsonPath(text.to_owned()))
}

fn read_columns(version: &Map) -> Vec<Column> {
    let columns: Vec<Column> = version.maps("additionalPrinterColumns").map(Column::read).collect();
    if columns.is_empty() { vec![Column::age()] } else { columns }
}

fn read_conversion(spec: &Map) -> Conversion {
    let conversion = spec.map("conversion");
    let webhook = conversion.filter(|conversion| conversion.str("strategy") == "Webhook");
    let Some(webhook) = webhook.and_then(|conversion| conversion.map("webhook")) else {
        return Conversion::None;
    };
    let empty = Map::new();
    let client = webhook.map("clientConfig").unwrap_or(&empty);
    let target = match client.map("service") {
        Some(service) => WebhookTarget::Service {
            namespace: service.str("namespace").to_owned(),
            name: service.str("name").to_owned(),
            path: service.str("path").to_owned(),
            port: service.int("port").and_then(|port| u16::try_from(port).ok()).unwrap_or(443),
        },
        None => WebhookTarget::Url(client.str("url").to_owned()),
    };
    Conversion::Webhook(ConversionWebhook {
        target,
        ca_bundle: client.str("caBundle").to_owned(),
        review_versions: texts(webhook.list("conversionReviewVersions")),
    })
}
