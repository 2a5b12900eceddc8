//! `--local`: objects of files are changed and printed, and no server is asked.

use apiserver_schema::{Engine, PatchType};
use orchctl_client::manifests::{self, Manifest};
use orchctl_client::{ApiResource, CommandError, Output, Session};
use proto_api::names::{Names, Profile};
use serde_json::Value;

use crate::requests::Place;
use crate::targets::{self, TargetFlags, TargetObject};

/// The flag of commands that can change what files have.
#[derive(clap::Args, Clone, Copy, Debug, Default)]
pub struct LocalFlag {
    /// Change the objects of files and print them, without a server
    #[arg(long)]
    pub local: bool,
}

impl LocalFlag {
    /// The objects, as the server has them or as files have them, and why others cannot be read.
    ///
    /// # Errors
    /// As [`targets::read_each`]; no file is named, or objects besides.
    pub async fn read_each(
        self,
        session: &Session,
        flags: &TargetFlags,
        args: &[String],
        output: &mut Output,
    ) -> Result<(Vec<TargetObject>, Vec<CommandError>), CommandError> {
        if !self.local {
            return targets::read_each(session, flags, args, output).await;
        }
        if flags.files.filename.is_empty() || !args.is_empty() {
            return Err(CommandError::with_text(
                "with --local, objects come from files: name them with --filename, and no others",
            ));
        }
        let read = manifests::read_each(session, &flags.files, output).await?;
        Ok((read.manifests.into_iter().map(target_of).collect(), read.errors))
    }
}

/// An object of a file, whose kind is what it says.
fn target_of(manifest: Manifest) -> TargetObject {
    let (group, version) =
        manifest.api_version().split_once('/').unwrap_or(("", manifest.api_version()));
    let namespace = manifest.namespace().map(str::to_owned);
    let resource = ApiResource {
        group: group.to_owned(),
        version: version.to_owned(),
        kind: manifest.kind().to_owned(),
        namespaced: namespace.is_some(),
        ..ApiResource::default()
    };
    let place = Place { resource, namespace, name: manifest.name().to_owned() };
    TargetObject { place, object: manifest.object }
}

/// The object with a patch.
///
/// # Errors
/// The patch does not fit, or is a strategic one of a custom kind.
pub fn patched(
    object: &Value,
    patch_type: PatchType,
    patch: &Value,
) -> Result<Value, CommandError> {
    let engine = engine_of(object);
    orchctl_plans::apply::overridden(&engine, object, patch_type, &patch.to_string())
        .map_err(|error| CommandError::with_text(error.to_string()))
}

/// The kinds under the names that the object has.
fn engine_of(object: &Value) -> Engine {
    let text = |field: &str| object.get(field).and_then(Value::as_str).unwrap_or_default();
    let engine = Engine::new(Names::new(Profile::Kubernetes));
    match engine.kind_of(text("apiVersion"), text("kind")) {
        Some(_) => engine,
        None => Engine::new(Names::new(Profile::default())),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn patches_apply_by_their_type() {
        let object = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"},
            "spec": {"template": {"spec": {"containers": [{"name": "a", "image": "x"}, {"name": "b", "image": "y"}]}}}});
        let images = |patched: Result<Value, CommandError>| {
            let patched = patched.expect("a patch that fits");
            let containers = patched.pointer("/spec/template/spec/containers");
            let containers = containers.and_then(Value::as_array).expect("a list");
            containers
                .iter()
                .map(|one| format!("{}={}", one["name"], one["image"]))
                .collect::<Vec<_>>()
        };
        let merge =
            json!({"spec": {"template": {"spec": {"containers": [{"name": "b", "image": "z"}]}}}});
        let strategic = images(patched(&object, PatchType::Strategic, &merge));
        assert_eq!(strategic.iter().filter(|one| one.contains('z')).count(), 1);
        assert_eq!(strategic.len(), 2);
        assert_eq!(images(patched(&object, PatchType::Merge, &merge)), ["\"b\"=\"z\""]);
        let steps = json!([{"op": "replace", "path": "/spec/template/spec/containers/0/image", "value": "z"}]);
        assert_eq!(
            images(patched(&object, PatchType::Json, &steps)),
            ["\"a\"=\"z\"", "\"b\"=\"y\""]
        );
        let custom =
            json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w"}});
        assert!(patched(&custom, PatchType::Strategic, &merge).is_err());
        assert!(patched(&custom, PatchType::Merge, &merge).is_ok());
    }
}
