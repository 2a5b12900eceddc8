//! The key that signs service account tokens (`sa.key`) and the keys that verify them (`sa.pub`). A rotated key goes on verifying until it is removed: `sa.pub`
//! holds several keys then, the current one first.

use std::path::Path;

use apiserver_token::SigningKey;
use proto_daemon::{exit, private_files};
use rcgen::KeyPair;

use crate::authority::{missing, read, write_key, write_public};
use crate::certificates::FileChange;
use crate::error::BootstrapError;

/// File of a key that was prepared and does not sign yet.
const NEXT: &str = "sa-next.key";
/// Between two keys of a file.
const BEGIN: &str = "-----BEGIN PUBLIC KEY-----";
/// Most keys that verify tokens: more rotations at once forget the oldest.
const KEYS_MAX: usize = 8;

/// Makes the key if it is missing, and the public half next to it.
///
/// # Errors
/// The files cannot be read or written, or the key cannot be used.
pub fn ensure(dir: &Path) -> Result<FileChange, BootstrapError> {
    let (private, public) = (dir.join("sa.key"), dir.join("sa.pub"));
    match (read(&private)?, read(&public)?) {
        (None, Some(_)) => Err(BootstrapError::unusable(
            &private,
            format!("is missing, and {} is there: add the key, or remove both", public.display()),
        )),
        (None, None) => {
            let key = generate()?;
            write_key(&private, &key)?;
            write_public(&public, &public_half(&private, &key)?)?;
            Ok(FileChange::New)
        }
        (Some(text), found) => {
            private_files::make_private(&private).map_err(BootstrapError::file(&private))?;
            if found.is_some() {
                return Ok(FileChange::Kept);
            }
            write_public(&public, &public_half(&private, &text)?)?;
            Ok(FileChange::New)
        }
    }
}

/// Makes the key that signs after the next [`rotate`], if there is none, and adds its public half to those that verify: servers that share the
/// tokens know it before it signs.
///
/// # Errors
/// As [`ensure`].
pub fn prepare(dir: &Path) -> Result<(), BootstrapError> {
    let (next, public) = (dir.join(NEXT), dir.join("sa.pub"));
    let mut keys = split(&read(&public)?.ok_or_else(|| missing(&public))?);
    let signing = read(&dir.join("sa.key"))?;
    // A crash of the last rotation may have left the key that signs by now.
    let text = match read(&next)?.filter(|text| signing.as_ref() != Some(text)) {
        Some(text) => text,
        None => {
            let key = generate()?;
            write_key(&next, &key)?;
            key
        }
    };
    let added = split(&public_half(&next, &text)?);
    // Behind the current key, before the older ones.
    keys.retain(|key| !added.contains(key));
    let older = keys.split_off(keys.len().min(1));
    keys.extend(added);
    keys.extend(older);
    keys.truncate(KEYS_MAX);
    write_public(&public, &joined(&keys))
}

/// What a rotation has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyRotation {
    /// Another key signs.
    Done,
    /// An interrupted one was finished, whose key signs already: it stays.
    Finished,
}

/// Makes a new key that signs from now on, or takes the one that was prepared. The keys that verified go on doing so. A rotation that was interrupted once
/// the prepared key signed is only finished: a key that no other control plane knows would sign at once.
///
/// # Errors
/// As [`ensure`].
pub fn rotate(dir: &Path) -> Result<KeyRotation, BootstrapError> {
    let (private, public) = (dir.join("sa.key"), dir.join("sa.pub"));
    let old = split(&read(&public)?.ok_or_else(|| missing(&public))?);
    let next = dir.join(NEXT);
    let prepared = read(&next)?;
    let remove_next = || std::fs::remove_file(&next).map_err(BootstrapError::file(&next));
    if prepared.is_some() && prepared == read(&private)? {
        return remove_next().map(|()| KeyRotation::Finished);
    }
    let (path, key) = match &prepared {
        Some(text) => (&next, text.clone()),
        None => (&private, generate()?),
    };
    // Verifying first: a crash between the two leaves the old key signing, which verifies too.
    let mut keys = split(&public_half(path, &key)?);
    let known = old.into_iter().filter(|one| !keys.contains(one)).collect::<Vec<_>>();
    keys.extend(known);
    keys.truncate(KEYS_MAX);
    write_public(&public, &joined(&keys))?;
    write_key(&private, &key)?;
    if prepared.is_some() {
        remove_next()?;
    }
    Ok(KeyRotation::Done)
}

/// Leaves only the current key in the file of those that verify: tokens of older ones are refused from the next start of the API server on.
///
/// # Errors
/// As [`ensure`].
pub fn forget_old(dir: &Path) -> Result<usize, BootstrapError> {
    let (private, public) = (dir.join("sa.key"), dir.join("sa.pub"));
    let text = read(&private)?.ok_or_else(|| missing(&private))?;
    let count = read(&public)?.map_or(0, |old| split(&old).len());
    write_public(&public, &public_half(&private, &text)?)?;
    Ok(count.saturating_sub(1))
}

fn generate() -> Result<String, BootstrapError> {
    KeyPair::generate().map(|key| key.serialize_pem()).map_err(BootstrapError::make("sa"))
}

/// The public half of a key that signs tokens. Its curve may be one that certificates do not have.
fn public_half(path: &Path, text: &str) -> Result<String, BootstrapError> {
    let key = SigningKey::from_pem(text.as_bytes()).map_err(|error| {
        let why = format!("contains no usable private key: {}", exit::chain(&error));
        BootstrapError::unusable(path, why)
    })?;
    Ok(key.public().pem())
}

/// The keys of a file, one text each.
fn split(text: &str) -> Vec<String> {
    let keys = text.split(BEGIN).skip(1);
    keys.map(|rest| format!("{BEGIN}{}\n", rest.trim_end())).collect()
}

fn joined(keys: &[String]) -> String {
    keys.iter().map(|key| format!("{}\n", key.trim_end())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rotated_key_goes_on_verifying_until_it_is_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str| std::fs::read_to_string(dir.path().join(name)).unwrap();
        assert_eq!(ensure(dir.path()).unwrap(), FileChange::New);
        assert_eq!(ensure(dir.path()).unwrap(), FileChange::Kept);
        let (first_key, first) = (file("sa.key"), file("sa.pub"));
        rotate(dir.path()).unwrap();
        assert_ne!(file("sa.key"), first_key);
        let keys = split(&file("sa.pub"));
        assert_eq!(keys.len(), 2);
        assert_eq!(split(&first)[0], keys[1], "the old key is there, behind the new one");
        let current = KeyPair::from_pem(&file("sa.key")).unwrap().public_key_pem();
        assert_eq!(split(&current)[0], keys[0]);
        assert_eq!(forget_old(dir.path()).unwrap(), 1);
        assert_eq!(split(&file("sa.pub")), [keys[0].clone()]);
        for _ in 0..KEYS_MAX + 2 {
            rotate(dir.path()).unwrap();
        }
        assert_eq!(split(&file("sa.pub")).len(), KEYS_MAX);
    }

    #[test]
    fn a_prepared_key_verifies_before_it_signs() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str| std::fs::read_to_string(dir.path().join(name)).unwrap();
        ensure(dir.path()).unwrap();
        rotate(dir.path()).unwrap();
        let (signing, before) = (file("sa.key"), split(&file("sa.pub")));
        prepare(dir.path()).unwrap();
        prepare(dir.path()).unwrap();
        let prepared = split(&file("sa.pub"));
        assert_eq!(file("sa.key"), signing);
        assert_eq!([&prepared[0], &prepared[2]], [&before[0], &before[1]]);
        let next = KeyPair::from_pem(&file(NEXT)).unwrap();
        rotate(dir.path()).unwrap();
        let keys = split(&file("sa.pub"));
        assert_eq!(
            KeyPair::from_pem(&file("sa.key")).unwrap().serialize_der(),
            next.serialize_der()
        );
        assert_eq!(keys, [prepared[1].clone(), before[0].clone(), before[1].clone()]);
        assert!(!dir.path().join(NEXT).exists());
        std::fs::copy(dir.path().join("sa.key"), dir.path().join(NEXT)).unwrap();
        prepare(dir.path()).unwrap();
        assert_ne!(file(NEXT), file("sa.key"), "the rest of a rotation that a crash has ended");
        assert_eq!(forget_old(dir.path()).unwrap(), 3);
    }

    #[test]
    fn a_rotation_that_was_killed_is_finished_without_another_key() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str| std::fs::read_to_string(dir.path().join(name)).unwrap();
        ensure(dir.path()).unwrap();
        prepare(dir.path()).unwrap();
        let next = file(NEXT);
        assert_eq!(rotate(dir.path()).unwrap(), KeyRotation::Done);
        // Killed before it removed the file.
        std::fs::write(dir.path().join(NEXT), &next).unwrap();
        let files = (file("sa.key"), file("sa.pub"));
        assert_eq!(rotate(dir.path()).unwrap(), KeyRotation::Finished);
        assert_eq!((file("sa.key"), file("sa.pub")), files);
        assert!(files.0 == next && !dir.path().join(NEXT).exists());
        assert_eq!(rotate(dir.path()).unwrap(), KeyRotation::Done);
        assert_ne!(file("sa.key"), files.0);
    }

    #[test]
    fn keys_in_every_form_that_signs_tokens_are_completed_prepared_and_forgotten() {
        for (key, public) in
            [("rsa.key", "rsa.pub"), ("p521.key", "p521.pub"), ("p521.sec1.key", "p521.pub")]
        {
            let known = Path::new(env!("CARGO_MANIFEST_DIR")).join("../token/testdata");
            let known = |name: &str| std::fs::read_to_string(known.join(name)).unwrap();
            let dir = tempfile::tempdir().unwrap();
            let file = |name: &str| std::fs::read_to_string(dir.path().join(name)).unwrap();
            std::fs::write(dir.path().join("sa.key"), known(key)).unwrap();
            assert_eq!(ensure(dir.path()).unwrap(), FileChange::New, "{key}");
            assert_eq!(file("sa.pub"), known(public));
            prepare(dir.path()).unwrap();
            assert_eq!(forget_old(dir.path()).unwrap(), 1, "{key}");
            assert_eq!(file("sa.pub"), known(public));
            // One that was put there.
            std::fs::write(dir.path().join("sa.key"), generate().unwrap()).unwrap();
            std::fs::write(dir.path().join(NEXT), known(key)).unwrap();
            assert_eq!(rotate(dir.path()).unwrap(), KeyRotation::Done, "{key}");
            assert_eq!((file("sa.key"), file("sa.pub")), (known(key), known(public)));
        }
    }

    #[test]
    fn a_missing_public_key_is_restored_and_a_missing_private_key_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        ensure(dir.path()).unwrap();
        std::fs::remove_file(dir.path().join("sa.pub")).unwrap();
        assert_eq!(ensure(dir.path()).unwrap(), FileChange::New);
        std::fs::remove_file(dir.path().join("sa.key")).unwrap();
        let error = ensure(dir.path()).unwrap_err().to_string();
        assert!(error.contains("sa.key") && error.contains("is missing"), "{error}");
    }
}
