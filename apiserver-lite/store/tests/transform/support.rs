//! A transform of tests: values of keys with `secrets/` are shifted by a number, the first number writes, all read. Not a cipher, but it hides the text.

#![allow(dead_code, reason = "every test uses some of it")]

use std::sync::{Arc, Mutex};

use apiserver_store::{
    Form, Medium, Record, RestoreError, Stamp, Store, StoreConfig, StoreIdentity, Transform,
    TransformError,
};
use bytes::Bytes;

const PREFIX: &[u8] = b"shifted:";

/// The numbers; the first one writes, and none writes clear text. Can be changed while a store uses it.
#[derive(Clone, Default)]
pub struct Shift(Arc<Mutex<Vec<u8>>>);

impl Shift {
    pub fn new(numbers: &[u8]) -> Self {
        let shift = Self::default();
        shift.set(numbers);
        shift
    }

    pub fn set(&self, numbers: &[u8]) {
        *self.0.lock().unwrap() = numbers.to_vec();
    }

    fn writes(&self, key: &str) -> Option<u8> {
        self.0.lock().unwrap().first().copied().filter(|_| key.contains("secrets/"))
    }
}

fn form(number: u8) -> Form {
    Form(100 + u64::from(number))
}

impl Transform for Shift {
    fn encode_stored(&self, key: &str, value: Bytes) -> Result<(Bytes, Form), TransformError> {
        let Some(number) = self.writes(key) else { return Ok((value, Form::AS_IS)) };
        let mut stored = PREFIX.to_vec();
        stored.push(number);
        stored.extend(value.iter().map(|byte| byte.wrapping_add(number)));
        Ok((stored.into(), form(number)))
    }

    fn decode_stored(&self, _key: &str, stored: Bytes) -> Result<(Bytes, Form), TransformError> {
        let Some(rest) = stored.strip_prefix(PREFIX) else { return Ok((stored, Form::AS_IS)) };
        let number = rest[0];
        if !self.0.lock().unwrap().contains(&number) {
            return Err(format!("the number {number} is gone").into());
        }
        let value: Vec<u8> = rest[1..].iter().map(|byte| byte.wrapping_sub(number)).collect();
        Ok((value.into(), form(number)))
    }

    fn current_form(&self, key: &str) -> Form {
        self.writes(key).map_or(Form::AS_IS, form)
    }
}

/// A text, or what stands for one that cannot be read.
#[derive(Debug, PartialEq, Eq)]
pub enum Text {
    Read(Bytes),
    Unreadable(Bytes, String),
}

impl Record for Text {
    type Draft = Bytes;

    fn stored(draft: &Bytes) -> Bytes {
        draft.clone()
    }

    fn stamp(draft: Bytes, _: Stamp) -> Self {
        Self::Read(draft)
    }

    fn tombstone(last: &Self, _: Stamp) -> Self {
        match last {
            Self::Read(text) => Self::Read(text.clone()),
            Self::Unreadable(stored, why) => Self::Unreadable(stored.clone(), why.clone()),
        }
    }

    fn memory_len(&self) -> usize {
        match self {
            Self::Read(text) | Self::Unreadable(text, _) => text.len(),
        }
    }

    fn restore(_: &str, stored: Bytes, _: Stamp) -> Result<Self, RestoreError> {
        Ok(Self::Read(stored))
    }

    fn unreadable(
        _: &str,
        stored: Bytes,
        _: Stamp,
        why: TransformError,
    ) -> Result<Self, RestoreError> {
        Ok(Self::Unreadable(stored, why.to_string()))
    }

    fn is_readable(&self) -> bool {
        matches!(self, Self::Read(_))
    }
}

pub fn identity() -> StoreIdentity {
    StoreIdentity { profile: "orch".into(), domain: "orch.io".into() }
}

/// A store in `directory` whose segments are short, so that most writes pass through the checkpoint.
pub fn open(directory: &std::path::Path, shift: Option<&Shift>) -> Store<Text> {
    let medium = Medium::Directory(directory.to_owned());
    let transform = shift.map(|shift| Arc::new(shift.clone()) as Arc<dyn Transform>);
    let config = StoreConfig::new(medium, identity());
    Store::open(StoreConfig { segment_len_max: 300, transform, ..config }).unwrap()
}

pub fn text(store: &Store<Text>, key: &str) -> Option<String> {
    let entry = store.snapshot().get(key).unwrap()?;
    match &*entry.record {
        Text::Read(text) => Some(String::from_utf8(text.to_vec()).unwrap()),
        Text::Unreadable(_, why) => Some(format!("unreadable: {why}")),
    }
}
