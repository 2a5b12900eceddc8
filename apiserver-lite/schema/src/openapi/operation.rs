//! One operation, in the form of either version.

use super::OpenApiVersion;
use crate::value::{Map, Value};

/// What a client has to know of an operation.
pub(super) struct Operation<'a> {
    /// Its name, unique in all documents; generators of clients make names of functions from it.
    pub id: String,
    /// The value of `x-kubernetes-action`.
    pub action: &'a str,
    /// The value of `x-kubernetes-group-version-kind`.
    pub kind: Value,
    /// Query parameters: name and type.
    pub query: &'a [(&'a str, &'a str)],
    /// The body, if it has one.
    pub body: Option<Body<'a>>,
    /// Media types of the answer.
    pub produces: &'a [&'a str],
    /// Schema of the answer.
    pub answer: Value,
    /// Codes of success.
    pub codes: &'a [&'a str],
}

/// The body of an operation.
pub(super) struct Body<'a> {
    /// Media types.
    pub types: Vec<&'a str>,
    pub schema: Value,
    pub required: bool,
}

impl Operation<'_> {
    /// The operation in a document of this version.
    pub(super) fn describe(self, version: OpenApiVersion) -> Value {
        let mut operation = Map::from_iter([
            ("operationId", Value::from(self.id)),
            ("x-kubernetes-action", Value::from(self.action)),
            ("x-kubernetes-group-version-kind", self.kind),
        ]);
        let mut parameters: Vec<Value> =
            self.query.iter().map(|(name, ty)| parameter(version, name, "query", ty)).collect();
        match version {
            OpenApiVersion::V2 => {
                let types = self.body.as_ref().map_or(&["*/*"][..], |body| &body.types);
                operation.insert("consumes", texts(types));
                operation.insert("produces", texts(self.produces));
                parameters.extend(self.body.map(v2_body));
            }
            OpenApiVersion::V3 => {
                if let Some(Body { types, schema, required }) = self.body {
                    let mut body = Map::from_iter([("content", content(&types, &schema))]);
                    if required {
                        body.insert("required", true);
                    }
                    operation.insert("requestBody", body);
                }
            }
        }
        if !parameters.is_empty() || version == OpenApiVersion::V2 {
            operation.insert("parameters", parameters);
        }
        let answer = |code: &&str| {
            let mut answer = Map::from_iter([("description", meaning(code))]);
            match version {
                OpenApiVersion::V2 => answer.insert("schema", self.answer.clone()),
                OpenApiVersion::V3 => {
                    answer.insert("content", content(self.produces, &self.answer))
                }
            };
            ((*code).to_owned(), Value::Map(answer))
        };
        let mut responses: Map = self.codes.iter().map(answer).collect();
        responses.insert("401", Map::from_iter([("description", meaning("401"))]));
        operation.insert("responses", responses);
        Value::Map(operation)
    }
}

fn v2_body(body: Body<'_>) -> Value {
    let mut parameter = Map::from_iter([
        ("name", Value::from("body")),
        ("in", Value::from("body")),
        ("schema", body.schema),
    ]);
    if body.required {
        parameter.insert("required", true);
    }
    Value::Map(parameter)
}

fn content(types: &[&str], schema: &Value) -> Value {
    let schema = Map::from_iter([("schema", schema.clone())]);
    Value::Map(types.iter().map(|ty| ((*ty).to_owned(), schema.clone())).collect())
}

fn meaning(code: &str) -> &'static str {
    match code {
        "201" => "Created",
        "202" => "Accepted",
        "401" => "Unauthorized",
        _ => "OK",
    }
}

/// A parameter of the path, of the query.
pub(super) fn parameter(version: OpenApiVersion, name: &str, place: &str, ty: &str) -> Value {
    let mut parameter = Map::from_iter([("name", name), ("in", place)]);
    match version {
        OpenApiVersion::V2 => parameter.insert("type", ty),
        OpenApiVersion::V3 => parameter.insert("schema", Map::from_iter([("type", ty)])),
    };
    if place == "path" {
        parameter.insert("required", true);
    }
    Value::Map(parameter)
}

fn texts(items: &[&str]) -> Vec<Value> {
    items.iter().copied().map(Value::from).collect()
}
