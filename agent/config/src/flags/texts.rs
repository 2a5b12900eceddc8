//! Parses values of flags. Pure.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::Shape::{self, Headers, List, Number, Pairs, PerNode, Switch, Switches, Taints, Text};

/// Parses the value of a flag.
///
/// # Errors
/// The text does not have this format.
pub(super) fn read(shape: Shape, text: &str) -> Result<Value, String> {
    let parts = || text.split(',').map(str::trim).filter(|part| !part.is_empty());
    Ok(match shape {
        Text => json!(text),
        Number => json!(text.parse::<i64>().map_err(|_| "must be a whole number")?),
        Switch => json!(switch(text)?),
        List => parts().map(|part| json!(part)).collect(),
        Pairs => parts()
            .map(|part| pair(part).map(|(name, value)| (name, json!(value))))
            .collect::<Result<Map<_, _>, _>>()?
            .into(),
        Switches => parts()
            .map(|part| pair(part).and_then(|(name, value)| Ok((name, json!(switch(&value)?)))))
            .collect::<Result<Map<_, _>, String>>()?
            .into(),
        Taints => parts().map(taint).collect::<Result<_, _>>()?,
        PerNode => per_node(text)?,
        Headers => headers(parts())?,
    })
}

fn headers<'a>(parts: impl Iterator<Item = &'a str>) -> Result<Value, String> {
    let mut all: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for part in parts {
        let (name, value) =
            part.split_once(':').ok_or_else(|| format!("{part:?} must be name:value"))?;
        all.entry(name.trim().to_owned()).or_default().push(value.trim().to_owned());
    }
    Ok(json!(all))
}

fn switch(text: &str) -> Result<bool, String> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err("must be true or false".to_owned()),
    }
}

fn pair(text: &str) -> Result<(String, String), String> {
    let at = text.find(['=', '<']).ok_or_else(|| format!("{text:?} must be name=value"))?;
    let (name, value) = text.split_at(at);
    let value = value.get(1..).unwrap_or_default();
    if name.is_empty() || value.is_empty() {
        return Err(format!("{text:?} must be name=value"));
    }
    Ok((name.to_owned(), value.to_owned()))
}

/// A label, `key=value`.
///
/// # Errors
/// It has no key.
pub(super) fn label(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("must be key=value")?;
    if key.is_empty() {
        return Err("must be key=value".to_owned());
    }
    Ok((key.to_owned(), value.to_owned()))
}

fn taint(text: &str) -> Result<Value, String> {
    let (rest, effect) = text.rsplit_once(':').ok_or("must be key=value:effect")?;
    if !matches!(effect, "NoSchedule" | "PreferNoSchedule" | "NoExecute") {
        return Err(format!("unknown effect {effect:?}"));
    }
    let (key, value) = rest.split_once('=').unwrap_or((rest, ""));
    if key.is_empty() {
        return Err("must be key=value:effect".to_owned());
    }
    Ok(json!({"key": key, "value": value, "effect": effect}))
}

/// A part with a node number starts that node's entry, so that repeated flags add nodes.
fn per_node(text: &str) -> Result<Value, String> {
    let mut nodes: Vec<(i64, Map<String, Value>)> = Vec::new();
    for part in text.split([';', ',']).map(str::trim).filter(|part| !part.is_empty()) {
        let amount = match part.split_once(':') {
            None => part,
            Some((node, amount)) => {
                let node =
                    node.parse().map_err(|_| format!("{node:?} is not a NUMA node number"))?;
                if nodes.iter().any(|(known, _)| *known == node) {
                    return Err(format!("NUMA node {node} is duplicate"));
                }
                nodes.push((node, Map::new()));
                amount
            }
        };
        let (_, limits) = nodes.last_mut().ok_or("must begin with the number of a NUMA node")?;
        let (name, amount) = pair(amount)?;
        limits.insert(name, json!(amount));
    }
    Ok(nodes.iter().map(|(node, limits)| json!({"numaNode": node, "limits": limits})).collect())
}
