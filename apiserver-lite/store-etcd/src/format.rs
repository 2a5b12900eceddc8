//! Whose records are below a prefix, and in which format: written by the first server, compared by every other.

use apiserver_store::StoreIdentity;
use etcd_client::{Compare, CompareOp, GetOptions, Txn, TxnOp};

use crate::{
    client::{CallError, Etcd},
    keys::Keys,
};

/// The format of the records: the bytes that [`Record::stored`](apiserver_store::Record::stored) makes, transformed as in a log on disk.
pub const FORMAT: &str = "1";

/// Why the records below a prefix are not this server's.
#[derive(Debug, thiserror::Error)]
pub enum PrefixError {
    /// Something else is there.
    #[error(
        "etcd has {key:?} and no {format:?}: what is there was not written by this program, which keeps records in a format of its own. \
         Choose another prefix"
    )]
    Foreign {
        /// A key that is there.
        key: String,
        /// The key that is missing.
        format: String,
    },
    /// The format is that of another version.
    #[error("the records in etcd have format {found:?}, this program reads format {FORMAT}")]
    Format {
        /// What is there.
        found: String,
    },
    /// The records belong to a server with other names.
    #[error(
        "the records in etcd have {what} {found:?}, this server has {expected:?}: choose another prefix or their {what}"
    )]
    Identity {
        /// `profile` or `domain`.
        what: &'static str,
        /// What is there.
        found: String,
        /// What the server is.
        expected: String,
    },
    /// The data below the prefix was deleted.
    #[error(
        "etcd has no key {0:?} any more: its data was deleted. Restore it from a backup; a server that is restarted begins an empty cluster there"
    )]
    Gone(String),
    /// etcd does not answer.
    #[error(transparent)]
    Call(#[from] CallError),
}

/// Checks what is below the prefix, or writes what it will be if nothing is there.
pub async fn check(etcd: &Etcd, keys: &Keys, identity: &StoreIdentity) -> Result<(), PrefixError> {
    let key = keys.format();
    if let Some(found) = read(etcd, &key).await? {
        return compare(&found, identity);
    }
    let any = GetOptions::new().with_prefix().with_limit(1).with_keys_only();
    let root = etcd.get(&keys.root(), any).await?;
    if let Some(other) = root.kvs().first() {
        let key_there = String::from_utf8_lossy(other.key()).into_owned();
        // Another server may have started in between.
        if !key_there.starts_with(&format!("{}.", keys.root())) {
            return Err(PrefixError::Foreign { key: key_there, format: key });
        }
    }
    let absent = Compare::mod_revision(key.as_str(), CompareOp::Equal, 0);
    let text = format!("{FORMAT} {} {}", identity.profile, identity.domain);
    let put = TxnOp::put(key.as_str(), text, None);
    etcd.txn(Txn::new().when([absent]).and_then([put])).await?;
    let written = read(etcd, &key).await?;
    compare(&written.unwrap_or_default(), identity)
}

/// Checks that what is below the prefix is still this server's; nothing is written.
pub async fn check_kept(
    etcd: &Etcd,
    keys: &Keys,
    identity: &StoreIdentity,
) -> Result<(), PrefixError> {
    let key = keys.format();
    match read(etcd, &key).await? {
        Some(found) => compare(&found, identity),
        None => Err(PrefixError::Gone(key)),
    }
}

async fn read(etcd: &Etcd, key: &str) -> Result<Option<String>, CallError> {
    let found = etcd.get(key, GetOptions::new()).await?;
    Ok(found.kvs().first().map(|kv| String::from_utf8_lossy(kv.value()).into_owned()))
}

fn compare(found: &str, identity: &StoreIdentity) -> Result<(), PrefixError> {
    let mut words = found.split(' ');
    if words.next() != Some(FORMAT) {
        return Err(PrefixError::Format { found: found.chars().take(64).collect() });
    }
    let expected = [("profile", &identity.profile), ("domain", &identity.domain)];
    for (what, expected) in expected {
        let found = words.next().unwrap_or_default();
        if found != expected {
            let (found, expected) = (found.to_owned(), expected.clone());
            return Err(PrefixError::Identity { what, found, expected });
        }
    }
    Ok(())
}
