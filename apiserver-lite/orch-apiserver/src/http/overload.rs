//! Overload: so many requests are worked on at a time, the next are told to come back. Streams do not count, and
//! administrators are always served.

use tokio::sync::{Semaphore, SemaphorePermit};

use crate::auth::User;
use crate::metrics::RequestKind;
use crate::status::ApiError;

/// Requests that only read.
const READING_MAX: usize = 400;
/// Requests that change something.
const CHANGING_MAX: usize = 200;

/// Places for requests.
pub struct Overload {
    reading: Semaphore,
    changing: Semaphore,
}

impl Default for Overload {
    fn default() -> Self {
        Self { reading: Semaphore::new(READING_MAX), changing: Semaphore::new(CHANGING_MAX) }
    }
}

impl Overload {
    /// A place for a request, held while it is worked on; `None` for one that needs none.
    ///
    /// # Errors
    /// 429 when all are taken.
    pub fn admit(
        &self,
        kind: RequestKind,
        user: &User,
    ) -> Result<Option<SemaphorePermit<'_>>, ApiError> {
        let places = match kind {
            RequestKind::LongRunning => return Ok(None),
            RequestKind::ReadOnly => &self.reading,
            RequestKind::Mutating => &self.changing,
        };
        match places.try_acquire() {
            Ok(place) => Ok(Some(place)),
            Err(_) if user.is_in(crate::auth::MASTERS) => Ok(None),
            Err(_) => {
                Err(ApiError::too_many_requests("Too many requests, please try again later.", 1))
            }
        }
    }
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
        let refused = overload.admit(RequestKind::Mutating, &user).unwrap_err();
        assert_eq!((refused.code(), refused.retry_after_seconds()), (429, Some(1)));
        assert!(overload.admit(RequestKind::ReadOnly, &user).is_ok());
        assert!(overload.admit(RequestKind::LongRunning, &user).is_ok());
        assert!(overload.admit(RequestKind::Mutating, &User::server()).is_ok());
        drop(places);
        assert!(overload.admit(RequestKind::Mutating, &user).is_ok());
    }
}
