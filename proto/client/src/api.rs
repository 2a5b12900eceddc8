//! The verbs for one typed kind.

use std::marker::PhantomData;

use bytes::Bytes;
use http::Request;
use proto_api::meta::v1::PartialObjectMetadata;
use proto_api::{Collection, Kind, List, Resource};

use crate::client::{Client, label};
use crate::content::Encoding;
use crate::error::{ClientError, DecodeError};
use crate::params::{DeleteParams, ListParams, Patch, WriteParams};
use crate::request;

/// Objects of one kind, in one namespace or in all. Cheap to make and to clone.
#[derive(Debug)]
pub struct Api<T> {
    client: Client,
    collection: Collection,
    kind: PhantomData<fn() -> T>,
}

impl Client {
    /// Objects of `T` in all namespaces, or of a cluster-scoped kind.
    pub fn all<T: Resource>(&self) -> Api<T> {
        Api::new(self.clone(), None)
    }

    /// Objects of `T` in one namespace.
    pub fn within<T: Resource>(&self, namespace: &str) -> Api<T> {
        Api::new(self.clone(), Some(namespace))
    }

    /// The metadata of the objects of a collection, of any kind; the server sends nothing else.
    pub fn metadata(&self, collection: Collection) -> Api<PartialObjectMetadata> {
        Api::with_collection(self.for_metadata(), collection)
    }
}

impl<T> Clone for Api<T> {
    fn clone(&self) -> Self {
        Self { client: self.client.clone(), collection: self.collection.clone(), kind: PhantomData }
    }
}

impl<T: Resource> Api<T> {
    pub(crate) fn new(client: Client, namespace: Option<&str>) -> Self {
        let collection = Collection::for_type::<T>(client.names(), namespace);
        Self::with_collection(client, collection)
    }

    pub(crate) fn with_collection(client: Client, collection: Collection) -> Self {
        Self { client, collection, kind: PhantomData }
    }

    pub fn client(&self) -> &Client {
        &self.client
    }

    /// The collection of the objects.
    pub fn collection(&self) -> &Collection {
        &self.collection
    }

    /// One object.
    pub async fn get(&self, name: &str) -> Result<T, ClientError> {
        let path = self.collection.item(name, None);
        self.client.negotiate(|_| Ok(request::get(path.clone())), self.object()).await
    }

    /// One object; `None` if it does not exist.
    pub async fn find(&self, name: &str) -> Result<Option<T>, ClientError> {
        match self.get(name).await {
            Ok(object) => Ok(Some(object)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// One page of objects, or all when `params` has no limit.
    pub async fn list(&self, params: &ListParams) -> Result<List<T>, ClientError> {
        let path = self.collection.path();
        let make = |_| Ok(request::list(path.clone(), params));
        self.client.for_list().negotiate(make, |encoding, body| encoding.decode_list(body)).await
    }

    /// Creates the object; in its own namespace if this is for all namespaces.
    pub async fn create(&self, object: &T, params: &WriteParams) -> Result<T, ClientError> {
        let path = self.home(object).path();
        self.write(object, |content_type, body| {
            request::create(path.clone(), params, content_type, body)
        })
        .await
    }

    /// Replaces the object; its resource version must be the stored one, or empty to overwrite.
    pub async fn update(&self, object: &T, params: &WriteParams) -> Result<T, ClientError> {
        self.update_sub(object, None, params).await
    }

    /// Replaces the part of the object that belongs to the subresource `status`.
    pub async fn update_status(&self, object: &T, params: &WriteParams) -> Result<T, ClientError> {
        self.update_sub(object, Some("status"), params).await
    }

    /// Replaces the part of the object that belongs to the subresource `approval`.
    pub async fn update_approval(
        &self,
        object: &T,
        params: &WriteParams,
    ) -> Result<T, ClientError> {
        self.update_sub(object, Some("approval"), params).await
    }

    async fn update_sub(
        &self,
        object: &T,
        subresource: Option<&str>,
        params: &WriteParams,
    ) -> Result<T, ClientError> {
        let path = self.home(object).item(&object.metadata().name, subresource);
        self.write(object, |content_type, body| {
            request::update(path.clone(), params, content_type, body)
        })
        .await
    }

    /// Changes a part of the object.
    pub async fn patch(
        &self,
        name: &str,
        patch: &Patch,
        params: &WriteParams,
    ) -> Result<T, ClientError> {
        self.patch_sub(name, None, patch, params).await
    }

    /// Changes a part of the object's status.
    pub async fn patch_status(
        &self,
        name: &str,
        patch: &Patch,
        params: &WriteParams,
    ) -> Result<T, ClientError> {
        self.patch_sub(name, Some("status"), patch, params).await
    }

    async fn patch_sub(
        &self,
        name: &str,
        subresource: Option<&str>,
        patch: &Patch,
        params: &WriteParams,
    ) -> Result<T, ClientError> {
        let path = self.collection.item(name, subresource);
        let make = |_| Ok(request::patch(path.clone(), params, patch));
        self.client.negotiate(make, self.object()).await
    }

    /// Deletes the object; with finalizers or a grace period the deletion is only requested. Returns once the server has accepted it.
    pub async fn delete(&self, name: &str, params: &DeleteParams) -> Result<(), ClientError> {
        let path = self.collection.item(name, None);
        self.client.delete(path, &ListParams::default(), params).await
    }

    /// Deletes every object that `select` selects.
    pub async fn delete_collection(
        &self,
        select: &ListParams,
        params: &DeleteParams,
    ) -> Result<(), ClientError> {
        self.client.delete(self.collection.path(), select, params).await
    }

    /// Reads a subresource that is of kind `S`, for example a scale.
    pub async fn get_sub<S: Kind>(&self, name: &str, subresource: &str) -> Result<S, ClientError> {
        let path = self.collection.item(name, Some(subresource));
        let names = self.client.names();
        let make = |_| Ok(request::get(path.clone()));
        self.client.negotiate(make, |encoding, body| encoding.decode(body, names)).await
    }

    /// Posts a `B` to a subresource that returns an `A`: a token request, for example.
    pub async fn create_sub<B: Kind, A: Kind>(
        &self,
        name: &str,
        subresource: &str,
        body: &B,
    ) -> Result<A, ClientError> {
        let names = self.client.names();
        let make = |encoding| self.post(name, subresource, body, encoding);
        self.client.negotiate(make, |encoding, body| encoding.decode(body, names)).await
    }

    /// Posts a `B` to a subresource that returns a Status: a binding or an eviction.
    pub async fn post_sub<B: Kind>(
        &self,
        name: &str,
        subresource: &str,
        body: &B,
    ) -> Result<(), ClientError> {
        self.client
            .negotiate(|encoding| self.post(name, subresource, body, encoding), |_, _| Ok(()))
            .await
    }

    fn post<B: Kind>(
        &self,
        name: &str,
        subresource: &str,
        body: &B,
        encoding: Encoding,
    ) -> Result<Request<Bytes>, ClientError> {
        let path = self.collection.item(name, Some(subresource));
        let body = self.client.encode(encoding, body, &format!("POST {path}"))?;
        let content_type = encoding.content_type(self.client.names());
        Ok(request::create(path, &WriteParams::default(), content_type, body))
    }

    async fn write(
        &self,
        object: &T,
        request: impl Fn(&'static str, Bytes) -> Request<Bytes>,
    ) -> Result<T, ClientError> {
        let make = |encoding: Encoding| {
            let named = label(&request(crate::request::JSON, Bytes::new()));
            let body = self.client.encode(encoding, object, &named)?;
            Ok(request(encoding.content_type(self.client.names()), body))
        };
        self.client.negotiate(make, self.object()).await
    }

    fn object(&self) -> impl FnOnce(Encoding, &[u8]) -> Result<T, DecodeError> {
        let names = self.client.names();
        move |encoding, body| encoding.decode(body, names)
    }

    /// The collection that an object belongs in.
    fn home(&self, object: &T) -> Collection {
        let namespace = &object.metadata().namespace;
        match self.collection.namespace {
            None if T::NAMESPACED && !namespace.is_empty() => {
                Collection { namespace: Some(namespace.clone()), ..self.collection.clone() }
            }
            _ => self.collection.clone(),
        }
    }
}
