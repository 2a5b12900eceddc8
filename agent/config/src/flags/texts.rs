//! Parses values of flags. Pure.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::table::Shape::{
    self, Headers, List, Number, Pairs, PerNode, Switch, Switches, Taints, Text,
};

/// Why the value of a flag is refused; shown behind the flag's name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FlagValueError {
    /// The value as a whole.
    #[error("must {0}")]
    Value(&'static str),
    /// One part of a list.
    #[error("{part:?} must be {must}")]
    Part {
        part: String,
        /// Its format.
        must: &'static str,
    },
    /// Kubernetes has no such effect of a taint.
    #[error("unknown effect {0:?}")]
    Effect(String),
    /// Not the number of a NUMA node.
    #[error("{0:?} is not a NUMA node number")]
    NumaNode(String),
    /// A NUMA node stands twice.
    #[error("NUMA node {0} is listed twice")]
    NumaNodeTwice(i64),
}

/// Parses the value of a flag.
///
/// # Errors
/// The text does not have this format.
pub(super) fn read(shape: Shape, text: &str) -> Result<Value, FlagValueError> {
    let parts = || text.split(',').map(str::trim).filter(|part| !part.is_empty());
    Ok(match shape {
        Text => json!(text),
        Number => {
            json!(text.parse::<i64>().map_err(|_| FlagValueError::Value("be a whole number"))?)
        }
        Switch => json!(switch(text)?),
        List => parts().map(|part| json!(part)).collect(),
        Pairs => parts()
            .map(|part| pair(part).map(|(name, value)| (name, json!(value))))
            .collect::<Result<Map<_, _>, _>>()?
            .into(),
        Switches => parts()
            .map(|part| pair(part).and_then(|(name, value)| Ok((name, json!(switch(&value)?)))))
            .collect::<Result<Map<_, _>, FlagValueError>>()?
            .into(),
        Taints => parts().map(taint).collect::<Result<_, _>>()?,
        PerNode => per_node(text)?,
        Headers => headers(parts())?,
    })
}

fn headers<'a>(parts: impl Iterator<Item = &'a str>) -> Result<Value, FlagValueError> {
    let mut all: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for part in parts {
        let (name, value) = part.split_once(':').ok_or_else(|| bad_part(part, "name:value"))?;
        all.entry(name.trim().to_owned()).or_default().push(value.trim().to_owned());
    }
    Ok(json!(all))
}

fn bad_part(part: &str, must: &'static str) -> FlagValueError {
    FlagValueError::Part { part: part.to_owned(), must }
}

fn switch(text: &str) -> Result<bool, FlagValueError> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err(FlagValueError::Value("be true or false")),
    }
}

fn pair(text: &str) -> Result<(String, String), FlagValueError> {
    let at = text.find(['=', '<']).ok_or_else(|| bad_part(text, "name=value"))?;
    let (name, value) = text.split_at(at);
    let value = value.get(1..).unwrap_or_default();
    if name.is_empty() || value.is_empty() {
        return Err(bad_part(text, "name=value"));
    }
    Ok((name.to_owned(), value.to_owned()))
}

/// A label, `key=value`.
///
/// # Errors
/// It has no key.
pub(super) fn label(text: &str) -> Result<(String, String), FlagValueError> {
    let pair = text.split_once('=').filter(|(key, _)| !key.is_empty());
    let (key, value) = pair.ok_or(FlagValueError::Value("be key=value"))?;
    Ok((key.to_owned(), value.to_owned()))
}

fn taint(text: &str) -> Result<Value, FlagValueError> {
    let bad = FlagValueError::Value("be key=value:effect");
    let Some((rest, effect)) = text.rsplit_once(':') else { return Err(bad) };
    if !matches!(effect, "NoSchedule" | "PreferNoSchedule" | "NoExecute") {
        return Err(FlagValueError::Effect(effect.to_owned()));
    }
    let (key, value) = rest.split_once('=').unwrap_or((rest, ""));
    if key.is_empty() {
        return Err(bad);
    }
    Ok(json!({"key": key, "value": value, "effect": effect}))
}

/// A part with a node number starts that node's entry, so that repeated flags add nodes.
fn per_node(text: &str) -> Result<Value, FlagValueError> {
    let mut nodes: Vec<(i64, Map<String, Value>)> = Vec::new();
    for part in text.split([';', ',']).map(str::trim).filter(|part| !part.is_empty()) {
        let amount = match part.split_once(':') {
            None => part,
            Some((node, amount)) => {
                let node = node.parse().map_err(|_| FlagValueError::NumaNode(node.to_owned()))?;
                if nodes.iter().any(|(known, _)| *known == node) {
                    return Err(FlagValueError::NumaNodeTwice(node));
                }
                nodes.push((node, Map::new()));
                amount
            }
        };
        let first = FlagValueError::Value("begin with the number of a NUMA node");
        let (_, limits) = nodes.last_mut().ok_or(first)?;
        let (name, amount) = pair(amount)?;
        limits.insert(name, json!(amount));
    }
    Ok(nodes.iter().map(|(node, limits)| json!({"numaNode": node, "limits": limits})).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_become_values() {
        let check =
            |shape, text: &str, value: Value| assert_eq!(read(shape, text), Ok(value), "{text}");
        check(Number, "-999", json!(-999));
        check(Switch, "True", json!(true));
        check(List, "10.0.0.1, 10.0.0.2", json!(["10.0.0.1", "10.0.0.2"]));
        check(
            Pairs,
            "memory.available<100Mi,nodefs.available<10%",
            json!({"memory.available": "100Mi", "nodefs.available": "10%"}),
        );
        check(Pairs, "cpu=100m", json!({"cpu": "100m"}));
        check(Switches, "A=true,B=false", json!({"A": true, "B": false}));
        check(
            Taints,
            "a.b/c=d:NoSchedule,x:NoExecute",
            json!([
            {"key": "a.b/c", "value": "d", "effect": "NoSchedule"},
            {"key": "x", "value": "", "effect": "NoExecute"}]),
        );
        check(
            PerNode,
            "0:memory=1Gi,hugepages-2Mi=4Mi;1:memory=2Gi",
            json!([{"numaNode": 0, "limits": {"memory": "1Gi", "hugepages-2Mi": "4Mi"}},
                {"numaNode": 1, "limits": {"memory": "2Gi"}}]),
        );
        check(
            PerNode,
            "0:memory=1Gi,1:memory=2Gi",
            json!([{"numaNode": 0, "limits": {"memory": "1Gi"}},
                {"numaNode": 1, "limits": {"memory": "2Gi"}}]),
        );
        check(Headers, "a:b:c, d: e,a:f", json!({"a": ["b:c", "f"], "d": ["e"]}));
        for (shape, text) in [
            (Headers, "a"),
            (PerNode, "memory=1Gi"),
            (PerNode, "x:memory=1Gi"),
            (PerNode, "0:memory"),
            (PerNode, "0:memory=1;0:memory=2"),
            (Number, "x"),
            (Switch, "maybe"),
            (Pairs, "a"),
            (Pairs, "=1"),
            (Switches, "A=2"),
            (Taints, "a:Never"),
            (Taints, ":NoExecute"),
        ] {
            assert!(read(shape, text).is_err(), "{text}");
        }
        assert_eq!(label("a=b=c"), Ok(("a".into(), "b=c".into())));
        assert!(label("=b").is_err());
    }
}
