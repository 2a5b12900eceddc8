//! OpenAPI documents: made when they are requested, and shared by all responses that are under way, however slowly their clients read. Nothing is kept
//! afterwards: they are large, and rarely requested.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use apiserver_schema::Kind;
use apiserver_schema::openapi::OtherApi;
use bytes::Bytes;

/// Which document: whether it is of version 2, whether it is Protobuf, and its path.
pub type DocumentName = (bool, bool, String);

/// The documents of responses that are under way.
#[derive(Default)]
pub struct OpenApiDocuments(Mutex<HashMap<DocumentName, Weak<Document>>>);

/// What a document has besides the built-in kinds: it is another one when these are others.
#[derive(Default)]
pub struct Parts {
    /// The kinds of definitions.
    pub custom: Vec<Arc<Kind>>,
    /// What other servers publish.
    pub others: Vec<Arc<OtherApi>>,
}

impl Parts {
    fn is_same(&self, other: &Self) -> bool {
        are_same(&self.custom, &other.custom) && are_same(&self.others, &other.others)
    }
}

fn are_same<T>(some: &[Arc<T>], others: &[Arc<T>]) -> bool {
    some.len() == others.len()
        && some.iter().zip(others).all(|(one, other)| Arc::ptr_eq(one, other))
}

struct Document {
    bytes: Vec<u8>,
    parts: Parts,
}

/// A share of a document.
struct Share(Arc<Document>);

impl AsRef<[u8]> for Share {
    fn as_ref(&self) -> &[u8] {
        &self.0.bytes
    }
}

impl OpenApiDocuments {
    /// The document with these parts, made by `make` unless a response has it; `None` if there is none. One is made at a time.
    pub fn get(
        &self,
        name: DocumentName,
        parts: Parts,
        make: impl FnOnce(&Parts) -> Option<Vec<u8>>,
    ) -> Option<Bytes> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let has_same = |document: &Arc<Document>| document.parts.is_same(&parts);
        if let Some(document) = all.get(&name).and_then(Weak::upgrade).filter(has_same) {
            return Some(Bytes::from_owner(Share(document)));
        }
        let document = Arc::new(Document { bytes: make(&parts)?, parts });
        all.retain(|_, document| document.strong_count() > 0);
        all.insert(name, Arc::downgrade(&document));
        Some(Bytes::from_owner(Share(document)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn responses_under_way_share_a_document_and_nothing_is_kept() {
        let documents = OpenApiDocuments::default();
        let name = || (true, false, String::new());
        let made = std::cell::Cell::new(0_u8);
        let get = || {
            documents.get(name(), Parts::default(), |_| {
                made.set(made.get() + 1);
                Some(b"{}".to_vec())
            })
        };
        let (first, second) = (get(), get());
        assert_eq!((first.as_deref(), made.get()), (Some(&b"{}"[..]), 1));
        assert_eq!(first.as_ref().map(|bytes| bytes.as_ptr()), second.as_ref().map(|b| b.as_ptr()));
        drop((first, second));
        assert!(get().is_some() && made.get() == 2);
        assert!(
            documents.get((false, false, "x".to_owned()), Parts::default(), |_| None).is_none()
        );
    }
}
