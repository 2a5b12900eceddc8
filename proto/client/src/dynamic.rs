//! Objects of kinds known only at run time, as JSON trees: for namespace deletion and for tools.

use bytes::Bytes;
use proto_api::Collection;
use serde_json::Value;

use crate::client::{Client, label};
use crate::content;
use crate::error::ClientError;
use crate::params::{DeleteParams, ListParams, Patch, WriteParams};
use crate::request;

/// Objects of one kind as JSON trees.
#[derive(Clone, Debug)]
pub struct Dynamic {
    client: Client,
    collection: Collection,
}

impl Dynamic {
    /// The objects of `collection`.
    pub fn new(client: Client, collection: Collection) -> Self {
        Self { client, collection }
    }

    /// One object.
    pub async fn get(&self, name: &str) -> Result<Value, ClientError> {
        self.tree(request::get(self.collection.item(name, None))).await
    }

    /// A list object: `metadata` and `items`.
    pub async fn list(&self, params: &ListParams) -> Result<Value, ClientError> {
        self.tree(request::list(self.collection.path(), params)).await
    }

    /// Creates an object; `apiVersion` and `kind` are in it.
    pub async fn create(&self, object: &Value, params: &WriteParams) -> Result<Value, ClientError> {
        let body = Bytes::from(object.to_string());
        self.tree(request::create(self.collection.path(), params, request::JSON, body)).await
    }

    /// Replaces an object, or one of its subresources.
    pub async fn update(
        &self,
        name: &str,
        subresource: Option<&str>,
        object: &Value,
        params: &WriteParams,
    ) -> Result<Value, ClientError> {
        let path = self.collection.item(name, subresource);
        let body = Bytes::from(object.to_string());
        self.tree(request::update(path, params, request::JSON, body)).await
    }

    /// Changes a part of an object.
    pub async fn patch(
        &self,
        name: &str,
        patch: &Patch,
        params: &WriteParams,
    ) -> Result<Value, ClientError> {
        self.tree(request::patch(self.collection.item(name, None), params, patch)).await
    }

    /// Deletes an object.
    pub async fn delete(&self, name: &str, params: &DeleteParams) -> Result<(), ClientError> {
        self.client.delete(self.collection.item(name, None), &ListParams::default(), params).await
    }

    /// Deletes every object that `select` selects.
    pub async fn delete_collection(
        &self,
        select: &ListParams,
        params: &DeleteParams,
    ) -> Result<(), ClientError> {
        self.client.delete(self.collection.path(), select, params).await
    }

    async fn tree(&self, request: http::Request<Bytes>) -> Result<Value, ClientError> {
        get_json(&self.client, request).await
    }
}

/// Sends any request and reads the answer as JSON: discovery documents, `/version`, reviews.
pub async fn get_json(
    client: &Client,
    request: http::Request<Bytes>,
) -> Result<Value, ClientError> {
    let label = label(&request);
    let answer = client.call(request).await?;
    content::json(&answer.body).map_err(|cause| ClientError::Decode { request: label, cause })
}
