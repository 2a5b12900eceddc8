//! Tests: writes as a server tracks them.

use std::sync::Arc;

use apiserver_schema::value::{parse_json, write_json};
use apiserver_schema::{Engine, Format, Kind, Object, Strictness, Value};
use proto_api::Time;
use proto_api::names::{Names, Profile};

use super::Request;
use crate::structure::BuiltIn;
use crate::versions::{ResetFields, SingleVersion};

mod custom;
mod recorded;

/// A kind with all that requests need.
struct Server {
    engine: Engine,
    kind: Arc<Kind>,
    versions: SingleVersion,
    reset: ResetFields,
    empty: Value,
}

const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

impl Server {
    fn new(api_version: &str, kind: &str, built_in: &BuiltIn, reset: ResetFields) -> Server {
        let engine = Engine::new(Names::new(Profile::Kubernetes));
        let kind = Arc::clone(engine.kind_of(api_version, kind).expect("a kind"));
        let structure = built_in.of(&kind).expect("a structure");
        let versions = SingleVersion { api_version: api_version.to_owned(), structure };
        let empty = engine.written_document(&Object::new(Arc::clone(&kind)));
        Server { engine, kind, versions, reset, empty }
    }

    fn request<'a>(&'a self, manager: &'a str, subresource: &'a str, now: Time) -> Request<'a> {
        Request {
            versions: &self.versions,
            reset: &self.reset,
            api_version: &self.versions.api_version,
            subresource,
            manager,
            empty: &self.empty,
            now,
            last_applied: LAST_APPLIED,
        }
    }

    fn decode(&self, value: &Value) -> Object {
        let mut text = Vec::new();
        write_json(&mut text, value);
        let decoded = self.engine.decode(&self.kind, Format::Json, &text, Strictness::Ignore);
        decoded.expect("an object").object
    }

    fn written(&self, object: &Object) -> Value {
        self.engine.written_document(object)
    }
}

fn json(text: &str) -> Value {
    parse_json(text.as_bytes(), &mut Vec::new()).expect("JSON")
}

fn text(value: Option<&Value>) -> String {
    let mut out = Vec::new();
    write_json(&mut out, value.unwrap_or(&Value::Null));
    String::from_utf8(out).expect("UTF-8")
}
