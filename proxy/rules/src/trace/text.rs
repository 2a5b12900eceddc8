//! Text of set elements.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use proxy_netfilter::nft::{Data, Family, Type, Value};

use crate::layout::expr_builders::address_type;
use crate::layout::{Class, Map};

/// An element of the set `name`: `services: 10.96.0.1 . tcp . 80 -> one of 3 endpoints`.
pub fn element(family: Family, name: &str, key: &Value, data: Option<&Data>) -> String {
    let Some(map) = Map::from_name(name) else { return format!("{name}: {key:?}") };
    let (key_types, data_types) = map.types(address_type(family));
    let key = match map {
        Map::Classes => class(key.bytes()),
        _ => fields(&key_types, key.bytes()),
    };
    let data = match data {
        None => return format!("{name}: {key}"),
        Some(Data::Verdict(verdict)) => format!("{verdict:?}").to_lowercase(),
        Some(Data::Value(value)) => match map {
            Map::Services | Map::ServicesExternal | Map::NodePorts | Map::NodePortsExternal => {
                class(value.bytes().get(4..).unwrap_or_default())
            }
            _ => fields(&data_types, value.bytes()),
        },
    };
    format!("{name}: {key} -> {data}")
}

fn class(word: &[u8]) -> String {
    let class = word.try_into().ok().map(u32::from_ne_bytes).and_then(Class::from_word);
    match class {
        Some(Class::Balance(draw, choice, count)) => {
            let choice = format!("{choice:?}").to_lowercase();
            format!("{count} endpoints of {draw:?}, {choice}")
        }
        Some(Class::Reject) => "reject".to_owned(),
        Some(Class::Drop) => "drop".to_owned(),
        None => format!("{word:?}"),
    }
}

/// Each field starts at a register of four bytes.
fn fields(types: &[Type], bytes: &[u8]) -> String {
    let mut words = Vec::new();
    let mut at: usize = 0;
    for kind in types {
        let len = kind.bytes() as usize;
        words.push(field(*kind, bytes.get(at..at.saturating_add(len)).unwrap_or_default()));
        at = at.saturating_add(len.div_ceil(4).saturating_mul(4));
    }
    words.join(" . ")
}

fn field(kind: Type, bytes: &[u8]) -> String {
    let number = || match kind {
        Type::Ipv4 => {
            <[u8; 4]>::try_from(bytes).ok().map(|b| IpAddr::from(Ipv4Addr::from(b)).to_string())
        }
        Type::Ipv6 => {
            <[u8; 16]>::try_from(bytes).ok().map(|b| IpAddr::from(Ipv6Addr::from(b)).to_string())
        }
        Type::Port => bytes.try_into().ok().map(|b| u16::from_be_bytes(b).to_string()),
        Type::Mark => bytes.try_into().ok().map(|b| u32::from_ne_bytes(b).to_string()),
        Type::Proto => match bytes {
            [6] => Some("tcp".to_owned()),
            [17] => Some("udp".to_owned()),
            [132] => Some("sctp".to_owned()),
            _ => None,
        },
        Type::Verdict => None,
    };
    number().unwrap_or_else(|| format!("{bytes:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{EndpointPool, backend_value, service_key, slot_key};
    use crate::model::{Choice, Protocol};

    #[test]
    fn elements_read_like_what_they_mean() {
        let key = service_key(&"10.96.0.1".parse().unwrap(), Protocol::Tcp, 80);
        let class = Data::Value(Class::Balance(EndpointPool::Service, Choice::Random, 3).data());
        assert_eq!(
            element(Family::Ip, "services", &key, Some(&class)),
            "services: 10.96.0.1 . tcp . 80 -> 3 endpoints of Service, random"
        );
        let backend = Data::Value(backend_value(&"10.244.0.5".parse().unwrap(), 8080));
        assert_eq!(
            element(Family::Ip, "endpoints", &slot_key(&key, 2), Some(&backend)),
            "endpoints: 10.96.0.1 . tcp . 80 . 2 -> 10.244.0.5 . 8080"
        );
        let six = service_key(&"fd00::1".parse().unwrap(), Protocol::Udp, 53);
        assert_eq!(element(Family::Ip6, "gated", &six, None), "gated: fd00::1 . udp . 53");
        let damaged = Value::new(&[1]);
        assert_eq!(element(Family::Ip, "cluster-ips", &damaged, None), "cluster-ips: []");
    }
}
