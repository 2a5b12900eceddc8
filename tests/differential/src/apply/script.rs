//! pure: the requests of one case about one object.

use http::Method;
use serde_json::{Value as Json, json};

use crate::case::{Case, Pair};
use crate::resource::{BOTH, Resource, Whose};

/// The content type of server-side apply.
pub const APPLY: &str = "application/apply-patch+yaml";
/// The content type of merge patches.
pub const MERGE: &str = "application/merge-patch+json";
/// The content type of JSON patches.
pub const JSON_PATCH: &str = "application/json-patch+json";
/// The content type of strategic merge patches.
pub const STRATEGIC: &str = "application/strategic-merge-patch+json";

/// A label and an annotation that no case changes.
pub const BASE: &str = "base";

/// The requests of a case, in their order.
pub struct Script<'a> {
    resource: &'a Resource,
    /// The name of the object.
    name: String,
    steps: Vec<Pair>,
}

impl<'a> Script<'a> {
    /// Without requests, of an object that is named so.
    pub fn new(resource: &'a Resource, name: &str) -> Self {
        Self { resource, name: resource.name(name).to_owned(), steps: Vec::new() }
    }

    /// The valid object, with a label and an annotation that stay: 1.20 takes a map of which an owner has lost all keys for one that was atomic, and gives
    /// it all keys (structured-merge-diff before 4.1.1).
    pub fn object(&self) -> Json {
        let mut object = self.resource.object(Whose::Theirs, &self.name);
        for field in ["labels", "annotations"] {
            object["metadata"][field][BASE] = json!("c");
        }
        if self.resource.plural == "endpointslices" {
            // Of v1beta1 only; elsewhere it is sent as a field that v1 does not know.
            if let Some(endpoint) = object["endpoints"][0].as_object_mut() {
                endpoint.shift_remove("topology");
            }
        }
        object
    }

    fn pair(&self, method: Method, below: &str, query: &str) -> Pair {
        Pair::new(method, |whose| {
            format!("{}{below}{query}", self.resource.path_of(whose, &self.name))
        })
    }

    /// An object in the version that each server serves.
    fn both(&self, object: &Json) -> [Json; 2] {
        BOTH.map(|whose| {
            let mut object = object.clone();
            if object["apiVersion"] == self.resource.version.as_str() {
                object["apiVersion"] = json!(self.resource.version_of(whose));
            }
            object
        })
    }

    /// An apply by a manager.
    pub fn apply(&mut self, manager: &str, config: &Json) {
        self.apply_below("", &format!("?fieldManager={manager}"), config);
    }

    /// An apply that takes what others own.
    pub fn force(&mut self, manager: &str, config: &Json) {
        self.apply_below("", &format!("?fieldManager={manager}&force=true"), config);
    }

    /// An apply with these parameters, to a subresource if `below` is none of the empty text. The body is JSON and YAML in turns.
    pub fn apply_below(&mut self, below: &str, query: &str, config: &Json) {
        let is_json = self.steps.len().is_multiple_of(2);
        let texts = self.both(config).map(|config| match is_json {
            true => config.to_string(),
            false => proto_api::yaml::to_string(&config),
        });
        self.push(self.pair(Method::PATCH, below, query).texts(texts).of(APPLY));
    }

    /// An apply of a body that may be no object.
    pub fn apply_raw(&mut self, query: &str, body: &str) {
        let texts = [body.to_owned(), body.to_owned()];
        self.push(self.pair(Method::PATCH, "", query).texts(texts).of(APPLY));
    }

    /// A creation of the object.
    pub fn create(&mut self, manager: &str, object: &Json) {
        let bodies = self.both(object);
        let path = |whose| format!("{}?fieldManager={manager}", self.resource.path(whose));
        self.push(Pair::new(Method::POST, path).json(&bodies));
    }

    /// An update with the object that was answered last, changed so.
    pub fn edit(&mut self, manager: &str, below: &str, changes: Json) {
        let query = format!("?fieldManager={manager}");
        self.push(self.pair(Method::PUT, below, &query).editing(changes));
    }

    /// A patch of another type.
    pub fn patch(&mut self, content_type: &str, manager: &str, below: &str, body: Json) {
        let query = format!("?fieldManager={manager}");
        let pair = self.pair(Method::PATCH, below, &query).json(&[body.clone(), body]);
        self.push(pair.of(content_type));
    }

    /// What is stored.
    pub fn get(&mut self, below: &str) {
        self.push(self.pair(Method::GET, below, ""));
    }

    /// Any other request.
    pub fn push(&mut self, pair: Pair) {
        self.steps.push(pair);
    }

    /// The case, with the name of its object.
    pub fn case(self, operation: &'static str, field: &str, value: &str) -> (String, Case) {
        let definition = &self.resource.definition;
        let case = Case {
            resource: self.resource.plural.clone(),
            operation,
            field: field.to_owned(),
            value: value.to_owned(),
            definition: (!definition.is_empty()).then(|| definition.clone()),
            steps: self.steps,
        };
        (self.name, case)
    }
}
