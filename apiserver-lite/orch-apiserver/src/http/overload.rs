//! Overload: so many requests are worked on at a time, the next are told to come back. Streams have places of their own, in
//! all and for each user; of the others administrators are always served.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::auth::User;
use crate::metrics::RequestKind;
use crate::status::ApiError;

/// Requests that only read.
const READING_MAX: usize = 400;
/// Requests that change something.
const CHANGING_MAX: usize = 200;
/// Watches, logs and sessions: some kilobytes each, several for every node of a large cluster.
const STREAMS_MAX: usize = 32_768;
/// Those of one user. A controller has a few dozen; a thousand and more of one user are a test's.
const STREAMS_OF_USER_MAX: usize = 8_192;

/// Places for requests.
pub struct Overload {
    reading: Arc<Semaphore>,
    changing: Arc<Semaphore>,
    streams: Arc<Semaphore>,
    by_user: Arc<Mutex<HashMap<String, usize>>>,
}

impl Default for Overload {
    fn default() -> Self {
        let places = |count| Arc::new(Semaphore::new(count));
        Self {
            reading: places(READING_MAX),
            changing: places(CHANGING_MAX),
            streams: places(STREAMS_MAX),
            by_user: Arc::default(),
        }
    }
}

/// A place, until dropped: for a stream as long as its body.
pub struct InFlightPermit {
    _permit: Option<OwnedSemaphorePermit>,
    _user: Option<OfUser>,
}

/// Counts a stream of a user.
struct OfUser {
    by_user: Arc<Mutex<HashMap<String, usize>>>,
    name: String,
}

impl Drop for OfUser {
    fn drop(&mut self) {
        let mut by_user = self.by_user.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = by_user.get_mut(&self.name) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                by_user.remove(&self.name);
            }
        }
    }
}

impl Overload {
    /// A place for a request.
    ///
    /// # Errors
    /// 429 when all are taken.
    pub fn admit(&self, kind: RequestKind, user: &User) -> Result<InFlightPermit, ApiError> {
        let places = match kind {
            RequestKind::LongRunning => return self.stream(user),
            RequestKind::ReadOnly => &self.reading,
            RequestKind::Mutating => &self.changing,
        };
        match places.clone().try_acquire_owned() {
            Ok(place) => Ok(InFlightPermit { _permit: Some(place), _user: None }),
            Err(_) if user.is_in(crate::auth::MASTERS) => {
                Ok(InFlightPermit { _permit: None, _user: None })
            }
            Err(_) => Err(too_many()),
        }
    }

    fn stream(&self, user: &User) -> Result<InFlightPermit, ApiError> {
        let permit = self.streams.clone().try_acquire_owned().map_err(|_| too_many())?;
        let mut by_user = self.by_user.lock().unwrap_or_else(PoisonError::into_inner);
        let count = by_user.entry(user.name.clone()).or_default();
        if *count >= STREAMS_OF_USER_MAX {
            return Err(too_many());
        }
        *count += 1;
        drop(by_user);
        let of_user = OfUser { by_user: self.by_user.clone(), name: user.name.clone() };
        Ok(InFlightPermit { _permit: Some(permit), _user: Some(of_user) })
    }
}

fn too_many() -> ApiError {
    ApiError::too_many_requests("Too many requests, please try again later.", 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_one_has_to_wait() {
        let overload = Overload::default();
        let user = User::anonymous();
        let places: Vec<_> = (0..CHANGING_MAX)
            .map(|_| overload.admit(RequestKind::Mutating, &user).unwrap())
            .collect();
        let refused = overload.admit(RequestKind::Mutating, &user).err().unwrap();
        assert_eq!((refused.code(), refused.retry_after_seconds()), (429, Some(1)));
        assert!(overload.admit(RequestKind::ReadOnly, &user).is_ok());
        assert!(overload.admit(RequestKind::LongRunning, &user).is_ok());
        assert!(overload.admit(RequestKind::Mutating, &User::server()).is_ok());
        drop(places);
        assert!(overload.admit(RequestKind::Mutating, &user).is_ok());
    }

    #[test]
    fn streams_of_one_user_leave_places_to_others() {
        let overload = Overload::default();
        let user = |name: &str| User { name: name.to_owned(), ..User::default() };
        let stream = |name: &str| overload.admit(RequestKind::LongRunning, &user(name));
        let of_one: Vec<_> = (0..STREAMS_OF_USER_MAX).map(|_| stream("a").unwrap()).collect();
        assert_eq!(stream("a").err().map(|error| error.code()), Some(429));
        let mut others: Vec<_> = Vec::new();
        for name in ["b", "c", "d"] {
            others.extend((0..STREAMS_OF_USER_MAX).map(|_| stream(name).unwrap()));
        }
        assert_eq!(stream("e").err().map(|error| error.code()), Some(429), "all are taken");
        drop(of_one);
        assert!(stream("e").is_ok() && stream("a").is_ok());
        drop(others);
        assert!(overload.by_user.lock().unwrap().is_empty());
    }
}
