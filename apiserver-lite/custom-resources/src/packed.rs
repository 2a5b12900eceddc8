//! A tree that is seldom needed, in little memory.

use std::io::{Read as _, Write as _};

use apiserver_schema::value::{parse_json, write_json};
use apiserver_schema::{Map, Value};
use flate2::Compression;
use flate2::read::DeflateDecoder;
use flate2::write::DeflateEncoder;

/// A tree as compressed JSON.
#[derive(Debug)]
pub(crate) struct CompressedTree(Box<[u8]>);

impl CompressedTree {
    pub(crate) fn compress(tree: &Map) -> Self {
        let mut json = Vec::new();
        write_json(&mut json, &Value::Map(tree.clone()));
        let mut encoder = DeflateEncoder::new(Vec::new(), Compression::default());
        // Writing into memory does not fail.
        let packed = encoder.write_all(&json).and_then(|()| encoder.finish());
        Self(packed.unwrap_or_default().into())
    }

    pub(crate) fn unpack(&self) -> Map {
        let mut json = Vec::new();
        let read = DeflateDecoder::new(&*self.0).read_to_end(&mut json);
        match read.ok().and_then(|_| parse_json(&json, &mut Vec::new()).ok()) {
            Some(Value::Map(tree)) => tree,
            _ => Map::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::value;

    #[test]
    fn a_tree_comes_back_as_it_was() {
        let text = r#"{"type":"object","maximum":1.5,"minimum":-3,"enum":[null,true,"\u00e9\u2028<>"],"properties":{"a":{"default":{}}}}"#;
        let tree = value(text).as_map().cloned().expect("a map");
        assert_eq!(CompressedTree::compress(&tree).unpack(), tree);
        assert_eq!(CompressedTree::compress(&Map::new()).unpack(), Map::new());
        let long = value(&format!(r#"{{"description":"{}"}}"#, "word ".repeat(10_000)));
        let long = long.as_map().cloned().expect("a map");
        let packed = CompressedTree::compress(&long);
        assert!(packed.0.len() < 1_000, "{}", packed.0.len());
        assert_eq!(packed.unpack(), long);
    }
}
