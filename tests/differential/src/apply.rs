//! Server-side apply: cases of several managers and one object, whose fields' owners are compared after each request.
//!
//! [`scenarios`] has those that are the same for all kinds, [`refused`] what is no configuration, [`sequences`] requests by chance,
//! [`custom`] a custom resource.

mod chance;
mod custom;
mod parts;
mod refused;
mod scenarios;
mod script;
mod sequences;

use std::time::Duration;

use anyhow::{Result, ensure};
use http::Method;
use serde_json::{Value as Json, json};

use crate::case::Case;
use crate::open_api::OpenApi;
use crate::resource::{BOTH, Resource, Whose, get_json};
use crate::{AT_ONCE, Run, write};

/// A case with the name of its object.
type Named = (String, Case);

/// Looks whether a removed object is gone, and time between them.
const LOOKS: usize = 50;
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// Resources of which each refused configuration is tried; the code is the same for all.
const WHOLE_REFUSALS: [&str; 4] = ["configmaps", "pods", "deployments", custom::PLURAL];

/// Resources that 1.20 answers no apply of: its aggregator has no schema of theirs, and ends the connection in a panic.
pub const NOT_APPLIED: [&str; 1] = ["apiservices"];

/// What cases are made of.
struct Subject<'a> {
    api: &'a OpenApi,
    resource: &'a Resource,
    /// The schema of its kind.
    schema: &'a Json,
    seed: u64,
}

/// The cases of a resource, always the same with one seed.
fn cases(subject: &Subject<'_>) -> Vec<Named> {
    let mut cases = scenarios::whole(subject);
    cases.extend(scenarios::values(subject));
    cases.extend(scenarios::lists(subject));
    cases.extend(scenarios::subresources(subject));
    let is_whole = WHOLE_REFUSALS.contains(&subject.resource.plural.as_str());
    cases.push(refused::configurations(subject, is_whole));
    cases.extend(sequences::all(subject));
    cases
}

/// The definitions with that of the custom resource.
pub fn with_custom(api: OpenApi) -> OpenApi {
    api.with(custom::DEFINITION, custom::schema())
}

impl Run<'_> {
    /// Compares applies to objects of a resource.
    pub async fn compare_applies(&mut self, resource: &Resource, seed: u64) -> Result<()> {
        let Some(schema) = self.api.schema(&resource.definition) else { return Ok(()) };
        let subject = Subject { api: self.api, resource, schema, seed };
        self.send_applies(resource, cases(&subject)).await
    }

    /// Compares applies to objects of a custom resource, after making its definition.
    pub async fn compare_custom_applies(&mut self, seed: u64) -> Result<()> {
        let definition = custom::definition();
        for client in self.clients {
            let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
            write(client, Method::POST, path, &definition).await?;
        }
        let resource = custom::resource();
        for whose in BOTH {
            self.wait_until(whose, &resource.path(whose), true).await?;
        }
        // A server makes the paths of a definition before it has its schema for managed fields.
        tokio::time::sleep(custom::SCHEMA_TIME).await;
        let Some(schema) = self.api.schema(custom::DEFINITION) else { return Ok(()) };
        let subject = Subject { api: self.api, resource: &resource, schema, seed };
        let mut all = cases(&subject);
        all.extend(custom::versions());
        self.send_applies(&resource, all).await
    }

    async fn send_applies(&mut self, resource: &Resource, cases: Vec<Named>) -> Result<()> {
        if resource.has_any_name() {
            let (names, cases): (Vec<String>, Vec<Case>) = cases.into_iter().unzip();
            self.send(cases, AT_ONCE).await;
            for name in names {
                self.remove_applied(resource, &name).await;
            }
            return Ok(());
        }
        // There is one object of it, perhaps still that of the cases before these.
        for (name, case) in cases {
            self.remove_until_gone(resource, &name).await?;
            self.send(vec![case], 1).await;
            self.remove_until_gone(resource, &name).await?;
        }
        Ok(())
    }

    async fn remove_until_gone(&self, resource: &Resource, name: &str) -> Result<()> {
        self.remove_applied(resource, name).await;
        for whose in BOTH {
            self.wait_until(whose, &resource.path_of(whose, name), false).await?;
        }
        Ok(())
    }

    /// Removes an object, with its finalizers.
    async fn remove_applied(&self, resource: &Resource, name: &str) {
        for whose in BOTH {
            let path = resource.path_of(whose, name);
            let none = json!([{"op": "add", "path": "/metadata/finalizers", "value": []}]);
            // It may not be there.
            let _ = self.patch(whose, &path, &none).await;
            let path = format!("{path}?gracePeriodSeconds=0");
            let _ = write(self.client(whose), Method::DELETE, &path, &json!({})).await;
        }
    }

    async fn patch(&self, whose: Whose, path: &str, patch: &Json) -> Result<()> {
        let request = http::Request::patch(path)
            .header(http::header::CONTENT_TYPE, script::JSON_PATCH)
            .body(bytes::Bytes::from(patch.to_string()))?;
        self.client(whose).call(request).await?;
        Ok(())
    }

    async fn wait_until(&self, whose: Whose, path: &str, is_there: bool) -> Result<()> {
        for _ in 0..LOOKS {
            if get_json(self.client(whose), path).await.is_ok() == is_there {
                return Ok(());
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
        ensure!(false, "{path} of {whose:?}: wanted {is_there}");
        Ok(())
    }
}
