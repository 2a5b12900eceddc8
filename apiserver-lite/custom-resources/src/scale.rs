//! The subresource `scale`: where objects keep their replicas and selector.

use apiserver_schema::{Map, Value};

use crate::read::DefinitionReadError;

/// Paths of field names from the root of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScalePaths {
    /// The wanted replicas.
    pub spec_replicas: Vec<String>,
    /// The present replicas.
    pub status_replicas: Vec<String>,
    /// The selector as text; empty if there is none.
    pub label_selector: Vec<String>,
}

impl ScalePaths {
    pub(crate) fn read(scale: &Map) -> Result<Self, DefinitionReadError> {
        let label_selector = match scale.str("labelSelectorPath") {
            "" => Vec::new(),
            path => fields(path)?,
        };
        Ok(ScalePaths {
            spec_replicas: fields(scale.str("specReplicasPath"))?,
            status_replicas: fields(scale.str("statusReplicasPath"))?,
            label_selector,
        })
    }

    /// The wanted replicas of an object, if they are set.
    pub fn replicas(&self, object: &Value) -> Option<i64> {
        at(object, &self.spec_replicas)?.as_int()
    }

    /// The present replicas of an object; 0 if they are not set.
    pub fn present(&self, object: &Value) -> i64 {
        at(object, &self.status_replicas).and_then(Value::as_int).unwrap_or_default()
    }

    /// The selector of an object, as text.
    pub fn selector<'a>(&self, object: &'a Value) -> Option<&'a str> {
        if self.label_selector.is_empty() {
            return None;
        }
        at(object, &self.label_selector)?.as_str()
    }

    /// Sets the wanted replicas. Objects on the way are made; returns false if one of them is another value.
    pub fn set_replicas(&self, object: &mut Value, replicas: i64) -> bool {
        let Some((last, parents)) = self.spec_replicas.split_last() else { return false };
        let mut map = object.as_map_mut();
        for name in parents {
            let Some(parent) = map else { return false };
            if !parent.contains(name) {
                parent.insert(name.clone(), Map::new());
            }
            map = parent.map_mut(name);
        }
        let Some(map) = map else { return false };
        map.insert(last.clone(), replicas);
        true
    }
}

fn at<'a>(object: &'a Value, path: &[String]) -> Option<&'a Value> {
    path.iter().try_fold(object, |value, name| value.as_map()?.get(name))
}

fn fields(path: &str) -> Result<Vec<String>, DefinitionReadError> {
    let fields = path.strip_prefix('.').map(|rest| rest.split('.').map(str::to_owned).collect());
    let fields: Option<Vec<String>> = fields;
    fields
        .filter(|fields| fields.iter().all(|name| !name.is_empty()))
        .ok_or_else(|| DefinitionReadError::JsonPath(path.to_owned()))
}
