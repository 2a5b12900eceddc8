//! OpenAPI v3 documents of other API servers: fetched by one request at a time, shared by the responses that are under way, and bounded in all, however slowly
//! clients read. Nothing is kept afterwards.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;

use apiserver_core::status::ApiError;
use bytes::Bytes;
use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout_at};

/// Documents that are fetched or under way at one time.
const PLACES: usize = 8;
/// Longest wait for a place, or for another request that fetches the document.
const WAIT_MAX: Duration = Duration::from_secs(10);
/// Time after which a document is fetched again though a response has it.
const AGAIN: Duration = Duration::from_secs(60);

/// Which document: it is another one after a change.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct OtherDocumentName {
    /// The uid of the APIService.
    pub service: String,
    /// The hash by which its server lists it, if it does.
    pub hash: Option<String>,
    /// Whether it is compressed.
    pub packed: bool,
}

/// The documents that are under way.
pub struct OtherDocuments {
    held: std::sync::Mutex<HashMap<OtherDocumentName, Arc<Held>>>,
    places: Arc<Semaphore>,
}

/// Locked while the document is fetched.
type Held = Mutex<Weak<Document>>;

struct Document {
    bytes: Bytes,
    made: Instant,
    _place: OwnedSemaphorePermit,
}

/// A share of a document.
struct Share(Arc<Document>);

impl AsRef<[u8]> for Share {
    fn as_ref(&self) -> &[u8] {
        &self.0.bytes
    }
}

impl Default for OtherDocuments {
    fn default() -> Self {
        Self { held: std::sync::Mutex::default(), places: Arc::new(Semaphore::new(PLACES)) }
    }
}

impl OtherDocuments {
    /// The document, fetched by `fetch` unless a response has it. Cancel safe.
    ///
    /// # Errors
    /// That of the fetch; 429 if no place becomes free.
    pub async fn get(
        &self,
        name: OtherDocumentName,
        fetch: impl Future<Output = Result<Bytes, ApiError>>,
    ) -> Result<Bytes, ApiError> {
        let until = Instant::now() + WAIT_MAX;
        let busy = |_| {
            let text = "too many OpenAPI documents of other API servers are under way";
            ApiError::too_many_requests(text, 1)
        };
        let held = self.find_or_add(name);
        let mut held = timeout_at(until, held.lock()).await.map_err(busy)?;
        let is_new = |document: &Arc<Document>| document.made.elapsed() < AGAIN;
        if let Some(document) = held.upgrade().filter(is_new) {
            return Ok(Bytes::from_owner(Share(document)));
        }
        let place = Arc::clone(&self.places).acquire_owned();
        let place = timeout_at(until, place).await.map_err(busy)?;
        let _place = place.map_err(ApiError::internal)?;
        let bytes = fetch.await?;
        let document = Arc::new(Document { bytes, made: Instant::now(), _place });
        *held = Arc::downgrade(&document);
        Ok(Bytes::from_owner(Share(document)))
    }

    fn find_or_add(&self, name: OtherDocumentName) -> Arc<Held> {
        let mut all = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|_, held| {
            let is_used = Arc::strong_count(held) > 1;
            is_used || held.try_lock().is_ok_and(|document| document.strong_count() > 0)
        });
        Arc::clone(all.entry(name).or_default())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    fn name(service: usize) -> OtherDocumentName {
        OtherDocumentName { service: service.to_string(), hash: None, packed: false }
    }

    #[tokio::test(start_paused = true)]
    async fn requests_share_one_fetch_and_nothing_is_kept() {
        let (documents, fetched) = (OtherDocuments::default(), AtomicUsize::new(0));
        let get = || {
            documents.get(name(0), async {
                tokio::time::sleep(Duration::from_secs(1)).await;
                Ok(Bytes::from(fetched.fetch_add(1, Ordering::Relaxed).to_string()))
            })
        };
        let all = futures_util::future::join_all((0..100).map(|_| get())).await;
        assert!(all.iter().all(|document| document.as_deref().unwrap() == b"0"));
        tokio::time::advance(AGAIN).await;
        let later = get().await.unwrap();
        assert_eq!(&*later, b"1", "an old one is fetched again");
        drop((all, later));
        assert_eq!(documents.places.available_permits(), PLACES);
        assert_eq!(&*get().await.unwrap(), b"2");
        let one = OtherDocumentName { hash: Some("h".to_owned()), ..name(0) };
        drop(documents.get(one, async { Ok(Bytes::new()) }).await);
        assert_eq!(documents.held.lock().unwrap().len(), 1, "what is done with is forgotten");
    }

    #[tokio::test(start_paused = true)]
    async fn no_more_documents_are_under_way_than_there_are_places() {
        let documents = OtherDocuments::default();
        let mut under_way = Vec::new();
        for at in 0..PLACES {
            let got = documents.get(name(at), async { Ok(Bytes::from("x")) }).await;
            under_way.push(got.unwrap());
        }
        let never = documents.get(name(PLACES), async { unreachable!("no place") }).await;
        assert_eq!(never.unwrap_err().code(), 429);
        // Who reads the same ones, waits for nothing.
        assert!(documents.get(name(0), async { unreachable!("shared") }).await.is_ok());
        under_way.pop();
        let fetch = async { Ok(Bytes::from("y")) };
        assert_eq!(&*documents.get(name(PLACES), fetch).await.unwrap(), b"y");
    }

    #[tokio::test(start_paused = true)]
    async fn a_fetch_that_fails_or_is_given_up_holds_no_place() {
        let documents = OtherDocuments::default();
        for at in 0..PLACES * 2 {
            let failed = documents.get(name(at), async { Err(ApiError::unavailable("away")) });
            assert_eq!(failed.await.unwrap_err().code(), 503);
            let hangs = documents.get(name(at), std::future::pending());
            assert!(tokio::time::timeout(Duration::from_millis(1), hangs).await.is_err());
        }
        assert_eq!(documents.places.available_permits(), PLACES);
    }
}
