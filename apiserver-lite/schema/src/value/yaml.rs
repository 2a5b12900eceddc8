//! Parses YAML into a tree, as Kubernetes' YAML decoder: one document, unquoted `yes`, `no`, `on` and `off` are booleans, `0644` is
//! octal.

use proto_api::yaml;
use serde::de::DeserializeSeed;
use serde_saphyr::options::{DuplicateKeyPolicy, Options};

use super::Value;
use super::json::TreeSeed;

/// Parses one document of at most [`yaml::MAX_DEPTH`] levels. The parser bounds aliases and size.
pub(crate) fn read_yaml(text: &str, seed: TreeSeed<'_>) -> Result<Value, serde_saphyr::Error> {
    let options: Options = serde_saphyr::options! {
        duplicate_keys: DuplicateKeyPolicy::LastWins,
        legacy_octal_numbers: true,
        with_snippet: false,
        budget: serde_saphyr::budget! { max_depth: yaml::MAX_DEPTH },
    };
    yaml::with_stack(|| {
        serde_saphyr::with_deserializer_from_str_with_options(text, options, |reader| {
            seed.deserialize(reader)
        })
    })
}
