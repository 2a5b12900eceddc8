//! Keys in etcd: `<prefix>/<group>/<resource>/…` for records, `<prefix>/.…` for what the servers keep beside them. No group starts with a dot.

/// A key below the prefix that is none of the servers'. Only they may write there, so it must be removed by hand.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("etcd has the key {0:?}, which is not the key of a record: remove it")]
pub struct ForeignKey(pub String);

/// The keys below one prefix.
#[derive(Clone, Debug)]
pub struct Keys {
    prefix: String,
}

impl Keys {
    /// The prefix with or without a slash at its end.
    pub fn new(prefix: &str) -> Self {
        Self { prefix: prefix.trim_end_matches('/').to_owned() }
    }

    /// What all keys start with; watched and read.
    pub fn root(&self) -> String {
        format!("{}/", self.prefix)
    }

    /// The key of a record; `None` if no record may have it.
    pub fn of_record(&self, key: &str) -> Option<String> {
        let is_record = key.starts_with('/') && !key.starts_with("/.");
        is_record.then(|| format!("{}{key}", self.prefix))
    }

    /// The record's key that a key in etcd stands for; `None` for what the servers keep beside records.
    ///
    /// # Errors
    /// It is not UTF-8, or not below the prefix.
    pub fn record_of<'a>(&self, key: &'a [u8]) -> Result<Option<&'a str>, ForeignKey> {
        let text = std::str::from_utf8(key);
        let below = text.ok().and_then(|text| text.strip_prefix(&self.prefix));
        match below {
            Some(below) if below.starts_with("/.") => Ok(None),
            Some(below) if below.starts_with('/') => Ok(Some(below)),
            _ => Err(ForeignKey(String::from_utf8_lossy(key).into_owned())),
        }
    }

    /// What the records are and whose.
    pub fn format(&self) -> String {
        format!("{}/.format", self.prefix)
    }

    /// Put by each transaction: its mod revision is that of the last write of any server.
    pub fn last(&self) -> String {
        format!("{}/.last", self.prefix)
    }

    /// Which server compacts next, and to where.
    pub fn compaction(&self) -> String {
        format!("{}/.compaction", self.prefix)
    }

    /// A claim of a record.
    pub fn claim(&self, claim: &str) -> String {
        format!("{}/.claims/{claim}", self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_and_what_is_kept_beside_them() {
        for prefix in ["/registry", "/registry/"] {
            let keys = Keys::new(prefix);
            let pod = keys.of_record("/core/pods/default/a").unwrap();
            assert_eq!(pod, "/registry/core/pods/default/a");
            assert_eq!(keys.record_of(pod.as_bytes()), Ok(Some("/core/pods/default/a")));
            for own in [keys.format(), keys.last(), keys.compaction(), keys.claim("ip/10.0.0.1")] {
                assert!(own.starts_with(&keys.root()));
                assert_eq!(keys.record_of(own.as_bytes()), Ok(None), "{own}");
            }
            for foreign in ["/.format", "pods", ""] {
                assert_eq!(keys.of_record(foreign), None, "{foreign:?}");
            }
            for foreign in [&b"/registr"[..], b"/registryx/a", b"/registry/\xff"] {
                assert!(keys.record_of(foreign).is_err());
            }
        }
    }
}
